/* The scalar arguments of kernels/router (see args.h). */
#ifndef MOERT_ARGS_ROUTER_H
#define MOERT_ARGS_ROUTER_H

#include "args/args.h"

/* MOST_EXPERTS: the most experts of a router. In the CPU form, a row group has TOKENS tokens in
 * router.cl and sums.cl, PADDING_TOKENS in balance.cl and padding.cl. LEAST_SLOTS: the smallest
 * SLOTS of gpu.cl. */
enum {
    MOERT_ROUTER_MOST_EXPERTS = 1024,
    MOERT_ROUTER_TOKENS = 16,
    MOERT_ROUTER_PADDING_TOKENS = 256,
    MOERT_ROUTER_LEAST_SLOTS = 8
};

typedef struct moert_router_args {
    args_u64 tokens;
    args_i32 topk, normalised;
    args_f32 scale;
    args_i32 experts, score;
    args_f32 z_factor;
    args_i32 groups, kept_groups, group_best;
    args_u32 sequences; /* entries of `ends`; unused if `ends` is null */
} moert_router_args;
MOERT_ARGS_LAYOUT(moert_router_args, sequences, 44, 48)

#endif
