/* Implements Philox4x32-10, and uniform and normal numbers drawn from it. */
#include "base/rng.h"

#include <math.h>

#include "base/elementary.h"
#include "base/parallel.h"

static uint32_t multiply(uint32_t a, uint32_t b, uint32_t *high) {
    uint64_t product = (uint64_t)a * b;
    *high = (uint32_t)(product >> 32);
    return (uint32_t)product;
}

moert_random moert_rng_block(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < 10; round++) {
        uint32_t high0, high1;
        uint32_t low0 = multiply(0xD2511F53u, c0, &high0);
        uint32_t low1 = multiply(0xCD9E8D57u, c2, &high1);
        c0 = high1 ^ c1 ^ k0;
        c2 = high0 ^ c3 ^ k1;
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (moert_random){{c0, c1, c2, c3}};
}

uint64_t moert_rng_key(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
    const moert_random r = moert_rng_block(key, counter_high, counter_low);
    return (uint64_t)r.word[1] << 32 | r.word[0];
}

static double unit(uint32_t high, uint32_t low) {
    uint64_t bits = ((uint64_t)high << 32 | low) >> 11;
    return (double)bits * 0x1p-53;
}

double moert_rng_uniform(uint64_t key, uint64_t stream, uint64_t index) {
    moert_random r = moert_rng_block(key, stream, index);
    return unit(r.word[0], r.word[1]);
}

double moert_rng_normal(uint64_t key, uint64_t stream, uint64_t index) {
    const double two_pi = 6.283185307179586;
    moert_random r = moert_rng_block(key, stream, index);
    double radius = sqrt(-2.0 * moert_log(1.0 - unit(r.word[0], r.word[1])));
    return radius * moert_cos(two_pi * unit(r.word[2], r.word[3]));
}

typedef struct normals {
    uint64_t key, stream, first;
    double deviation;
    float *values;
} normals;

static void draw(void *context, size_t first, size_t end) {
    const normals *n = context;
    for (size_t i = first; i < end; i++)
        n->values[i] = (float)(moert_rng_normal(n->key, n->stream, n->first + i) * n->deviation);
}

void moert_rng_normals(uint64_t key, uint64_t stream, uint64_t first, double deviation,
                       float *values, size_t count) {
    enum { LEAST = 16384 };
    normals n = {key, stream, first, deviation, values};
    moert_parallel(count, LEAST, draw, &n);
}

static uint64_t low_bits(unsigned bits) {
    return ((uint64_t)1 << bits) - 1;
}

/* A Feistel network: in each round, a random function of one half is added (xor) to the other half.
 * A half has at most 32 bits. */
static uint64_t feistel(uint64_t key, uint64_t stream, unsigned bits, uint64_t value) {
    const unsigned right_bits = bits / 2;
    uint64_t right = value & low_bits(right_bits), left = value >> right_bits;
    for (uint64_t round = 0; round < 4; round += 2) {
        right ^= moert_rng_block(key, stream, round << 32 | left).word[0] & low_bits(right_bits);
        left ^= moert_rng_block(key, stream, (round + 1) << 32 | right).word[0] &
                low_bits(bits - right_bits);
    }
    return left << right_bits | right;
}

size_t moert_rng_permute(uint64_t key, uint64_t stream, size_t count, size_t index) {
    unsigned bits = 1;
    uint64_t value = index;
    while (low_bits(bits) < count - 1)
        bits++;
    do
        value = feistel(key, stream, bits, value);
    while (value >= count);
    return (size_t)value;
}

uint64_t moert_rng_stream(const char *name) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001B3u;
    return hash;
}
