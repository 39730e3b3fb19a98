// Pooling and activations, of one sample of every lane at a time.
#pragma once

#include "vec.hpp"

namespace {

// A tensor (channels, height, width) of vectors, with a border of zeros around every channel.
struct Grid {
    int64_t c = 0, h = 0, w = 0, ph = 0, pw = 0;

    int64_t pitch() const { return w + 2 * pw; }
    int64_t plane() const { return (h + 2 * ph) * pitch(); }
    int64_t size() const { return c * plane(); }
    // The same, for a grid that is not yet known to be small enough.
    int64_t checked_size() const {
        const int64_t all = times(times(plus(h, 2 * ph), plus(w, 2 * pw)), c);
        require(all <= LARGEST, TOO_LARGE);
        return all;
    }
    // Makes its border at least so wide.
    void widen(int64_t rows, int64_t columns) {
        ph = ph > rows ? ph : rows;
        pw = pw > columns ? pw : columns;
    }
    bool operator==(const Grid& g) const {
        return c == g.c && h == g.h && w == g.w && ph == g.ph && pw == g.pw;
    }
    int64_t origin() const { return ph * pitch() + pw; }
    int64_t row(int64_t channel, int64_t y) const {
        return channel * plane() + y * pitch() + origin();
    }
};

struct Window {
    int64_t kh, kw, sh, sw;
    bool overlaps() const { return sh < kh || sw < kw; }
};

// Where a window of two by two is common, the constants let the compiler unroll it.
template <int K>
LANES_INLINE Window fixed(Window p) {
    return K ? Window{K, K, K, K} : p;
}

template <int K>
void max_forward(const Window& window, const Grid& gx, const V* x, const Grid& gy, V* y, I* which,
                 bool with_relu) {
    const Window p = fixed<K>(window);
    for (int64_t c = 0; c < gy.c; ++c)
        for (int64_t r = 0; r < gy.h; ++r)
            for (int64_t n = 0; n < gy.w; ++n) {
                const V* first = x + gx.row(c, r * p.sh) + n * p.sw;
                V best = first[0];
                I at = splat_int(0);
                for (int64_t ky = 0; ky < p.kh; ++ky)
                    for (int64_t kx = 0; kx < p.kw; ++kx) {
                        const V v = first[ky * gx.pitch() + kx];
                        const I larger = (v > best) | (v != v);  // as in torch
                        best = select(larger, v, best);
                        at = select(larger, splat_int(static_cast<int32_t>(ky * p.kw + kx)), at);
                    }
                y[gy.row(c, r) + n] = with_relu ? relu(best) : best;
                *which++ = at;
            }
}

// Cells that no window covers are never written and stay zero.
template <int K>
void max_backward(const Window& window, const Grid& gx, V* dx, const Grid& gy, const V* dy,
                  const Grid& values, const V* y, const I* which, bool with_relu) {
    const Window p = fixed<K>(window);
    const bool adds = K == 0 && p.overlaps();
    for (int64_t c = 0; c < gy.c; ++c) {
        if (adds) std::memset(static_cast<void*>(dx + c * gx.plane()), 0, sizeof(V) * gx.plane());
        for (int64_t r = 0; r < gy.h; ++r)
            for (int64_t n = 0; n < gy.w; ++n) {
                V g = dy[gy.row(c, r) + n];
                if (with_relu) g = select(y[values.row(c, r) + n] <= zero(), zero(), g);
                V* first = dx + gx.row(c, r * p.sh) + n * p.sw;
                const I at = *which++;
                for (int64_t ky = 0; ky < p.kh; ++ky)
                    for (int64_t kx = 0; kx < p.kw; ++kx) {
                        const I here = at == splat_int(static_cast<int32_t>(ky * p.kw + kx));
                        const V share = (V)((I)g & here);
                        V& cell = first[ky * gx.pitch() + kx];
                        cell = adds ? cell + share : share;
                    }
            }
    }
}

template <int K>
void mean_forward(const Window& window, const Grid& gx, const V* x, const Grid& gy, V* y) {
    const Window p = fixed<K>(window);
    const V share = splat(1.0f / static_cast<float>(p.kh * p.kw));
    for (int64_t c = 0; c < gy.c; ++c)
        for (int64_t r = 0; r < gy.h; ++r)
            for (int64_t n = 0; n < gy.w; ++n) {
                const V* first = x + gx.row(c, r * p.sh) + n * p.sw;
                V sum = zero();
                for (int64_t ky = 0; ky < p.kh; ++ky)
                    for (int64_t kx = 0; kx < p.kw; ++kx) sum += first[ky * gx.pitch() + kx];
                y[gy.row(c, r) + n] = sum * share;
            }
}

template <int K>
void mean_backward(const Window& window, const Grid& gx, V* dx, const Grid& gy, const V* dy) {
    const Window p = fixed<K>(window);
    const bool adds = K == 0 && p.overlaps();
    const V share = splat(1.0f / static_cast<float>(p.kh * p.kw));
    for (int64_t c = 0; c < gy.c; ++c) {
        if (adds) std::memset(static_cast<void*>(dx + c * gx.plane()), 0, sizeof(V) * gx.plane());
        for (int64_t r = 0; r < gy.h; ++r)
            for (int64_t n = 0; n < gy.w; ++n) {
                const V g = dy[gy.row(c, r) + n] * share;
                V* first = dx + gx.row(c, r * p.sh) + n * p.sw;
                for (int64_t ky = 0; ky < p.kh; ++ky)
                    for (int64_t kx = 0; kx < p.kw; ++kx) {
                        V& cell = first[ky * gx.pitch() + kx];
                        cell = adds ? cell + g : g;
                    }
            }
    }
}

enum Activation { RELU, TANH };

// In place; zeros of a border stay zero.
inline void activate(Activation kind, V* x, int64_t count) {
    if (kind == RELU)
        for (int64_t i = 0; i < count; ++i) x[i] = relu(x[i]);
    else
        for (int64_t i = 0; i < count; ++i) x[i] = tangent(x[i]);
}

// The gradient in place, from the values after the activation.
inline void activate_backward(Activation kind, const Grid& gy, const V* y, const Grid& gd, V* d) {
    for (int64_t c = 0; c < gy.c; ++c)
        for (int64_t r = 0; r < gy.h; ++r) {
            const V* py = y + gy.row(c, r);
            V* pd = d + gd.row(c, r);
            for (int64_t n = 0; n < gy.w; ++n)
                pd[n] = kind == RELU ? select(py[n] <= zero(), zero(), pd[n])
                                     : pd[n] * (splat(1.0f) - py[n] * py[n]);
        }
}

}  // namespace
