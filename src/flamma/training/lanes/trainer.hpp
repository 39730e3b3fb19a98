// Trains any number of clients in the seats of a net, the next one whenever a seat is free.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

#include "api.hpp"
#include "checks.hpp"

namespace {

inline double now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since).count();
}

class Trainer {
   public:
    // The narrow net, which may be null, has one seat and trains the last client if it is alone:
    // the wide one would do it no faster, and slower where its registers are halved inside.
    Trainer(std::unique_ptr<Machine> wide, std::unique_ptr<Machine> narrow, int64_t batch)
        : wide_(std::move(wide)), narrow_(std::move(narrow)), batch_(batch) {}

    int64_t params() const { return wide_->params(); }
    int seats() const { return wide_->seats(); }

    // Gives the received weights and the jobs, in the order in which they are to start. Both must
    // stay where they are as long as `run` is called.
    void begin(const float* params, int64_t count, Job* jobs, int64_t number) {
        end();
        check_params(params, count);
        require(number >= 0 && (jobs != nullptr || number == 0), WRONG_ARGUMENT);
        received_ = params;
        for (int64_t i = 0; i < number; ++i) jobs[i].state = WAITING;
        wide_->receive(params);
        if (narrow_) narrow_->receive(params);
        jobs_ = jobs;
        number_ = unfinished_ = number;
    }

    // Trains for about so many seconds, and returns how many jobs are not done. It returns earlier
    // if a job needs the next piece of its order, and ends jobs that take longer than the limit.
    int64_t run(double seconds, double limit) {
        require(seconds >= 0 && limit >= 0, WRONG_ARGUMENT);  // neither is NaN
        const double start = now();
        const int64_t first = next_;
        double time = start;
        do {
            bool waits = false;
            // Jobs that only score never take their seat: there may be many.
            for (int seat = 0; seat < seats(); ++seat)
                while (taken_[seat] == nullptr && next_ < number_ &&
                       (next_ == first || time - start < seconds)) {
                    sit(seat, &jobs_[next_++], time);
                    waits |= taken_[seat] != nullptr && taken_[seat]->state == NEEDS_ORDER;
                    time = now();
                }
            if (waits) return unfinished_;
            if (!step() && next_ == number_) return unfinished_;
            time = now();
            for (Job*& job : taken_)
                if (job != nullptr) {
                    follow(job, time, limit);
                    waits |= job != nullptr && job->state == NEEDS_ORDER;
                }
            if (waits) return unfinished_;
        } while (time - start < seconds);
        return unfinished_;
    }

    void end() {
        for (Job*& job : taken_) job = nullptr;
        jobs_ = nullptr;
        number_ = unfinished_ = next_ = 0;
        alone_ = false;
        scored_ = nullptr;
    }

    void load(const float* params, int64_t count) {
        check_params(params, count);
        wide_->load(params);
        scored_ = nullptr;  // whoever gave it may free it
    }

    void score(const float* x, int64_t numbers, const int64_t* y, int64_t samples, float* losses,
               uint8_t* right) {
        check_samples(x, numbers, y, samples);
        if (samples == 0) return;
        require(losses != nullptr && right != nullptr, WRONG_ARGUMENT);
        wide_->score(x, y, samples, losses, right);
    }

   private:
    void check_params(const float* params, int64_t count) const {
        require(params != nullptr && count == this->params(), WRONG_ARGUMENT);
    }

    void check_samples(const float* x, int64_t numbers, const int64_t* y, int64_t samples) const {
        require(samples >= 0 && numbers == times(samples, wide_->features()), WRONG_ARGUMENT);
        require(samples == 0 || (x != nullptr && y != nullptr), WRONG_ARGUMENT);
        const int64_t classes = wide_->classes();
        for (int64_t i = 0; i < samples; ++i)
            require(y[i] >= 0 && y[i] < classes, WRONG_SAMPLE);
    }

    void check_task(const Job& job) const {
        require(job.trained != nullptr && job.vector == params(), WRONG_ARGUMENT);
        require(job.loss_bound > 0.0 && std::isfinite(job.tilt), WRONG_ARGUMENT);  // no NaN
        require(job.tilt == 0.0 || job.loss_bound == INFINITY, WRONG_ARGUMENT);
        require(job.weight_decay >= 0.0 && std::isfinite(job.weight_decay), WRONG_ARGUMENT);
        require(job.clip > 0.0, WRONG_ARGUMENT);
    }

    // A piece of an order may be empty only if it is the last.
    static void check_order(const Job& job) {
        require(job.left >= !!job.more && job.place == 0, WRONG_ARGUMENT);
        require(job.left == 0 || (job.order != nullptr && job.samples > 0), WRONG_ARGUMENT);
        for (int64_t i = 0; i < job.left; ++i)
            require(job.order[i] >= 0 && job.order[i] < job.samples, WRONG_SAMPLE);
    }

    // Seats a job, unless it is refused or has nothing to train.
    void sit(int seat, Job* job, double time) {
        job->begun = time;
        job->seconds = 0.0;
        const int64_t state = attempted([&] {
            check_task(*job);
            check_samples(job->x, job->numbers, job->y, job->samples);
            const bool later = job->left == 0 && job->more;
            if (!later) check_order(*job);
            const float* start = start_of(*job);
            const bool idle = job->left == 0 && !later;
            if (job->wants_trained_loss ? idle : job->wants_loss != 0)
                job->loss = loss_of(*job, start);
            if (!idle)
                wide_->put(seat, seating_of(*job, start, nullptr));
            else
                std::copy(start, start + params(), job->trained);
            return idle ? FINISHED : later ? NEEDS_ORDER : TRAINING;
        });
        if (state == TRAINING || state == NEEDS_ORDER) {
            job->state = state;
            taken_[seat] = job;
        } else {
            job->seconds = now() - job->begun;
            finish(job, state);
        }
    }

    // Returns what f returns, or the status of what it throws.
    template <class F>
    static int64_t attempted(F f) {
        try {
            return f();
        } catch (const Refusal& refusal) {
            return refusal.status;
        } catch (const std::bad_alloc&) {
            return TOO_LARGE;
        }
    }

    const float* received_of(const Job& job) const {
        return job.received ? job.received : received_;
    }

    const float* start_of(const Job& job) const {
        return job.start ? job.start : received_of(job);
    }

    Seating seating_of(const Job& job, const float* weights, const float* velocity) const {
        return Seating{weights,
                       velocity,
                       received_of(job),
                       job.correction,
                       static_cast<float>(job.learning_rate),
                       static_cast<float>(job.momentum),
                       static_cast<float>(job.proximal),
                       Objective{job.loss_bound, job.tilt},
                       static_cast<float>(job.weight_decay),
                       job.clip};
    }

    // The mean, added up sample by sample; NaN without samples.
    double loss_of(const Job& job, const float* weights) {
        if (job.samples == 0) return NAN;
        if (scored_ != weights) wide_->load(scored_ = weights);
        losses_.resize(static_cast<size_t>(job.samples));
        right_.resize(static_cast<size_t>(job.samples));
        wide_->score(job.x, job.y, job.samples, losses_.data(), right_.data());
        double sum = 0.0;
        for (const float loss : losses_) sum += loss;
        return sum / static_cast<double>(job.samples);
    }

    // One mini-batch in every seat; false if no job has one.
    bool step() {
        Batch batches[MOST_SEATS] = {};
        int busy = 0, last = 0;
        for (int seat = 0; seat < seats(); ++seat) {
            Job* job = taken_[seat];
            if (job == nullptr) continue;
            if (job->state == NEEDS_ORDER && !go_on(taken_[seat])) continue;
            const int64_t epoch = job->samples - job->place;
            int64_t size = job->left < batch_ ? job->left : batch_;
            size = size < epoch ? size : epoch;
            batches[seat] = Batch{job->shown ? job->shown : job->x, job->y, job->order, size};
            ++busy, last = seat;
        }
        if (busy == 0) return false;
        try {
            if (busy == 1 && narrow_ && next_ == number_) {
                if (!alone_) hand_over(last);
                narrow_->step(&batches[last]);
            } else {
                wide_->step(batches);
            }
        } catch (const Refusal& refusal) {
            return drop_largest(batches, refusal.status);
        } catch (const std::bad_alloc&) {
            return drop_largest(batches, TOO_LARGE);
        }
        for (int seat = 0; seat < seats(); ++seat) {
            if (taken_[seat] == nullptr) continue;
            Job& job = *taken_[seat];
            job.order += batches[seat].size;
            job.left -= batches[seat].size;
            job.place += batches[seat].size;
            if (job.place == job.samples) job.place = 0;
        }
        return true;
    }

    // Takes the next piece of an order, which Python has given since; false if there is none.
    bool go_on(Job*& job) {
        try {
            check_order(*job);
        } catch (const Refusal& refusal) {
            finish(job, refusal.status);
            job = nullptr;
            return false;
        }
        job->state = TRAINING;
        if (job->left == 0) follow(job, now(), INFINITY);
        return job != nullptr;
    }

    void hand_over(int seat) {
        const Job& job = *taken_[seat];
        std::vector<float> weights(static_cast<size_t>(params())), velocity(weights.size());
        wide_->take(seat, weights.data(), velocity.data());
        narrow_->put(0, seating_of(job, weights.data(), velocity.data()));
        alone_ = true;
    }

    // Ends a seated job that is done or late.
    void follow(Job*& job, double time, double limit) {
        job->seconds = time - job->begun;
        if (job->left == 0 && !job->more) {
            if (alone_)
                narrow_->take(0, job->trained, nullptr);
            else
                wide_->take(static_cast<int>(&job - taken_), job->trained, nullptr);
            finish(job, job->wants_trained_loss ? score_trained(job) : FINISHED);
            job = nullptr;
        } else if (job->seconds > limit) {
            finish(job, LATE);
            job = nullptr;
        } else if (job->left == 0) {
            job->state = NEEDS_ORDER;
        }
    }

    int64_t score_trained(Job* job) {
        return attempted([&] {
            job->loss = loss_of(*job, job->trained);
            job->seconds = now() - job->begun;
            return FINISHED;
        });
    }

    void finish(Job* job, int64_t state) {
        job->state = state;
        --unfinished_;
    }

    // There was no memory for a step: the others may have enough without the largest.
    bool drop_largest(const Batch* batches, Status status) {
        int largest = 0;
        for (int seat = 0; seat < seats(); ++seat)
            if (batches[seat].size > batches[largest].size) largest = seat;
        finish(taken_[largest], status);
        taken_[largest] = nullptr;
        return true;
    }

    std::unique_ptr<Machine> wide_, narrow_;
    int64_t batch_;
    const float* received_ = nullptr;
    const float* scored_ = nullptr;  // the weights that the wide net has loaded for scoring
    Job* jobs_ = nullptr;
    int64_t number_ = 0, next_ = 0, unfinished_ = 0;
    Job* taken_[MOST_SEATS] = {};  // the job in each seat of the wide net
    bool alone_ = false;           // the last job has moved to the narrow net
    std::vector<float> losses_;
    std::vector<uint8_t> right_;
};

}  // namespace
