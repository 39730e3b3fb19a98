// Shuffled samples for many clients at once, with the bits of numpy: SeedSequence (O'Neill,
// "Developing a seed_seq alternative", 2015), Philox 4x64-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011), and the shuffle of Fisher and Yates. A generator of numpy
// takes longer to make than it takes here to use one.
#pragma once

#include <cstdint>

namespace {

constexpr int KEY_WORDS = 4;  // of a stream: as many as a SeedSequence keeps

// The state of a SeedSequence of four words, as the key of Philox.
inline void philox_key(const uint32_t* words, uint64_t* key) {
    uint32_t pool[KEY_WORDS], constant = 0x43b0d7e5u;
    const auto hashed = [&constant](uint32_t value, uint32_t factor) {
        value ^= constant;
        constant *= factor;
        value *= constant;
        return value ^ value >> 16;
    };
    for (int i = 0; i < KEY_WORDS; ++i) pool[i] = hashed(words[i], 0x931e8875u);
    for (int from = 0; from < KEY_WORDS; ++from)
        for (int to = 0; to < KEY_WORDS; ++to) {
            if (from == to) continue;
            const uint32_t mixed =
                0xca01f9ddu * pool[to] - 0x4973f715u * hashed(pool[from], 0x931e8875u);
            pool[to] = mixed ^ mixed >> 16;
        }
    constant = 0x8b51f9ddu;
    for (int i = 0; i < 2; ++i) {
        const uint64_t low = hashed(pool[2 * i], 0x58f38dedu);
        key[i] = low | static_cast<uint64_t>(hashed(pool[2 * i + 1], 0x58f38dedu)) << 32;
    }
}

// The stream of one client: 32 bits at a time, the lower half of each number first.
class Philox {
   public:
    explicit Philox(const uint32_t* words) { philox_key(words, key_); }

    uint32_t next() {
        if (used_ == 2 * NUMBERS) refill();
        const uint64_t number = numbers_[used_ / 2];
        return static_cast<uint32_t>(used_++ % 2 ? number >> 32 : number);
    }

    // A whole number from 0 to `most`, all of them as likely: the first that is not too large of
    // as many bits as `most` has.
    uint32_t up_to(uint32_t most) {
        const uint32_t bits = UINT32_MAX >> __builtin_clz(most);
        uint32_t number;
        do number = next() & bits;
        while (number > most);
        return number;
    }

   private:
    static constexpr int NUMBERS = 4;

    void refill() {
        typedef unsigned __int128 Wide;
        uint64_t c[NUMBERS] = {++drawn_, 0, 0, 0}, first = key_[0], second = key_[1];
        for (int round = 0; round < 10; ++round) {
            const Wide a = static_cast<Wide>(0xd2e7470ee14c6c93u) * c[0];
            const Wide b = static_cast<Wide>(0xca5a826395121157u) * c[2];
            c[0] = static_cast<uint64_t>(b >> 64) ^ c[1] ^ first;
            c[1] = static_cast<uint64_t>(b);
            c[2] = static_cast<uint64_t>(a >> 64) ^ c[3] ^ second;
            c[3] = static_cast<uint64_t>(a);
            first += 0x9e3779b97f4a7c15u;
            second += 0xbb67ae8584caa73bu;
        }
        for (int i = 0; i < NUMBERS; ++i) numbers_[i] = c[i];
        used_ = 0;
    }

    uint64_t key_[2], numbers_[NUMBERS] = {};
    uint64_t drawn_ = 0;  // the counter of Philox; no order is long enough for its other words
    int used_ = 2 * NUMBERS;
};

// So many orders of 0, ..., samples - 1, one after the other.
inline void draw_orders(const uint32_t* words, int64_t samples, int64_t epochs, int64_t* to) {
    Philox stream(words);
    for (int64_t epoch = 0; epoch < epochs; ++epoch, to += samples) {
        for (int64_t i = 0; i < samples; ++i) to[i] = i;
        for (int64_t i = samples - 1; i > 0; --i) {
            const int64_t j = stream.up_to(static_cast<uint32_t>(i)), kept = to[i];
            to[i] = to[j];
            to[j] = kept;
        }
    }
}

}  // namespace
