/*
 * Bias of an expert's second projection, scaled by each row's routing weight.
 *
 *   forward   y[r,:] += prob[r] * bias[g,:]            r in [ends[g-1], ends[g])
 *   dprob     dprob[r] += sum_n y[r,n] * bias[g,n]     (y holds the gradient)
 *   gradient  dbias[g,:] (+)= sum_r prob[r] * y[r,:]   rows in order
 *
 * y[M,n] at stride ldy, prob and dprob [M] at stride prob_stride. No local memory. Deterministic.
 */
KERNEL void bias_forward(global const uint *ends, uint n, ulong ldy, global const float *prob, ulong prob_stride,
                         global const float *bias, global float *y)
{
    uint g = get_group_id(0);
    for (uint r = group_start(ends, g); r < ends[g]; r++) {
        vec weight = (vec)(prob[r * prob_stride]);
        global float *row = y + r * ldy;
        for (uint c = 0; c < n; c += VEC) {
            int part = min(n - c, (uint)VEC);
            store_part(fma(weight, load_part(bias + (ulong)g * n + c, part), load_part(row + c, part)), row + c, part);
        }
    }
}

KERNEL void bias_dprob(global const uint *ends, uint n, ulong ldy, ulong prob_stride, global const float *bias,
                       global const float *y, global float *dprob)
{
    TEAM;
    uint g = get_group_id(0);
    for (uint r = group_start(ends, g); r < ends[g]; r++) {
        vec sum = 0.0f;
        for (uint c = 0; c < n; c += VEC) {
            int part = min(n - c, (uint)VEC);
            sum = fma(load_part(y + r * ldy + c, part), load_part(bias + (ulong)g * n + c, part), sum);
        }
        dprob[r * prob_stride] += sum_lanes(sum, team);
    }
}

KERNEL void bias_gradient(global const uint *ends, uint n, ulong ldy, global const float *prob, ulong prob_stride,
                          global const float *y, global float *dbias, int accumulate, uint columns)
{
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
