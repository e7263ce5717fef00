/*
 * Rounds x[M,N], whose rows form groups, to the values of a block-scaled format (fake
 * quantization): what quantize.cl and then dequantize.cl give in bf16, without storing payload and
 * scales. x is read once for both results:
 *
 *   along[M,N]   blocks of BLOCK columns of a row       (ROW of quantize.cl)
 *   down[M,N]    blocks of BLOCK rows of a group        (COLUMN of quantize.cl)
 *
 * NVFP4's block scales keep the 3 mantissa bits of E4M3, but have the range of float32, as with a
 * global scale for each block that is a power of two.
 *
 * Rows of x lie args.x_stride elements apart; results are dense. A work-group rounds `strip`
 * columns, a multiple of 128, of one row block of a group; on GPUs ROW_GROUPS row groups share the
 * block. Rows past the last end are not touched.
 *
 * Required: BLOCK, ELEMENT, E4M3, ELEMENT_BITS, SCALE, LARGEST and LARGEST_EXPONENT, for 4-bit
 * elements ROUNDING (1, to nearest) and RULE (0, TE), as in quantize.cl; X_BF16 (0 x is float32, 1
 * bf16); ALONG and DOWN (0; 1: there is such a result). Grid: (row blocks, strips). Local memory on
 * GPUs, for each row group: 128 bytes and, with ROW_GROUPS > 1, 512 bytes more. Deterministic.
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

/* The scales of a vec of columns or of rows, or one scale in all lanes. Elements are x * factor, or
 * x / scale in FP8_BLOCK; values are elements times `scale`. */
typedef struct value_scale {
    vec factor, scale;
} value_scale;

/* The scale of blocks from their largest magnitude bits. `one`: all lanes belong to one block. */
static inline value_scale find_scale(const job *j, uvec largest, bool one) {
#if SCALE == 1
    const uvec finite = largest > 0x7F800000u ? (uvec)QUIET : min(largest, (uvec)0x7F7FFFFFu);
    const uvec t = as_uvec(as_vec(finite) * (1.0f / 6.0f));
    const uvec rounded = (t + 0x7FFFFu + ((t >> 20) & 1u)) & 0xFFF00000u;
    const vec scale = as_vec(t > 0x7F800000u ? (uvec)QUIET : t < 0x00800000u ? (uvec)0 : rounded);
    return (value_scale){scale == 0.0f ? (vec)0.0f : 1.0f / scale, scale};
#else
    const shared none = {0.0f, 1.0f, 0.0f};
    const scaling s = make_scale(j, none, largest, one);
    return (value_scale){s.factor, SCALE == 0 ? decode_e8m0(s.code) : s.first};
#endif
}

static inline vec values_of(value_scale s, vec x) {
    const scaling plain = {(uvec)0, s.factor, s.scale, (vec)1.0f, (ivec)0};
#if defined(HAS_FP8) && ELEMENT_BITS == 8
    const vec elements = unpack_bytes(pack_bytes(scaled(&plain, x), ELEMENT), ELEMENT);
#else
    const vec elements = round_to(scaled(&plain, x), LARGEST, ELEMENT);
#endif
    return (SCALE == 0 ? elements : s.scale == 0.0f ? (vec)0.0f : elements) * s.scale;
}

/* Whether values with these scales can be stored without the rare cases: NaN and, where no
 * instruction rounds to bf16, values that are not exact in bf16. */
static inline bool is_plain(vec scale) {
#if defined(HAS_BF16) && defined(ALIGNED)
    return !any(isnan(scale));
#else
    return SCALE != 2 && all(scale >= 0x1p-100f);
#endif
}

static inline void store_values(const job *j, vec values, bool plain, global ushort *to, uint row,
                                int column, int n) {
    to += (ulong)row * j->args.columns + column;
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

/* Rounds WIDE vectors of a row in blocks along it. */
static inline void store_along(const job *j, value_scale s, const vec x[WIDE], bool plain, uint row,
                               int column, int n, global ushort *along) {
    for (int i = 0; i < WIDE && i * VEC < max(n, 1); i++)
        store_values(j, values_of(s, x[i]), plain, along, row, column + i * VEC, n - i * VEC);
}

#if MOERT_ITEMS == 1
#include "quant/along_cpu.h"
#elif defined(HAS_WARPS)
#include "quant/along_warp.h"
#else
/* Rounds the held rows along rows; the row group's items call together. */
static inline void round_along(const job *j, const vec held[HELD], part p, int column,
                               global ushort *along, local float *row_group) {
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) {
        const uint line = first_held() + r;
        const uvec largest = block_largest(larger_bits(0, held[r]), BLOCK / PART, row_group);
        const value_scale s = find_scale(j, largest, true);
        store_along(j, s, &held[r], is_plain(s.scale), p.row + line, column,
                    line < p.rows ? p.last - column : 0, along);
    }
}
#endif

/* Rounds the held rows of a block, one block in each column; all row groups call together. */
static inline void round_down(const job *j, const vec held[HELD], part p, int column,
                              global ushort *down, local uvec (*peaks)[MOERT_ITEMS]) {
    uvec largest = 0;
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) largest = larger_bits(largest, held[r]);
    const value_scale s = find_scale(j, largest_of_groups(largest, peaks), false);
    const bool plain = is_plain(s.scale);
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) {
        const uint line = first_held() + r, row = p.row + line;
        if (line < p.rows)
            store_values(j, values_of(s, held[r]), plain, down, row, column, p.last - column);
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
void fake_quantize(global const uint *ends, global const void *x, global ushort *along,
                   global ushort *down, moert_quantize_args args) {
    ROW_GROUP_OF(ROW_GROUPS);
    PEAKS;
    const job job_ = {ends, 0, 0, 0, 0, 0, 0, args}, *j = &job_;
    const part p = find_part(ends, &args, COLUMN);
    if (p.rows == 0)
        return;
    vec held[HELD];
    loaded own[HELD];
#if MOERT_ITEMS == 1
    for (uint r = 0; ALONG && r < p.rows; r += VEC)
        for (int c = p.first; c < p.last; c += SPAN)
            round_along(j, x, p.row + r, min(p.rows - r, (uint)VEC), c, p.last - c, along);
    for (int c = p.first; DOWN && c < p.last; c += VEC) {
        load_rows(j, x, own, p, c);
        hold_rows(held, own);
        round_down(j, held, p, c, down, peaks);
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
        round_along(j, held, p, c, along, row_group[row_group_index()]);
#endif
#if DOWN
        round_down(j, held, p, c, down, peaks);
#endif
    }
#endif
}
