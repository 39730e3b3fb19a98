// The functions that Python calls; the instruction set is chosen here, when the program runs.
#include "api.hpp"

#include <exception>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace {

// Flush denormals to zero while in scope: they do not matter here, and some processors are a
// hundred times slower with them.
class FlushDenormals {
   public:
#if defined(__SSE2__)
    FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
    ~FlushDenormals() { _mm_setcsr(before_); }

   private:
    unsigned before_;
#else
    FlushDenormals() {}
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

Machine* machine(void* net) {
    if (net == nullptr) throw Refusal{WRONG_ARGUMENT};
    return static_cast<Machine*>(net);
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
int lanes_interface() { return 2; }

// How many lanes an instruction set has: 0 is portable, 1 AVX2, 2 AVX-512. 0 if it cannot be used.
int lanes_width(int set) {
    const Variant* variant = variant_of(set);
    return variant ? variant->width : 0;
}

void lanes_delete(void* net) { delete static_cast<Machine*>(net); }

int64_t lanes_new(int set, const int64_t* plan, int64_t words, int64_t batch, int share,
                  int64_t memory, void** net) {
    return status_of([&]() -> int64_t {
        const Variant* variant = variant_of(set);
        if (variant == nullptr || net == nullptr) return WRONG_ARGUMENT;
        *net = nullptr;
        *net = variant->make(Blueprint{plan, words, batch, share, memory});
        return DONE;
    });
}

// The number of parameters.
int64_t lanes_params(void* net) {
    return status_of([&] { return machine(net)->params(); });
}

int64_t lanes_receive(void* net, const float* params, int64_t count) {
    return status_of([&] { return machine(net)->receive(params, count), DONE; });
}

int64_t lanes_put(void* net, int seat, const float* params, int64_t count, float learning_rate,
                  float momentum, float proximal) {
    const Rates rates{learning_rate, momentum, proximal};
    return status_of([&] { return machine(net)->put(seat, params, count, rates), DONE; });
}

int64_t lanes_take(void* net, int seat, float* params, int64_t count) {
    return status_of([&] { return machine(net)->take(seat, params, count), DONE; });
}

// The number of mini-batches done; before it refuses a sample, it may have done some.
int64_t lanes_run(void* net, Seat* seats, int64_t count, int64_t steps) {
    const FlushDenormals guard;
    return status_of([&] { return machine(net)->run(seats, count, steps); });
}

int64_t lanes_load(void* net, const float* params, int64_t count) {
    return status_of([&] { return machine(net)->load(params, count), DONE; });
}

int64_t lanes_score(void* net, const float* x, int64_t numbers, const int64_t* y, int64_t samples,
                    float* losses, uint8_t* right) {
    const FlushDenormals guard;
    return status_of(
        [&] { return machine(net)->score(x, numbers, y, samples, losses, right), DONE; });
}

int64_t lanes_peak(int set, int64_t rounds, float* sink) {
    const Variant* variant = variant_of(set);
    if (variant == nullptr || sink == nullptr) return WRONG_ARGUMENT;
    return rounds >= 0 && rounds <= MOST_ROUNDS ? variant->peak(rounds, sink) : WRONG_ARGUMENT;
}
}
