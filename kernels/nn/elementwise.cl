/*
 * Elementwise operations over n floats:
 *
 *   add            y[i] = y[i] + x[i]
 *   add_scaled     y[i] = y[i] * scale + x[i], rounded once
 *   scale          y[i] = y[i] * scale
 *   clip           y[i] = x[i] limited to [-limit, limit]; a NaN stays a NaN
 *   clip_backward  y[i] = y[i] if |x[i]| <= limit, else 0
 *
 * A row group owns BLOCK consecutive floats. No local memory. Deterministic.
 */
#include "args/nn.h"

#define BLOCK ((ulong)BY_FORM(MOERT_ELEMENTWISE_BLOCK, MOERT_ELEMENTWISE_GPU_BLOCK))

/* Defines the kernel `name`: y = result, a formula of a (the value of x) and b (the old value of
 * y). `count` is the number of floats, one of the `scalars`. */
#define DEFINE_ELEMENTWISE(name, scalars, count, result)                                           \
    KERNEL void name(global const float *restrict x, global float *restrict y, scalars) {          \
        ulong first = get_group_id(0) * BLOCK, end = min(first + BLOCK, count);                    \
        for (ulong i = first; i < end; i += BATCH * VEC) {                                         \
            int left = (int)min(BLOCK, end - i);                                                   \
            vec all[BATCH], others[BATCH];                                                         \
            load_batch(others, x + i, left);                                                       \
            load_batch(all, y + i, left);                                                          \
            UNROLL_FOR(int k = 0; k < BATCH; k++) {                                                \
                const vec a = others[k], b = all[k];                                               \
                all[k] = result;                                                                   \
            }                                                                                      \
            store_batch(all, y + i, left);                                                         \
        }                                                                                          \
    }

DEFINE_ELEMENTWISE(add, ulong n, n, b + a)
DEFINE_ELEMENTWISE(add_scaled, moert_scale_args args, args.n, fma(b, (vec)args.scale, a))
DEFINE_ELEMENTWISE(clip, moert_clip_args args, args.n,
                   a > args.limit ? (vec)args.limit : (a < -args.limit ? (vec)-args.limit : a))
DEFINE_ELEMENTWISE(clip_backward, moert_clip_args args, args.n,
                   fabs(a) <= args.limit ? b : (vec)0.0f)

KERNEL void scale(global float *y, moert_scale_args args) {
    const ulong first = get_group_id(0) * BLOCK, end = min(first + BLOCK, args.n);
    for (ulong i = first; i < end; i += BATCH * VEC) {
        const int left = (int)min(BLOCK, end - i);
        vec all[BATCH];
        load_batch(all, y + i, left);
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            all[k] *= args.scale;
        store_batch(all, y + i, left);
    }
}
