/*
 * Digests of rows, by which ranks compare what they compute.
 *
 *   digest_rows   digest[first + r] = (sum of w m(c), sum of turned(w) n(c)) modulo 2^32, over the
 *                 words w of row r, c being the index of a word
 *
 * Row r starts at x + at + r * stride and has `words` words of 32 bits. Only the bits of `mask`
 * count in the last word. turned(w) exchanges the halves of w. m(c) and n(c) are odd, so rows that
 * differ in one bit differ in both sums. They look random, so other differences are missed about
 * once in 2^64.
 *
 * A row group owns one row. With ALIGNED, words, stride and `at` are multiples of 4. Required:
 * nothing. Local memory: 8 bytes for each item. Deterministic: sums of integers in any order.
 */
#include "args/nn.h"

/* Odd numbers that look random. */
static inline uvec factors(uvec place, uint seed) {
    uvec x = (place + seed) * 0x9E3779B1u;
    x ^= x >> 15;
    x *= 0x85EBCA77u;
    return x ^ x >> 13 | 1u;
}

static inline uint sum_parts(uvec x) {
    uint part[PART], sum = 0;
#if MOERT_ITEMS == 1
    vstore16(x, 0, part);
#else
    vstore4(x, 0, part);
#endif
    UNROLL_FOR(int i = 0; i < PART; i++)
        sum += part[i];
    return sum;
}

/* The sum of all items; only the first item gets it. */
static inline uint2 sum_items(uint2 x, local uint2 *items) {
#if MOERT_ITEMS > 1
    items[item_index()] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    x = 0;
    if (is_first_item())
        for (int i = 0; i < MOERT_ITEMS; i++)
            x += items[i];
#endif
    return x;
}

KERNEL void digest_rows(global const float *x, global uint2 *digest, moert_digest_args args) {
    local uint2 items[MOERT_ITEMS];
    global const float *from = x + args.at + get_group_id(0) * args.stride;
    uvec plain = 0, turned = 0;
    for (int c = 0; c < args.words; c += VEC) {
        const ivec place = c + lane_places();
        uvec w = as_uvec(load_part(from + c, args.words - c));
        w = select(w, w & args.mask, place == args.words - 1);
        plain += w * factors(as_uvec(place), 1);
        turned += rotate(w, 16u) * factors(as_uvec(place), 0x40000001u);
    }
    const uint2 sum = sum_items((uint2)(sum_parts(plain), sum_parts(turned)), items);
    if (is_first_item())
        digest[args.first + get_group_id(0)] = sum;
}
