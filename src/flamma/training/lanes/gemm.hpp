// Products of matrices whose numbers are vectors of lanes: the linear layers.
#pragma once

#include "vec.hpp"

namespace {

// One factor: element (row, k) is at data[row * step + k * stride].
struct Factor {
    const V* data;
    int64_t step, stride;
};

constexpr int ROWS = 3, COLUMNS = 4;  // twelve sums at a time hide an FMA's latency
constexpr int64_t DEPTH = 104;        // vectors of a row whose panel of four stays in 16 KiB

template <int R, int C, class Begin, class End>
LANES_INLINE void tile(Factor a, Factor b, int64_t depth, int64_t row, int64_t column,
                       Begin& begin, End& end) {
    V sum[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) sum[r][c] = begin(row + r, column + c);
    const V* pa = a.data + row * a.step;
    const V* pb = b.data;
    for (int64_t k = 0; k < depth; ++k) {
        V x[R];
        for (int r = 0; r < R; ++r) x[r] = pa[r * a.step];
        for (int c = 0; c < C; ++c) {
            const V y = pb[c * b.step];
            for (int r = 0; r < R; ++r) sum[r][c] = fma(x[r], y, sum[r][c]);
        }
        pa += a.stride;
        pb += b.stride;
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) end(row + r, column + c, sum[r][c]);
}

template <int C, class Begin, class End>
void panel(Factor a, Factor b, int64_t rows, int64_t column, int64_t depth, V* room, Begin& begin,
           End& end) {
    b.data += column * b.step;
    if (b.stride != 1 && rows > 2 * ROWS) {
        // Rows far apart fall on the same lines of the cache, so the panel is copied together.
        for (int64_t k = 0; k < depth; ++k)
            for (int c = 0; c < C; ++c) room[k * C + c] = b.data[k * b.stride + c * b.step];
        b = Factor{room, 1, C};
    }
    int64_t row = 0;
    for (; row + ROWS <= rows; row += ROWS)
        tile<ROWS, C>(a, b, depth, row, column, begin, end);
    if (rows - row == 2) tile<2, C>(a, b, depth, row, column, begin, end);
    if (rows - row == 1) tile<1, C>(a, b, depth, row, column, begin, end);
}

// For every row and column: end(row, column, begin(row, column) + sum over k of a * b), summed in
// the order of k whatever the blocks. `room` holds COLUMNS * depth vectors.
template <class Begin, class End>
void product(Factor a, Factor b, int64_t rows, int64_t columns, int64_t depth, V* room, Begin begin,
             End end) {
    int64_t column = 0;
    for (; column + COLUMNS <= columns; column += COLUMNS)
        panel<COLUMNS>(a, b, rows, column, depth, room, begin, end);
    switch (columns - column) {
        case 3: panel<3>(a, b, rows, column, depth, room, begin, end); break;
        case 2: panel<2>(a, b, rows, column, depth, room, begin, end); break;
        case 1: panel<1>(a, b, rows, column, depth, room, begin, end); break;
        default: break;
    }
}

// y = x w' + bias for all samples; y is (samples, outputs), w is (outputs, inputs).
inline void linear_forward(const V* x, const V* w, const V* bias, V* y, int64_t samples,
                           int64_t inputs, int64_t outputs, V* room) {
    for (int64_t from = 0; from < inputs; from += DEPTH) {
        const int64_t depth = inputs - from < DEPTH ? inputs - from : DEPTH;
        const Factor a{x + from, inputs, 1}, b{w + from, inputs, 1};
        const auto keep = [=](int64_t s, int64_t o, V sum) { y[s * outputs + o] = sum; };
        if (from == 0)
            product(a, b, samples, outputs, depth, room,
                    [=](int64_t, int64_t o) { return bias[o]; }, keep);
        else
            product(a, b, samples, outputs, depth, room,
                    [=](int64_t s, int64_t o) { return y[s * outputs + o]; }, keep);
    }
}

// dx = dy w for all samples.
inline void linear_backward_data(const V* dy, const V* w, V* dx, int64_t samples, int64_t inputs,
                                 int64_t outputs, V* room) {
    for (int64_t from = 0; from < outputs; from += DEPTH) {
        const int64_t depth = outputs - from < DEPTH ? outputs - from : DEPTH;
        product(
            Factor{dy + from, outputs, 1}, Factor{w + from * inputs, 1, inputs}, samples, inputs,
            depth, room,
            [=](int64_t s, int64_t i) { return from == 0 ? zero() : dx[s * inputs + i]; },
            [=](int64_t s, int64_t i, V sum) { dx[s * inputs + i] = sum; });
    }
}

// end(j, gradient of parameter j), for the weights and then the biases: the step of SGD follows
// at once, so the gradient of a large layer never goes through memory.
template <class End>
void linear_backward_weights(const V* dy, const V* x, int64_t samples, int64_t inputs,
                             int64_t outputs, V* room, End end) {
    product(
        Factor{dy, 1, outputs}, Factor{x, 1, inputs}, outputs, inputs, samples, room,
        [](int64_t, int64_t) { return zero(); },
        [=](int64_t o, int64_t i, V sum) { end(o * inputs + i, sum); });
    for (int64_t o = 0; o < outputs; ++o) {
        V sum = zero();
        for (int64_t s = 0; s < samples; ++s) sum += dy[s * outputs + o];
        end(outputs * inputs + o, sum);
    }
}

}  // namespace
