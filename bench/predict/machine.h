/*
 * A machine as a file describes it. `bench_model --calibrate` writes such a file; files for other
 * machines can be written by hand (bench/machines).
 *
 * The time of a link or an engine is a line: seconds = us * 1e-6 + bytes / (gbps * 1e9).
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

typedef struct bench_line {
    double us, gbps;
} bench_line;

/* The rate of a grouped GEMM. */
typedef struct bench_gemm_rate {
    char op[24];   /* forward, glu (forward with the GLU as its epilogue), dgrad or wgrad */
    char type[8];  /* dtype of the operands: f32 or bf16 */
    size_t n, k;   /* n: columns of y; k: columns of x */
    double rows;   /* per group */
    double gflops; /* rate of one rank */
} bench_gemm_rate;

/* X(FIELD, standard, meaning): numbers of a machine. If the file omits FIELD, the value is
 * `standard`; if `standard` is NAN, the file must give FIELD. A number must be positive, or at
 * least 0 if its `standard` is 0. */
#define BENCH_MACHINE_NUMBERS(X)                                                                   \
    X(ranks_per_node, NAN, "ranks of a node, one per device")                                      \
    X(launch_us, NAN, "time between the starts of small kernels")                                  \
    X(copy_gbps, NAN, "copies within device memory, bytes read plus written")                      \
    X(dglu_ns, NAN, "gradient of a GLU, per element of its result")                                \
    X(host_gbps, NAN, "copies within host memory by one thread, bytes read plus written")          \
    X(memory_gib, NAN, "memory of a device")                                                       \
    X(shared_cores, 0.0,                                                                           \
      "of a virtual cluster: cores that all ranks share, one rank per core at "                    \
      "a time; 0 = no sharing")                                                                    \
    X(crowd, 1.0,                                                                                  \
      "fraction of between.gbps that is left when crowd_nodes nodes all send to all; "             \
      "1 for two nodes, linear in between")                                                        \
    X(crowd_nodes, 3.0, "")                                                                        \
    X(tile_rows, 1.0, "a GEMM computes the rows of a group in multiples of this")                  \
    X(f32_gflops, NAN, "rate of the router's GEMM")                                                \
    X(attention_gflops, m->f32_gflops, "")                                                         \
    X(attention_backward_gflops, m->f32_gflops, "")

/* X(FIELD, meaning): lines. */
#define BENCH_MACHINE_LINES(X)                                                                     \
    X(window, "dispatch or combine inside of a node, by bytes of the rows that a rank receives")   \
    X(stage, "staged dispatch or combine without a network, by the same bytes")                    \
    X(inside, "messages between two ranks of a node, bytes each way")                              \
    X(between, "messages between two nodes, bytes each way of a rank")

typedef struct bench_machine {
    char name[128], source[512];
#define BENCH_MACHINE_NUMBER(field, standard, help) double field;
    BENCH_MACHINE_NUMBERS(BENCH_MACHINE_NUMBER)
#undef BENCH_MACHINE_NUMBER
#define BENCH_MACHINE_LINE(field, help) bench_line field;
    BENCH_MACHINE_LINES(BENCH_MACHINE_LINE)
#undef BENCH_MACHINE_LINE
    bool pipelined; /* in the staged engine, messages overlap with the copies through host memory */
    /* the devices of a node are GPUs that access each other's memory over links; `window` then
     * gives the time of these links for the bytes that leave a rank */
    bool linked;
    bench_gemm_rate *gemm;
    size_t gemms;
} bench_machine;

/* Errors: ERROR_IO, ERROR_FORMAT (names the file and the field), ERROR_MEMORY. The caller frees the
 * machine, also after a failure. */
moert_status bench_machine_read(const char *path, bench_machine *machine);
moert_status bench_machine_write(const bench_machine *machine, const char *path);
void bench_machine_free(bench_machine *machine);
/* Adds a rate. Errors: ERROR_MEMORY. */
moert_status bench_machine_add(bench_machine *machine, const bench_gemm_rate *rate);

/*
 * *seconds = time of a GEMM of `groups` groups with rows / groups rows each, which takes 2 rows n k
 * FLOPs. Uses the rates of the nearest n and k, interpolated in the logarithm of the rows. The time
 * is at least the time to move weights and rows through device memory. ERROR_USAGE if the machine
 * has no rate of this op and type.
 */
typedef struct bench_predict_gemm {
    const char *op, *type;
    double groups, rows, n, k;
} bench_predict_gemm;
moert_status bench_machine_gemm(const bench_machine *machine, const bench_predict_gemm *gemm,
                                double *seconds);
