/* The scalar arguments of kernels/exchange (see args.h), and the amounts of work of a row group. */
#ifndef MOERT_ARGS_EXCHANGE_H
#define MOERT_ARGS_EXCHANGE_H

#include "args/args.h"

/* Tokens and slots of a row group. In the GPU form also: the floats of a row that a row group
 * processes, PIECE in dispatch and STRIP in combine, and the row groups of a work-group that has
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

/* MOERT_PLAN_WORDS: 32-bit words that a kernel receives as an argument; with its other arguments
 * they take less than the 1024 bytes that every device accepts. MOERT_PLAN_CHUNK: tokens of a
 * chunk, one bit each. */
enum { MOERT_PLAN_WORDS = 240, MOERT_PLAN_CHUNK = 32 };

/* The arguments of kernels that move rows. `chain`: at most this many rows of a token are summed
 * before they are sent; 1 sends each row. `storing`: the number of work-groups that store rows. */
typedef struct moert_exchange_args {
    args_u32 tokens, topk, slots, width, stride, capacity, rows, ranks, rank, chain, bf16, once,
        storing, round;
} moert_exchange_args;
MOERT_ARGS_LAYOUT(moert_exchange_args, round, 52, 56)

/* A barrier of the ranks' devices. If `ranks` is 0, the barrier does nothing. patience: ticks of
 * kernels/exchange/barrier.h. */
typedef struct moert_barrier_args {
    args_u64 patience;
    args_u32 ranks, rank;
    args_i32 number;
} moert_barrier_args;
MOERT_ARGS_LAYOUT(moert_barrier_args, number, 16, 24)

/* A sum of rows in the windows of a host's ranks: the window of each row, its first float, and the
 * sums that end with it (kernels/exchange/peers.cl). MOERT_PEERS_DEPTH: the most sums that wait for
 * their right half; no tree of 2^31 leaves needs more. MOERT_PEERS_FEW: the most rows that are
 * summed in pairs. MOERT_PEERS_COLUMNS: of a row group. */
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

/* A copy of n floats into a window: the first float there, and in the source. */
typedef struct moert_stage_args {
    args_u64 from, to, n;
} moert_stage_args;
MOERT_ARGS_LAYOUT(moert_stage_args, n, 16, 24)

/* The slots of a batch. `first`: the index of the first word, or lane, of a table that the kernel
 * uses. */
typedef struct moert_plan_args {
    args_u32 tokens, topk, experts, chunks, first, count;
} moert_plan_args;
MOERT_ARGS_LAYOUT(moert_plan_args, count, 20, 24)

/* Rows between a window and a dense matrix of `width` units. */
typedef struct moert_route_args {
    args_u32 experts, width, window_stride, first, type;
} moert_route_args;
MOERT_ARGS_LAYOUT(moert_route_args, type, 16, 20)

#endif
