/*
 * Counter-based random numbers: the same (key, counter) gives the same numbers on any rank, in any
 * order.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct moert_random {
    uint32_t word[4];
} moert_random;

/* Four uniform 32-bit words for (key, counter). */
moert_random moert_rng_block(uint64_t key, uint64_t counter_high, uint64_t counter_low);

/* A key for other calls. */
uint64_t moert_rng_key(uint64_t key, uint64_t counter_high, uint64_t counter_low);

/* Uniform in [0, 1), 53 bits, number `index` of stream (key, stream). */
double moert_rng_uniform(uint64_t key, uint64_t stream, uint64_t index);

/* Standard normal (Box-Muller in float64), number `index` of stream (key, stream). */
double moert_rng_normal(uint64_t key, uint64_t stream, uint64_t index);

/* values[i] = `deviation` times normal number first + i of stream (key, stream). Uses all
 * processors. */
void moert_rng_normals(uint64_t key, uint64_t stream, uint64_t first, double deviation,
                       float *values, size_t count);

/* The image of `index` under a permutation of 0 to count - 1, which (key, stream) selects: a
 * Feistel network over the smallest power of two that is not below `count`, repeated until the
 * value is below `count` (Black, Rogaway: "Ciphers with arbitrary finite domains", CT-RSA 2002). */
size_t moert_rng_permute(uint64_t key, uint64_t stream, size_t count, size_t index);

/* A 64-bit stream number from a name, such as a tensor's (FNV-1a). */
uint64_t moert_rng_stream(const char *name);
