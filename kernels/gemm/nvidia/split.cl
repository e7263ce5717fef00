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
 * The sum of these six products has an error of 2^-24 of |a b|. The tensor cores add the products
 * for 32 K values in this order, and truncate bits that do not fit. The sums of blocks of 32 are
 * added in float32, in order.
 *
 * In the three orientations, the result's lines are (m, m, k) and its columns (n, k, n). Operand A
 * (x, y, x) has the lines, B (w, w, y) the columns. Before this kernel, split_rows splits B into
 * parts[3, rows of B, columns of B rounded up to 8]. A and B are tensors of TMA maps, A in elements
 * of 16 bits. Work-groups are persistent and take the tiles of 128 lines x COLUMNS columns in
 * rotation:
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
 * ARENA bytes; src/device/nvidia/ptx.c replaces the 1040 bytes that the kernel declares by ARENA.
 * Deterministic: the hardware determines the order of a sum; it is the same in every run and at
 * every position of a tile. Required: ORIENTATION (0 to 2 as above), COLUMNS (64, 128), ARENA.
 */
#if !defined(ORIENTATION) || !defined(COLUMNS) || !defined(ARENA)
#error "ORIENTATION, COLUMNS and ARENA must be defined"
#endif
#if COLUMNS != 64 && COLUMNS != 128
#error "COLUMNS must be 64 or 128"
#endif
#define F16 0
#include "args/gemm_nvidia.h"
#include "lib/nvidia.h"

#define FORWARD 0
#define DGRAD   1
#define WGRAD   2

#if ORIENTATION == FORWARD /* 0 if B is stored [N,K], 1 if [K,N] */
#define TRANSPOSED_B 0
#else
#define TRANSPOSED_B 1
#endif

#define PARTS       MOERT_SPLIT_PARTS
#define LINES       MOERT_NVIDIA_LINES
#define BLOCK_K     MOERT_SPLIT_K
#define STAGES      MOERT_SPLIT_STAGES(ARENA, COLUMNS)
#define STAGE_BYTES MOERT_SPLIT_STAGE_BYTES(COLUMNS)
#define STEPS       (BLOCK_K / 16) /* wgmma along K */
#define SUMS_OWN    (COLUMNS / 2)  /* sums of a work-item */
#define A_BYTES     (LINES * BLOCK_K * 4)
#define B_BYTES     (COLUMNS * BLOCK_K * 2)
#define BOX_BYTES   4096 /* 32 rows of 128 bytes */

/* 128 times PRODUCER_REGISTERS plus 256 times CONSUMER_REGISTERS is at most 65536. */
#define PRODUCER_REGISTERS 40
#define CONSUMER_REGISTERS 232

/* Offsets in the arena. */
#define FULL_AT  (STAGES * STAGE_BYTES)
#define EMPTY_AT (FULL_AT + 8 * STAGES)

/* Hardware barriers. CLEARED and CLEARED + 1: one for each consumer, whose warps meet there after
 * they have cleared K values. ORDER and ORDER + 1: a consumer waits there until it may use the
 * tensor cores. */
#define CLEARED 1
#define ORDER   3

#include "lib/pipeline.h"
#include "gemm/nvidia/split.h"

/* The result, whose old values are added with `accumulate`; bias may be null. */
typedef struct output {
    global float *c;
    ulong ldc;
    global const float *bias;
    bool accumulate;
} output;

/* Where a work-item's sums go: sum[4 j + 2 i] and sum[4 j + 2 i + 1] belong to line `line` + 8 i,
 * columns `column` + 8 j and `column` + 8 j + 1. */
typedef struct target {
    global float *at;
    ulong stride;
    uint line, end, column,
        columns; /* line, column: the first ones of this work-item; end, columns: the numbers of
                    lines and columns of the matrix */
} target;

static inline target target_of(const shape *s, const output *to, const tile *t, uint line) {
    return (target){ORIENTATION == WGRAD ? to->c + (ulong)t->group * s->columns * to->ldc : to->c,
                    to->ldc,
                    t->line + line,
                    s->lines,
                    t->column + get_local_id(0) % 4 * 2,
                    s->columns};
}

/* The first of the two columns of sum[4 j]. Beyond the last column the function returns a valid
 * column, since conditional loads would wait for each other. */
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
                     output to) {
    const uint consumer = of_warp(get_local_id(0) / 128 - 1);
    const uint line = consumer * 64 + get_local_id(0) % 128 / 32 * 16 + get_local_id(0) % 32 / 4;
    ring r = {base, 0, consumer, arena};
    if (consumer == 1)
        pass_turn(consumer);
    for (uint n = get_group_id(0); n < count_tiles(s); n += get_num_groups(0)) {
        const tile t = find_tile(s, ends, n);
        const target own = target_of(s, &to, &t, line);
        float sum[SUMS_OWN];
        if (t.skipped)
            continue;
        UNROLL_FOR(int i = 0; i < SUMS_OWN; i++)
            sum[i] = 0.0f;
        add_blocks(sum, &r, &t, line);
        if (to.bias != 0)
            add_bias(sum, &own, to.bias);
        if (to.accumulate)
            add_old(sum, &own);
        store_sums(sum, &own);
    }
}

/* The tensor maps of the operands. */
typedef struct operand_maps {
    tensor_map a, b;
} operand_maps;

kernel __attribute__((reqd_work_group_size(384, 1, 1))) void nvidia_gemm_split(
    operand_maps maps, global float *c, global const uint *ends, global const float *bias,
    moert_split_args args, global const float *lines_at,
    global const ushort *parts_at) /* keep the tensors allocated until the kernel ends */
{
    local __attribute__((aligned(1024))) uchar arena[1040];
    const uint base = local_address(arena), thread = get_local_id(0);
    const shape s = {ORIENTATION == WGRAD ? args.groups : 1,
                     ORIENTATION == WGRAD ? args.lines : ends[args.groups - 1], args.columns,
                     args.terms, args.accumulate};
    if (thread == 0) {
        begin_pipeline(base, 1, 8); /* one arrival for each warp of the consumers */
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
        consume(&s, ends, base, arena,
                (output){c + args.first_column, args.ldc, bias, args.accumulate});
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
