/*
 * Predicts the time of a layer on a described machine, from the steps that moert runs:
 *
 *   route    x router^T and the choice of experts
 *   plan     one all-gather of E counts per rank
 *   dispatch every slot's row to the owner of its expert
 *   experts  two GEMMs and a GLU forward; four GEMMs backward
 *   combine  every slot's row back to its token's rank, summed there
 *   sums     the router's gradient over all ranks, experts' gradients over their replicas, and
 *            partial sums that clones hand on
 *
 * The slowest rank is the one with the most rows (spread.h). Traffic of the engines:
 *
 *   window   ranks of a node write rows directly into the owner's window
 *   staged   every slot's row goes through host memory and a message
 *   node     dispatch sends one row per (token, node) pair, and the windows of that node distribute
 *            the row; combine returns every slot's row, since rows are summed in slot order
 *
 * With windows and linked devices, dispatch sends a token's row once to each device, which makes
 * the other copies, if this saves a quarter of the rows. The GEMM's epilogue sends bf16 results.
 * The exchange of dx overlaps with the weight gradients.
 *
 * With W chunks, the experts compute on one chunk while the rows of other chunks travel. With d, c
 * and `experts` for the times of dispatch, combine and compute, the total is
 * d/W + max(experts, (W-1)/W (d + c)) + c/W, plus W times the fixed cost of a chunk. If N ranks
 * share a core, only 1/N of the overlapped time is saved, because other ranks use the core while
 * one waits.
 */
#pragma once

#include "bench/predict/machine.h"
#include "bench/predict/spread.h"

typedef enum bench_engine { BENCH_WINDOW, BENCH_STAGED, BENCH_NODE } bench_engine;
#define BENCH_ENGINE_WORDS "window|staged|node"

typedef struct bench_work {
    size_t ranks, ep; /* ep: ranks that share one set of experts */
    size_t tokens;    /* tokens of a rank */
    size_t hidden, intermediate, experts, topk;
    bench_skew skew;
    bool balanced;       /* the experts are placed by their expected rows */
    size_t clones;       /* room for clones on each rank, if `balanced` */
    const char *type;    /* dtype of the experts' GEMMs: f32 or bf16 */
    double row_bytes;    /* bytes per element of a dispatched row: 4, 2 or 33/32 */
    double result_bytes; /* bytes per element of a combined row: 4 or 2 */
    bench_engine engine;
    size_t chunks;        /* number of chunks; 0: the default of the exchange */
    size_t micro_batches; /* micro-batches of a step, which sums gradients once */
    bool backward; /* predict forward, backward and sums of gradients; otherwise only forward */
} bench_work;

/* X(PART, name) */
#define BENCH_PART_TABLE(X)                                                                        \
    X(GEMMS, "experts' GEMMs")                                                                     \
    X(MEMORY, "memory: GLU, router, rows")                                                         \
    X(INSIDE, "exchange inside of nodes")                                                          \
    X(BETWEEN, "exchange between nodes")                                                           \
    X(SUMS, "sums of gradients")                                                                   \
    X(LATENCY, "small messages, launches")

typedef enum bench_part {
#define BENCH_PART_ENUM(part, text) BENCH_##part,
    BENCH_PART_TABLE(BENCH_PART_ENUM)
#undef BENCH_PART_ENUM
        BENCH_PARTS
} bench_part;

const char *bench_part_name(bench_part part);

typedef struct bench_prediction {
    double seconds;           /* time of the slowest rank */
    double part[BENCH_PARTS]; /* seconds of each part, without overlap */
    double hidden;            /* seconds saved by overlap: `seconds` = sum of parts - hidden */
    /* bytes that a rank sends in a forward pass, inside of and between nodes */
    double bytes_inside, bytes_between;
    bench_part bound; /* the largest part */
} bench_prediction;

/* Number of nodes that `ranks` ranks occupy. */
size_t bench_nodes(const bench_machine *machine, size_t ranks);

/* Pure. Errors: ERROR_USAGE (sizes that do not fit, a rate that the machine lacks),
 * ERROR_MEMORY. */
moert_status bench_predict(const bench_machine *machine, const bench_work *work,
                           bench_prediction *prediction);

/*
 * The time of a training step: MoE layers, attention, the head, the optimizer of a rank's
 * parameters, and the sum of replicated gradients.
 *
 * Dense GEMMs use the machine's GEMM rates, and attention uses the machine's attention rates. All
 * other work on rows of H or V elements is predicted as passes over memory, with the number of
 * passes that the kernels of a step make.
 */
typedef struct bench_stack {
    size_t layers, heads, kv_heads, head, vocabulary;
    size_t length; /* tokens of a sequence */
} bench_stack;

typedef struct bench_step {
    double seconds;
    /* the parts of `seconds`; sums: time to sum the gradients of dense weights over the ranks */
    double layers, dense, optimizer, sums;
} bench_step;

/* Predicts a step of work->micro_batches forward and backward passes, each over work->tokens tokens
 * per rank. Pure. Errors: those of bench_predict. */
moert_status bench_predict_step(const bench_machine *machine, const bench_work *work,
                                const bench_stack *stack, bench_step *step);
