// A whole net: its memory, and a step of SGD for all lanes at once.
//
// A client takes eight lanes, each of which has a part of every mini-batch; their gradients are
// summed before the step. The weights are the same in all of a client's lanes, so only one number
// of each is kept, those of two clients alternating.
//
// Up to the first linear layer samples are processed one by one, so that their images stay in the
// cache; from there on the mini-batch is processed as a whole, so that every weight is loaded once
// for several samples. A net with convolutions without bias has many weights and small images, so
// it takes a few samples of every lane through its images at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "api.hpp"
#include "conv.hpp"
#include "gemm.hpp"
#include "loss.hpp"
#include "norm.hpp"
#include "pool.hpp"
#include "winograd.hpp"

namespace {

// Values or gradients between two operations: of every sample, or of one at a time.
struct Slot {
    Grid grid;
    bool each = false;
    Block<V> data;

    V* at(int64_t sample) const { return data.get() + (each ? sample * grid.size() : 0); }
};

struct Operation {
    int64_t kind = 0, argument[WORDS - 1] = {};
    int64_t in = 0, out = 0;      // slots; the same for an activation, which works in place
    int64_t weights = 0, bias = 0;  // the first parameter of each
    int64_t end = 0;                // the first parameter after those
    int64_t sums = 0;               // the first in `image_gradient_`, unless it is a BARE_CONV
    int64_t joined = 0;             // the slot that a GROUP_NORM adds
    bool more = false;              // whether another one has begun the gradient of its input
    Block<I> which;               // where a maximum was, for every sample
    Block<int64_t> taps;
    Block<V> kept;                // the means and deviations of a GROUP_NORM, for every sample
    Block<V> transformed;         // the weights of a BARE_CONV
    Conv conv{};
    int64_t start = 0;            // where its padding begins in the border of its input
    Bare bare{};
    Norm norm{};

    Window window() const { return Window{argument[0], argument[1], argument[2], argument[3]}; }
    bool pair() const {
        return argument[0] == 2 && argument[1] == 2 && argument[2] == 2 && argument[3] == 2;
    }
    bool has_params() const { return blocked() || kind == CONV || kind == LINEAR; }
    // Whether it takes several samples of every lane at once.
    bool blocked() const { return kind == BARE_CONV || kind == GROUP_NORM; }
};

template <bool Plain>
struct Sgd;

class Net final : public Machine {
   public:
    explicit Net(const Blueprint& blueprint);

    int seats() const override { return SEATS; }
    int64_t params() const override { return params_; }
    int64_t features() const override { return features_; }
    int64_t classes() const override { return value_.back()->grid.size(); }
    void receive(const float* params) override;
    void put(int seat, const Seating& client) override;
    void take(int seat, float* params, float* velocity) const override;
    void step(const Batch* batches) override;
    void load(const float* params) override;
    void score(const float* x, const int64_t* y, int64_t samples, float* losses,
               uint8_t* right) override;

   private:
    void shape(const int64_t* plan);
    void allocate();
    int64_t slot(const Image& image);
    void add(const int64_t* words);
    void add_bare(Operation& op);
    void set_taps();
    void set_blocked();
    void share_gradients();
    void reserve(int64_t samples);
    void reserve_gradient();
    template <class F>
    void fixed_blocks(F f);
    template <class F>
    void sample_blocks(int64_t samples, F f);
    void fill(const float* const* images, int64_t sample);
    void transform(const float* weights);
    void forward(int64_t samples, const float* weights, const float* const* images);
    void reweigh(int64_t samples, const Batch* batches);
    void loss_gradient(int64_t samples, const I* labels, const V* scales);
    template <bool Plain>
    Sgd<Plain> sgd() const;
    template <bool Plain>
    void descend(int64_t samples);
    void descend_clipped(int64_t samples);
    template <class Step>
    void backward(int64_t samples, Step step);
    V clip_factors() const;
    void backward_images(int64_t sample, int64_t rows);
    template <class Step>
    void step_images(Step step);
    void forward_all(Operation& op, int64_t sample, int64_t rows, const float* weights);
    void backward_all(Operation& op, int64_t sample, int64_t rows);
    void one_forward(Operation& op, int64_t sample, const float* weights);
    void one_backward(Operation& op, int64_t sample, int64_t row);
    void bare_forward(Operation& op, int64_t sample, int64_t rows, const float* weights);
    void bare_backward(Operation& op, int64_t sample, int64_t rows);
    void one_norm_forward(Operation& op, int64_t sample, const float* weights);
    void one_norm_backward(Operation& op, int64_t sample, int64_t row);
    Scratch scratch() const;

    std::vector<std::unique_ptr<Operation>> ops_;
    std::vector<std::shared_ptr<Slot>> value_, gradient_, batched_;
    std::vector<Slot*> gradients_;  // those of images, each of which may be that of several slots
    int64_t memory_, fixed_ = 0;  // bytes allowed, and those whatever the mini-batches
    int64_t capacity_ = 0;        // samples of a lane for which there is memory
    int64_t features_ = 0, params_ = 0;
    int64_t border_ = 0;  // the slot from which on whole mini-batches are kept
    int64_t tail_ = 0;   // the first operation on whole mini-batches
    int64_t first_ = 0;  // the first operation with parameters: gradients stop here
    int64_t together_ = 1;  // samples of a lane that go through the images at a time
    int64_t image_sums_ = 0;  // parameters whose gradients are in `image_gradient_`
    Block<float> weights_, velocity_, received_, correction_, scored_;
    Block<V> scales_;
    Block<V> image_gradient_;  // of the parameters before the first linear layer, lane by lane
    Block<float> bare_gradient_;  // of the convolutions without bias, for every client
    Block<V> scratch_[6];
    Block<I> labels_;
    Block<float> nothing_;  // an image of zeros
    Block<float> whole_gradient_;  // of a mini-batch, once a client has clipped one
    std::vector<const float*> images_;  // of the samples in work
    V rate_ = zero(), momentum_ = zero(), proximal_ = zero(), decay_ = zero(), now_ = zero();
    bool any_momentum_ = false, any_proximal_ = false, any_correction_ = false;
    bool any_decay_ = false, any_clip_ = false;
    bool had_momentum_ = false;  // in any seat, so that velocities are kept at all
    const float* centre_[SEATS] = {};  // what `received_` has of each seat
    bool corrected_[SEATS] = {};       // whether its client has a correction
    Objective objective_[SEATS];
    double clip_[SEATS];  // the largest norm of a gradient
    std::vector<double> losses_[SEATS];  // of the mini-batches in work, where they are needed
};

}  // namespace

#include "build.hpp"
#include "train.hpp"
