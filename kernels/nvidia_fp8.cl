/*
 * Grouped GEMM on the tensor cores of sm_90 (Hopper): 8-bit factors, E4M3 or E5M2, whose terms are contiguous.
 *
 *   c[m,j] = alpha[g] sum_b s[m,b] t[g,b,j/128] (sum_i a[m,i] b[g,j,i])     rows m of group g, terms i of block b
 *   WGRAD:
 *   c[g,n,j] = alpha[g] sum_b s[n,b] t[j,b] (sum_m a[n,m] b[j,m])           terms m, blocks b: the rows of group g
 *
 * Blocks are of 128 terms, in WGRAD from a group's first row on. The tensor cores add up a block, to about 14 bits of its
 * largest product; blocks are added in float32, times both scales (1 unless SCALED) and alpha (1 if 0), as DeepGEMM does. Both factors are
 * tensors [groups or 1, rows, terms] of TMA maps. Persistent work-groups take the tiles of 128 lines x COLUMNS columns in
 * turn, which they find from the ends alone:
 *
 *     warps 0-3    the producers, see nvidia_fp8.h: blocks of both factors and their scales into a ring of STAGES stages
 *     warps 4-7    lines 0-63:   a block's 64 x WIDTH sums by wgmma m64nWIDTHk32, which join 64 x COLUMNS sums, all in
 *     warps 8-11   lines 64-127  registers, while the tensor cores compute up to BUFFERS - 1 others; then rounded and, by
 *                                way of OUTS pieces of 16 x 64 results per warp in local memory, stored in 16-byte words
 *
 * Terms past the end are 0: TMA gives zeros past a tensor, and WGRAD clears the rows of the next group in both factors.
 * Lines past the end of a group are computed from whatever is there and not stored. s[m,b] lies at s + m * s_line + b, t
 * at t + g * t_group + b * t_block + (j / 128, in WGRAD j) * t_column.
 *
 * Rows of the factors must be multiples of 16 bytes, columns and ldc of 8 numbers, and in WGRAD the ends of 16, as TMA
 * takes no other addresses. Grid: compute units work-groups of 384. Local memory: ARENA bytes (up to 227 KiB, which
 * src/device/ptx.c puts in the place of 1040), the ends included.
 * Deterministic: the order of a sum is the hardware's, the same in every run, and no tile depends on another.
 * Required: WGRAD, SCALED (0, 1; SCALED in WGRAD), E5M2 (0, 1), F32 (result: 0 bf16, 1 float32),
 * COLUMNS (a multiple of 64 up to 256), WIDTH (64, 128), BUFFERS (1 to 3), STAGES, OUTS, GROUP (tiles in a column of tiles
 * that are taken before the next column), ARENA.
 */
#if !defined(WGRAD) || !defined(SCALED) || !defined(E5M2) || !defined(F32) || !defined(COLUMNS) || \
    !defined(WIDTH) || !defined(BUFFERS) || !defined(STAGES) || !defined(OUTS) || !defined(GROUP)
#error "WGRAD, SCALED, E5M2, F32, COLUMNS, WIDTH, BUFFERS, STAGES, OUTS and GROUP must be defined"
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

#include "nvidia_fp8.h"

/* 128 times the one and 256 times the other are at most 65536. */
#if F32 || WGRAD
#define PRODUCER_REGISTERS 72
#define CONSUMER_REGISTERS 216
#else
#define PRODUCER_REGISTERS 56
#define CONSUMER_REGISTERS 224
#endif

#if WIDTH == 64
#define WGMMA_PART WGMMA_BYTES_64
#define SETTLE     SETTLE_64
#else
#define WGMMA_PART WGMMA_BYTES_128
#define SETTLE     SETTLE_128
#endif
#define PART_SUMS (WIDTH / 2)

#if WGRAD
/* Clears the terms from `terms` on, a multiple of 16, in a stage's lines and columns, whose 16-byte words are swizzled. */
static inline void clear_terms(local uchar *stage, uint terms)
{
    for (uint row = get_local_id(0) - 128; row < LINES + COLUMNS; row += 256)
        for (uint word = terms / 16; word < TERMS / 16; word++)
            *(local uint4 *)(stage + row * TERMS + (word ^ row % 8) * 16) = (uint4)(0);
    fence_tensor();
    barrier_of(3, 256);
}
#endif

/* part[64,WIDTH] = 64 lines x 128 terms of a by 128 terms x WIDTH columns of b. */
static inline void multiply(float *part, ulong a, ulong b)
{
    const uint next = STEP / 16; /* 16-byte units */
    wgmma_fence();
    WGMMA_PART(part, a, b, "=f", 0, FACTOR);
    WGMMA_PART(part, a + next, b + next, "+f", 1, FACTOR);
    WGMMA_PART(part, a + 2 * next, b + 2 * next, "+f", 1, FACTOR);
    WGMMA_PART(part, a + 3 * next, b + 3 * next, "+f", 1, FACTOR);
    wgmma_commit();
}

/* sum[64,WIDTH] += part[64,WIDTH] times the scales, of this work-item's lines, which are 8 apart, and of the columns. */
static inline void join(float *sum, float *part, float2 lines, local const float *columns)
{
#if WGRAD
    UNROLL for (int j = 0; j < WIDTH / 8; j++) {
        const float2 scale = *(local const float2 *)(columns + get_local_id(0) % 4 * 2 + 8 * j);
        UNROLL for (int i = 0; i < 4; i++)
            sum[4 * j + i] = fma(part[4 * j + i], (i < 2 ? lines.x : lines.y) * (i % 2 ? scale.y : scale.x), sum[4 * j + i]);
    }
#else
    UNROLL for (int i = 0; i < PART_SUMS; i++)
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

/* Where a consumer is in the ring, and what of it is its own. */
typedef struct ring {
    uint base, step, terms, column, consumer; /* column: in a block, where the tile's first one is */
    local uchar *arena;
} ring;

/* Waits for a block of `terms` terms, of which those past the end are cleared. */
static inline void await_block(const ring *r, uint terms)
{
    await(r->base + FULL_AT + r->step % STAGES * 8, r->step / STAGES);
#if WGRAD
    if (terms < TERMS)
        clear_terms(r->arena + r->step % STAGES * STAGE_BYTES, terms);
#endif
}

static inline void multiply_part(float *part, const ring *r, uint p)
{
    const uint a = r->base + r->step % STAGES * STAGE_BYTES;
    multiply(part, matrix_at(a + r->consumer * (A_BYTES / 2), 0), matrix_at(a + A_BYTES + p * WIDTH * TERMS, 0));
}

/* A stage's scales, those of lines at its start; and, but for WGRAD, their product with that of part p's columns. */
static inline local const float *scales_of(const ring *r)
{
    return (local const float *)(r->arena + SCALES_AT) + r->step % STAGES * SCALES;
}

static inline float2 factors_of(const ring *r, uint p)
{
    const uint line = r->consumer * 64 + get_local_id(0) % 128 / 32 * 16 + get_local_id(0) % 32 / 4;
    local const float *scale = scales_of(r);
    const float2 lines = (float2)(scale[line], scale[line + 8]);
    return WGRAD ? lines : lines * scale[LINES + ((COLUMNS % BLOCK > 0 ? r->column : 0) + p * WIDTH) / BLOCK];
}

/* The stage is free of this warp. */
static inline void leave_stage(const ring *r)
{
    sync_warp();
    if (get_local_id(0) % 32 == 0)
        arrive(r->base + EMPTY_AT + r->step % STAGES * 8);
}

/* Waits until so many of this work-item's wgmma groups are left. */
static inline void wait_parts(uint left)
{
    if (left == 0)
        wgmma_wait(0);
    else if (left == 1)
        wgmma_wait(1);
    else
        wgmma_wait(2);
}

/* sum[64,COLUMNS] of a tile. Parts are joined while the tensor cores compute the next BUFFERS - 1. */
static inline void add_blocks(float *sum, ring *r)
{
    for (uint left = r->terms;; left -= TERMS, r->step++) {
        float parts[BUFFERS][PART_SUMS];
        await_block(r, left);
        UNROLL for (int p = 0; p < PARTS + BUFFERS - 1; p++) {
            const int done = p - (BUFFERS - 1);
            if (p < PARTS)
                multiply_part(parts[p % BUFFERS], r, p);
            if (done < 0)
                continue;
            const float2 factors = SCALED ? factors_of(r, done) : (float2)(1.0f);
            wait_parts((p < PARTS ? p : PARTS - 1) - done);
            SETTLE(parts[done % BUFFERS]);
            if (!WGRAD && done == PARTS - 1)
                leave_stage(r);
            join(sum + done * PART_SUMS, parts[done % BUFFERS], factors, scales_of(r) + LINES + done * WIDTH);
        }
        if (WGRAD)
            leave_stage(r);
        if (left <= TERMS)
            break;
    }
    r->step++;
}

static inline void consume(shape s, global const float *alpha, uint base, local uchar *arena, global result *c, ulong ldc)
{
    const uint consumer = get_local_id(0) / 128 - 1, warp = get_local_id(0) % 128 / 32;
    const uint out = OUT_AT + (consumer * 4 + warp) * OUTS * PIECE_BYTES;
    ring r = {base, 0, 0, 0, consumer, arena};
    for (;;) {
        await(base + FULL_AT + r.step % STAGES * 8, r.step / STAGES);
        tile t = *(local const tile *)(arena + TILES_AT + 32 * (r.step % STAGES));
        if (t.group < 0)
            return;
        float sum[COLUMNS / 2];
        UNROLL for (int i = 0; i < COLUMNS / 2; i++)
            sum[i] = 0.0f;
        r.terms = t.terms;
        r.column = t.column % BLOCK;
        if (t.terms > 0) {
            add_blocks(sum, &r);
        } else {
            leave_stage(&r);
            r.step++;
        }
        t.line += consumer * 64 + warp * 16;
        store_lines(sum, alpha != 0 ? alpha[t.group] : 1.0f, arena + out, base + out, t, s.columns, c, ldc);
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
    const scales of = {s, t, s_line, t_group, t_block, t_column};
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
