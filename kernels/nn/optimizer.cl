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
#include "args/nn.h"
#if ROUNDED || BF16_MOMENTS || BF16_GRADIENT
#include "lib/formats.h"
#endif

#define BLOCK ((ulong)BY_FORM(MOERT_UPDATE_BLOCK, MOERT_UPDATE_GPU_BLOCK))

#if BF16_GRADIENT
typedef ushort gradient_type;
#define load_gradient load_bf16_batch
#else
typedef float gradient_type;
#define load_gradient load_batch
#endif

#if BF16_MOMENTS
typedef ushort moment;
#define load_moments load_bf16_batch

/* Adds 16 random bits to the bits that bf16 drops; a carry rounds up. */
static inline void store_moment(vec x, uvec random, global moment *p, int n) {
    store_shorts((as_uvec(quiet(x)) + random) >> 16, p, n);
}

/* A mixing function of 32 bits (Wellons, "Hash prospector": lowbias32). */
static inline uvec mix(uvec x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}

/* 32 random bits for each element of a step, whose first one is element `first` of its part. */
static inline uvec random_bits(ulong first, ulong key) {
    const uvec low = (uint)first + as_uvec(lane_places());
    const uvec high = (uint)(first >> 32) + (low < (uvec)(uint)first ? (uvec)1 : (uvec)0);
    return mix(mix(low ^ (uint)key) + (high ^ (uint)(key >> 32)));
}
#else
typedef float moment;
#define load_moments load_batch
#endif

#ifdef SGD
#define OPTIMIZER sgd
#else
#define OPTIMIZER adamw
#endif

/* Updates parameters and their moments by a gradient. */
static inline void update(moert_update_args args, vec g, vec *p, vec *m, vec *v) {
#ifdef SGD
    *m = *m * args.beta1 + (g * args.scale + *p * args.rest1);
    *p -= *m * args.step;
#else
    g *= args.scale;
    *m = *m * args.beta1 + g * args.rest1;
    *v = *v * args.beta2 + (g * args.rest2) * g;
    vec denominator = sqrt(*v) / (vec)(args.root) + (vec)(args.epsilon);
    *p = *p * args.keep - *m * args.step / denominator;
#endif
}

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
#if BF16_MOMENTS
    const ulong key =
        keys[args.keys_at + index] ^ ((ulong)args.random_high << 32 | args.random_low);
#endif
    for (ulong place = begin; place < end; place += BATCH * VEC) {
        const ulong i = place - args.first;
        const int left = (int)(end - place);
        vec g[BATCH], p[BATCH], m[BATCH], v[BATCH];
        load_gradient(g, gradient + i, left);
        load_batch(p, parameter + i, left);
        load_moments(m, first_moment + i, left);
#ifndef SGD
        load_moments(v, second_moment + i, left);
#endif
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            update(args, g[k], &p[k], &m[k], &v[k]);
        store_batch(p, parameter + i, left);
#if BF16_MOMENTS
        UNROLL_FOR(int k = 0; k < BATCH; k++) {
            const uvec bits = random_bits(place - part + k * VEC, key);
            store_moment(m[k], bits & 0xFFFFu, first_moment + i + k * VEC, left - k * VEC);
#ifndef SGD
            store_moment(v[k], bits >> 16, second_moment + i + k * VEC, left - k * VEC);
#endif
        }
#else
        store_batch(m, first_moment + i, left);
#ifndef SGD
        store_batch(v, second_moment + i, left);
#endif
#endif
#if ROUNDED
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            store_shorts(encode(p[k], DTYPE_BF16), rounded + args.at + i + k * VEC, left - k * VEC);
#endif
    }
}
