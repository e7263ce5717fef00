/*
 * The gated linear unit and its gradient over v[M,2I] = [g | u], or columns g, u alternating
 * (interleaved).
 *
 *   gc = min(g, limit)    uc = clamp(u, -limit, limit)    act = a(gc) (args/activations.h)
 *   h  = prob (uc + offset) act
 *   dg = dh prob (uc + offset) a'(gc)  where g <= limit, else 0
 *   du = dh prob act                   where -limit <= u <= limit, else 0
 *   dprob = sum over a row of dh (uc + offset) act
 *
 * Shapes: h, dh[M,I]; dv[M,2I]; prob, dprob[M] at stride prob_stride. If prob is null, all are 1;
 * if dprob is null, it is not computed. A row group computes `split` whole rows, a step of columns
 * at a time. NaNs of g and u pass the limits; an infinite limit has no effect. Deterministic: the
 * bits of a row depend on that row only. dprob adds column j to lane j mod SUM_LANES, then adds the
 * lanes as a tree. If dv has the type of v, it may be the same memory.
 *
 * Required: FROM, the type of v and dh, and TYPE, of h and dv: 0 (float32) or 2 (bf16, rounded; the
 * bits of a NaN are unspecified). Arithmetic is float32. PLAIN may be defined if gates come first,
 * limit is infinite, alpha 1 and offset 0; it saves instructions and gives the same bits. Grid:
 * (splits of the rows [first_row, rows)). Local memory: MOERT_ITEMS floats.
 */
#if !defined(FROM) || !defined(TYPE)
#error "FROM and TYPE must be defined"
#endif

#include "args/gemm.h"
#include "lib/formats.h"
#include "gemm/glu.h"

#ifdef PLAIN
#define FORM                                                                                       \
    { 0, INFINITY, 1.0f, 0.0f, args.activation }
#else
#define FORM                                                                                       \
    { args.interleaved, args.limit, args.alpha, args.offset, args.activation }
#endif

/* Elements of v and dh as loaded (`raw`), and their values (widen). Aligned bf16 values stay in
 * pairs until they are needed. */
#if FROM == 2 && defined(ALIGNED)
typedef uint2 raw;

static inline raw load_raw(global const void *p, ulong at, int n) {
    return n > part_start() ? *(global const raw *)((global const ushort *)p + at + part_start())
                            : (raw)(0);
}

static inline vec widen(raw x) {
    return as_vec((uvec)(x.x << 16, x.x & 0xFFFF0000u, x.y << 16, x.y & 0xFFFF0000u));
}
#else
typedef vec raw;

static inline raw load_raw(global const void *p, ulong at, int n) {
    return load_as(p, FROM, at, n);
}

static inline vec widen(raw x) {
    return x;
}
#endif

static inline void store_result(vec x, global void *p, ulong at, int n) {
#if TYPE == 2 && defined(ALIGNED) && defined(HAS_BF16)
    if (n > part_start())
        *(global uint2 *)((global ushort *)p + at + part_start()) =
            (uint2)(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
#else
    store_as(x, p, TYPE, at, n);
#endif
}

/* Gates and ups, or two parts of an interleaved row. */
typedef struct raw_pair {
    raw a, b;
} raw_pair;

/*
 * Columns [j, j + n) of a row of v that begins at element `row`; n is below VEC at the row's end.
 * In an interleaved row, an item's pairs are contiguous, at twice the offset of its columns. The
 * pairs fill two parts. load_raw adds this offset once, so `own` adds it once more.
 */
static inline raw_pair load_pair(global const void *v, ulong row, int j, int n, int width,
                                 int interleaved) {
    if (!interleaved)
        return (raw_pair){load_raw(v, row + j, n), load_raw(v, row + width + j, n)};
    const ulong own = row + 2 * j + part_start();
    const int left = 2 * n - part_start();
    raw_pair x = {load_raw(v, own, left), (raw)(0)};
    if (left > part_start() + PART)
        x.b = load_raw(v, own + PART, left - PART);
    return x;
}

static inline pair pair_of(raw_pair x, int interleaved) {
    return gate_and_up(widen(x.a), widen(x.b), interleaved);
}

/* Stores a pair where load_pair reads it. */
static inline void store_pair(pair x, global void *v, ulong row, int j, int n, int width,
                              int interleaved) {
    if (!interleaved) {
        store_result(x.g, v, row + j, n);
        store_result(x.u, v, row + width + j, n);
        return;
    }
    const ulong own = row + 2 * j + part_start();
    const int left = 2 * n - part_start();
    vec a, b;
    a.even = x.g.lo;
    a.odd = x.u.lo;
    b.even = x.g.hi;
    b.odd = x.u.hi;
    store_result(a, v, own, left);
    if (left > part_start() + PART)
        store_result(b, v, own + PART, left - PART);
}

KERNEL void glu_forward(global const void *v, global const float *prob, global void *h,
                        moert_plain_glu_args args) {
    const glu_form form = FORM;
    uint first = args.first_row + get_group_id(0) * args.split,
         end = min(args.rows, first + args.split);
    for (uint m = first; m < end; m++) {
        const ulong row = (ulong)m * args.width;
        vec p = prob != 0 ? prob[m * args.prob_stride] : 1.0f;
        for (int j = 0; j < args.width; j += BATCH * VEC) {
            raw_pair x[BATCH];
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                x[k] = load_pair(v, 2 * row, j + k * VEC, args.width - j - k * VEC, args.width,
                                 form.interleaved);
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                store_result(glu_of(pair_of(x[k], form.interleaved), p, form), h, row + j + k * VEC,
                             args.width - j - k * VEC);
        }
    }
}

KERNEL void glu_backward(global const void *v, global const float *prob, global const void *dh,
                         global void *dv, global float *dprob, moert_plain_glu_args args) {
    ROW_GROUP;
    const glu_form form = FORM;
    uint first = args.first_row + get_group_id(0) * args.split,
         end = min(args.rows, first + args.split);
    for (uint m = first; m < end; m++) {
        ulong row = (ulong)m * args.width;
        vec p = prob != 0 ? prob[m * args.prob_stride] : 1.0f;
        lane_sums sum = NO_SUM;
        for (int j = 0, part = 0; j < args.width; j += BATCH * VEC, part = (part + 1) % SUM_VECS) {
            raw_pair x[BATCH];
            raw q[BATCH];
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                x[k] = load_pair(v, 2 * row, j + k * VEC, args.width - j - k * VEC, args.width,
                                 form.interleaved);
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                q[k] = load_raw(dh, row + j + k * VEC, args.width - j - k * VEC);
            UNROLL_FOR(int k = 0; k < BATCH; k++) {
                const int left = args.width - j - k * VEC;
                vec pull;
                if (left > 0) { /* left is the same for the whole row group */
                    store_pair(
                        gradient_of(pair_of(x[k], form.interleaved), widen(q[k]), p, form, &pull),
                        dv, 2 * row, j + k * VEC, left, args.width, form.interleaved);
                    sum.part[part] += pull;
                }
            }
        }
        if (dprob != 0) {
            float total = sum_lanes(sum, row_group);
            if (is_first_item())
                dprob[m * args.prob_stride] = total;
        }
    }
}
