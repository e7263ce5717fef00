/* Shared by the tests with tables of other libraries' test suites: slow rows, splits, cheap
 * values. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True if a table row is to be skipped: it is slow, and the tier is check (tests/run). */
bool suite_skips(bool slow);

/* Backends, the fast one first. */
extern const char *const suite_backends[2];

/* Returns random 32-bit value `index` of stream `key`. A call takes a few cycles, so that large
 * operands are cheap. */
static inline uint32_t suite_bits(uint64_t key, uint64_t index) {
    uint64_t z = (key + 1) * 0x9E3779B97F4A7C15u + index * 0xD1B54A32D192ED03u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(z >> 32);
}

/* Uniform in [0, 1). */
static inline float suite_uniform(uint64_t key, uint64_t index) {
    return (float)(suite_bits(key, index) >> 8) * 0x1p-24f;
}

/* A new array of n nearly normal random values. */
float *suite_normal(uint64_t key, size_t n, double deviation);

/* Fails unless the signal is at least `limit` decibel above the noise; both are sums of squares. */
void suite_assert_above(const char *title, double signal, double noise, double limit);

/* Splits rows at random points: ends[groups] ascend, the last one is `rows`. */
void suite_split(uint64_t key, size_t rows, size_t groups, uint32_t *ends);

/* Splits rows into whole blocks by a symmetric Dirichlet distribution of parameter 1/2: few groups
 * get most rows, many get none. */
void suite_dirichlet(uint64_t key, size_t rows, size_t block, size_t groups, uint32_t *ends);

/* Chooses K different experts for each token: index[T,K]. */
void suite_route(uint64_t key, size_t tokens, size_t topk, size_t experts, int32_t *index);

/* Sorts the slots of index[slots] by expert, and by slot within an expert, into gather[rows] and
 * ends[E]. Omits slots whose expert is -1. Returns the number of rows. */
size_t suite_sort(const int32_t *index, size_t slots, size_t experts, uint32_t *gather,
                  uint32_t *ends);
