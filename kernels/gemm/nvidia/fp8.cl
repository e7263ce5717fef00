/*
 * Grouped GEMM on the tensor cores of sm_90 (Hopper): 8-bit operands, E4M3 or E5M2, contiguous
 * along the reduction.
 *
 *   c[m,j] = alpha[g] sum_b s[m,b] t[g,b,j/128] (sum_i a[m,i] b[g,j,i])     rows m of group g,
 *                                                                           i in block b
 *   WGRAD:
 *   c[g,n,j] = alpha[g] sum_b s[n,b] t[j,b] (sum_m a[n,m] b[j,m])           m in block b: the rows
 *                                                                           of group g
 *
 * A block has 128 values of the reduction; in WGRAD the first block begins at the group's first
 * row. The tensor cores sum a block with about 14 bits of precision relative to its largest
 * product. The sum is multiplied by both scales (1 unless SCALED) and alpha (1 if alpha is null),
 * and added in float32 to the sums of the other blocks, as in DeepGEMM. Both operands are tensors
 * [groups or 1, rows, reduction] of TMA maps. Work-groups are persistent and take the tiles of 128
 * lines x 256 columns in rotation; they compute the positions of the tiles from the ends of the
 * groups:
 *
 *     warps 0-3    the producers, see fp8.h: blocks of both operands and their scales into a
 *                  ring of STAGES stages
 *     warps 4-7    lines 0-63:   64 x 128 sums of a block by wgmma m64n128k32, in two parts, which
 *     warps 8-11   lines 64-127  are added to 64 x 256 sums, all in registers, while the tensor
 *                                cores compute for the other consumer; then rounded and, through
 *                                OUTS pieces of 16 lines x 128 bytes per warp, stored in 16-byte
 *                                words
 *
 * Beyond the end of K operands are 0: TMA gives zeros beyond a tensor, and WGRAD clears the rows of
 * the next group in both operands. Lines beyond the end of a group are computed from arbitrary
 * memory and not stored. s[m,b] is at s + m * s_line + b * s_block, t at t + g * t_group + b *
 * t_block + (j / 128, in WGRAD j) * t_column. In WGRAD there are scales of `blocks` blocks.
 *
 * TMA requires rows of the operands that are multiples of 16 bytes, columns and ldc that are
 * multiples of 8 elements and, in WGRAD, ends of the groups that are multiples of 16. Grid: one
 * work-group of 384 for each compute unit. Local memory: ARENA bytes (up to 227 KiB), including the
 * ends of the groups. src/device/nvidia/ptx.c replaces the 1040 bytes that the kernel declares by
 * ARENA. Deterministic: the hardware determines the order of a sum, the same in every run, and no
 * tile depends on another. Required: WGRAD, SCALED (0, 1; 1 in WGRAD), E5M2 (0, 1), F32 (result: 0
 * bf16, 1 float32), ADDS (1: adds the result to the old c, with WGRAD and F32), ARENA.
 */
#if !defined(WGRAD) || !defined(SCALED) || !defined(E5M2) || !defined(F32) || !defined(ADDS)
#error "WGRAD, SCALED, E5M2, F32 and ADDS must be defined"
#endif
#define F16     0
#define SCATTER 0
#define LANE    (get_local_id(0) % 32)
#include "args/gemm_nvidia.h"
#include "lib/nvidia.h"

#if E5M2
#define A_TYPE "e5m2"
#else
#define A_TYPE "e4m3"
#endif
#define RESULT (F32 ? IS_F32 : IS_BF16)

#include "gemm/nvidia/fp8.h"
#include "gemm/nvidia/store.h"

/* 128 times PRODUCER_REGISTERS plus 256 times CONSUMER_REGISTERS is at most 65536. */
#if F32
#define PRODUCER_REGISTERS 72
#define CONSUMER_REGISTERS 216
#else
#define PRODUCER_REGISTERS 56
#define CONSUMER_REGISTERS 224
#endif

#if WGRAD
/* Clears K values from `k_size` on, a multiple of 16, in a stage's lines and columns, whose 16-byte
 * words are swizzled. */
static inline void clear_k(local uchar *stage, uint k_size) {
    for (uint row = get_local_id(0) - 128; row < LINES + COLUMNS; row += 256)
        for (uint word = k_size / 16; word < BLOCK_K / 16; word++)
            *(local uint4 *)(stage + row * BLOCK_K + (word ^ row % 8) * 16) = (uint4)(0);
    fence_tensor();
    barrier_of(3, 256);
}
#endif

/* part[64,WIDTH] = 64 lines x 128 K values of a by 128 K values x WIDTH columns of b, at addresses
 * in units of 16 bytes. */
static inline void multiply(float *part, uint a, uint b) {
    const uint next = STEP / 16;
    wgmma_fence();
    WGMMA_BYTES(part, matrix_of(a), matrix_of(b), "=f", 0, A_TYPE);
    WGMMA_BYTES(part, matrix_of(a + next), matrix_of(b + next), "+f", 1, A_TYPE);
    WGMMA_BYTES(part, matrix_of(a + 2 * next), matrix_of(b + 2 * next), "+f", 1, A_TYPE);
    WGMMA_BYTES(part, matrix_of(a + 3 * next), matrix_of(b + 3 * next), "+f", 1, A_TYPE);
    wgmma_commit();
}

/* The scales of a block that a work-item needs: those of its two lines, which are 8 apart, and,
 * except in WGRAD, those of all parts. */
typedef struct scale_set {
    float lines[2], parts[PARTS];
} scale_set;

/* sum[64,WIDTH] += part[64,WIDTH], part p of a block, times the scales of lines and columns. */
static inline void add_part(float *sum, const float *part, const scale_set *by, uint p,
                            local const float *columns) {
#if WGRAD
    UNROLL_FOR(int j = 0; j < WIDTH / 8; j++) {
        const float2 scale =
            *(local const float2 *)(columns + p * WIDTH + 8 * j + get_local_id(0) % 4 * 2);
        UNROLL_FOR(int i = 0; i < 4; i++)
            sum[4 * j + i] = fma(part[4 * j + i], by->lines[i / 2] * (i % 2 ? scale.y : scale.x),
                                 sum[4 * j + i]);
    }
#else
    const float scale[2] = {by->lines[0] * by->parts[p], by->lines[1] * by->parts[p]};
    UNROLL_FOR(int i = 0; i < PART_SUMS; i++)
        sum[i] = SCALED ? fma(part[i], scale[i / 2 % 2], sum[i]) : sum[i] + part[i];
#endif
}

static inline void multiply_part(float *part, const ring *r, uint p) {
    const uint stage = r->base / 16 + r->step % STAGES * (STAGE_BYTES / 16);
    multiply(part, stage + r->consumer * (A_BYTES / 32),
             stage + (A_BYTES + p * WIDTH * BLOCK_K) / 16);
}

/* A stage's scales; those of lines come first. */
static inline local const float *scales_of(const ring *r) {
    return (local const float *)(r->arena + SCALES_AT) + r->step % STAGES * SCALES;
}

/* Called after the wgmma instructions are issued: loads between the wgmma would delay these. */
static inline scale_set load_scales(const ring *r) {
    const uint line = r->consumer * 64 + get_local_id(0) % 128 / 32 * 16 + get_local_id(0) % 32 / 4;
    local const float *scales = scales_of(r);
    scale_set set;
    sync_warp();
    set.lines[0] = scales[line];
    set.lines[1] = scales[line + 8];
    UNROLL_FOR(int p = 0; p < PARTS; p++)
        set.parts[p] = WGRAD ? 1.0f : scales[LINES + p];
    return set;
}

/* Adds a tile's blocks to sum[64,COLUMNS]. The consumers alternate: the tensor cores compute for
 * one while the other adds its part. */
static inline void add_blocks(float *sum, ring *r, uint k_size) {
    for (int left = k_size; left > 0; left -= BLOCK_K, r->step++) {
        scale_set scales;
        await_full(r->base, r->step);
#if WGRAD
        if (left < BLOCK_K)
            clear_k(r->arena + r->step % STAGES * STAGE_BYTES, left);
#endif
        UNROLL_FOR(int p = 0; p < PARTS; p++) {
            float part[PART_SUMS];
            await_turn(r->consumer);
            multiply_part(part, r, p);
            pass_turn(r->consumer);
            if (SCALED && p == 0)
                scales = load_scales(r);
            wgmma_wait(0);
            SETTLE(part);
            if (!WGRAD && p == PARTS - 1)
                leave_stage(r->base, r->step);
            add_part(sum + p * PART_SUMS, part, &scales, p, scales_of(r) + LINES);
        }
        if (WGRAD)
            leave_stage(r->base, r->step);
    }
}

static inline void consume(uint base, local uchar *arena, global const float *alpha, target to) {
    const uint consumer = of_warp(get_local_id(0) / 128 - 1), warp = get_local_id(0) % 128 / 32;
    const uint out = OUT_AT + (consumer * 4 + warp) * OUTS * PIECE_BYTES;
    const pieces own = {arena + out, base + out};
    ring r = {base, 0, consumer, arena};
    if (consumer == 1)
        pass_turn(consumer);
    for (;;) {
        await_full(base, r.step);
        tile t = *(local const tile *)(arena + TILES_AT + TILE_BYTES * (r.step % STAGES));
        if (t.group < 0)
            return;
        float sum[COLUMNS / 2];
        UNROLL_FOR(int i = 0; i < COLUMNS / 2; i++)
            sum[i] = 0.0f;
        if (t.k_size > 0) {
            add_blocks(sum, &r, t.k_size);
        } else {
            leave_stage(base, r.step);
            r.step++;
        }
        t.line += consumer * 64 + warp * 16;
        store_lines(sum, alpha != 0 ? alpha[t.group] : 1.0f, 0, COLUMNS, own, t, to);
    }
}

/* The tensor maps of the operands. */
typedef struct operand_maps {
    tensor_map a, b;
} operand_maps;

kernel __attribute__((reqd_work_group_size(384, 1, 1))) void nvidia_fp8(
    operand_maps maps, global uchar *c, global const uint *group_ends, global const float *s,
    global const float *t, global const float *alpha, moert_fp8_args args) {
    local __attribute__((aligned(1024))) uchar arena[1040];
    const uint base = local_address(arena), thread = get_local_id(0);
    const shape size = {args.groups, args.lines, args.columns, args.terms};
    const scales of = {
        s, t, args.blocks, args.s_line, args.s_block, args.t_group, args.t_block, args.t_column};
    local uint *ends = (local uint *)(arena + ENDS_AT);
    if (thread == 0) {
        begin_pipeline(base, 1 + 3 * SCALED, 8); /* consumers: one arrival of each warp */
        fence_barriers();
    }
    for (uint g = thread; g < args.groups; g += 384)
        ends[g] = group_ends[g];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (thread < 128) {
        release_registers(PRODUCER_REGISTERS);
        if (thread == 0 || SCALED * thread >= 32)
            produce(size, &of, MAP_ADDRESS(nvidia_fp8, 0), MAP_ADDRESS(nvidia_fp8, 1), base, arena);
    } else {
        claim_registers(CONSUMER_REGISTERS);
        consume(base, arena, alpha, (target){c, args.ldc, args.columns, RESULT, OWN_COLUMNS, 0});
    }
}
