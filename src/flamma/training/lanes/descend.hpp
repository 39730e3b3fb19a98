// The step of SGD: at once with every gradient, or after all of them where they are clipped.
#pragma once

#include "net.hpp"

namespace {

// v <- m v + gradient + correction + proximal (w - received) + decay w; w <- w - rate v, for at
// most eight parameters. It is a copy of what the net knows, which stays in registers since no
// store can change it. Plain is without momentum, correction, proximal term and weight decay.
template <bool Plain>
struct Sgd {
    float *weights, *velocity;
    const float *received, *correction;
    V rate, momentum, proximal, decay;
    bool any_momentum, any_proximal, any_correction, any_decay;

    LANES_INLINE void operator()(int64_t j, int count, const V* gradients) const {
        apply(j, count, summed(gradients));
    }

    LANES_INLINE void apply(int64_t j, int count, V gradient) const {
        const int64_t at = j * SEATS;
        const V w = loaded(weights + at);
        const bool moving = !Plain && any_momentum;
        if (moving) gradient = fma(momentum, loaded(velocity + at), gradient);
        if (!Plain && any_correction) gradient += loaded(correction + at);
        if (!Plain && any_proximal)
            gradient = fma(proximal, w - loaded(received + at), gradient);
        if (!Plain && any_decay) gradient = fma(decay, w, gradient);
        if (moving) gradient = flushed(gradient);
        const V next = fma(-rate, gradient, w);
        if (count == LANES) {
            store(weights + at, next);
            if (moving) store(velocity + at, gradient);
        } else {  // what follows belongs to others
            std::memcpy(weights + at, &next, sizeof(float) * count * SEATS);
            if (moving) std::memcpy(velocity + at, &gradient, sizeof(float) * count * SEATS);
        }
    }
};

// Keeps the gradients of at most eight parameters for later.
struct Collect {
    float* to;

    LANES_INLINE void operator()(int64_t j, int count, const V* gradients) const {
        apply(j, count, summed(gradients));
    }

    LANES_INLINE void apply(int64_t j, int count, V gradient) const {
        if (count == LANES)
            store(to + j * SEATS, gradient);
        else
            std::memcpy(to + j * SEATS, &gradient, sizeof(float) * count * SEATS);
    }
};

template <bool Plain>
inline Sgd<Plain> Net::sgd() const {
    return Sgd<Plain>{weights_.get(),  velocity_.get(), received_.get(), correction_.get(), now_,
                      momentum_,       proximal_,       decay_,          any_momentum_,
                      any_proximal_,   any_correction_, any_decay_};
}

template <bool Plain>
inline void Net::descend(int64_t samples) {
    backward(samples, sgd<Plain>());
}

// The step waits for the norm of the whole gradient.
inline void Net::descend_clipped(int64_t samples) {
    float* gradient = whole_gradient_.get();
    backward(samples, Collect{gradient});
    const V factors = clip_factors();
    const Sgd<false> step = sgd<false>();
    for (int64_t j = 0; j < params_; j += LANES) {
        const int64_t rest = params_ - j;
        step.apply(j, static_cast<int>(rest < LANES ? rest : LANES),
                   loaded(gradient + j * SEATS) * factors);
    }
}

// What brings each client's gradient down to the norm that it may have; 1 where it is no longer.
// Squares are exact in double precision, and are added up in eight sums whatever the width.
inline V Net::clip_factors() const {
    V factors = splat(1.0f);
    for (int seat = 0; seat < SEATS; ++seat) {
        double sums[LANES] = {};
        for (int64_t j = 0; j < params_; ++j) {
            const double one = whole_gradient_[j * SEATS + seat];
            sums[j % LANES] += one * one;
        }
        const double norm = std::sqrt(((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                                      ((sums[4] + sums[5]) + (sums[6] + sums[7])));
        if (norm > clip_[seat])
            for (int lane = seat; lane < W; lane += SEATS)
                factors[lane] = static_cast<float>(clip_[seat] / norm);
    }
    return factors;
}

}  // namespace
