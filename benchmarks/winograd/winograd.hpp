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

#define LANES_LAMBDA __attribute__((always_inline))

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

// Calls with the edges of tile (i, j) of COUNT x COUNT.
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

// Transforms FROM x FROM vectors into TO x TO, for every vector of channels and images.
template <int FROM, int TO, class Load, class Line, class Put>
LANES_INLINE void transform(int numbers, Load load, Line line, Put put) {
    for (int place = 0; place < numbers; place += W) {
        V in[FROM][FROM], out[TO][TO];
        for (int i = 0; i < FROM; ++i)
            for (int j = 0; j < FROM; ++j) in[i][j] = load(i, j, place);
        both<FROM, TO>(in, out, line);
        for (int i = 0; i < TO; ++i)
            for (int j = 0; j < TO; ++j) put(i, j, place, out[i][j]);
    }
}

// The vectors of a square of pixels, or of points: SIDE in a row, of which each has STEP numbers.
template <int SIDE, int64_t STEP>
struct Square {
    float* first;

    LANES_INLINE float* at(int i, int j, int place) const {
        return first + (i * SIDE + j) * STEP + place;
    }
    LANES_INLINE V operator()(int i, int j, int place) const { return loaded(at(i, j, place)); }
    LANES_INLINE void operator()(int i, int j, int place, V x) const { store(at(i, j, place), x); }
};

template <class T, int C, int S>
struct Tile {
    static constexpr int SIZE = T::OUT + 2, P = T::POINTS;
    using Pixels = Square<S, pixel_size(C)>;
    using Points = Square<P, pixel_size(C)>;

    template <class E>
    __attribute__((noinline)) static void window_to_points(Pixels x, Points points) {
        const auto load = [=](int i, int j, int place) LANES_LAMBDA {
            return E::inside(i, j, SIZE) ? x(i - 1, j - 1, place) : zero();
        };
        transform<SIZE, P>(C * N, load, T::input, points);
    }

    // What tiles above and to the left have left in the pixels is added to.
    template <class E>
    __attribute__((noinline)) static void points_to_window(Points points, Pixels x) {
        const auto put = [=](int i, int j, int place, V sum) LANES_LAMBDA {
            const bool written = (i < 2 && !E::top) || (j < 2 && !E::left);
            if (E::inside(i, j, SIZE))
                x(i - 1, j - 1, place, written ? x(i - 1, j - 1, place) + sum : sum);
        };
        transform<P, SIZE>(C * N, points, T::input_back, put);
    }

    __attribute__((noinline)) static void points_to_tile(Points points, Pixels y) {
        transform<P, T::OUT>(C * N, points, T::output, y);
    }

    __attribute__((noinline)) static void tile_to_points(Pixels y, Points points) {
        transform<T::OUT, P>(C * N, y, T::output_back, points);
    }
};

template <class T, int C, int K, int S>
struct Winograd {
    static constexpr int P = T::POINTS, PP = P * P, TILES = S / T::OUT;
    static constexpr int64_t IN = pixel_size(C), OUT = pixel_size(K), PAIRS = C * K + LINE;

    using Inputs = Tile<T, C, S>;
    using Outputs = Tile<T, K, S>;
    using Taps = Square<3, C * K>;
    using Pairs = Square<P, PAIRS>;

    static void transform_weights(const float* w, float* u) {
        transform<3, P>(C * K, Taps{const_cast<float*>(w)}, T::weights, Pairs{u});
    }

    static void transform_back(float* u, float* w) {
        transform<P, 3>(C * K, Pairs{u}, T::weights_back, Taps{w});
    }

    static int64_t first(int i, int j) { return int64_t(i * S + j) * T::OUT; }

    static void window(const float* x, int i, int j, float* points) {
        with_edges<TILES>(i, j, [&](auto edges) {
            auto pixels = const_cast<float*>(x) + first(i, j) * IN;
            Inputs::template window_to_points<decltype(edges)>({pixels}, {points});
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
                Outputs::points_to_tile({m}, {y + first(i, j) * OUT});
            }
    }

    static void backward(const float* x, const float* dy, const float* u, float* dx, float* dw) {
        alignas(64) static float v[PP * IN], dv[PP * IN], dm[PP * OUT], turned[K * N];
        alignas(64) static float du[PP * PAIRS];
        for (int i = 0; i < TILES; ++i)
            for (int j = 0; j < TILES; ++j) {
                Outputs::tile_to_points({const_cast<float*>(dy) + first(i, j) * OUT}, {dm});
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
                        auto pixels = dx + first(i, j) * IN;
                        Inputs::template points_to_window<decltype(edges)>({dv}, {pixels});
                    });
            }
        if (dw) transform_back(du, dw);
    }
};

}  // namespace
