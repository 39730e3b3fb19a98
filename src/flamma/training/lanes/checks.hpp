// Sizes that cannot overflow, and the checks of a plan: it may come from another machine.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

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

inline Image after_bare_conv(const Image& x, const int64_t* a) {
    after_conv(x, a);
    require_size(a[5]);
    require_size(a[6]);
    require(times(times(a[1], a[2]), x.c) <= LARGEST, TOO_LARGE);
    const int64_t down = x.h + 2 * a[3] - a[1], across = x.w + 2 * a[4] - a[2];
    require(down >= 0 && across >= 0, WRONG_PLAN);
    return Image{a[0], down / a[5] + 1, across / a[6] + 1};
}

inline float float_of(int64_t bits) {
    const uint32_t word = static_cast<uint32_t>(bits);
    float x;
    std::memcpy(&x, &word, sizeof x);
    return x;
}

inline void check_norm(const Image& x, const int64_t* a) {
    require_size(a[0]);
    require(x.c % a[0] == 0 && a[1] >= 0 && a[1] <= UINT32_MAX, WRONG_PLAN);
    const float epsilon = float_of(a[1]);
    require(epsilon > 0.0f && epsilon < __builtin_inff(), WRONG_PLAN);
}

// What an operation has made, and who reads it, while a plan is checked.
struct Made {
    Image image;
    int64_t reader = 0;  // the kind of the last one, 0 for none

    // The gradients of several readers are added up, which only BARE_CONV does: the last one, whose
    // turn is the first on the way back, may be of any kind.
    void read(int64_t kind) {
        require(reader == 0 || reader == BARE_CONV, WRONG_PLAN);
        reader = kind;
    }
};

// Refuses what the kernels cannot compute, so that nobody has to check it again.
class PlanCheck {
   public:
    PlanCheck(const int64_t* plan, int64_t words) {
        require(plan != nullptr && words >= HEADER, WRONG_PLAN);
        const int64_t classes = plan[3], count = plan[4];
        require_size(classes);
        require_size(count);
        require(words == HEADER + count * WORDS, WRONG_PLAN);
        Made input{{plan[0], plan[1], plan[2]}};
        input.image.check();
        made_.push_back(input);
        for (int64_t k = 0; k < count; ++k) {
            const int64_t* word = plan + HEADER + k * WORDS;
            add(word[0], word + 1);
        }
        const Image& x = made_[now_].image;
        require(!recalled_ && trains_ && x.c * x.h * x.w == classes, WRONG_PLAN);
    }

   private:
    void add(int64_t kind, const int64_t* a) {
        const bool activates = kind == RELU_OP || kind == TANH_OP;
        require(!flat_ || activates || kind == LINEAR, WRONG_PLAN);
        // A path that goes back has weights: identities are joined directly.
        require(!recalled_ || kind == BARE_CONV, WRONG_PLAN);
        recalled_ = kind == RECALL;
        if (activates) {
            // They work in place, so the first one's values would be lost, and so would what
            // another operation has read.
            require(!activated_ && made_[now_].reader == 0, WRONG_PLAN);
            outputs_.push_back(now_);
        } else if (kind == RECALL) {
            now_ = at(a[0]);
            outputs_.push_back(NOTHING);
        } else {
            Made made{after(kind, a)};
            made.image.check();
            made_[now_].read(kind);
            if (kind == GROUP_NORM && a[3] != 0) join(a[3], made.image);
            now_ = made_.size();
            made_.push_back(made);
            outputs_.push_back(now_);
        }
        trains_ |= kind == CONV || kind == LINEAR || kind == BARE_CONV || kind == GROUP_NORM;
        flat_ |= kind == LINEAR;
        activated_ = activates || (kind == GROUP_NORM && a[2] != 0);
    }

    Image after(int64_t kind, const int64_t* a) const {
        const Image& x = made_[now_].image;
        switch (kind) {
            case CONV: return after_conv(x, a);
            case BARE_CONV: return after_bare_conv(x, a);
            case MAX_POOL:
            case AVG_POOL: return after_pool(x, a);
            case LINEAR: return Image{a[0], 1, 1};
            case GROUP_NORM: check_norm(x, a); return x;
            default: throw Refusal{WRONG_PLAN};
        }
    }

    void join(int64_t number, const Image& x) {
        Made& other = made_[at(number)];
        require(other.image.c == x.c && other.image.h == x.h && other.image.w == x.w, WRONG_PLAN);
        other.read(GROUP_NORM);
    }

    // Which of those made is that of an operation, counted from 1.
    size_t at(int64_t number) const {
        const int64_t done = static_cast<int64_t>(outputs_.size());
        require(number >= 0 && number <= done, WRONG_PLAN);
        const size_t place = number == 0 ? 0 : outputs_[static_cast<size_t>(number - 1)];
        require(place != NOTHING, WRONG_PLAN);
        return place;
    }

    static constexpr size_t NOTHING = SIZE_MAX;
    std::vector<Made> made_;
    std::vector<size_t> outputs_;  // which of them each operation has made
    size_t now_ = 0;
    bool trains_ = false, flat_ = false, activated_ = false, recalled_ = false;
};

}  // namespace
