/*
 * Grouped GEMM on the tensor cores of sm_90 (Hopper): bf16 or f16 operands, float32 sums, a result
 * of 16 bits or float32.
 *
 *   FORWARD   y[m,n] = sum_k x[m,k] w[g,n,k]     rows m of group g
 *   DGRAD     x[m,k] = sum_n y[m,n] w[g,n,k]
 *   WGRAD     w[g,n,k] = sum_m y[m,n] x[m,k]     over the rows of group g; 0 without rows
 *
 * epilogue.h defines the epilogue: scale factors, bias, the old values, a GLU (of FORWARD).
 *
 * In the three orientations, the result's lines are (m, m, n) and its columns (n, k, k). Operand A
 * has the lines, B the columns. All operands are tensors [groups or 1, rows, columns] of TMA maps,
 * columns at stride 1. An operand is transposed if its reduction index runs along the rows.
 * Work-groups are persistent and take the tiles of 128 lines x 256 columns in rotation; they
 * compute the positions of the tiles from the ends of the groups:
 *
 *     warps 0-3    one thread starts the loads of blocks of 64 K values of a tile (A 16 KiB, B 32
 *                  KiB) into a ring of STAGES stages, describes the tile in `tiles`, and after the
 *                  last block loads the old values, if any
 *     warps 4-7    lines 0-63:   64 x 256 sums in registers by wgmma m64n256k16, then rounded and,
 *     warps 8-11   lines 64-127  through OUTS pieces of 16 lines x 128 bytes per warp in local
 *                                memory, stored in 16-byte words
 *
 * Warps 1-3 convert quantized operands to bf16 in global memory, ahead of the GEMM (see ahead.h).
 *
 * With GLU the 256 columns are 128 gates and their 128 ups, from two positions of the weight, and
 * give 128 columns of h. v is stored like a result before h, unless its gates and ups alternate.
 *
 * Beyond the end of K operands are 0: TMA gives zeros beyond a tensor, and WGRAD clears the rows of
 * the next group in both operands. Lines beyond the end of a group are computed from arbitrary
 * memory and not stored. A consumer whose lines are all beyond the end computes them as well. This
 * keeps all work-groups at the same K, so that the tiles of a column find B in the cache. When one
 * work-group ran ahead, the other tiles of its round took a quarter longer. The kernel reads
 * `group_ends` from index `first_end` on. If all groups share one weight, only the last end is
 * read, and all rows form one group. Groups below `skip` are not computed.
 *
 * Tiles are taken down a column of GROUP tiles (for K < 4096: GROUP * 4096 / K), then across. The
 * lines of such a column fit the caches of all SMs. If the last round has tiles for at most half of
 * the work-groups, two work-groups compute each of these tiles, 64 lines each; except in WGRAD.
 *
 * With COUNTED a counter assigns the tiles, so that a second launch with the same arguments may
 * compute some of them on units that become free. `counts` [2], initially zeros: the tiles taken,
 * and the work-groups that may still be computing. A work-group ends when the second count is 0, so
 * the GEMM is complete when either launch ends.
 *
 * With SCATTER, c is a table, uint64 [lines], of each line's address in the result, maybe in
 * another GPU's memory; 0: the line is not stored. The lines of a group then form about SCATTER
 * equal runs, one for each memory, and tiles are taken from these runs in rotation.
 *
 * Numbers of columns, strides and addresses must be multiples of 8 elements. Grid: one work-group
 * of 384 for each compute unit. Local memory: ARENA bytes (up to 227 KiB), including the ends of
 * the groups. src/device/nvidia/ptx.c replaces the 1040 bytes that the kernel declares by ARENA.
 * Deterministic: the hardware determines the order of a sum; it is the same in every run and at
 * every position of a tile, and no tile depends on another. Required:
 *
 *     ORIENTATION         0 FORWARD, 1 DGRAD, 2 WGRAD
 *     F16                 operands: 0 bf16, 1 f16
 *     A_FORMAT, B_FORMAT  the format of a quantized operand (ahead.h); 4: bf16 or f16 values
 *     COUNTED             0 or 1; 0 with quantized operands
 *     SCATTER             0: off. Otherwise results have 16 bits, BETA is 0, and the GEMM is
 *                         DGRAD, or FORWARD without a GLU
 *     ARENA               bytes of local memory
 *
 * Required as well: the defines of epilogue.h.
 */
#if !defined(ORIENTATION) || !defined(F16) || !defined(A_FORMAT) || !defined(B_FORMAT) ||          \
    !defined(COUNTED) || !defined(SCATTER)
#error "ORIENTATION, F16, A_FORMAT, B_FORMAT, COUNTED and SCATTER must be defined"
#endif
#include "args/gemm_nvidia.h"
#include "lib/nvidia.h"

#define KEEPS_F32 1
#define LANE      lane_again()
#define KEEPS_V   (RUN != 1)

#define FORWARD 0
#define DGRAD   1
#define WGRAD   2

#define PLAIN     4
#define QUANTIZED (A_FORMAT != PLAIN || B_FORMAT != PLAIN)
#if QUANTIZED /* 128 times PRODUCER_REGISTERS plus 256 times CONSUMER_REGISTERS is at most 64512 */
#define PRODUCER_REGISTERS 120
#define CONSUMER_REGISTERS 192
#else
#define PRODUCER_REGISTERS 40
#define CONSUMER_REGISTERS 232
#endif

#define SPLITS       (ORIENTATION != WGRAD) /* whether tiles of the last round may be split */
#define REDUCES_ROWS (ORIENTATION == WGRAD)
#define KEEPS_EMPTY  (BETA == 1)
#define LINES        MOERT_NVIDIA_LINES
#define COLUMNS      MOERT_WGMMA_COLUMNS
#define BLOCK_K      MOERT_WGMMA_K
#define STAGES       MOERT_WGMMA_STAGES
#define STAGE_BYTES  MOERT_WGMMA_STAGE_BYTES
#define OUTS         MOERT_WGMMA_OUTS
#define GROUP        MOERT_WGMMA_GROUP
#define SPAN         COLUMNS                       /* columns of a warp */
#define RESULTS      (GLU ? COLUMNS / 2 : COLUMNS) /* columns of the result in a tile */
#define A_BYTES      (LINES * BLOCK_K * 2)
#define BOX_BYTES    8192 /* 64 rows of 128 bytes */

#if ORIENTATION == FORWARD
#define TRANSPOSED_A 0
#define TRANSPOSED_B 0
#elif ORIENTATION == DGRAD
#define TRANSPOSED_A 0
#define TRANSPOSED_B 1
#else
#define TRANSPOSED_A 1
#define TRANSPOSED_B 1
#endif

/* Stages of 64 columns of old values after the operands; each has OLD_BOXES boxes of OLD_BYTES
 * bytes. */
#define OLD_STEPS (BETA != 0 ? 4 : 0)
#define OLD_BOXES (RESULT == IS_F32 ? 2 : 1)
#define OLD_BYTES (LINES * 128)

/* Offsets in the arena. */
#define OUT_AT   (STAGES * STAGE_BYTES)
#define FULL_AT  MOERT_WGMMA_BARRIERS_AT
#define EMPTY_AT (FULL_AT + 8 * STAGES)
#define TOTAL_AT (FULL_AT + 120)
#define TILES_AT (FULL_AT + 128)
#define ENDS_AT  MOERT_WGMMA_ENDS_AT

/* Hardware barriers: 1 and 2 of the consumers, 3 of the decoders. */
#define BAR_DECODERS 3
#define BAR_DONE     4

/* The description of a tile for the consumers; k_size -1: no more tiles. */
typedef struct tile {
    int k_size, line, end,
        column;        /* first line and column in the result; end of the group's lines */
    uint group, split; /* split: another work-group computes the second consumer's lines */
} tile;

typedef struct shape {
    uint skip, groups, lines, columns,
        k_size; /* groups [skip, groups); WGRAD ignores k_size, FORWARD and DGRAD ignore lines */
} shape;

#include "lib/pipeline.h"
#include "gemm/nvidia/epilogue.h"
#include "gemm/nvidia/store.h"
#include "gemm/nvidia/ahead.h"
#include "gemm/nvidia/tiles.h"
#include "gemm/nvidia/walk.h"
#include "gemm/nvidia/wgmma.h"
#include "gemm/nvidia/wgmma_consumer.h"

/* The tensor maps of the operands and of the old values. */
typedef struct gemm_maps {
    tensor_map a, b, old;
} gemm_maps;

kernel __attribute__((reqd_work_group_size(384, 1, 1))) void nvidia_gemm(
    gemm_maps maps, global uchar *c, global const uint *group_ends, global const float *alpha,
    global uchar *beta_or_v, global const float *factor, global const uchar *bias, global int *amax,
    moert_nvidia_gemm_args args, global uint *counts) {
    local __attribute__((aligned(1024))) uchar arena[1040];
    const uint base = local_address(arena), thread = get_local_id(0);
    const shape s = {args.skip, args.groups, args.lines, args.columns, args.terms};
    epilogue e = epilogue_of(alpha, beta_or_v, factor, bias, amax, c, args);
    local uint *ends = (local uint *)(arena + ENDS_AT);
    if (thread == 0) {
        *(local uint *)(arena + TOTAL_AT) = 0;
        begin_pipeline(base, 1, 2);
        fence_barriers();
        if (COUNTED)
            add_global(counts + 1, 1);
    }
    for (uint g = thread; g < args.groups; g += 384)
        ends[g] = group_ends[args.first_end + g];
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint whole = whole_tiles(&s, ends, (local uint *)(arena + TOTAL_AT));
    if (thread < 128) {
        release_registers(PRODUCER_REGISTERS);
        if (thread == 0)
            produce(s, MAP_ADDRESS(nvidia_gemm, 0), MAP_ADDRESS(nvidia_gemm, 1),
                    MAP_ADDRESS(nvidia_gemm, 2), base, (local tile *)(arena + TILES_AT), ends,
                    whole, counts);
        else if (QUANTIZED && thread >= 32)
            decode_ahead(s, quantized_at(args.a), quantized_at(args.b), ends, counts);
        if (COUNTED)
            leave(counts);
    } else {
        claim_registers(CONSUMER_REGISTERS);
        e.c = SCATTER ? c : c + args.first_column * (RESULT == IS_F32 ? 4 : 2);
        consume(base, arena, e);
        if (COUNTED)
            pass_barrier(BAR_DONE, 384);
    }
}
