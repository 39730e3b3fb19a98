// A vector of W lanes: one number of the net, for the samples of one or two clients.
//
// A client has eight lanes, over which its mini-batch is dealt out. Everything but `summed` works
// lane by lane, and that one client by client, so a result cannot depend on the neighbours. It is made of operations that IEEE 754 defines to the last bit (sums, products,
// quotients and fused products and sums of floats), so it cannot depend on the processor either.
// All names are in an unnamed namespace, because this file is compiled once per instruction set.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "checks.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#ifndef LANES_INLINE
#define LANES_INLINE inline __attribute__((always_inline))
#endif

namespace {

// Where registers hold four numbers (SSE2, NEON), the compiler takes two for a vector.
#if defined(__AVX512F__)
constexpr int W = 16;
#else
constexpr int W = 8;
#endif

constexpr int LANES = 8;          // of a client
constexpr int SEATS = W / LANES;  // clients, whose lanes alternate

typedef float V __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t U __attribute__((vector_size(4 * W)));

#if !defined(__AVX2__) && !defined(__FP_FAST_FMAF)
// Not inlined, because it is long and used everywhere.
__attribute__((noinline)) V emulated_fma(V a, V b, V c) {
    // In double precision the product is exact. The sum is rounded to odd (inexact ones to the
    // neighbour whose last bit is set), after which rounding to a float is as if it were the first.
    typedef double D __attribute__((vector_size(8 * W)));
    typedef int64_t L __attribute__((vector_size(8 * W)));
    const D x = __builtin_convertvector(a, D) * __builtin_convertvector(b, D);
    const D y = __builtin_convertvector(c, D), sum = x + y, part = sum - x;
    const D lost = (x - (sum - part)) + (y - part);  // by the sum, exactly (Knuth)
    const L inexact = (lost < 0.0) | (lost > 0.0);   // neither if something is infinite or NaN
    const L even = ((L)sum & 1) - 1;
    const L away = (lost > 0.0) == (sum > 0.0);  // -1 if the exact sum is farther from zero
    const L odd = (L)sum + (inexact & even & ((away & 2) - 1));
    return __builtin_convertvector((D)odd, V);
}
#endif

// The only fused multiply-add. The compiler must not fuse any of its own (-ffp-contract=off), or
// the bits would depend on which block of a loop a number falls in.
LANES_INLINE V fma(V a, V b, V c) {
#if defined(__AVX512F__)
    return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON) && defined(__FP_FAST_FMAF)
    union Halves {
        V whole;
        float32x4_t half[2];
    };
    const Halves x{a}, y{b};
    Halves sum{c};
    for (int i = 0; i < 2; ++i) sum.half[i] = vfmaq_f32(sum.half[i], x.half[i], y.half[i]);
    return sum.whole;
#elif defined(__FP_FAST_FMAF)
    V sum;
    for (int lane = 0; lane < W; ++lane) sum[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return sum;
#else
    return emulated_fma(a, b, c);
#endif
}

LANES_INLINE V splat(float x) {
#if defined(__AVX512F__)
    return (V)_mm512_set1_ps(x);
#elif defined(__AVX2__)
    return (V)_mm256_set1_ps(x);
#else
    V v;
    for (int lane = 0; lane < W; ++lane) v[lane] = x;
    return v;
#endif
}

LANES_INLINE V zero() { return V{}; }

LANES_INLINE I splat_int(int32_t x) {
    I v;
    for (int lane = 0; lane < W; ++lane) v[lane] = x;
    return v;
}

// a where the mask is set, else b.
LANES_INLINE V select(I mask, V a, V b) { return (V)((mask & (I)a) | (~mask & (I)b)); }

LANES_INLINE I select(I mask, I a, I b) { return (mask & a) | (~mask & b); }

// Which of a client's eight lanes each lane is: so that `summed` adds neighbours, then pairs, then
// fours, with the cheapest shuffles of each width.
inline int lane_of_client(int lane) {
    constexpr int of_eight[] = {0, 2, 1, 3, 4, 6, 5, 7};
    return SEATS == 1 ? of_eight[lane] : lane / SEATS;
}

// The numbers at `from` in every lane of the client that each belongs to.
LANES_INLINE V each(const float* from) {
#if defined(__AVX512F__)
    double both;
    std::memcpy(&both, from, sizeof both);
    return (V)_mm512_set1_pd(both);
#elif defined(__AVX2__)
    return (V)_mm256_broadcast_ss(from);
#else
    return splat(*from);
#endif
}

LANES_INLINE V loaded(const float* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

LANES_INLINE void store(float* to, V v) { std::memcpy(to, &v, sizeof v); }

// The shuffles of `summed` and `transpose`: which lanes of a (0, ..., W - 1) and b (from W on).
#if defined(__clang__)
template <class F>
LANES_INLINE V shuffled(V a, V b, F from) {
    V v;
    for (int lane = 0; lane < W; ++lane) v[lane] = from(lane) < W ? a[from(lane)] : b[from(lane) - W];
    return v;
}
#else
template <class F>
LANES_INLINE V shuffled(V a, V b, F from) {
    I lanes;
    for (int lane = 0; lane < W; ++lane) lanes[lane] = from(lane);
    return __builtin_shuffle(a, b, lanes);
}
#endif

// The sums over each client's lanes of eight vectors: numbers 0, ..., 7 of every client, those of
// two clients alternating. ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), whatever the width.
LANES_INLINE V summed(const V* x) {
    V pairs[4], fours[2];
    if constexpr (SEATS == 1) {
        for (int i = 0; i < 4; ++i) {
            const V a = x[2 * i], b = x[2 * i + 1];
            const auto low = [](int l) { return l / 4 * 4 + l % 4 / 2 + l % 2 * W; };
            pairs[i] = shuffled(a, b, low) + shuffled(a, b, [=](int l) { return low(l) + 2; });
        }
        for (int i = 0; i < 2; ++i) {
            const V a = pairs[2 * i], b = pairs[2 * i + 1];
            const auto low = [](int l) { return l / 4 * 4 + l % 2 + l % 4 / 2 * W; };
            fours[i] = shuffled(a, b, low) + shuffled(a, b, [=](int l) { return low(l) + 2; });
        }
        const auto low = [](int l) { return l % 4 + l / 4 * W; };
        return shuffled(fours[0], fours[1], low) +
               shuffled(fours[0], fours[1], [=](int l) { return low(l) + 4; });
    } else {
        // One of two summands is a choice lane by lane, which is cheaper than a shuffle.
        for (int i = 0; i < 4; ++i) {
            const V a = x[2 * i], b = x[2 * i + 1];
            const auto same = [](int l) { return l + l % 4 / 2 * W; };
            const auto other = [](int l) { return l % 4 < 2 ? l + 2 : l - 2 + W; };
            pairs[i] = shuffled(a, b, same) + shuffled(a, b, other);
        }
        for (int i = 0; i < 2; ++i) {
            const V a = pairs[2 * i], b = pairs[2 * i + 1];
            const auto same = [](int l) { return l + l % 8 / 4 * W; };
            const V rest = shuffled(a, b, [](int l) { return l + (1 - l % 8 / 4) * W; });
            fours[i] = shuffled(a, b, same) +
                       shuffled(rest, rest, [](int l) { return l % 8 < 4 ? l + 4 : l - 4; });
        }
        const auto same = [](int l) { return l + l / 8 * W; };
        const auto other = [](int l) { return l < 8 ? l + 8 : l - 8 + W; };
        return shuffled(fours[0], fours[1], same) + shuffled(fours[0], fours[1], other);
    }
}

// A number that is used several times: the compiler would load it anew each time.
LANES_INLINE V in_register(V x) {
#if defined(__AVX512F__)
    asm("" : "+v"(x));
#endif
    return x;
}

constexpr int COLUMNS_AT_ONCE = 8;

// Columns 0, ..., 7 of W rows: number k of row i becomes number i of vector k.
#if defined(__AVX512F__)
LANES_INLINE void transpose(const float* const* rows, int64_t from, V* to) {
    V x[8], y[8];
    for (int i = 0; i < 8; ++i) {  // two rows in each vector, so that fewer shuffles are needed
        const int row = i / 4 * 8 + i % 4;
        const __m512d first = _mm512_castpd256_pd512(
            _mm256_castps_pd(_mm256_loadu_ps(rows[row] + from)));
        const __m256d second = _mm256_castps_pd(_mm256_loadu_ps(rows[row + 4] + from));
        x[i] = (V)_mm512_insertf64x4(first, second, 1);
    }
    for (int i = 0; i < 8; i += 2) {
        y[i] = (V)_mm512_unpacklo_ps((__m512)x[i], (__m512)x[i + 1]);
        y[i + 1] = (V)_mm512_unpackhi_ps((__m512)x[i], (__m512)x[i + 1]);
    }
    for (int i = 0; i < 8; ++i) {
        const __m512d a = (__m512d)y[i / 4 * 4 + i % 4 / 2], b = (__m512d)y[i / 4 * 4 + i % 4 / 2 + 2];
        x[i] = (V)(i % 2 ? _mm512_unpackhi_pd(a, b) : _mm512_unpacklo_pd(a, b));
    }
    for (int i = 0; i < 4; ++i) {
        to[i] = (V)_mm512_shuffle_f32x4((__m512)x[i], (__m512)x[i + 4], 0x88);
        to[i + 4] = (V)_mm512_shuffle_f32x4((__m512)x[i], (__m512)x[i + 4], 0xdd);
    }
}
#else
LANES_INLINE void transpose(const float* const* rows, int64_t from, V* to) {
    V x[W], y[W];
    for (int i = 0; i < W; ++i) x[i] = loaded(rows[i] + from);
    for (int stage = 1; stage < W; stage *= 2) {
        for (int i = 0; i < W / 2; ++i) {
            const auto low = [](int l) { return l / 2 + l % 2 * W; };
            y[2 * i] = shuffled(x[i], x[i + W / 2], low);
            y[2 * i + 1] =
                shuffled(x[i], x[i + W / 2], [=](int l) { return low(l) + W / 2; });
        }
        for (int i = 0; i < W; ++i) x[i] = y[i];
    }
    for (int i = 0; i < W; ++i) to[i] = x[i];
}
#endif

// Zero for what is far too small to matter. Nothing flushes denormals for us, since processors
// differ in how they do; but a velocity that fades would reach them, and they may be slow.
LANES_INLINE V flushed(V x) {
    return (V)((I)x & ~((V)((U)x & 0x7fffffffu) < splat(0x1p-100f)));
}

// NaN stays NaN, as in torch.
LANES_INLINE V relu(V x) { return select(x <= zero(), zero(), x); }

// exp of Cephes (Moshier), to about one unit in the last place.
LANES_INLINE V exponential(V x) {
    x = select(x > splat(88.3762626f), splat(88.3762626f), x);
    // Below this the result would be denormal, which may be slow and does not matter.
    const I tiny = x < splat(-87.3365447f);
    x = select(tiny, splat(-87.3365447f), x);
    const V magic = splat(12582912.0f);  // adding it rounds to a whole number in the low bits
    const V shifted = fma(x, splat(1.44269504f), magic);
    const V whole = shifted - magic;
    V r = fma(whole, splat(-0.693359375f), x);
    r = fma(whole, splat(2.12194440e-4f), r);
    V p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r + splat(1.0f));
    return select(tiny, zero(), p * (V)(((U)shifted + 127u) << 23));
}

// tanh of Cephes: a polynomial near zero, else by exp.
LANES_INLINE V tangent(V x) {
    const U sign = (U)x & 0x80000000u;
    const V size = (V)((U)x & 0x7fffffffu);
    const V z = x * x;
    V p = splat(-5.70498872745e-3f);
    p = fma(p, z, splat(2.06390887954e-2f));
    p = fma(p, z, splat(-5.37397155531e-2f));
    p = fma(p, z, splat(1.33314422036e-1f));
    p = fma(p, z, splat(-3.33332819422e-1f));
    p = fma(p * z, x, x);
    const V far = splat(1.0f) - splat(2.0f) / (exponential(size + size) + splat(1.0f));
    return select(size < splat(0.625f), p, (V)((U)far | sign));
}

// Zeroed memory for numbers of any vector kind, freed with its owner.
template <class T>
class Block {
   public:
    Block() = default;
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block() { std::free(data_); }

    // The bytes that so many numbers take.
    static int64_t bytes(int64_t count) {
        return times(parts(times(static_cast<int64_t>(sizeof(T)), count > 0 ? count : 1), 64), 64);
    }

    void resize(int64_t count) {
        const size_t whole = static_cast<size_t>(bytes(count));
        std::free(data_);
        data_ = static_cast<T*>(std::aligned_alloc(64, whole));
        if (data_ == nullptr) throw std::bad_alloc();
        std::memset(static_cast<void*>(data_), 0, whole);
    }

    T* get() const { return data_; }
    T& operator[](int64_t i) const { return data_[i]; }

   private:
    T* data_ = nullptr;
};

}  // namespace
