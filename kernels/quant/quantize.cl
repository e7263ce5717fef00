/*
 * Quantizes x[M,N], whose rows form groups, to block-scaled formats (formulas: moert/quantize.h).
 *
 *        BLOCK columns                 16 columns              BLOCK columns
 *   ROW [ . . . . . . ]       COLUMN [ | | | | ] BLOCK    TILE [ . . . . . . ] BLOCK rows,
 *       one scale                    [ | | | | ] rows,         [ . . . . . . ] one scale
 *                                    a scale per column        [ . . . . . . ]
 *
 * A row group quantizes `strip` columns, a multiple of 128, of one row (ROW) or of one row block of
 * a group (COLUMN, TILE). On GPUs, ROW_GROUPS row groups share a row block. On CPUs tiles are read
 * twice, the second time from the cache; everything else is read once. Lines of q lie q_bytes bytes
 * apart, lines of scales `scales` elements. Of 4-bit elements, those of even columns (COLUMN: of
 * even rows of the block) are in the low halves of bytes. random(row, column) for STOCHASTIC is
 * byte column % 16 of Philox4x32-10 with key seed and counter (axis, row * ceil(N/16) + column /
 * 16).
 *
 * Required: BLOCK (16, 32, 128), ELEMENT and E4M3 (dtypes, see formats.h), ELEMENT_BITS (4, 8),
 * SCALE (0 E8M0, 1 E4M3 with a global scale, 2 F32), LARGEST (the element's largest value, a
 * float), LARGEST_EXPONENT (floor of its log2); for 4-bit elements ROUNDING (moert_rounding), for
 * E4M3 scales RULE (moert_nvfp4_rule). Optional: RUNS (x has runs of columns, of which the odd runs
 * are quantized), TRANSPOSED = 1 (columns of x become lines of q). Grid: (rows or row blocks,
 * strips). Local memory on GPUs, for each row group: 128 bytes and, with ROW_GROUPS > 1, 512 bytes
 * more. Deterministic.
 */
#if !defined(BLOCK) || !defined(ELEMENT) || !defined(E4M3) || !defined(ELEMENT_BITS) ||            \
    !defined(SCALE) || !defined(LARGEST) || !defined(LARGEST_EXPONENT)
#error "BLOCK, ELEMENT, E4M3, ELEMENT_BITS, SCALE, LARGEST and LARGEST_EXPONENT must be defined"
#endif
#if (ELEMENT_BITS == 4 && !defined(ROUNDING)) || (SCALE == 1 && !defined(RULE))
#error "ROUNDING of elements of 4 bits and RULE of E4M3 scales must be defined"
#endif
#include "lib/formats.h"
#include "quant/held.h"
#include "quant/quantize.h"

/* ---- rows and tiles ---- */

/* Stores a row's elements; two 4-bit ones share a byte. */
static inline void store_row(const job *j, uvec payload, uint row, int column, int n) {
    global uchar *line = j->q + row * j->args.q_bytes;
#if ELEMENT_BITS == 8
    store_bytes(payload, line + column, n);
#elif MOERT_ITEMS == 1
    const uvec kept = lane_places() < n ? payload : 0u;
    const uint8 pairs = kept.even | kept.odd << 4;
    if (n >= VEC)
        STORE_VECTOR(global, uchar, 8, convert_uchar8(pairs), line + column / 2);
    else
        store_bytes((uvec)(pairs, (uint8)0), line + column / 2, (n + 1) / 2);
#else
#ifdef ALIGNED
    const uvec kept = payload;
#else
    const uvec kept = lane_places() < n ? payload : 0u;
#endif
    const uint2 joined = kept.even | kept.odd << 4;
    /* clang 18 fails on convert_uchar2 for NVIDIA */
    const uchar2 pairs = (uchar2)((uchar)joined.x, (uchar)joined.y);
    n -= part_start();
    line += (column + part_start()) / 2;
    if (n > 2 && WHOLE(uchar2, line)) {
        *(global uchar2 *)line = pairs;
    } else {
        if (n > 0)
            line[0] = pairs.x;
        if (n > 2)
            line[1] = pairs.y;
    }
#endif
}

static inline void store_scale(const job *j, const scaling *s, ulong at) {
#if SCALE == 2
    ((global float *)j->scale)[at] = s->first.s0;
#else
    j->scale[at] = s->code.s0;
#endif
}

/* The first item of a block stores the block's scale. */
static inline void store_block_scale(const job *j, const scaling *s, ulong line, int column) {
    const int c = column + part_start();
    if (c % BLOCK == 0 && c < j->args.columns)
        store_scale(j, s, line * j->args.scales + c / BLOCK);
}

#if MOERT_ITEMS == 1
KERNEL void quantize_row(ARGUMENTS) {
    ROW_GROUP;
    const job job_ = JOB, *j = &job_;
    const part p = find_part(ends, &args, ROW);
    if (p.rows == 0)
        return;
    const shared common = load_shared(j, p.group);
    for (int c = p.first; c < p.last; c += SPAN) {
        vec x[SPAN / VEC];
        uvec largest = 0;
        UNROLL_FOR(int i = 0; i < SPAN / VEC; i++) {
            x[i] = load_x(j, p.row, c + i * VEC, p.last - c - i * VEC);
            largest = max(largest, magnitude_bits(x[i]));
        }
        const scaling s = make_scale(j, common, block_largest(largest, 1, row_group), false);
        for (int i = 0; i < SPAN / VEC && c + i * VEC < p.last; i++)
            store_row(j, encode_elements(j, &s, x[i], ROW, p.row, c + i * VEC), p.row, c + i * VEC,
                      p.last - c - i * VEC);
        store_block_scale(j, &s, p.row, c);
    }
}
#else
#include "quant/quantize_row.h"
#endif

/* ---- blocks of rows ---- */

#if MOERT_ITEMS == 1
#define EACH_STEP(c) for (int c = p.first; c < p.last; c += VEC)
#else /* a strip is one step */
#define EACH_STEP(c) const int c = p.first;
#endif

static inline void hold_rows(const job *j, vec held[HELD], part p, int column, int n) {
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) held[r] =
        first_held() + r < p.rows ? load_x(j, p.row + first_held() + r, column, n) : (vec)0.0f;
}

/* The largest magnitude bits in each column. */
static inline uvec held_largest(const vec held[HELD]) {
    uvec largest = 0;
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) largest = max(largest, magnitude_bits(held[r]));
    return largest;
}

#if MOERT_ITEMS == 1
KERNEL void quantize_tile(ARGUMENTS) {
    ROW_GROUP;
    const job job_ = JOB, *j = &job_;
    const part p = find_part(ends, &args, TILE);
    if (p.rows == 0)
        return;
    const shared common = load_shared(j, p.group);
    for (int c = p.first; c < p.last; c += SPAN) {
        const int end = min(c + SPAN, p.last);
        uvec largest = 0;
        for (uint r = 0; r < p.rows; r++)
            for (int i = c; i < end; i += VEC)
                largest = max(largest, magnitude_bits(load_x(j, p.row + r, i, end - i)));
        const scaling s = make_scale(j, common, block_largest(largest, 1, row_group), false);
        for (uint r = 0; r < p.rows; r++) {
            const uint row = p.row + r;
            for (int i = c; i < end; i += VEC)
                store_row(j, encode_elements(j, &s, load_x(j, row, i, end - i), TILE, row, i), row,
                          i, end - i);
            if (SCALE != 2 || r == 0)
                store_block_scale(j, &s, SCALE == 2 ? p.slot : row, c);
        }
    }
}
#else
KERNEL_OF(ROW_GROUPS) void quantize_tile(ARGUMENTS) {
    ROW_GROUP_OF(ROW_GROUPS);
    PEAKS;
    const job job_ = JOB, *j = &job_;
    const part p = find_part(ends, &args, TILE);
    if (p.rows == 0)
        return;
    const shared common = load_shared(j, p.group);
    EACH_STEP(c) {
        vec held[HELD];
        hold_rows(j, held, p, c, p.last - c);
        const uvec largest =
            block_largest(held_largest(held), BLOCK / PART, row_group[row_group_index()]);
        const scaling s = make_scale(j, common, largest_of_groups(largest, peaks), true);
        UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) {
            const uint row = p.row + first_held() + r;
            const bool inside = first_held() + r < p.rows;
            store_row(j, encode_elements(j, &s, held[r], TILE, row, c), row, c,
                      inside ? p.last - c : 0);
            if (SCALE != 2 && inside)
                store_block_scale(j, &s, row, c);
        }
        if (SCALE == 2 && row_group_index() == 0)
            store_block_scale(j, &s, p.slot, c);
    }
}
#endif

static inline void store_line(const job *j, uvec payload, uint line, int column, int n) {
    if (TRANSPOSED)
        store_bytes_apart(payload, j->q + column * j->args.q_bytes + line, j->args.q_bytes, n);
    else
        store_bytes(payload, j->q + line * j->args.q_bytes + column, n);
}

static inline void store_scales(const job *j, const scaling *s, uint slot, int column, int n) {
    const ulong at = TRANSPOSED ? column * j->args.scales + slot : slot * j->args.scales + column;
    const ulong stride = TRANSPOSED ? j->args.scales : 1;
#if SCALE == 2
    float lane[PART];
    vstore_part(s->first, 0, lane);
    for (int i = 0; i < PART; i++)
        if (part_start() + i < n)
            ((global float *)j->scale)[at + (part_start() + i) * stride] = lane[i];
#else
    store_bytes_apart(s->code, j->scale + at, stride, n);
#endif
}

KERNEL_OF(ROW_GROUPS) void quantize_column(ARGUMENTS) {
    PEAKS;
    const job job_ = JOB, *j = &job_;
    const part p = find_part(ends, &args, COLUMN);
    if (p.rows == 0)
        return;
    const shared common = load_shared(j, p.group);
    EACH_STEP(c) {
        const int n = p.last - c;
        vec held[HELD];
        hold_rows(j, held, p, c, n);
#if BLOCK == 16
        if (args.hadamard && p.rows == BLOCK)
            rotate_rows(held);
#endif
        const scaling s =
            make_scale(j, common, largest_of_groups(held_largest(held), peaks), false);
        if (row_group_index() == 0)
            store_scales(j, &s, p.slot, c, n);
        UNROLL_ON_GPU for (uint r = 0; r < HELD; r += 8 / ELEMENT_BITS) {
            const uint line = first_held() + r, row = p.row + line;
            const uvec payload =
                line < p.rows ? encode_elements(j, &s, held[r], COLUMN, row, c) : (uvec)0;
#if ELEMENT_BITS == 4
            const uvec next = line + 1 < p.rows
                                  ? encode_elements(j, &s, held[r + 1], COLUMN, row + 1, c)
                                  : (uvec)0;
            store_line(j, payload | next << 4, (p.slot * BLOCK + line) / 2, c, n);
#else
            if (line < p.rows)
                store_line(j, payload, row, c, n);
#endif
        }
    }
}
