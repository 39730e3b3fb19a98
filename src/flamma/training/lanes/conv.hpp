// Convolutions with stride 1, of one sample of every lane at a time.
//
// Each keeps a block of sums (channels x columns) in registers and runs over the taps, so every
// loaded weight serves several columns and every loaded pixel several channels.
#pragma once

#include <type_traits>

#include "vec.hpp"

namespace {

struct Conv {
    int64_t in, h, w;           // channels and size of the input, without its border
    int64_t out, kh, kw;        // channels of the output, size of the kernel
    int64_t ph, pw;             // padding
    int64_t oh, ow;             // size of the output
    int64_t x_pitch, x_plane;   // the input, with its border of zeros
    int64_t y_pitch, y_plane;   // the output
    int64_t dx_pitch, dx_plane; // the gradient of the input
    int64_t dy_pitch, dy_plane; // that of the output, with kw - 1 columns of zeros on each side
    const int64_t* taps;        // where the pixel of each tap is, from that of the first
};

constexpr int64_t NEAR = 12 * 1024;  // bytes of weights that should stay in the L1 cache
constexpr int64_t WEIGHT = SEATS * sizeof(float);  // bytes of one for all clients

template <int N>
using Whole = std::integral_constant<int, N>;

// Calls f with the block as constants: at most twelve sums, as sixteen registers allow.
template <class F>
void with_block(int channels, int columns, F f) {
    switch (channels * 8 + columns) {
#define LANES_CASE(B, C) \
    case B * 8 + C: f(Whole<B>{}, Whole<C>{}); break;
        LANES_CASE(1, 1) LANES_CASE(1, 2) LANES_CASE(1, 3) LANES_CASE(1, 4) LANES_CASE(1, 5)
        LANES_CASE(1, 6) LANES_CASE(2, 1) LANES_CASE(2, 2) LANES_CASE(2, 3) LANES_CASE(2, 4)
        LANES_CASE(2, 5) LANES_CASE(2, 6) LANES_CASE(3, 1) LANES_CASE(3, 2) LANES_CASE(3, 3)
        LANES_CASE(3, 4)
#undef LANES_CASE
        default: std::abort();
    }
}

struct Cut {
    int64_t blocks, size, large;  // `large` blocks of `size`, the others one smaller
};

inline Cut cut(int64_t n, int64_t most) {
    const int64_t blocks = (n + most - 1) / most, size = (n + blocks - 1) / blocks;
    return Cut{blocks, size, n - blocks * (size - 1)};
}

// The number of channels of a block that costs least; with few sums, each waits for the last.
inline int64_t channels_of_block(int64_t channels, int64_t columns) {
    const int64_t widest[] = {0, 6, 6, 4};
    int64_t best = 1, least = INT64_MAX;
    for (int64_t most = 1; most <= 3; ++most) {
        const Cut c = cut(channels, most), x = cut(columns, widest[c.size]);
        int64_t cost = 0;
        for (int64_t i = 0; i < c.blocks; ++i)
            for (int64_t j = 0; j < x.blocks; ++j) {
                const int64_t b = c.size - (i >= c.large), n = x.size - (j >= x.large);
                cost += b * n < 8 ? 8 : b * n;
            }
        if (cost < least) best = most, least = cost;
    }
    return best;
}

// Calls f(first channel, channels, largest columns) for every block of channels.
template <class F>
void over_channels(int64_t channels, int64_t columns, F f) {
    const Cut c = cut(channels, channels_of_block(channels, columns));
    const Cut x = cut(columns, c.size == 3 ? 4 : 6);
    int64_t first = 0;
    for (int64_t i = 0; i < c.blocks; ++i) {
        const int64_t size = c.size - (i >= c.large);
        with_block(static_cast<int>(size), static_cast<int>(x.size),
                   [&](auto b, auto n) { f(first, b, n); });
        first += size;
    }
}

// One loop over all taps, whose offsets are in a table: with short nested loops the compiler keeps
// pixels for the next tap and runs out of registers.
template <int B, int N>
LANES_INLINE void forward_block(const Conv& s, const V* x, const float* w, int64_t from, int64_t to,
                                const float* bias, V* y) {
    const int64_t w_step = s.in * s.kh * s.kw;
    V sum[B][N];
    for (int b = 0; b < B; ++b)
        for (int n = 0; n < N; ++n) sum[b][n] = from == 0 ? each(bias + b * SEATS) : y[b * s.y_plane + n];
    for (int64_t tap = from; tap < to; ++tap) {
        const V* first = x + s.taps[tap];
        V t[B];
        for (int b = 0; b < B; ++b) t[b] = each(w + (b * w_step + tap) * SEATS);
        for (int n = 0; n < N; ++n) {
            const V pixel = first[n];
            for (int b = 0; b < B; ++b) sum[b][n] = fma(t[b], pixel, sum[b][n]);
        }
    }
    for (int b = 0; b < B; ++b)
        for (int n = 0; n < N; ++n) y[b * s.y_plane + n] = sum[b][n];
}

inline void conv_forward(const Conv& s, const V* x, const float* w, const float* bias, V* y) {
    const int64_t taps = s.in * s.kh * s.kw;
    over_channels(s.out, s.ow, [&](int64_t o, auto b, auto n) {
        constexpr int B = decltype(b)::value, N = decltype(n)::value, L = N > 1 ? N - 1 : 1;
        const int64_t part = cut(taps, NEAR / (B * WEIGHT)).size;
        const int64_t large = cut(s.ow, N).large * N;
        for (int64_t from = 0; from < taps; from += part) {
            const int64_t to = from + part < taps ? from + part : taps;
            for (int64_t row = 0; row < s.oh; ++row) {
                const V* px = x + row * s.x_pitch;
                const float* pw = w + o * taps * SEATS;
                V* py = y + o * s.y_plane + row * s.y_pitch;
                int64_t c = 0;
                for (; c < large; c += N)
                    forward_block<B, N>(s, px + c, pw, from, to, bias + o * SEATS, py + c);
                for (; c < s.ow; c += L)
                    forward_block<B, L>(s, px + c, pw, from, to, bias + o * SEATS, py + c);
            }
        }
    });
}

enum Edge { INSIDE, LEFT, RIGHT };

template <int B, int N, int K, Edge E>
LANES_INLINE void data_block(const Conv& s, const V* dy, const float* w, int64_t from, int64_t to,
                             int64_t low, int64_t high, V* dx) {
    const int64_t kw = K ? K : s.kw, taps = s.kh * kw, w_step = s.in * taps;
    V sum[B][N];
    for (int b = 0; b < B; ++b)
        for (int n = 0; n < N; ++n) sum[b][n] = from == 0 ? zero() : dx[b * s.dx_plane + n];
    for (int64_t o = from; o < to; ++o)
        for (int64_t ky = low; ky <= high; ++ky) {
            const V* row = dy + o * s.dy_plane - ky * s.dy_pitch;
            const float* pw = w + (o * w_step + ky * kw) * SEATS;
#pragma GCC unroll 5
            for (int64_t kx = 0; kx < kw; ++kx) {
                V t[B];
                for (int b = 0; b < B; ++b) t[b] = each(pw + (b * taps + kx) * SEATS);
                for (int n = 0; n < N; ++n) {
                    // Beyond the edges everything is zero.
                    if (E == LEFT && kx > n) continue;
                    if (E == RIGHT && kx < K - N + n) continue;
                    const V g = row[n - kx];
                    for (int b = 0; b < B; ++b) sum[b][n] = fma(t[b], g, sum[b][n]);
                }
            }
        }
    for (int b = 0; b < B; ++b)
        for (int n = 0; n < N; ++n) dx[b * s.dx_plane + n] = sum[b][n];
}

template <int B, int N, int K>
LANES_INLINE void data_edge(const Conv& s, int64_t c, const V* dy, const float* w, int64_t from,
                            int64_t to, int64_t low, int64_t high, V* dx) {
    if constexpr (K > 0 && N > 2) {
        if (s.pw == 0 && c == 0)
            return data_block<B, N, K, LEFT>(s, dy, w, from, to, low, high, dx);
        if (s.pw == 0 && c + N == s.w)
            return data_block<B, N, K, RIGHT>(s, dy, w, from, to, low, high, dx);
    }
    data_block<B, N, K, INSIDE>(s, dy, w, from, to, low, high, dx);
}

template <int K>
void conv_backward_data(const Conv& s, const V* dy, const float* w, V* dx) {
    const int64_t taps = s.kh * s.kw;
    over_channels(s.in, s.w, [&](int64_t i, auto b, auto n) {
        constexpr int B = decltype(b)::value, N = decltype(n)::value, L = N > 1 ? N - 1 : 1;
        const int64_t bytes = B * taps * WEIGHT;
        const int64_t part = cut(s.out, bytes < NEAR ? NEAR / bytes : 1).size;
        const int64_t large = cut(s.w, N).large * N;
        for (int64_t from = 0; from < s.out; from += part) {
            const int64_t to = from + part < s.out ? from + part : s.out;
            for (int64_t row = 0; row < s.h; ++row) {
                const int64_t at = row + s.ph;  // in rows of dy, before the tap's shift
                const int64_t low = at - (s.oh - 1) > 0 ? at - (s.oh - 1) : 0;
                const int64_t high = at < s.kh - 1 ? at : s.kh - 1;
                const V* pd = dy + at * s.dy_pitch + s.pw;
                const float* pw = w + i * taps * SEATS;
                V* px = dx + i * s.dx_plane + row * s.dx_pitch;
                int64_t c = 0;
                for (; c < large; c += N)
                    data_edge<B, N, K>(s, c, pd + c, pw, from, to, low, high, px + c);
                for (; c < s.w; c += L)
                    data_edge<B, L, K>(s, c, pd + c, pw, from, to, low, high, px + c);
            }
        }
    });
}

// Adds the contribution of some rows of the image to B rows of C taps.
template <int B, int C>
LANES_INLINE void weights_block(const Conv& s, const V* dy, const V* x, int64_t from, int64_t to,
                                V* dw) {
    const int64_t step = s.in * s.kh * s.kw;
    V sum[B][C];
    for (int b = 0; b < B; ++b)
        for (int c = 0; c < C; ++c) sum[b][c] = dw[b * step + c];
    for (int64_t row = from; row < to; ++row) {
        const V* pd = dy + row * s.dy_pitch;
        const V* px = x + row * s.x_pitch;
        for (int64_t n = 0; n < s.ow; ++n) {
            V g[B];
            for (int b = 0; b < B; ++b) g[b] = pd[b * s.dy_plane + n];
            for (int c = 0; c < C; ++c) {
                const V pixel = px[n + c];
                for (int b = 0; b < B; ++b) sum[b][c] = fma(g[b], pixel, sum[b][c]);
            }
        }
    }
    for (int b = 0; b < B; ++b)
        for (int c = 0; c < C; ++c) dw[b * step + c] = sum[b][c];
}

inline void conv_backward_weights(const Conv& s, const V* dy, const V* x, V* dw, V* db) {
    over_channels(s.out, s.kw, [&](int64_t o, auto b, auto n) {
        constexpr int B = decltype(b)::value, C = decltype(n)::value, L = C > 1 ? C - 1 : 1;
        const int64_t bytes = B * s.ow * static_cast<int64_t>(sizeof(V));
        const int64_t part = bytes < NEAR ? NEAR / bytes : 1, large = cut(s.kw, C).large * C;
        for (int64_t i = 0; i < s.in; ++i)
            for (int64_t from = 0; from < s.oh; from += part) {
                const int64_t to = from + part < s.oh ? from + part : s.oh;
                for (int64_t ky = 0; ky < s.kh; ++ky) {
                    const V* pd = dy + o * s.dy_plane;
                    const V* px = x + i * s.x_plane + ky * s.x_pitch;
                    V* pw = dw + ((o * s.in + i) * s.kh + ky) * s.kw;
                    int64_t c = 0;
                    for (; c < large; c += C)
                        weights_block<B, C>(s, pd, px + c, from, to, pw + c);
                    for (; c < s.kw; c += L)
                        weights_block<B, L>(s, pd, px + c, from, to, pw + c);
                }
            }
    });
    for (int64_t o = 0; o < s.out; ++o)
        for (int64_t row = 0; row < s.oh; ++row) {
            const V* pd = dy + o * s.dy_plane + row * s.dy_pitch;
            V sum = zero();
            for (int64_t n = 0; n < s.ow; ++n) sum += pd[n];
            db[o] += sum;
        }
}

}  // namespace
