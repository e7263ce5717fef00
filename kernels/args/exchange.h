/* The scalar arguments of kernels/exchange (see args.h), and how much a row group processes. */
#ifndef MOERT_ARGS_EXCHANGE_H
#define MOERT_ARGS_EXCHANGE_H

#include "args/args.h"

/* TOKENS, SLOTS: the tokens or slots that a row group processes. GPU_PIECE: the floats of a row
 * that a row group moves in a dispatch. GPU_STRIP: the floats of a row that a row group sums in a
 * combine. GPU_ROW_GROUPS: the row groups of a work-group in kernels whose work-groups have
 * several. */
enum {
    MOERT_EXCHANGE_TOKENS = 16,
    MOERT_EXCHANGE_SLOTS = 256,
    MOERT_EXCHANGE_GPU_TOKENS = 1,
    MOERT_EXCHANGE_GPU_SLOTS = 32,
    MOERT_EXCHANGE_GPU_PIECE = 512,
    MOERT_EXCHANGE_GPU_STRIP = 128,
    MOERT_EXCHANGE_GPU_ROW_GROUPS = 4
};

/* MOERT_PLAN_WORDS: the 32-bit words of store_words' array argument. All arguments of store_words
 * take less than the 1024 bytes that every device accepts. MOERT_PLAN_CHUNK: tokens of a chunk, one
 * bit each. */
enum { MOERT_PLAN_WORDS = 240, MOERT_PLAN_CHUNK = 32 };

/* The arguments of kernels that move rows. `chain`: the most rows of a token that their owner sums
 * before it sends the sum; with 1, the owner sends each row. `storing`: the number of work-groups
 * that store rows. */
typedef struct moert_exchange_args {
    args_u32 tokens, topk, slots, width, stride, capacity, rows, ranks, rank, chain, bf16, once,
        storing, round;
} moert_exchange_args;
MOERT_ARGS_LAYOUT(moert_exchange_args, round, 52, 56)

/* A barrier of the ranks' devices. If `ranks` is 0, the barrier does nothing. `patience`: the
 * longest wait, in ticks (kernels/exchange/barrier.h). */
typedef struct moert_barrier_args {
    args_u64 patience;
    args_u32 ranks, rank;
    args_i32 number;
} moert_barrier_args;
MOERT_ARGS_LAYOUT(moert_barrier_args, number, 16, 24)

/* A kernel that moves rows and contains a barrier. */
typedef struct moert_fused_args {
    moert_exchange_args move;
    moert_barrier_args barrier;
} moert_fused_args;
MOERT_ARGS_LAYOUT(moert_fused_args, barrier, 56, 80)

/* A sum of rows in the windows of a host's ranks (kernels/exchange/peers.cl). A node is a row: the
 * rank of its window, its first float in that window, and the number of additions that follow once
 * the row is read. MOERT_PEERS_DEPTH: the most partial sums that wait for their right operand; no
 * tree of 2^31 leaves needs more. MOERT_PEERS_FEW: the most rows that sum_pairs takes.
 * MOERT_PEERS_COLUMNS: the columns of a row group. */
enum {
    MOERT_PEERS_NODES = 71,
    MOERT_PEERS_FEW = 8,
    MOERT_PEERS_DEPTH = 32,
    MOERT_PEERS_COLUMNS = 1024,
    MOERT_PEERS_GPU_COLUMNS = 512
};
typedef struct moert_peers_node {
    args_u32 rank, at, joins;
} moert_peers_node;
typedef struct moert_peers_args {
    args_u64 target, n;
    args_u32 nodes;
    args_i32 accumulate;
    moert_peers_node node[MOERT_PEERS_NODES];
} moert_peers_args;
MOERT_ARGS_LAYOUT(moert_peers_args, node, 24, 880)

/* A copy of n floats from float `from` of a buffer to float `to` of a window. */
typedef struct moert_stage_args {
    args_u64 from, to, n;
} moert_stage_args;
MOERT_ARGS_LAYOUT(moert_stage_args, n, 16, 24)

/* Arguments of the kernels that compute a batch's destinations (plan.cl). `first`: where the kernel
 * begins in `table`, in words (store_words) or in entries (place_slots). */
typedef struct moert_plan_args {
    args_u32 tokens, topk, experts, chunks, first, count;
} moert_plan_args;
MOERT_ARGS_LAYOUT(moert_plan_args, count, 20, 24)

/* Arguments of route.cl, which moves rows of `width` units between a window and a dense matrix. */
typedef struct moert_route_args {
    args_u32 experts, width, window_stride, first, type;
} moert_route_args;
MOERT_ARGS_LAYOUT(moert_route_args, type, 16, 20)

#endif
