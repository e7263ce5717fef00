/*
 * The gated linear unit and its gradient over v[M,2I] = [g | u], or columns g, u alternating (interleaved).
 *
 *   gc = min(g, limit)    uc = clamp(u, -limit, limit)    s = sigmoid(alpha gc)    act = gc s
 *   h  = prob (uc + offset) act
 *   dg = dh prob (uc + offset) s (1 + alpha gc (1 - s))  where g <= limit, else 0
 *   du = dh prob act                                     where -limit <= u <= limit, else 0
 *   dprob = sum over a row of dh (uc + offset) act
 *
 * Shapes: h, dh[M,I]; dv[M,2I]; prob, dprob[M] at stride prob_stride, prob null = 1, dprob null = not wanted.
 * A team makes `split` whole rows, a step of columns at a time. NaNs of g and u pass through the limits; an infinite limit
 * limits nothing. Deterministic: a row's bits depend on the row alone; dprob adds column j into lane j mod VEC, then the
 * lanes as a tree. A dv of v's type may be v.
 *
 * Required: FROM, the type of v and dh, and TYPE, of h and dv: 0 (float32) or 2 (bf16, rounded). What is computed is float32.
 * Grid: (splits of rows [first_row, rows)). Local memory: the team's.
 */
#if !defined(FROM) || !defined(TYPE)
#error "FROM and TYPE must be defined"
#endif

#include "formats.h"
#include "glu.h"

/*
 * Columns [j, j + n) of the row of v from number `row` on, n below VEC at the row's end. Of an interleaved row an item has the
 * pairs that lie together at twice its place: two parts, of which load_as adds its place to the first.
 */
static inline pair load_pair(global const void *v, ulong row, int j, int n, int width, int interleaved)
{
    if (!interleaved)
        return (pair){load_as(v, FROM, row + j, n), load_as(v, FROM, row + width + j, n)};
    const ulong own = row + 2 * j + part_start();
    const int left = 2 * n - part_start();
    vec a = load_as(v, FROM, own, left), b = 0.0f;
    if (left > part_start() + PART)
        b = load_as(v, FROM, own + PART, left - PART);
    return gate_and_up(a, b, interleaved);
}

/* The same, stored. */
static inline void store_pair(pair x, global void *v, ulong row, int j, int n, int width, int interleaved)
{
    if (!interleaved) {
        store_as(x.g, v, TYPE, row + j, n);
        store_as(x.u, v, TYPE, row + width + j, n);
        return;
    }
    const ulong own = row + 2 * j + part_start();
    const int left = 2 * n - part_start();
    vec a, b;
    a.even = x.g.lo;
    a.odd = x.u.lo;
    b.even = x.g.hi;
    b.odd = x.u.hi;
    store_as(a, v, TYPE, own, left);
    if (left > part_start() + PART)
        store_as(b, v, TYPE, own + PART, left - PART);
}

KERNEL void glu_forward(global const void *v, global const float *prob, ulong prob_stride, global void *h,
                        uint first_row, uint rows, int width, int interleaved, float limit, float alpha, float offset,
                        uint split)
{
    const glu_form form = {interleaved, limit, alpha, offset};
    uint first = first_row + get_group_id(0) * split, end = min(rows, first + split);
    for (uint m = first; m < end; m++) {
        const ulong row = (ulong)m * width;
        vec p = prob != 0 ? prob[m * prob_stride] : 1.0f;
        for (int j = 0; j < width; j += BATCH * VEC) {
            pair x[BATCH];
            UNROLL for (int k = 0; k < BATCH; k++)
                x[k] = load_pair(v, 2 * row, j + k * VEC, width - j - k * VEC, width, interleaved);
            UNROLL for (int k = 0; k < BATCH; k++)
                store_as(glu_of(x[k], p, form), h, TYPE, row + j + k * VEC, width - j - k * VEC);
        }
    }
}

/* The gradients of a step's pairs by q = dh, and what they add to dprob. */
static inline pair gradient_of(pair x, vec q, vec prob, glu_form form, vec *dprob)
{
    const pair c = clamp_pair(x, form.limit);
    vec s = sigmoid(form.alpha * c.g), act = c.g * s, up = c.u + form.offset;
    vec dg = q * prob * up * s * (1.0f + form.alpha * c.g * (1.0f - s)), du = q * prob * act;
    *dprob += q * up * act;
    return (pair){x.g > form.limit ? 0.0f : dg, x.u > form.limit || x.u < -form.limit ? 0.0f : du};
}

KERNEL void glu_backward(global const void *v, global const float *prob, ulong prob_stride, global const void *dh,
                         global void *dv, global float *dprob, uint first_row, uint rows, int width, int interleaved,
                         float limit, float alpha, float offset, uint split)
{
    TEAM;
    const glu_form form = {interleaved, limit, alpha, offset};
    uint first = first_row + get_group_id(0) * split, end = min(rows, first + split);
    for (uint m = first; m < end; m++) {
        ulong row = (ulong)m * width;
        vec p = prob != 0 ? prob[m * prob_stride] : 1.0f, sum = 0.0f;
        for (int j = 0; j < width; j += BATCH * VEC) {
            pair x[BATCH];
            vec q[BATCH];
            UNROLL for (int k = 0; k < BATCH; k++)
                x[k] = load_pair(v, 2 * row, j + k * VEC, width - j - k * VEC, width, interleaved);
            UNROLL for (int k = 0; k < BATCH; k++)
                q[k] = load_as(dh, FROM, row + j + k * VEC, width - j - k * VEC);
            UNROLL for (int k = 0; k < BATCH; k++)
                store_pair(gradient_of(x[k], q[k], p, form, &sum), dv, 2 * row, j + k * VEC, width - j - k * VEC,
                           width, interleaved);
        }
        if (dprob != 0) {
            float total = sum_lanes(sum, team);
            if (is_first_item())
                dprob[m * prob_stride] = total;
        }
    }
}
