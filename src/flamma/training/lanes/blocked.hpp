// The operations that take several samples of every lane at a time, and the choice of the others.
#pragma once

#include "net.hpp"

namespace {

inline Scratch Net::scratch() const {
    return Scratch{scratch_[0].get(), scratch_[1].get(), scratch_[2].get(),
                   scratch_[3].get(), scratch_[4].get(), scratch_[5].get()};
}

// Prepares the weights of a pass forwards, which the way back uses too.
inline void Net::transform(const float* weights) {
    for (auto& op : ops_)
        if (op->kind == BARE_CONV)
            by_tiles(op->bare, [&](const auto& tiles) {
                tiles.transform_weights(weights + op->weights * SEATS, scratch().weights,
                                        op->transformed.get());
            });
}

inline void Net::forward_all(Operation& op, int64_t sample, int64_t rows, const float* weights) {
    if (op.kind == RECALL) return;
    if (op.kind == BARE_CONV) return bare_forward(op, sample, rows, weights);
    for (int64_t s = sample; s < sample + rows; ++s)
        op.kind == GROUP_NORM ? one_norm_forward(op, s, weights) : one_forward(op, s, weights);
}

inline void Net::backward_all(Operation& op, int64_t sample, int64_t rows) {
    if (op.kind == RECALL) return;
    if (op.kind == BARE_CONV) return bare_backward(op, sample, rows);
    for (int64_t row = 0; row < rows; ++row)
        op.kind == GROUP_NORM ? one_norm_backward(op, sample + row, row)
                              : one_backward(op, sample + row, row);
}

inline void Net::bare_forward(Operation& op, int64_t sample, int64_t rows, const float* weights) {
    const V* x = value_[op.in]->at(sample);
    V* y = value_[op.out]->at(sample);
    const bool done = by_tiles(op.bare, [&](const auto& tiles) {
        tiles.forward(x, op.transformed.get(), rows, scratch(), y);
    });
    if (!done) direct_forward(op.bare, x, weights + op.weights * SEATS, rows, scratch(), y);
}

inline void Net::bare_backward(Operation& op, int64_t sample, int64_t rows) {
    const V *x = value_[op.in]->at(sample), *dy = gradient_[op.out]->at(0);
    V* dx = &op == ops_[first_].get() ? nullptr : gradient_[op.in]->at(0);
    float* gradient = bare_gradient_.get() + op.weights * SEATS;
    const Scratch own = scratch();
    const bool done = by_tiles(op.bare, [&](const auto& tiles) {
        tiles.backward(x, dy, op.transformed.get(), rows, own, op.more, dx);
        tiles.gradient(own.sums, sample > 0, own.weights, gradient);
    });
    if (done) return;
    if (dx && !op.more)
        std::memset(static_cast<void*>(dx), 0, sizeof(V) * op.bare.dx.size() * rows);
    direct_backward(op.bare, x, dy, weights_.get() + op.weights * SEATS, rows, own, dx);
    direct_gradient(op.bare, own.sums, sample > 0, gradient);
}

// Calls f with whether something is joined and whether a ReLU follows, as constants.
template <class F>
void with_ending(bool joins, bool rectifies, F f) {
    constexpr std::true_type yes;
    constexpr std::false_type no;
    if (joins)
        rectifies ? f(yes, yes) : f(yes, no);
    else
        rectifies ? f(no, yes) : f(no, no);
}

inline void Net::one_norm_forward(Operation& op, int64_t sample, const float* weights) {
    const Slot& joined = *value_[op.joined];
    with_ending(op.joined != 0, op.argument[2] != 0, [&](auto joins, auto rectifies) {
        norm_forward<joins.value, rectifies.value>(
            op.norm, value_[op.in]->at(sample), weights + op.weights * SEATS,
            weights + op.bias * SEATS, joined.grid, joined.at(sample), value_[op.out]->at(sample),
            op.kept.get() + 2 * op.norm.groups * sample);
    });
}

inline void Net::one_norm_backward(Operation& op, int64_t sample, int64_t row) {
    const Slot& joined = *gradient_[op.joined];
    V* gradient = image_gradient_.get() + op.sums;
    with_ending(op.joined != 0, op.argument[2] != 0, [&](auto joins, auto rectifies) {
        norm_backward<joins.value, rectifies.value>(
            op.norm, value_[op.in]->at(sample), value_[op.out]->at(sample),
            gradient_[op.out]->at(row), weights_.get() + op.weights * SEATS,
            op.kept.get() + 2 * op.norm.groups * sample, gradient_[op.in]->at(row), joined.grid,
            joined.at(row), gradient, gradient + (op.bias - op.weights));
    });
}

}  // namespace
