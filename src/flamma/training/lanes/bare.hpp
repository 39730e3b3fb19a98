// Convolutions without bias, of any stride: of a few samples of every lane at a time, so that each
// weight is loaded once for all of them.
//
// Pixels become rows of numbers, `in` and `out`, whose products with the weights are those of
// gemm.hpp. Here that is one row per pixel of the output (all its taps); see winograd.hpp for the
// better way of those with 3x3 taps and stride 1.
#pragma once

#include "gemm.hpp"
#include "pool.hpp"
#include "turn.hpp"

namespace {

enum Method { DIRECT, BY_FOURS, BY_TWOS };

struct Bare {
    Grid x, y, dx, dy;
    int64_t kh, kw, ph, pw, sh, sw;
    Method method;

    int64_t taps() const { return kh * kw; }
    int64_t depth() const { return x.c * taps(); }
};

// Memory that the operations take in turn.
struct Scratch {
    V *in, *back, *out, *turned, *sums, *weights;
};

// How many vectors of each an operation needs, in the order of Scratch, and of transformed weights.
struct Needs {
    int64_t scratch[6], transformed;
};

inline int64_t padded(int64_t count) { return blocks_of(count) * LANES; }

// Calls f(place in a row of numbers, where its pixel is, whether that is in the map) for all taps of
// all channels at pixel (r, c) of the output.
template <class F>
LANES_INLINE void over_taps(const Bare& s, const Grid& g, int64_t r, int64_t c, F f) {
    const int64_t top = r * s.sh - s.ph, left = c * s.sw - s.pw;
    const bool whole = top >= 0 && top + s.kh <= g.h && left >= 0 && left + s.kw <= g.w;
    const int64_t plane = g.plane(), pitch = g.pitch(), corner = g.row(0, top) + left;
    const auto all = [&](int64_t kh, int64_t kw, auto inside) {
        int64_t place = 0;
        for (int64_t channel = 0; channel < s.x.c; ++channel)
            for (int64_t y = 0; y < kh; ++y)
                for (int64_t x = 0; x < kw; ++x)
                    f(place++, corner + channel * plane + y * pitch + x, inside(y, x));
    };
    const auto always = [](int64_t, int64_t) { return true; };
    if (whole && s.kh == 3 && s.kw == 3) return all(3, 3, always);  // unrolled
    if (whole) return all(s.kh, s.kw, always);
    all(s.kh, s.kw, [&](int64_t y, int64_t x) {
        return top + y >= 0 && top + y < g.h && left + x >= 0 && left + x < g.w;
    });
}

inline void gather_taps(const Bare& s, const V* x, int64_t r, int64_t c, int64_t rows, V* in) {
    const int64_t depth = s.depth(), pitch = padded(depth);
    for (int64_t row = 0; row < rows; ++row, x += s.x.size(), in += pitch) {
        over_taps(s, s.x, r, c, [=](int64_t place, int64_t at, bool inside) {
            in[place] = inside ? x[at] : zero();
        });
        for (int64_t i = depth; i < pitch; ++i) in[i] = zero();
    }
}

inline void scatter_taps(const Bare& s, const V* back, int64_t r, int64_t c, int64_t rows, V* dx) {
    for (int64_t row = 0; row < rows; ++row, dx += s.dx.size(), back += s.depth())
        over_taps(s, s.dx, r, c, [=](int64_t place, int64_t at, bool inside) {
            if (inside) dx[at] += back[place];
        });
}

inline Needs direct_needs(const Bare& s) {
    const int64_t depth = times(s.x.c, s.taps()), wide = times(ROWS, padded(depth));
    const int64_t sums = times(s.y.c, blocks_of(depth));
    return Needs{{wide, wide, times(ROWS, s.y.c), wide, sums, 0}, 0};
}

inline void direct_forward(const Bare& s, const V* x, const float* w, int64_t rows,
                           const Scratch& m, V* y) {
    const int64_t depth = s.depth();
    for (int64_t r = 0; r < s.y.h; ++r)
        for (int64_t c = 0; c < s.y.w; ++c) {
            gather_taps(s, x, r, c, rows, m.in);
            product(Values{m.in, padded(depth)}, Weights{w, depth, 1}, rows, s.y.c, depth, m.out,
                    s.y.c, FromZero{});
            for (int64_t row = 0; row < rows; ++row)
                for (int64_t k = 0; k < s.y.c; ++k)
                    y[row * s.y.size() + s.y.row(k, r) + c] = m.out[row * s.y.c + k];
        }
}

// Adds the gradient by data to dx, unless that is null, and leaves that by weights in `sums`, as
// (outputs, padded taps of all channels).
inline void direct_backward(const Bare& s, const V* x, const V* dy, const float* w, int64_t rows,
                            const Scratch& m, V* dx) {
    const int64_t depth = s.depth(), blocks = blocks_of(depth);
    std::memset(static_cast<void*>(m.sums), 0, sizeof(V) * s.y.c * blocks);
    for (int64_t r = 0; r < s.y.h; ++r)
        for (int64_t c = 0; c < s.y.w; ++c) {
            for (int64_t row = 0; row < rows; ++row)
                for (int64_t k = 0; k < s.y.c; ++k)
                    m.out[row * s.y.c + k] = dy[row * s.dy.size() + s.dy.row(k, r) + c];
            gather_taps(s, x, r, c, rows, m.in);
            turn_samples(m.in, rows, blocks, m.turned);
            outer_product(m.out, s.y.c, s.y.c, m.turned, rows, blocks, m.sums);
            if (dx == nullptr) continue;
            product(Values{m.out, s.y.c}, Weights{w, 1, depth}, rows, depth, s.y.c, m.back, depth,
                    FromZero{});
            scatter_taps(s, m.back, r, c, rows, dx);
        }
}

// Puts the gradient by weights into its place, or adds it to what is there.
inline void direct_gradient(const Bare& s, const V* sums, bool more, float* gradient) {
    const int64_t width = s.depth() * SEATS, pitch = blocks_of(s.depth()) * W;
    for (int64_t k = 0; k < s.y.c; ++k) {
        const float* from = reinterpret_cast<const float*>(sums) + k * pitch;
        float* to = gradient + k * width;
        for (int64_t i = 0; i < width; ++i) to[i] = more ? to[i] + from[i] : from[i];
    }
}

}  // namespace
