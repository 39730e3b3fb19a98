// How a net is made from its plan, and how weights get in and out.
#pragma once

#include "net.hpp"

namespace {

inline Net::Net(const Blueprint& blueprint) : memory_(blueprint.memory) {
    require(memory_ >= 0, WRONG_ARGUMENT);
    PlanCheck(blueprint.plan, blueprint.words);
    shape(blueprint.plan);
    set_blocked();
    allocate();
    set_taps();
}

inline int64_t Net::slot(const Image& image) {
    for (auto* slots : {&value_, &gradient_, &batched_}) {
        slots->push_back(std::make_shared<Slot>());
        slots->back()->grid = Grid{image.c, image.h, image.w, 0, 0};
    }
    return static_cast<int64_t>(value_.size()) - 1;
}

inline void Net::shape(const int64_t* plan) {
    slot(Image{plan[0], plan[1], plan[2]});
    features_ = plan[0] * plan[1] * plan[2];
    const int64_t count = plan[4];
    tail_ = first_ = count;
    for (int64_t k = 0; k < count; ++k) add(plan + HEADER + k * WORDS);
    // Gradients go back from the last operation to the first.
    std::vector<bool> begun(value_.size());
    for (auto op = ops_.rbegin(); op != ops_.rend(); ++op) {
        if ((*op)->kind == RECALL) continue;
        (*op)->more = begun[(*op)->in];
        begun[(*op)->in] = true;
        if ((*op)->joined) begun[(*op)->joined] = true;
    }
}

inline void Net::add(const int64_t* words) {
    const int64_t k = static_cast<int64_t>(ops_.size());
    const int64_t at = ops_.empty() ? 0 : ops_.back()->out;
    ops_.push_back(std::make_unique<Operation>());
    Operation& op = *ops_.back();
    op.kind = words[0];
    for (int i = 0; i + 1 < WORDS; ++i) op.argument[i] = words[i + 1];
    const int64_t* a = op.argument;
    op.in = op.out = at;
    const Grid x = value_[at]->grid;
    op.weights = op.bias = params_;
    op.sums = image_sums_;
    if (op.has_params() && k < first_) first_ = k;
    if (op.kind == CONV) {
        value_[at]->grid.widen(a[3], a[4]);
        op.out = slot(after_conv(Image{x.c, x.h, x.w}, a));
        if (k > first_) gradient_[op.out]->grid.widen(0, a[2] - 1);
        op.bias = plus(params_, times(times(a[0], x.c), times(a[1], a[2])));
        params_ = plus(op.bias, a[0]);
    } else if (op.kind == BARE_CONV) {
        add_bare(op);
    } else if (op.kind == GROUP_NORM) {
        op.joined = a[3] ? ops_[a[3] - 1]->out : 0;
        op.out = slot(Image{x.c, x.h, x.w});
        op.bias = plus(params_, x.c);
        params_ = plus(op.bias, x.c);
    } else if (op.kind == RECALL) {
        op.out = a[0] ? ops_[a[0] - 1]->out : 0;
    } else if (op.kind == MAX_POOL || op.kind == AVG_POOL) {
        op.out = slot(after_pool(Image{x.c, x.h, x.w}, a));
    } else if (op.kind == LINEAR) {
        if (k < tail_) tail_ = k;
        op.out = slot(Image{a[0], 1, 1});
        op.bias = plus(params_, times(a[0], x.c * x.h * x.w));
        params_ = plus(op.bias, a[0]);
    }
    op.end = params_;
    if (op.kind == CONV || op.kind == GROUP_NORM) image_sums_ = plus(image_sums_, op.end - op.weights);
}

inline void Net::add_bare(Operation& op) {
    const int64_t* a = op.argument;
    Grid& x = value_[op.in]->grid;
    op.out = slot(after_bare_conv(Image{x.c, x.h, x.w}, a));
    const bool tiles = a[1] == 3 && a[2] == 3 && a[3] == 1 && a[4] == 1 && a[5] == 1 && a[6] == 1;
    op.bare.method = !tiles ? DIRECT : x.h == 2 && x.w == 2 ? BY_TWOS : BY_FOURS;
    op.end = params_ = plus(params_, times(times(a[0], x.c), times(a[1], a[2])));
    if (op.bare.method != BY_FOURS) return;
    const int64_t down = Winograd<Fours>::beyond(x.h), across = Winograd<Fours>::beyond(x.w);
    x.widen(1 + down, 1 + across);
    gradient_[op.out]->grid.widen(down, across);
}

// Tells the operations that take several samples at once about their grids.
inline void Net::set_blocked() {
    for (auto& op : ops_) {
        if (!op->blocked()) continue;
        together_ = ROWS;
        const Grid &x = value_[op->in]->grid, &y = value_[op->out]->grid;
        const Grid &dx = gradient_[op->in]->grid, &dy = gradient_[op->out]->grid;
        const int64_t* a = op->argument;
        if (op->kind == BARE_CONV)
            op->bare = Bare{x, y, dx, dy, a[1], a[2], a[3], a[4], a[5], a[6], op->bare.method};
        else
            op->norm = Norm{x, y, dx, dy, a[0], float_of(a[1])};
    }
}

// Calls f with every block whose size does not depend on the mini-batches, and that size.
template <class F>
void Net::fixed_blocks(F f) {
    // With room for the rest of the last vector.
    for (auto* block : {&weights_, &velocity_, &received_, &correction_, &scored_})
        f(*block, plus(times(params_, SEATS), W));
    f(nothing_, features_);
    f(image_gradient_, plus(image_sums_, LANES));
    Needs most{};
    for (auto& op : ops_) {
        if (op->kind == CONV)
            f(op->taps, times(value_[op->in]->grid.c, op->argument[1] * op->argument[2]));
        if (op->kind != BARE_CONV) continue;
        const Needs needs = needs_of(op->bare);
        for (int i = 0; i < 6; ++i) most.scratch[i] = std::max(most.scratch[i], needs.scratch[i]);
        most.transformed = op->end;
        f(op->transformed, needs.transformed);
    }
    for (int i = 0; i < 6; ++i) f(scratch_[i], most.scratch[i]);
    f(bare_gradient_, plus(times(most.transformed, SEATS), W));
    for (Slot* slot : gradients_) f(slot->data, times(slot->grid.size(), together_));
    for (auto& slot : value_)
        if (!slot->each) f(slot->data, slot->grid.size());
}

// Calls f with every block that grows with the samples of a lane, and its size for so many.
template <class F>
void Net::sample_blocks(int64_t samples, F f) {
    for (auto* slots : {&value_, &batched_})
        for (auto& slot : *slots)
            if (slot->each) f(slot->data, times(slot->grid.size(), samples));
    for (auto& op : ops_) {
        if (op->kind == MAX_POOL) f(op->which, times(value_[op->out]->grid.size(), samples));
        if (op->kind == GROUP_NORM) f(op->kept, times(2 * op->norm.groups, samples));
    }
    f(scales_, samples);
    f(labels_, samples);
}

inline void Net::allocate() {
    const int64_t count = static_cast<int64_t>(ops_.size());
    border_ = tail_ < count ? ops_[tail_]->in : ops_.back()->out;
    for (auto& op : ops_) {
        // Kept for the backward pass: the inputs of weights and the outputs of activations.
        const bool activates = op->kind == RELU_OP || op->kind == TANH_OP;
        if (op->has_params() || activates) value_[op->in]->each = true;
        if (op->kind == MAX_POOL) value_[op->out]->each = true;
    }
    if (together_ > 1)
        for (int64_t i = 0; i < border_; ++i) value_[i]->each = gradient_[i]->each = true;
    gradient_[border_]->each = together_ > 1;
    if (together_ > 1) share_gradients();
    for (int64_t i = 0; i <= border_; ++i) gradients_.push_back(gradient_[i].get());
    std::sort(gradients_.begin(), gradients_.end());
    gradients_.erase(std::unique(gradients_.begin(), gradients_.end()), gradients_.end());
    for (int64_t i = border_; i < static_cast<int64_t>(value_.size()); ++i)
        value_[i]->each = batched_[i]->each = true;
    for (auto* slots : {&value_, &gradient_})
        for (auto& slot : *slots) slot->grid.checked_size();
    fixed_blocks([this](auto& block, int64_t size) { fixed_ = plus(fixed_, block.bytes(size)); });
    require(fixed_ <= memory_, TOO_LARGE);
    fixed_blocks([](auto& block, int64_t size) { block.resize(size); });
    // Unlike 0, this changes no bit of what it is added to.
    for (int64_t j = 0; j < params_ * SEATS; ++j) correction_[j] = -0.0f;
    for (Objective& objective : objective_) objective = Objective{INFINITY, 0.0};
    for (double& clip : clip_) clip = INFINITY;
}

inline void Net::set_taps() {
    for (auto& op : ops_) {
        if (op->kind != CONV) continue;
        const Grid &x = value_[op->in]->grid, &y = value_[op->out]->grid;
        const Grid &dx = gradient_[op->in]->grid, &dy = gradient_[op->out]->grid;
        const int64_t* a = op->argument;
        op->start = x.origin() - a[3] * x.pitch() - a[4];
        for (int64_t c = 0, tap = 0; c < x.c; ++c)
            for (int64_t ky = 0; ky < a[1]; ++ky)
                for (int64_t kx = 0; kx < a[2]; ++kx)
                    op->taps[tap++] = c * x.plane() + ky * x.pitch() + kx;
        op->conv = Conv{x.c,        x.h,        x.w,        y.c,        a[1],      a[2],
                        a[3],       a[4],       y.h,        y.w,        x.pitch(), x.plane(),
                        y.pitch(),  y.plane(),  dx.pitch(), dx.plane(), dy.pitch(),
                        dy.plane(), op->taps.get()};
    }
}

// Lets gradients take turns in the same memory, which then stays in the cache. Borders stay zero as
// long as the grids are the same. Those of what is pooled stay alone, because cells that no window
// covers are never written.
inline void Net::share_gradients() {
    std::vector<bool> begun(value_.size());
    std::vector<std::shared_ptr<Slot>> unused;
    for (const auto& op : ops_)
        if (op->kind == MAX_POOL || op->kind == AVG_POOL) begun[op->in] = true;
    const std::vector<bool> alone = begun;
    begun[border_] = true;
    for (int64_t k = tail_ - 1; k >= first_; --k) {
        const Operation& op = *ops_[k];
        if (op.kind == RECALL || op.in == op.out) continue;
        for (const int64_t slot : {op.joined, op.in}) {
            if (begun[slot] || (slot == 0 && slot != op.in)) continue;
            begun[slot] = true;
            const auto same = std::find_if(unused.begin(), unused.end(), [&](const auto& other) {
                return other->grid == gradient_[slot]->grid;
            });
            if (same == unused.end()) continue;
            gradient_[slot] = *same;
            unused.erase(same);
        }
        if (!alone[op.out]) unused.push_back(gradient_[op.out]);
    }
}

// Makes room for so many samples of every lane. Only samples that exist are asked for, so a
// mini-batch larger than the data takes no more memory than the data do.
inline void Net::reserve(int64_t samples) {
    if (samples <= capacity_) return;
    int64_t bytes = fixed_;
    sample_blocks(samples,
                  [&](auto& block, int64_t size) { bytes = plus(bytes, block.bytes(size)); });
    require(bytes <= memory_, TOO_LARGE);
    capacity_ = 0;  // in case that memory runs out half way
    sample_blocks(samples, [](auto& block, int64_t size) { block.resize(size); });
    capacity_ = samples;
}

// Makes room for the gradient of a whole net, which only those need who clip it.
inline void Net::reserve_gradient() {
    if (whole_gradient_.get() != nullptr) return;
    const int64_t count = plus(times(params_, SEATS), W);
    const int64_t bytes = plus(fixed_, Block<float>::bytes(count));
    require(bytes <= memory_, TOO_LARGE);
    whole_gradient_.resize(count);
    fixed_ = bytes;
}

// Weights that are the same for all clients.
inline void spread(const float* params, int64_t count, float* to) {
    for (int64_t j = 0; j < count; ++j)
        for (int seat = 0; seat < SEATS; ++seat) to[j * SEATS + seat] = params[j];
}

inline void Net::receive(const float* params) {
    spread(params, params_, received_.get());
    for (const float*& centre : centre_) centre = params;
}

inline void Net::load(const float* params) { spread(params, params_, scored_.get()); }

inline void Net::put(int seat, const Seating& client) {
    const auto fill = [=](const Block<float>& block, const float* from, float otherwise) {
        for (int64_t j = 0; j < params_; ++j)
            block[j * SEATS + seat] = from ? from[j] : otherwise;
    };
    if (client.clip < INFINITY) reserve_gradient();
    fill(weights_, client.weights, 0.0f);
    objective_[seat] = client.objective;
    clip_[seat] = client.clip;
    any_momentum_ = any_proximal_ = any_correction_ = any_decay_ = any_clip_ = false;
    for (int lane = 0; lane < W; ++lane) {
        if (lane % SEATS == seat) {
            rate_[lane] = client.learning_rate;
            momentum_[lane] = client.momentum;
            proximal_[lane] = client.proximal;
            decay_[lane] = client.weight_decay;
        }
        any_momentum_ |= momentum_[lane] != 0.0f;
        any_proximal_ |= proximal_[lane] != 0.0f;
        any_decay_ |= decay_[lane] != 0.0f;
    }
    for (const double clip : clip_) any_clip_ |= clip < INFINITY;
    if (client.proximal != 0.0f && centre_[seat] != client.received)
        fill(received_, centre_[seat] = client.received, 0.0f);
    if (client.correction || corrected_[seat]) fill(correction_, client.correction, -0.0f);
    corrected_[seat] = client.correction != nullptr;
    for (const bool corrected : corrected_) any_correction_ |= corrected;
    had_momentum_ |= any_momentum_;
    if (had_momentum_) fill(velocity_, client.velocity, 0.0f);
}

inline void Net::take(int seat, float* params, float* velocity) const {
    for (int64_t j = 0; j < params_; ++j) params[j] = weights_[j * SEATS + seat];
    if (velocity)
        for (int64_t j = 0; j < params_; ++j) velocity[j] = velocity_[j * SEATS + seat];
}

}  // namespace
