// The interface of a compiled net, implemented once per instruction set.
#pragma once

#include <cstdint>

// What a function returns that refuses its arguments: it has not written anywhere then.
enum Status : int64_t {
    DONE = 0,
    WRONG_ARGUMENT = -1,  // a null pointer, or a number or length out of its range
    WRONG_PLAN = -2,      // no net that can be computed here
    TOO_LARGE = -3,       // more memory than allowed or there is
    WRONG_SAMPLE = -4,    // a label that is no class, or an order beyond the samples
};

// Thrown by a net, and returned as a number from what Python calls.
struct Refusal {
    Status status;
};

// The mini-batches of one client: the samples order[0], ..., order[left - 1] of x and y come next.
// An idle seat has left = 0.
struct Seat {
    const float* x;
    const int64_t* y;
    const int64_t* order;
    int64_t numbers;  // the length of x
    int64_t samples;  // the length of y
    int64_t left;     // the length of order
};

// How the client in a seat trains.
struct Rates {
    float learning_rate, momentum, proximal;
};

// What a net is made from.
struct Blueprint {
    const int64_t* plan;
    int64_t words;   // the length of the plan
    int64_t batch;   // samples of a mini-batch
    int share;       // lanes of one seat, a power of two: each mini-batch is dealt out over them
    int64_t memory;  // bytes that the net may take
};

// Every method checks what it is given, and throws a Refusal.
class Machine {
   public:
    virtual ~Machine() = default;
    virtual int64_t params() const = 0;
    virtual void receive(const float* params, int64_t count) = 0;
    virtual void put(int seat, const float* params, int64_t count, Rates rates) = 0;
    virtual void take(int seat, float* params, int64_t count) const = 0;
    virtual int64_t run(Seat* seats, int64_t count, int64_t steps) = 0;
    virtual void load(const float* params, int64_t count) = 0;
    virtual void score(const float* x, int64_t numbers, const int64_t* y, int64_t samples,
                       float* losses, uint8_t* right) = 0;
};

// A plan is (channels, height, width, classes, operations), then eight numbers per operation:
// its kind and its arguments.
enum Kind { CONV = 1, MAX_POOL, AVG_POOL, RELU_OP, TANH_OP, LINEAR };
constexpr int HEADER = 5, WORDS = 8;

struct Variant {
    int width;
    Machine* (*make)(const Blueprint& blueprint);
    int64_t (*peak)(int64_t rounds, float* sink);  // returns multiplications and sums done
};

// Null if the compiler does not support the instruction set.
const Variant* portable_variant();
const Variant* avx2_variant();
const Variant* avx512_variant();
