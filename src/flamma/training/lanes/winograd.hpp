// Convolutions of 3x3 taps, stride 1 and padding 1 by minimal filtering of tiles.
//
// A window of the input becomes POINTS x POINTS numbers per channel, and the convolution as many
// products of matrices (Lavin and Gray, Fast algorithms for convolutional neural networks, CVPR
// 2016). The way back is the adjoint of each transform, so that it uses the same transformed
// weights, and the gradients by data and by weights share that of the output.
#pragma once

#include "bare.hpp"
#include "minimal.hpp"

#define LANES_LAMBDA __attribute__((always_inline))

namespace {

constexpr int64_t LINE = 64 / sizeof(V) + 1;  // keeps points from sharing sets of the cache

template <class T>
struct Winograd {
    static constexpr int P = T::POINTS, PP = P * P;
    const Bare& s;
    int64_t inputs, outputs;  // from one point to the next, in vectors
    int64_t pairs, blocks;    // the same of weights, and those of one input

    explicit Winograd(const Bare& bare)
        : s(bare),
          inputs(ROWS * s.x.c + LINE),
          outputs(ROWS * padded(s.y.c) + LINE),
          pairs(s.x.c * blocks_of(s.y.c) + LINE),
          blocks(blocks_of(s.y.c)) {}

    int64_t tiles_down() const { return parts(s.y.h, T::OUT); }
    int64_t tiles_across() const { return parts(s.y.w, T::OUT); }

    Needs needs() const {
        const int64_t in = times(PP, inputs), out = times(PP, outputs), all = times(PP, pairs);
        return Needs{{in, in, out, times(ROWS * LANES, blocks), all, times(s.depth(), blocks)}, all};
    }

    // What its grids have beyond the edges so that all tiles are whole.
    static int64_t beyond(int64_t size) { return parts(size, T::OUT) * T::OUT - size; }

    // u[point][input][output] from w[output][input][tap].
    void transform_weights(const float* w, V* turned, V* u) const {
        turn_rows(w, s.y.c, s.depth(), turned);
        for (int64_t c = 0; c < s.x.c; ++c)
            for (int64_t b = 0; b < blocks; ++b) {
                V in[3][3], out[P][P];
                const V* taps = turned + c * 9 * blocks + b;
                over_square<3>([&](int i, int j) LANES_LAMBDA {
                    in[i][j] = taps[(3 * i + j) * blocks];
                });
                both<3, P>(in, out, T::weights);
                V* to = u + c * blocks + b;
                over_square<P>([&](int i, int j) LANES_LAMBDA {
                    to[(P * i + j) * pairs] = out[i][j];
                });
            }
    }

    void gradient(const V* du, bool more, V* turned, float* to) const {
        for (int64_t c = 0; c < s.x.c; ++c)
            for (int64_t b = 0; b < blocks; ++b) {
                V in[P][P], out[3][3];
                const V* from = du + c * blocks + b;
                over_square<P>([&](int i, int j) LANES_LAMBDA {
                    in[i][j] = from[(P * i + j) * pairs];
                });
                both<P, 3>(in, out, T::weights_back);
                V* taps = turned + c * 9 * blocks + b;
                over_square<3>([&](int i, int j) LANES_LAMBDA {
                    taps[(3 * i + j) * blocks] = out[i][j];
                });
            }
        (more ? turn_back<true> : turn_back<false>)(turned, s.y.c, s.depth(), to);
    }

    // The pixels of a window that are in the map; beyond it are borders of zeros.
    __attribute__((noinline)) void window_to_points(const V* x, int64_t ty, int64_t tx,
                                                    int64_t rows, V* points) const {
        const int64_t pitch = s.x.pitch();
        for (int64_t row = 0; row < rows; ++row, x += s.x.size())
            for (int64_t c = 0; c < s.x.c; ++c) {
                const V* from = x + s.x.row(c, ty * T::OUT) + tx * T::OUT -
                                T::MARGIN * (pitch + 1);
                V in[T::SIZE][T::SIZE], out[P][P];
                over_square<T::SIZE>([&](int i, int j) LANES_LAMBDA {
                    in[i][j] = from[i * pitch + j];
                });
                both<T::SIZE, P>(in, out, T::input);
                V* to = points + row * s.x.c + c;
                over_square<P>([&](int i, int j) LANES_LAMBDA {
                    to[(P * i + j) * inputs] = out[i][j];
                });
            }
    }

    __attribute__((noinline)) void points_to_tile(const V* points, int64_t ty, int64_t tx,
                                                  int64_t rows, V* y) const {
        const int64_t high = extent(s.y.h, ty), wide = extent(s.y.w, tx);
        for (int64_t row = 0; row < rows; ++row, y += s.y.size())
            for (int64_t k = 0; k < s.y.c; ++k) {
                V in[P][P], out[T::OUT][T::OUT];
                const V* from = points + row * padded(s.y.c) + k;
                over_square<P>([&](int i, int j) LANES_LAMBDA {
                    in[i][j] = from[(P * i + j) * outputs];
                });
                both<P, T::OUT>(in, out, T::output);
                V* to = y + s.y.row(k, ty * T::OUT) + tx * T::OUT;
                if (high == T::OUT && wide == T::OUT)
                    over_square<T::OUT>([&](int i, int j) LANES_LAMBDA {
                        to[i * s.y.pitch() + j] = out[i][j];
                    });
                else
                    for (int64_t i = 0; i < high; ++i)
                        for (int64_t j = 0; j < wide; ++j) to[i * s.y.pitch() + j] = out[i][j];
            }
    }

    __attribute__((noinline)) void tile_to_points(const V* dy, int64_t ty, int64_t tx,
                                                  int64_t rows, V* points) const {
        for (int64_t row = 0; row < rows; ++row, dy += s.dy.size()) {
            V* to = points + row * padded(s.y.c);
            for (int64_t k = 0; k < s.y.c; ++k, ++to) {
                V in[T::OUT][T::OUT], out[P][P];
                const V* from = dy + s.dy.row(k, ty * T::OUT) + tx * T::OUT;
                over_square<T::OUT>([&](int i, int j) LANES_LAMBDA {
                    in[i][j] = from[i * s.dy.pitch() + j];
                });
                both<T::OUT, P>(in, out, T::output_back);
                over_square<P>([&](int i, int j) LANES_LAMBDA {
                    to[(P * i + j) * outputs] = out[i][j];
                });
            }
            for (int64_t k = s.y.c; k < padded(s.y.c); ++k, ++to)
                for (int p = 0; p < PP; ++p) to[p * outputs] = zero();
        }
    }

    // Adds to what tiles above and to the left have left, and with `more` to all that is there.
    __attribute__((noinline)) void points_to_window(const V* points, int64_t ty, int64_t tx,
                                                    int64_t rows, bool more, V* dx) const {
        const int64_t top = ty * T::OUT - T::MARGIN, left = tx * T::OUT - T::MARGIN;
        const Span down = inside(top, s.x.h), across = inside(left, s.x.w);
        const int64_t written = more || ty > 0 ? 2 * T::MARGIN : 0;
        for (int64_t row = 0; row < rows; ++row, dx += s.dx.size())
            for (int64_t c = 0; c < s.x.c; ++c) {
                V in[P][P], out[T::SIZE][T::SIZE];
                const V* from = points + row * s.x.c + c;
                over_square<P>([&](int i, int j) LANES_LAMBDA {
                    in[i][j] = from[(P * i + j) * inputs];
                });
                both<P, T::SIZE>(in, out, T::input_back);
                for (int64_t i = down.from; i < down.to; ++i) {
                    V* to = dx + s.dx.row(c, top + i) + left;
                    int64_t j = across.from;
                    const int64_t old = more || i < written ? across.to
                                        : tx > 0            ? 2 * T::MARGIN
                                                            : 0;
                    for (; j < old && j < across.to; ++j) to[j] += out[i][j];
                    for (; j < across.to; ++j) to[j] = out[i][j];
                }
            }
    }

    void forward(const V* x, const V* u, int64_t rows, const Scratch& m, V* y) const {
        for (int64_t ty = 0; ty < tiles_down(); ++ty)
            for (int64_t tx = 0; tx < tiles_across(); ++tx) {
                window_to_points(x, ty, tx, rows, m.in);
                for (int p = 0; p < PP; ++p)
                    product(Values{m.in + p * inputs, s.x.c},
                            Weights{numbers(u + p * pairs), 1, padded(s.y.c)}, rows, s.y.c, s.x.c,
                            m.out + p * outputs, padded(s.y.c), FromZero{});
                points_to_tile(m.out, ty, tx, rows, y);
            }
    }

    // Writes the gradient by data to dx, or with `more` adds it, unless dx is null; leaves that by
    // transformed weights in `sums`.
    void backward(const V* x, const V* dy, const V* u, int64_t rows, const Scratch& m, bool more,
                  V* dx) const {
        std::memset(static_cast<void*>(m.sums), 0, sizeof(V) * PP * pairs);
        for (int64_t ty = 0; ty < tiles_down(); ++ty)
            for (int64_t tx = 0; tx < tiles_across(); ++tx) {
                tile_to_points(dy, ty, tx, rows, m.out);
                window_to_points(x, ty, tx, rows, m.in);
                for (int p = 0; p < PP; ++p) {
                    const V* out = m.out + p * outputs;
                    turn_samples(out, rows, blocks, m.turned);
                    outer_product(m.in + p * inputs, s.x.c, s.x.c, m.turned, rows, blocks,
                                  m.sums + p * pairs);
                    if (dx)
                        product(Values{out, padded(s.y.c)},
                                Weights{numbers(u + p * pairs), padded(s.y.c), 1}, rows, s.x.c,
                                s.y.c, m.back + p * inputs, s.x.c, FromZero{});
                }
                if (dx) points_to_window(m.back, ty, tx, rows, more, dx);
            }
    }

   private:
    struct Span {
        int64_t from, to;
    };

    static const float* numbers(const V* vectors) {
        return reinterpret_cast<const float*>(vectors);
    }

    // The rows or columns of a tile that are in the map.
    static int64_t extent(int64_t size, int64_t tile) {
        const int64_t rest = size - tile * T::OUT;
        return rest < T::OUT ? rest : T::OUT;
    }

    // Those of a window that begins at `first`.
    static Span inside(int64_t first, int64_t size) {
        return Span{first < 0 ? -first : 0, size - first < T::SIZE ? size - first : T::SIZE};
    }
};

// Calls f with the convolution by the method that it has; false if that is the direct one.
template <class F>
bool by_tiles(const Bare& s, F f) {
    if (s.method == BY_FOURS) f(Winograd<Fours>(s));
    if (s.method == BY_TWOS) f(Winograd<Twos>(s));
    return s.method != DIRECT;
}

inline Needs needs_of(const Bare& s) {
    Needs needs;
    if (!by_tiles(s, [&](const auto& tiles) { needs = tiles.needs(); })) needs = direct_needs(s);
    return needs;
}

}  // namespace
