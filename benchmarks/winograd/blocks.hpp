// Products of small matrices with the images of a batch in the lanes.
//
// The layout is [row][column][channel][image]; weights are [tap][input][output channel].
#pragma once

#include "vec.hpp"

namespace {

constexpr int N = 32, NV = N / W;  // images at once, and vectors of them
constexpr int LINE = 16;  // keeps neighbouring pixels and points from sharing sets of the cache

// Accumulators are OUTS x VECS registers.
constexpr int VECS = 2, OUTS = W == 16 ? 8 : 4;

constexpr int64_t pixel_size(int channels) { return int64_t(channels) * N + LINE; }

// sums[o] += a[i * SI + o * SO] in[i] for every i, where in[i] are rows of N images.
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
    static constexpr int MOST = (W == 16 ? 16 : 8) / KV, CS = C < MOST ? C : MOST;
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
                for (int v = 0; v < KV; ++v)
                    sums[c][v] = fma(splat(x[c * N + n]), y[v], sums[c][v]);
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

}  // namespace
