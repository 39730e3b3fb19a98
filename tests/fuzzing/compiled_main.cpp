// Calls the compiled interface as a case on standard input says, one line of numbers each, and
// answers each with a line of statuses. Whatever the case, only the sanitizers may end it.
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "api.hpp"

extern "C" {
int lanes_width(int);
void lanes_delete(void*);
int64_t lanes_new(int, const int64_t*, int64_t, int64_t, int, int64_t, void**);
int64_t lanes_params(void*);
int64_t lanes_receive(void*, const float*, int64_t);
int64_t lanes_put(void*, int, const float*, int64_t, float, float, float);
int64_t lanes_take(void*, int, float*, int64_t);
int64_t lanes_run(void*, Seat*, int64_t, int64_t);
int64_t lanes_load(void*, const float*, int64_t);
int64_t lanes_score(void*, const float*, int64_t, const int64_t*, int64_t, float*, uint8_t*);
}

namespace {

constexpr int64_t MOST = 1 << 22;  // numbers of one array; a case that needs more is left out

bool ended = false;

int64_t number() {
    long long read = 0;
    if (std::scanf("%lld", &read) != 1) ended = true;
    return read;
}

float real() {
    float read = 0;
    if (std::scanf("%f", &read) != 1) ended = true;
    return read;
}

// An array of exactly this length, so that the sanitizers see every access beyond it.
template <class T>
std::unique_ptr<T[]> array(int64_t length) {
    return std::unique_ptr<T[]>(length > 0 ? new T[static_cast<size_t>(length)]() : nullptr);
}

struct Client {
    int64_t samples, numbers, left, lowest, highest, order_from;
    std::unique_ptr<float[]> x;
    std::unique_ptr<int64_t[]> y, order;

    void read() {
        samples = number(), numbers = number(), left = number();
        lowest = number(), highest = number(), order_from = number();
    }

    // `numbers` is said as what there is beyond samples of the right size.
    bool make(int64_t features) {
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
        return true;
    }

    Seat seat() const { return Seat{x.get(), y.get(), order.get(), numbers, samples, left}; }
};

struct Case {
    int64_t set, share, batch, memory, steps, epochs, more_params, more_seats, first_seat;
    float rates[3];
    std::vector<int64_t> plan;
    std::vector<Client> clients;

    void read() {
        set = number(), share = number(), batch = number(), memory = number(), steps = number();
        epochs = number(), more_params = number(), more_seats = number(), first_seat = number();
        for (float& rate : rates) rate = real();
        for (int64_t words = number(); words > 0 && !ended; --words) plan.push_back(number());
        clients.resize(static_cast<size_t>(number()));
        for (Client& client : clients) client.read();
    }

    void play() {
        void* net = nullptr;
        // A copy without spare capacity, for the sanitizers.
        const auto words = array<int64_t>(static_cast<int64_t>(plan.size()));
        for (size_t i = 0; i < plan.size(); ++i) words[i] = plan[i];
        const int64_t made =
            lanes_new(static_cast<int>(set), words.get(), static_cast<int64_t>(plan.size()), batch,
                      static_cast<int>(share), memory, &net);
        std::printf("new %lld", static_cast<long long>(made));
        if (made == DONE) train(net);
        std::printf("\n");
        std::fflush(stdout);
        lanes_delete(net);
    }

    void train(void* net) {
        const int64_t count = lanes_params(net) + more_params;
        const auto params = array<float>(count), result = array<float>(count);
        for (int64_t i = 0; i < count; ++i) params[i] = 0.1f * std::sin(static_cast<float>(i));
        tell("receive", lanes_receive(net, params.get(), count));
        tell("load", lanes_load(net, params.get(), count));
        const int64_t width = lanes_width(static_cast<int>(set)) / share + more_seats;
        const auto seats = array<Seat>(width);
        for (Client& client : clients)
            if (!client.make(plan[0] * plan[1] * plan[2])) return tell("left out", 0);
        for (int64_t i = 0; i < width; ++i)
            tell("put", lanes_put(net, static_cast<int>(first_seat + i), params.get(), count,
                                  rates[0], rates[1], rates[2]));
        for (int64_t epoch = 0; epoch < epochs; ++epoch) {
            for (int64_t i = 0; i < width; ++i)
                seats[i] = clients[static_cast<size_t>(i) % clients.size()].seat();
            int64_t done = 1;
            while (done > 0) done = lanes_run(net, seats.get(), width, steps);
            tell("run", done);
        }
        int64_t infinite = 0;
        for (int64_t i = 0; i < width; ++i) {
            tell("take", lanes_take(net, static_cast<int>(first_seat + i), result.get(), count));
            for (int64_t j = 0; j < count; ++j) infinite += !std::isfinite(result[j]);
        }
        std::printf(" infinite %lld", static_cast<long long>(infinite));
        const Client& scored = clients[0];
        const auto losses = array<float>(scored.samples);
        const auto right = array<uint8_t>(scored.samples);
        tell("score", lanes_score(net, scored.x.get(), scored.numbers, scored.y.get(),
                                  scored.samples, losses.get(), right.get()));
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
