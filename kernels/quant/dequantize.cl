/*
 * Dequantizes block-scaled formats: x = (q * scale) * G, rounded once to x's dtype. G is the
 * argument `whole`; a null pointer means 1. Blocks are those of kernels/quant/quantize.cl (pictures
 * there).
 *
 * A row group computes `strip` columns, a multiple of 128, of one row (ROW) or of one row block of
 * a group (COLUMN, TILE). On GPUs, ROW_GROUPS row groups share a row block.
 *
 * WIDE may be defined for GPUs. dequantize_row then writes bf16 (WIDE = 8) or float32 (WIDE = 4),
 * and an item computes WIDE columns at a time, 16 bytes of x. The number of columns is then a
 * multiple of WIDE, and lines of q begin at multiples of WIDE elements. More floats per item would
 * take two stores, which would not fill the memory transactions of neighbouring items.
 *
 * Required: BLOCK (16, 32, 128), ELEMENT and E4M3 (dtypes, see formats.h), ELEMENT_BITS (4, 8),
 * SCALE (0 E8M0, 1 E4M3 with a global scale, 2 F32). Grid: (rows or row blocks, strips). No local
 * memory. Deterministic.
 */
#if !defined(BLOCK) || !defined(ELEMENT) || !defined(E4M3) || !defined(ELEMENT_BITS) ||            \
    !defined(SCALE)
#error "BLOCK, ELEMENT, E4M3, ELEMENT_BITS and SCALE must be defined"
#endif
#include "lib/formats.h"
#include "lib/blocks.h"
#include "quant/part.h"

#define ARGUMENTS                                                                                  \
    global const uint *ends, global const uchar *q, global const uchar *scale,                     \
        global const float *whole, global void *x, moert_quantize_args args
#define AHEAD (MOERT_ITEMS == 1 ? 1 : 8) /* parts of a row, or rows, that are loaded at once */

/* Dequantizes AHEAD parts of a row from column `left` on (ROW), or one step of AHEAD rows from
 * `top` on. */
INLINED void dequantize_parts(const blocks *b, part p, uint top, int left, float all, bool scaled,
                              global void *x, const moert_quantize_args *args) {
    const int across = b->axis == ROW ? AHEAD : 1;
    quantized own[AHEAD];
    /* loaded unconditionally: conditional loads would wait for each other */
    UNROLL_ON_GPU for (int i = 0; i < AHEAD; i++) {
        const uint r = min(top + i / across, p.rows - 1);
        const int c = left + i % across * VEC;
        own[i] = load_quantized(b, (block_row){p.row + r, p.slot, r}, c, p.last - c);
    }
    UNROLL_ON_GPU for (int i = 0; i < AHEAD; i++) {
        const uint r = top + i / across;
        const int c = left + i % across * VEC;
        vec y = values_of(own[i]);
        if (SCALE == 1 && scaled)
            y *= all;
#if MOERT_ITEMS == 1
        y = quiet(y);
#else
        if (isnan(y.x + y.y + y.z + y.w)) /* rare */
            y = quiet(y);
#endif
        store_as(y, x, args->x_type, (ulong)(p.row + r) * args->columns + c,
                 r < p.rows ? p.last - c : 0);
    }
}

INLINED void dequantize(int axis, ARGUMENTS) {
    const part p = find_part(ends, &args, axis);
    const blocks b = {q,         SCALES_OF(q, scale, args.columns), args.q_bytes, args.scales, axis,
                      TRANSPOSED};
    if (p.rows == 0)
        return;
    const float all = SCALE == 1 && whole != 0 ? whole[args.group_scales ? p.group : 0] : 1.0f;
    if (axis == ROW) {
        for (int c = p.first; c < p.last; c += AHEAD * VEC)
            dequantize_parts(&b, p, 0, c, all, whole != 0, x, &args);
        return;
    }
#if MOERT_ITEMS == 1
    for (uint r = 0; r < p.rows; r++)
        for (int c = p.first; c < p.last; c += VEC)
            dequantize_parts(&b, p, r, c, all, whole != 0, x, &args);
#else /* a strip is one step */
    dequantize_parts(&b, p, row_group_index() * AHEAD, p.first, all, whole != 0, x, &args);
#endif
}

#define DEQUANTIZE(name, axis, row_groups)                                                         \
    KERNEL_OF(row_groups) void dequantize_##name(ARGUMENTS) {                                      \
        dequantize(axis, ends, q, scale, whole, x, args);                                          \
    }
#define ROW_GROUPS (MOERT_ITEMS == 1 ? 1 : BLOCK / AHEAD)
#ifdef WIDE
#define STEP  (MOERT_ITEMS * WIDE) /* columns of a row group */
#define STEPS (WIDE == 4 ? 16 : 4) /* steps that are loaded at once */
#if WIDE == 4
typedef float element;
#else
typedef ushort element;
#endif
#if WIDE * ELEMENT_BITS == 16
typedef ushort unit; /* an item's payload of a step */
#elif WIDE * ELEMENT_BITS == 32
typedef uint unit;
#else
typedef ulong unit;
#endif

/* Four elements times their scale, without the global scale. */
static inline vec scaled_four(uint payload, uint scale) {
#if defined(HAS_FP8) && ELEMENT_BITS == 4 && SCALE == 1
    /* in f16, which represents all values exactly: prmt looks up the high bytes of E2M1's eight
     * magnitudes; lop3 adds the signs; mul applies E4M3's scale */
    float a, b, c, d;
    __asm__("{ .reg .b16 low, high; .reg .b32 s, tops, left, first, second, signs; "
            "prmt.b32 s, %5, 0, 0x4400; mov.b32 {low, high}, s; cvt.rn.f16x2.e4m3x2 s, low; "
            "and.b32 tops, %4, 0x7777; prmt.b32 tops, 0x3E3C3800, 0x46444240, tops; shl.b32 left, "
            "%4, 4; "
            "prmt.b32 first, tops, 0, 0x1404; prmt.b32 signs, left, %4, 0xC080; "
            "lop3.b32 first, first, signs, 0x80008000, 0xF8; mul.rn.f16x2 first, first, s; "
            "prmt.b32 second, tops, 0, 0x3424; prmt.b32 signs, left, %4, 0xD090; "
            "lop3.b32 second, second, signs, 0x80008000, 0xF8; mul.rn.f16x2 second, second, s; "
            "mov.b32 {low, high}, first; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; "
            "mov.b32 {low, high}, second; cvt.f32.f16 %2, low; cvt.f32.f16 %3, high; }"
            : "=f"(a), "=f"(b), "=f"(c), "=f"(d)
            : "r"(payload), "r"(scale));
    return (vec)(a, b, c, d);
#elif defined(HAS_FP8) && ELEMENT_BITS == 8
    return unpack_bytes(payload, ELEMENT) * scales_of((uvec)scale).x;
#else
    const uvec each =
        (uvec)payload >> ((uvec)(0, 1, 2, 3) * ELEMENT_BITS) & ((1u << ELEMENT_BITS) - 1);
    return decode(each, ELEMENT) * scales_of((uvec)scale).x;
#endif
}

/* Whether a lane is a NaN, or the lanes have infinities of both signs. */
static inline bool has_nan(vec x) {
    return isnan(x.x + x.y + x.z + x.w);
}

/* Stores an item's 8 values in a row of the matrix. */
static inline void store_eight(vec low, vec high, global ushort *x) {
#ifdef HAS_FP8
    if (!has_nan(low + high)) {
        *(global uint4 *)x = (uint4)(pack_bf16(low.x, low.y), pack_bf16(low.z, low.w),
                                     pack_bf16(high.x, high.y), pack_bf16(high.z, high.w));
        return;
    }
#endif
    store_shorts(encode(low, DTYPE_BF16), x - part_start(), PART + part_start());
    store_shorts(encode(high, DTYPE_BF16), x + PART - part_start(), PART + part_start());
}

/* Dequantizes STEPS steps from the item's first columns on: all if `whole`, else those that begin
 * within the `left` columns. */
INLINED void dequantize_steps(global const unit *q, global const uchar *from, ulong scale,
                              float all, global element *x, int left, bool whole) {
    unit payload[STEPS];
    uint scales[STEPS];
    UNROLL_FOR(int i = 0; i < STEPS; i++) {
        const bool inside = whole || i * STEP < left;
        payload[i] = inside ? q[i * MOERT_ITEMS] : 0;
        scales[i] = inside ? load_scales(from, scale + i * (STEP / BLOCK), 0, PART).x : 0;
    }
#if WIDE == 4
    vec y[STEPS], sum = 0.0f;
    UNROLL_FOR(int i = 0; i < STEPS; i++) {
        y[i] = scaled_four(payload[i], scales[i]) * all;
        sum += y[i];
    }
    if (has_nan(sum)) /* rare */
        UNROLL_FOR(int i = 0; i < STEPS; i++)
            y[i] = quiet(y[i]);
    UNROLL_FOR(int i = 0; i < STEPS; i++)
        if (whole || i * STEP < left)
            *(global vec *)(x + i * STEP) = y[i];
#else
    UNROLL_FOR(int i = 0; i < STEPS; i++) {
        const vec low = scaled_four((uint)payload[i], scales[i]) * all;
        const vec high = scaled_four((uint)(payload[i] >> 4 * ELEMENT_BITS), scales[i]) * all;
        if (whole || i * STEP < left)
            store_eight(low, high, x + i * STEP);
    }
#endif
}

KERNEL void dequantize_row(ARGUMENTS) {
    const part p = find_part(ends, &args, ROW);
    const uint row = p.slot, first = p.first, last = p.last;
    global const uchar *from = SCALES_OF(q, scale, args.columns);
    const float all = SCALE == 1 && whole != 0 ? whole[args.group_scales ? p.group : 0] : 1.0f;
    if (p.rows == 0)
        return;
    for (uint c = first; c < last; c += STEPS * STEP) {
        const uint own = c + item_index() * WIDE;
        global const unit *payload = (global const unit *)(q + row * args.q_bytes) + own / WIDE;
        global element *to = (global element *)x + (ulong)row * args.columns + own;
        if (c + STEPS * STEP <= last)
            dequantize_steps(payload, from, row * args.scales + own / BLOCK, all, to, 0, true);
        else
            dequantize_steps(payload, from, row * args.scales + own / BLOCK, all, to,
                             (int)(last - own), false);
    }
}
#else
DEQUANTIZE(row, ROW, 1)
#endif
DEQUANTIZE(column, COLUMN, ROW_GROUPS)
DEQUANTIZE(tile, TILE, ROW_GROUPS)
