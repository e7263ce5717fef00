/* An attention with its operands on a device, its FLOPs, and checks against float64. */
#pragma once

#include "attention/attention.h"

/* `a`: only sizes; a value_size or window of 0 is the default. `documents`: tokens of each
 * document, 0: a sequence is one. */
typedef struct bench_attention_shape {
    moert_attention a;
    size_t documents;
    bool sinks;
} bench_attention_shape;

enum { BENCH_Q, BENCH_K, BENCH_V, BENCH_DOUT, BENCH_SINKS, BENCH_ATTENTION_OPERANDS };

typedef struct bench_attention {
    moert_attention a;
    size_t documents, seed;
    moert_buffer *scratch;
    float *pattern[BENCH_ATTENTION_OPERANDS]; /* [BENCH_PATTERN] values that an operand repeats */
    float *out, *lse;                         /* of the device */
} bench_attention;

/* Creates operands that repeat patterns of random numbers, and buffers for the results.
 * bench_attention_set must follow. */
moert_status bench_attention_create(moert_device *device, const bench_attention_shape *shape,
                                    size_t seed, bench_attention *b);
void bench_attention_destroy(bench_attention *b); /* legal after a failed create */
/* Sets the type of the attention, and its operands to the dtype that it reads. */
moert_status bench_attention_set(bench_attention *b, moert_dtype type);

/* FLOPs of the formulas, without what a form computes twice: 2 for each pair of a query and a key
 * that it sees and each element of a head, in 2 GEMMs forward and 5 backward. */
double bench_attention_flops(const bench_attention *b, bool backward);

/* Raises worst[0] to the largest error of sampled elements of the last forward, worst[1] to that of
 * the last backward. */
moert_status bench_attention_check(bench_attention *b, double worst[2]);
