/*
 * Digests of rows, by which ranks compare their results.
 *
 *   digest_rows    digest[first + r] = (sum of w m(c), sum of turned(w) n(c)) modulo 2^32, over the
 *                  words w of row r, c being the index of a word. Row r starts at x + at + r *
 *                  stride and has `words` words of 32 bits. Of the last word of a row, only the
 *                  bits that are set in `mask` are used.
 *   digest_spans   the same sums for the rows of a table, span. span[first_row + r] = (begin,
 *                  elements) of row r, which starts at x + at + begin. A word of the row is a
 *                  float32 element or, with BF16, a bf16 element and 16 zero bits.
 *
 * turned(w) exchanges the halves of w. m(c) and n(c) = rotate(m(c), 11) | 1 are odd, so rows that
 * differ in one bit differ in both sums. m and n look random, so other differences are missed about
 * once in 2^64.
 *
 * A row group owns one row. With ALIGNED, words, elements, stride, begin and `at` are multiples of
 * 4. Local memory: 8 bytes for each item. Deterministic: sums of integers in any order.
 */
#include "args/nn.h"
#ifdef BF16
#include "lib/formats.h"
typedef ushort element;
#define load_words(p, n) load_shorts(p, n)
#else
typedef float element;
#define load_words(p, n) as_uvec(load_part(p, n))
#endif

/* The factors m(c) come from (c + 1) SEED. */
#define SEED 0x9E3779B1u

/* Odd numbers that look random. */
static inline uvec mix(uvec x) {
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

/* Sets *digest to the digest of `words` words at `from`. */
static inline void digest_words(global const element *from, int words, uint mask,
                                global uint2 *digest, local uint2 *items) {
    uvec plain = 0, turned = 0, seed = (as_uvec(lane_places()) + 1u) * SEED;
    for (int c = 0; c < words; c += VEC, seed += VEC * SEED) {
        uvec w = load_words(from + c, words - c);
        w = select(w, w & mask, c + lane_places() == words - 1);
        const uvec m = mix(seed);
        plain += w * m;
        turned += rotate(w, 16u) * (rotate(m, 11u) | 1u);
    }
    const uint2 sum = sum_items((uint2)(sum_parts(plain), sum_parts(turned)), items);
    if (is_first_item())
        *digest = sum;
}

KERNEL void digest_rows(global const element *x, global uint2 *digest, moert_digest_args args) {
    local uint2 items[MOERT_ITEMS];
    digest_words(x + args.at + get_group_id(0) * args.stride, args.words, args.mask,
                 digest + args.first + get_group_id(0), items);
}

KERNEL void digest_spans(global const element *x, global const ulong *span, global uint2 *digest,
                         moert_digest_spans_args args) {
    local uint2 items[MOERT_ITEMS];
    global const ulong *row = span + 2 * (args.first_row + get_group_id(0));
    digest_words(x + (args.at + row[0]), (int)row[1], 0xFFFFFFFFu,
                 digest + args.first + get_group_id(0), items);
}
