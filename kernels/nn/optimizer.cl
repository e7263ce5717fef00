/*
 * AdamW with decoupled weight decay (Loshchilov, Hutter: "Decoupled weight decay regularization",
 * ICLR 2019), in the order of operations of PyTorch:
 *
 *   g = gradient * scale         p = p * keep                      keep  = 1 - rate * decay
 *   m = beta1 * m + rest1 * g    v = beta2 * v + (rest2 * g) * g   restN = 1 - betaN
 *   p = p - step * m / (sqrt(v) / root + epsilon)                  step  = rate / (1 - beta1^t)
 *                                                                  root  = sqrt(1 - beta2^t)
 *
 * Shapes: n floats, from `at` on in parameter and gradient, from `state_at` on in first_moment and
 * second_moment. The host computes the scalars in float64. If ROUNDED is defined, rounded[n] =
 * bf16(the new parameters), to nearest even, and `at` is 0. GEMMs read these values; so no separate
 * pass rounds the parameters. A row group owns BLOCK consecutive floats. No local memory.
 * Deterministic.
 */
#include "args/nn.h"
#ifdef ROUNDED
#include "lib/formats.h"
#endif

#define BLOCK (MOERT_ITEMS == 1 ? 4096ul : 1024ul)

KERNEL void adamw(global float *restrict parameter, global const float *restrict gradient,
                  global float *restrict first_moment, global float *restrict second_moment,
                  global ushort *restrict rounded, moert_adamw_args args) {
    ulong first = get_group_id(0) * BLOCK, end = min(first + BLOCK, args.n);
    parameter += args.at;
    gradient += args.at;
    first_moment += args.state_at;
    second_moment += args.state_at;
    for (ulong i = first; i < end; i += BATCH * VEC) {
        int left = (int)min(BLOCK, end - i);
        vec g[BATCH], p[BATCH], m[BATCH], v[BATCH];
        load_batch(g, gradient + i, left);
        load_batch(p, parameter + i, left);
        load_batch(m, first_moment + i, left);
        load_batch(v, second_moment + i, left);
        UNROLL_FOR(int k = 0; k < BATCH; k++) {
            g[k] *= args.scale;
            m[k] = m[k] * args.beta1 + g[k] * args.rest1;
            v[k] = v[k] * args.beta2 + (g[k] * args.rest2) * g[k];
            vec denominator = sqrt(v[k]) / (vec)(args.root) + (vec)(args.epsilon);
            p[k] = p[k] * args.keep - m[k] * args.step / denominator;
        }
        store_batch(m, first_moment + i, left);
        store_batch(v, second_moment + i, left);
        store_batch(p, parameter + i, left);
#ifdef ROUNDED
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            store_shorts(encode(p[k], DTYPE_BF16), rounded + i + k * VEC, left - k * VEC);
#endif
    }
}
