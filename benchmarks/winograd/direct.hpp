// Direct convolution of any stride, which skips the padding.
#pragma once

#include "blocks.hpp"

namespace {

// SIZE is the side of the input map, TAPS that of the kernel; the padding is TAPS / 2.
template <int C, int K, int SIZE, int TAPS = 3, int STRIDE = 1>
struct Direct {
    static constexpr int TO = SIZE / STRIDE, PAD = TAPS / 2;
    static constexpr int64_t IN = pixel_size(C), OUT = pixel_size(K);

    // The row or column that a tap joins to `at`, or -1 if there is none.
    template <bool Back>
    static int joined(int at, int tap) {
        const int from = Back ? at + PAD - tap : at * STRIDE - PAD + tap;
        if (from < 0 || (Back && from % STRIDE)) return -1;
        const int place = Back ? from / STRIDE : from;
        return place < (Back ? TO : SIZE) ? place : -1;
    }

    // Back: from the gradient of the output to that of the input.
    template <bool Back>
    static void apply(const float* x, const float* w, float* y) {
        constexpr int O = Back ? C : K, SO = Back ? K : 1, SIDE = Back ? SIZE : TO;
        for (int row = 0; row < SIDE; ++row)
            for (int column = 0; column < SIDE; ++column)
                for (int o = 0; o < O; o += OUTS)
                    for (int v = 0; v < N; v += VECS * W) {
                        V sums[OUTS][VECS] = {};
                        gather<Back>(x + v, w + o * SO, row, column, sums);
                        store_sums(y + (row * SIDE + column) * pixel_size(O) + o * N + v, sums);
                    }
    }

    template <bool Back>
    static LANES_INLINE void gather(const float* x, const float* w, int row, int column,
                                    V (&sums)[OUTS][VECS]) {
        constexpr int I = Back ? K : C, SI = Back ? 1 : K, SO = Back ? K : 1;
        constexpr int SIDE = Back ? TO : SIZE;
        for (int i = 0; i < TAPS; ++i) {
            const int from_row = joined<Back>(row, i);
            if (from_row < 0) continue;
            for (int j = 0; j < TAPS; ++j) {
                const int from_column = joined<Back>(column, j);
                if (from_column < 0) continue;
                accumulate<I, SI, SO>(x + (from_row * SIDE + from_column) * pixel_size(I),
                                      w + int64_t(i * TAPS + j) * C * K, sums);
            }
        }
    }

    static void forward(const float* x, const float* w, float*, float* y) {
        apply<false>(x, w, y);
    }

    static void weights(const float* x, const float* dy, float* dw) {
        alignas(64) static float turned[TO * TO * K * N];
        for (int p = 0; p < TO * TO; ++p) turn<K>(dy + p * OUT, turned + p * K * N);
        using Block = OuterBlock<C, K>;
        for (int tap = 0; tap < TAPS * TAPS; ++tap)
            for (int c = 0; c < C; c += Block::CS)
                for (int k = 0; k < K; k += Block::KV * W) {
                    Block block;
                    block.clear();
                    for (int row = 0; row < TO; ++row)
                        for (int column = 0; column < TO; ++column) {
                            const int i = joined<false>(row, tap / TAPS);
                            const int j = joined<false>(column, tap % TAPS);
                            if (i >= 0 && j >= 0)
                                block.add(x + (i * SIZE + j) * IN + c * N,
                                          turned + (row * TO + column) * K * N + k);
                        }
                    block.template put<false>(dw + (tap * C + c) * K + k);
                }
    }

    static void backward(const float* x, const float* dy, const float* w, float* dx, float* dw) {
        if constexpr (C % OUTS == 0)
            if (dx) apply<true>(dy, w, dx);
        if (dw) weights(x, dy, dw);
    }
};

}  // namespace
