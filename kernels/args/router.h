/* The numbers among the arguments of kernels/router (see args.h). */
#ifndef MOERT_ARGS_ROUTER_H
#define MOERT_ARGS_ROUTER_H

#include "args/args.h"

#define MOERT_ROUTER_ARGS(X, S)                                                                    \
    X(S, ulong, tokens, 0)                                                                         \
    X(S, int, topk, 8)                                                                             \
    X(S, int, normalised, 12)                                                                      \
    X(S, float, scale, 16)                                                                         \
    X(S, int, experts, 20)                                                                         \
    X(S, int, score, 24)                                                                           \
    X(S, float, z_factor, 28)                                                                      \
    X(S, int, groups, 32)                                                                          \
    X(S, int, kept_groups, 36)                                                                     \
    X(S, int, group_best, 40)
MOERT_ARGS_STRUCT(moert_router_args, MOERT_ROUTER_ARGS, 48)

#endif
