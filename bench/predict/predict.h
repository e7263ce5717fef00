/*
 * What a layer takes on a machine that need not be there, by the very steps that moert runs:
 *
 *   route    x router^T and the choice of experts
 *   plan     one all-gather of E counts a rank
 *   dispatch every slot's row to the owner of its expert
 *   experts  two products and a GLU forward; twice as many products backward
 *   combine  every slot's row back to its token's rank, summed there
 *   sums     the router's gradient over all ranks, experts' gradients over their replicas
 *
 * The slowest rank counts: that with the most rows (spread.h). Engines, by what crosses a link:
 *
 *   window   rows of a node's ranks go straight to their place
 *   staged   every row through host memory and a message, K times where its experts are
 *   node     dispatch crosses once for every (token, node) pair and fans out there through windows;
 *            combine brings back every slot's row, since they are summed in the order of K
 *
 * Between linked devices of a window a token's row goes once to each, if that saves a quarter of
 * them, and is copied there; results are sent while their product makes them, if it rounds to bf16,
 * and dx is fetched beside the weights' gradients.
 *
 * With W chunks the experts of one part of the tokens compute while rows of others travel:
 * d/W + max(experts, (W-1)/W (d + c)) + c/W, and what every chunk costs anew W times. Where N ranks
 * take turns on a core, it has others' work to do meanwhile: only 1/N of the time is hidden.
 */
#pragma once

#include "bench/predict/machine.h"
#include "bench/predict/spread.h"

typedef enum bench_engine { BENCH_WINDOW, BENCH_STAGED, BENCH_NODE } bench_engine;
#define BENCH_ENGINE_WORDS "window|staged|node"

typedef struct bench_work {
    size_t ranks, ep; /* ranks that share the experts */
    size_t tokens;    /* of a rank */
    size_t hidden, intermediate, experts, topk;
    bench_skew skew;
    const char *type;    /* of the experts' products: f32 or bf16 */
    double row_bytes;    /* of a number of a dispatched row: 4, 2 or 33/32 */
    double result_bytes; /* ... of a row that comes back: 4 or 2 */
    bench_engine engine;
    size_t chunks;        /* 0: as many as the exchange takes */
    size_t micro_batches; /* of a step, which share one sum of gradients */
    bool backward;        /* forward, backward and sums; else forward alone */
} bench_work;

/* X(PART, what it is) */
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
    double seconds;                     /* of the slowest rank */
    double part[BENCH_PARTS];           /* alone: they add up to more where chunks overlap them */
    double hidden;                      /* seconds that overlap takes off their sum */
    double bytes_inside, bytes_between; /* that a rank sends in a forward pass */
    bench_part bound;                   /* the largest part */
} bench_prediction;

/* Nodes that the ranks need. */
size_t bench_nodes(const bench_machine *machine, size_t ranks);

/* Pure. Errors: ERROR_USAGE (sizes that do not fit, a rate that the machine lacks),
 * ERROR_MEMORY. */
moert_status bench_predict(const bench_machine *machine, const bench_work *work,
                           bench_prediction *prediction);

/*
 * What a training step takes: layers with attention around them, the head, the optimizer on what a
 * rank owns, and the sum of replicated gradients.
 *
 * Dense products have the machine's rates, attention its own; what else happens to rows of H or V
 * numbers is passes over memory, counted from the kernels of a step.
 */
typedef struct bench_stack {
    size_t layers, heads, kv_heads, head, vocabulary;
    size_t length; /* tokens of a sequence */
} bench_stack;

typedef struct bench_step {
    double seconds;
    double layers, dense, optimizer, sums; /* of these: sums are those of dense gradients */
} bench_step;

/* Of work->micro_batches passes forward and backward of work->tokens a rank. Pure. Errors as
 * bench_predict. */
moert_status bench_predict_step(const bench_machine *machine, const bench_work *work,
                                const bench_stack *stack, bench_step *step);
