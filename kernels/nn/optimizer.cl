/*
 * AdamW with decoupled weight decay (Loshchilov, Hutter: "Decoupled weight decay regularization",
 * ICLR 2019), in the order of operations of PyTorch:
 *
 *   g = gradient * scale         p = p * keep                      keep  = 1 - rate * decay
 *   m = beta1 * m + rest1 * g    v = beta2 * v + (rest2 * g) * g   restN = 1 - betaN
 *   p = p - step * m / (sqrt(v) / root + epsilon)                  step  = rate / (1 - beta1^t)
 *                                                                  root  = sqrt(1 - beta2^t)
 *
 * With SGD, stochastic gradient descent with momentum as torch.optim.SGD has it:
 *
 *   g = gradient * scale + p * rest1     m = beta1 * m + g     p = p - step * m
 *
 * For SGD, rest1 = decay, beta1 = momentum and step = rate; there is no second_moment.
 *
 * Shapes: n elements, from `at` on in parameter and rounded, from `gradient_at` on in gradient,
 * from `state_at` on in first_moment and second_moment. The host computes the scalars in float64.
 * If ROUNDED is 1, rounded[n] = bf16(the new parameters), to nearest even. GEMMs read these values;
 * so no separate pass rounds the parameters. If BF16_GRADIENT is 1, the gradient is bf16.
 *
 * If BF16_MOMENTS is 1, the moments are bf16, and a new moment is rounded up or down by random
 * bits, so that its mean is the float32 value. Rounding to nearest would lose most changes of v,
 * which are smaller than half a step of bf16. The update itself uses the values before rounding.
 *
 * The elements are divided into parts of args.part elements. The kernel's first element is number
 * args.first of its part. The random bits of an element depend on its place in its part, on the
 * part's key and on the step, so they are the same wherever the part is. Row group [x,y] owns BLOCK
 * consecutive elements of part args.first_part + y. No local memory. Deterministic.
 */
#include "nn/update.h"
#if ROUNDED
#include "lib/formats.h"
#endif

#define BLOCK ((ulong)BY_FORM(MOERT_UPDATE_BLOCK, MOERT_UPDATE_GPU_BLOCK))

KERNEL void OPTIMIZER(global float *restrict parameter,
                      global const gradient_type *restrict gradient,
                      global moment *restrict first_moment, global moment *restrict second_moment,
                      global ushort *restrict rounded, global const ulong *restrict keys,
                      moert_update_args args) {
    const ulong index = args.first_part + get_group_id(1), part = index * args.part;
    const ulong block = part + get_group_id(0) * BLOCK, last = args.first + args.n;
    const ulong begin = max(block, args.first),
                end = min(min(block + BLOCK, part + args.part), last);
    parameter += args.at;
    gradient += args.gradient_at;
    first_moment += args.state_at;
    second_moment += args.state_at;
    const ulong key = key_of(args, keys, index);
    for (ulong place = begin; place < end; place += BATCH * VEC) {
        const ulong i = place - args.first;
        const int left = (int)(end - place);
        const weights w = {parameter + i,     gradient + i, first_moment + i,
                           second_moment + i, place - part, key};
        vec p[BATCH];
        update_batch(args, &w, VEC, left, VEC, p);
#if ROUNDED
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            store_shorts(encode(p[k], DTYPE_BF16), rounded + args.at + i + k * VEC, left - k * VEC);
#endif
    }
}
