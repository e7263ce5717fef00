/*
 * A machine as a file describes it: what `bench_model --calibrate` measures, and what a person may
 * write down of a machine that is not here (bench/machines).
 *
 * A link or an engine is the line seconds = us * 1e-6 + bytes / (gbps * 1e9).
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

typedef struct bench_line {
    double us, gbps;
} bench_line;

/* A product of ragged or equal groups. */
typedef struct bench_gemm_rate {
    char op[24];   /* forward, glu (forward with the GLU of its result), dgrad or wgrad */
    char type[8];  /* f32 or bf16 */
    size_t n, k;   /* columns of y, columns of x */
    double rows;   /* of a group */
    double gflops; /* of one rank */
} bench_gemm_rate;

/* X(FIELD, what it is): figures that must be positive. */
#define BENCH_MACHINE_NUMBERS(X)                                                                   \
    X(ranks_per_node, "ranks of a node, one a device")                                             \
    X(launch_us, "from one kernel to the next")                                                    \
    X(copy_gbps, "of device memory, read and written bytes")                                       \
    X(dglu_ns, "of the gradient of a GLU, for each number of its result")                          \
    X(host_gbps, "of host memory, read and written bytes, one thread")                             \
    X(memory_gib, "of a device")

/* X(FIELD, what it is): lines. */
#define BENCH_MACHINE_LINES(X)                                                                     \
    X(window, "dispatch or combine inside of a node, by bytes of the rows that a rank receives")   \
    X(stage, "staged dispatch or combine without a network, by the same bytes")                    \
    X(inside, "messages between two ranks of a node, bytes each way")                              \
    X(between, "messages between two nodes, bytes each way of a rank")

typedef struct bench_machine {
    char name[128], source[512];
#define BENCH_MACHINE_NUMBER(field, help) double field;
    BENCH_MACHINE_NUMBERS(BENCH_MACHINE_NUMBER)
#undef BENCH_MACHINE_NUMBER
#define BENCH_MACHINE_LINE(field, help) bench_line field;
    BENCH_MACHINE_LINES(BENCH_MACHINE_LINE)
#undef BENCH_MACHINE_LINE
    double shared_cores; /* of a virtual cluster: what all its ranks share, a core each at a time;
                            0: every rank has its own */
    double crowd; /* share of `between` that is left when crowd_nodes nodes all send to all; of
                     two it is 1, and linear in between */
    double crowd_nodes;
    double tile_rows;  /* rows that a product computes at least of a group, and in multiples of */
    double f32_gflops; /* of a large product in f32: the router's */
    double attention_gflops, attention_backward_gflops; /* f32_gflops unless given */
    bool pipelined; /* messages overlap with the copies of staged rows */
    bool linked; /* GPUs: a node's devices reach each other's memory over links, which `window` is
                    then the line of, by bytes that leave a rank */
    bench_gemm_rate *gemm;
    size_t gemms;
} bench_machine;

/* Errors: ERROR_IO, ERROR_FORMAT (names the file and the field), ERROR_MEMORY. Free it, also after
 * a failure. */
moert_status bench_machine_read(const char *path, bench_machine *machine);
moert_status bench_machine_write(const bench_machine *machine, const char *path);
void bench_machine_free(bench_machine *machine);
/* Adds a rate. Errors: ERROR_MEMORY. */
moert_status bench_machine_add(bench_machine *machine, const bench_gemm_rate *rate);

/*
 * Seconds of the product of `groups` groups of rows/groups rows, 2 rows n k operations: by the rates
 * of the nearest n and k, between their rows in the logarithm, but not faster than memory gives
 * weights and rows of so many bytes a number. ERROR_USAGE if the machine has no rate of this op and
 * type.
 */
typedef struct bench_predict_gemm {
    const char *op, *type;
    double groups, rows, n, k;
} bench_predict_gemm;
moert_status bench_machine_gemm(const bench_machine *machine, const bench_predict_gemm *product,
                                double *seconds);
