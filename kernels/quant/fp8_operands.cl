/*
 * Quantizes x[M,N], whose rows form groups, to operands of FP8 GEMMs on tensor cores (fp8.cl):
 * payloads in E4M3, and float32 scales that are powers of two. payload * scale has the values of
 * fake_quantize.cl. x is read once for both results:
 *
 *   along[M,N]       blocks of 128 columns of a row; along_scale[M,N/128]
 *   down[N,q_bytes]  blocks of 128 rows of a group; the payload is transposed, so that a block is
 *                    contiguous. The bytes of group g begin at padded_ends[g-1], a multiple of 16.
 *                    Up to 15 bytes that follow the group's rows are payloads of 0 (NaN in a block
 *                    with a NaN). down_scale[P,N]: a row for each row block
 *   TILES            groups of q_bytes rows, a multiple of 128; blocks of 128 x 128:
 *                    along[M,N], along_scale[M/128,N/128]; down[M/q_bytes,N,q_bytes],
 *                    down_scale[M/q_bytes,N/128,scales]
 *
 *     x of a tile, 128 rows x 128 columns            `turned`, 128 columns x 8 words
 *     row group 0   16 rows, 4 columns an item  -->  word 0 of each column: the 16 bytes of 16 rows
 *     ...                                            ...
 *     row group 7                                    word 7
 *
 * Rows of x lie args.x_stride elements apart, a multiple of 4; N and args.strip are multiples of
 * 128. A work-group of 8 row groups quantizes `strip` columns of one row block of a group.
 * Required: BLOCK 128, ELEMENT, E4M3, ELEMENT_BITS 8, SCALE 0, LARGEST and LARGEST_EXPONENT, as in
 * quantize.cl; X_BF16 (0 x is float32, 1 bf16); ALONG and DOWN (0; 1: there is such a result);
 * ALIGNED; the GPU form. Optional: TILES. Grid of fp8_operands: (row blocks, strips); of
 * pad_ends: (1). Local memory: 21504 bytes. Deterministic.
 */
#if !defined(ALONG) || !defined(DOWN) || !defined(ALIGNED) || MOERT_ITEMS == 1
#error "ALONG, DOWN and ALIGNED must be defined, in the GPU form"
#endif
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
static inline value_scale find_scale(const task *t, uvec largest) {
    const scaling s = scale_e8m0(largest_of(largest), t->args->scale_rounding);
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

#include "quant/held_rows.h"

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

#ifdef HAS_WARPS
#include "quant/collect_largest.h"

/* Quantizes the held rows along rows. Each item computes one row's scale. */
static inline void round_along(const task *t, const vec held[HELD], int column,
                               local float *row_group) {
    const uint own = item_index() / SPREAD; /* the row whose scale this item computes */
    uint most[HELD];
    collect_largest(held, most);
    const value_scale s = find_scale(t, (uvec)most[0]);
    place to = place_of(t, column);
    if (item_index() % SPREAD == 0 && own < to.lines)
        to.scale[own * (t->args->columns / BLOCK)] = s.scale.x;
    UNROLL_FOR(uint r = 0; r < HELD; r++)
        store_payload(t, &to, held[r] * as_float(value_in(as_uint(s.factor.x), r * SPREAD)), r);
}
#else
/* Quantizes the held rows along rows; the row group's items call together. */
static inline void round_along(const task *t, const vec held[HELD], int column,
                               local float *row_group) {
    place to = place_of(t, column);
    for (uint r = 0; r < HELD; r++) {
        const uvec largest = block_largest(larger_bits(0, held[r]), BLOCK / PART, row_group);
        const value_scale s = find_scale(t, largest);
        store_payload(t, &to, held[r] * s.factor, r);
        if (is_first_item() && r < to.lines)
            to.scale[r * (t->args->columns / BLOCK)] = s.scale.x;
    }
}
#endif

/* ---- transposed payload ---- */

/* The position of a word of a column in local memory. Words that a warp stores or loads at once are
 * in different banks. */
static inline uint word_at(uint column, uint word) {
    return column * WORDS + (word ^ column / PART % WORDS);
}

/* Puts this row group's word of each column of a tile into local memory. x: elements. */
static inline void put_columns(const vec x[HELD], local uint4 *turned) {
    const uint column = part_start(), word = row_group_index();
#define FOUR(r, c) pack_elements((vec)(x[r].c, x[r + 1].c, x[r + 2].c, x[r + 3].c))
#define SIXTEEN(c) (uint4)(FOUR(0, c), FOUR(4, c), FOUR(8, c), FOUR(12, c))
    turned[word_at(column, word)] = SIXTEEN(x);
    turned[word_at(column + 1, word)] = SIXTEEN(y);
    turned[word_at(column + 2, word)] = SIXTEEN(z);
    turned[word_at(column + 3, word)] = SIXTEEN(w);
}

/* Stores the words of a tile's columns that have rows; all row groups call together. */
static inline void store_columns(const task *t, int column, local const uint4 *turned) {
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint item = row_group_index() * MOERT_ITEMS + item_index();
    for (uint i = item; i < BLOCK * WORDS; i += ROW_GROUPS * MOERT_ITEMS) {
        const uint c = i / WORDS, word = i % WORDS;
        if (word * WORD < t->p.rows)
            *(global uint4 *)(t->down + (column + c) * t->args->q_bytes + word * WORD) =
                turned[word_at(c, word)];
    }
}

/* ---- blocks ---- */

/* Quantizes the held rows of a block, one block in each column; all row groups call together. */
static inline void round_down(const task *t, const vec held[HELD], int column,
                              local uvec (*peaks)[MOERT_ITEMS], local uint4 *turned) {
    const value_scale s = find_scale(t, largest_of_groups(held_largest(held), peaks));
    vec x[HELD];
    UNROLL_FOR(int r = 0; r < HELD; r++)
        x[r] = held[r] * s.factor;
    put_columns(x, turned);
    if (row_group_index() == 0)
        *(global vec *)(t->down_scale + column + part_start()) = s.scale;
    store_columns(t, column, turned);
}

#ifdef TILES
/* Quantizes the held rows of a tile; all row groups call together. */
static inline void round_tile(const task *t, vec held[HELD], int column, local float *row_group,
                              local uvec (*peaks)[MOERT_ITEMS], local uint4 *turned) {
    const uvec own = block_largest(held_largest(held), BLOCK / PART, row_group);
    const value_scale s = find_scale(t, largest_of_groups(own, peaks));
    const uint tile = column / BLOCK;
    UNROLL_FOR(int r = 0; r < HELD; r++)
        held[r] *= s.factor;
    put_columns(held, turned);
    place to = place_of(t, column);
    UNROLL_FOR(uint r = 0; r < HELD; r++)
        store_payload(t, &to, held[r], r);
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

KERNEL_OF(ROW_GROUPS)
void fp8_operands(global const uint *ends, global const uint *padded_ends, global const void *x,
                  global uint *along, global float *along_scale, global uchar *down,
                  global float *down_scale, moert_quantize_args args) {
    ROW_GROUP_OF(ROW_GROUPS);
    PEAKS;
    local uint4 turned[BLOCK * WORDS];
    task t = {&args, find_part(ends, &args, COLUMN), x, along, along_scale, down_scale, down};
    if (t.p.rows == 0)
        return;
    find_down(&t, ends, padded_ends);
    vec held[HELD];
    loaded own[HELD];
    ROLLED for (int c = t.p.first; c < t.p.last; c += VEC) {
        load_rows(&t, own, c);
        hold_rows(held, own);
#ifdef TILES
        round_tile(&t, held, c, row_group[row_group_index()], peaks, turned);
#else
#if DOWN
        round_down(&t, held, c, peaks, turned);
#endif
#if ALONG
        round_along(&t, held, c, row_group[row_group_index()]);
#endif
#endif
    }
}

/* padded_ends[g] = the sum of the rows of groups 0 to g, each rounded up to a multiple of WORD. */
KERNEL void pad_ends(global const uint *ends, global uint *padded_ends, moert_quantize_args args) {
    local uint rows[MOERT_ITEMS]; /* padded rows of each item's group */
    uint before = 0;
    for (uint first = 0; first < args.groups; first += MOERT_ITEMS) {
        const uint g = first + item_index();
        uint padded = 0;
        if (g < args.groups) {
            const uint start = min(group_start(ends, g), args.rows);
            padded = (group_end(ends, g, start, args.rows) - start + WORD - 1) / WORD * WORD;
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* all items have read the previous values */
        rows[item_index()] = padded;
        barrier(CLK_LOCAL_MEM_FENCE);
        uint sum = before;
        for (int i = 0; i < MOERT_ITEMS; i++) {
            sum += i <= item_index() ? rows[i] : 0;
            before += rows[i];
        }
        if (g < args.groups)
            padded_ends[g] = sum;
    }
}
