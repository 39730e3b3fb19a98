// Convolutions of 3x3, stride 1, padding 1 with the images of a batch in the lanes: a prototype.
//
// The layout is [row][column][channel][image], so that neither transforms nor padding need
// shuffles: whatever lies beyond the edge is left out when the program is compiled, or skipped.
// Weights are [tap][input channel][output channel]. Winograd's minimal filtering (Lavin and Gray,
// Fast algorithms for convolutional neural networks, CVPR 2016) turns a tile of the input into
// POINTS x POINTS numbers per channel, and the convolution into as many products of matrices.
// The way back is the adjoint of each transform, so that it uses the same transformed weights, and
// the gradients by data and by weights share that of the output.
#include <type_traits>

#include "vec.hpp"

namespace {

constexpr int N = 32, NV = N / W;  // images at once, and vectors of them
constexpr int LINE = 16;  // keeps neighbouring pixels and points from sharing sets of the cache

// Accumulators are OUTS x VECS registers.
constexpr int VECS = 2, OUTS = W == 16 ? 8 : 4;

constexpr int64_t pixel_size(int channels) { return int64_t(channels) * N + LINE; }

// out[o] (+)= sum over i of a[i * SI + o * SO] in[i], for rows of N images.
template <int I, int SI, int SO>
LANES_INLINE void accumulate(const float* in, const float* a, V (&sums)[OUTS][VECS]) {
#pragma GCC unroll 2
    for (int i = 0; i < I; ++i) {
        V x[VECS];
        for (int v = 0; v < VECS; ++v) x[v] = loaded(in + i * N + v * W);
        for (int o = 0; o < OUTS; ++o) {
            const V factor = in_register(splat(a[i * SI + o * SO]));
            for (int v = 0; v < VECS; ++v) sums[o][v] = fma(factor, x[v], sums[o][v]);
        }
    }
}

LANES_INLINE void store_sums(float* out, const V (&sums)[OUTS][VECS]) {
    for (int o = 0; o < OUTS; ++o)
        for (int v = 0; v < VECS; ++v) store(out + o * N + v * W, sums[o][v]);
}

template <int I, int O, int SI, int SO>
void product(const float* in, const float* a, float* out) {
    for (int o = 0; o < O; o += OUTS)
        for (int v = 0; v < N; v += VECS * W) {
            V sums[OUTS][VECS] = {};
            accumulate<I, SI, SO>(in + v, a + o * SO, sums);
            store_sums(out + o * N + v, sums);
        }
}

// Rows of images become rows of channels: out[n][c] = in[c][n].
template <int C>
void turn(const float* in, float* out) {
    for (int c = 0; c < C; c += W) {
        const float* rows[W];
        for (int i = 0; i < W; ++i) rows[i] = in + (c + i) * N;
        for (int n = 0; n < N; n += COLUMNS_AT_ONCE) {
            V columns[COLUMNS_AT_ONCE];
            transpose(rows, n, columns);
            for (int i = 0; i < COLUMNS_AT_ONCE; ++i) store(out + (n + i) * C + c, columns[i]);
        }
    }
}

// The block of channels [c][k] whose gradient is held in registers.
template <int C, int K>
struct OuterBlock {
    static constexpr int KV = K / W >= 2 ? 2 : 1;
    static constexpr int CS = (W == 16 ? 16 : 8) / KV;
    V sums[CS][KV];

    LANES_INLINE void clear() {
        for (auto& row : sums)
            for (V& sum : row) sum = zero();
    }

    LANES_INLINE void add(const float* x, const float* turned) {
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) {
            V y[KV];
            for (int v = 0; v < KV; ++v) y[v] = loaded(turned + n * K + v * W);
            for (int c = 0; c < CS; ++c)
                for (int v = 0; v < KV; ++v) sums[c][v] = fma(splat(x[c * N + n]), y[v], sums[c][v]);
        }
    }

    template <bool More>
    LANES_INLINE void put(float* to) const {
        for (int c = 0; c < CS; ++c)
            for (int v = 0; v < KV; ++v) {
                float* at = to + c * K + v * W;
                store(at, More ? loaded(at) + sums[c][v] : sums[c][v]);
            }
    }
};

template <int C, int K, bool More>
void outer(const float* x, const float* turned, float* to) {
    using Block = OuterBlock<C, K>;
    for (int c = 0; c < C; c += Block::CS)
        for (int k = 0; k < K; k += Block::KV * W) {
            Block block;
            block.clear();
            block.add(x + c * N, turned + k);
            block.template put<More>(to + c * K + k);
        }
}

// ---------------------------------------------------------------------------------------------
// Direct convolution, which skips the padding.

template <int C, int K, int S>
struct Direct {
    static constexpr int64_t IN = pixel_size(C), OUT = pixel_size(K);

    // Back: from the gradient of the output to that of the input, with the taps turned around.
    template <bool Back>
    static void apply(const float* x, const float* w, float* y) {
        constexpr int I = Back ? K : C, O = Back ? C : K, SI = Back ? 1 : K, SO = Back ? K : 1;
        for (int row = 0; row < S; ++row)
            for (int column = 0; column < S; ++column)
                for (int o = 0; o < O; o += OUTS)
                    for (int v = 0; v < N; v += VECS * W) {
                        V sums[OUTS][VECS] = {};
                        for (int i = row ? -1 : 0; i <= (row < S - 1); ++i)
                            for (int j = column ? -1 : 0; j <= (column < S - 1); ++j) {
                                const int tap = Back ? 4 - 3 * i - j : 4 + 3 * i + j;
                                const int64_t pixel = (row + i) * S + column + j;
                                accumulate<I, SI, SO>(x + pixel * pixel_size(I) + v,
                                                      w + int64_t(tap) * C * K + o * SO, sums);
                            }
                        const int64_t pixel = row * S + column;
                        store_sums(y + pixel * pixel_size(O) + o * N + v, sums);
                    }
    }

    static void forward(const float* x, const float* w, float*, float* y) {
        apply<false>(x, w, y);
    }

    static void weights(const float* x, const float* dy, float* dw) {
        alignas(64) static float turned[S * S * K * N];
        for (int p = 0; p < S * S; ++p) turn<K>(dy + p * OUT, turned + p * K * N);
        using Block = OuterBlock<C, K>;
        for (int i = -1; i <= 1; ++i)
            for (int j = -1; j <= 1; ++j)
                for (int c = 0; c < C; c += Block::CS)
                    for (int k = 0; k < K; k += Block::KV * W) {
                        Block block;
                        block.clear();
                        for (int row = i < 0; row < S - (i > 0); ++row)
                            for (int column = j < 0; column < S - (j > 0); ++column)
                                block.add(x + ((row + i) * S + column + j) * IN + c * N,
                                          turned + (row * S + column) * K * N + k);
                        block.template put<false>(dw + ((4 + 3 * i + j) * C + c) * K + k);
                    }
    }

    static void backward(const float* x, const float* dy, const float* w, float* dx, float* dw) {
        if (dx) apply<true>(dy, w, dx);
        if (dw) weights(x, dy, dw);
    }
};

// ---------------------------------------------------------------------------------------------
// Minimal filtering in one dimension. `input`, `output` and `weights` are the transforms, and
// those that end in `_back` their adjoints.

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

// ---------------------------------------------------------------------------------------------
// Which edges of the map a tile touches: its window lacks a row or a column there.

template <bool Top, bool Bottom, bool Left, bool Right>
struct Edges {
    static constexpr bool top = Top, left = Left;

    static constexpr bool inside(int i, int j, int size) {
        return !(Top && i == 0) && !(Bottom && i == size - 1) && !(Left && j == 0) &&
               !(Right && j == size - 1);
    }
};

// Calls with the edges of tile (i, j) of `count` x `count`.
template <int COUNT, class F>
LANES_INLINE void with_edges(int i, int j, F call) {
    if constexpr (COUNT == 1) {
        call(Edges<true, true, true, true>());
    } else {
        const auto columns = [&](auto top, auto bottom) {
            if (j == 0) return call(Edges<top.value, bottom.value, true, false>());
            if (j == COUNT - 1) return call(Edges<top.value, bottom.value, false, true>());
            if constexpr (COUNT > 2) call(Edges<top.value, bottom.value, false, false>());
        };
        constexpr std::true_type yes;
        constexpr std::false_type no;
        if (i == 0) return columns(yes, no);
        if (i == COUNT - 1) return columns(no, yes);
        if constexpr (COUNT > 2) columns(no, no);
    }
}

// Vectors `place`, place + W, ... of a window's pixels into those of the points.
template <class T, int C, int S, class E>
__attribute__((noinline)) void window_to_points(const float* x, float* points) {
    constexpr int SIZE = T::OUT + 2, P = T::POINTS;
    for (int place = 0; place < C * N; place += W) {
        V d[SIZE][SIZE], r[P][P];
        for (int i = 0; i < SIZE; ++i)
            for (int j = 0; j < SIZE; ++j)
                d[i][j] = E::inside(i, j, SIZE)
                              ? loaded(x + ((i - 1) * S + j - 1) * pixel_size(C) + place)
                              : zero();
        both<SIZE, P>(d, r, T::input);
        for (int i = 0; i < P; ++i)
            for (int j = 0; j < P; ++j) store(points + (i * P + j) * pixel_size(C) + place, r[i][j]);
    }
}

// What tiles above and to the left have left in the pixels is added to.
template <class T, int C, int S, class E>
__attribute__((noinline)) void points_to_window(const float* points, float* x) {
    constexpr int SIZE = T::OUT + 2, P = T::POINTS;
    for (int place = 0; place < C * N; place += W) {
        V d[SIZE][SIZE], r[P][P];
        for (int i = 0; i < P; ++i)
            for (int j = 0; j < P; ++j) r[i][j] = loaded(points + (i * P + j) * pixel_size(C) + place);
        both<P, SIZE>(r, d, T::input_back);
        for (int i = 0; i < SIZE; ++i)
            for (int j = 0; j < SIZE; ++j)
                if (E::inside(i, j, SIZE)) {
                    float* at = x + ((i - 1) * S + j - 1) * pixel_size(C) + place;
                    const bool written = (i < 2 && !E::top) || (j < 2 && !E::left);
                    store(at, written ? loaded(at) + d[i][j] : d[i][j]);
                }
    }
}

template <class T, int C, int S>
__attribute__((noinline)) void points_to_tile(const float* points, float* y) {
    constexpr int P = T::POINTS, OUT = T::OUT;
    for (int place = 0; place < C * N; place += W) {
        V m[P][P], to[OUT][OUT];
        for (int i = 0; i < P; ++i)
            for (int j = 0; j < P; ++j) m[i][j] = loaded(points + (i * P + j) * pixel_size(C) + place);
        both<P, OUT>(m, to, T::output);
        for (int i = 0; i < OUT; ++i)
            for (int j = 0; j < OUT; ++j) store(y + (i * S + j) * pixel_size(C) + place, to[i][j]);
    }
}

template <class T, int C, int S>
__attribute__((noinline)) void tile_to_points(const float* y, float* points) {
    constexpr int P = T::POINTS, OUT = T::OUT;
    for (int place = 0; place < C * N; place += W) {
        V m[P][P], from[OUT][OUT];
        for (int i = 0; i < OUT; ++i)
            for (int j = 0; j < OUT; ++j) from[i][j] = loaded(y + (i * S + j) * pixel_size(C) + place);
        both<OUT, P>(from, m, T::output_back);
        for (int i = 0; i < P; ++i)
            for (int j = 0; j < P; ++j) store(points + (i * P + j) * pixel_size(C) + place, m[i][j]);
    }
}

template <class T, int C, int K, int S>
struct Winograd {
    static constexpr int P = T::POINTS, PP = P * P, TILES = S / T::OUT;
    static constexpr int64_t IN = pixel_size(C), OUT = pixel_size(K), PAIRS = C * K + LINE;

    static void transform_weights(const float* w, float* u) {
        for (int place = 0; place < C * K; place += W) {
            V g[3][3], r[P][P];
            for (int i = 0; i < 9; ++i) g[i / 3][i % 3] = loaded(w + i * C * K + place);
            both<3, P>(g, r, T::weights);
            for (int i = 0; i < PP; ++i) store(u + i * PAIRS + place, r[i / P][i % P]);
        }
    }

    static void transform_back(const float* u, float* w) {
        for (int place = 0; place < C * K; place += W) {
            V g[3][3], r[P][P];
            for (int i = 0; i < PP; ++i) r[i / P][i % P] = loaded(u + i * PAIRS + place);
            both<P, 3>(r, g, T::weights_back);
            for (int i = 0; i < 9; ++i) store(w + i * C * K + place, g[i / 3][i % 3]);
        }
    }

    static int64_t first(int i, int j) { return int64_t(i * S + j) * T::OUT; }

    static void window(const float* x, int i, int j, float* points) {
        with_edges<TILES>(i, j, [&](auto edges) {
            window_to_points<T, C, S, decltype(edges)>(x + first(i, j) * IN, points);
        });
    }

    static void forward(const float* x, const float* w, float* u, float* y) {
        alignas(64) static float v[PP * IN], m[PP * OUT];
        transform_weights(w, u);
        for (int i = 0; i < TILES; ++i)
            for (int j = 0; j < TILES; ++j) {
                window(x, i, j, v);
                for (int p = 0; p < PP; ++p)
                    product<C, K, K, 1>(v + p * IN, u + p * PAIRS, m + p * OUT);
                points_to_tile<T, K, S>(m, y + first(i, j) * OUT);
            }
    }

    static void backward(const float* x, const float* dy, const float* u, float* dx, float* dw) {
        alignas(64) static float v[PP * IN], dv[PP * IN], dm[PP * OUT], turned[K * N];
        alignas(64) static float du[PP * PAIRS];
        for (int i = 0; i < TILES; ++i)
            for (int j = 0; j < TILES; ++j) {
                tile_to_points<T, K, S>(dy + first(i, j) * OUT, dm);
                if (dw) window(x, i, j, v);
                for (int p = 0; p < PP; ++p) {
                    if (dx) product<K, C, 1, K>(dm + p * OUT, u + p * PAIRS, dv + p * IN);
                    if (!dw) continue;
                    turn<K>(dm + p * OUT, turned);
                    if (i || j)
                        outer<C, K, true>(v + p * IN, turned, du + p * PAIRS);
                    else
                        outer<C, K, false>(v + p * IN, turned, du + p * PAIRS);
                }
                if (dx)
                    with_edges<TILES>(i, j, [&](auto edges) {
                        points_to_window<T, C, S, decltype(edges)>(dv, dx + first(i, j) * IN);
                    });
            }
        if (dw) transform_back(du, dw);
    }
};

using Forward = void (*)(const float* x, const float* w, float* u, float* y);
using Backward = void (*)(const float* x, const float* dy, const float* u, float* dx, float* dw);

struct Method {
    Forward forward;
    Backward backward;
};

template <class M>
constexpr Method method() {
    return {M::forward, M::backward};
}

// By shape, then direct, F(2x2, 3x3) and the largest tile.
constexpr Method METHODS[4][3] = {
    {method<Direct<16, 16, 16>>(), method<Winograd<Two, 16, 16, 16>>(),
     method<Winograd<Four, 16, 16, 16>>()},
    {method<Direct<32, 32, 8>>(), method<Winograd<Two, 32, 32, 8>>(),
     method<Winograd<Four, 32, 32, 8>>()},
    {method<Direct<64, 64, 4>>(), method<Winograd<Two, 64, 64, 4>>(),
     method<Winograd<Four, 64, 64, 4>>()},
    {method<Direct<128, 128, 2>>(), method<Winograd<Two, 128, 128, 2>>(),
     method<Winograd<Pair, 128, 128, 2>>()},
};

}  // namespace

extern "C" {

int pixel_floats(int channels) { return static_cast<int>(pixel_size(channels)); }

// Writes the transformed weights to u (the direct method needs none).
void forward(int shape, int how, const float* x, const float* w, float* u, float* y) {
    METHODS[shape][how].forward(x, w, u, y);
}

// u: the transformed weights, or the weights of the direct method. Either gradient may be null.
void backward(int shape, int how, const float* x, const float* dy, const float* u, float* dx,
              float* dw) {
    METHODS[shape][how].backward(x, dy, u, dx, dw);
}
}
