// The loss of a sample, with an exponential and a logarithm of our own: those of the system's
// library differ between systems and processors.
#pragma once

#include <cmath>

#include "vec.hpp"

namespace {

constexpr double LN2_HIGH = 0x1.62e42fefa3800p-1, LN2_LOW = 0x1.ef35793c76730p-45;

// e^x for x <= 0, to about one unit in the last place; NaN stays NaN.
inline double exp_of_negative(double x) {
    if (x < -708.0) return 0.0;
    const double magic = 0x1.8p52;  // adding it rounds to a whole number
    const double whole = (x * 0x1.71547652b82fep+0 + magic) - magic;
    const double r = (x - whole * LN2_HIGH) - whole * LN2_LOW;
    double p = 1.0;  // the series of e^r, |r| <= ln 2 / 2, from its end
    for (int k = 14; k > 0; --k) p = 1.0 + r * p / k;
    return std::ldexp(p, x == x ? static_cast<int>(whole) : 0);
}

// ln x for finite x >= 1, to about two units in the last place; NaN stays NaN.
inline double log_of_at_least_one(double x) {
    int exponent = 0;
    if (x != x) return x;
    double m = std::frexp(x, &exponent);  // from 1/2 to 1
    if (m < 0x1.6a09e667f3bcdp-1) m *= 2, --exponent;
    const double s = (m - 1) / (m + 1), square = s * s;  // ln m = 2 artanh s
    double p = 1.0 / 23;
    for (int k = 21; k > 0; k -= 2) p = 1.0 / k + square * p;
    return exponent * LN2_HIGH + (2 * s * p + exponent * LN2_LOW);
}

// From so little below its bound on, a loss does not increase its own weight any more: Python's
// BOUND_MARGIN.
constexpr double BOUND_MARGIN = 0.2;

// Replaces the losses of a mini-batch by the weights of their gradients in that of an objective.
// They are added up in the order of the samples.
inline void weigh(const Objective& objective, double* losses, int64_t count) {
    double sum = 0.0;
    if (const double tilt = objective.tilt; tilt != 0.0) {
        double extreme = losses[0];  // what has the largest weight: no exponent is above 0
        for (int64_t i = 1; i < count; ++i)
            if (tilt > 0.0 ? losses[i] > extreme : losses[i] < extreme) extreme = losses[i];
        for (int64_t i = 0; i < count; ++i)
            sum += losses[i] = exp_of_negative(tilt * (losses[i] - extreme));
        for (int64_t i = 0; i < count; ++i) losses[i] /= sum;
        return;
    }
    for (int64_t i = 0; i < count; ++i) sum += losses[i];
    const double bound = objective.loss_bound, room = bound - sum / static_cast<double>(count);
    const double factor = bound / (room > BOUND_MARGIN ? room : BOUND_MARGIN);
    for (int64_t i = 0; i < count; ++i) losses[i] = factor / static_cast<double>(count);
}

// The largest of the logits in each lane.
LANES_INLINE V largest(const V* z, int64_t classes) {
    V top = z[0];
    for (int64_t c = 1; c < classes; ++c) top = select(z[c] > top, z[c], top);
    return top;
}

struct Score {
    float loss;
    bool right;
};

// The cross-entropy of the logits in one lane, and whether the largest is the label's.
inline Score score_of(const V* z, int lane, int64_t classes, int64_t label) {
    int64_t best = 0;
    for (int64_t c = 1; c < classes; ++c)
        if (z[c][lane] > z[best][lane]) best = c;
    double sum = 0.0;
    for (int64_t c = 0; c < classes; ++c)
        sum += exp_of_negative(static_cast<double>(z[c][lane]) - z[best][lane]);
    const double loss = log_of_at_least_one(sum) + z[best][lane] - z[label][lane];
    return Score{static_cast<float>(loss), best == label && !std::isnan(loss)};
}

}  // namespace
