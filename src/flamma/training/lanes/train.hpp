// The forward and backward passes, and scoring.
#pragma once

#include "blocked.hpp"
#include "descend.hpp"
#include "net.hpp"

namespace {

inline void Net::step(const Batch* batches) {
    int64_t samples = 0;  // the most for one lane
    for (int seat = 0; seat < SEATS; ++seat) {
        const int64_t most = parts(batches[seat].size, LANES);
        samples = most > samples ? most : samples;
    }
    reserve(samples);
    images_.resize(static_cast<size_t>(samples * W));
    for (int l = 0; l < W; ++l) {
        const Batch& batch = batches[l % SEATS];
        now_[l] = batch.size > 0 ? rate_[l] : 0.0f;  // an idle seat keeps its weights
        for (int64_t s = 0; s < samples; ++s) {
            const int64_t place = s * LANES + lane_of_client(l);
            // A lane with fewer samples than others is padded with the seat's first sample, whose
            // gradient has weight 0.
            const int64_t n = batch.size == 0 ? -1 : batch.order[place < batch.size ? place : 0];
            images_[s * W + l] = n < 0 ? nothing_.get() : batch.x + n * features_;
            labels_[s][l] = n < 0 ? 0 : static_cast<int32_t>(batch.y[n]);
            scales_[s][l] = place < batch.size ? 1.0f / static_cast<float>(batch.size) : 0.0f;
        }
    }
    forward(samples, weights_.get(), images_.data());
    reweigh(samples, batches);
    loss_gradient(samples, labels_.get(), scales_.get());
    if (any_clip_) return descend_clipped(samples);
    any_momentum_ || any_proximal_ || any_correction_ || any_decay_ ? descend<false>(samples)
                                                                    : descend<true>(samples);
}

// Sets the weights of the samples in the seats of clients that do not minimise the mean loss.
inline void Net::reweigh(int64_t samples, const Batch* batches) {
    bool weighs[SEATS], any = false;
    for (int seat = 0; seat < SEATS; ++seat) {
        any |= weighs[seat] = batches[seat].size > 0 && !objective_[seat].plain();
        if (weighs[seat]) losses_[seat].resize(static_cast<size_t>(batches[seat].size));
    }
    if (!any) return;
    const auto each_sample = [&](int64_t s, auto f) {
        for (int l = 0; l < W; ++l) {
            const int seat = l % SEATS;
            const int64_t place = s * LANES + lane_of_client(l);
            if (weighs[seat] && place < batches[seat].size)
                f(l, losses_[seat][static_cast<size_t>(place)]);
        }
    };
    const int64_t classes = this->classes();
    for (int64_t s = 0; s < samples; ++s) {
        const V *z = value_.back()->at(s), top = largest(z, classes);
        V sum = zero();
        for (int64_t c = 0; c < classes; ++c) sum += exponential(z[c] - top);
        each_sample(s, [&](int l, double& loss) {
            loss = log_of_at_least_one(sum[l]) + top[l] - z[labels_[s][l]][l];
        });
    }
    for (int seat = 0; seat < SEATS; ++seat)
        if (weighs[seat]) weigh(objective_[seat], losses_[seat].data(), batches[seat].size);
    for (int64_t s = 0; s < samples; ++s)
        each_sample(s, [&](int l, double& weight) { scales_[s][l] = static_cast<float>(weight); });
}

// Interleaves a row of the images of all lanes.
LANES_INLINE void interleave(const float* const* images, int64_t from, int64_t count, V* to) {
    int64_t n = 0;
    for (; n + COLUMNS_AT_ONCE <= count; n += COLUMNS_AT_ONCE)
        transpose(images, from + n, to + n);
    for (; n < count; ++n)
        for (int l = 0; l < W; ++l) to[n][l] = images[l][from + n];
}

// Interleaves one sample of every lane.
inline void Net::fill(const float* const* images, int64_t sample) {
    const Grid& g = value_[0]->grid;
    const float* const* own = images + sample * W;
    V* to = value_[0]->at(sample);
    if (g.ph == 0 && g.pw == 0) return interleave(own, 0, features_, to);
    for (int64_t c = 0; c < g.c; ++c)
        for (int64_t r = 0; r < g.h; ++r)
            interleave(own, (c * g.h + r) * g.w, g.w, to + g.row(c, r));
}

inline void Net::one_forward(Operation& op, int64_t sample, const float* weights) {
    const Slot &in = *value_[op.in], &out = *value_[op.out];
    const V* x = in.at(sample);
    V* y = out.at(sample);
    if (op.kind == CONV) {
        conv_forward(op.conv, x + op.start, weights + op.weights * SEATS, weights + op.bias * SEATS,
                     y + out.grid.origin());
    } else if (op.kind == MAX_POOL) {
        I* which = op.which.get() + sample * out.grid.c * out.grid.h * out.grid.w;
        (op.pair() ? max_forward<2> : max_forward<0>)(op.window(), in.grid, x, out.grid, y, which,
                                                      op.argument[4] != 0);
    } else if (op.kind == AVG_POOL) {
        (op.pair() ? mean_forward<2> : mean_forward<0>)(op.window(), in.grid, x, out.grid, y);
    } else {
        activate(op.kind == RELU_OP ? RELU : TANH, y, out.grid.size());
    }
}

inline void Net::forward(int64_t samples, const float* weights, const float* const* images) {
    transform(weights);
    for (int64_t s = 0; s < samples; s += together_) {
        const int64_t rows = std::min(together_, samples - s);
        for (int64_t row = 0; row < rows; ++row) fill(images, s + row);
        for (int64_t k = 0; k < tail_; ++k) forward_all(*ops_[k], s, rows, weights);
    }
    for (int64_t k = tail_; k < static_cast<int64_t>(ops_.size()); ++k) {
        const Operation& op = *ops_[k];
        const Slot &in = *value_[op.in], &out = *value_[op.out];
        if (op.kind == LINEAR)
            linear_forward(in.at(0), weights + op.weights * SEATS, weights + op.bias * SEATS,
                           out.at(0), samples, in.grid.size(), out.grid.size());
        else
            activate(op.kind == RELU_OP ? RELU : TANH, out.at(0), samples * out.grid.size());
    }
}

// The gradient of the mean cross-entropy with respect to the logits.
inline void Net::loss_gradient(int64_t samples, const I* labels, const V* scales) {
    const Slot &logits = *value_.back(), &gradient = *batched_.back();
    const int64_t classes = logits.grid.size();
    for (int64_t s = 0; s < samples; ++s) {
        const V* z = logits.at(s);
        V* d = gradient.at(s);
        const V top = largest(z, classes);
        V sum = zero();
        for (int64_t c = 0; c < classes; ++c) sum += d[c] = exponential(z[c] - top);
        for (int64_t c = 0; c < classes; ++c) {
            const I hit = labels[s] == splat_int(static_cast<int32_t>(c));
            d[c] = flushed((d[c] / sum - (V)((I)splat(1.0f) & hit)) * scales[s]);
        }
    }
}

// Calls step(j, n, gradients of the parameters j, ..., j + n - 1) for all parameters.
template <class Step>
inline void Net::backward(int64_t samples, Step step) {
    const int64_t count = static_cast<int64_t>(ops_.size());
    for (int64_t k = count - 1; k >= tail_; --k) {
        const Operation& op = *ops_[k];
        const Slot &in = *value_[op.in], &out = *value_[op.out];
        V* dy = batched_[op.out]->at(0);
        if (op.kind == LINEAR) {
            const int64_t inputs = in.grid.size(), outputs = out.grid.size();
            if (k > first_)  // before the weights change
                linear_backward_data(dy, weights_.get() + op.weights * SEATS,
                                     batched_[op.in]->at(0), samples, inputs, outputs);
            linear_backward_weights(dy, in.at(0), samples, inputs, outputs,
                                    [=, from = op.weights](int64_t j, int n, const V* gradients) {
                                        step(from + j, n, gradients);
                                    });
        } else if (k > first_) {
            const Grid all{samples, out.grid.size(), 1, 0, 0};
            activate_backward(op.kind == RELU_OP ? RELU : TANH, all, out.at(0), all, dy);
        }
    }
    if (first_ >= tail_) return;
    for (int64_t j = 0; j < image_sums_; ++j) image_gradient_[j] = zero();
    for (int64_t s = 0; s < samples; s += together_)
        backward_images(s, std::min(together_, samples - s));
    step_images(step);
}

template <class Step>
inline void Net::step_images(Step step) {
    for (int64_t k = first_; k < tail_; ++k) {
        const Operation& op = *ops_[k];
        for (int64_t j = op.weights; j < op.end; j += LANES) {
            const int count = static_cast<int>(at_most_eight(op.end - j));
            if (op.kind == BARE_CONV)
                step.apply(j, count, loaded(bare_gradient_.get() + j * SEATS));
            else
                step(j, count, image_gradient_.get() + op.sums + j - op.weights);
        }
    }
}

inline void Net::backward_images(int64_t sample, int64_t rows) {
    const Operation& last = *ops_[tail_ - 1];
    const Grid &from = value_[last.out]->grid, &to = gradient_[last.out]->grid;
    for (int64_t row = 0; row < rows; ++row) {
        const V* source = batched_[last.out]->at(sample + row);
        for (int64_t c = 0; c < from.c; ++c)
            for (int64_t r = 0; r < from.h; ++r)
                std::memcpy(static_cast<void*>(gradient_[last.out]->at(row) + to.row(c, r)),
                            source + from.row(c, r), sizeof(V) * from.w);
    }
    for (int64_t k = tail_ - 1; k >= first_; --k) backward_all(*ops_[k], sample, rows);
}

inline void Net::one_backward(Operation& op, int64_t sample, int64_t row) {
    const Slot &in = *value_[op.in], &out = *value_[op.out];
    const Slot &d_in = *gradient_[op.in], &d_out = *gradient_[op.out];
    V *dx = d_in.at(row), *dy = d_out.at(row);
    if (op.kind == CONV) {
        const V* start = dy + d_out.grid.origin();
        V* gradient = image_gradient_.get();
        conv_backward_weights(op.conv, start, in.at(sample) + op.start, gradient + op.sums,
                              gradient + op.sums + op.bias - op.weights);
        if (&op == ops_[first_].get()) return;
        const float* w = weights_.get() + op.weights * SEATS;
        V* target = dx + d_in.grid.origin();
        if (op.conv.kw == 5)
            conv_backward_data<5>(op.conv, start, w, target);
        else if (op.conv.kw == 3)
            conv_backward_data<3>(op.conv, start, w, target);
        else
            conv_backward_data<0>(op.conv, start, w, target);
    } else if (op.kind == MAX_POOL) {
        const I* which = op.which.get() + sample * out.grid.c * out.grid.h * out.grid.w;
        (op.pair() ? max_backward<2> : max_backward<0>)(op.window(), d_in.grid, dx, d_out.grid, dy,
                                                        out.grid, out.at(sample), which,
                                                        op.argument[4] != 0);
    } else if (op.kind == AVG_POOL) {
        (op.pair() ? mean_backward<2> : mean_backward<0>)(op.window(), d_in.grid, dx, d_out.grid,
                                                          dy);
    } else {
        activate_backward(op.kind == RELU_OP ? RELU : TANH, out.grid, out.at(sample), d_out.grid,
                          dy);
    }
}

// Samples of every lane, or more if there is room.
constexpr int64_t SCORED_AT_ONCE = 16;

// Scores samples with the same weights in every lane, one sample per lane.
inline void Net::score(const float* x, const int64_t* y, int64_t samples, float* losses,
                       uint8_t* right) {
    const int64_t needed = parts(samples, W);
    // Nets that take samples together keep all values of each, of which there are many.
    reserve(std::min(needed, together_ > 1 ? together_ : SCORED_AT_ONCE));
    images_.resize(static_cast<size_t>(capacity_ * W));
    for (int64_t from = 0; from < samples; from += capacity_ * W) {
        const int64_t rest = samples - from, wanted = parts(rest, W);
        const int64_t rows = wanted < capacity_ ? wanted : capacity_;
        for (int64_t i = 0; i < rows * W; ++i)
            images_[i] = i < rest ? x + (from + i) * features_ : nothing_.get();
        forward(rows, scored_.get(), images_.data());
        for (int64_t i = 0; i < rows * W && i < rest; ++i) {
            const V* z = value_.back()->at(i / W);
            const Score score = score_of(z, static_cast<int>(i % W), classes(), y[from + i]);
            losses[from + i] = score.loss;
            right[from + i] = score.right;
        }
    }
}

}  // namespace
