// Group norm (Wu and He, Group normalization, ECCV 2018), with the sum with a shortcut and the ReLU
// that may follow it: of one sample of every lane at a time, whose group stays in the L1 cache.
#pragma once

#include <cmath>

#include "pool.hpp"

namespace {

struct Norm {
    Grid x, y, dx, dy;
    int64_t groups;
    float epsilon;

    int64_t channels() const { return x.c / groups; }
    V share() const { return splat(1.0f / static_cast<float>(channels() * x.h * x.w)); }
};

constexpr int CHAINS = 4;  // sums side by side, as each addition waits for the one before

struct Sum {
    V parts[CHAINS] = {};

    LANES_INLINE V total() const { return (parts[0] + parts[1]) + (parts[2] + parts[3]); }
};

// Calls f(column, number of the sum) for a row: the order of a sum depends on the width only.
template <class F>
LANES_INLINE void over_columns(int64_t width, F f) {
    int64_t n = 0;
    for (; n + CHAINS <= width; n += CHAINS)
#pragma GCC unroll 4
        for (int i = 0; i < CHAINS; ++i) f(n + i, i);
    for (int i = 0; n + i < width; ++i) f(n + i, i);
}

// The sum of what `term` makes of every number of a group.
template <class F>
LANES_INLINE V sum_of_group(const Norm& s, const V* x, int64_t group, F term) {
    Sum sum;
    for (int64_t c = group * s.channels(); c < (group + 1) * s.channels(); ++c)
        for (int64_t r = 0; r < s.x.h; ++r) {
            const V* row = x + s.x.row(c, r);
            over_columns(s.x.w, [&](int64_t n, int i) { sum.parts[i] += term(row[n]); });
        }
    return sum.total();
}

// 1 / sqrt, which IEEE 754 defines to the last bit.
inline V reciprocal_root(V x) {
    V root;
    for (int l = 0; l < W; ++l) root[l] = std::sqrt(x[l]);
    return splat(1.0f) / root;
}

// y = norm(x) (+ what is joined to it). `kept` gets the mean and the reciprocal deviation of each
// group.
template <bool Joins, bool Rectifies>
void norm_forward(const Norm& s, const V* x, const float* scale, const float* shift,
                  const Grid& gj, const V* joined, V* y, V* kept) {
    for (int64_t g = 0; g < s.groups; ++g) {
        const V mean = sum_of_group(s, x, g, [](V a) { return a; }) * s.share();
        const V squares = sum_of_group(s, x, g, [=](V a) { return (a - mean) * (a - mean); });
        const V rest = reciprocal_root(fma(squares, s.share(), splat(s.epsilon)));
        kept[2 * g] = mean;
        kept[2 * g + 1] = rest;
        for (int64_t c = g * s.channels(); c < (g + 1) * s.channels(); ++c) {
            const V factor = rest * each(scale + c * SEATS), offset = each(shift + c * SEATS);
            for (int64_t r = 0; r < s.x.h; ++r) {
                const V *from = x + s.x.row(c, r), *other = Joins ? joined + gj.row(c, r) : from;
                V* to = y + s.y.row(c, r);
                for (int64_t n = 0; n < s.x.w; ++n) {
                    V a = fma(from[n] - mean, factor, offset);
                    if (Joins) a += other[n];
                    to[n] = Rectifies ? relu(a) : a;
                }
            }
        }
    }
}

// Adds the gradients by scale and shift, and writes those by x and by what was joined.
template <bool Joins, bool Rectifies>
void norm_backward(const Norm& s, const V* x, const V* y, V* dy, const float* scale,
                   const V* kept, V* dx, const Grid& gj, V* joined, V* d_scale, V* d_shift) {
    for (int64_t g = 0; g < s.groups; ++g) {
        const V mean = kept[2 * g], rest = kept[2 * g + 1];
        V first = zero(), second = zero();
        for (int64_t c = g * s.channels(); c < (g + 1) * s.channels(); ++c) {
            Sum shift, along;
            for (int64_t r = 0; r < s.x.h; ++r) {
                const V *in = x + s.x.row(c, r), *out = y + s.y.row(c, r);
                V *down = dy + s.dy.row(c, r), *other = Joins ? joined + gj.row(c, r) : down;
                over_columns(s.x.w, [&](int64_t n, int i) {
                    V a = down[n];
                    if (Rectifies) down[n] = a = select(out[n] <= zero(), zero(), a);
                    if (Joins) other[n] = a;
                    shift.parts[i] += a;
                    along.parts[i] = fma(a, in[n] - mean, along.parts[i]);
                });
            }
            const V of_shift = shift.total(), of_scale = along.total() * rest;
            d_shift[c] += of_shift;
            d_scale[c] += of_scale;
            const V factor = each(scale + c * SEATS);
            first = fma(factor, of_shift, first);
            second = fma(factor, of_scale, second);
        }
        const V along = -(second * s.share()) * (rest * rest), constant = -(first * s.share()) * rest;
        for (int64_t c = g * s.channels(); c < (g + 1) * s.channels(); ++c) {
            const V factor = rest * each(scale + c * SEATS);
            for (int64_t r = 0; r < s.x.h; ++r) {
                const V *in = x + s.x.row(c, r), *down = dy + s.dy.row(c, r);
                V* to = dx + s.dx.row(c, r);
                for (int64_t n = 0; n < s.x.w; ++n)
                    to[n] = fma(down[n], factor, fma(in[n] - mean, along, constant));
            }
        }
    }
}

}  // namespace
