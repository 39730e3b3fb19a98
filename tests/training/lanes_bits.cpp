// Trains a few clients with every instruction set there is and prints a hash of the weights and
// scores, so that processors can be compared without Python.
#include <cmath>
#include <cstdio>
#include <vector>

#include "api.hpp"

extern "C" {
int lanes_seats(int);
void lanes_delete(void*);
int64_t lanes_new(int, const int64_t*, int64_t, int64_t, int64_t, void**);
int64_t lanes_params(void*);
int64_t lanes_begin(void*, const float*, int64_t, Job*, int64_t);
int64_t lanes_run(void*, double, double);
}

namespace {

uint64_t state = 1;

// A number from 0 to 1 that is a float to the last bit on every machine.
float next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state >> 40) * 0x1p-24f;
}

uint64_t hash_of(const void* data, size_t bytes, uint64_t hash) {
    for (size_t i = 0; i < bytes; ++i)
        hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
    return hash;
}

struct Client {
    std::vector<float> x, trained;
    std::vector<int64_t> y, order;
};

// A small LeNet: convolution, tanh, mean, padded convolution, ReLU and maximum, two layers.
const std::vector<int64_t> LENET = {
    1, 14, 13, 4, 9, CONV, 5, 5, 5, 0, 0, 0, 0, TANH_OP, 0, 0, 0, 0, 0, 0, 0, AVG_POOL,
    2, 2,  2,  2, 0, 0, 0, CONV, 7, 3, 3, 1, 1, 0, 0, MAX_POOL, 2, 2, 2, 2, 1, 0, 0, LINEAR,
    9, 0,  0,  0, 0, 0, 0, TANH_OP, 0, 0, 0, 0, 0, 0, 0, LINEAR, 6, 0, 0, 0, 0, 0, 0, LINEAR,
    4, 0,  0,  0, 0, 0, 0};

constexpr int64_t EPSILON = 925353388;  // the bits of 1e-5

// A small ResNet: a block beside its input, one with a stride and a convolution beside it, and one
// on an image of 2x2 pixels.
const std::vector<int64_t> RESNET = {
    1, 14, 13, 4, 15,
    BARE_CONV, 6, 3, 3, 1, 1, 2, 2, GROUP_NORM, 3, EPSILON, 1, 0, 0, 0, 0,
    BARE_CONV, 6, 3, 3, 1, 1, 1, 1, GROUP_NORM, 3, EPSILON, 1, 2, 0, 0, 0,
    BARE_CONV, 9, 3, 3, 1, 1, 2, 2, GROUP_NORM, 3, EPSILON, 0, 0, 0, 0, 0,
    RECALL, 4, 0, 0, 0, 0, 0, 0,
    BARE_CONV, 9, 1, 1, 0, 0, 2, 2, GROUP_NORM, 3, EPSILON, 1, 6, 0, 0, 0,
    BARE_CONV, 10, 3, 3, 1, 1, 2, 2, GROUP_NORM, 5, EPSILON, 1, 0, 0, 0, 0,
    BARE_CONV, 10, 3, 3, 1, 1, 1, 1, GROUP_NORM, 5, EPSILON, 1, 11, 0, 0, 0,
    AVG_POOL, 2, 2, 2, 2, 0, 0, 0, LINEAR, 4, 0, 0, 0, 0, 0, 0};

uint64_t trained(int set, const std::vector<int64_t>& plan, uint64_t hash) {
    state = 1;
    void* net = nullptr;
    if (lanes_new(set, plan.data(), static_cast<int64_t>(plan.size()), 16, 1 << 28, &net) < 0)
        return 0;
    const int64_t count = lanes_params(net);
    std::vector<float> params(static_cast<size_t>(count));
    for (float& one : params) one = 0.4f * (next() - 0.5f);
    std::vector<std::vector<float>> vectors(3, params);
    for (auto& vector : vectors)
        for (float& one : vector) one = 0.1f * (next() - 0.5f);
    std::vector<Client> clients(5);
    std::vector<Job> jobs;
    for (Client& client : clients) {
        const int64_t samples = 20 + 7 * static_cast<int64_t>(jobs.size()), epochs = 3;
        for (int64_t i = 0; i < samples * 14 * 13; ++i) client.x.push_back(2 * next() - 1);
        for (int64_t i = 0; i < samples; ++i) client.y.push_back((i * 7) % 4);
        for (int64_t i = 0; i < samples * epochs; ++i) client.order.push_back((i * 11) % samples);
        client.trained.resize(params.size());
        Job job{};
        job.x = client.x.data(), job.y = client.y.data(), job.order = client.order.data();
        job.trained = client.trained.data(), job.vector = count;
        job.numbers = static_cast<int64_t>(client.x.size()), job.samples = samples;
        job.left = static_cast<int64_t>(client.order.size()), job.wants_loss = 1;
        job.learning_rate = 0.1, job.momentum = 0.9, job.proximal = 0.01;
        job.weight_decay = 0.01 * static_cast<double>(jobs.size() % 2);
        job.clip = jobs.size() % 4 < 2 ? INFINITY : 0.3;
        // Every client differs in what it minimises and in which vectors it has.
        const size_t number = jobs.size();
        job.loss_bound = number % 3 == 1 ? 2.0 : INFINITY, job.tilt = number % 3 == 2 ? 0.8 : 0.0;
        job.wants_trained_loss = number % 2;
        if (number > 0) job.correction = vectors[0].data();
        if (number > 1) job.start = vectors[1].data();
        if (number > 2) job.received = vectors[2].data();
        jobs.push_back(job);
    }
    lanes_begin(net, params.data(), count, jobs.data(), static_cast<int64_t>(jobs.size()));
    while (lanes_run(net, 1.0, 1e9) > 0) {
    }
    for (size_t i = 0; i < clients.size(); ++i) {
        hash = hash_of(&jobs[i].loss, sizeof(double), hash);
        hash = hash_of(clients[i].trained.data(), 4 * params.size(), hash);
    }
    lanes_delete(net);
    return hash;
}

}  // namespace

int main() {
    for (int set = 0; set < 3; ++set)
        if (lanes_seats(set)) {
            const uint64_t hash = trained(set, RESNET, trained(set, LENET, 14695981039346656037u));
            std::printf("%016llx\n", (unsigned long long)hash);
        }
}
