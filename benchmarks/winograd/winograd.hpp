// Convolutions of 3x3, stride 1, padding 1 by minimal filtering of tiles.
//
// A tile of the input becomes POINTS x POINTS numbers per channel, and the convolution as many
// products of matrices (Lavin and Gray, Fast algorithms for convolutional neural networks, CVPR
// 2016). What lies beyond the edge is left out when the program is compiled. The way back is the
// adjoint of each transform, so that it uses the same transformed weights, and the gradients by
// data and by weights share that of the output.
#pragma once

#include <type_traits>

#include "blocks.hpp"
#include "minimal.hpp"

namespace {

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

}  // namespace
