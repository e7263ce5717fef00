/*
 * Rounds x[M,N], whose rows form groups, to the values of a block-scaled format (fake
 * quantization): what quantize.cl and then dequantize.cl give in bf16, without storing payload and
 * scales. x is read once for both results:
 *
 *   along[M,N]   blocks of BLOCK columns of a row       (ROW of quantize.cl)
 *   down[M,N]    blocks of BLOCK rows of a group        (COLUMN of quantize.cl)
 *
 * x has rows args.x_stride elements apart; results are dense. A
 * work-group rounds `strip` columns, a multiple of 128, of one row block of a group; on GPUs
 * ROW_GROUPS row groups share the block. Rows past the last end are not touched.
 *
 * Required: BLOCK, ELEMENT, E4M3, ELEMENT_BITS, SCALE, LARGEST and LARGEST_EXPONENT, for 4-bit
 * elements ROUNDING (1, to nearest) and RULE, as in quantize.cl; X_BF16 (0 x is float32, 1 bf16); ALONG and DOWN (0; 1: there
 * is such a result). Grid: (row
 * blocks, strips). Local memory on GPUs: at most 2.5 KiB. Deterministic.
 */
#if !defined(ALONG) || !defined(DOWN)
#error "ALONG and DOWN must be defined"
#endif
#include "lib/formats.h"
#define HELD (MOERT_ITEMS == 1 ? BLOCK : BLOCK == 128 ? 16 : 8)
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

/* The values of the scales. `one`: all lanes belong to one block. */
static inline vec scale_values(const scaling *s, bool one) {
    return SCALE == 0 ? decode_e8m0(s->code) : SCALE == 1 ? decode_scale(s->code, one) : s->first;
}

/* The values of elements x of blocks with scale s, whose values are `scale`. */
static inline vec values_of(shared all, const scaling *s, vec scale, vec x) {
#if defined(HAS_FP8) && ELEMENT_BITS == 8
    const vec elements = unpack_bytes(pack_bytes(scaled(s, x), ELEMENT), ELEMENT);
#else
    const vec elements = round_to(scaled(s, x), LARGEST, ELEMENT);
#endif
#if SCALE == 0
    return elements * scale;
#elif SCALE == 1
    return (s->zero ? 0.0f : elements) * scale * all.whole;
#else
    return (s->zero ? 0.0f : elements) * scale;
#endif
}

/* `nans`: the values may be NaN, since their scale is. */
static inline void store_values(const job *j, vec values, bool nans, global ushort *to, uint row,
                                int column, int n) {
    to += (ulong)row * j->args.columns + column;
#if defined(HAS_BF16) && defined(ALIGNED)
    if (!nans) {
        if (part_start() < n)
            *(global uint2 *)(to + part_start()) =
                (uint2)(pack_bf16(values.x, values.y), pack_bf16(values.z, values.w));
        return;
    }
#endif
    store_shorts(encode(values, DTYPE_BF16), to, n);
}

#ifdef HAS_WARPS
#include "quant/along_warp.h"
#else
/* Rounds WIDE vectors of a row in blocks along it; the row group's items call together. */
static inline void round_along(const job *j, shared all, const vec x[WIDE], uint row, int column,
                               int n, global ushort *along, local float *row_group) {
    uvec largest = 0;
    UNROLL_FOR(int i = 0; i < WIDE; i++)
        largest = larger_bits(largest, x[i]);
    const scaling s =
        make_scale(j, all, block_largest(largest, min(BLOCK / PART, MOERT_ITEMS), row_group), true);
    const vec scale = scale_values(&s, true);
    for (int i = 0; i < WIDE && i * VEC < max(n, 1); i++)
        store_values(j, values_of(all, &s, scale, x[i]), isnan(scale.s0 * all.whole), along, row,
                     column + i * VEC, n - i * VEC);
}

#if MOERT_ITEMS > 1
/* Rounds the held rows along rows; the row group's items call together. */
static inline void round_rows_along(const job *j, shared all, const vec held[HELD], part p,
                                    int column, global ushort *along, local float *row_group) {
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) {
        const uint line = first_held() + r;
        round_along(j, all, &held[r], p.row + line, column, line < p.rows ? p.last - column : 0,
                    along, row_group);
    }
}
#endif
#endif

/* Rounds the held rows of a block, one block in each column; all row groups call together. */
static inline void round_down(const job *j, shared all, const vec held[HELD], part p, int column,
                              int n, global ushort *down, local uvec (*peaks)[MOERT_ITEMS]) {
    uvec largest = 0;
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) largest = larger_bits(largest, held[r]);
    const scaling s = make_scale(j, all, largest_of_groups(largest, peaks), false);
    const vec scale = scale_values(&s, false);
    const bool nans = any(isnan(scale * all.whole));
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) {
        const uint line = first_held() + r, row = p.row + line;
        if (line < p.rows)
            store_values(j, values_of(all, &s, scale, held[r]), nans, down, row, column, n);
    }
}

static inline void load_rows(const job *j, global const void *x, loaded own[HELD], part p,
                             int column) {
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) {
        const uint line = first_held() + r;
        own[r] = line < p.rows
                     ? load_x_as(x, (p.row + line) * j->args.x_stride + column, p.last - column)
                     : (loaded)0;
    }
}

static inline void hold_rows(vec held[HELD], const loaded own[HELD]) {
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) held[r] = floats_of(own[r]);
}

KERNEL_OF(ROW_GROUPS)
void fake_quantize(global const uint *ends, global const void *x, global const float *whole,
                   global ushort *along, global ushort *down, moert_quantize_args args) {
    ROW_GROUP_OF(ROW_GROUPS);
    PEAKS;
    const job job_ = {ends, 0, 0, 0, 0, whole, 0, args}, *j = &job_;
    const part p = find_part(ends, &args, COLUMN);
    if (p.rows == 0)
        return;
    const shared all = load_shared(j, p.group);
    vec held[HELD];
    loaded own[HELD];
#if MOERT_ITEMS == 1
    for (uint row = p.row; ALONG && row < p.row + p.rows; row++)
        for (int c = p.first; c < p.last; c += SPAN) {
            vec step[WIDE];
            UNROLL_FOR(int i = 0; i < WIDE; i++) {
                const int column = c + i * VEC, left = p.last - column;
                step[i] = left > 0 ? floats_of(load_x_as(x, row * args.x_stride + column, left))
                                   : (vec)0.0f;
            }
            round_along(j, all, step, row, c, p.last - c, along, row_group[0]);
        }
    for (int c = p.first; DOWN && c < p.last; c += VEC) {
        load_rows(j, x, own, p, c);
        hold_rows(held, own);
        round_down(j, all, held, p, c, p.last - c, down, peaks);
    }
#else
    if (LOADS_AHEAD)
        load_rows(j, x, own, p, p.first);
    for (int c = p.first; c < p.last; c += VEC) {
        if (!LOADS_AHEAD)
            load_rows(j, x, own, p, c);
        hold_rows(held, own);
        if (LOADS_AHEAD)
            load_rows(j, x, own, p, c + VEC);
#if ALONG
        round_rows_along(j, all, held, p, c, along, row_group[row_group_index()]);
#endif
#if DOWN
        round_down(j, all, held, p, c, p.last - c, down, peaks);
#endif
    }
#endif
}
