/*
 * The gated linear unit and its gradient, float32, over v[M,2I] = [g | u], or columns g, u alternating (interleaved).
 *
 *   gc = min(g, limit)    uc = clamp(u, -limit, limit)    s = sigmoid(alpha gc)    act = gc s
 *   h  = prob (uc + offset) act
 *   dg = dh prob (uc + offset) s (1 + alpha gc (1 - s))  where g <= limit, else 0
 *   du = dh prob act                                     where -limit <= u <= limit, else 0
 *   dprob = sum over a row of dh (uc + offset) act
 *
 * Shapes: h, dh[M,I]; dv[M,2I]; prob, dprob[M] at stride prob_stride, prob null = 1, dprob null = not wanted.
 * A work-group makes `split` whole rows, 16 columns at a time. NaNs of g and u pass through the limits; an infinite limit
 * limits nothing. Deterministic: a row's bits depend on the row alone; dprob adds column j into lane j mod 16, then the
 * lanes as a tree. dv may be v.
 *
 * Grid: (splits of the rows). No local memory.
 */

#include "glu.h"

/* Columns [j, j + n) of a row v[2I], n below 16 at the row's end. */
static inline pair load_pair(global const float *v, int j, int n, int width, int interleaved)
{
    if (!interleaved)
        return (pair){load_part(v + j, n), load_part(v + width + j, n)};
    vec a = load_part(v + 2 * j, 2 * n), b = 0.0f;
    if (2 * n > VEC)
        b = load_part(v + 2 * j + VEC, 2 * n - VEC);
    return gate_and_up(a, b, interleaved);
}

static inline void store_pair(pair x, global float *v, int j, int n, int width, int interleaved)
{
    if (!interleaved) {
        store_part(x.g, v + j, n);
        store_part(x.u, v + width + j, n);
        return;
    }
    vec a, b;
    a.even = x.g.lo;
    a.odd = x.u.lo;
    b.even = x.g.hi;
    b.odd = x.u.hi;
    store_part(a, v + 2 * j, 2 * n);
    if (2 * n > VEC)
        store_part(b, v + 2 * j + VEC, 2 * n - VEC);
}

KERNEL void glu_forward(global const float *v, global const float *prob, ulong prob_stride, global float *h, uint rows,
                        int width, int interleaved, float limit, float alpha, float offset, uint split)
{
    const glu_form form = {interleaved, limit, alpha, offset};
    uint first = get_group_id(0) * split, end = min(rows, first + split);
    for (uint m = first; m < end; m++) {
        global const float *row = v + (ulong)m * 2 * width;
        vec p = prob != 0 ? prob[m * prob_stride] : 1.0f;
        for (int j = 0; j < width; j += VEC) {
            pair x = load_pair(row, j, width - j, width, interleaved);
            store_part(glu_of(x, p, form), h + (ulong)m * width + j, width - j);
        }
    }
}

KERNEL void glu_backward(global const float *v, global const float *prob, ulong prob_stride, global const float *dh,
                         global float *dv, global float *dprob, uint rows, int width, int interleaved, float limit,
                         float alpha, float offset, uint split)
{
    TEAM;
    uint first = get_group_id(0) * split, end = min(rows, first + split);
    for (uint m = first; m < end; m++) {
        global const float *row = v + (ulong)m * 2 * width;
        vec p = prob != 0 ? prob[m * prob_stride] : 1.0f, sum = 0.0f;
        for (int j = 0; j < width; j += VEC) {
            int n = width - j;
            pair x = load_pair(row, j, n, width, interleaved), c = clamp_pair(x, limit);
            vec s = sigmoid(alpha * c.g), act = c.g * s, up = c.u + offset;
            vec q = load_part(dh + (ulong)m * width + j, n);
            vec dg = q * p * up * s * (1.0f + alpha * c.g * (1.0f - s)), du = q * p * act;
            sum += q * up * act;
            pair d = {x.g > limit ? 0.0f : dg, x.u > limit || x.u < -limit ? 0.0f : du};
            store_pair(d, dv + (ulong)m * 2 * width, j, n, width, interleaved);
        }
        if (dprob != 0)
            dprob[m * prob_stride] = sum_lanes(sum, team);
    }
}
