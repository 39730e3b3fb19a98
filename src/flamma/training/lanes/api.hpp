// The interface of a compiled net, implemented once per instruction set.
#pragma once

#include <cstdint>

// The mini-batches of one client: the samples order[0], ..., order[left - 1] of x and y come next.
// An idle seat has left = 0.
struct Seat {
    const float* x;
    const int64_t* y;
    const int64_t* order;
    int64_t left;
};

// How the client in a seat trains.
struct Rates {
    float learning_rate, momentum, proximal;
};

class Machine {
   public:
    virtual ~Machine() = default;
    virtual int64_t params() const = 0;
    virtual void receive(const float* params) = 0;
    virtual void put(int seat, const float* params, Rates rates) = 0;
    virtual void take(int seat, float* params) const = 0;
    virtual int64_t run(Seat* seats, int64_t steps) = 0;
    virtual void load(const float* params) = 0;
    virtual void score(const float* x, const int64_t* y, int64_t samples, float* losses,
                       uint8_t* right) = 0;
};

// A plan is (channels, height, width, classes, operations), then eight numbers per operation:
// its kind and its arguments.
enum Kind { CONV = 1, MAX_POOL, AVG_POOL, RELU_OP, TANH_OP, LINEAR };
constexpr int HEADER = 5, WORDS = 8;

struct Variant {
    int width;
    // `share` lanes, a power of two, make one seat: each mini-batch is dealt out over them.
    Machine* (*make)(const int64_t* plan, int64_t batch, int share);
    int64_t (*peak)(int64_t rounds, float* sink);  // returns multiplications and sums done
};

// Null if the compiler does not support the instruction set.
const Variant* portable_variant();
const Variant* avx2_variant();
const Variant* avx512_variant();
