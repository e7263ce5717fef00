/* The memory-bound kernels that bench_memory times, each with the bytes that it must move and a
 * check of sampled results. */
#pragma once

#include "exchange/exchange.h"
#include "moert/formats.h"
#include "nn/nn.h"

/* The variants of a kernel. */
typedef struct bench_how {
    moert_format format; /* format and axis of quantizers */
    moert_axis axis;
    moert_dtype type; /* dtype of quantized, dequantized or cast values */
    bool bf16_rows;   /* fake quantization reads bf16 rows */
    bool heads;       /* norms over heads instead of whole rows */
    bool added;       /* the kernel adds to the old value of its result */
    bool large;       /* the router has T K tokens, or the loss has large_vocabulary */
} bench_how;

typedef struct bench_sizes {
    size_t tokens, hidden, intermediate, topk, experts; /* T, H, I, K, E */
    /* predicted: tokens of the loss; vocabulary: V */
    size_t predicted, vocabulary, large_vocabulary;
    bench_how how; /* the variant that the current case measures */
} bench_sizes;

enum { BENCH_INPUTS = 3, BENCH_RESULTS = 5, BENCH_HEAD = 128 }; /* BENCH_HEAD: elements of a head */

/*
 * Each input repeats a pattern of values in [-1, 1), from an offset of its own; bench_value()
 * returns an input's value. Inputs and results are as long as the largest matrix.
 */
typedef struct bench_memory {
    moert_device *device;
    bench_sizes of;
    float *pattern;
    moert_buffer *in[BENCH_INPUTS], *out[BENCH_RESULTS];
    moert_buffer *token;    /* int32 [T] tokens, all below V; also the targets of the loss */
    moert_buffer *index;    /* int32 [T,K] */
    moert_buffer *gather;   /* uint32 [T K]: a permutation */
    moert_buffer *ends;     /* uint32 [1], the number T K */
    moert_buffer *rope;     /* [T, 2, head/2] */
    int32_t *tokens;        /* `token` on the host */
    moert_buffer **scratch; /* growable */
    moert_exchange *exchange;
    moert_exchange_plan *plan;
    moert_window *window; /* [T K, H] */
} bench_memory;

/* Creates inputs and results. The caller must call bench_memory_release, also after an error.
 * Errors: ERROR_MEMORY, ERROR_DEVICE. */
moert_status bench_memory_prepare(bench_memory *memory, moert_comm *comm, size_t seed);
void bench_memory_release(bench_memory *memory);

double bench_value(const bench_memory *memory, size_t input, size_t index);

/* Maps a random number in [0, 1) to an index below `count`. */
size_t bench_index(double chosen, size_t count);
/* Reads an element, of float32 or of `type`. */
moert_status bench_read(const moert_buffer *buffer, size_t index, double *x);
moert_status bench_read_as(const moert_buffer *buffer, moert_dtype type, size_t index, double *x);

/* Defines NAME_bytes(s), the bytes of a kernel that moves `floats` float32 elements. */
#define BENCH_FLOATS(name, floats)                                                                 \
    static double name##_bytes(const bench_sizes *s) {                                             \
        return 4.0 * (double)(floats);                                                             \
    }

typedef struct bench_pair {
    double got, want;
} bench_pair;

/*
 * A kernel. `bytes` counts each operand once, so reading an operand repeatedly or from a cache does
 * not raise the rate. Operands are float32 unless stated otherwise. The check recomputes single
 * elements in float64.
 */
typedef struct bench_kernel {
    double (*bytes)(const bench_sizes *of);
    /* prepares inputs of the kernel, and is not timed; may be NULL */
    moert_status (*begin)(const bench_memory *memory);
    moert_status (*run)(const bench_memory *memory);
    /* *pair = an element of the result after one run, and the element's expected value; the random
     * number in [0, 1) chooses the element */
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
