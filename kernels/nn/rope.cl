/*
 * Rotary positions, in place on x[T,N,D] (N heads of D elements): rotates the W elements from
 * `offset` on of each head, in pairs.
 *
 *   with t = positions[token], or token mod length if positions is null;
 *   z = x[token,n,offset ...], V = W / 2, i < V
 *   rope, table[L,2,V]:              c = table[t,0,i], s = sign * table[t,1,i]
 *     z[i]     <- z[i] * c     - z[i + V] * s
 *     z[i + V] <- z[i + V] * c + z[i] * s
 *   rope_interleaved, table[L,2,W]:  z[j] <- z[j] * table[t,0,j] + z[j'] * sign * table[t,1,j]
 *     with j' the other element of j's pair, 2i or 2i + 1; the table repeats each cosine, and
 *     holds -sine and sine
 *
 * sign is 1 to rotate, -1 to rotate back. A row group owns `block` tokens. With ALIGNED, V, D and
 * offset are multiples of 4; in rope the items distribute the vectors of all heads among them,
 * since half a head is less than a step. Required: nothing. No local memory. Deterministic: each
 * pair depends on that pair only.
 */
#include "args/nn.h"

static inline void rotate(vec *a, vec *b, vec c, vec s) {
    const vec low = *a, high = *b;
    *a = fma(low, c, -high * s);
    *b = fma(high, c, low * s);
}

#ifdef ALIGNED
static inline void rope_token(global float *x, global const float *cosine, moert_rope_args args) {
    const int half_width = args.width / 2, parts = half_width / PART, all = args.heads * parts;
    for (int first = get_local_id(0); first < all; first += BATCH * MOERT_ITEMS) {
        vec a[BATCH], b[BATCH];
        int at[BATCH], column[BATCH];
        UNROLL_FOR(int k = 0; k < BATCH; k++) {
            const int part = min(first + k * MOERT_ITEMS, all - 1);
            column[k] = part % parts * PART;
            at[k] = part / parts * args.head_size + column[k];
            a[k] = *(global const vec *)(x + at[k]);
            b[k] = *(global const vec *)(x + at[k] + half_width);
        }
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            if (first + k * MOERT_ITEMS < all) {
                global const float *c = cosine + column[k];
                rotate(&a[k], &b[k], *(global const vec *)c,
                       args.sign * *(global const vec *)(c + half_width));
                *(global vec *)(x + at[k]) = a[k];
                *(global vec *)(x + at[k] + half_width) = b[k];
            }
    }
}
#else
static inline void rope_token(global float *x, global const float *cosine, moert_rope_args args) {
    const int half_width = args.width / 2;
    for (int h = 0; h < args.heads; h++, x += args.head_size)
        for (int i = 0; i < half_width; i += VEC) {
            int n = half_width - i;
            vec a = load_part(x + i, n), b = load_part(x + half_width + i, n);
            rotate(&a, &b, load_part(cosine + i, n),
                   args.sign * load_part(cosine + half_width + i, n));
            store_part(a, x + i, n);
            store_part(b, x + half_width + i, n);
        }
}
#endif

static inline void rope_token_interleaved(global float *x, global const float *cosine,
                                          moert_rope_args args) {
    for (int i = 0; i < args.width; i += VEC) {
        const vec c = load_part(cosine + i, args.width - i),
                  s = args.sign * load_part(cosine + args.width + i, args.width - i);
        for (int first = 0; first < args.heads; first += BATCH) {
            vec a[BATCH];
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                a[k] = load_part(x + (first + k) * args.head_size + i,
                                 first + k < args.heads ? args.width - i : 0);
            UNROLL_FOR(int k = 0; k < BATCH; k++) {
                vec other;
                other.even = a[k].odd;
                other.odd = a[k].even;
                store_part(fma(a[k], c, other * s), x + (first + k) * args.head_size + i,
                           first + k < args.heads ? args.width - i : 0);
            }
        }
    }
}

static inline ulong position_of(global const int *positions, ulong token, ulong length) {
    return positions != 0 ? (ulong)positions[token] : token % length;
}

/* Defines the kernel `name`, which calls `rotate_token`; a row of the table has `columns`. */
#define DEFINE_ROPE(name, rotate_token, columns)                                                   \
    KERNEL void name(global const float *table, global const int *positions, global float *x,      \
                     moert_rope_args args) {                                                       \
        ulong first = get_group_id(0) * args.block, end = min(first + args.block, args.tokens);    \
        for (ulong token = first; token < end; token++)                                            \
            rotate_token(x + token * args.heads * args.head_size + args.offset,                    \
                         table + position_of(positions, token, args.length) * (columns), args);    \
    }
DEFINE_ROPE(rope, rope_token, args.width)
DEFINE_ROPE(rope_interleaved, rope_token_interleaved, 2 * args.width)
