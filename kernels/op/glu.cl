/*
 * The GLU after or before a GEMM of an op (include/moert/ops.h): rows of groups, computed in
 * float32 until they are stored.
 *
 *   gc = min(g, limit)    uc = clamp(u, -limit, limit)    act = a(gc) (args/activations.h)
 *
 *   op_glu    v = acc alpha[g], with a bias fma(acc, alpha[g], bias[g,:]);  c = round(v)
 *             g, u are columns of v, not of c
 *             d = round(act (uc + offset) prob[r]);  peak[r] = max |d| before rounding
 *   op_dglu   g, u = beta[g] c;  q = alpha[g]^2 (acc acc_scale[g])
 *             dg = q prob[r] (uc + offset) a'(gc)   where g <= limit, else 0
 *             du = q prob[r] act                    where -limit <= u <= limit, else 0
 *             d = round(dg, du);  wide = (dg, du);  peak[r,:] = max |dg|, max |du|
 *             dprob[r] += sum_j q (uc + offset) act
 *   op_dbias  dbias[g,:] = round(dbias[g,:] + sum_r wide[r,:])  rows in order
 *
 * v, c and the gradient have 2I columns, in runs of `run` columns of gate, then `run` of up
 * (linear_first: up, then gate), run = 1, 8, 32 or I. acc, wide and peak are dense; c and d have a
 * dtype and a stride. A null alpha, beta, acc_scale or prob means 1, a null bias 0. wide and peak
 * are in the buffer of acc, args.wide and args.peak floats after its start. The kernels do not
 * write c (op_glu) or dprob if the pointer is null, nor wide or peak if args.wide or args.peak is
 * 0. NaN passes through limits and maxima.
 *
 * Grid: op_glu, op_dglu: (blocks of `split` rows); op_dbias: (blocks of VEC columns, groups). Local
 * memory on GPUs: 128 bytes. Deterministic: a row's bits depend on that row only. dprob adds column
 * j into lane j mod VEC, then the lanes as a tree.
 */
#include "args/op.h"
#include "lib/formats.h"
#include "gemm/glu.h"

/* The two parts of a row of v from which this item computes its d of a step: offset at[i] and count
 * n[i] as load_part() takes them. */
typedef struct spot {
    int at[2], n[2], run;
    bool swapped;
} spot;

static inline spot find_spot(int j, int width, int run, int linear_first) {
    const int own = part_start(), c = j + own, n = min(PART, width - c);
    if (run == 1 || run == PART / 2)
        return (spot){{2 * c - own, 2 * c + PART - own},
                      {min(PART, 2 * n) + own, 2 * n - PART + own},
                      run,
                      linear_first};
    const int first = c / run * 2 * run + c % run - own;
    return (spot){{first, first + run}, {n + own, n + own}, PART, linear_first};
}

/* Whether part i has any columns for this item. */
static inline bool has_part(spot s, int i) {
    return s.n[i] > part_start();
}

static inline pair swap_if(pair x, bool swapped) {
    return swapped ? (pair){x.u, x.g} : x;
}

static inline pair split_pair(vec a, vec b, spot s) {
    const pair x = s.run == 1          ? (pair){(vec)(a.even, b.even), (vec)(a.odd, b.odd)}
                   : s.run == PART / 2 ? (pair){(vec)(a.lo, b.lo), (vec)(a.hi, b.hi)}
                                       : (pair){a, b};
    return swap_if(x, s.swapped);
}

/* The inverse of split_pair. */
static inline pair join_pair(pair x, spot s) {
    const pair y = swap_if(x, s.swapped);
    pair out = y;
    if (s.run == 1) {
        out.g.even = y.g.lo;
        out.g.odd = y.u.lo;
        out.u.even = y.g.hi;
        out.u.odd = y.u.hi;
    } else if (s.run == PART / 2) {
        out.g = (vec)(y.g.lo, y.u.lo);
        out.u = (vec)(y.g.hi, y.u.hi);
    }
    return out;
}

KERNEL void op_glu(global const uint *ends, global float *acc, global const float *alpha,
                   global const void *bias, global const float *prob, global void *c,
                   global void *d, moert_glu_args args) {
    ROW_GROUP;
    const uint first = get_group_id(0) * args.split,
               last = min(min(ends[args.groups - 1], args.rows), first + args.split);
    for (uint r = first; r < last; r++) {
        const uint g = group_of(ends, args.groups, r);
        const vec a = alpha != 0 ? alpha[g] : 1.0f, p = prob != 0 ? prob[r] : 1.0f;
        vec top = 0.0f;
        for (int j = 0; j < args.width; j += VEC) {
            const spot s = find_spot(j, args.width, args.run, args.linear_first);
            vec v[2] = {0.0f, 0.0f};
            for (int i = 0; i < 2 && has_part(s, i); i++) {
                const vec x = load_part(acc + (ulong)r * 2 * args.width + s.at[i], s.n[i]);
                v[i] = x * a;
                if (bias != 0)
                    v[i] = fma(
                        x, a,
                        load_as(bias, args.bias_type, (ulong)g * 2 * args.width + s.at[i], s.n[i]));
                if (c != 0)
                    store_as(v[i], c, args.c_type, r * args.c_stride + s.at[i], s.n[i]);
            }
            const pair x = clamp_pair(split_pair(v[0], v[1], s), args.limit);
            vec slope;
            const vec y =
                activate(x.g, args.slope, args.activation, 0.0f, &slope) * (x.u + args.offset) * p;
            store_as(y, d, args.d_type, r * args.d_stride + j, args.width - j);
            top = raise(top, first_lanes(y, args.width - j));
        }
        const float most = raise_lanes(top, row_group);
        if (args.peak != 0 && is_first_item())
            acc[args.peak + r] = most;
    }
}

KERNEL void op_dglu(global const uint *ends, global float *acc, global const float *alpha,
                    global const float *beta, global const float *acc_scale,
                    global const float *prob, global const void *c, global void *d,
                    global float *dprob, moert_glu_args args) {
    ROW_GROUP;
    const glu_form form = {0, args.limit, args.slope, args.offset, args.activation};
    const uint first = get_group_id(0) * args.split,
               last = min(min(ends[args.groups - 1], args.rows), first + args.split);
    for (uint r = first; r < last; r++) {
        const uint g = group_of(ends, args.groups, r);
        const vec a = alpha != 0 ? alpha[g] * alpha[g] : 1.0f, b = beta != 0 ? beta[g] : 1.0f;
        const vec p = prob != 0 ? prob[r] : 1.0f, scale = acc_scale != 0 ? acc_scale[g] : 1.0f;
        lane_sums sum = NO_SUM;
        pair top = {0.0f, 0.0f};
        EACH_STEP_OF(j, part, args.width) {
            const spot s = find_spot(j, args.width, args.run, args.linear_first);
            const int n = args.width - j;
            vec v[2] = {0.0f, 0.0f};
            for (int i = 0; i < 2 && has_part(s, i); i++)
                v[i] = b * load_as(c, args.c_type, r * args.c_stride + s.at[i], s.n[i]);
            const vec q = a * (load_part(acc + (ulong)r * args.width + j, n) * scale);
            vec dprob_part;
            const pair y = gradient_of(split_pair(v[0], v[1], s), q, p, form, &dprob_part);
            const pair out = join_pair(y, s);
            sum.part[part] += first_lanes(dprob_part, n);
            top = (pair){raise(top.g, first_lanes(y.g, n)), raise(top.u, first_lanes(y.u, n))};
            for (int i = 0; i < 2 && has_part(s, i); i++) {
                const vec z = i == 0 ? out.g : out.u;
                store_as(z, d, args.d_type, r * args.d_stride + s.at[i], s.n[i]);
                if (args.wide != 0)
                    store_part(z, acc + args.wide + (ulong)r * 2 * args.width + s.at[i], s.n[i]);
            }
        }
        const float total = sum_lanes(sum, row_group), gate = raise_lanes(top.g, row_group),
                    up = raise_lanes(top.u, row_group);
        if (dprob != 0 && is_first_item())
            dprob[r] += total;
        if (args.peak != 0 && is_first_item()) {
            acc[args.peak + 2 * r] = gate;
            acc[args.peak + 2 * r + 1] = up;
        }
    }
}

#define ROWS (2 * BATCH) /* rows that op_dbias loads at once */

KERNEL void op_dbias(global const uint *ends, global const float *acc, global void *dbias,
                     moert_glu_args args) {
    global const float *wide = acc + args.wide;
    const uint g = get_group_id(1), first = group_start(ends, g), last = min(ends[g], args.rows);
    const int at = get_group_id(0) * VEC, n = args.columns - at;
    const ulong offset = (ulong)g * args.columns + at;
    if (first >= last)
        return;
    vec sum = 0.0f;
    for (uint r = first; r < last; r += ROWS) {
        vec x[ROWS];
        UNROLL_FOR(uint i = 0; i < ROWS; i++)
            x[i] = load_part(wide + (ulong)min(r + i, last - 1) * args.columns + at, n);
        UNROLL_FOR(uint i = 0; i < ROWS; i++)
            sum = r + i < last ? sum + x[i] : sum;
    }
    store_as(load_as(dbias, args.type, offset, n) + sum, dbias, args.type, offset, n);
}
