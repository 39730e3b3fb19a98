// Calls the compiled interface as a case on standard input says, one line of numbers each, and
// answers each with a line of statuses. Whatever the case, only the sanitizers may end it.
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "api.hpp"

extern "C" {
void lanes_delete(void*);
int64_t lanes_new(int, const int64_t*, int64_t, int64_t, int64_t, void**);
int64_t lanes_params(void*);
int64_t lanes_begin(void*, const float*, int64_t, Job*, int64_t);
int64_t lanes_run(void*, double, double);
int64_t lanes_end(void*);
int64_t lanes_load(void*, const float*, int64_t);
int64_t lanes_score(void*, const float*, int64_t, const int64_t*, int64_t, float*, uint8_t*);
int64_t lanes_orders(const uint32_t*, const int64_t*, const int64_t*, int64_t, int64_t*, int64_t);
}

namespace {

constexpr int64_t MOST = 1 << 22;  // numbers of one array; a case that needs more is left out

bool ended = false;

int64_t number() {
    long long read = 0;
    if (std::scanf("%lld", &read) != 1) ended = true;
    return read;
}

double real() {
    double read = 0;
    if (std::scanf("%lf", &read) != 1) ended = true;
    return read;
}

// An array of exactly this length, so that the sanitizers see every access beyond it.
template <class T>
std::unique_ptr<T[]> array(int64_t length) {
    return std::unique_ptr<T[]>(length > 0 ? new T[static_cast<size_t>(length)]() : nullptr);
}

struct Client {
    int64_t samples, numbers, left, lowest, highest, order_from, given;
    std::unique_ptr<float[]> x, received, start, correction, shown;
    std::unique_ptr<int64_t[]> y, order;

    void read() {
        samples = number(), numbers = number(), left = number();
        lowest = number(), highest = number(), order_from = number(), given = number();
    }

    // `numbers` is said as what there is beyond samples of the right size, and the bits of `given`
    // are which vectors there are, and whether its first piece of the order comes later.
    bool make(int64_t features, int64_t vector) {
        if (samples > MOST || left > MOST || features > MOST || samples * features > MOST)
            return false;
        numbers += samples * features;
        x = array<float>(numbers);
        y = array<int64_t>(samples);
        order = array<int64_t>(left);
        for (int64_t i = 0; i < numbers; ++i) x[i] = std::cos(static_cast<float>(i));
        // Unsigned, because the bounds may be any numbers.
        const uint64_t kinds = static_cast<uint64_t>(highest) - static_cast<uint64_t>(lowest) + 1;
        for (int64_t i = 0; i < samples; ++i) {
            const uint64_t step = kinds == 0 ? 0 : static_cast<uint64_t>(i) % kinds;
            y[i] = static_cast<int64_t>(static_cast<uint64_t>(lowest) + step);
        }
        for (int64_t i = 0; i < left; ++i) order[i] = order_from + i;
        int64_t bit = 1;
        for (auto* one : {&received, &start, &correction}) {
            if (given & bit) *one = array<float>(vector);
            for (int64_t i = 0; (given & bit) && i < vector; ++i)
                (*one)[i] = 0.1f * std::cos(static_cast<float>(i * bit));
            bit *= 2;
        }
        if (given & 8) shown = array<float>(numbers);
        return true;
    }

    bool begins_later() const { return given & 16; }

    void give_order(Job& job, int64_t pieces) const {
        job.order = order.get();
        job.shown = shown.get();
        job.left = left;
        job.place = 0;
        job.more = pieces > 0;
    }
};

struct Case {
    int64_t set, batch, memory, copies, pieces, wants_loss, wants_trained_loss;
    int64_t more_params, fewer_jobs, more_vector;
    double seconds, limit, rates[7];
    std::vector<int64_t> plan;
    std::vector<Client> clients;

    void read() {
        set = number(), batch = number(), memory = number(), copies = number();
        pieces = number(), wants_loss = number(), wants_trained_loss = number();
        more_params = number(), fewer_jobs = number(), more_vector = number();
        seconds = real(), limit = real();
        for (double& rate : rates) rate = real();
        for (int64_t words = number(); words > 0 && !ended; --words) plan.push_back(number());
        clients.resize(static_cast<size_t>(number()));
        for (Client& client : clients) client.read();
    }

    void play() {
        void* trainer = nullptr;
        // A copy without spare capacity, for the sanitizers.
        const auto words = array<int64_t>(static_cast<int64_t>(plan.size()));
        for (size_t i = 0; i < plan.size(); ++i) words[i] = plan[i];
        const int64_t made =
            lanes_new(static_cast<int>(set), words.get(), static_cast<int64_t>(plan.size()), batch,
                      memory, &trainer);
        std::printf("new %lld", static_cast<long long>(made));
        if (made == DONE) {
            use(trainer);
            draw();
        }
        std::printf("\n");
        std::fflush(stdout);
        lanes_delete(trainer);
    }

    // Draws as many epochs for every client as its order is long.
    void draw() const {
        const int64_t number = static_cast<int64_t>(clients.size());
        const auto words = array<uint32_t>(4 * number);
        const auto samples = array<int64_t>(number), epochs = array<int64_t>(number);
        int64_t length = 0;
        for (int64_t i = 0; i < number; ++i) {
            const Client& client = clients[static_cast<size_t>(i)];
            samples[i] = client.samples, epochs[i] = client.left;
            words[4 * i] = static_cast<uint32_t>(i);
            length += client.samples * client.left;
        }
        const auto orders = array<int64_t>(length);
        tell("orders", lanes_orders(words.get(), samples.get(), epochs.get(), number, orders.get(),
                                    length));
    }

    void use(void* trainer) {
        const int64_t count = lanes_params(trainer) + more_params;
        const auto params = array<float>(count);
        for (int64_t i = 0; i < count; ++i) params[i] = 0.1f * std::sin(static_cast<float>(i));
        tell("load", lanes_load(trainer, params.get(), count));
        const int64_t vector = lanes_params(trainer) + more_vector;
        for (Client& client : clients)
            if (!client.make(plan[0] * plan[1] * plan[2], vector)) return tell("left out", 0);
        const int64_t number = copies * static_cast<int64_t>(clients.size());
        const auto jobs = array<Job>(number);
        std::vector<std::unique_ptr<float[]>> trained;
        std::vector<int64_t> rest(static_cast<size_t>(number), pieces);
        for (int64_t i = 0; i < number; ++i) {
            const Client& client = clients[static_cast<size_t>(i) % clients.size()];
            trained.push_back(array<float>(vector));
            Job& job = jobs[i];
            job.x = client.x.get(), job.y = client.y.get(), job.trained = trained.back().get();
            job.received = client.received.get(), job.start = client.start.get();
            job.correction = client.correction.get(), job.vector = vector;
            job.numbers = client.numbers, job.samples = client.samples;
            job.wants_loss = wants_loss, job.wants_trained_loss = wants_trained_loss;
            job.learning_rate = rates[0], job.momentum = rates[1], job.proximal = rates[2];
            job.loss_bound = rates[3], job.tilt = rates[4];
            job.weight_decay = rates[5], job.clip = rates[6];
            if (client.begins_later())
                job.more = 1;
            else
                client.give_order(job, --rest[i]);
        }
        const int64_t given = number - fewer_jobs;
        const int64_t begun = lanes_begin(trainer, params.get(), count, jobs.get(), given);
        tell("begin", begun);
        if (begun == DONE) train(trainer, jobs.get(), given, rest);
        int64_t infinite = 0;
        for (const auto& weights : trained)
            for (int64_t j = 0; j < vector; ++j) infinite += !std::isfinite(weights[j]);
        std::printf(" infinite %lld", static_cast<long long>(infinite));
        const Client& scored = clients[0];
        const auto losses = array<float>(scored.samples);
        const auto right = array<uint8_t>(scored.samples);
        tell("score", lanes_score(trainer, scored.x.get(), scored.numbers, scored.y.get(),
                                  scored.samples, losses.get(), right.get()));
    }

    void train(void* trainer, Job* jobs, int64_t given, std::vector<int64_t>& rest) {
        int64_t open = 1;
        while ((open = lanes_run(trainer, seconds, limit)) > 0)
            for (int64_t i = 0; i < given; ++i)
                if (jobs[i].state == NEEDS_ORDER)
                    clients[static_cast<size_t>(i) % clients.size()].give_order(jobs[i],
                                                                                --rest[i]);
        tell("run", open);
        if (open < 0) return;
        for (int64_t i = 0; i < given; ++i)
            tell("job", jobs[i].state == FINISHED || jobs[i].state == LATE ? 0 : jobs[i].state);
        tell("end", lanes_end(trainer));
    }

    static void tell(const char* what, int64_t status) {
        std::printf(" %s %lld", what, static_cast<long long>(status));
    }
};

}  // namespace

int main() {
    while (true) {
        Case one;
        one.read();
        if (ended) return 0;
        one.play();
    }
}
