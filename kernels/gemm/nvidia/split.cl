/*
 * Grouped GEMM of float32 operands on the tensor cores of sm_90 (Hopper), about as exact as a chain
 * of fma:
 *
 *   FORWARD   y[m,n] = sum_k x[m,k] w[n,k] + bias[n]     all rows m
 *   DGRAD     x[m,k] = sum_n y[m,n] w[n,k]
 *   WGRAD     w[g,n,k] = sum_m x[m,k] y[m,n]             over the rows of group g; 0 without rows
 *
 * and, with `accumulate`, what was there. A factor is the sum of three bf16 numbers, each the
 * nearest to what is left:
 *
 *   a = a0 + a1 + a2,   a b ~ a0 b2 + a2 b0 + a1 b1 + a0 b1 + a1 b0 + a0 b0
 *
 * to 2^-24 of |a b|. The tensor cores add up these products of 32 terms in this order, cutting off
 * what does not fit; what blocks of 32 terms give is added in float32, in order.
 *
 * The result has lines (m, m, k) and columns (n, k, n); the first factor (x, y, x) has the lines,
 * the second (w, w, y) the columns. The second has been split by split_rows: parts[3, its rows, its
 * columns rounded up to 8]. Both are tensors of TMA maps, the first in numbers of 16 bits.
 * Persistent work-groups take the tiles of 128 lines x COLUMNS columns in turn:
 *
 *     warps 0-3    one thread asks for blocks of 32 terms of a tile, into a ring of STAGES stages:
 *                  of the first factor 16 KiB, of each part of the second 64 bytes a column
 *     warps 4-7    lines 0-63:   the first factor from local memory, split in registers; 64 x
 *     warps 8-11   lines 64-127  COLUMNS sums of a block by wgmma, which join all, while the tensor
 *                                cores compute for the other consumer
 *
 * Terms past the end are 0: TMA gives zeros past a tensor, and WGRAD clears the rows of the next
 * group in both operands. Lines past the end are computed from whatever is there and not stored.
 * Where a factor is not finite, or nearly as large as a float can be, the results are NaN.
 *
 * Strides of the first factor must be multiples of 4 numbers, and but for WGRAD columns, ldc and
 * first_column of 2. Grid: up to compute units work-groups of 384. Local memory: ARENA bytes (which
 * src/device/nvidia/ptx.c puts in the place of 1040). Deterministic: the order of a sum is the
 * hardware's, the same in every run and at every place of a tile. Required: ORIENTATION (0 to 2 as
 * above), COLUMNS (64, 128), STAGES, ARENA.
 */
#if !defined(ORIENTATION) || !defined(COLUMNS) || !defined(STAGES)
#error "ORIENTATION, COLUMNS and STAGES must be defined"
#endif
#if COLUMNS != 64 && COLUMNS != 128
#error "COLUMNS must be 64 or 128"
#endif
#define F16 0
#include "args/gemm.h"
#include "lib/nvidia.h"

#define FORWARD 0
#define DGRAD   1
#define WGRAD   2

#if ORIENTATION == FORWARD /* terms of the second factor are neighbours, or lie below each other */
#define TRANSPOSED_B 0
#else
#define TRANSPOSED_B 1
#endif

#define PARTS       3
#define LINES       128
#define TERMS       32
#define STEPS       (TERMS / 16)  /* of wgmma */
#define SUMS_OWN    (COLUMNS / 2) /* of a work-item */
#define A_BYTES     (LINES * TERMS * 4)
#define B_BYTES     (COLUMNS * TERMS * 2)
#define STAGE_BYTES (A_BYTES + PARTS * B_BYTES)
#define BOX_BYTES   4096 /* 32 rows of 128 bytes */

/* 128 times the one and 256 times the other are at most 65536. */
#define PRODUCER_REGISTERS 40
#define CONSUMER_REGISTERS 232

/* Offsets in the arena. */
#define FULL_AT  (STAGES * STAGE_BYTES)
#define EMPTY_AT (FULL_AT + 8 * STAGES)

#define CLEARED 1 /* and 2: barriers of a consumer */
#define TURN    3 /* and 4: the barriers at which the consumers wait for their turns */

/* ---- tiles ---- */

typedef struct shape {
    uint groups, lines, columns,
        terms;  /* groups and lines only in WGRAD, terms only in the others */
    uint keeps; /* groups without rows stay as they are */
} shape;

/* Its first line and column, its group's terms and the row at which they begin. */
typedef struct tile {
    uint group, line, column, first, terms;
    bool skipped;
} tile;

static inline uint tiles_across(const shape *s) {
    return (s->columns + COLUMNS - 1) / COLUMNS;
}

static inline uint count_tiles(const shape *s) {
    return s->groups * ((s->lines + LINES - 1) / LINES) * tiles_across(s);
}

/* Tiles of the same lines follow each other. */
static inline tile find_tile(const shape *s, global const uint *ends, uint n) {
    const uint across = tiles_across(s), down = (s->lines + LINES - 1) / LINES;
    const uint group = n / (down * across), line = n / across % down * LINES,
               column = n % across * COLUMNS;
    if (ORIENTATION != WGRAD)
        return (tile){0, line, column, 0, s->terms, false};
    const uint first = group > 0 ? ends[group - 1] : 0, terms = ends[group] - first;
    return (tile){group, line, column, first, terms, s->keeps && terms == 0};
}

/* ---- the producer ---- */

/* Asks for a block of both operands. */
static inline void bring(const tile *t, uint term, ulong map_a, ulong map_b, uint a, uint full) {
    const uint b = a + A_BYTES, row = t->first + term;
    expect(full, STAGE_BYTES);
    if (ORIENTATION == WGRAD)
        for (int i = 0; i < LINES / 32; i++)
            load_box(a + i * BOX_BYTES, map_a, 2 * (t->line + 32 * i), row, 0, full);
    else
        load_box(a, map_a, 2 * term, t->line, 0, full);
    for (int p = 0; p < PARTS; p++)
        if (TRANSPOSED_B)
            for (int i = 0; i < COLUMNS / 64; i++)
                load_box(b + p * B_BYTES + i * BOX_BYTES, map_b, t->column + 64 * i, row, p, full);
        else
            load_box(b + p * B_BYTES, map_b, term, t->column, p, full);
}

static inline void produce(const shape *s, global const uint *ends, ulong map_a, ulong map_b,
                           uint base) {
    uint step = 0;
    for (uint n = get_group_id(0); n < count_tiles(s); n += get_num_groups(0)) {
        const tile t = find_tile(s, ends, n);
        for (uint term = 0; term < t.terms; term += TERMS, step++) {
            const uint stage = step % STAGES;
            if (step >= STAGES)
                await(base + EMPTY_AT + 8 * stage, step / STAGES - 1);
            bring(&t, term, map_a, map_b, base + stage * STAGE_BYTES, base + FULL_AT + 8 * stage);
        }
    }
}

/* ---- the consumers: registers of a product in flight must not be passed on ---- */

/* Clears the terms from `terms` on of what a consumer multiplies: its boxes of the lines and all of
 * the columns, which the other one clears too, so that neither waits for the other. */
static inline void clear_terms(local uchar *stage, uint terms, uint consumer) {
    for (uint i = 0; i < 2 + PARTS * B_BYTES / BOX_BYTES; i++)
        for (uint at = terms * 128 + get_local_id(0) % 128 * 16; at < BOX_BYTES; at += 128 * 16)
            *(local uint4 *)(stage + (i < 2 ? 2 * consumer + i : 2 + i) * BOX_BYTES + at) =
                (uint4)(0);
    fence_tensor();
    barrier_of(CLEARED + consumer, 128);
}

/* Term `term`, which is even, and the next of a line of the first factor. */
static inline float2 load_pair(local const uchar *a, uint line, uint term) {
    if (ORIENTATION != WGRAD)
        return *(local const float2 *)(a + line * 128 + (term / 4 ^ line % 8) * 16 + term % 4 * 4);
    local const uchar *at = a + line / 32 * BOX_BYTES + term * 128 + line % 4 * 4;
    const uint word = line % 32 / 4;
    return (float2)(*(local const float *)(at + (word ^ term % 8) * 16),
                    *(local const float *)(at + 128 + (word ^ (term + 1) % 8) * 16));
}

/* The first factor's parts as wgmma wants them: of each 16 terms four pairs, of lines 0, 8, 0 and 8
 * from a work-item's on. */
INLINED void split_lines(uint parts[PARTS][STEPS][4], local const uchar *a, uint line) {
    UNROLL_FOR(int i = 0; i < STEPS; i++)
        UNROLL_FOR(int j = 0; j < 4; j++) {
            float2 left =
                load_pair(a, line + j % 2 * 8, 16 * i + j / 2 * 8 + get_local_id(0) % 4 * 2);
            UNROLL_FOR(int p = 0; p < PARTS; p++) {
                parts[p][i][j] = round_pair(left.x, left.y);
                left -= widen_pair(0, parts[p][i][j]);
            }
        }
}

#if COLUMNS == 128
#define WIDTH        "128"
#define LIST(how, s) LIST_64(how, s)
#define OPERANDS     SUMS_TO_63 "}, {%64, %65, %66, %67}, %68"
#else
#define WIDTH        "64"
#define LIST(how, s) LIST_16(how, s, 0), LIST_16(how, s, 16)
#define OPERANDS                                                                                   \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " TEN(1) TEN(2) "%30, %31}, {%32, %33, %34, %35}, "   \
                                                             "%36"
#endif

/* sums[64,COLUMNS] = a[64,16] b[16,COLUMNS], a in registers, or, if `keep` is 1, += that. */
#define PRODUCT(s, a, b, how, keep)                                                                \
    __asm__ volatile("{ .reg .pred p; setp.ne.b32 p, " TEXT(                                       \
                         keep) ", 0;\n"                                                            \
                               "//@sm_90a wgmma.mma_async.sync.aligned.m64n" WIDTH                 \
                               "k16.f32.bf16.bf16 {" OPERANDS                                      \
                               ", p, 1, 1, " TEXT(TRANSPOSED_B) ";\n}"                             \
                     : LIST(how, s)                                                                \
                     : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "l"(b))

#define NEXT (TRANSPOSED_B ? 128 : 2) /* 16 terms, in units of 16 bytes */

/* A part of the second factor: boxes of 32 rows of terms, swizzled by 128 bytes; or 64 bytes a
 * column, swizzled by as many. */
static inline ulong matrix_b(uint b, int part) {
    const ulong at = (b + part * B_BYTES) >> 4 & 0x3FFF;
    return TRANSPOSED_B ? at | (ulong)(BOX_BYTES / 16) << 16 | (ulong)64 << 32 | (ulong)1 << 62
                        : at | (ulong)1 << 16 | (ulong)32 << 32 | (ulong)2 << 62;
}

INLINED void add_product(float *sum, uint a[STEPS][4], ulong b) {
    UNROLL_FOR(int i = 0; i < STEPS; i++)
        PRODUCT(sum, a[i], b + i * NEXT, "+f", 1);
}

/* sum = 64 lines x 32 terms by 32 terms x COLUMNS columns; asynchronous. */
INLINED void multiply(float *sum, uint a[PARTS][STEPS][4], uint b) {
    const ulong b0 = matrix_b(b, 0), b1 = matrix_b(b, 1), b2 = matrix_b(b, 2);
    wgmma_fence();
    PRODUCT(sum, a[0][0], b2, "=f", 0);
    PRODUCT(sum, a[0][1], b2 + NEXT, "+f", 1);
    add_product(sum, a[2], b0);
    add_product(sum, a[1], b1);
    add_product(sum, a[0], b1);
    add_product(sum, a[1], b0);
    add_product(sum, a[0], b0);
    wgmma_commit();
}

/* Keeps the compiler from reading the sums before the wait ahead of this. */
#undef SETTLE
#define SETTLE(s) __asm__ volatile("" : LIST("+f", s)::"memory")

/* The other consumer may ask the tensor cores for a block. */
static inline void pass_turn(uint consumer) {
    pass_barrier(TURN + 1 - consumer, 256);
}

/* sum[64,COLUMNS] of a tile; `step`: of the ring. */
INLINED void add_blocks(float *sum, const tile *t, uint base, local uchar *arena, uint *step,
                        uint consumer, uint line) {
    for (int left = t->terms; left > 0; left -= TERMS, ++*step) {
        const uint stage = *step % STAGES, at = stage * STAGE_BYTES;
        uint a[PARTS][STEPS][4];
        float block[SUMS_OWN];
        await(base + FULL_AT + 8 * stage, *step / STAGES);
        if (ORIENTATION == WGRAD && left < TERMS)
            clear_terms(arena + at, left, consumer);
        split_lines(a, arena + at, line);
        barrier_of(TURN + consumer, 256);
        multiply(block, a, base + at + A_BYTES);
        pass_turn(consumer);
        wgmma_wait(0);
        SETTLE(block);
        sync_warp();
        if (get_local_id(0) % 32 == 0)
            arrive(base + EMPTY_AT + 8 * stage);
        UNROLL_FOR(int i = 0; i < SUMS_OWN; i++)
            sum[i] += block[i];
    }
}

/* ---- the result ---- */

/* Of the sums a work-item has, in sum[4 j + 2 i] and the next, line `line` + 8 i at columns 8 j + 2
 * (lane mod 4) and the next. */
typedef struct target {
    global float *at;
    ulong stride;
    uint line, end, column,
        columns; /* this work-item's first line and column; where there are no more */
} target;

static inline target target_of(const shape *s, const tile *t, uint line, global float *c,
                               ulong ldc) {
    return (target){ORIENTATION == WGRAD ? c + (ulong)t->group * s->columns * ldc : c,
                    ldc,
                    t->line + line,
                    s->lines,
                    t->column + get_local_id(0) % 4 * 2,
                    s->columns};
}

/* The first of two columns; past the end others, as loads under a condition would wait for each
 * other. */
static inline uint column_of(const target *to, int j) {
    return min(to->column + 8 * j, (to->columns - 1) & ~1u);
}

INLINED void add_bias(float *sum, const target *to, global const float *bias) {
    UNROLL_FOR(int j = 0; j < COLUMNS / 8; j++)
        UNROLL_FOR(int i = 0; i < 4; i++)
            sum[4 * j + i] += bias[column_of(to, j) + i % 2];
}

INLINED void add_old(float *sum, const target *to) {
    UNROLL_FOR(int j = 0; j < COLUMNS / 8; j++)
        UNROLL_FOR(int i = 0; i < 2; i++) {
            const uint line = min(to->line + 8 * i, to->end - 1), column = column_of(to, j);
            float2 old;
            if (ORIENTATION == WGRAD)
                old = (float2)(to->at[column * to->stride + line],
                               to->at[min(column + 1, to->columns - 1) * to->stride + line]);
            else
                old = *(global const float2 *)(to->at + line * to->stride + column);
            sum[4 * j + 2 * i] += old.x;
            sum[4 * j + 2 * i + 1] += old.y;
        }
}

INLINED void store_sums(const float *sum, const target *to) {
    UNROLL_FOR(int j = 0; j < COLUMNS / 8; j++)
        UNROLL_FOR(int i = 0; i < 2; i++) {
            const uint line = to->line + 8 * i, column = to->column + 8 * j;
            const float2 x = (float2)(sum[4 * j + 2 * i], sum[4 * j + 2 * i + 1]);
            if (line >= to->end || column >= to->columns)
                continue;
            if (ORIENTATION != WGRAD) {
                *(global float2 *)(to->at + line * to->stride + column) = x;
                continue;
            }
            to->at[column * to->stride + line] = x.x;
            if (column + 1 < to->columns)
                to->at[(column + 1) * to->stride + line] = x.y;
        }
}

INLINED void consume(const shape *s, global const uint *ends, uint base, local uchar *arena,
                     global float *c, ulong ldc, global const float *bias, bool accumulate) {
    const uint consumer = of_warp(get_local_id(0) / 128 - 1);
    const uint line = consumer * 64 + get_local_id(0) % 128 / 32 * 16 + get_local_id(0) % 32 / 4;
    uint step = 0;
    if (consumer == 1)
        pass_turn(consumer);
    for (uint n = get_group_id(0); n < count_tiles(s); n += get_num_groups(0)) {
        const tile t = find_tile(s, ends, n);
        const target to = target_of(s, &t, line, c, ldc);
        float sum[SUMS_OWN];
        if (t.skipped)
            continue;
        UNROLL_FOR(int i = 0; i < SUMS_OWN; i++)
            sum[i] = 0.0f;
        add_blocks(sum, &t, base, arena, &step, consumer, line);
        if (bias != 0)
            add_bias(sum, &to, bias);
        if (accumulate)
            add_old(sum, &to);
        store_sums(sum, &to);
    }
}

kernel __attribute__((reqd_work_group_size(384, 1, 1))) void nvidia_gemm_split(
    tensor_map a, tensor_map b, global float *c, global const uint *ends, global const float *bias,
    moert_split_args args, global const float *lines_at,
    global const ushort *parts_at) /* the tensors', to be kept until the end */
{
    local __attribute__((aligned(1024))) uchar arena[1040];
    const uint base = local_address(arena), thread = get_local_id(0);
    const shape s = {ORIENTATION == WGRAD ? args.groups : 1,
                     ORIENTATION == WGRAD ? args.lines : ends[args.groups - 1], args.columns,
                     args.terms, args.accumulate};
    if (thread == 0) {
        begin_ring(base + FULL_AT, base + EMPTY_AT, STAGES, 1, 8); /* a warp each */
        fence_barriers();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (thread < 128) {
        release_registers(PRODUCER_REGISTERS);
        if (thread == 0)
            produce(&s, ends, MAP_ADDRESS(nvidia_gemm_split, 0), MAP_ADDRESS(nvidia_gemm_split, 1),
                    base);
    } else {
        claim_registers(CONSUMER_REGISTERS);
        consume(&s, ends, base, arena, c + args.first_column, args.ldc, bias, args.accumulate);
    }
}

/* parts[3, rows, columns rounded up to 8] of x[rows, columns], whose rows lie `stride` numbers
 * apart, from number `first` on; zeros behind the last column. Grid: {a quarter of a part's
 * numbers, by 256 work-items rounded up}. */
kernel __attribute__((reqd_work_group_size(256, 1, 1))) void split_rows(global const float *x,
                                                                        global uint2 *parts,
                                                                        moert_split_args args) {
    const ulong rows = args.rows;
    const uint columns = args.columns;
    const uint quads = (columns + 7) / 8 * 2;
    const ulong quad = get_global_id(0), row = quad / quads;
    const uint column = quad % quads * 4;
    float left[4];
    if (row >= rows)
        return;
    x += args.first + row * args.stride;
    UNROLL_FOR(int i = 0; i < 4; i++)
        left[i] = column + i < columns ? x[column + i] : 0.0f;
    UNROLL_FOR(int p = 0; p < PARTS; p++) {
        const uint2 pairs = (uint2)(round_pair(left[0], left[1]), round_pair(left[2], left[3]));
        parts[p * rows * quads + quad] = pairs;
        UNROLL_FOR(int i = 0; i < 4; i++)
            left[i] -= i % 2 == 0 ? widen_pair(0, i < 2 ? pairs.x : pairs.y).x
                                  : widen_pair(0, i < 2 ? pairs.x : pairs.y).y;
    }
}
