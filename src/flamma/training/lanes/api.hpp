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

// A client's training, which Python fills in and reads. A job's order may come in pieces, each of
// which begins with an epoch: with `more`, the job waits for the next piece after this one. The
// first piece may be empty: the job waits for another as soon as it has a seat.
struct Job {
    const float* x;
    const int64_t* y;
    const int64_t* order;  // the samples of all mini-batches, epoch after epoch
    const float* shown;    // what the samples look like in this piece, as long as x; null for x
    float* trained;        // receives the weights
    const float* received;    // the client's own received weights, null for the common ones
    const float* start;       // where it starts, null for where it received
    const float* correction;  // what is added to every gradient, null for nothing
    int64_t vector;        // the length of `trained` and of each of these that is not null
    int64_t numbers;       // the length of x
    int64_t samples;       // the length of y, and so of an epoch
    int64_t left;          // the length of order from here on
    int64_t place;         // the samples of this epoch that are done
    int64_t more;          // whether another piece of the order follows
    int64_t wants_loss;    // whether to score the weights of the start on the client's samples
    int64_t wants_trained_loss;  // whether to score the trained weights in their place
    int64_t state;         // of JobState, or a negative Status if the job was refused
    double loss;           // the mean of the scores
    double begun, seconds; // when it started, and how long it took
    double learning_rate, momentum, proximal;
    double loss_bound, tilt;  // infinite and 0 for the mean loss
    double weight_decay;      // times the weights is added to every gradient
    double clip;              // the largest norm of a mini-batch's gradient, infinite for any
};

enum JobState : int64_t { WAITING = 0, TRAINING = 1, NEEDS_ORDER = 2, FINISHED = 3, LATE = 4 };

// What a client minimises: the mean loss of a mini-batch; with a finite bound M, -M log(1 - l / M)
// of that mean l; with a tilt t other than 0, log(mean exp(t l)) / t of the samples' losses l.
struct Objective {
    double loss_bound, tilt;

    bool plain() const { return tilt == 0.0 && !(loss_bound < __builtin_inf()); }
};

// How the client in a seat trains. The length of every vector is that of the net.
struct Seating {
    const float* weights;
    const float* velocity;    // zero if null
    const float* received;    // where the proximal term pulls
    const float* correction;  // none if null
    float learning_rate, momentum, proximal;
    Objective objective;
    float weight_decay;
    double clip;
};

// A mini-batch: the samples order[0], ..., order[size - 1] of x and y. An idle seat has size 0.
struct Batch {
    const float* x;
    const int64_t* y;
    const int64_t* order;
    int64_t size;
};

// What a net is made from.
struct Blueprint {
    const int64_t* plan;
    int64_t words;   // the length of the plan
    int64_t memory;  // bytes that the net may take
};

constexpr int MOST_SEATS = 2;

// A net that trains the clients in its seats. The length of every `params` is that of the net.
class Machine {
   public:
    virtual ~Machine() = default;
    virtual int seats() const = 0;
    virtual int64_t params() const = 0;
    virtual int64_t features() const = 0;
    virtual int64_t classes() const = 0;
    // The weights that all clients received.
    virtual void receive(const float* params) = 0;
    virtual void put(int seat, const Seating& client) = 0;
    virtual void take(int seat, float* params, float* velocity) const = 0;
    // One step of SGD in every seat. Samples and labels must be known to be in range.
    virtual void step(const Batch* batches) = 0;
    // The weights that are scored.
    virtual void load(const float* params) = 0;
    virtual void score(const float* x, const int64_t* y, int64_t samples, float* losses,
                       uint8_t* right) = 0;
};

// A plan is (channels, height, width, classes, operations), then eight numbers per operation:
// its kind and its arguments. Operations work on what the one before them has made. BARE_CONV is a
// convolution without bias, of any stride. GROUP_NORM (groups, bits of epsilon, whether a ReLU
// follows, joined) adds what operation number `joined` has made, counted from 1, or nothing if that
// is 0. RECALL (number) goes back to what an operation has made, or to the image if that is 0.
enum Kind { CONV = 1, MAX_POOL, AVG_POOL, RELU_OP, TANH_OP, LINEAR, BARE_CONV, GROUP_NORM, RECALL };
constexpr int HEADER = 5, WORDS = 8;

struct Variant {
    int seats;
    Machine* (*make)(const Blueprint& blueprint);
    int64_t (*peak)(int64_t rounds, float* sink);  // returns multiplications and sums done
};

// Null if the compiler does not support the instruction set.
const Variant* portable_variant();
const Variant* avx2_variant();
const Variant* avx512_variant();
