/* What kernels/exchange is told beside buffers (see args.h), and how it deals rows out. */
#ifndef MOERT_ARGS_EXCHANGE_H
#define MOERT_ARGS_EXCHANGE_H

#include "args/args.h"

/* Tokens and slots of a row_group; in the GPU form also the floats of a row's piece in dispatch and in
 * combine, of which a row_group has one, and row_groups of a work-group where there are several. */
enum {
    MOERT_EXCHANGE_TOKENS = 16,
    MOERT_EXCHANGE_SLOTS = 256,
    MOERT_EXCHANGE_GPU_TOKENS = 1,
    MOERT_EXCHANGE_GPU_SLOTS = 32,
    MOERT_EXCHANGE_GPU_PIECE = 512,
    MOERT_EXCHANGE_GPU_STRIP = 128,
    MOERT_EXCHANGE_GPU_ROW_GROUPS = 4
};

/* Words that a kernel is told: with its other arguments less than the 1024 bytes that every device
 * takes. Tokens of a chunk: a bit each. */
enum { MOERT_PLAN_WORDS = 240, MOERT_PLAN_CHUNK = 32 };

/* Of a window and its rows. `chain`: the most rows of a token that are summed before they are sent,
 * 1: none are. `storing`: work-groups that store. */
typedef struct moert_exchange_args {
    args_u32 tokens, topk, slots, width, stride, capacity, rows, ranks, rank, chain, codes, once,
        storing, round;
} moert_exchange_args;
MOERT_ARGS_LAYOUT(moert_exchange_args, round, 52, 56)

/* Of a meeting of the ranks' devices; of no ranks: nobody waits. */
typedef struct moert_barrier_args {
    args_u64 patience_ns;
    args_u32 ranks, rank;
    args_i32 number;
} moert_barrier_args;
MOERT_ARGS_LAYOUT(moert_barrier_args, number, 16, 24)

/* Of the slots of a batch; `first`: of the words, or lanes, of a table that count here. */
typedef struct moert_plan_args {
    args_u32 tokens, topk, experts, chunks, first, count;
} moert_plan_args;
MOERT_ARGS_LAYOUT(moert_plan_args, count, 20, 24)

#endif
