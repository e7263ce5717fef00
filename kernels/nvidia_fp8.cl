/*
 * Grouped GEMM on the tensor cores of sm_90 (Hopper): 8-bit factors, E4M3 or E5M2, whose terms are contiguous.
 *
 *   c[m,j] = alpha[g] sum_b s[m,b] t[g,b,j/128] (sum_i a[m,i] b[g,j,i])     rows m of group g, terms i of block b
 *
 * Blocks are of 128 terms. The tensor cores add up a block, to about 14 bits of its largest product; blocks are added in
 * float32, times both scales (1 unless SCALED), as DeepGEMM does. Both factors are tensors [groups or 1, rows, terms] of
 * TMA maps. Persistent work-groups take the tiles of 128 lines x COLUMNS columns in turn, which they find from the ends
 * alone:
 *
 *     warps 0-3    one thread asks for blocks of a tile (first factor 16 KiB, second 128 COLUMNS bytes) into a ring of
 *                  STAGES stages, and says what tile it is: `tiles`
 *     warps 4-7    lines 0-63:   a block's 64 x 128 sums by wgmma m64n128k32, which join 64 x COLUMNS sums, all in
 *     warps 8-11   lines 64-127  registers; while one consumer adds, the tensor cores work for the other
 *
 * Terms past the end are 0: TMA gives zeros past a tensor. Lines past the end of a group are computed from whatever is
 * there and not stored. s[m,b] lies at s + m * s_line + b, t at t + g * t_group + b * t_block + (j / 128) * t_column.
 *
 * Rows of the factors must be multiples of 16 bytes, columns and ldc multiples of 8 numbers. Grid: compute units
 * work-groups of 384. Local memory: ARENA bytes (up to 227 KiB, which src/device/ptx.c puts in the place of 1040).
 * Deterministic: the order of a sum is the hardware's, the same in every run, and no tile depends on another.
 * Required: SCALED (0, 1), ALPHA (0, 1: alpha is 1), E5M2 (0, 1), F32 (result: 0 bf16, 1 float32), COLUMNS (128, 256),
 * STAGES, OUTS (pieces of 16 x 64 results of a warp, in a bf16 result), GROUP (tiles in a column of tiles that are taken
 * before the next column), ARENA.
 */
#if !defined(SCALED) || !defined(ALPHA) || !defined(E5M2) || !defined(F32) || !defined(COLUMNS) || !defined(STAGES) || \
    !defined(OUTS) || !defined(GROUP)
#error "SCALED, ALPHA, E5M2, F32, COLUMNS, STAGES, OUTS and GROUP must be defined"
#endif
#define F16 0
#include "nvidia.h"

#if E5M2
#define FACTOR "e5m2"
#else
#define FACTOR "e4m3"
#endif
#if F32
typedef float result;
#else
typedef ushort result;
#endif

#define LINES       128
#define TERMS       128
#define WIDTH       128 /* columns of a wgmma */
#define PARTS       (COLUMNS / WIDTH)
#define STEP        32 /* terms of a wgmma */
#define A_BYTES     (LINES * TERMS)
#define STAGE_BYTES ((LINES + COLUMNS) * TERMS)
#define PIECE_BYTES 2048
#define RIGHT       (WGRAD ? COLUMNS : PARTS) /* scales of a block of the second factor */
#define SCALES      (LINES + (WGRAD ? COLUMNS : 4))
#define SHARE       ((LINES + RIGHT + 95) / 96) /* of a work-item that brings scales */

/* 128 times the one and 256 times the other are at most 65536. */
#if !HELD
#define PRODUCER_REGISTERS 64
#define CONSUMER_REGISTERS 216
#elif F32 || WGRAD
#define PRODUCER_REGISTERS 48
#define CONSUMER_REGISTERS 224
#else
#define PRODUCER_REGISTERS 40
#define CONSUMER_REGISTERS 232
#endif

/* Offsets in the arena. */
#define OUT_AT   (STAGES * STAGE_BYTES)
#define FULL_AT  (OUT_AT + 8 * OUTS * PIECE_BYTES)
#define EMPTY_AT (FULL_AT + 8 * STAGES)
#define TILES_AT (FULL_AT + 128)
#define SCALES_AT (TILES_AT + 32 * STAGES)
#define ENDS_AT   (SCALES_AT + 4 * SCALES * STAGES)

/* What the consumers must know of a tile; group -1: there are no more. */
typedef struct tile {
    int group, line, end, column; /* its first line and column, the end of the group's lines; lines of its result */
    uint terms;
} tile;

/* Where the walk over the groups is: tiles of the group from `base` on, rows from `first` to `last`, blocks of rows. */
typedef struct walk {
    uint group, first, last, base, block;
} walk;

typedef struct shape {
    uint groups, lines, columns, terms; /* lines of all groups, of WGRAD of each */
} shape;

/* Scales: where they lie, as above. */
typedef struct scales {
    global const float *s, *t, *alpha;
    uint s_line, t_group, t_block, t_column;
} scales;

static inline uint blocks_of(uint terms)
{
    return (terms + TERMS - 1) / TERMS;
}

static inline uint tiles_down(const shape *s, const walk *w)
{
    return ((WGRAD ? s->lines : w->last - w->first) + LINES - 1) / LINES;
}

/* Finds the group of tile n, which grows from call to call; false past the last one. */
static inline bool find_group(const shape *s, local const uint *ends, uint n, walk *w)
{
    const uint across = (s->columns + COLUMNS - 1) / COLUMNS;
    for (; w->group < s->groups; w->group++) {
        w->first = w->group > 0 ? ends[w->group - 1] : 0;
        w->last = ends[w->group];
        const uint count = tiles_down(s, w) * across;
        if (n - w->base < count)
            return true;
        w->base += count;
        w->block += blocks_of(w->last - w->first);
    }
    return false;
}

/* Where a block of terms is: of the tile that begins at (line, column) of the group at which the walk is. */
typedef struct place {
    uint line, column, block;
} place;

/* The first work-item asks for both factors of a block. */
static inline void bring_factors(const walk *w, place at, ulong map_a, ulong map_b, uint stage, uint full)
{
    const uint term = (WGRAD ? w->first : 0) + at.block * TERMS;
    expect(full, STAGE_BYTES);
    load_box(stage, map_a, term, WGRAD ? at.line : w->first + at.line, 0, full);
    load_box(stage + LINES * TERMS, map_b, term, at.column, WGRAD ? 0 : w->group, full);
}

/* Scale j of a block: of its lines, then of its columns; those past the end are the last ones. */
static inline float load_scale(const shape *s, const scales *of, const walk *w, place at, uint j)
{
    const uint block = WGRAD ? min(w->block + at.block, of->s_line - 1) : at.block, unit = WGRAD ? 1 : WIDTH;
    if (j < LINES)
        return of->s[min((WGRAD ? at.line : w->first + at.line) + j, s->lines - 1) * of->s_line + block];
    return of->t[w->group * of->t_group + block * of->t_block +
                 min(at.column / unit + j - LINES, (s->columns - 1) / unit) * of->t_column];
}

/*
 * Brings the blocks of all tiles of this work-group, one after the other, as stages become free: work-item 0 asks for the
 * factors and says what tile it is; warps 1 to 3 bring the scales, which they have asked for before.
 */
static inline void produce(shape s, const scales *of, ulong map_a, ulong map_b, uint base, local uchar *arena)
{
    const uint across = (s.columns + COLUMNS - 1) / COLUMNS;
    const bool brings_scales = get_local_id(0) >= 32;
    local const uint *ends = (local const uint *)(arena + ENDS_AT);
    walk w = {0, 0, 0, 0, 0};
    uint step = 0;
    for (uint n = get_group_id(0);; n += get_num_groups(0)) {
        const bool more = find_group(&s, ends, n, &w);
        const uint down = tiles_down(&s, &w), nth = n - w.base;
        const uint high = nth / (GROUP * across) * GROUP, rest = nth % (GROUP * across), span = min(GROUP, (int)(down - high));
        place at = {(high + rest % span) * LINES, rest / span * COLUMNS, 0};
        const uint terms = WGRAD ? w.last - w.first : s.terms, blocks = more ? blocks_of(terms) : 0;
        for (; at.block < max(blocks, 1u); at.block++, step++) {
            const uint stage = step % STAGES, full = base + FULL_AT + 8 * stage, empty = base + EMPTY_AT + 8 * stage;
            float own[SHARE];
            if (SCALED && brings_scales && blocks > 0)
                UNROLL for (uint i = 0; i < SHARE; i++)
                    own[i] = load_scale(&s, of, &w, at, get_local_id(0) - 32 + 96 * i);
            if (step >= STAGES)
                await(empty, step / STAGES - 1);
            if (SCALED && brings_scales) {
                local float *to = (local float *)(arena + SCALES_AT) + stage * SCALES + get_local_id(0) - 32;
                UNROLL for (uint i = 0; i < SHARE; i++)
                    if (blocks > 0 && get_local_id(0) - 32 + 96 * i < LINES + RIGHT)
                        to[96 * i] = own[i];
                sync_warp();
                if (get_local_id(0) % 32 == 0)
                    arrive(full);
                continue;
            }
            if (at.block == 0)
                *(local tile *)(arena + TILES_AT + 32 * stage) =
                    (tile){more ? (int)w.group : -1, at.line + (WGRAD ? w.group * s.lines : w.first),
                           WGRAD ? (w.group + 1) * s.lines : w.last, at.column, terms};
            if (blocks > 0)
                bring_factors(&w, at, map_a, map_b, base + stage * STAGE_BYTES, full);
            else
                arrive(full);
        }
        if (!more)
            return;
    }
}

#if WGRAD
/* Clears the terms from `terms` on in a stage's lines and columns, whose words of 16 bytes are swizzled. */
static inline void clear_terms(uint stage, uint terms)
{
    for (uint row = get_local_id(0) - 128; row < LINES + COLUMNS; row += 256)
        for (uint i = terms / 4; i < TERMS / 4; i++) {
            const uint at = stage + row * TERMS + (i / 4 ^ row % 8) * 16 + i % 4 * 4;
            store_word(at, i == terms / 4 ? load_word(at) & (1u << terms % 4 * 8) - 1 : 0);
        }
    fence_tensor();
    barrier_of(3, 256);
}
#endif

#if HELD
/* The words of 64 lines x 128 terms of a that a work-item holds. */
static inline void hold(uint4 *held, uint a)
{
    const uint lane = get_local_id(0) % 32, row = get_local_id(0) % 128 / 32 * 16 + lane % 16;
    UNROLL for (uint i = 0; i < 4; i++)
        held[i] = load_matrices(a + row * 128 + (i * 2 + lane / 16 ^ row % 8) * 16);
}

static inline void multiply(float *part, const uint4 *held, ulong b)
{
    const uint next = STEP / 16; /* 16-byte units */
    wgmma_fence();
    WGMMA_HELD(part, held[0], b, "=f", 0, FACTOR);
    WGMMA_HELD(part, held[1], b + next, "+f", 1, FACTOR);
    WGMMA_HELD(part, held[2], b + 2 * next, "+f", 1, FACTOR);
    WGMMA_HELD(part, held[3], b + 3 * next, "+f", 1, FACTOR);
    wgmma_commit();
}
#else
/* part[64,128] = 64 lines x 128 terms of a by 128 terms x 128 columns of b. */
static inline void multiply(float *part, ulong a, ulong b)
{
    const uint next = STEP / 16; /* 16-byte units */
    wgmma_fence();
    WGMMA_BYTES(part, a, b, "=f", 0, FACTOR);
    WGMMA_BYTES(part, a + next, b + next, "+f", 1, FACTOR);
    WGMMA_BYTES(part, a + 2 * next, b + 2 * next, "+f", 1, FACTOR);
    WGMMA_BYTES(part, a + 3 * next, b + 3 * next, "+f", 1, FACTOR);
    wgmma_commit();
}

#endif

/* sum[64,128] += part[64,128] times the scales: of this work-item's lines, which are 8 apart, and, in WGRAD, of columns. */
static inline void join(float *sum, const float *part, float2 lines, local const float *columns)
{
#if WGRAD
    UNROLL for (int j = 0; j < 16; j++) {
        const float2 scale = *(local const float2 *)(columns + get_local_id(0) % 4 * 2 + 8 * j);
        UNROLL for (int i = 0; i < 4; i++)
            sum[4 * j + i] = fma(part[4 * j + i], (i < 2 ? lines.x : lines.y) * (i % 2 ? scale.y : scale.x), sum[4 * j + i]);
    }
#else
    UNROLL for (int i = 0; i < 64; i++)
        sum[i] = SCALED ? fma(part[i], i % 4 < 2 ? lines.x : lines.y, sum[i]) : sum[i] + part[i];
#endif
}

/* Stores 16 lines of a warp. `piece`: local memory for OUTS pieces, also as an address. */
static inline void store_lines(const float *sum, float alpha, local uchar *piece, uint piece_at, tile t, uint columns,
                               global result *c, ulong ldc)
{
    const uint lane = get_local_id(0) % 32;
#if F32
    const int line = t.line + (int)(lane / 4), column = t.column + lane % 4 * 2;
    global float *to = c + line * ldc + column;
    UNROLL for (int j = 0; j < COLUMNS / 8; j++)
        UNROLL for (int high = 0; high < 2; high++)
            if (line + 8 * high < t.end && column + 8 * j < (int)columns)
                *(global float2 *)(to + high * 8 * ldc + 8 * j) = alpha * (float2)(sum[4 * j + 2 * high], sum[4 * j + 2 * high + 1]);
#else
    const uint word = lane % 8;
    const int line = t.line + (int)(lane / 8);
    global ushort *to = c + line * ldc + t.column + word * 8;
    UNROLL for (int i = 0; i < COLUMNS / 64; i++) {
        const uint at = i % OUTS * PIECE_BYTES;
        sync_warp();
        UNROLL for (int j = 0; j < 8; j += 2) {
            const float *s = sum + i * 32 + 4 * j;
            const uint4 pairs = (uint4)(round_pair(alpha * s[0], alpha * s[1]), round_pair(alpha * s[2], alpha * s[3]),
                                        round_pair(alpha * s[4], alpha * s[5]), round_pair(alpha * s[6], alpha * s[7]));
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
#endif
}

static inline void consume(shape s, global const float *alpha, uint base, local uchar *arena, global result *c, ulong ldc)
{
    const uint consumer = get_local_id(0) / 128 - 1, warp = get_local_id(0) % 128 / 32, lane = get_local_id(0) % 32;
    const uint out = OUT_AT + (consumer * 4 + warp) * OUTS * PIECE_BYTES, line = consumer * 64 + warp * 16;
    for (uint step = 0;;) {
        await(base + FULL_AT + step % STAGES * 8, step / STAGES);
        tile t = *(local const tile *)(arena + TILES_AT + 32 * (step % STAGES));
        if (t.group < 0)
            return;
        float sum[COLUMNS / 2], part[64];
        UNROLL for (int i = 0; i < COLUMNS / 2; i++)
            sum[i] = 0.0f;
        for (uint term = 0; term < t.terms; term += TERMS, step++) {
            const uint stage = step % STAGES, a = base + stage * STAGE_BYTES, empty = base + EMPTY_AT + 8 * stage;
            local const float *scale = (local const float *)(arena + SCALES_AT) + stage * SCALES;
            await(base + FULL_AT + 8 * stage, step / STAGES);
#if WGRAD
            if (t.terms - term < TERMS)
                clear_terms(a, t.terms - term);
#endif
            const float2 lines = SCALED ? (float2)(scale[line + lane / 4], scale[line + lane / 4 + 8]) : (float2)(1.0f);
#if HELD
            uint4 held[4];
            hold(held, a + consumer * (A_BYTES / 2));
#endif
            UNROLL for (int p = 0; p < PARTS; p++) {
#if HELD
                multiply(part, held, matrix_at(a + A_BYTES + p * WIDTH * TERMS, 0));
#else
                multiply(part, matrix_at(a + consumer * (A_BYTES / 2), 0), matrix_at(a + A_BYTES + p * WIDTH * TERMS, 0));
#endif
                const float2 both = SCALED > WGRAD ? lines * scale[LINES + p] : lines;
                wgmma_wait(0);
                SETTLE_64(part);
                if (!WGRAD && p == PARTS - 1 && lane == 0)
                    arrive(empty);
                join(sum + 64 * p, part, both, scale + LINES + p * WIDTH);
            }
            if (WGRAD) {
                sync_warp(); /* all have read the scales */
                if (lane == 0)
                    arrive(empty);
            }
        }
        if (t.terms == 0) {
            sync_warp(); /* all have read the tile */
            if (lane == 0)
                arrive(base + EMPTY_AT + step % STAGES * 8);
            step++;
        }
        t.line += line;
        store_lines(sum, ALPHA ? alpha[t.group] : 1.0f, arena + out, base + out, t, s.columns, c, ldc);
    }
}

kernel __attribute__((reqd_work_group_size(384, 1, 1)))
void nvidia_fp8(tensor_map a, tensor_map b, global result *c, ulong ldc, global const uint *group_ends, uint groups, uint lines,
                uint columns, uint terms, global const float *s, uint s_line, global const float *t, uint t_group, uint t_block,
                uint t_column, global const float *alpha)
{
    local __attribute__((aligned(1024))) uchar arena[1040];
    const uint base = local_address(arena), thread = get_local_id(0);
    const shape size = {groups, lines, columns, terms};
    const scales of = {s, t, alpha, s_line, t_group, t_block, t_column};
    local uint *ends = (local uint *)(arena + ENDS_AT);
    if (thread == 0) {
        for (int i = 0; i < STAGES; i++) {
            begin_barrier(base + FULL_AT + 8 * i, 1 + 3 * SCALED);
            begin_barrier(base + EMPTY_AT + 8 * i, 8);
        }
        fence_barriers();
    }
    for (uint g = thread; g < groups; g += 384)
        ends[g] = group_ends[g];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (thread < 128) {
        release_registers(PRODUCER_REGISTERS);
        if (thread == 0 || SCALED * thread >= 32)
            produce(size, &of, MAP_ADDRESS(nvidia_fp8, 0), MAP_ADDRESS(nvidia_fp8, 1), base, arena);
    } else {
        claim_registers(CONSUMER_REGISTERS);
        consume(size, alpha, base, arena, c, ldc);
    }
}
