// Sizes that cannot overflow, and the checks of a plan: it may come from another machine.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "api.hpp"

namespace {

// No number of a plan and no image may be larger, so that places fit into 32 bits.
constexpr int64_t LARGEST = INT32_MAX;

inline void require(bool right, Status otherwise) {
    if (!right) throw Refusal{otherwise};
}

inline int64_t times(int64_t a, int64_t b) {
    int64_t product;
    require(!__builtin_mul_overflow(a, b, &product), TOO_LARGE);
    return product;
}

inline int64_t plus(int64_t a, int64_t b) {
    int64_t sum;
    require(!__builtin_add_overflow(a, b, &sum), TOO_LARGE);
    return sum;
}

// Half of the whole numbers cannot be added to `by - 1`; this divides and rounds up without it.
inline int64_t parts(int64_t n, int64_t by) { return n / by + (n % by != 0); }

inline void require_size(int64_t n) { require(n >= 1 && n <= LARGEST, WRONG_PLAN); }

// The size of an image between two operations, while a plan is checked.
struct Image {
    int64_t c, h, w;

    void check() const {
        for (const int64_t n : {c, h, w}) require_size(n);
        require(times(times(c, h), w) <= LARGEST, TOO_LARGE);
    }
};

inline Image after_conv(const Image& x, const int64_t* a) {
    for (int i = 0; i < 3; ++i) require_size(a[i]);
    // Wider padding would put rows of the output where no tap reaches the image.
    require(0 <= a[3] && a[3] < a[1] && 0 <= a[4] && a[4] < a[2], WRONG_PLAN);
    return Image{a[0], x.h + 2 * a[3] - a[1] + 1, x.w + 2 * a[4] - a[2] + 1};
}

inline Image after_pool(const Image& x, const int64_t* a) {
    for (int i = 0; i < 4; ++i) require_size(a[i]);
    require(a[0] <= x.h && a[1] <= x.w, WRONG_PLAN);
    return Image{x.c, (x.h - a[0]) / a[2] + 1, (x.w - a[1]) / a[3] + 1};
}

// Refuses what the kernels cannot compute, so that nobody has to check it again.
inline void check_plan(const int64_t* plan, int64_t words) {
    require(plan != nullptr && words >= HEADER, WRONG_PLAN);
    const int64_t classes = plan[3], count = plan[4];
    require_size(classes);
    require_size(count);
    require(words == HEADER + count * WORDS, WRONG_PLAN);
    Image x{plan[0], plan[1], plan[2]};
    x.check();
    bool trains = false, flat = false, activated = false;
    for (int64_t k = 0; k < count; ++k) {
        const int64_t *word = plan + HEADER + k * WORDS, kind = word[0], *a = word + 1;
        const bool activates = kind == RELU_OP || kind == TANH_OP;
        if (kind == CONV) {
            x = after_conv(x, a);
        } else if (kind == MAX_POOL || kind == AVG_POOL) {
            x = after_pool(x, a);
        } else if (kind == LINEAR) {
            x = Image{a[0], 1, 1};
        } else {
            // They work in place, so the first one's values would be lost.
            require(activates && !activated, WRONG_PLAN);
        }
        require(!flat || activates || kind == LINEAR, WRONG_PLAN);
        x.check();
        trains |= kind == CONV || kind == LINEAR;
        flat |= kind == LINEAR;
        activated = activates;
    }
    require(trains && x.c * x.h * x.w == classes, WRONG_PLAN);
}

}  // namespace
