/* What bench_memory times: the memory-bound kernels, each with the bytes that it must move and what
 * samples of its result must be. */
#pragma once

#include "exchange/exchange.h"
#include "moert/formats.h"
#include "nn/nn.h"

/* What makes several cases of a kernel. */
typedef struct bench_how {
    moert_format format; /* of quantizers, */
    moert_axis axis;
    moert_dtype type; /* and of what is cast or dequantized */
    bool heads;       /* norms of heads instead of rows */
    bool added;       /* the result is added to what is there */
    bool large;       /* of the two sizes the larger one */
} bench_how;

typedef struct bench_sizes {
    size_t tokens, hidden, intermediate, topk, experts; /* T, H, I, K, E */
    size_t predicted, vocabulary, large_vocabulary;     /* tokens of the loss, V */
    bench_how how;                                      /* of the case at hand */
} bench_sizes;

enum { BENCH_INPUTS = 3, BENCH_RESULTS = 5, BENCH_HEAD = 128 }; /* the last: of a head */

/*
 * Inputs repeat a pattern of numbers in [-1, 1), from another place each; bench_value()
 * tells them. Inputs and results are as long as the largest matrix.
 */
typedef struct bench_memory {
    moert_device *device;
    bench_sizes of;
    float *pattern;
    moert_buffer *in[BENCH_INPUTS], *out[BENCH_RESULTS];
    moert_buffer *token;    /* int32 [T], of the vocabulary; also the loss's targets */
    moert_buffer *index;    /* int32 [T,K] */
    moert_buffer *gather;   /* uint32 [T K]: a permutation */
    moert_buffer *ends;     /* uint32 [1]: T K */
    moert_buffer *rope;     /* [T, 2, head/2] */
    int32_t *tokens;        /* `token` on the host */
    moert_buffer **scratch; /* growable */
    moert_exchange *exchange;
    moert_exchange_plan *plan;
    moert_window *window; /* [T K, H] */
} bench_memory;

/* Errors: ERROR_MEMORY, ERROR_DEVICE. Release it whatever comes back. */
moert_status bench_memory_prepare(bench_memory *memory, moert_comm *comm, size_t seed);
void bench_memory_release(bench_memory *memory);

double bench_value(const bench_memory *memory, size_t input, size_t index);

double bench_token_bytes(const bench_sizes *of); /* of T rows of H float32 */

/* The index among `count` that a number in [0, 1) chooses; an element as a number. */
size_t bench_index(double chosen, size_t count);
moert_status bench_read(const moert_buffer *buffer, size_t index, double *x); /* of float32 */
moert_status bench_read_as(const moert_buffer *buffer, moert_dtype type, size_t index, double *x);

typedef struct bench_pair {
    double got, want;
} bench_pair;

/*
 * A kernel. `bytes` counts each operand once, float32 unless said: what a kernel reads twice, or
 * out of a cache, does not make its rate better. The check computes single elements once more, in
 * float64.
 */
typedef struct bench_kernel {
    double (*bytes)(const bench_sizes *of);
    /* NULL, or makes what the kernel reads; it does not belong to the time */
    moert_status (*begin)(const bench_memory *memory);
    moert_status (*run)(const bench_memory *memory);
    /* An element of the result, chosen by a number in [0, 1), and what it must be, after one
     * run. */
    moert_status (*check)(const bench_memory *memory, double chosen, bench_pair *pair);
} bench_kernel;

typedef struct bench_case {
    const char *name;
    const bench_kernel *kernel;
    bench_how how;
} bench_case;

typedef struct bench_cases {
    const bench_case *at;
    size_t count;
} bench_cases;

extern const bench_cases bench_norm_cases, bench_token_cases, bench_route_cases, bench_format_cases;
