/*
 * Included by optimizer.cl, which has the formulas, and optimizer_fp8.cl: updates vecs of
 * parameters and their moments. Required: BF16_MOMENTS and BF16_GRADIENT (0 float32, 1 bf16).
 * Optional: SGD; AHEAD, the vecs of update_batch.
 */
#include "args/nn.h"
#if BF16_MOMENTS || BF16_GRADIENT
#include "lib/formats.h"

/* Loads bf16 elements as load_part() loads floats. */
static inline vec load_bf16_part(global const ushort *p, int n) {
    return decode(load_shorts(p, n), DTYPE_BF16);
}
#endif

#if BF16_GRADIENT
typedef ushort gradient_type;
#define load_gradient load_bf16_part
#else
typedef float gradient_type;
#define load_gradient load_part
#endif

#if BF16_MOMENTS
typedef ushort moment;
#define load_moment load_bf16_part

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
#define load_moment load_part
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

#ifndef AHEAD
#define AHEAD BATCH
#endif

/* Parameters with their gradient and moments from some element on. */
typedef struct weights {
    global float *parameter;
    global const gradient_type *gradient;
    global moment *first_moment, *second_moment;
    ulong place, key; /* with BF16_MOMENTS: the element's place in its part, and the part's key */
} weights;

/* Updates AHEAD vecs, which lie `apart` elements from each other. Vec k has n - k * fewer elements.
 * p: the new parameters. */
static inline void update_batch(moert_update_args args, const weights *w, ulong apart, int n,
                                int fewer, vec p[AHEAD]) {
    vec g[AHEAD], m[AHEAD], v[AHEAD];
    UNROLL_FOR(int k = 0; k < AHEAD; k++)
        g[k] = load_gradient(w->gradient + k * apart, n - k * fewer);
    UNROLL_FOR(int k = 0; k < AHEAD; k++)
        p[k] = load_part(w->parameter + k * apart, n - k * fewer);
    UNROLL_FOR(int k = 0; k < AHEAD; k++)
        m[k] = load_moment(w->first_moment + k * apart, n - k * fewer);
#ifndef SGD
    UNROLL_FOR(int k = 0; k < AHEAD; k++)
        v[k] = load_moment(w->second_moment + k * apart, n - k * fewer);
#endif
    UNROLL_FOR(int k = 0; k < AHEAD; k++)
        update(args, g[k], &p[k], &m[k], &v[k]);
    UNROLL_FOR(int k = 0; k < AHEAD; k++)
        store_part(p[k], w->parameter + k * apart, n - k * fewer);
    UNROLL_FOR(int k = 0; k < AHEAD; k++) {
        const int left = n - k * fewer;
#if BF16_MOMENTS
        const uvec bits = random_bits(w->place + k * apart, w->key);
        store_moment(m[k], bits & 0xFFFFu, w->first_moment + k * apart, left);
#ifndef SGD
        store_moment(v[k], bits >> 16, w->second_moment + k * apart, left);
#endif
#else
        store_part(m[k], w->first_moment + k * apart, left);
#ifndef SGD
        store_part(v[k], w->second_moment + k * apart, left);
#endif
#endif
    }
}

/* The key of the random numbers of part `index`. */
static inline ulong key_of(moert_update_args args, global const ulong *keys, ulong index) {
#if BF16_MOMENTS
    return keys[args.keys_at + index] ^ ((ulong)args.random_high << 32 | args.random_low);
#else
    return 0;
#endif
}
