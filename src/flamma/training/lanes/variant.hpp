// One instruction set's share, to be included once per set.
#pragma once

#include "net.hpp"

namespace {

inline Machine* make(const int64_t* plan, int64_t batch) { return new Net(plan, batch); }

// Nothing but products and sums in registers: what this core can do at most.
inline int64_t peak(int64_t rounds, float* sink) {
    constexpr int N = 12;
    const V a = splat(sink[0]), b = splat(sink[1]);
    V sum[N];
    for (int i = 0; i < N; ++i) sum[i] = splat(static_cast<float>(i));
    for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 12
        for (int i = 0; i < N; ++i) sum[i] = fma(sum[i], a, b);
    V all = zero();
    for (int i = 0; i < N; ++i) all += sum[i];
    float total = 0.0f;
    for (int l = 0; l < W; ++l) total += all[l];
    sink[0] = total;
    return rounds * N * W;
}

const Variant variant{W, make, peak};

}  // namespace
