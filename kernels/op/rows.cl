/*
 * The kernels that run before and after the GEMMs of an op (include/moert/ops.h). These kernels
 * convert operands to float32 and gather them in the order of the groups; they scale, round and
 * scatter the results.
 *
 *   op_load_rows     to[r,:] = from[source(r),:]                   rows below ends[groups - 1]
 *   op_store_rows    row target(r) of `to` = result of acc[r,:]    the same rows
 *   op_load_weight   to[slot + i,:] = weight[weight_group + i,:]   of groups first + i with rows
 *   op_store_weight  weight[weight_group + i,:] = result of acc[slot + i,:]
 *
 *     v = acc alpha[g]         with a bias: fma(acc, alpha[g], bias[g,:] scale[r]);
 *                              without one: v = v scale[r], if there are scales
 *     v = fma(beta[g], old, v) unless beta[g] = 0; a null alpha means 1, a null beta `beta_all`
 *     v = beta[g] old          for a weight whose group has no rows: 0 if beta[g] = 0, not touched
 *                              if beta[g] = 1
 *     v = round(v) round(w[target(r)])   with row weights w
 *     result = round(v)        peak[r] = max |v|, -inf for rows that are not written
 *
 *   op_amax          amax[g,:] = max(amax[g,:], peak[r,:])         over the rows r of group g
 *
 * peak[rows,sets] is in the buffer of acc, `peak` floats after its start.
 *
 * source(r) = gather[r] / divisor and target(r) = gather[r]; without gather, r stands for
 * gather[r]. Rows with gather[r] >= `rows` read zeros and are not written. float32 matrices are
 * dense; rows of matrices of other types lie `stride` elements apart. Types are moert_dtype.
 *
 * Grid: rows: (blocks of `split` rows); weights: (blocks of BLOCK elements, groups); op_amax:
 * (groups, sets). Local memory on GPUs: 128 bytes (op_store_rows), 4 KiB (op_amax). Deterministic:
 * each element depends on its operands only.
 */
#include "args/op.h"
#include "lib/formats.h"

#define BLOCK MOERT_OP_WEIGHT_BLOCK

KERNEL void op_load_rows(global const uint *ends, global const void *from,
                         global const uint *gather, global float *to, moert_rows_args args) {
    const uint first = get_group_id(0) * args.split,
               last = min(min(ends[args.groups - 1], args.rows), first + args.split);
    for (uint r = first; r < last; r++) {
        const uint slot = gather != 0 ? gather[r] : r;
        const ulong at = slot < args.rows ? slot / args.divisor * args.stride : 0;
        for (int j = 0; j < args.width; j += BATCH * VEC) {
            vec x[BATCH];
            UNROLL_FOR(int i = 0; i < BATCH; i++)
                x[i] = slot < args.rows
                           ? load_as(from, args.type, at + j + i * VEC, args.width - j - i * VEC)
                           : (vec)0.0f;
            store_batch(x, to + (ulong)r * args.width + j, args.width - j);
        }
    }
}

KERNEL void op_store_rows(global const uint *ends, global float *acc, global const float *alpha,
                          global const float *beta, global const void *bias,
                          global const float *scale, global const uint *gather,
                          global const float *row_weight, global void *to, moert_rows_args args) {
    ROW_GROUP;
    const uint first = get_group_id(0) * args.split,
               last = min(min(ends[args.groups - 1], args.rows), first + args.split);
    for (uint r = first; r < last; r++) {
        const uint g = group_of(ends, args.groups, r), slot = gather != 0 ? gather[r] : r;
        const vec a = alpha != 0 ? alpha[g] : 1.0f;
        const float b = beta != 0 ? beta[g] : args.beta_all;
        const int kept = slot < args.rows ? args.width : 0;
        vec top = 0.0f;
        for (int j = 0; j < kept; j += BATCH * VEC) {
            vec x[BATCH], v[BATCH];
            load_batch(x, acc + (ulong)r * args.width + j, args.width - j);
            UNROLL_FOR(int i = 0; i < BATCH; i++) {
                const int at = j + i * VEC, n = args.width - at;
                v[i] = x[i] * a;
                if (bias != 0) {
                    const vec c = load_as(bias, args.bias_type, (ulong)g * args.width + at, n);
                    v[i] = fma(x[i], a, scale != 0 ? c * scale[r] : c);
                }
                if (bias == 0 && scale != 0)
                    v[i] *= scale[r];
                if (b != 0.0f)
                    v[i] = fma((vec)b, load_as(to, args.type, slot * args.stride + at, n), v[i]);
                if (row_weight != 0)
                    v[i] = round_as(v[i], args.type) * round_as((vec)row_weight[slot], args.type);
                store_as(v[i], to, args.type, slot * args.stride + at, n);
                top = raise(top, first_lanes(v[i], n));
            }
        }
        const float most = raise_lanes(top, row_group);
        if (args.peak != 0 && is_first_item())
            acc[args.peak + r] = kept > 0 ? most : -INFINITY;
    }
}

#if MOERT_ITEMS == 1
#define AMAX_ITEMS 1
#else
#define AMAX_ITEMS 1024 /* items that reduce the rows of a group */
#endif

/* The larger value, or NaN if either value is NaN. */
static inline float higher(float top, float x) {
    return x > top || isnan(x) ? x : top;
}

__attribute__((reqd_work_group_size(AMAX_ITEMS, 1, 1))) kernel void op_amax(global const uint *ends,
                                                                            global const float *acc,
                                                                            global float *amax,
                                                                            moert_rows_args args) {
    local float found[AMAX_ITEMS];
    const uint g = get_group_id(0), own = get_local_id(0), set = get_group_id(1),
               sets = get_num_groups(1);
    const uint first = group_start(ends, g), last = min(ends[g], args.rows);
    global const float *peak = acc + args.peak;
    float top = amax[g * sets + set];
    for (uint r = first + own; r < last; r += AMAX_ITEMS)
        top = higher(top, peak[r * sets + set]);
#if AMAX_ITEMS > 1
    found[own] = top;
    for (uint reach = AMAX_ITEMS / 2; reach > 0; reach /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (own < reach)
            found[own] = top = higher(top, found[own + reach]);
    }
#endif
    if (own == 0)
        amax[g * sets + set] = top;
}

KERNEL void op_load_weight(global const uint *ends, global const void *weight, global float *to,
                           moert_moved_weight_args args) {
    const uint i = get_group_id(1), g = args.first + i;
    const ulong begin = get_group_id(0) * BLOCK, end = min(args.elements, begin + BLOCK);
    if (group_start(ends, g) == ends[g])
        return;
    for (ulong e = begin; e < end; e += BATCH * VEC) {
        const int n = (int)(end - e);
        vec x[BATCH];
        UNROLL_FOR(int b = 0; b < BATCH; b++)
            x[b] = load_as(weight, args.type, (args.weight_group + i) * args.elements + e + b * VEC,
                           n - b * VEC);
        store_batch(x, to + (args.slot + i) * args.elements + e, n);
    }
}

KERNEL void op_store_weight(global const uint *ends, global const float *acc,
                            global const float *alpha, global const float *beta,
                            global void *weight, moert_moved_weight_args args) {
    const uint i = get_group_id(1), g = args.first + i;
    const ulong begin = get_group_id(0) * BLOCK, end = min(args.elements, begin + BLOCK);
    const vec a = alpha != 0 ? alpha[g] : 1.0f;
    const float b = beta != 0 ? beta[g] : args.beta_all;
    const bool empty = group_start(ends, g) == ends[g];
    if (empty && b == 1.0f)
        return;
    for (ulong e = begin; e < end; e += BATCH * VEC) {
        vec v[BATCH];
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            v[k] = empty ? 0.0f
                         : load_part(acc + (args.slot + i) * args.elements + e + k * VEC,
                                     (int)(end - e) - k * VEC) *
                               a;
        UNROLL_FOR(int k = 0; k < BATCH; k++) {
            const ulong at = (args.weight_group + i) * args.elements + e + k * VEC;
            const int n = (int)(end - e) - k * VEC;
            if (b != 0.0f) {
                const vec old = load_as(weight, args.type, at, n);
                v[k] = empty ? b * old : fma((vec)b, old, v[k]);
            }
            store_as(v[k], weight, args.type, at, n);
        }
    }
}
