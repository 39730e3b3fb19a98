// Transposed matrices of numbers, each of which is one for every client.
#pragma once

#include "vec.hpp"

namespace {

// One stage of a transposition: blocks of S numbers change places between vectors S apart.
template <int S>
LANES_INLINE void exchange(V* x) {
    const auto first = [](int l) { return l / SEATS & S ? l - S * SEATS + W : l; };
    const auto second = [](int l) { return l / SEATS & S ? l + W : l + S * SEATS; };
#pragma GCC unroll 8
    for (int i = 0; i < LANES; ++i) {
        if (i & S) continue;
        const V a = x[i], b = x[i + S];
        x[i] = shuffled(a, b, first);
        x[i + S] = shuffled(a, b, second);
    }
}

// Number k of vector i becomes number i of vector k, for eight vectors.
LANES_INLINE void turn(V* x) {
    exchange<1>(x);
    exchange<2>(x);
    exchange<4>(x);
}

// The vectors that so many numbers of a client take.
inline int64_t blocks_of(int64_t count) { return parts(count, LANES); }

inline int64_t at_most_eight(int64_t rest) { return rest < LANES ? rest : LANES; }

// to[d][k] = from[k][d] for a matrix of (rows, columns); the rest of the last vector is zero.
inline void turn_rows(const float* from, int64_t rows, int64_t columns, V* to) {
    const int64_t blocks = blocks_of(rows);
    for (int64_t k = 0; k < rows; k += LANES)
        for (int64_t d = 0; d < columns; d += LANES) {
            const int64_t high = at_most_eight(rows - k), wide = at_most_eight(columns - d);
            const float* corner = from + (k * columns + d) * SEATS;
            V x[LANES] = {};
            if (high == LANES && wide == LANES)
                for (int i = 0; i < LANES; ++i) x[i] = loaded(corner + i * columns * SEATS);
            else
                for (int64_t i = 0; i < high; ++i)
                    std::memcpy(&x[i], corner + i * columns * SEATS, wide * SEATS * sizeof(float));
            turn(x);
            for (int64_t i = 0; i < wide; ++i) to[(d + i) * blocks + k / LANES] = x[i];
        }
}

// The other way round; with More, the numbers are added to.
template <bool More>
void turn_back(const V* from, int64_t rows, int64_t columns, float* to) {
    const int64_t blocks = blocks_of(rows);
    for (int64_t k = 0; k < rows; k += LANES)
        for (int64_t d = 0; d < columns; d += LANES) {
            const int64_t high = at_most_eight(rows - k), wide = at_most_eight(columns - d);
            float* corner = to + (k * columns + d) * SEATS;
            V x[LANES] = {};
            for (int64_t i = 0; i < wide; ++i) x[i] = from[(d + i) * blocks + k / LANES];
            turn(x);
            for (int64_t i = 0; i < high; ++i) {
                const size_t bytes = wide * SEATS * sizeof(float);
                V old = zero();
                if (More) std::memcpy(&old, corner + i * columns * SEATS, bytes);
                const V sum = More ? old + x[i] : x[i];
                std::memcpy(corner + i * columns * SEATS, &sum, bytes);
            }
        }
}

// The place in a vector of a client's sample in its lane number n, in the order of all widths.
inline int place_of_sample(int n) { return SEATS == 1 ? lane_of_client(n) : n; }

// Samples become rows: `to` gets eight rows of vectors of `count` numbers for every row of `from`,
// whose vectors are padded with zeros to whole blocks.
inline void turn_samples(const V* from, int64_t rows, int64_t blocks, V* to) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t b = 0; b < blocks; ++b) {
            V x[LANES];
            for (int i = 0; i < LANES; ++i) x[i] = from[(r * blocks + b) * LANES + i];
            turn(x);
            for (int n = 0; n < LANES; ++n)
                to[(r * LANES + n) * blocks + b] = x[place_of_sample(n)];
        }
}

constexpr int TALL = SEATS == 1 ? 4 : 8;  // rows of sums that are in registers at once

// sums[i][j] += sum over the samples of a[sample][i] * turned[sample][j], for R rows from i on and
// C vectors from j on. The samples are added up in their order.
template <int R, int C>
LANES_INLINE void outer_block(const V* a, int64_t pitch, const V* turned, int64_t rows,
                              int64_t blocks, V* sums) {
    V sum[R][C];
    for (int i = 0; i < R; ++i)
        for (int j = 0; j < C; ++j) sum[i][j] = sums[i * blocks + j];
    for (int64_t r = 0; r < rows; ++r) {
        const float* own = reinterpret_cast<const float*>(a + r * pitch);
        const V* row = turned + r * LANES * blocks;
#pragma GCC unroll 8
        for (int n = 0; n < LANES; ++n) {
            V y[C];
            for (int j = 0; j < C; ++j) y[j] = row[n * blocks + j];
            for (int i = 0; i < R; ++i) {
                const V x = each(own + i * W + place_of_sample(n) * SEATS);
                for (int j = 0; j < C; ++j) sum[i][j] = fma(x, y[j], sum[i][j]);
            }
        }
    }
    for (int i = 0; i < R; ++i)
        for (int j = 0; j < C; ++j) sums[i * blocks + j] = sum[i][j];
}

// The same for all `count` rows of sums and all their blocks.
inline void outer_product(const V* a, int64_t pitch, int64_t count, const V* turned, int64_t rows,
                          int64_t blocks, V* sums) {
    const int64_t tall = count / TALL * TALL;
    for (int64_t j = 0; j < blocks; j += 2) {
        const bool both = j + 2 <= blocks;
        for (int64_t i = 0; i < tall; i += TALL)
            (both ? outer_block<TALL, 2> : outer_block<TALL, 1>)(a + i, pitch, turned + j, rows,
                                                                 blocks, sums + i * blocks + j);
        for (int64_t i = tall; i < count; ++i)
            (both ? outer_block<1, 2> : outer_block<1, 1>)(a + i, pitch, turned + j, rows, blocks,
                                                           sums + i * blocks + j);
    }
}

}  // namespace
