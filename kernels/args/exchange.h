/* What kernels/exchange is told beside buffers (see args.h), and how it deals rows out. */
#ifndef MOERT_ARGS_EXCHANGE_H
#define MOERT_ARGS_EXCHANGE_H

#include "args/args.h"

/* Tokens and slots of a team; in the GPU form also the floats of a row's piece in dispatch and in
 * combine, of which a team has one, and teams of a work-group where there are several. */
enum {
    MOERT_EXCHANGE_TOKENS = 16,
    MOERT_EXCHANGE_SLOTS = 256,
    MOERT_EXCHANGE_GPU_TOKENS = 1,
    MOERT_EXCHANGE_GPU_SLOTS = 32,
    MOERT_EXCHANGE_GPU_PIECE = 512,
    MOERT_EXCHANGE_GPU_STRIP = 128,
    MOERT_EXCHANGE_GPU_TEAMS = 4
};

/* Words that a kernel is told: with its other arguments less than the 1024 bytes that every device
 * takes. Tokens of a chunk: a bit each. */
enum { MOERT_PLAN_WORDS = 240, MOERT_PLAN_CHUNK = 32 };

/* Of a window and its rows. `chain`: the most rows of a token that are summed before they are sent,
 * 1: none are. `storing`: work-groups that store. */
#define MOERT_EXCHANGE_ARGS(X, S)                                                                  \
    X(S, uint, tokens, 0)                                                                          \
    X(S, uint, topk, 4)                                                                            \
    X(S, uint, slots, 8)                                                                           \
    X(S, uint, width, 12)                                                                          \
    X(S, uint, stride, 16)                                                                         \
    X(S, uint, capacity, 20)                                                                       \
    X(S, uint, rows, 24)                                                                           \
    X(S, uint, ranks, 28)                                                                          \
    X(S, uint, rank, 32)                                                                           \
    X(S, uint, chain, 36)                                                                          \
    X(S, uint, codes, 40)                                                                          \
    X(S, uint, once, 44)                                                                           \
    X(S, uint, storing, 48)                                                                        \
    X(S, uint, round, 52)
MOERT_ARGS_STRUCT(moert_exchange_args, MOERT_EXCHANGE_ARGS, 56)

/* Of a meeting of the ranks' devices; of no ranks: nobody waits. */
#define MOERT_MEETING_ARGS(X, S)                                                                   \
    X(S, ulong, patience_ns, 0)                                                                    \
    X(S, uint, ranks, 8)                                                                           \
    X(S, uint, rank, 12)                                                                           \
    X(S, int, number, 16)
MOERT_ARGS_STRUCT(moert_meeting_args, MOERT_MEETING_ARGS, 24)

/* Of the slots of a batch; `first`: of the words, or lanes, of a table that count here. */
#define MOERT_PLAN_ARGS(X, S)                                                                      \
    X(S, uint, tokens, 0)                                                                          \
    X(S, uint, topk, 4)                                                                            \
    X(S, uint, experts, 8)                                                                         \
    X(S, uint, chunks, 12)                                                                         \
    X(S, uint, first, 16)                                                                          \
    X(S, uint, count, 20)
MOERT_ARGS_STRUCT(moert_plan_args, MOERT_PLAN_ARGS, 24)

#endif
