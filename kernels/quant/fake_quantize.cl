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
#if !defined(X_BF16) || !defined(ALONG) || !defined(DOWN)
#error "X_BF16, ALONG and DOWN must be defined"
#endif
#include "lib/formats.h"
#include "quant/held.h"
#include "quant/quantize.h"

#define WIDE (SPAN / VEC) /* vectors of a row that are rounded at a time */

static inline vec load_row(const job *j, global const void *x, uint row, int column, int n) {
    const ulong at = row * j->args.x_stride + column;
    return load_as(x, X_BF16 ? IS_BF16 : IS_F32, at, n);
}

static inline void store_values(const job *j, vec values, global ushort *to, uint row, int column,
                                int n) {
    store_shorts(encode(values, DTYPE_BF16), to + (ulong)row * j->args.columns + column, n);
}

/* The values of elements x of blocks with scale s. `one`: all lanes belong to one block. */
static inline vec values_of(shared all, const scaling *s, bool one, vec x) {
    const vec elements = round_to(scaled(s, x), LARGEST, ELEMENT);
#if SCALE == 0
    return elements * decode_e8m0(s->code);
#elif SCALE == 1
    return (s->zero ? 0.0f : elements) * decode_scale(s->code, one) * all.whole;
#else
    return (s->zero ? 0.0f : elements) * s->first;
#endif
}

/* Rounds WIDE vectors of a row in blocks along it; the row group's items call together. */
static inline void round_along(const job *j, shared all, const vec x[WIDE], uint row, int column,
                               int n, global ushort *along, local float *row_group) {
    uvec largest = 0;
    UNROLL_FOR(int i = 0; i < WIDE; i++)
        largest = max(largest, magnitude_bits(x[i]));
    const scaling s =
        make_scale(j, all, block_largest(largest, min(BLOCK / PART, MOERT_ITEMS), row_group), true);
    for (int i = 0; i < WIDE && i * VEC < max(n, 1); i++)
        store_values(j, values_of(all, &s, true, x[i]), along, row, column + i * VEC, n - i * VEC);
}

/* Rounds the held rows of a block, one block in each column; all row groups call together. */
static inline void round_down(const job *j, shared all, const vec held[HELD], part p, int column,
                              int n, global ushort *down, local uvec (*peaks)[MOERT_ITEMS]) {
    uvec largest = 0;
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) largest = max(largest, magnitude_bits(held[r]));
    const scaling s = make_scale(j, all, largest_of_groups(largest, peaks), false);
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) {
        const uint line = first_held() + r, row = p.row + line;
        if (line < p.rows)
            store_values(j, values_of(all, &s, false, held[r]), down, row, column, n);
    }
}

static inline void hold_rows(const job *j, global const void *x, vec held[HELD], part p, int column,
                             int n) {
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) held[r] =
        first_held() + r < p.rows ? load_row(j, x, p.row + first_held() + r, column, n) : (vec)0.0f;
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
#if MOERT_ITEMS == 1
    for (uint row = p.row; ALONG && row < p.row + p.rows; row++)
        for (int c = p.first; c < p.last; c += SPAN) {
            vec step[WIDE];
            UNROLL_FOR(int i = 0; i < WIDE; i++)
                step[i] = c + i * VEC < p.last
                              ? load_row(j, x, row, c + i * VEC, p.last - c - i * VEC)
                              : (vec)0.0f;
            round_along(j, all, step, row, c, p.last - c, along, row_group[0]);
        }
    for (int c = p.first; DOWN && c < p.last; c += VEC) {
        vec held[HELD];
        hold_rows(j, x, held, p, c, p.last - c);
        round_down(j, all, held, p, c, p.last - c, down, peaks);
    }
#else
    for (int c = p.first; c < p.last; c += VEC) {
        vec held[HELD];
        hold_rows(j, x, held, p, c, p.last - c);
#if ALONG
        UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) round_along(
            j, all, &held[r], p.row + first_held() + r, c,
            first_held() + r < p.rows ? p.last - c : 0, along, row_group[row_group_index()]);
#endif
#if DOWN
        round_down(j, all, held, p, c, p.last - c, down, peaks);
#endif
    }
#endif
}
