/*
 * Rounds x[M,N], whose rows form groups, to the values of a block-scaled format (fake
 * quantization): what quantize.cl and then dequantize.cl give in bf16, without storing payload and
 * scales. x is read once for both results:
 *
 *   along[M,N]   blocks of BLOCK columns of a row    (ROW of quantize.cl)
 *   down[M,N]    blocks of BLOCK rows of a group     (COLUMN of quantize.cl); with HADAMARD, whole
 *                                                    blocks are rotated first
 *   TILES        blocks of BLOCK x BLOCK             (TILE of quantize.cl); both are equal
 *
 * NVFP4's block scales keep the 3 mantissa bits of E4M3, but have the range of float32, as with a
 * global scale for each block that is a power of two. Scales of blocks of 128 are powers of two.
 *
 * Rows of x lie args.x_stride elements apart; results are dense. A work-group rounds `strip`
 * columns, a multiple of 128, of one row block of a group; on GPUs ROW_GROUPS row groups share the
 * block. Rows past the last end are not touched.
 *
 * With ROUNDING 3, the random bits of an element of group g are byte column % 16 of Philox4x32-10
 * with key seed and counter (stream, (row + first) * ceil(N/16) + column / 16). The words
 * draws[args.draws_at + 2 g] are (stream - args.stream, first) or, without draws, (2 g, minus the
 * group's first row); the sum row + first has 32 bits; `down` takes stream + 1.
 *
 * Required: BLOCK, ELEMENT, E4M3, ELEMENT_BITS, SCALE (0 powers of two, 1 with 4 significant bits),
 * LARGEST and LARGEST_EXPONENT, for 4-bit elements ROUNDING (1 to nearest, 3 stochastic) and RULE
 * (0, TE), as in quantize.cl; X_BF16 (0 x is float32, 1 bf16); ALONG and DOWN (0; 1: there is such
 * a result). Optional: TILES, with ALONG; HADAMARD, with DOWN and BLOCK 16. Grid: (row blocks,
 * strips). Local memory on GPUs, for each row group: 128 bytes and, with ROW_GROUPS > 1, 512 bytes
 * more. Deterministic.
 */
#if !defined(ALONG) || !defined(DOWN)
#error "ALONG and DOWN must be defined"
#endif
#include "lib/formats.h"
#ifdef HADAMARD
#define HELD BLOCK
#else
#define HELD (MOERT_ITEMS == 1 ? BLOCK : BLOCK == 128 ? 16 : 8)
#endif
#include "quant/held.h"
#include "quant/quantize.h"
#include "quant/rows.h"

/* Whether the next step's rows are loaded while a step is computed. Rows without alignment are not:
 * NVIDIA's compiler (driver 580) then computes wrong values. */
#ifdef ALIGNED
#define LOADS_AHEAD 1
#else
#define LOADS_AHEAD 0
#endif
#define WIDE (SPAN / VEC) /* vectors of a row that are rounded at a time */

#if ELEMENT_BITS == 4 && ROUNDING == 3
#define RANDOM 1
#else
#define RANDOM 0
#endif
enum { ALONG_STREAM, DOWN_STREAM };

/* The work of a work-group. */
typedef struct task {
    const moert_quantize_args *args;
    part p;
    global const void *x;
    global ushort *along, *down;
    uint stream, first_row; /* with RANDOM */
} task;

/* The scales of a vec of columns or of rows, or one scale in all lanes. Elements are x * factor,
 * values are elements times `scale`. */
typedef struct value_scale {
    vec factor, scale;
} value_scale;

/* The scale of blocks from their largest magnitude bits. */
static inline value_scale find_scale(const task *t, uvec largest) {
#if SCALE == 1
    const uvec finite = largest > 0x7F800000u ? (uvec)QUIET : min(largest, (uvec)0x7F7FFFFFu);
    const uvec s = as_uvec(as_vec(finite) * (1.0f / 6.0f));
    const uvec rounded = (s + 0x7FFFFu + ((s >> 20) & 1u)) & 0xFFF00000u;
    const vec scale = as_vec(s > 0x7F800000u ? (uvec)QUIET : s < 0x00800000u ? (uvec)0 : rounded);
    return (value_scale){scale == 0.0f ? (vec)0.0f : 1.0f / scale, scale};
#else
    const scaling s = scale_e8m0(largest_of(largest), t->args->scale_rounding);
    return (value_scale){s.factor, decode_e8m0(s.code)};
#endif
}

/* The values of elements of row `row` from `column` on. */
static inline vec values_of(const task *t, value_scale s, vec x, uint stream, uint row,
                            int column) {
    const vec y = x * s.factor;
#if RANDOM
    const int c = column + part_start();
    const ulong vectors = (t->args->columns + 15) / 16;
    const vec elements =
        round_stochastic(y, random_bytes(t->args->seed, t->stream + stream,
                                         (row + t->first_row) * vectors + c / 16, c / PART % 4));
#elif defined(HAS_FP8) && ELEMENT_BITS == 8
    const vec elements = unpack_bytes(pack_bytes(y, ELEMENT), ELEMENT);
#else
    const vec elements = round_to(y, LARGEST, ELEMENT);
#endif
    return (SCALE == 1 && s.scale == 0.0f ? (vec)0.0f : elements) * s.scale;
}

/* Whether values with these scales can be stored without the rare cases: NaN and, where no
 * instruction rounds to bf16, values that are not exact in bf16. */
static inline bool is_plain(vec scale) {
#if defined(HAS_BF16) && defined(ALIGNED)
    return !any(isnan(scale));
#else
    return all(scale >= 0x1p-100f);
#endif
}

static inline void store_values(const task *t, vec values, bool plain, global ushort *to, uint row,
                                int column, int n) {
    to += (ulong)row * t->args->columns + column;
#if defined(HAS_BF16) && defined(ALIGNED)
    if (plain) {
        if (part_start() < n)
            *(global uint2 *)(to + part_start()) =
                (uint2)(pack_bf16(values.x, values.y), pack_bf16(values.z, values.w));
        return;
    }
#endif
    store_shorts(plain ? as_uvec(values) >> 16 : encode(values, DTYPE_BF16), to, n);
}

/* Rounds WIDE vectors of a row that share their scale. */
static inline void store_along(const task *t, value_scale s, const vec x[WIDE], bool plain,
                               uint row, int column, int n) {
    for (int i = 0; i < WIDE && i * VEC < max(n, 1); i++) {
        const int c = column + i * VEC;
        const vec values = values_of(t, s, x[i], ALONG_STREAM, row, c);
        store_values(t, values, plain, t->along, row, c, n - i * VEC);
#if defined(TILES) && DOWN
        store_values(t, values, plain, t->down, row, c, n - i * VEC);
#endif
    }
}

static inline loaded load_step(const task *t, uint row, int column, int n) {
    return load_x_as(t->x, row * t->args->x_stride + column, n);
}

#include "quant/held_rows.h"

#if MOERT_ITEMS == 1
#include "quant/along_cpu.h"
#else
/* Rounds a step of the held row `line` of the block. */
static inline void store_held(const task *t, value_scale s, const vec *x, uint line, int column) {
    store_along(t, s, x, is_plain(s.scale), t->p.row + line, column,
                line < t->p.rows ? t->p.last - column : 0);
}
#include "quant/along_gpu.h"
#endif

/* Rounds the held rows of a block, one block in each column; all row groups call together. */
static inline void round_down(const task *t, vec held[HELD], int column,
                              local uvec (*peaks)[MOERT_ITEMS]) {
#ifdef HADAMARD
    if (t->p.rows == BLOCK)
        rotate_rows(held);
#endif
    const value_scale s = find_scale(t, largest_of_groups(held_largest(held), peaks));
    const bool plain = is_plain(s.scale);
    const uint first = first_held_again();
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) {
        const uint line = first + r, row = t->p.row + line;
        if (line < t->p.rows)
            store_values(t, values_of(t, s, held[r], DOWN_STREAM, row, column), plain, t->down, row,
                         column, t->p.last - column);
    }
}

#if defined(TILES) && MOERT_ITEMS > 1
/* Rounds the held rows of a block in tiles; all row groups call together. */
static inline void round_tiles(const task *t, const vec held[HELD], int column,
                               local float *row_group, local uvec (*peaks)[MOERT_ITEMS]) {
    const uvec own = block_largest(held_largest(held), BLOCK / PART, row_group);
    const value_scale s = find_scale(t, largest_of_groups(own, peaks));
    const uint first = first_held_again();
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) store_held(t, s, &held[r], first + r, column);
}
#endif

/* Rounds the columns of one row group's rows. */
static inline void round_block(const task *t, local float *row_group,
                               local uvec (*peaks)[MOERT_ITEMS]) {
    const part p = t->p;
    vec held[HELD];
    loaded own[HELD];
#if MOERT_ITEMS == 1 && defined(TILES)
    for (int c = p.first; c < p.last; c += SPAN)
        round_tile(t, c, p.last - c, row_group);
#elif MOERT_ITEMS == 1
    for (uint r = 0; ALONG && r < p.rows; r += VEC)
        for (int c = p.first; c < p.last; c += SPAN)
            round_along(t, p.row + r, min(p.rows - r, (uint)VEC), c, p.last - c);
    for (int c = p.first; DOWN && c < p.last; c += VEC) {
        load_rows(t, own, c);
        hold_rows(held, own);
        round_down(t, held, c, peaks);
    }
#else
    if (LOADS_AHEAD)
        load_rows(t, own, p.first);
    for (int c = p.first; c < p.last; c += VEC) {
        if (!LOADS_AHEAD)
            load_rows(t, own, c);
        hold_rows(held, own);
        if (LOADS_AHEAD)
            load_rows(t, own, c + VEC);
#ifdef TILES
        round_tiles(t, held, c, row_group, peaks);
#else
#if ALONG
        round_along(t, held, c, row_group);
#endif
#if DOWN
        round_down(t, held, c, peaks);
#endif
#endif
    }
#endif
}

KERNEL_OF(ROW_GROUPS)
void fake_quantize(global const uint *ends, global const void *x, global const uint *draws,
                   global ushort *along, global ushort *down, moert_quantize_args args) {
    ROW_GROUP_OF(ROW_GROUPS);
    PEAKS;
    task t = {&args, find_part(ends, &args, COLUMN), x, along, down, 0, 0};
    if (t.p.rows == 0)
        return;
#if RANDOM
    const uint g = t.p.group, draw = args.draws_at + 2 * g;
    t.stream = (draws != 0 ? draws[draw] : 2 * g) + args.stream;
    t.first_row = draws != 0 ? draws[draw + 1] : g > 0 ? 0u - ends[g - 1] : 0u;
#endif
    round_block(&t, row_group[row_group_index()], peaks);
}
