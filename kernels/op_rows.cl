/*
 * What surrounds the products of an op (include/moert/ops.h): operands to float32 and in the groups' order, results
 * finished, rounded, and put where they belong.
 *
 *   op_load_rows     to[r,:] = from[home(r),:]                     rows below ends[groups - 1]
 *   op_store_rows    from acc[r,:] to the row home(r), by
 *   op_load_weight   to[slot + i,:] = weight[place + i,:]          of groups first + i with rows
 *   op_store_weight  the same in the other direction, by
 *
 *     v = acc alpha[g]         with a bias: fma(acc, alpha[g], bias[g,:] scale[r])
 *     v = v prob[r]            with prob
 *     v = fma(beta[g], old, v) unless beta[g] = 0; alpha null = 1, beta null = `beta_all`
 *     v = beta[g] old          of a weight whose group has no rows: 0 if beta[g] = 0, not touched if it is 1
 *     v = round(v) round(w[home(r)]) with row weights w
 *     result = round(v)        peak[r] = max |v|, -inf of rows that are not written
 *
 *   op_amax          amax[g,:] = max(amax[g,:], peak[r,:])         rows of the group
 *
 * home(r) = gather[r] / divisor, gather null = r; a gather[r] of `rows` or more reads zeros and is not written.
 * float32 matrices are dense; others have rows `stride` elements apart. Types are moert_number.
 * Deterministic; every element is made alone.
 *
 * Grid: rows: (splits of `split` rows); weights: (blocks of SHARE elements, groups); op_amax: (groups). No local memory.
 */
#include "formats.h"

enum { SHARE = 4096 };

KERNEL void op_load_rows(global const uint *ends, uint groups, uint rows, global const void *from, int type, ulong stride,
                         global const uint *gather, uint divisor, global float *to, int width, uint split)
{
    const uint first = get_group_id(0) * split, last = min(min(ends[groups - 1], rows), first + split);
    for (uint r = first; r < last; r++) {
        const uint slot = gather != 0 ? gather[r] : r;
        for (int j = 0; j < width; j += VEC) {
            vec x = 0.0f;
            if (slot < rows)
                x = load_as(from, type, slot / divisor * stride + j, width - j);
            store_part(x, to + (ulong)r * width + j, width - j);
        }
    }
}

KERNEL void op_store_rows(global const uint *ends, uint groups, uint rows, global const float *acc, int width,
                          global const float *alpha, global const float *beta, float beta_all, global const void *bias,
                          int bias_type, global const float *scale, global const uint *gather,
                          global const float *row_weight, global const float *prob, global void *to, int type,
                          ulong stride, global float *peak, uint split)
{
    TEAM;
    const uint first = get_group_id(0) * split, last = min(min(ends[groups - 1], rows), first + split);
    uint g = 0;
    for (uint r = first; r < last; r++) {
        while (ends[g] <= r)
            g++;
        const uint slot = gather != 0 ? gather[r] : r;
        const vec a = alpha != 0 ? alpha[g] : 1.0f;
        const float b = beta != 0 ? beta[g] : beta_all;
        vec top = 0.0f;
        if (peak != 0)
            peak[r] = -INFINITY;
        if (slot >= rows)
            continue;
        for (int j = 0; j < width; j += VEC) {
            const int n = width - j;
            const vec x = load_part(acc + (ulong)r * width + j, n);
            vec v = x * a;
            if (bias != 0) {
                const vec c = load_as(bias, bias_type, (ulong)g * width + j, n);
                v = fma(x, a, scale != 0 ? c * scale[r] : c);
            }
            if (prob != 0)
                v *= prob[r];
            if (b != 0.0f)
                v = fma((vec)b, load_as(to, type, slot * stride + j, n), v);
            if (row_weight != 0)
                v = round_as(v, type) * round_as((vec)row_weight[slot], type);
            store_as(v, to, type, slot * stride + j, n);
            top = raise(top, first_lanes(v, n));
        }
        if (peak != 0)
            peak[r] = raise_lanes(top, team);
    }
}

KERNEL void op_amax(global const uint *ends, uint rows, global const float *peak, global float *amax, uint sets)
{
    const uint g = get_group_id(0), first = group_start(ends, g), last = min(ends[g], rows);
    for (uint i = 0; i < sets; i++) {
        float top = amax[g * sets + i];
        for (uint r = first; r < last; r++) {
            const float x = peak[r * sets + i];
            top = x > top || isnan(x) ? x : top;
        }
        amax[g * sets + i] = top;
    }
}

KERNEL void op_load_weight(global const uint *ends, uint first, uint slot, uint place, global const void *weight,
                           int type, global float *to, ulong elements)
{
    const uint i = get_group_id(1), g = first + i;
    const ulong begin = get_group_id(0) * SHARE, end = min(elements, begin + SHARE);
    if (group_start(ends, g) == ends[g])
        return;
    for (ulong e = begin; e < end; e += VEC) {
        const int n = (int)min((ulong)VEC, end - e);
        store_part(load_as(weight, type, (place + i) * elements + e, n), to + (slot + i) * elements + e, n);
    }
}

KERNEL void op_store_weight(global const uint *ends, uint first, uint slot, uint place, global const float *acc,
                            global const float *alpha, global const float *beta, float beta_all, global void *weight,
                            int type, ulong elements)
{
    const uint i = get_group_id(1), g = first + i;
    const ulong begin = get_group_id(0) * SHARE, end = min(elements, begin + SHARE);
    const vec a = alpha != 0 ? alpha[g] : 1.0f;
    const float b = beta != 0 ? beta[g] : beta_all;
    const bool empty = group_start(ends, g) == ends[g];
    if (empty && b == 1.0f)
        return;
    for (ulong e = begin; e < end; e += VEC) {
        const ulong at = (place + i) * elements + e;
        const int n = (int)min((ulong)VEC, end - e);
        vec v = 0.0f;
        if (!empty)
            v = load_part(acc + (slot + i) * elements + e, n) * a;
        if (b != 0.0f) {
            const vec old = load_as(weight, type, at, n);
            v = empty ? b * old : fma((vec)b, old, v);
        }
        store_as(v, weight, type, at, n);
    }
}
