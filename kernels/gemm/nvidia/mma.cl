/*
 * Grouped GEMM on the tensor cores of sm_80 (Ampere) and later: bf16 or f16 operands, float32 sums,
 * 16-bit or f32 results.
 *
 *   FORWARD   y[m,n] = sum_k x[m,k] w[g,n,k]     rows m of group g
 *   DGRAD     x[m,k] = sum_n y[m,n] w[g,n,k]
 *   WGRAD     w[g,n,k] = sum_m y[m,n] x[m,k]     over the rows of group g; 0 without rows
 *
 * epilogue.h says what may follow: operands, bias, the old values, a GLU (of FORWARD).
 *
 * The result has lines (m, m, n) and columns (n, k, k); the first factor, a, has the lines, the
 * second, b, the columns, each in rows with columns at stride 1; a factor is transposed if its terms
 * lie along the rows. A work-group of 4 warps makes a tile of 128 lines x 128 columns, 32 terms at
 * a time; two of them share an SM, so that one multiplies while the other begins or ends:
 *
 *               columns   0-63   64-127
 *     lines  0-63        warp 0  warp 2   each 64 x 64 sums in registers, in 4 x 8 pieces of 16 x 8
 *     lines 64-127       warp 1  warp 3      by mma.m16n8k16
 *
 * All threads copy, 16 bytes at a time, the blocks of both operands (8 KiB each) into a ring of 3
 * stages, each once it is read. A warp loads the matrices of 16 terms while it multiplies those of
 * the 16 before. Rows of 64 bytes (transposed: of 256) lie with the place of their 16-byte pieces
 * exchanged, so that the 8 rows of a matrix meet in no bank.
 *
 * With GLU the 64 columns of a warp are 32 gates and their 32 ups, wherever the weight has them,
 * and give 32 columns of h.
 *
 * What lies past the last line, column or term of a group is not read; zeros take its place. A
 * work-group finds its tile from the ends: the first row of group g divided by 128, plus g, is a
 * number of tiles that never falls short. The ends in use begin at number `first_end`: where all
 * groups have one weight, the last end alone makes them one group. Groups before number `skip` take
 * no part.
 *
 * Columns must be multiples of 8 numbers, as must strides and addresses. Grid: work-groups of 128,
 * one for each of `down` tiles (M / 128 + groups, of WGRAD those of the lines for each group) by
 * those of the columns. Local memory: 48 KiB. Deterministic: terms are summed in blocks of 16 from
 * the group's first on, in an order within that is the hardware's, the same in every run and at
 * every place of a tile, and no tile depends on another.
 * Required: ORIENTATION (0 to 2 as above), F16 (0 bf16, 1 f16), GROUP (tiles in a column of tiles
 * that are taken before the next column); and what epilogue.h requires.
 */
#if !defined(ORIENTATION) || !defined(F16) || !defined(GROUP)
#error "ORIENTATION, F16 and GROUP must be defined"
#endif
#include "lib/nvidia.h"
#include "gemm/nvidia/mma.h"

#define FORWARD 0
#define DGRAD   1
#define WGRAD   2

#define THREADS 128
#define LINES   128
#define COLUMNS 128
#define TERMS   32
#define STAGES  3
#define SPAN    64                            /* columns of a warp */
#define RESULTS (GLU ? COLUMNS / 2 : COLUMNS) /* columns of the result in a tile */
#define OWN     (GLU ? SPAN / 2 : SPAN)       /* ... of a warp */

#define TRANSPOSED_A (ORIENTATION == WGRAD)
#define TRANSPOSED_B (ORIENTATION != FORWARD)

#define BLOCK_BYTES (LINES * TERMS * 2) /* of a factor */
#define STAGE_BYTES (2 * BLOCK_BYTES)

/* What follows the sums must know of a tile. */
typedef struct tile {
    int terms, line, end,
        column; /* its first line and column in the result, the end of the group's lines */
    uint group;
} tile;

#include "gemm/nvidia/epilogue.h"

typedef struct shape {
    uint skip, groups, down, lines, columns,
        terms; /* lines only in WGRAD, terms only in the others */
} shape;

/* Where this thread's pieces of the next block of a factor are, from the first on, and how many
 * lines (or columns) and terms of the factor there are from the block's first on. Rows lie `next`
 * bytes apart. */
typedef struct factor {
    global const uchar *at;
    ulong next;
    int lines, terms;
} factor;

/* ---- tiles ---- */

/* The group of a tile of rows. */
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

/* This work-group's tile, and the first row of its group; false if there is none. */
static inline bool find_tile(shape s, global const uint *ends, tile *t, uint *first) {
    const uint across = (s.columns + RESULTS - 1) / RESULTS, n = get_group_id(0);
    const uint high = n / (GROUP * across) * GROUP, rest = n % (GROUP * across),
               span = min((uint)GROUP, s.down - high);
    const uint begin = s.skip > 0 ? ends[s.skip - 1] / LINES + s.skip
                                  : 0; /* of the tiles of groups [skip, groups) */
    const uint row = begin + high + rest % span, each = (s.lines + LINES - 1) / LINES;
    const uint group = ORIENTATION == WGRAD ? row / each : find_group(row, ends, s.skip, s.groups);
    *first = group > 0 ? ends[group - 1] : 0;
    t->group = group;
    t->column = rest / span * RESULTS;
    t->terms = ORIENTATION == WGRAD ? ends[group] - *first : s.terms;
    t->line = ORIENTATION == WGRAD ? group * s.lines + row % each * LINES
                                   : *first + (row - *first / LINES - group) * LINES;
    t->end = ORIENTATION == WGRAD ? (group + 1) * s.lines : ends[group];
    return t->line < t->end;
}

/* ---- copies ---- */

/* A thread's piece of a block: one of 16 bytes in each of several rows. */
#define ACROSS(transposed)  ((transposed) ? LINES / 8 : TERMS / 8) /* pieces of a row */
#define ROW_OF(transposed)  (get_local_id(0) / ACROSS(transposed))
#define PIECE(transposed)   (get_local_id(0) % ACROSS(transposed))
#define ROWS_ON(transposed) (THREADS / ACROSS(transposed)) /* from one of them to the next */

/* The byte at which a block has a piece of a row. */
static inline uint place_in_block(bool transposed, uint row, uint piece) {
    return (row * ACROSS(transposed) + (piece ^ (transposed ? row % 8 : row / 2 % 4))) * 16;
}

/* The first block of a factor, from a row and a column of it on. */
static inline factor begin_operand(global const uchar *p, ulong next, bool transposed, uint row,
                                   uint column, int lines, int terms) {
    return (factor){p + (row + ROW_OF(transposed)) * next + column * 2 + PIECE(transposed) * 16,
                    next, lines, terms};
}

/* With GLU: 32 gates, their 32 ups, the next 32 gates and their ups; `up` bytes are from a gate to
 * its up. */
static inline ulong gate_or_up(int i, ulong up, ulong next) {
    return i % 2 * up + i / 2 * (RUN == 0 ? 32 : 64) * next;
}

/* Asks for this thread's pieces of a block, and goes on to the next. */
static inline void copy_block(uint to, factor *f, bool transposed, bool gated, ulong up) {
    const int row = ROW_OF(transposed), at = PIECE(transposed) * 8;
    to += place_in_block(transposed, row, PIECE(transposed));
    UNROLL_FOR(int i = 0; i < BLOCK_BYTES / 16 / THREADS; i++) {
        const int line = gated ? row + i / 2 * 32 : row + i * ROWS_ON(transposed);
        const bool used =
            transposed ? line < f->terms && at < f->lines : line < f->lines && at < f->terms;
        copy_16(to + i * THREADS * 16,
                f->at + (gated ? gate_or_up(i, up, f->next) : i * ROWS_ON(transposed) * f->next),
                used);
    }
    f->at += transposed ? TERMS * f->next : TERMS * 2;
    f->terms -= TERMS;
}

/* Asks for the next block of both, if there is one, into a stage that nobody reads. */
static inline void fetch(uint stage, factor *a, factor *b, ulong up) {
    if (a->terms > 0) {
        copy_block(stage, a, TRANSPOSED_A, false, 0);
        copy_block(stage + BLOCK_BYTES, b, TRANSPOSED_B, GLU, up);
    }
    end_copies();
}

/* The oldest block that nobody has waited for is there, and the one before it is no longer read. */
static inline void await_block(void) {
    await_copies(STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* ---- products ---- */

/* What a warp multiplies at a time: 64 lines and 64 columns of 16 terms. */
typedef struct matrices {
    uint a[4][4], b[4][4];
} matrices;

/* 16 terms of a block from its term 16 i on, from this lane's places in it. */
static inline void load_terms(matrices *m, uint a, uint b, uint i) {
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

/* What follows the sums of a warp. */
static inline void finish_tile(float *sum, tile t, uint columns, epilogue e, global uchar *c,
                               ulong ldc) {
    const uint warp = get_local_id(0) / 32;
    t.line += warp % 2 * 64;
    t.column += warp / 2 * OWN;
    if (BETA == 1 && t.terms == 0)
        return; /* the old values stay */
    UNROLL for (int i = 0; i < 4; i++, t.line += 16) {
        if (t.line >= t.end || t.column >= (int)columns)
            return;
        if (GLU) {
            finish_gates(sum + 32 * i, t, columns, e);
            finish_glu(sum + 32 * i, t, columns, e, c, ldc);
        } else {
            finish(sum + 32 * i, t, columns, e, c, ldc);
        }
        if (RESULT != IS_F32)
            store_lines(sum + 32 * i, t, columns, (global ushort *)c, ldc);
    }
}

/* Where this lane's matrices of the first 16 terms are in a stage. Of a load, 0 to 3 are: of a
 * lines 0-7 and 8-15 with 8 terms, then with the next 8; of b terms 0-7 and 8-15 with 8 columns,
 * then with the next 8. */
static inline uint places_of_a(void) {
    const uint lane = get_local_id(0) % 32, part = get_local_id(0) / 32 % 2;
    return TRANSPOSED_A ? place_in_block(true, lane % 8 + lane / 16 * 8, part * 8 + lane / 8 % 2)
                        : place_in_block(false, part * 64 + lane % 16, lane / 16);
}

static inline uint places_of_b(void) {
    const uint lane = get_local_id(0) % 32, part = get_local_id(0) / 64;
    return BLOCK_BYTES + (TRANSPOSED_B ? place_in_block(true, lane % 16, part * 8 + lane / 16)
                                       : place_in_block(false, part * 64 + lane % 8 + lane / 16 * 8,
                                                        lane / 8 % 2));
}

kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void nvidia_mma(
    global const uchar *a, global const uchar *b, global uchar *c, global const uint *group_ends,
    global const float *alpha, global const float *beta, global const float *operands,
    global const uchar *bias, global int *amax, global uchar *v, moert_nvidia_gemm_args args) {
    local __attribute__((aligned(1024))) uchar ring[STAGES * STAGE_BYTES];
    const epilogue e = epilogue_of(alpha, beta, operands, bias, amax, v, args);
    const uint lines = args.lines, columns = args.columns;
    tile t;
    uint first;
    if (!find_tile((shape){args.skip, args.groups, args.down, lines, columns, args.terms},
                   group_ends + args.first_end, &t, &first))
        return;
    const uint base = local_address(ring), at_a = base + places_of_a(), at_b = base + places_of_b();
    const uint gate = t.column + ROW_OF(false), place = GLU ? place_of(gate, columns, false) : gate;
    const ulong up =
        GLU ? (long)(int)(place_of(gate, columns, true) - place) * (long)args.ldb * 2 : 0;
    factor from_a = begin_operand(
        a + args.first_a * 2, args.lda * 2, TRANSPOSED_A, TRANSPOSED_A ? first : t.line,
        TRANSPOSED_A ? t.line - t.group * lines : 0, t.end - t.line, t.terms);
    factor from_b =
        begin_operand(b + (args.first_b + t.group * args.ldg) * 2, args.ldb * 2, TRANSPOSED_B,
                      ORIENTATION == FORWARD ? place - ROW_OF(false)
                      : TRANSPOSED_A         ? first
                                             : 0,
                      TRANSPOSED_B ? t.column : 0, columns - t.column, t.terms);
    for (uint i = 0; i < STAGES; i++)
        fetch(base + i * STAGE_BYTES, &from_a, &from_b, up);
    await_block();
    float sum[128];
    UNROLL_FOR(int i = 0; i < 128; i++)
        sum[i] = 0.0f;
    matrices even, odd;
    load_terms(&even, at_a, at_b, 0);
    for (uint k = 0, stage = 0, next; k < (uint)t.terms; k += TERMS, stage = next) {
        next = stage < (STAGES - 1) * STAGE_BYTES ? stage + STAGE_BYTES : 0;
        load_terms(&odd, at_a + stage, at_b + stage, 1);
        multiply(sum, &even);
        await_block();
        load_terms(&even, at_a + next, at_b + next, 0);
        fetch(base + stage, &from_a, &from_b, up);
        multiply(sum, &odd);
    }
    finish_tile(sum, t, columns, e, c + args.first_column * (RESULT == IS_F32 ? 4 : 2), args.ldc);
}
