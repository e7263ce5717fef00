/*
 * Quantisers to block-scaled formats (formulas: moert/quantize.h), of x[M,N] whose rows form groups.
 *
 *            BLOCK columns                    16 columns                 BLOCK columns
 *   ROW     [ . . . . . . ] one scale    COLUMN [ | | | | ] BLOCK    TILE [ . . . . . . ] BLOCK rows,
 *                                               [ | | | | ] rows,         [ . . . . . . ] one scale
 *                                               a scale per column        [ . . . . . . ]
 *
 * A team takes one row (ROW) or one row block of a group and `strip` columns; strip is a multiple of 128. Tiles are read
 * twice, from the cache, others once. Lines of q lie q_bytes bytes apart, lines of scales `scales`.
 * Elements of 4 bits: even columns (COLUMN: rows of the block) in the low halves. random(row, column) for STOCHASTIC is
 * byte column % 16 of Philox4x32-10 with key seed and counter (axis, row * ceil(N/16) + column / 16).
 *
 * Required: BLOCK (16, 32, 128), ELEMENT and E4M3 (number types, see formats.h), ELEMENT_BITS (4, 8), SCALE (0 E8M0,
 * 1 E4M3 with a global scale, 2 F32), LARGEST (of the element, a float), LARGEST_EXPONENT (floor of its log2).
 * Grid: (rows or row blocks, strips). Local memory: the team's. Deterministic.
 */
#if !defined(BLOCK) || !defined(ELEMENT) || !defined(E4M3) || !defined(ELEMENT_BITS) || !defined(SCALE) || \
    !defined(LARGEST) || !defined(LARGEST_EXPONENT)
#error "BLOCK, ELEMENT, E4M3, ELEMENT_BITS, SCALE, LARGEST and LARGEST_EXPONENT must be defined"
#endif
#include "formats.h"

/* The arguments, which all kernels here share. */
typedef struct job {
    global const uint *ends;
    uint groups, rows;
    int columns, strip;
    global const float *x;
    int x_runs; /* 0, or the odd ones of runs of so many columns count */
    global uchar *q;
    ulong q_bytes;
    global uchar *scale;
    ulong scales;
    global const float *amax, *whole, *norm; /* of the tensor or groups: A or null, G or null = 1; norm or null */
    int group_scales, scale_rounding, rule, rounding, transposed, hadamard;
    uint blocks; /* that there is room for */
    ulong seed;
} job;

#define ARGUMENTS                                                                                                      \
    global const uint *ends, uint groups, uint rows, int columns, int strip, global const float *x, int x_runs,        \
        global uchar *q, ulong q_bytes, global uchar *scale, ulong scales, global const float *amax,                   \
        global const float *whole, global const float *norm, int group_scales, int scale_rounding, int rule,           \
        int rounding, int transposed, int hadamard, uint blocks, ulong seed
#define JOB                                                                                                            \
    {ends, groups, rows, columns, strip, x, x_runs, q, q_bytes, SCALES_OF(q, scale, columns), scales, amax, whole,      \
     norm, group_scales, scale_rounding, rule, rounding, transposed, hadamard, blocks, seed}

/* Scales of a vec of columns, or as many times one. */
typedef struct scaling {
    uvec code;               /* E8M0, E4M3 */
    vec factor, first, second; /* x * factor or (x / first) / second ... */
    ivec zero;                /* ... or 0 */
} scaling;

/* ---- scales ---- */

static inline vec at_most_finite(vec x)
{
    return x > FLT_MAX ? FLT_MAX : x;
}

/* t, not negative, rounded up; and one over a scale, which is exact. */
static inline uvec ceil_e8m0(vec t)
{
    const uvec u = as_uvec(t), e = u >> 23, m = u & 0x7FFFFFu;
    const uvec up = min(m > (e == 0u ? (uvec)0x400000u : (uvec)0) ? e + 1u : e, 254u);
    return u > 0x7F800000u ? 255u : up;
}

static inline vec invert_e8m0(uvec b)
{
    return as_vec(b == 255u ? QUIET : b == 254u ? 0x00400000u : (254u - b) << 23);
}

static inline scaling scale_e8m0(vec amax, int rounding)
{
    const uvec u = as_uvec(amax), down = convert_uvec(max(convert_ivec(u >> 23) - LARGEST_EXPONENT, 0));
    const uvec code = rounding != FLOOR ? ceil_e8m0(amax * (1.0f / LARGEST)) : u > 0x7F800000u ? 255u : down;
    return (scaling){code, invert_e8m0(code), (vec)1.0f, (vec)1.0f, (ivec)0};
}

/* As in cuDNN's epilogues: 2^-127 counts as 0 there, and E5M2 ends at 128. */
static inline scaling scale_normed(vec amax, float norm)
{
    const float largest = LARGEST == 57344.0f ? 128.0f : LARGEST, n = norm > 0.0f ? norm : as_float(QUIET);
    const vec t = amax * (1.0f / largest) * n;
    const uvec code = SCALE == 0 ? ceil_e8m0(t) : encode(t, E4M3);
    const vec inverse = SCALE == 0 ? invert_e8m0(code) : 1.0f / decode(code, E4M3);
    const ivec zero = code == 0u;
    return (scaling){code, at_most_finite(n * (zero ? INFINITY : inverse)), (vec)1.0f, (vec)1.0f, SCALE == 1 ? zero : 0};
}

static inline scaling scale_f32(vec amax)
{
    scaling s;
    s.first = quiet(at_most_finite(amax) / 448.0f);
    s.factor = s.second = 1.0f;
    s.code = 0;
    s.zero = s.first == 0.0f;
    return s;
}

static inline scaling scale_nvfp4(vec amax, int rule, int has_amax, float a, float g)
{
    scaling s;
    s.first = s.second = s.factor = 1.0f;
    if (rule == TE) {
        const float by = has_amax ? a : g, all = (has_amax ? 2688.0f : 1.0f) / by;
        const float up = by == 0.0f || all == 0.0f ? 1.0f : all > FLT_MAX ? FLT_MAX : all;
        s.code = encode(amax * (up * (1.0f / 6.0f)), E4M3);
        const vec decoded = decode(s.code, E4M3);
        s.factor = at_most_finite(1.0f / (decoded * (1.0f / up)));
        s.zero = decoded == 0.0f;
    } else if (rule == TORCHAO) {
        const vec t = g == 0.0f ? (vec)0.0f : amax / 6.0f / g, least = 0x1p-6f;
        s.code = encode(t < least ? least : t, E4M3);
        s.factor = at_most_finite(1.0f / (vec)g / decode(s.code, E4M3));
        s.zero = (vec)g == 0.0f;
    } else {
        const vec t = amax / g;
        s.zero = t < 6.0f * 0x1p-9f;
        s.code = s.zero ? 0u : encode(t / 6.0f, E4M3);
        s.first = g;
        s.second = decode(s.code, E4M3);
    }
    return s;
}

static inline scaling make_scale(const job *j, uint group, uvec largest)
{
    const vec amax = largest_of(largest);
    if (SCALE != 2 && j->norm != 0)
        return scale_normed(amax, *j->norm);
#if SCALE == 0
    return scale_e8m0(amax, j->scale_rounding);
#elif SCALE == 1
    const uint g = j->group_scales ? group : 0;
    return scale_nvfp4(amax, j->rule, j->amax != 0, j->amax != 0 ? j->amax[g] : 0.0f,
                       j->whole != 0 ? j->whole[g] : 1.0f);
#else
    return scale_f32(amax);
#endif
}

/* ---- elements ---- */

static inline uvec make_codes(const job *j, const scaling *s, vec x, uint axis, uint row, int column)
{
    const int divides = SCALE == 2 ? 1 : SCALE == 1 ? j->rule == BRIDGE : 0;
    const vec y = divides ? x / s->first / s->second : x * s->factor;
#if ELEMENT_BITS == 4
    const int c = column + part_start();
    const uvec code = j->rounding == HALF_STEPS ? encode_half_steps(y)
                        : j->rounding == STOCHASTIC
                            ? encode_stochastic(y, random_bytes(j->seed, axis, row * (ulong)((j->columns + 15) / 16) + c / 16))
                            : encode(y, ELEMENT);
#else
    const uvec code = encode(y, ELEMENT);
#endif
    return s->zero ? 0u : code;
}

static inline vec load_x(const job *j, uint row, int column, int n)
{
    if (j->x_runs == 0)
        return load_part(j->x + (ulong)row * j->columns + column, n);
    global const float *line = j->x + (ulong)row * 2 * j->columns;
    float lane[PART];
    for (int i = 0; i < PART; i++) {
        const int c = column + part_start() + i;
        lane[i] = i < n - part_start() ? line[(c / j->x_runs * 2 + 1) * j->x_runs + c % j->x_runs] : 0.0f;
    }
    return vload_part(0, lane);
}

/* ---- rows and tiles ---- */

/* Two codes of 4 bits to a byte. */
static inline void store_row(const job *j, uvec code, uint row, int column, int n)
{
    global uchar *line = j->q + row * j->q_bytes;
#if ELEMENT_BITS == 8
    store_bytes(code, line + column, n);
#elif MOERT_ITEMS == 1
    const uvec kept = lane_places() < n ? code : 0u;
    const uint8 pairs = kept.even | kept.odd << 4;
    if (n >= VEC)
        vstore8(convert_uchar8(pairs), 0, line + column / 2);
    else
        store_bytes((uvec)(pairs, (uint8)0), line + column / 2, (n + 1) / 2);
#else
    const uvec kept = lane_places() < n ? code : 0u;
    const uchar2 pairs = convert_uchar2(kept.even | kept.odd << 4);
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

static inline void store_scale(const job *j, const scaling *s, ulong at)
{
#if SCALE == 2
    ((global float *)j->scale)[at] = s->first.s0;
#else
    j->scale[at] = s->code.s0;
#endif
}

/* The largest bits of the block that this item's columns of a step lie in. */
static inline uvec block_largest(uvec x, local float *team)
{
#if MOERT_ITEMS == 1
    return max_uints(x, team);
#else
    const int items = BLOCK / PART;
    uint2 own = max(x.lo, x.hi);
    uint most = max(own.x, own.y);
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
    UNROLL for (int distance = items / 2; distance > 0; distance /= 2)
        most = max(most, as_uint(exchanged(as_float(most), distance)));
#else
    const int first = get_local_id(0) / items * items;
    barrier(CLK_LOCAL_MEM_FENCE); /* all are done with the last ones */
    team[get_local_id(0)] = as_float(most);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < items; i++)
        most = max(most, as_uint(team[first + i]));
#endif
    return most;
#endif
}

/* Of the block of this item's columns, by its first item. */
static inline void store_block_scale(const job *j, const scaling *s, ulong line, int column)
{
    const int c = column + part_start();
    if (c % BLOCK == 0 && c < j->columns)
        store_scale(j, s, line * j->scales + c / BLOCK);
}

#define SPAN (BLOCK > VEC ? BLOCK : VEC) /* columns that are scaled at a time: a block on CPUs, a step on GPUs */

KERNEL void quantize_row(ARGUMENTS)
{
    TEAM;
    const job job_ = JOB, *j = &job_;
    const int first = get_group_id(1) * strip, last = min(columns, first + strip);
    const place p = find_place(ends, groups, rows, 1, get_group_id(0));
    if (p.rows == 0)
        return;
    for (int c = first; c < last; c += BATCH * SPAN) {
        vec x[BATCH][SPAN / VEC];
        UNROLL for (int b = 0; b < BATCH; b++)
            UNROLL for (int i = 0; i < SPAN / VEC; i++)
                x[b][i] = load_x(j, p.row, c + b * SPAN + i * VEC, last - c - b * SPAN - i * VEC);
        UNROLL for (int b = 0; b < BATCH; b++) {
            const int start = c + b * SPAN;
            uvec largest = 0;
            for (int i = 0; i < SPAN / VEC; i++)
                largest = max(largest, magnitude_bits(x[b][i]));
            const scaling s = make_scale(j, p.group, block_largest(largest, team));
            for (int i = 0; i < SPAN / VEC && start + i * VEC < last; i++)
                store_row(j, make_codes(j, &s, x[b][i], ROW, p.row, start + i * VEC), p.row, start + i * VEC,
                          last - start - i * VEC);
            store_block_scale(j, &s, p.row, start);
        }
    }
}

KERNEL void quantize_tile(ARGUMENTS)
{
    TEAM;
    const job job_ = JOB, *j = &job_;
    const uint slot = get_group_id(0);
    const int first = get_group_id(1) * strip, last = min(columns, first + strip);
    const place p = find_place(ends, groups, rows, BLOCK, slot);
    if (p.rows == 0 || slot >= blocks)
        return;
    for (int c = first; c < last; c += SPAN) {
        const int end = min(c + SPAN, last);
        uvec largest = 0;
        for (uint r = 0; r < p.rows; r++)
            for (int i = c; i < end; i += VEC)
                largest = max(largest, magnitude_bits(load_x(j, p.row + r, i, end - i)));
        const scaling s = make_scale(j, p.group, block_largest(largest, team));
        for (uint r = 0; r < p.rows; r++) {
            const uint row = p.row + r;
            for (int i = c; i < end; i += VEC)
                store_row(j, make_codes(j, &s, load_x(j, row, i, end - i), TILE, row, i), row, i, end - i);
            if (SCALE != 2 || r == 0)
                store_block_scale(j, &s, SCALE == 2 ? slot : row, c);
        }
    }
}

/* ---- columns ---- */

static inline void store_line(const job *j, uvec code, uint line, int column, int n)
{
    if (j->transposed)
        store_bytes_apart(code, j->q + column * j->q_bytes + line, j->q_bytes, n);
    else
        store_bytes(code, j->q + line * j->q_bytes + column, n);
}

static inline void store_scales(const job *j, const scaling *s, uint slot, int column, int n)
{
    const ulong at = j->transposed ? column * j->scales + slot : slot * j->scales + column;
    const ulong stride = j->transposed ? j->scales : 1;
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

/* Rows of a block that are kept in registers; GPUs read those of high blocks again. */
#define HELD (MOERT_ITEMS == 1 || BLOCK <= 32 ? BLOCK : 1)

/* On GPUs only unrolled loops find registers. */
#if MOERT_ITEMS == 1
#define STEPWISE
#elif BLOCK <= 32
#define STEPWISE UNROLL
#else
#define STEPWISE ROLLED
#endif

static inline vec block_row(const job *j, const vec v[HELD], place p, uint r, int column, int n)
{
    if (HELD == BLOCK)
        return v[r];
    return r < p.rows ? load_x(j, p.row + r, column, n) : (vec)0.0f;
}

KERNEL void quantize_column(ARGUMENTS)
{
    const job job_ = JOB, *j = &job_;
    const uint slot = get_group_id(0);
    const int first = get_group_id(1) * strip, last = min(columns, first + strip);
    const place p = find_place(ends, groups, rows, BLOCK, slot);
    if (p.rows == 0 || slot >= blocks)
        return;
    for (int c = first; c < last; c += VEC) {
        const int n = last - c;
        vec v[HELD];
        uvec largest = 0;
        STEPWISE for (uint r = 0; r < HELD; r++)
            v[r] = r < p.rows ? load_x(j, p.row + r, c, n) : (vec)0.0f;
#if BLOCK == 16
        if (hadamard && p.rows == BLOCK)
            rotate_rows(v);
#endif
        STEPWISE for (uint r = 0; r < BLOCK; r++)
            largest = max(largest, magnitude_bits(block_row(j, v, p, r, c, n)));
        const scaling s = make_scale(j, p.group, largest);
        store_scales(j, &s, slot, c, n);
#if ELEMENT_BITS == 4
        STEPWISE for (uint r = 0; r < BLOCK; r += 2) {
            const uint row = p.row + r;
            const uvec low = r < p.rows ? make_codes(j, &s, block_row(j, v, p, r, c, n), COLUMN, row, c) : (uvec)0;
            const uvec high =
                r + 1 < p.rows ? make_codes(j, &s, block_row(j, v, p, r + 1, c, n), COLUMN, row + 1, c) : (uvec)0;
            store_line(j, low | high << 4, slot * (BLOCK / 2) + r / 2, c, n);
        }
#else
        STEPWISE for (uint r = 0; r < BLOCK; r++)
            if (r < p.rows)
                store_line(j, make_codes(j, &s, block_row(j, v, p, r, c, n), COLUMN, p.row + r, c), p.row + r, c, n);
#endif
    }
}
