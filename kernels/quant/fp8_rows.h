/*
 * Included by fp8_operands.cl and nn/optimizer_fp8.cl: quantizes the rows that the row groups of a
 * work-group hold, and stores the results. fp8_operands.cl describes the results and the required
 * defines.
 */
#include "lib/formats.h"
#include "quant/held.h"
#include "quant/quantize.h"
#include "quant/rows.h"

#define WORD  MOERT_FP8_ROW_MULTIPLE /* rows whose bytes of a column form a word */
#define WORDS (BLOCK / WORD)         /* of a column of a tile */

/* The work of a work-group. `down` and `down_scale` begin at its row block. */
typedef struct task {
    const moert_quantize_args *args;
    part p;
    global const void *x;
    global uint *along;
    global float *along_scale, *down_scale;
    global uchar *down;
} task;

/* The scales of a vec of columns or of rows, or one scale in all lanes. Elements are x * factor. */
typedef struct value_scale {
    vec factor, scale;
} value_scale;

/* The scale of blocks from their largest magnitude bits. */
static inline value_scale find_scale(uvec largest) {
    const scaling s = scale_e8m0(largest_of(largest), RCEIL);
    return (value_scale){s.factor, decode_e8m0(s.code)};
}

/* The bytes of four elements. */
static inline uint pack_elements(vec x) {
#ifdef HAS_FP8
    return pack_bytes(x, ELEMENT);
#else
    return as_uint(convert_byte_vec(encode(x, ELEMENT)));
#endif
}

#include "quant/packed_rows.h"
#ifdef HAS_WARPS
#include "quant/collect_largest.h"
#endif

/* ---- payload in the order of x ---- */

/* Where the results `along` of a step of the held rows lie. */
typedef struct place {
    global uint *payload;
    global float *scale; /* of the first row's block */
    uint lines;          /* held rows that exist */
} place;

static inline place place_of(const task *t, int column) {
    const uint first = first_held_again(), row = t->p.row + first, columns = t->args->columns;
    return (place){t->along + ((ulong)row * columns + column) / PART + item_index(),
                   t->along_scale + (ulong)row * (columns / BLOCK) + column / BLOCK,
                   max(t->p.rows, first) - first};
}

/* Stores the payload of row r of a step, and moves to the next row. */
static inline void store_payload(const task *t, place *to, vec x, uint r) {
    if (r < to->lines)
        *to->payload = pack_elements(x);
    to->payload += t->args->columns / PART;
}

/* Quantizes the held rows along rows; the row group's items call together. */
static inline void round_along(const task *t, const loaded own[HELD], int column,
                               local float *row_group) {
    place to = place_of(t, column);
#ifdef HAS_WARPS
    const uint line = item_index() / SPREAD; /* the row whose scale this item computes */
    uint most[HELD];
    UNROLL_FOR(uint r = 0; r < HELD; r++)
        most[r] = largest_in_row(own[r]);
    exchange_largest(most);
    const value_scale s = find_scale((uvec)most[0]);
    if (item_index() % SPREAD == 0 && line < to.lines)
        to.scale[line * (t->args->columns / BLOCK)] = s.scale.x;
    UNROLL_FOR(uint r = 0; r < HELD; r++) {
        const float factor = as_float(value_in(as_uint(s.factor.x), r * SPREAD));
        store_payload(t, &to, floats_of(own[r]) * factor, r);
    }
#else
    for (uint r = 0; r < HELD; r++) {
        const uvec bits = magnitude_bits(floats_of(own[r]));
        const value_scale s = find_scale(block_largest(bits, BLOCK / PART, row_group));
        store_payload(t, &to, floats_of(own[r]) * s.factor, r);
        if (is_first_item() && r < to.lines)
            to.scale[r * (t->args->columns / BLOCK)] = s.scale.x;
    }
#endif
}

/* ---- transposed payload ---- */

/* The position of a word of a column in local memory. Words that a warp stores or loads at once are
 * in different banks. */
static inline uint word_at(uint column, uint word) {
    return column * WORDS + (word ^ column / PART % WORDS);
}

/* Puts this row group's word of each column of a tile into local memory: x * factor. */
static inline void put_columns(const loaded own[HELD], vec factor, local uint4 *turned) {
    const uint column = item_again() * PART, word = row_group_again();
    uvec bytes[HELD / 4]; /* of four rows of each column */
#define FOUR(c) pack_elements((vec)(x[0].c, x[1].c, x[2].c, x[3].c))
    UNROLL_FOR(int i = 0; i < HELD / 4; i++) {
        vec x[4];
        UNROLL_FOR(int r = 0; r < 4; r++)
            x[r] = floats_of(own[4 * i + r]) * factor;
        bytes[i] = (uvec)(FOUR(x), FOUR(y), FOUR(z), FOUR(w));
    }
#define SIXTEEN(c) (uint4)(bytes[0].c, bytes[1].c, bytes[2].c, bytes[3].c)
    turned[word_at(column, word)] = SIXTEEN(x);
    turned[word_at(column + 1, word)] = SIXTEEN(y);
    turned[word_at(column + 2, word)] = SIXTEEN(z);
    turned[word_at(column + 3, word)] = SIXTEEN(w);
}

/* Stores the words of a tile's columns that have rows; all row groups call together. */
static inline void store_columns(const task *t, int column, local const uint4 *turned) {
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint item = row_group_again() * MOERT_ITEMS + item_again();
    const uint first = item / WORDS, word = item % WORDS, step = ROW_GROUPS * MOERT_ITEMS / WORDS;
    global uchar *to = t->down + (column + first) * t->args->q_bytes + word * WORD;
    if (word * WORD < t->p.rows)
        UNROLL_FOR(uint c = 0; c < BLOCK; c += step)
            *(global uint4 *)(to + c * t->args->q_bytes) = turned[word_at(first + c, word)];
}

/* ---- blocks ---- */

/* Quantizes the held rows of a block in the directions of the results; all row groups call
 * together. */
static inline void round_rows(const task *t, loaded own[HELD], int column, local float *row_group,
                              local uvec (*peaks)[MOERT_ITEMS], local uint4 *turned) {
#if DOWN
    put_peaks(largest_in_columns(own), peaks);
#endif
#if ALONG
    renew(own);
    round_along(t, own, column, row_group);
#endif
#if DOWN
    const value_scale s = find_scale(largest_peaks(peaks));
    renew(own);
    put_columns(own, s.factor, turned);
    if (row_group_index() == 0)
        *(global vec *)(t->down_scale + column + part_start()) = s.scale;
    store_columns(t, column, turned);
#endif
}

#ifdef TILES
/* Quantizes the held rows of a tile; all row groups call together. */
static inline void round_tile(const task *t, const loaded own[HELD], int column,
                              local float *row_group, local uvec (*peaks)[MOERT_ITEMS],
                              local uint4 *turned) {
    put_peaks(block_largest(largest_in_columns(own), BLOCK / PART, row_group), peaks);
    const value_scale s = find_scale(largest_peaks(peaks));
    const uint tile = column / BLOCK;
    put_columns(own, s.factor, turned);
    place to = place_of(t, column);
    UNROLL_FOR(uint r = 0; r < HELD; r++)
        store_payload(t, &to, floats_of(own[r]) * s.factor, r);
    if (row_group_index() == 0 && is_first_item()) {
        t->along_scale[t->p.slot * (t->args->columns / BLOCK) + tile] = s.scale.x;
        t->down_scale[tile * t->args->scales] = s.scale.x;
    }
    store_columns(t, column, turned);
}
#endif

/* Moves the task's pointers to the results `down` of its row block. */
static inline void find_down(task *t, global const uint *ends, global const uint *padded_ends) {
#ifdef TILES
    const moert_quantize_args *a = t->args;
    const ulong height = a->q_bytes, group = t->p.row / height, row = t->p.row % height;
    t->down += group * a->columns * height + row;
    t->down_scale += group * (a->columns / BLOCK) * a->scales + row / BLOCK;
#elif DOWN
    const uint g = t->p.group;
    t->down += group_start(padded_ends, g) + t->p.row - group_start(ends, g);
    t->down_scale += (ulong)t->p.slot * t->args->columns;
#endif
}
