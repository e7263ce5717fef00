/*
 * Grouped GEMM on the tensor cores of sm_90 (Hopper): bf16 or f16 factors, float32 sums, a result of 16 bits or float32.
 *
 *   FORWARD   y[m,n] = sum_k x[m,k] w[g,n,k]     rows m of group g
 *   DGRAD     x[m,k] = sum_n y[m,n] w[g,n,k]
 *   WGRAD     w[g,n,k] = sum_m y[m,n] x[m,k]     over the rows of group g; 0 without rows
 *
 * nvidia_epilogue.h says what may follow: factors, bias, the old values, a GLU (of FORWARD).
 *
 * The result has lines (m, m, n) and columns (n, k, k); the first factor has the lines, the second the columns. All
 * factors are tensors [groups or 1, rows, columns] of TMA maps, columns at stride 1; a factor is turned if its terms
 * lie along the rows. Persistent work-groups take the tiles of 128 lines x 256 columns in turn, which they find from the
 * ends alone:
 *
 *     warps 0-3    one thread asks for blocks of 64 terms of a tile (first factor 16 KiB, second 32 KiB) into a ring of
 *                  STAGES stages, and says what tile it is: `tiles`
 *     warps 4-7    lines 0-63:   64 x 256 sums in registers by wgmma m64n256k16, then rounded and, by way of OUTS pieces
 *     warps 8-11   lines 64-127  of 16 x 64 results per warp in local memory, stored in 16-byte words; float32 as they lie
 *
 * With GLU the 256 columns are 128 gates and their 128 ups, from two places of the weight, and give 128 columns of h.
 *
 * Terms past the end are 0: TMA gives zeros past a tensor, and WGRAD clears the rows of the next group in both factors.
 * Lines past the end of a group are computed from whatever is there and not stored. The ends in use begin at number
 * `first_end`: where all groups have one weight, the last end alone makes them one group.
 *
 * Columns must be multiples of 8 numbers, as must strides and addresses. Grid: compute units work-groups of 384.
 * Local memory: ARENA bytes (up to 227 KiB, which src/device/ptx.c puts in the place of 1040), the ends included.
 * Deterministic: the order of a sum is the hardware's, the same in every run and at every place of a tile, and no tile
 * depends on another.
 * Required: ORIENTATION (0 to 2 as above), F16 (0 bf16, 1 f16), STAGES, OUTS, GROUP (tiles in a column of tiles that are
 * taken before the next column), ARENA; and what nvidia_epilogue.h requires.
 */
#if !defined(ORIENTATION) || !defined(F16) || !defined(STAGES) || !defined(OUTS) || !defined(GROUP)
#error "ORIENTATION, F16, STAGES, OUTS and GROUP must be defined"
#endif
#include "nvidia.h"

#define FORWARD 0
#define DGRAD   1
#define WGRAD   2

#define LINES     128
#define COLUMNS   256
#define TERMS     64
#define RESULTS   (GLU ? COLUMNS / 2 : COLUMNS) /* columns of the result in a tile */
#define BOX_BYTES 8192 /* 64 rows of 128 bytes */

#if ORIENTATION == FORWARD
#define TURNED_A 0
#define TURNED_B 0
#elif ORIENTATION == DGRAD
#define TURNED_A 0
#define TURNED_B 1
#else
#define TURNED_A 1
#define TURNED_B 1
#endif

#define A_BYTES     (LINES * TERMS * 2)
#define STAGE_BYTES ((LINES + COLUMNS) * TERMS * 2)
#define PIECE_BYTES 2048

/* Offsets in the arena. */
#define OUT_AT   (STAGES * STAGE_BYTES)
#define FULL_AT  (OUT_AT + 8 * OUTS * PIECE_BYTES)
#define EMPTY_AT (FULL_AT + 8 * STAGES)
#define TILES_AT (FULL_AT + 128)
#define ENDS_AT  (TILES_AT + 128)

/* What the consumers must know of a tile; terms -1: there are no more. */
typedef struct tile {
    int terms, line, end, column; /* its first line and column in the result, the end of the group's lines */
    uint group;
} tile;

#include "nvidia_epilogue.h"

/* Where the walk over the groups is: tiles of the group from `base` on, lines or rows from `first` to `last`. */
typedef struct walk {
    uint group, first, last, base;
} walk;

typedef struct shape {
    uint groups, lines, columns, terms; /* lines only in WGRAD, terms only in the others */
} shape;

static inline uint tiles_down(const shape *s, const walk *w)
{
    return ((ORIENTATION == WGRAD ? s->lines : w->last - w->first) + LINES - 1) / LINES;
}

/* Finds the group of tile t, which grows from call to call; false past the last one. */
static inline bool find_group(const shape *s, local const uint *ends, uint t, walk *w)
{
    const uint across = (s->columns + RESULTS - 1) / RESULTS;
    for (; w->group < s->groups; w->group++) {
        w->first = w->group > 0 ? ends[w->group - 1] : 0;
        w->last = ends[w->group];
        const uint count = tiles_down(s, w) * across;
        if (t - w->base < count)
            return true;
        w->base += count;
    }
    return false;
}

/* Asks for the blocks of all tiles of this work-group, one after the other, as stages become free. */
static inline void produce(shape s, ulong map_a, ulong map_b, uint base, local tile *tiles, local const uint *ends)
{
    const uint across = (s.columns + RESULTS - 1) / RESULTS;
    walk w = {0, 0, 0, 0};
    uint step = 0;
    for (uint t = get_group_id(0);; t += get_num_groups(0)) {
        const bool more = find_group(&s, ends, t, &w);
        const uint down = tiles_down(&s, &w), nth = t - w.base;
        const uint high = nth / (GROUP * across) * GROUP, rest = nth % (GROUP * across), span = min(GROUP, (int)(down - high));
        const int column = rest / span * RESULTS, line = (high + rest % span) * LINES;
        const int terms = ORIENTATION == WGRAD ? w.last - w.first : s.terms, steps = (terms + TERMS - 1) / TERMS;
        for (int k = 0; k < max(steps, 1); k++, step++) {
            const uint stage = step % STAGES, full = base + FULL_AT + 8 * stage, a = base + stage * STAGE_BYTES;
            if (step >= STAGES)
                await(base + EMPTY_AT + 8 * stage, step / STAGES - 1);
            if (!more) {
                tiles[stage].terms = -1;
                arrive(full);
                return;
            }
            if (k == 0)
                tiles[stage] = ORIENTATION == WGRAD
                                   ? (tile){terms, w.group * s.lines + line, (w.group + 1) * s.lines, column, w.group}
                                   : (tile){terms, w.first + line, w.last, column, w.group};
            if (steps == 0) {
                arrive(full);
                continue;
            }
            expect(full, STAGE_BYTES);
            const int term = k * TERMS, row = w.first;
#if TURNED_A
            for (int i = 0; i < LINES / 64; i++)
                load_box(a + i * BOX_BYTES, map_a, line + 64 * i, row + term, 0, full);
#else
            load_box(a, map_a, term, row + line, 0, full);
#endif
#if GLU
            for (int i = 0; i < 2; i++)
                load_gated_box(a + A_BYTES + i * (A_BYTES), map_b, term, RUN == 0 ? column : 0, i != SWAPPED,
                               RUN == 0 ? 0 : column / RUN, w.group, full);
#elif TURNED_B
            for (int i = 0; i < COLUMNS / 64; i++)
                load_box(a + A_BYTES + i * BOX_BYTES, map_b, column + 64 * i, ORIENTATION == WGRAD ? row + term : term,
                         ORIENTATION == WGRAD ? 0 : w.group, full);
#else
            load_box(a + A_BYTES, map_b, term, column, w.group, full);
#endif
        }
    }
}

/* Clears the rows from `terms` on of a stage's turned boxes, three per consumer. */
static inline void clear_rows(local uchar *stage, uint terms, uint consumer)
{
    for (uint box = consumer * 3; box < consumer * 3 + 3; box++)
        for (uint at = terms * 128 + get_local_id(0) % 128 * 16; at < BOX_BYTES; at += 128 * 16)
            *(local uint4 *)(stage + box * BOX_BYTES + at) = (uint4)(0);
    fence_tensor();
    barrier_of(3, 256);
}

/* sum += 64 lines x 64 terms of a by 64 terms x 256 columns of b. */
static inline void multiply(float *sum, ulong a, ulong b)
{
    const uint next_a = TURNED_A ? 128 : 2, next_b = TURNED_B ? 128 : 2; /* 16 terms, in 16-byte units */
    wgmma_fence();
    UNROLL for (int i = 0; i < 4; i++)
        WGMMA(sum, a + i * next_a, b + i * next_b, TURNED_A, TURNED_B);
    wgmma_commit();
}

static inline uint round_result(float low, float high)
{
    return round_pair_as(RESULT == IS_F16, low, high);
}

/* Rounds and stores 16 lines of a warp. `piece`: local memory for OUTS pieces, also as an address. */
static inline void store_lines(const float *sum, local uchar *piece, uint piece_at, tile t, uint columns, global ushort *c,
                               ulong ldc)
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
void consume(shape s, uint base, local uchar *arena, epilogue e, global uchar *c, ulong ldc)
{
    const uint consumer = get_local_id(0) / 128 - 1, warp = get_local_id(0) % 128 / 32;
    const bool leader = get_local_id(0) % 128 == 0;
    const uint out = OUT_AT + (consumer * 4 + warp) * OUTS * PIECE_BYTES;
    local const tile *tiles = (local const tile *)(arena + TILES_AT);
    for (uint step = 0;;) {
        await(base + FULL_AT + step % STAGES * 8, step / STAGES);
        tile t = tiles[step % STAGES];
        if (t.terms < 0)
            return;
        t.line += consumer * 64;
        if (BETA != 0 && t.terms > 0)
            prefetch_old(t, s.columns, c, ldc);
        float sum[128];
        UNROLL for (int i = 0; i < 128; i++)
            sum[i] = 0.0f;
        for (int k = 0; k < t.terms; k += TERMS, step++) {
            const uint stage = step % STAGES, a = base + stage * STAGE_BYTES;
            await(base + FULL_AT + 8 * stage, step / STAGES);
            if (ORIENTATION == WGRAD && t.terms - k < TERMS)
                clear_rows(arena + stage * STAGE_BYTES, t.terms - k, consumer);
            multiply(sum, matrix_at(a + consumer * BOX_BYTES, TURNED_A), matrix_at(a + A_BYTES, TURNED_B));
            wgmma_wait(1); /* for the block before this one */
            if (k > 0 && leader)
                arrive(base + EMPTY_AT + (step - 1) % STAGES * 8);
        }
        wgmma_wait(0);
        if (t.terms == 0) {
            barrier_of(1 + consumer, 128); /* all have read the tile */
            step++;
        }
        if (leader)
            arrive(base + EMPTY_AT + (step - 1) % STAGES * 8);
        if (BETA == 1 && t.terms == 0)
            continue; /* the old values stay */
        t.line += warp * 16;
        if (GLU)
            finish_glu(sum, t, s.columns, e, c, ldc);
        else
            finish(sum, t, s.columns, e, c, ldc);
        if (RESULT != IS_F32)
            store_lines(sum, arena + out, base + out, t, s.columns, (global ushort *)c, ldc);
    }
}

kernel __attribute__((reqd_work_group_size(384, 1, 1)))
void nvidia_gemm(tensor_map a, tensor_map b, global uchar *c, ulong ldc, ulong first_column, global const uint *group_ends,
                 uint first_end, uint groups, uint lines, uint columns, uint terms, global const float *alpha,
                 global const float *beta, global const float *factor, ulong factor_stride, global const uchar *bias,
                 global int *amax, global uchar *v, ulong ldv, float limit, float slope, float offset)
{
    local __attribute__((aligned(1024))) uchar arena[1040];
    const uint base = local_address(arena), thread = get_local_id(0);
    const shape s = {groups, lines, columns, terms};
    const epilogue e = {alpha, beta, factor, factor_stride, bias, amax, v, ldv, {0, limit, slope, offset}};
    local uint *ends = (local uint *)(arena + ENDS_AT);
    if (thread == 0) {
        for (int i = 0; i < STAGES; i++) {
            begin_barrier(base + FULL_AT + 8 * i, 1);
            begin_barrier(base + EMPTY_AT + 8 * i, 2);
        }
        fence_barriers();
    }
    for (uint g = thread; g < groups; g += 384)
        ends[g] = group_ends[first_end + g];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (thread < 128) {
        release_registers(40);
        if (thread == 0)
            produce(s, MAP_ADDRESS(nvidia_gemm, 0), MAP_ADDRESS(nvidia_gemm, 1), base, (local tile *)(arena + TILES_AT), ends);
    } else {
        claim_registers(232);
        consume(s, base, arena, e, c + first_column * (RESULT == IS_F32 ? 4 : 2), ldc);
    }
}
