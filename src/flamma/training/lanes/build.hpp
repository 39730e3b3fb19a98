// How a net is made from its plan, and how weights get in and out.
#pragma once

#include "net.hpp"

namespace {

inline Net::Net(const int64_t* plan, int64_t batch, int share)
    : batch_(batch), share_(share), capacity_((batch + share - 1) / share) {
    if (capacity_ < 16) capacity_ = 16;  // samples per lane that are scored at once
    shape(plan);
    allocate();
}

inline void Net::shape(const int64_t* plan) {
    const auto slot = [this](int64_t c, int64_t h, int64_t w) {
        value_.push_back(std::make_unique<Slot>());
        gradient_.push_back(std::make_unique<Slot>());
        batched_.push_back(std::make_unique<Slot>());
        for (auto* slots : {&value_, &gradient_, &batched_})
            slots->back()->grid = Grid{c, h, w, 0, 0};
        return static_cast<int64_t>(value_.size()) - 1;
    };
    int64_t at = slot(plan[0], plan[1], plan[2]);
    const int64_t count = plan[4];
    tail_ = first_ = count;
    for (int64_t k = 0; k < count; ++k) {
        ops_.push_back(std::make_unique<Operation>());
        Operation& op = *ops_.back();
        const int64_t* words = plan + HEADER + k * WORDS;
        op.kind = words[0];
        for (int i = 0; i + 1 < WORDS; ++i) op.argument[i] = words[i + 1];
        const int64_t* a = op.argument;
        op.in = at;
        const Grid x = value_[at]->grid;
        if (op.has_params() && first_ == count) first_ = k;
        if (op.kind == CONV) {
            value_[at]->grid.ph = a[3];
            value_[at]->grid.pw = a[4];
            at = slot(a[0], x.h + 2 * a[3] - a[1] + 1, x.w + 2 * a[4] - a[2] + 1);
            if (k > first_) gradient_[at]->grid.pw = a[2] - 1;
            op.weights = params_;
            op.bias = params_ + a[0] * x.c * a[1] * a[2];
            params_ = op.bias + a[0];
        } else if (op.kind == MAX_POOL || op.kind == AVG_POOL) {
            at = slot(x.c, (x.h - a[0]) / a[2] + 1, (x.w - a[1]) / a[3] + 1);
        } else if (op.kind == LINEAR) {
            if (tail_ == count) tail_ = k;
            at = slot(a[0], 1, 1);
            op.weights = params_;
            op.bias = params_ + a[0] * x.c * x.h * x.w;
            params_ = op.bias + a[0];
        }
        op.out = at;
    }
}

inline void Net::allocate() {
    const int64_t count = static_cast<int64_t>(ops_.size());
    int64_t depth = DEPTH > capacity_ ? DEPTH : capacity_;
    for (int64_t k = 0; k < count; ++k) {
        Operation& op = *ops_[k];
        // Kept for the backward pass: the inputs of weights and the outputs of activations.
        const bool activates = op.kind == RELU_OP || op.kind == TANH_OP;
        if (op.has_params() || activates) value_[op.in]->each = true;
        if (op.kind == MAX_POOL) {
            value_[op.out]->each = true;
            op.which.resize(value_[op.out]->grid.size() * capacity_);
        }
        if (op.kind == CONV) {
            const Grid &x = value_[op.in]->grid, &y = value_[op.out]->grid;
            const Grid &dx = gradient_[op.in]->grid, &dy = gradient_[op.out]->grid;
            const int64_t* a = op.argument;
            op.taps.resize(x.c * a[1] * a[2]);
            for (int64_t c = 0, tap = 0; c < x.c; ++c)
                for (int64_t ky = 0; ky < a[1]; ++ky)
                    for (int64_t kx = 0; kx < a[2]; ++kx)
                        op.taps[tap++] = c * x.plane() + ky * x.pitch() + kx;
            op.conv = Conv{x.c,        x.h,        x.w,        y.c,        a[1],      a[2],
                           a[3],       a[4],       y.h,        y.w,        x.pitch(), x.plane(),
                           y.pitch(),  y.plane(),  dx.pitch(), dx.plane(), dy.pitch(),
                           dy.plane(), op.taps.get()};
        }
    }
    const int64_t border = tail_ < count ? ops_[tail_]->in : ops_.back()->out;
    for (int64_t i = 0; i < static_cast<int64_t>(value_.size()); ++i) {
        if (i >= border) value_[i]->each = batched_[i]->each = true;
        value_[i]->make(capacity_);
        if (i <= border) gradient_[i]->make(1);
        if (i >= border) batched_[i]->make(capacity_);
    }
    for (auto* block : {&weights_, &velocity_, &scored_}) block->resize(params_);
    image_gradient_.resize(tail_ < count ? ops_[tail_]->weights : params_);
    received_.resize(params_);
    room_.resize(COLUMNS * depth);
    scales_.resize(capacity_);
    labels_.resize(capacity_);
}

inline void Net::receive(const float* params) {
    std::memcpy(received_.get(), params, sizeof(float) * static_cast<size_t>(params_));
}

inline void Net::put(int seat, const float* params, Rates rates) {
    const int from = seat * share_, to = from + share_;
    for (int64_t j = 0; j < params_; ++j)
        for (int lane = from; lane < to; ++lane) {
            weights_[j][lane] = params[j];
            velocity_[j][lane] = 0.0f;
        }
    for (int lane = from; lane < to; ++lane) {
        rate_[lane] = rates.learning_rate;
        momentum_[lane] = rates.momentum;
        proximal_[lane] = rates.proximal;
    }
    any_momentum_ = any_proximal_ = false;
    for (int l = 0; l < W; ++l) {
        any_momentum_ |= momentum_[l] != 0.0f;
        any_proximal_ |= proximal_[l] != 0.0f;
    }
}

inline void Net::take(int seat, float* params) const {
    for (int64_t j = 0; j < params_; ++j) params[j] = weights_[j][seat * share_];
}

inline void Net::load(const float* params) {
    for (int64_t j = 0; j < params_; ++j) scored_[j] = splat(params[j]);
}

}  // namespace
