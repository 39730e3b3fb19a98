// The variant of one instruction set; included once per set.
#pragma once

#include "net.hpp"

namespace {

inline Machine* make(const Blueprint& blueprint) { return new Net(blueprint); }

// Fused multiply-adds in registers only, which measures the peak of this core.
inline int64_t peak(int64_t rounds, float* sink) {
    const V a = splat(sink[0]), b = splat(sink[1]);
    V s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a;
    for (int64_t r = 0; r < rounds; ++r) {
        s0 = fma(s0, a, b), s1 = fma(s1, a, b), s2 = fma(s2, a, b), s3 = fma(s3, a, b);
        s4 = fma(s4, a, b), s5 = fma(s5, a, b), s6 = fma(s6, a, b), s7 = fma(s7, a, b);
        s8 = fma(s8, a, b), s9 = fma(s9, a, b);
#if defined(__AVX2__)
        // Otherwise the compiler sees that all ten are the same.
        asm volatile("" : "+v"(s0), "+v"(s1), "+v"(s2), "+v"(s3), "+v"(s4));
        asm volatile("" : "+v"(s5), "+v"(s6), "+v"(s7), "+v"(s8), "+v"(s9));
#endif
    }
    const V all = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9;
    sink[0] = all[0];
    return rounds * 10 * W;
}

const Variant variant{SEATS, make, peak};

}  // namespace
