/*
 * The bias of an expert's second projection, scaled by each row's routing weight prob, or another
 * bias of groups of rows. For another bias prob is null, which means 1.
 *
 *   forward   y[r,:] += prob[r] * bias[g,:]            r in [ends[g-1], ends[g])
 *   dprob     dprob[r] += sum_n y[r,n] * bias[g,n]     (y holds the gradient)
 *   gradient  dbias[g,:] (+)= sum_r prob[r] * y[r,:]   rows in order
 *
 * y[M,n] at stride ldy, prob and dprob [M] at stride prob_stride, bias [G,n] at stride
 * bias_stride, which is n, or 0 if the groups share one bias; dbias [G,n] dense.
 *
 * Grid of forward and dprob: (groups from number `skip` on, S). A row group computes every S-th row
 * of a group. Grid of the gradient: (groups from number `skip` on, blocks of `columns` columns). In
 * the GPU form a block is one step of VEC columns. Local memory on GPUs: 128 bytes (dprob).
 * Deterministic.
 */
#include "args/nn.h"

#define ROWS_AHEAD (MOERT_ITEMS == 1 ? 1 : 16) /* rows that are loaded at once */

static inline float weight_of(global const float *prob, ulong row, moert_bias_args args) {
    return prob != 0 ? prob[row * args.prob_stride] : 1.0f;
}

KERNEL void bias_forward(global const uint *ends, global const float *prob,
                         global const float *bias, global float *y, moert_bias_args args) {
    uint g = args.skip + get_group_id(0);
    for (uint r = group_start(ends, g) + get_group_id(1); r < ends[g]; r += get_num_groups(1)) {
        vec weight = (vec)weight_of(prob, r, args);
        global float *row = y + r * args.ldy;
        for (int c = 0; c < (int)args.n; c += BATCH * VEC) {
            vec a[BATCH], b[BATCH];
            load_batch(a, row + c, args.n - c);
            load_batch(b, bias + (ulong)g * args.bias_stride + c, args.n - c);
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                a[k] = fma(weight, b[k], a[k]);
            store_batch(a, row + c, args.n - c);
        }
    }
}

KERNEL void bias_dprob(global const uint *ends, global const float *bias, global const float *y,
                       global float *dprob, moert_bias_args args) {
    ROW_GROUP;
    uint g = args.skip + get_group_id(0);
    for (uint r = group_start(ends, g) + get_group_id(1); r < ends[g]; r += get_num_groups(1)) {
        lane_sums sum = NO_SUM;
        EACH_STEP_OF(c, v, args.n)
        sum.part[v] =
            fma(load_part(y + r * args.ldy + c, args.n - c),
                load_part(bias + (ulong)g * args.bias_stride + c, args.n - c), sum.part[v]);
        const float total = sum_lanes(sum, row_group);
        if (is_first_item())
            dprob[r * args.prob_stride] += total;
    }
}

KERNEL void bias_gradient(global const uint *ends, global const float *prob, global const float *y,
                          global float *dbias, moert_bias_args args) {
    const uint g = args.skip + get_group_id(0), last = ends[g],
               end = min(args.n, (uint)(get_group_id(1) + 1) * args.columns);
    for (uint c = get_group_id(1) * args.columns; c < end; c += VEC) {
        const int n = (int)(end - c);
        global float *target = dbias + (ulong)g * args.n + c;
        vec sum = args.accumulate ? load_part(target, n) : (vec)(0.0f);
        for (uint r = group_start(ends, g); r < last; r += ROWS_AHEAD) {
            vec part[ROWS_AHEAD];
            float weight[ROWS_AHEAD];
            UNROLL_FOR(int k = 0; k < ROWS_AHEAD; k++) {
                const uint row = min(r + k, last - 1);
                part[k] = load_part(y + row * args.ldy + c, n);
                weight[k] = weight_of(prob, row, args);
            }
            UNROLL_FOR(int k = 0; k < ROWS_AHEAD; k++)
                sum = r + k < last ? fma((vec)weight[k], part[k], sum) : sum;
        }
        store_part(sum, target, n);
    }
}
