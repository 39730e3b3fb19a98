// Products of matrices: the linear layers. Values are vectors of lanes; weights are one number for
// each client, (outputs, inputs).
#pragma once

#include "conv.hpp"

namespace {

constexpr int ROWS = 4;                       // samples of a block, as most mini-batches have
constexpr int COLUMNS = SEATS == 1 ? 3 : 6;   // as many more as there are registers for
constexpr int OUTPUTS = SEATS == 1 ? 1 : 2;   // whose gradients are in registers at once
constexpr int64_t DEPTH = 512;                // weights of a row whose block stays in the L1 cache
constexpr int64_t CACHED = 16384;             // bytes of inputs that stay there

// Element (row, k) of the values is at data[row * step + k].
struct Values {
    const V* data;
    int64_t step;
};

// Element (k, column) of the weights is at data[column * step + k * stride], for every client.
struct Weights {
    const float* data;
    int64_t step, stride;
};

template <int R, int C, class Begin>
LANES_INLINE void tile(Values a, Weights b, int64_t depth, int64_t row, int64_t column, V* out,
                       int64_t pitch, Begin& begin) {
    V sum[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) sum[r][c] = begin(row + r, column + c);
    const V* pa = a.data + row * a.step;
    const float* pb = b.data + column * b.step * SEATS;
    for (int64_t k = 0; k < depth; ++k) {
        V y[C];  // few enough to stay in registers beside the sums
        for (int c = 0; c < C; ++c) y[c] = each(pb + (c * b.step + k * b.stride) * SEATS);
        for (int r = 0; r < R; ++r) {
            const V x = pa[r * a.step + k];
            for (int c = 0; c < C; ++c) sum[r][c] = fma(x, y[c], sum[r][c]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) out[(row + r) * pitch + column + c] = sum[r][c];
}

// Calls f with the block as constants.
template <class F>
void with_tile(int rows, int columns, F f) {
    switch (rows * 8 + columns) {
#define LANES_ROW(C) LANES_CASE(1, C) LANES_CASE(2, C) LANES_CASE(3, C) LANES_CASE(4, C)
#define LANES_CASE(R, C) \
    case R * 8 + C: f(Whole<R>{}, Whole<C>{}); break;
        LANES_ROW(1) LANES_ROW(2) LANES_ROW(3)
        default:
            if constexpr (COLUMNS > 3) switch (rows * 8 + columns) {
                LANES_ROW(4) LANES_ROW(5) LANES_ROW(6)
                default: std::abort();
            }
#undef LANES_CASE
#undef LANES_ROW
    }
}

// out = begin(row, column) + sum over k of a * b, summed in the order of k whatever the blocks.
template <class Begin>
void product(Values a, Weights b, int64_t rows, int64_t columns, int64_t depth, V* out,
             int64_t pitch, Begin begin) {
    const Cut across = cut(columns, COLUMNS), down = cut(rows, ROWS);
    int64_t column = 0;
    for (int64_t j = 0; j < across.blocks; ++j) {
        const int64_t wide = across.size - (j >= across.large);
        int64_t row = 0;
        for (int64_t i = 0; i < down.blocks; ++i) {
            const int64_t high = down.size - (i >= down.large);
            with_tile(static_cast<int>(high), static_cast<int>(wide), [&](auto r, auto c) {
                tile<decltype(r)::value, decltype(c)::value>(a, b, depth, row, column, out, pitch,
                                                             begin);
            });
            row += high;
        }
        column += wide;
    }
}

// y = x w' + bias for all samples; y is (samples, outputs).
inline void linear_forward(const V* x, const float* w, const float* bias, V* y, int64_t samples,
                           int64_t inputs, int64_t outputs) {
    for (int64_t from = 0; from < inputs; from += DEPTH) {
        const int64_t depth = inputs - from < DEPTH ? inputs - from : DEPTH;
        const Values a{x + from, inputs};
        const Weights b{w + from * SEATS, inputs, 1};
        if (from == 0)
            product(a, b, samples, outputs, depth, y, outputs,
                    [=](int64_t, int64_t o) { return each(bias + o * SEATS); });
        else
            product(a, b, samples, outputs, depth, y, outputs,
                    [=](int64_t s, int64_t o) { return y[s * outputs + o]; });
    }
}

struct FromZero {
    LANES_INLINE V operator()(int64_t, int64_t) const { return zero(); }
};

// dx = dy w for all samples.
inline void linear_backward_data(const V* dy, const float* w, V* dx, int64_t samples,
                                 int64_t inputs, int64_t outputs) {
    product(Values{dy, outputs}, Weights{w, 1, inputs}, samples, inputs, outputs, dx, inputs,
            FromZero{});
}

// Calls end(j, LANES, gradients) for LANES weights from input i on, of the outputs o, ..., o + O - 1,
// which share the inputs that are loaded.
template <int O, class End>
LANES_INLINE void weights_tile(const V* dy, const V* x, int64_t samples, int64_t inputs,
                               int64_t outputs, int64_t o, int64_t i, End& end) {
    V sum[O * LANES];
#pragma GCC unroll 16
    for (int k = 0; k < O * LANES; ++k) sum[k] = zero();
    for (int64_t s = 0; s < samples; ++s) {
        const V *g = dy + s * outputs + o, *px = x + s * inputs + i;
#pragma GCC unroll 8
        for (int k = 0; k < LANES; ++k) {
            const V in = in_register(px[k]);
#pragma GCC unroll 2
            for (int c = 0; c < O; ++c) sum[k * O + c] = fma(g[c], in, sum[k * O + c]);
        }
    }
#pragma GCC unroll 2
    for (int c = 0; c < O; ++c) {
        V own[LANES];
#pragma GCC unroll 8
        for (int k = 0; k < LANES; ++k) own[k] = sum[k * O + c];
        end((o + c) * inputs + i, LANES, own);
    }
}

// Calls end(j, n, gradients of the parameters j, ..., j + n - 1) for the weights and then the
// biases, at most eight at a time: the step of SGD follows at once, so the gradient of a large
// layer never goes through memory. All outputs take the inputs that are in the L1 cache before the
// next inputs are loaded.
template <class End>
void linear_backward_weights(const V* dy, const V* x, int64_t samples, int64_t inputs,
                             int64_t outputs, End end) {
    const int64_t fit = CACHED / (samples * static_cast<int64_t>(sizeof(V))) / LANES * LANES;
    const int64_t wide = fit < LANES ? LANES : fit;
    for (int64_t from = 0; from < inputs; from += wide) {
        const int64_t to = inputs - from < wide ? inputs : from + wide;
        const int64_t whole = from + (to - from) / LANES * LANES;
        int64_t o = 0;
        for (; o + OUTPUTS <= outputs; o += OUTPUTS)
            for (int64_t i = from; i < whole; i += LANES)
                weights_tile<OUTPUTS>(dy, x, samples, inputs, outputs, o, i, end);
        for (; o < outputs; ++o)
            for (int64_t i = from; i < whole; i += LANES)
                weights_tile<1>(dy, x, samples, inputs, outputs, o, i, end);
        if (whole == to) continue;
        const int n = static_cast<int>(to - whole);
        for (o = 0; o < outputs; ++o) {
            V sum[LANES] = {};
            for (int64_t s = 0; s < samples; ++s)
                for (int k = 0; k < n; ++k)
                    sum[k] = fma(dy[s * outputs + o], x[s * inputs + whole + k], sum[k]);
            end(o * inputs + whole, n, sum);
        }
    }
    for (int64_t o = 0; o < outputs; o += LANES) {
        const int n = static_cast<int>(outputs - o < LANES ? outputs - o : LANES);
        V sum[LANES] = {};
        for (int64_t s = 0; s < samples; ++s)
            for (int k = 0; k < n; ++k) sum[k] += dy[s * outputs + o + k];
        end(outputs * inputs + o, n, sum);
    }
}

}  // namespace
