/*
 * Grouped GEMM on the tensor cores of sm_90 (Hopper) of factors in MXFP8, MXFP4 or NVFP4, which are exact in bf16:
 *
 *   y[m,n] = sum_k x[m,k] w[g,n,k]     rows m of group g, both factors in blocks along k; x may be bf16
 *
 * w lies so or, TURNED, as [g,k,n], codes and scales.
 *
 * As kernels/nvidia_gemm.cl, with a step between TMA and the tensor cores. Persistent work-groups take the tiles of
 * 128 lines x 256 columns in turn:
 *
 *     warps 0-3    decode the codes of 128 rows x 64 terms of x, a row each, from a slot of a ring of SLOTS into a stage
 *                  of 64 terms of x and w in bf16, of STAGES stages
 *     warps 4-11   64 lines x 256 columns of sums per four warps, as there; and while the tensor cores multiply a stage,
 *                  the four warps decode 128 rows of w for the next: so three warps share each of the SM's schedulers
 *
 * One thread asks for codes: where those of a stage were that has become free, which have been read. Scales are read from
 * global memory, four of a row in a word, one word ahead. They lie in lines or in tiles of 128 x 4 (kernels/scales.cl),
 * TURNED in lines; k is a multiple of four scales' codes, TURNED of 64. With GLU the parts of w are 128 gates and their
 * ups, from two halves of the weight.
 *
 * Grid: compute units work-groups of 384. Local memory: ARENA bytes, the ends included. Deterministic, with the sums of
 * nvidia_gemm.cl on the decoded numbers.
 * Required: A_FORMAT (0 to 4), B_FORMAT (0 to 3, see nvidia_codes.h), TURNED (0, 1), A_SCALES, B_SCALES (0 lines,
 * 1 tiles, the groups' each beginning a new one, 2 tiles of one matrix), BETA 0, STAGES, OUTS, GROUP (as in
 * nvidia_gemm.cl), SLOTS, ARENA; and what nvidia_epilogue.h requires.
 */
#if !defined(A_FORMAT) || !defined(B_FORMAT) || !defined(A_SCALES) || !defined(B_SCALES) || !defined(STAGES) || \
    !defined(OUTS) || !defined(GROUP) || !defined(SLOTS) || !defined(TURNED)
#error "A_FORMAT, B_FORMAT, TURNED, A_SCALES, B_SCALES, STAGES, OUTS, GROUP and SLOTS must be defined"
#endif
#if BETA != 0
#error "BETA must be 0: old values would not fit in registers"
#endif
#define F16 0
#include "nvidia.h"
#include "nvidia_codes.h"
#include "nvidia_codes_turned.h"

#define LINES       128
#define COLUMNS     256
#define TERMS       64
#define ROWS        128 /* of a part */
#define SPAN        COLUMNS /* of a warp */
#define RESULTS     (GLU ? COLUMNS / 2 : COLUMNS)
#define PART_BYTES  16384 /* of bf16 */
#define STAGE_BYTES (3 * PART_BYTES)
#define PIECE_BYTES 2048
#define FIRST_PART  (A_FORMAT == PLAIN ? 1 : 0)
#define DECODER_REGISTERS  72 /* 128 times the one and 256 times the other are at most 64512 */
#define CONSUMER_REGISTERS 216
#define PARTS       (3 - FIRST_PART) /* that are codes */
/* Whether 8 terms may lie in the order in which codes of 4 bits are moved, as both factors have it. */
#define AS_MOVED    (!TURNED && A_FORMAT != PLAIN && CODE_BITS(A_FORMAT) == 4 && CODE_BITS(B_FORMAT) == 4)
#define SLOT_BYTES  (CODE_BITS(B_FORMAT) == 8 || (A_FORMAT != PLAIN && CODE_BITS(A_FORMAT) == 8) ? 8192 : 4096)

/* Offsets in the arena. */
#define SLOTS_AT (STAGES * STAGE_BYTES)
#define FACTORS_AT (SLOTS_AT + SLOTS * SLOT_BYTES)
#define OUT_AT   (FACTORS_AT + (TURNED ? 8 * FACTOR_BYTES : 0))
#define FULL_AT  (OUT_AT + 8 * OUTS * PIECE_BYTES)
#define EMPTY_AT (FULL_AT + 8 * STAGES)
#define CODES_AT (EMPTY_AT + 8 * STAGES) /* barriers of the slots */
#define TILES_AT (CODES_AT + 8 * SLOTS)
#define ENDS_AT  (TILES_AT + 80)

/* What the consumers must know of a tile, number n of this work-group at place n mod TILES; terms -1: there are no more. */
#define TILES 4
typedef struct tile {
    int terms, line, end, column; /* its first line and column in the result, the end of the group's lines */
    uint group;
} tile;

#include "nvidia_epilogue.h"

typedef struct shape {
    uint groups, lines, columns, terms;
} shape;

/* A tile of this work-group: number t of all, whose groups' begin with number `base`; of the tiles of 128 lines of all
 * groups, the group's begin with number `down`. */
typedef struct place {
    uint t, group, first, last, base, down;
    int line, column; /* within the group */
    bool more;
} place;

/* Finds tile p->t, which grows from call to call. */
static inline void locate(const shape *s, local const uint *ends, place *p)
{
    const uint across = (s->columns + RESULTS - 1) / RESULTS;
    for (p->more = false; p->group < s->groups; p->group++) {
        p->first = p->group > 0 ? ends[p->group - 1] : 0;
        p->last = ends[p->group];
        const uint down = (p->last - p->first + LINES - 1) / LINES, nth = p->t - p->base;
        if (nth < down * across) {
            const uint high = nth / (GROUP * across) * GROUP, rest = nth % (GROUP * across);
            const uint span = min(GROUP, (int)(down - high));
            p->line = (high + rest % span) * LINES;
            p->column = rest / span * RESULTS;
            p->more = true;
            return;
        }
        p->base += down * across;
        p->down += down;
    }
}

/* First row of a part of the second factor in its group. */
static inline int column_of(const shape *s, const place *p, int part)
{
    if (GLU)
        return p->column + ((part == 2) != SWAPPED ? s->columns : 0);
    return p->column + (part - 1) * ROWS;
}

#include "nvidia_codes_stream.h"

/* ---- tensor cores ---- */

/* sum += 64 lines x 64 terms of a by 64 terms x 256 columns of b. */
static inline void multiply(float *sum, ulong a, ulong b)
{
    wgmma_fence();
    UNROLL for (int i = 0; i < 4; i++)
        WGMMA(sum, a + i * 2, b + i * (TURNED ? 128 : 2), 0, TURNED);
    wgmma_commit();
}

/* Gives back what the factors of formats left out. */
static inline void lift_sums(float *sum)
{
    const float lift = LIFT(A_FORMAT) * LIFT(B_FORMAT);
    UNROLL for (int i = 0; lift != 1.0f && i < 128; i++)
        sum[i] *= lift;
}

static inline uint round_result(float low, float high)
{
    return round_pair_as(RESULT == IS_F16, low, high);
}

/* Rounds and stores 16 lines of a warp by way of OUTS pieces of local memory, `piece`, also as an address. */
static inline void store_rounded(const float *sum, local uchar *piece, uint piece_at, tile t, uint columns,
                                 global ushort *c, ulong ldc)
{
    const uint lane = get_local_id(0) % 32, word = lane % 8;
    const int line = t.line + (int)(lane / 8);
    global ushort *to = c + line * ldc + t.column + word * 8;
    UNROLL for (int i = 0; i < RESULTS / 64; i++) {
        const uint at = i % OUTS * PIECE_BYTES;
        sync_warp();
        UNROLL for (int j = 0; j < 8; j += 2) {
            const float *s = sum + i * 32 + 4 * j;
            const uint4 pairs = (uint4)(round_result(s[0], s[1]), round_result(s[2], s[3]), round_result(s[4], s[5]),
                                        round_result(s[6], s[7]));
            store_matrices(piece_at + at + lane % 16 * 128 + ((j + lane / 16) ^ word) * 16, pairs);
        }
        sync_warp();
        UNROLL for (int r = 0; r < 16; r += 4) {
            const uint row = r + lane / 8;
            const uint4 value = *(local const uint4 *)(piece + at + row * 128 + (word ^ row % 8) * 16);
            if (line + r < t.end && t.column + i * 64 + word * 8 < columns)
                *(global uint4 *)(to + r * ldc + i * 64) = value;
        }
    }
}

/* Part of the kernel however long it gets: around a call tensor cores would not run ahead. */
static inline __attribute__((always_inline))
void consume(shape s, stream d, uint base, local uchar *arena, local const uint *ends,
             epilogue e, global uchar *c, ulong ldc)
{
    const uint consumer = get_local_id(0) / 128 - 1, warp = get_local_id(0) % 128 / 32;
    const bool leader = get_local_id(0) % 128 == 0;
    const uint out = OUT_AT + (consumer * 4 + warp) * OUTS * PIECE_BYTES;
    local const tile *tiles = (local const tile *)(arena + TILES_AT);
    for (int i = 0; i < STAGES - 1; i++)
        decode(&s, false, &d, base, arena, ends);
    for (uint step = 0, n = 0;; n++) {
        await(base + FULL_AT + step % STAGES * 8, step / STAGES);
        local const tile *at = tiles + n % TILES;
        if (at->terms < 0)
            return;
        float sum[128];
        UNROLL for (int i = 0; i < 128; i++)
            sum[i] = 0.0f;
        for (int k = 0; k < s.terms; k += TERMS, step++) {
            const uint stage = step % STAGES, a = base + stage * STAGE_BYTES;
            await(base + FULL_AT + 8 * stage, step / STAGES);
            multiply(sum, matrix_at(a + consumer * (PART_BYTES / 2), 0), matrix_at(a + PART_BYTES, TURNED));
            wgmma_wait(1); /* for the block before this one */
            if (k > 0 && leader)
                arrive(base + EMPTY_AT + (step - 1) % STAGES * 8);
            decode(&s, false, &d, base, arena, ends); /* while the tensor cores work */
        }
        wgmma_wait(0);
        if (leader)
            arrive(base + EMPTY_AT + (step - 1) % STAGES * 8);
        tile t = *at;
        t.line += consumer * 64 + warp * 16;
        lift_sums(sum);
        if (GLU)
            finish_glu(sum, t, s.columns, e, c, ldc);
        else
            finish(sum, t, s.columns, e, c, ldc);
        if (RESULT != IS_F32)
            store_rounded(sum, arena + out, base + out, t, s.columns, (global ushort *)c, ldc);
    }
}

kernel __attribute__((reqd_work_group_size(384, 1, 1)))
void nvidia_codes(tensor_map a, tensor_map b, global uchar *c, ulong ldc, global const uint *group_ends, uint groups,
                  uint lines, uint columns, uint terms, global const uchar *a_scales, global const uchar *b_scales,
                  global const float *alpha, global const float *beta, global const float *factor, ulong factor_stride,
                  global const uchar *bias, global int *amax, global uchar *v, ulong ldv, float limit, float slope,
                  float offset)
{
    local __attribute__((aligned(1024))) uchar arena[1040];
    const uint base = local_address(arena), thread = get_local_id(0);
    const shape s = {groups, lines, columns, terms};
    const epilogue e = {alpha, beta, factor, factor_stride, bias, amax, v, ldv, {0, limit, slope, offset}};
    local uint *ends = (local uint *)(arena + ENDS_AT);
    if (thread == 0) {
        for (int i = 0; i < STAGES; i++) {
            begin_barrier(base + FULL_AT + 8 * i, 12 + FIRST_PART);
            begin_barrier(base + EMPTY_AT + 8 * i, 2);
        }
        for (int i = 0; i < SLOTS; i++)
            begin_barrier(base + CODES_AT + 8 * i, 1);
        fence_barriers();
    }
    for (uint g = thread; g < groups; g += 384)
        ends[g] = group_ends[g];
    barrier(CLK_LOCAL_MEM_FENCE);
    const scales of_a = {a_scales, lines, terms / SCALE_RUN(A_FORMAT)};
    const scales of_b = {b_scales, GLU ? 2 * columns : columns, TURNED ? columns : terms / SCALE_RUN(B_FORMAT)};
    if (thread < 128) {
        release_registers(DECODER_REGISTERS);
        lead(s, begin(&s, true, of_a, ends), MAP_ADDRESS(nvidia_codes, 0), MAP_ADDRESS(nvidia_codes, 1), base, arena, ends);
    } else {
        claim_registers(CONSUMER_REGISTERS);
        consume(s, begin(&s, false, of_b, ends), base, arena, ends, e, c, ldc);
    }
}
