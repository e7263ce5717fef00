/*
 * What a training step takes: layers (predict.h) with attention around them, the head, the
 * optimizer on what a rank owns, and the sum of replicated gradients.
 *
 * Dense products have the machine's rates, attention its own; what else happens to rows of H or V
 * numbers is passes over memory, counted from the kernels of a step.
 */
#pragma once

#include "bench/predict/predict.h"

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
