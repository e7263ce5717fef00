/*
 * Rotary positions of x[T,N,D] (N heads of D elements): y = x with the W elements from `offset` on
 * of each head rotated, in pairs. With ROUNDED y is a separate bf16 matrix; else it is x, in place.
 *
 *   with t = positions[token], or token mod length if positions is null;
 *   z = x[token,n,offset ...], w = y[token,n,offset ...], V = W / 2, i < V
 *   rope, table[L,2,V]:              c = table[t,0,i], s = sign * table[t,1,i]
 *     w[i]     = z[i] * c     - z[i + V] * s
 *     w[i + V] = z[i + V] * c + z[i] * s
 *   rope_interleaved, table[L,2,W]:  w[j] = z[j] * table[t,0,j] + z[j'] * sign * table[t,1,j]
 *     with j' the other element of j's pair, 2i or 2i + 1; the table repeats each cosine, and
 *     holds -sine and sine
 *
 * sign is 1 to rotate, -1 to rotate back. A row group owns `block` tokens. With ALIGNED, V, D and
 * offset are multiples of 4; in the kernel rope, the items distribute the vectors of all heads
 * among them, since half a head is less than a step. Required: ROUNDED (0, 1). No local memory.
 * Deterministic: each pair depends on that pair only.
 */
#include "args/nn.h"
#include "lib/formats.h"
#ifndef ROUNDED
#error "ROUNDED must be defined"
#endif

#if ROUNDED
typedef ushort element;
typedef short_vec element_vec;
#define to_elements(x)          convert_short_vec(encode(x, DTYPE_BF16))
#define store_elements(x, p, n) store_shorts(encode(x, DTYPE_BF16), p, n)

/* Rounds the columns [first, end) of all heads of a token. */
static inline void keep_columns(global const float *x, global element *y, int first, int end,
                                moert_rope_args args) {
    for (int c = first; c < end; c += VEC)
        for (int head = 0; head < args.heads; head += BATCH) {
            vec a[BATCH];
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                a[k] = load_part(x + (head + k) * args.head_size + c,
                                 head + k < args.heads ? end - c : 0);
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                store_elements(a[k], y + (head + k) * args.head_size + c,
                               head + k < args.heads ? end - c : 0);
        }
}
#else
typedef float element;
typedef vec element_vec;
#define to_elements(x)                       (x)
#define store_elements(x, p, n)              store_part(x, p, n)
#define keep_columns(x, y, first, end, args) ((void)0)
#endif

static inline void rotate(vec *a, vec *b, vec c, vec s) {
    const vec low = *a, high = *b;
    *a = fma(low, c, -high * s);
    *b = fma(high, c, low * s);
}

#ifdef ALIGNED
static inline void rope_token(global const float *x, global element *y, global const float *cosine,
                              moert_rope_args args) {
    const int half_width = args.width / 2, parts = half_width / PART, all = args.heads * parts;
    for (int first = get_local_id(0); first < all; first += BATCH * MOERT_ITEMS) {
        vec a[BATCH], b[BATCH];
        int at[BATCH], column[BATCH];
        UNROLL_FOR(int k = 0; k < BATCH; k++) {
            /* past the end, load the item's first part again, which no other item writes */
            const int part = first + (first + k * MOERT_ITEMS < all ? k * MOERT_ITEMS : 0);
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
                *(global element_vec *)(y + at[k]) = to_elements(a[k]);
                *(global element_vec *)(y + at[k] + half_width) = to_elements(b[k]);
            }
    }
}
#else
static inline void rope_token(global const float *x, global element *y, global const float *cosine,
                              moert_rope_args args) {
    const int half_width = args.width / 2;
    for (int h = 0; h < args.heads; h++, x += args.head_size, y += args.head_size)
        for (int i = 0; i < half_width; i += VEC) {
            int n = half_width - i;
            vec a = load_part(x + i, n), b = load_part(x + half_width + i, n);
            rotate(&a, &b, load_part(cosine + i, n),
                   args.sign * load_part(cosine + half_width + i, n));
            store_elements(a, y + i, n);
            store_elements(b, y + half_width + i, n);
        }
}
#endif

static inline void rope_token_interleaved(global const float *x, global element *y,
                                          global const float *cosine, moert_rope_args args) {
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
                store_elements(fma(a[k], c, other * s), y + (first + k) * args.head_size + i,
                               first + k < args.heads ? args.width - i : 0);
            }
        }
    }
}

static inline ulong position_of(global const int *positions, ulong token, ulong length) {
    return positions != 0 ? (ulong)positions[token] : token % length;
}

/* Defines the kernel `name`, which calls `rotate_token`; a row of the table has `columns`
 * columns. */
#define DEFINE_ROPE(name, rotate_token, columns)                                                   \
    KERNEL void name(global const float *table, global const int *positions,                       \
                     global const float *x, global element *y, moert_rope_args args) {             \
        ulong first = get_group_id(0) * args.block, end = min(first + args.block, args.tokens);    \
        for (ulong token = first; token < end; token++) {                                          \
            const ulong at = token * args.heads * args.head_size;                                  \
            rotate_token(x + at + args.offset, y + at + args.offset,                               \
                         table + position_of(positions, token, args.length) * (columns), args);    \
            keep_columns(x + at, y + at, 0, args.offset, args);                                    \
            keep_columns(x + at, y + at, args.offset + args.width, args.head_size, args);          \
        }                                                                                          \
    }
DEFINE_ROPE(rope, rope_token, args.width)
DEFINE_ROPE(rope_interleaved, rope_token_interleaved, 2 * args.width)
