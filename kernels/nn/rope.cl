/*
 * Rotary positions in the rotate-half form, in place on x[T,N,D] (N heads of D elements, D even).
 *
 *   with t = token mod length, i < D / 2, c = table[t,0,i], s = sign * table[t,1,i]:
 *   x[token,n,i]         <- x[token,n,i] * c         - x[token,n,i + D / 2] * s
 *   x[token,n,i + D / 2] <- x[token,n,i + D / 2] * c + x[token,n,i] * s
 *
 * sign is 1 to rotate, -1 to rotate back. A row group owns `block` tokens. With ALIGNED, D / 2 is a
 * multiple of 4, and the items distribute the vectors of all heads among them, since half a head is
 * less than a step. Required: nothing. No local memory. Deterministic: each pair depends on that
 * pair only.
 */
#include "args/nn.h"

static inline void rotate(vec *a, vec *b, vec c, vec s) {
    const vec low = *a, high = *b;
    *a = fma(low, c, -high * s);
    *b = fma(high, c, low * s);
}

#ifdef ALIGNED
static inline void rope_token(global float *x, global const float *cosine, int heads, int half_size,
                              float sign) {
    const int parts = half_size / PART, all = heads * parts;
    for (int first = get_local_id(0); first < all; first += BATCH * MOERT_ITEMS) {
        vec a[BATCH], b[BATCH];
        int at[BATCH];
        UNROLL_FOR(int k = 0; k < BATCH; k++) {
            const int part = min(first + k * MOERT_ITEMS, all - 1);
            at[k] = part / parts * 2 * half_size + part % parts * PART;
            a[k] = *(global const vec *)(x + at[k]);
            b[k] = *(global const vec *)(x + at[k] + half_size);
        }
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            if (first + k * MOERT_ITEMS < all) {
                global const float *c = cosine + at[k] % (2 * half_size);
                rotate(&a[k], &b[k], *(global const vec *)c,
                       sign * *(global const vec *)(c + half_size));
                *(global vec *)(x + at[k]) = a[k];
                *(global vec *)(x + at[k] + half_size) = b[k];
            }
    }
}
#else
static inline void rope_token(global float *x, global const float *cosine, int heads, int half_size,
                              float sign) {
    for (int h = 0; h < heads; h++, x += 2 * half_size)
        for (int i = 0; i < half_size; i += VEC) {
            int n = half_size - i;
            vec a = load_part(x + i, n), b = load_part(x + half_size + i, n);
            rotate(&a, &b, load_part(cosine + i, n), sign * load_part(cosine + half_size + i, n));
            store_part(a, x + i, n);
            store_part(b, x + half_size + i, n);
        }
}
#endif

KERNEL void rope(global const float *table, global float *x, moert_rope_args args) {
    ulong first = get_group_id(0) * args.block, end = min(first + args.block, args.tokens);
    for (ulong token = first; token < end; token++)
        rope_token(x + token * args.heads * args.head_size,
                   table + token % args.length * args.head_size, args.heads, args.head_size / 2,
                   args.sign);
}
