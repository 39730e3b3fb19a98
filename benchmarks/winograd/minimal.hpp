// Minimal filtering (Winograd) in one dimension, and its adjoints.
//
// `input`, `output` and `weights` are the transforms, and those that end in `_back` their adjoints.
#pragma once

#include "vec.hpp"

namespace {

struct Four {  // F(4, 3) with the points 0, 1, -1, 2, -2 and infinity
    static constexpr int OUT = 4, POINTS = 6;

    static LANES_INLINE void input(const V* d, V* r) {
        const V a = d[4] - 4.0f * d[2], b = d[3] - 4.0f * d[1];
        const V c = d[4] - d[2], e = d[3] - d[1];
        r[0] = 4.0f * d[0] + (c - 4.0f * d[2]);
        r[1] = a + b;
        r[2] = a - b;
        r[3] = c + 2.0f * e;
        r[4] = c - 2.0f * e;
        r[5] = (d[5] - d[3]) - 4.0f * e;
    }

    static LANES_INLINE void input_back(const V* r, V* d) {
        const V s = r[1] + r[2], t = r[1] - r[2], p = r[3] + r[4], q = r[3] - r[4];
        d[0] = 4.0f * r[0];
        d[1] = 4.0f * (r[5] - t) - 2.0f * q;
        d[2] = -5.0f * r[0] - (4.0f * s + p);
        d[3] = (t + 2.0f * q) - 5.0f * r[5];
        d[4] = r[0] + (s + p);
        d[5] = r[5];
    }

    static LANES_INLINE void output(const V* m, V* y) {
        const V s = m[1] + m[2], t = m[1] - m[2], p = m[3] + m[4], q = m[3] - m[4];
        y[0] = m[0] + (s + p);
        y[1] = t + 2.0f * q;
        y[2] = s + 4.0f * p;
        y[3] = (t + m[5]) + 8.0f * q;
    }

    static LANES_INLINE void output_back(const V* y, V* m) {
        const V even = y[0] + y[2], odd = y[1] + y[3];
        const V evens = y[0] + 4.0f * y[2], odds = 2.0f * (y[1] + 4.0f * y[3]);
        m[0] = y[0];
        m[1] = even + odd;
        m[2] = even - odd;
        m[3] = evens + odds;
        m[4] = evens - odds;
        m[5] = y[3];
    }

    static LANES_INLINE void weights(const V* g, V* u) {
        const V ends = (g[0] + g[2]) * (-1.0f / 6), middle = g[1] * (1.0f / 6);
        const V far = g[0] * (1.0f / 24) + g[2] * (1.0f / 6), half = g[1] * (1.0f / 12);
        u[0] = g[0] * 0.25f;
        u[1] = ends - middle;
        u[2] = ends + middle;
        u[3] = far + half;
        u[4] = far - half;
        u[5] = g[2];
    }

    static LANES_INLINE void weights_back(const V* u, V* g) {
        const V s = (u[1] + u[2]) * (-1.0f / 6), p = u[3] + u[4];
        g[0] = u[0] * 0.25f + (s + p * (1.0f / 24));
        g[1] = (u[2] - u[1]) * (1.0f / 6) + (u[3] - u[4]) * (1.0f / 12);
        g[2] = (s + u[5]) + p * (1.0f / 6);
    }
};

struct Two {  // F(2, 3) with the points 0, 1, -1 and infinity
    static constexpr int OUT = 2, POINTS = 4;

    static LANES_INLINE void input(const V* d, V* r) {
        r[0] = d[0] - d[2];
        r[1] = d[1] + d[2];
        r[2] = d[2] - d[1];
        r[3] = d[1] - d[3];
    }

    static LANES_INLINE void input_back(const V* r, V* d) {
        d[0] = r[0];
        d[1] = (r[1] - r[2]) + r[3];
        d[2] = (r[1] + r[2]) - r[0];
        d[3] = -r[3];
    }

    static LANES_INLINE void output(const V* m, V* y) {
        y[0] = m[0] + (m[1] + m[2]);
        y[1] = (m[1] - m[2]) - m[3];
    }

    static LANES_INLINE void output_back(const V* y, V* m) {
        m[0] = y[0];
        m[1] = y[0] + y[1];
        m[2] = y[0] - y[1];
        m[3] = -y[1];
    }

    static LANES_INLINE void weights(const V* g, V* u) {
        const V ends = (g[0] + g[2]) * 0.5f, middle = g[1] * 0.5f;
        u[0] = g[0];
        u[1] = ends + middle;
        u[2] = ends - middle;
        u[3] = g[2];
    }

    static LANES_INLINE void weights_back(const V* u, V* g) {
        const V s = (u[1] + u[2]) * 0.5f;
        g[0] = u[0] + s;
        g[1] = (u[1] - u[2]) * 0.5f;
        g[2] = u[3] + s;
    }
};

// Two numbers without neighbours: a product with a 2x2 Toeplitz matrix, by Karatsuba's three
// products instead of four.
struct Pair {
    static constexpr int OUT = 2, POINTS = 3;

    static LANES_INLINE void input(const V* d, V* r) {
        r[0] = d[1] + d[2];
        r[1] = d[2];
        r[2] = d[1];
    }

    static LANES_INLINE void input_back(const V* r, V* d) {
        d[0] = d[3] = zero();
        d[1] = r[0] + r[2];
        d[2] = r[0] + r[1];
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

// A transform of both dimensions.
template <int FROM, int TO, class F>
LANES_INLINE void both(const V (&in)[FROM][FROM], V (&out)[TO][TO], F line) {
    V between[TO][FROM];
    for (int j = 0; j < FROM; ++j) {
        V from[FROM], to[TO];
        for (int i = 0; i < FROM; ++i) from[i] = in[i][j];
        line(from, to);
        for (int i = 0; i < TO; ++i) between[i][j] = to[i];
    }
    for (int i = 0; i < TO; ++i) line(between[i], out[i]);
}

}  // namespace
