// The functions that Python calls; the instruction set is chosen here, when the program runs.
#include <exception>

#include "orders.hpp"
#include "trainer.hpp"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace {

// Plain IEEE arithmetic while in scope: rounding to the nearest, denormals as they are. Another
// library may have told the processor to flush them, and processors differ in how they do it.
class PlainArithmetic {
   public:
#if defined(__SSE2__)
    PlainArithmetic() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80u); }
    ~PlainArithmetic() { _mm_setcsr(before_); }

   private:
    unsigned before_;
#elif defined(__aarch64__)
    PlainArithmetic() {
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
    }
    ~PlainArithmetic() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

   private:
    uint64_t before_;
#else
    PlainArithmetic() {}
#endif
};

const Variant* variant_of(int set) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    if (set == 2 && __builtin_cpu_supports("avx512f")) return avx512_variant();
    if (set == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return avx2_variant();
#endif
    return set == 0 ? portable_variant() : nullptr;
}

Trainer* trainer_of(void* trainer) {
    require(trainer != nullptr, WRONG_ARGUMENT);
    return static_cast<Trainer*>(trainer);
}

// Returns what f returns, or the status of what it throws: no exception may reach Python.
template <class F>
int64_t status_of(F f) {
    try {
        return f();
    } catch (const Refusal& refusal) {
        return refusal.status;
    } catch (const std::exception&) {  // out of memory
        return TOO_LARGE;
    }
}

constexpr int64_t MOST_ROUNDS = int64_t{1} << 40;  // whose operations can be counted

}  // namespace

// Every function but the first three returns a status: negative if it refuses its arguments.
extern "C" {

// Counts the changes of this interface, so that no library of another version is called.
int lanes_interface() { return 9; }

// How many clients an instruction set trains at once: 0 is portable, 1 AVX2, 2 AVX-512. 0 if it
// cannot be used.
int lanes_seats(int set) {
    const Variant* variant = variant_of(set);
    return variant ? variant->seats : 0;
}

void lanes_delete(void* trainer) { delete static_cast<Trainer*>(trainer); }

int64_t lanes_new(int set, const int64_t* plan, int64_t words, int64_t batch, int64_t memory,
                  void** trainer) {
    return status_of([&]() -> int64_t {
        const Variant* variant = variant_of(set);
        if (variant == nullptr || trainer == nullptr) return WRONG_ARGUMENT;
        *trainer = nullptr;
        require(batch >= 1, WRONG_ARGUMENT);
        const Blueprint blueprint{plan, words, memory};
        std::unique_ptr<Machine> wide(variant->make(blueprint)), narrow;
        const Variant* half = variant_of(1);
        if (half && half->seats < variant->seats) narrow.reset(half->make(blueprint));
        *trainer = new Trainer(std::move(wide), std::move(narrow), batch);
        return DONE;
    });
}

// The number of parameters.
int64_t lanes_params(void* trainer) {
    return status_of([&] { return trainer_of(trainer)->params(); });
}

int64_t lanes_begin(void* trainer, const float* params, int64_t count, Job* jobs, int64_t number) {
    return status_of([&] { return trainer_of(trainer)->begin(params, count, jobs, number), DONE; });
}

// The number of jobs that are not done.
int64_t lanes_run(void* trainer, double seconds, double limit) {
    const PlainArithmetic guard;
    return status_of([&] { return trainer_of(trainer)->run(seconds, limit); });
}

// Forgets the jobs, whose memory may then be freed.
int64_t lanes_end(void* trainer) {
    return status_of([&] { return trainer_of(trainer)->end(), DONE; });
}

int64_t lanes_load(void* trainer, const float* params, int64_t count) {
    return status_of([&] { return trainer_of(trainer)->load(params, count), DONE; });
}

int64_t lanes_score(void* trainer, const float* x, int64_t numbers, const int64_t* y,
                    int64_t samples, float* losses, uint8_t* right) {
    const PlainArithmetic guard;
    return status_of([&] {
        return trainer_of(trainer)->score(x, numbers, y, samples, losses, right), DONE;
    });
}

// Draws the shuffled epochs of clients one after the other, each from the stream of its four words.
int64_t lanes_orders(const uint32_t* words, const int64_t* samples, const int64_t* epochs,
                     int64_t number, int64_t* orders, int64_t length) {
    return status_of([&] {
        require(words && samples && epochs && number >= 0, WRONG_ARGUMENT);
        require(orders || length == 0, WRONG_ARGUMENT);
        int64_t needed = 0;
        for (int64_t i = 0; i < number; ++i) {
            require(0 <= samples[i] && samples[i] <= LARGEST && epochs[i] >= 0, WRONG_ARGUMENT);
            needed = plus(needed, times(samples[i], epochs[i]));
        }
        require(needed == length, WRONG_ARGUMENT);
        for (int64_t i = 0; i < number; ++i) {
            draw_orders(words + i * KEY_WORDS, samples[i], epochs[i], orders);
            orders += samples[i] * epochs[i];
        }
        return DONE;
    });
}

int64_t lanes_peak(int set, int64_t rounds, float* sink) {
    const Variant* variant = variant_of(set);
    if (variant == nullptr || sink == nullptr) return WRONG_ARGUMENT;
    return rounds >= 0 && rounds <= MOST_ROUNDS ? variant->peak(rounds, sink) : WRONG_ARGUMENT;
}
}
