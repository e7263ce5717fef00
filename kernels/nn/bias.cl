/*
 * Bias of an expert's second projection, scaled by each row's routing weight.
 *
 *   forward   y[r,:] += prob[r] * bias[g,:]            r in [ends[g-1], ends[g])
 *   dprob     dprob[r] += sum_n y[r,n] * bias[g,n]     (y holds the gradient)
 *   gradient  dbias[g,:] (+)= sum_r prob[r] * y[r,:]   rows in order
 *
 * y[M,n] at stride ldy, prob and dprob [M] at stride prob_stride. Deterministic.
 *
 * Grid: (groups, shares). A team has every shares-th row of a group, the first being number `skip`
 * (forward, dprob). A work-group has `columns` columns of a group (gradient), which in the GPU form
 * are those of one step: CREW teams take turns at the rows, and their sums are added in order.
 * Local memory: the team's (dprob); in the GPU form, a vector for each work-item (gradient).
 */
#include "lib/teams.h"

#define CREW (MOERT_ITEMS == 1 ? 1 : 8)

KERNEL void bias_forward(global const uint *ends, uint skip, uint n, ulong ldy,
                         global const float *prob, ulong prob_stride, global const float *bias,
                         global float *y) {
    uint g = skip + get_group_id(0);
    for (uint r = group_start(ends, g) + get_group_id(1); r < ends[g]; r += get_num_groups(1)) {
        vec weight = (vec)(prob[r * prob_stride]);
        global float *row = y + r * ldy;
        for (int c = 0; c < (int)n; c += BATCH * VEC) {
            vec a[BATCH], b[BATCH];
            load_batch(a, row + c, n - c);
            load_batch(b, bias + (ulong)g * n + c, n - c);
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                a[k] = fma(weight, b[k], a[k]);
            store_batch(a, row + c, n - c);
        }
    }
}

KERNEL void bias_dprob(global const uint *ends, uint skip, uint n, ulong ldy, ulong prob_stride,
                       global const float *bias, global const float *y, global float *dprob) {
    TEAM;
    uint g = skip + get_group_id(0);
    for (uint r = group_start(ends, g) + get_group_id(1); r < ends[g]; r += get_num_groups(1)) {
        vec sum = 0.0f;
        for (int c = 0; c < (int)n; c += BATCH * VEC) {
            vec a[BATCH], b[BATCH];
            load_batch(a, y + r * ldy + c, n - c);
            load_batch(b, bias + (ulong)g * n + c, n - c);
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                sum = fma(a[k], b[k], sum);
        }
        const float total = sum_lanes(sum, team);
        if (is_first_item())
            dprob[r * prob_stride] += total;
    }
}

#if MOERT_ITEMS == 1
KERNEL void bias_gradient(global const uint *ends, uint n, ulong ldy, global const float *prob,
                          ulong prob_stride, global const float *y, global float *dbias,
                          int accumulate, uint columns) {
    uint g = get_group_id(0), end = min(n, (uint)(get_group_id(1) + 1) * columns);
    for (uint c = get_group_id(1) * columns; c < end; c += VEC) {
        int part = min(end - c, (uint)VEC);
        global float *target = dbias + (ulong)g * n + c;
        vec sum = accumulate ? load_part(target, part) : (vec)(0.0f);
        for (uint r = group_start(ends, g); r < ends[g]; r++)
            sum = fma((vec)(prob[r * prob_stride]), load_part(y + r * ldy + c, part), sum);
        store_part(sum, target, part);
    }
}
#else
KERNEL_OF(CREW)
void bias_gradient(global const uint *ends, uint n, ulong ldy, global const float *prob,
                   ulong prob_stride, global const float *y, global float *dbias, int accumulate,
                   uint columns) {
    SUMS_OF(CREW);
    const uint g = get_group_id(0), c = get_group_id(1) * VEC, end = ends[g];
    vec sum = 0.0f;
    for (uint r = group_start(ends, g) + team_index(); r < end; r += ROWS_AHEAD * CREW) {
        vec part[ROWS_AHEAD];
        float weight[ROWS_AHEAD];
        UNROLL_FOR(int k = 0; k < ROWS_AHEAD; k++) {
            const uint row = min(r + k * CREW, end - 1);
            part[k] = load_part(y + row * ldy + c, n - c);
            weight[k] = prob[row * prob_stride];
        }
        UNROLL_FOR(int k = 0; k < ROWS_AHEAD; k++)
            sum = r + k * CREW < end ? fma((vec)weight[k], part[k], sum) : sum;
    }
    sum = sum_teams(sum, CREW, sums);
    global float *target = dbias + (ulong)g * n + c;
    if (team_index() == 0)
        store_part(accumulate ? sum + load_part(target, n - c) : sum, target, n - c);
}
#endif
