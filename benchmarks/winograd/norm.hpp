// Group norm, the sum with a shortcut and ReLU in one, with the images of a batch in the lanes.
#pragma once

#include <cmath>

#include "blocks.hpp"

namespace {

// The groups' means and reciprocal deviations are kept as [group][image].
template <int C, int SIZE, int GROUPS = 8>
struct Norm {
    static constexpr int PIXELS = SIZE * SIZE, CHANNELS = C / GROUPS;
    static constexpr int64_t STEP = pixel_size(C);
    static constexpr float COUNT = PIXELS * CHANNELS;
    static constexpr int AT_ONCE = 2;  // channels, so that a pixel's numbers are a few lines
    static_assert(CHANNELS % AT_ONCE == 0);

    // Adds what `term` makes of every vector of a group to `sums`, image by image.
    template <class F>
    static LANES_INLINE void sum_up(const float* x, V (&sums)[NV], F term) {
        V parts[AT_ONCE][NV] = {};
        for (int c = 0; c < CHANNELS; c += AT_ONCE)
            for (int p = 0; p < PIXELS; ++p)
                for (int i = 0; i < AT_ONCE; ++i)
                    for (int v = 0; v < NV; ++v)
                        parts[i][v] += term(loaded(x + p * STEP + (c + i) * N + v * W), v);
        for (int v = 0; v < NV; ++v) sums[v] = parts[0][v] + parts[1][v];
    }

    static V reciprocal_deviation(V squares) {
        V result;
        for (int l = 0; l < W; ++l) result[l] = 1.0f / std::sqrt(squares[l] / COUNT + 1e-5f);
        return result;
    }

    // y = norm(x) (+ shortcut), and without what is negative if it is to be followed by a ReLU.
    template <bool Add, bool Relu>
    static void forward(const float* x, const float* scale, const float* shift,
                        const float* shortcut, float* y, float* kept) {
        for (int g = 0; g < GROUPS; ++g) {
            const int64_t at = g * CHANNELS * N;
            V mean[NV], rest[NV];
            sum_up(x + at, mean, [](V a, int) { return a; });
            for (V& m : mean) m *= 1.0f / COUNT;
            sum_up(x + at, rest, [&](V a, int v) { return (a - mean[v]) * (a - mean[v]); });
            for (int v = 0; v < NV; ++v) {
                rest[v] = reciprocal_deviation(rest[v]);
                store(kept + g * N + v * W, mean[v]);
                store(kept + (GROUPS + g) * N + v * W, rest[v]);
            }
            for (int p = 0; p < PIXELS; ++p)
                for (int c = 0; c < CHANNELS; ++c)
                    for (int v = 0; v < NV; ++v) {
                        const int64_t place = at + p * STEP + c * N + v * W;
                        const int channel = g * CHANNELS + c;
                        V a = (loaded(x + place) - mean[v]) * rest[v];
                        a = fma(a, splat(scale[channel]), splat(shift[channel]));
                        if (Add) a += loaded(shortcut + place);
                        store(y + place, Relu ? relu(a) : a);
                    }
        }
    }

    // The gradient by the sum goes to `shared` too if there was a shortcut.
    template <bool Add, bool Relu>
    static void backward(const float* x, const float* y, const float* dy, const float* scale,
                         const float* kept, float* dx, float* shared, float* dscale,
                         float* dshift) {
        for (int g = 0; g < GROUPS; ++g) {
            V mean[NV], rest[NV], first[NV] = {}, second[NV] = {};
            for (int v = 0; v < NV; ++v) {
                mean[v] = loaded(kept + g * N + v * W);
                rest[v] = loaded(kept + (GROUPS + g) * N + v * W);
            }
            for (int c = g * CHANNELS; c < (g + 1) * CHANNELS; ++c) {
                V of_shift[NV] = {}, of_scale[NV] = {};
                for (int p = 0; p < PIXELS; ++p)
                    for (int v = 0; v < NV; ++v) {
                        const int64_t place = p * STEP + c * N + v * W;
                        V a = loaded(dy + place);
                        if (Relu) a = select(loaded(y + place) > zero(), a, zero());
                        if (Add) store(shared + place, a);
                        of_shift[v] += a;
                        of_scale[v] += a * ((loaded(x + place) - mean[v]) * rest[v]);
                    }
                dshift[c] = over_images(of_shift);
                dscale[c] = over_images(of_scale);
                for (int v = 0; v < NV; ++v) {
                    first[v] += scale[c] * of_shift[v];
                    second[v] += scale[c] * of_scale[v];
                }
            }
            for (int v = 0; v < NV; ++v) first[v] *= 1.0f / COUNT, second[v] *= 1.0f / COUNT;
            for (int p = 0; p < PIXELS; ++p)
                for (int c = g * CHANNELS; c < (g + 1) * CHANNELS; ++c)
                    for (int v = 0; v < NV; ++v) {
                        const int64_t place = p * STEP + c * N + v * W;
                        V a = loaded((Add ? shared : dy) + place);
                        if (Relu && !Add) a = select(loaded(y + place) > zero(), a, zero());
                        const V normed = (loaded(x + place) - mean[v]) * rest[v];
                        a = a * splat(scale[c]) - (first[v] + normed * second[v]);
                        store(dx + place, a * rest[v]);
                    }
        }
    }

    static float over_images(const V (&sums)[NV]) {
        float sum = 0;
        for (const V& part : sums)
            for (int l = 0; l < W; ++l) sum += part[l];
        return sum;
    }
};

}  // namespace
