/*
 * Sums of a router's scores; formulas and shapes are those of router.cl.
 *
 *   router_entropy  entropy[T] = -sum_e r log r; 0 for padding and for tokens with a logit that is
 *                   not finite                                       grid: (blocks of TOKENS)
 *   router_mass     mass[S,E] = sum of r over the tokens of a sequence
 *                                                  grid: (sequences, on GPUs blocks of VEC experts)
 *
 * Required: nothing. Local memory on GPUs: 20 KiB (router_mass). Deterministic: sums over E add
 * lane by lane, then the lanes as a tree. In router_mass, row group i of ROW_GROUPS adds every
 * ROW_GROUPS-th token from the i-th on, and the row groups' sums are added in order; a CPU adds in
 * the same order.
 */
#include "args/router.h"
#include "router/scores.h"

#define TOKENS       BY_FORM(MOERT_ROUTER_TOKENS, 1)
#define MOST_EXPERTS MOERT_ROUTER_MOST_EXPERTS

KERNEL void router_entropy(global const float *scores, global float *entropy,
                           moert_router_args args) {
    ROW_GROUP;
    const ulong first = (ulong)get_group_id(0) * TOKENS, last = min(first + TOKENS, args.tokens);
    for (ulong t = first; t < last; t++) {
        global const float *s = scores + t * args.experts;
        const float total =
            is_pointwise(args.score) ? row_sums(s, 0, args.experts, row_group).x + TINY : 1.0f;
        lane_sums sum = NO_SUM;
        EACH_STEP_OF(e, v, args.experts) {
            const vec r = load_part(s + e, args.experts - e) / total;
            sum.part[v] -= select((vec)0.0f, r * moert_log(r), r > 0.0f);
        }
        const float whole = sum_lanes(sum, row_group);
        if (is_first_item())
            entropy[t] = whole;
    }
}

#define ROW_GROUPS 32 /* of router_mass */

#if MOERT_ITEMS == 1
KERNEL void router_mass(global const float *scores, global const uint *ends, global float *mass,
                        moert_router_args args) {
    const uint sequence = get_group_id(0);
    const ulong start = group_start(ends, sequence), last = min((ulong)ends[sequence], args.tokens);
    global float *all = mass + (ulong)sequence * args.experts;
    vec sum[MOST_EXPERTS / VEC];
    for (uint own = 0; own < ROW_GROUPS; own++) { /* row groups of the GPU form */
        for (int i = 0; i < MOST_EXPERTS / VEC; i++)
            sum[i] = 0.0f;
        for (ulong t = start + own; t < last; t += ROW_GROUPS) {
            global const float *s = scores + t * args.experts;
            const float total =
                is_pointwise(args.score) ? row_sums(s, 0, args.experts, 0).x + TINY : 1.0f;
            for (int e = 0; e < args.experts; e += VEC)
                sum[e / VEC] += load_part(s + e, args.experts - e) / total;
        }
        for (int e = 0; e < args.experts; e += VEC) {
            const int n = args.experts - e;
            store_part(own > 0 ? load_part(all + e, n) + sum[e / VEC] : sum[e / VEC], all + e, n);
        }
    }
}
#else
KERNEL_OF(ROW_GROUPS)
void router_mass(global const float *scores, global const uint *ends, global float *mass,
                 moert_router_args args) {
    local float row_groups[ROW_GROUPS][MOERT_ITEMS] __attribute__((aligned(64)));
    local float sums[ROW_GROUPS][VEC] __attribute__((aligned(64)));
    const uint sequence = get_group_id(0), own = get_local_id(1);
    const int first = get_group_id(1) * VEC, n = args.experts - first,
              summed = is_pointwise(args.score) ? args.experts : 0;
    const ulong last = min((ulong)ends[sequence], args.tokens);
    vec sum = 0.0f;
    for (ulong start = group_start(ends, sequence); start < last; start += ROW_GROUPS) {
        const bool inside = start + own < last;
        global const float *s = scores + (inside ? start + own : start) * args.experts;
        const float whole = row_sums(s, 0, summed, row_groups[own]).x,
                    total = is_pointwise(args.score) ? whole + TINY : 1.0f;
        sum += inside ? load_part(s + first, n) / total : 0.0f;
    }
    *(local vec *)(sums[own] + part_start()) = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 1; i < ROW_GROUPS && own == 0; i++)
        sum += *(local const vec *)(sums[i] + part_start());
    if (own == 0)
        store_part(sum, mass + (ulong)sequence * args.experts + first, n);
}
#endif
