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

Machine* machine(void* net) { return static_cast<Machine*>(net); }

}  // namespace

extern "C" {

// How many lanes an instruction set has: 0 is portable, 1 AVX2, 2 AVX-512. 0 if it cannot be used.
int lanes_width(int set) {
    const Variant* variant = variant_of(set);
    return variant ? variant->width : 0;
}

// Null if there is not enough memory. `share` is a power of two, at most the width.
void* lanes_new(int set, const int64_t* plan, int64_t batch, int share) {
    const Variant* variant = variant_of(set);
    try {
        return variant ? variant->make(plan, batch, share) : nullptr;
    } catch (const std::exception&) {
        return nullptr;
    }
}

void lanes_delete(void* net) { delete machine(net); }

int64_t lanes_params(void* net) { return machine(net)->params(); }

void lanes_receive(void* net, const float* params) { machine(net)->receive(params); }

void lanes_put(void* net, int seat, const float* params, float learning_rate, float momentum,
               float proximal) {
    machine(net)->put(seat, params, Rates{learning_rate, momentum, proximal});
}

void lanes_take(void* net, int seat, float* params) { machine(net)->take(seat, params); }

int64_t lanes_run(void* net, Seat* seats, int64_t steps) {
    const FlushDenormals guard;
    return machine(net)->run(seats, steps);
}

void lanes_load(void* net, const float* params) { machine(net)->load(params); }

void lanes_score(void* net, const float* x, const int64_t* y, int64_t samples, float* losses,
                 uint8_t* right) {
    const FlushDenormals guard;
    machine(net)->score(x, y, samples, losses, right);
}

int64_t lanes_peak(int set, int64_t rounds, float* sink) {
    const Variant* variant = variant_of(set);
    return variant ? variant->peak(rounds, sink) : 0;
}
}
