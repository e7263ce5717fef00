/* An attention with its operands on a device, its FLOPs, and checks against float64. */
#pragma once

#include "attention/attention.h"

/* `a` has only sizes; value_size 0 stands for head_size, and window 0 for the sequence's length.
 * `documents`: number of tokens of each document; 0: each sequence is one document. */
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
    /* [BENCH_PATTERN] the values that the operand repeats */
    float *pattern[BENCH_ATTENTION_OPERANDS];
    float *out, *lse; /* of the device */
} bench_attention;

/* Creates operands that repeat patterns of random numbers, and buffers for the results. The caller
 * must then call bench_attention_set. */
moert_status bench_attention_create(moert_device *device, const bench_attention_shape *shape,
                                    size_t seed, bench_attention *b);
void bench_attention_destroy(bench_attention *b); /* legal after a failed create */
/* Sets the dtype of the attention, and converts the operands to the dtype that the device reads. */
moert_status bench_attention_set(bench_attention *b, moert_dtype type);

/* Returns the FLOPs of the formulas; work that a kernel repeats is not included. There are 2 GEMMs
 * forward and 5 backward. Each GEMM takes 2 FLOPs per element of a head and per pair of a query and
 * a key that the query sees. */
double bench_attention_flops(const bench_attention *b, bool backward);

/* Checks sampled elements. Raises worst[0] to the largest error of the last forward, and worst[1]
 * to the largest error of the last backward. */
moert_status bench_attention_check(bench_attention *b, double worst[2]);
