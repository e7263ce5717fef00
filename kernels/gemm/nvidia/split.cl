/*
 * Grouped GEMM of float32 operands on the tensor cores of sm_90 (Hopper), about as exact as a chain
 * of fma:
 *
 *   FORWARD   y[m,n] = sum_k x[m,k] w[n,k] + bias[n]     all rows m
 *   DGRAD     x[m,k] = sum_n y[m,n] w[n,k]
 *   WGRAD     w[g,n,k] = sum_m x[m,k] y[m,n]             over the rows of group g; 0 without rows
 *
 * With `accumulate` the old values are added. An operand is the sum of three bf16 values, each the
 * nearest to the remainder:
 *
 *   a = a0 + a1 + a2,   a b ~ a0 b2 + a2 b0 + a1 b1 + a0 b1 + a1 b0 + a0 b0
 *
 * with an error of 2^-24 of |a b|. The tensor cores add up these products of 32 K values in this
 * order and truncate what does not fit. The sums of blocks of 32 are added in float32, in order.
 *
 * The result has lines (m, m, k) and columns (n, k, n). Operand A (x, y, x) has the lines, B (w, w,
 * y) the columns. split_rows has split B before: parts[3, its rows, its columns rounded up to 8].
 * Both are tensors of TMA maps, A in elements of 16 bits. Work-groups are persistent and take the
 * tiles of 128 lines x COLUMNS columns in rotation:
 *
 *     warps 0-3    one thread starts the loads of blocks of 32 K values of a tile, into a ring of
 *                  STAGES stages: 16 KiB of A, 64 bytes a column of each part of B
 *     warps 4-7    lines 0-63:   A from local memory, split in registers; 64 x COLUMNS sums of a
 *     warps 8-11   lines 64-127  block by wgmma, added to the tile's sums while the tensor cores
 *                                compute for the other consumer
 *
 * Beyond the end of K operands are 0: TMA gives zeros beyond a tensor, and WGRAD clears the rows of
 * the next group in both operands. Lines beyond the end are computed from arbitrary memory and not
 * stored. Where an operand is not finite, or is close to the largest float, the results are NaN.
 *
 * Strides of A must be multiples of 4 elements; except in WGRAD, columns, ldc and first_column must
 * be multiples of 2. Grid: work-groups of 384, at most one for each compute unit. Local memory:
 * ARENA bytes (src/device/nvidia/ptx.c replaces 1040 by it). Deterministic: the hardware determines
 * the order of a sum; it is the same in every run and at every position of a tile. Required:
 * ORIENTATION (0 to 2 as above), COLUMNS (64, 128), STAGES, ARENA.
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

#if ORIENTATION == FORWARD /* K of B runs along its columns (0) or its rows (1) */
#define TRANSPOSED_B 0
#else
#define TRANSPOSED_B 1
#endif

#define PARTS       3
#define LINES       128
#define BLOCK_K     32
#define STEPS       (BLOCK_K / 16) /* wgmma along K */
#define SUMS_OWN    (COLUMNS / 2)  /* sums of a work-item */
#define A_BYTES     (LINES * BLOCK_K * 4)
#define B_BYTES     (COLUMNS * BLOCK_K * 2)
#define STAGE_BYTES (A_BYTES + PARTS * B_BYTES)
#define BOX_BYTES   4096 /* 32 rows of 128 bytes */

/* 128 times PRODUCER_REGISTERS plus 256 times CONSUMER_REGISTERS is at most 65536. */
#define PRODUCER_REGISTERS 40
#define CONSUMER_REGISTERS 232

/* Offsets in the arena. */
#define FULL_AT  (STAGES * STAGE_BYTES)
#define EMPTY_AT (FULL_AT + 8 * STAGES)

#define CLEARED 1 /* and 2: barriers of a consumer */
#define ORDER   3 /* and 4: barriers at which a consumer waits until it may use the tensor cores */

/* ---- tiles ---- */

typedef struct shape {
    uint groups, lines, columns,
        k_size; /* only WGRAD has several groups; k_size is not used in WGRAD */
    uint keeps; /* groups without rows keep their old values */
} shape;

/* First line and column, K size, and the row at which the group's K begins. */
typedef struct tile {
    uint group, line, column, first, k_size;
    bool skipped;
} tile;

static inline uint tiles_across(const shape *s) {
    return (s->columns + COLUMNS - 1) / COLUMNS;
}

static inline uint count_tiles(const shape *s) {
    return s->groups * ((s->lines + LINES - 1) / LINES) * tiles_across(s);
}

/* Consecutive tiles have the same lines. */
static inline tile find_tile(const shape *s, global const uint *ends, uint n) {
    const uint across = tiles_across(s), down = (s->lines + LINES - 1) / LINES;
    const uint group = n / (down * across), line = n / across % down * LINES,
               column = n % across * COLUMNS;
    if (ORIENTATION != WGRAD)
        return (tile){0, line, column, 0, s->k_size, false};
    const uint first = group > 0 ? ends[group - 1] : 0, k_size = ends[group] - first;
    return (tile){group, line, column, first, k_size, s->keeps && k_size == 0};
}

/* ---- the producer ---- */

/* Starts the loads of a block of both operands. */
static inline void load_blocks(const tile *t, uint k, ulong map_a, ulong map_b, uint a, uint full) {
    const uint b = a + A_BYTES, row = t->first + k;
    expect(full, STAGE_BYTES);
    if (ORIENTATION == WGRAD)
        for (int i = 0; i < LINES / 32; i++)
            load_box(a + i * BOX_BYTES, map_a, 2 * (t->line + 32 * i), row, 0, full);
    else
        load_box(a, map_a, 2 * k, t->line, 0, full);
    for (int p = 0; p < PARTS; p++)
        if (TRANSPOSED_B)
            for (int i = 0; i < COLUMNS / 64; i++)
                load_box(b + p * B_BYTES + i * BOX_BYTES, map_b, t->column + 64 * i, row, p, full);
        else
            load_box(b + p * B_BYTES, map_b, k, t->column, p, full);
}

static inline void produce(const shape *s, global const uint *ends, ulong map_a, ulong map_b,
                           uint base) {
    uint step = 0;
    for (uint n = get_group_id(0); n < count_tiles(s); n += get_num_groups(0)) {
        const tile t = find_tile(s, ends, n);
        for (uint k = 0; k < t.k_size; k += BLOCK_K, step++) {
            const uint stage = step % STAGES;
            if (step >= STAGES)
                await(base + EMPTY_AT + 8 * stage, step / STAGES - 1);
            load_blocks(&t, k, map_a, map_b, base + stage * STAGE_BYTES,
                        base + FULL_AT + 8 * stage);
        }
    }
}

/* ---- the consumers ---- */

/* Clears the K values from `k_size` on in the boxes that a consumer multiplies: its own boxes of A
 * and all boxes of B. Both consumers clear B, so that neither waits for the other. */
static inline void clear_k(local uchar *stage, uint k_size, uint consumer) {
    for (uint i = 0; i < 2 + PARTS * B_BYTES / BOX_BYTES; i++)
        for (uint at = k_size * 128 + get_local_id(0) % 128 * 16; at < BOX_BYTES; at += 128 * 16)
            *(local uint4 *)(stage + (i < 2 ? 2 * consumer + i : 2 + i) * BOX_BYTES + at) =
                (uint4)(0);
    fence_tensor();
    barrier_of(CLEARED + consumer, 128);
}

/* K values k, which is even, and k + 1 of a line of A. */
static inline float2 load_pair(local const uchar *a, uint line, uint k) {
    if (ORIENTATION != WGRAD)
        return *(local const float2 *)(a + line * 128 + (k / 4 ^ line % 8) * 16 + k % 4 * 4);
    local const uchar *at = a + line / 32 * BOX_BYTES + k * 128 + line % 4 * 4;
    const uint word = line % 32 / 4;
    return (float2)(*(local const float *)(at + (word ^ k % 8) * 16),
                    *(local const float *)(at + 128 + (word ^ (k + 1) % 8) * 16));
}

/* Splits a work-item's values of A into parts, in the register layout of wgmma's operand A. Each 16
 * K values take four registers with a pair of values each: lines `line`, `line` + 8, `line` and
 * `line` + 8. */
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

/* sums[64,COLUMNS] = a[64,16] b[16,COLUMNS], a in registers; += if `keep` is 1. The sums must stay
 * in the same registers while the wgmma is in flight. */
#define WGMMA_SPLIT(s, a, b, how, keep)                                                            \
    __asm__ volatile("{ .reg .pred p; setp.ne.b32 p, " TEXT(                                       \
                         keep) ", 0;\n"                                                            \
                               "//@sm_90a wgmma.mma_async.sync.aligned.m64n" WIDTH                 \
                               "k16.f32.bf16.bf16 {" OPERANDS                                      \
                               ", p, 1, 1, " TEXT(TRANSPOSED_B) ";\n}"                             \
                     : LIST(how, s)                                                                \
                     : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "l"(b))

#define NEXT (TRANSPOSED_B ? 128 : 2) /* 16 K values, in units of 16 bytes */

/* The descriptor of a part of B: boxes of 32 rows along K, swizzled by 128 bytes; or 64 bytes a
 * column, swizzled by 64. */
static inline ulong matrix_b(uint b, int part) {
    const ulong at = (b + part * B_BYTES) >> 4 & 0x3FFF;
    return TRANSPOSED_B ? at | (ulong)(BOX_BYTES / 16) << 16 | (ulong)64 << 32 | (ulong)1 << 62
                        : at | (ulong)1 << 16 | (ulong)32 << 32 | (ulong)2 << 62;
}

INLINED void add_products(float *sum, uint a[STEPS][4], ulong b) {
    UNROLL_FOR(int i = 0; i < STEPS; i++)
        WGMMA_SPLIT(sum, a[i], b + i * NEXT, "+f", 1);
}

/* sum = 64 lines x 32 K values by 32 K values x COLUMNS columns; asynchronous. */
INLINED void multiply(float *sum, uint a[PARTS][STEPS][4], uint b) {
    const ulong b0 = matrix_b(b, 0), b1 = matrix_b(b, 1), b2 = matrix_b(b, 2);
    wgmma_fence();
    WGMMA_SPLIT(sum, a[0][0], b2, "=f", 0);
    WGMMA_SPLIT(sum, a[0][1], b2 + NEXT, "+f", 1);
    add_products(sum, a[2], b0);
    add_products(sum, a[1], b1);
    add_products(sum, a[0], b1);
    add_products(sum, a[1], b0);
    add_products(sum, a[0], b0);
    wgmma_commit();
}

/* Keeps the compiler from moving reads of the sums before the preceding wait. */
#undef SETTLE
#define SETTLE(s) __asm__ volatile("" : LIST("+f", s)::"memory")

/* Passes the tensor cores to the other consumer, for a block. */
static inline void pass_turn(uint consumer) {
    pass_barrier(ORDER + 1 - consumer, 256);
}

/* Adds a tile's blocks to sum[64,COLUMNS]; `step`: the position in the ring. */
INLINED void add_blocks(float *sum, const tile *t, uint base, local uchar *arena, uint *step,
                        uint consumer, uint line) {
    for (int left = t->k_size; left > 0; left -= BLOCK_K, ++*step) {
        const uint stage = *step % STAGES, at = stage * STAGE_BYTES;
        uint a[PARTS][STEPS][4];
        float block[SUMS_OWN];
        await(base + FULL_AT + 8 * stage, *step / STAGES);
        if (ORIENTATION == WGRAD && left < BLOCK_K)
            clear_k(arena + at, left, consumer);
        split_lines(a, arena + at, line);
        barrier_of(ORDER + consumer, 256);
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

/* Where a work-item's sums go: sum[4 j + 2 i] and sum[4 j + 2 i + 1] belong to line `line` + 8 i,
 * columns `column` + 8 j and `column` + 8 j + 1. */
typedef struct target {
    global float *at;
    ulong stride;
    uint line, end, column,
        columns; /* line, column: this work-item's first; end, columns: of the matrix */
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

/* The first of the two columns of sum[4 j]. Beyond the last column it returns a valid column, since
 * conditional loads would wait for each other. */
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
    global const ushort *parts_at) /* keep the tensors allocated until the kernel ends */
{
    local __attribute__((aligned(1024))) uchar arena[1040];
    const uint base = local_address(arena), thread = get_local_id(0);
    const shape s = {ORIENTATION == WGRAD ? args.groups : 1,
                     ORIENTATION == WGRAD ? args.lines : ends[args.groups - 1], args.columns,
                     args.terms, args.accumulate};
    if (thread == 0) {
        begin_ring(base + FULL_AT, base + EMPTY_AT, STAGES, 1,
                   8); /* one arrival for each warp of the consumers */
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

/* Splits x[rows, columns], whose rows are `stride` elements apart, from element `first` on, into
 * parts[3, rows, columns rounded up to 8]; zeros beyond the last column. Grid: {a quarter of the
 * elements of a part, rounded up to 256 work-items}. */
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
