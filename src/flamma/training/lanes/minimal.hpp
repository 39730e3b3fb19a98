// Minimal filtering (Winograd, Arithmetic complexity of computations, SIAM 1980) in one dimension.
//
// `input`, `output` and `weights` are the transforms, and those that end in `_back` their adjoints.
// A window of SIZE numbers, of which MARGIN at each end are its neighbours', becomes POINTS numbers,
// whose products with the transformed taps become OUT results.
#pragma once

#include "vec.hpp"

namespace {

// F(4, 3) with the points 0, 1, -1, 2, -2 and infinity.
struct Fours {
    static constexpr int OUT = 4, MARGIN = 1, SIZE = 6, POINTS = 6;

    static LANES_INLINE void input(const V* d, V* r) {
        const V four = splat(4.0f), two = splat(2.0f);
        const V a = fma(-four, d[2], d[4]), b = fma(-four, d[1], d[3]);
        const V c = d[4] - d[2], e = d[3] - d[1];
        r[0] = fma(four, d[0], fma(-four, d[2], c));
        r[1] = a + b;
        r[2] = a - b;
        r[3] = fma(two, e, c);
        r[4] = fma(-two, e, c);
        r[5] = fma(-four, e, d[5] - d[3]);
    }

    static LANES_INLINE void input_back(const V* r, V* d) {
        const V four = splat(4.0f), two = splat(2.0f), five = splat(5.0f);
        const V s = r[1] + r[2], t = r[1] - r[2], p = r[3] + r[4], q = r[3] - r[4];
        d[0] = four * r[0];
        d[1] = fma(-two, q, four * (r[5] - t));
        d[2] = fma(-five, r[0], -fma(four, s, p));
        d[3] = fma(-five, r[5], fma(two, q, t));
        d[4] = r[0] + (s + p);
        d[5] = r[5];
    }

    static LANES_INLINE void output(const V* m, V* y) {
        const V s = m[1] + m[2], t = m[1] - m[2], p = m[3] + m[4], q = m[3] - m[4];
        y[0] = m[0] + (s + p);
        y[1] = fma(splat(2.0f), q, t);
        y[2] = fma(splat(4.0f), p, s);
        y[3] = fma(splat(8.0f), q, t + m[5]);
    }

    static LANES_INLINE void output_back(const V* y, V* m) {
        const V four = splat(4.0f), two = splat(2.0f);
        const V even = y[0] + y[2], odd = y[1] + y[3];
        const V evens = fma(four, y[2], y[0]), odds = fma(four, y[3], y[1]);
        m[0] = y[0];
        m[1] = even + odd;
        m[2] = even - odd;
        m[3] = fma(two, odds, evens);
        m[4] = fma(-two, odds, evens);
        m[5] = y[3];
    }

    static LANES_INLINE void weights(const V* g, V* u) {
        const V sixth = splat(1.0f / 6), ends = (g[0] + g[2]) * -sixth;
        const V far = fma(g[0], splat(1.0f / 24), g[2] * sixth), half = splat(1.0f / 12);
        u[0] = g[0] * splat(0.25f);
        u[1] = fma(-sixth, g[1], ends);
        u[2] = fma(sixth, g[1], ends);
        u[3] = fma(half, g[1], far);
        u[4] = fma(-half, g[1], far);
        u[5] = g[2];
    }

    static LANES_INLINE void weights_back(const V* u, V* g) {
        const V sixth = splat(1.0f / 6), s = (u[1] + u[2]) * -sixth, p = u[3] + u[4];
        g[0] = fma(u[0], splat(0.25f), fma(p, splat(1.0f / 24), s));
        g[1] = fma(u[2] - u[1], sixth, (u[3] - u[4]) * splat(1.0f / 12));
        g[2] = fma(p, sixth, s + u[5]);
    }
};

// Two numbers without neighbours: a product with a Toeplitz matrix of 2x2, by three products instead
// of four (Karatsuba).
struct Twos {
    static constexpr int OUT = 2, MARGIN = 0, SIZE = 2, POINTS = 3;

    static LANES_INLINE void input(const V* d, V* r) {
        r[0] = d[0] + d[1];
        r[1] = d[1];
        r[2] = d[0];
    }

    static LANES_INLINE void input_back(const V* r, V* d) {
        d[0] = r[0] + r[2];
        d[1] = r[0] + r[1];
    }

    static LANES_INLINE void output(const V* m, V* y) {
        y[0] = m[0] + m[1];
        y[1] = m[0] + m[2];
    }

    static LANES_INLINE void output_back(const V* y, V* m) {
        m[0] = y[0] + y[1];
        m[1] = y[0];
        m[2] = y[1];
    }

    static LANES_INLINE void weights(const V* g, V* u) {
        u[0] = g[1];
        u[1] = g[2] - g[1];
        u[2] = g[0] - g[1];
    }

    static LANES_INLINE void weights_back(const V* u, V* g) {
        g[0] = u[2];
        g[1] = u[0] - (u[1] + u[2]);
        g[2] = u[1];
    }
};

// Calls f(row, column) for a square, unrolled: otherwise its numbers would go through memory.
template <int SIDE, class F>
LANES_INLINE void over_square(F f) {
#pragma GCC unroll 6
    for (int i = 0; i < SIDE; ++i)
#pragma GCC unroll 6
        for (int j = 0; j < SIDE; ++j) f(i, j);
}

// A transform of both dimensions.
template <int FROM, int TO, class F>
LANES_INLINE void both(const V (&in)[FROM][FROM], V (&out)[TO][TO], F line) {
    V between[TO][FROM];
#pragma GCC unroll 6
    for (int j = 0; j < FROM; ++j) {
        V from[FROM], to[TO];
#pragma GCC unroll 6
        for (int i = 0; i < FROM; ++i) from[i] = in[i][j];
        line(from, to);
#pragma GCC unroll 6
        for (int i = 0; i < TO; ++i) between[i][j] = to[i];
    }
#pragma GCC unroll 6
    for (int i = 0; i < TO; ++i) line(between[i], out[i]);
}

}  // namespace
