/*
 * Grouped GEMM on the tensor cores of sm_80 (Ampere) and later: bf16 or f16 operands, float32 sums,
 * 16-bit or f32 results.
 *
 *   FORWARD   y[m,n] = sum_k x[m,k] w[g,n,k]     rows m of group g
 *   DGRAD     x[m,k] = sum_n y[m,n] w[g,n,k]
 *   WGRAD     w[g,n,k] = sum_m y[m,n] x[m,k]     over the rows of group g; 0 without rows
 *
 * epilogue.h defines the epilogue: scale factors, bias, the old values, a GLU (of FORWARD).
 *
 * In the three orientations, the result's lines are (m, m, n) and its columns (n, k, k). Operand a
 * has the lines, b the columns. In memory, the elements of an operand's row are contiguous. An
 * operand is transposed if its reduction index runs along the rows. A work-group of 4 warps
 * computes a tile of 128 lines x 128 columns, 32 K values at a time. Two work-groups share an SM,
 * so that one multiplies while the other begins or ends:
 *
 *               columns   0-63   64-127
 *     lines  0-63        warp 0  warp 2   each 64 x 64 sums in registers, in 4 x 8 pieces of 16 x 8
 *     lines 64-127       warp 1  warp 3      by mma.m16n8k16
 *
 * All threads copy the blocks of both operands (8 KiB each), 16 bytes at a time, into a ring of 3
 * stages. A stage is refilled once all warps have read it. A warp loads the matrices of 16 K values
 * while it multiplies those of the previous 16. In local memory a row has 64 bytes, or 256 if the
 * operand is transposed. The 16-byte pieces of a row are permuted so that the 8 rows of a matrix
 * are in different banks.
 *
 * With GLU the 64 columns of a warp are 32 gates and their 32 ups, from their positions in the
 * weight, and give 32 columns of h.
 *
 * Memory beyond the last line, column or K value of a group is not read; zeros replace it. A
 * work-group computes its tile from the group ends: group g, whose first row is r, begins at row
 * tile r / 128 + g, which reserves enough tiles for each group. The ends in use begin at index
 * `first_end`; if all groups share one weight, only the last end is read, and all rows form one
 * group. Groups below `skip` are not computed.
 *
 * Numbers of columns, strides and addresses must be multiples of 8 elements. Grid: work-groups of
 * 128, one for each of `down` row tiles (M / 128 + groups; in WGRAD the tiles of the lines of each
 * group) times the column tiles. Local memory: 48 KiB. Deterministic: K is summed in blocks of 16
 * from the group's first value on. The hardware determines the order within a block; it is the same
 * in every run and at every position of a tile, and no tile depends on another. Required:
 * ORIENTATION (0 to 2 as above), F16 (0 bf16, 1 f16); and the defines of epilogue.h.
 */
#if !defined(ORIENTATION) || !defined(F16)
#error "ORIENTATION and F16 must be defined"
#endif
#include "args/gemm_nvidia.h"
#include "lib/nvidia.h"
#include "gemm/nvidia/mma.h"
#include "gemm/nvidia/tiles.h"

#define FORWARD 0
#define DGRAD   1
#define WGRAD   2

#define THREADS 128
#define LINES   MOERT_NVIDIA_LINES
#define COLUMNS MOERT_MMA_COLUMNS
#define GROUP   MOERT_MMA_GROUP /* tiles in a column that are taken before the next column */
#define BLOCK_K 32
#define STAGES  3
#define SPAN    64                            /* columns of a warp */
#define RESULTS (GLU ? COLUMNS / 2 : COLUMNS) /* columns of the result in a tile */
#define OWN     (GLU ? SPAN / 2 : SPAN)       /* columns of the result in a warp */

#define TRANSPOSED_A (ORIENTATION == WGRAD)
#define TRANSPOSED_B (ORIENTATION != FORWARD)

#define BLOCK_BYTES (LINES * BLOCK_K * 2) /* of an operand */
#define STAGE_BYTES (2 * BLOCK_BYTES)

/* The description of a tile for the epilogue. */
typedef struct tile {
    int k_size, line, end,
        column; /* first line and column in the result; end of the group's lines */
    uint group;
} tile;

#include "gemm/nvidia/epilogue.h"
#include "gemm/nvidia/mma_copy.h"

typedef struct shape {
    uint skip, groups, down, lines, columns,
        k_size; /* WGRAD ignores k_size; FORWARD and DGRAD ignore lines */
} shape;

/* ---- tiles ---- */

/* The group of a row tile. */
static inline uint find_group(uint row, global const uint *ends, uint skip, uint groups) {
    uint first = skip, past = groups;
    while (past - first > 1) {
        const uint middle = (first + past) / 2;
        if (ends[middle - 1] / LINES + middle <= row)
            first = middle;
        else
            past = middle;
    }
    return first;
}

/* This work-group's tile, and the first row of its group; false if there is no tile. */
static inline bool find_tile(shape s, global const uint *ends, tile *t, uint *first) {
    const uint across = (s.columns + RESULTS - 1) / RESULTS;
    const tile_position at = tile_position_of(get_group_id(0), GROUP, s.down, across);
    const uint each = (s.lines + LINES - 1) / LINES; /* row tiles of a group in WGRAD */
    const uint begin = ORIENTATION == WGRAD ? s.skip * each
                       : s.skip > 0         ? ends[s.skip - 1] / LINES + s.skip
                                    : 0; /* the first row tile of the groups [skip, groups) */
    const uint row = begin + at.down;
    const uint group = ORIENTATION == WGRAD ? row / each : find_group(row, ends, s.skip, s.groups);
    *first = group > 0 ? ends[group - 1] : 0;
    t->group = group;
    t->column = at.across * RESULTS;
    t->k_size = ORIENTATION == WGRAD ? ends[group] - *first : s.k_size;
    t->line = ORIENTATION == WGRAD ? group * s.lines + row % each * LINES
                                   : *first + (row - *first / LINES - group) * LINES;
    t->end = ORIENTATION == WGRAD ? (group + 1) * s.lines : ends[group];
    return t->line < t->end;
}

/* ---- multiplication ---- */

/* The operands of 64 lines and 64 columns with 16 K values, which a warp multiplies at once. */
typedef struct matrices {
    uint a[4][4], b[4][4];
} matrices;

/* Loads K values 16 i to 16 i + 15 of a block, from this lane's offsets in it. */
static inline void load_step(matrices *m, uint a, uint b, uint i) {
    UNROLL_FOR(uint j = 0; j < 4; j++) {
        load_matrices(m->a[j],
                      TRANSPOSED_A ? (a ^ j * 32) + i * (BLOCK_BYTES / 2) : (a ^ i * 32) + j * 1024,
                      TRANSPOSED_A);
        load_matrices(m->b[j],
                      TRANSPOSED_B ? (b ^ j * 32) + i * (BLOCK_BYTES / 2) : (b ^ i * 32) + j * 1024,
                      TRANSPOSED_B);
    }
}

static inline void multiply(float *sum, const matrices *m) {
    UNROLL_FOR(int i = 0; i < 4; i++)
        UNROLL_FOR(int j = 0; j < 8; j++)
            multiply_matrices(sum + 32 * i + 4 * j, m->a[i], m->b[j / 2] + j % 2 * 2);
}

static inline uint round_two(const float *sum) {
    return round_pair_as(RESULT == IS_F16, sum[0], sum[1]);
}

/* Rounds and stores 16 lines of a warp, 16 bytes at a time. */
static inline void store_lines(const float *sum, tile t, uint columns, global ushort *c,
                               ulong ldc) {
    const uint lane = get_local_id(0) % 32, first = t.column + lane % 4 * 8;
    UNROLL_FOR(int j = 0; j < OWN / 32; j++)
        UNROLL_FOR(int i = 0; i < 2; i++) {
            const int line = t.line + (int)(lane / 4) + 8 * i;
            const float *s = sum + 16 * j + 2 * i;
            const uint4 words = transpose_words(
                (uint4)(round_two(s), round_two(s + 4), round_two(s + 8), round_two(s + 12)));
            if (line < t.end && first + 32 * j < columns)
                *(global uint4 *)(c + line * ldc + first + 32 * j) = words;
        }
}

/* The epilogue of a warp. */
static inline void finish_tile(float *sum, tile t, epilogue e) {
    const uint warp = get_local_id(0) / 32;
    t.line += warp % 2 * 64;
    t.column += warp / 2 * OWN;
    if (BETA == 1 && t.k_size == 0)
        return; /* the old values stay */
    UNROLL for (int i = 0; i < 4; i++, t.line += 16) {
        if (t.line >= t.end || t.column >= (int)e.columns)
            return;
        if (GLU) {
            finish_gates(sum + 32 * i, t, e);
            finish_glu(sum + 32 * i, t, e);
        } else {
            finish(sum + 32 * i, t, e);
        }
        if (RESULT != IS_F32)
            store_lines(sum + 32 * i, t, e.columns, (global ushort *)e.c, e.ldc);
    }
}

/* This lane's offsets in a stage for the matrices of the first 16 K values. The four matrices of a
 * load are: of a, lines 0-7 and 8-15 with 8 K values, then with the next 8; of b, 8 columns with K
 * values 0-7 and 8-15, then the next 8 columns. */
static inline uint offset_of_a(void) {
    const uint lane = get_local_id(0) % 32, part = get_local_id(0) / 32 % 2;
    return TRANSPOSED_A ? offset_in_block(true, lane % 8 + lane / 16 * 8, part * 8 + lane / 8 % 2)
                        : offset_in_block(false, part * 64 + lane % 16, lane / 16);
}

static inline uint offset_of_b(void) {
    const uint lane = get_local_id(0) % 32, part = get_local_id(0) / 64;
    return BLOCK_BYTES +
           (TRANSPOSED_B
                ? offset_in_block(true, lane % 16, part * 8 + lane / 16)
                : offset_in_block(false, part * 64 + lane % 8 + lane / 16 * 8, lane / 8 % 2));
}

kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void nvidia_mma(
    global const uchar *a, global const uchar *b, global uchar *c, global const uint *group_ends,
    global const float *alpha, global uchar *beta_or_v, global const float *factor,
    global const uchar *bias, global int *amax, moert_nvidia_gemm_args args) {
    local __attribute__((aligned(1024))) uchar ring[STAGES * STAGE_BYTES];
    const uint lines = args.lines, columns = args.columns;
    tile t;
    uint first;
    if (!find_tile((shape){args.skip, args.groups, args.down, lines, columns, args.terms},
                   group_ends + args.first_end, &t, &first))
        return;
    const uint base = local_address(ring), at_a = base + offset_of_a(), at_b = base + offset_of_b();
    const uint gate = t.column + ROW_OF(false),
               gate_at = GLU ? column_in_v(gate, columns, false) : gate;
    const ulong up =
        GLU ? (long)(int)(column_in_v(gate, columns, true) - gate_at) * (long)args.ldb * 2 : 0;
    operand from_a = begin_operand(
        a + args.first_a * 2, args.lda * 2, TRANSPOSED_A, TRANSPOSED_A ? first : t.line,
        TRANSPOSED_A ? t.line - t.group * lines : 0, t.end - t.line, t.k_size);
    operand from_b =
        begin_operand(b + (args.first_b + t.group * args.ldg) * 2, args.ldb * 2, TRANSPOSED_B,
                      ORIENTATION == FORWARD ? gate_at - ROW_OF(false)
                      : TRANSPOSED_A         ? first
                                             : 0,
                      TRANSPOSED_B ? t.column : 0, columns - t.column, t.k_size);
    for (uint i = 0; i < STAGES; i++)
        copy_next(base + i * STAGE_BYTES, &from_a, &from_b, up);
    await_block();
    float sum[128];
    UNROLL_FOR(int i = 0; i < 128; i++)
        sum[i] = 0.0f;
    matrices even, odd;
    load_step(&even, at_a, at_b, 0);
    for (uint k = 0, stage = 0, next; k < (uint)t.k_size; k += BLOCK_K, stage = next) {
        next = stage < (STAGES - 1) * STAGE_BYTES ? stage + STAGE_BYTES : 0;
        load_step(&odd, at_a + stage, at_b + stage, 1);
        multiply(sum, &even);
        await_block();
        load_step(&even, at_a + next, at_b + next, 0);
        copy_next(base + stage, &from_a, &from_b, up);
        multiply(sum, &odd);
    }
    c += args.first_column * (RESULT == IS_F32 ? 4 : 2);
    finish_tile(sum, t, epilogue_of(alpha, beta_or_v, factor, bias, amax, c, args));
}
