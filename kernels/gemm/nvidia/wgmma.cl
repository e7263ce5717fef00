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
 * The result has lines (m, m, n) and columns (n, k, k). Operand A has the lines, B the columns. All
 * operands are tensors [groups or 1, rows, columns] of TMA maps, columns at stride 1. An operand is
 * transposed if its reduction index runs along the rows. Work-groups are persistent and take the
 * tiles of 128 lines x 256 columns in rotation; they compute the tiles from the group ends:
 *
 *     warps 0-3    one thread starts the loads of blocks of 64 K values of a tile (A 16 KiB, B 32
 *                  KiB) into a ring of STAGES stages, describes the tile in `tiles`, and after the
 *                  last block loads the old values, if any
 *     warps 4-7    lines 0-63:   64 x 256 sums in registers by wgmma m64n256k16, then rounded and,
 *     warps 8-11   lines 64-127  through OUTS pieces of 16 lines x 128 bytes per warp in local
 *                                memory, stored in 16-byte words
 *
 * Warps 1-3 convert quantized operands to bf16 in global memory, ahead of the GEMM: ahead.h.
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
 * Columns must be multiples of 8 elements, as must strides and addresses. Grid: one work-group of
 * 384 for each compute unit. Local memory: ARENA bytes (up to 227 KiB; src/device/nvidia/ptx.c
 * replaces 1040 by it), including the ends. Deterministic: the hardware determines the order of a
 * sum; it is the same in every run and at every position of a tile, and no tile depends on another.
 * Required:
 *
 *     ORIENTATION         0 FORWARD, 1 DGRAD, 2 WGRAD
 *     F16                 operands: 0 bf16, 1 f16
 *     A_FORMAT, B_FORMAT  the format of a quantized operand (ahead.h); 4: bf16 or f16 values
 *     COUNTED             0 or 1; 0 with quantized operands
 *     STAGES, OUTS        stages of the ring; pieces of a warp
 *     GROUP               tiles in a column of tiles, for K = 4096
 *     SCATTER             0: off. Otherwise results have 16 bits, BETA is 0, and the GEMM is
 *                         DGRAD, or FORWARD without a GLU
 *     ARENA               bytes of local memory
 *
 * and the defines of epilogue.h.
 */
#if !defined(ORIENTATION) || !defined(F16) || !defined(STAGES) || !defined(OUTS) ||                \
    !defined(GROUP) || !defined(A_FORMAT) || !defined(B_FORMAT) || !defined(COUNTED) ||            \
    !defined(SCATTER)
#error                                                                                             \
    "ORIENTATION, F16, A_FORMAT, B_FORMAT, COUNTED, STAGES, OUTS, GROUP and SCATTER must be defined"
#endif
#define KEEPS_F32 1
#define KEEPS_V   (RUN != 1)
#include "lib/nvidia.h"

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
#define LINES        128
#define COLUMNS      256
#define BLOCK_K      64
#define SPAN         COLUMNS                       /* columns of a warp */
#define RESULTS      (GLU ? COLUMNS / 2 : COLUMNS) /* columns of the result in a tile */
#define BOX_BYTES    8192                          /* 64 rows of 128 bytes */
#define BAR_DONE     4

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

#define A_BYTES     (LINES * BLOCK_K * 2)
#define STAGE_BYTES ((LINES + COLUMNS) * BLOCK_K * 2)
#define PIECE_BYTES 2048
/* Stages of 64 columns of old values after the operands; each has OLD_BOXES boxes of OLD_BYTES
 * bytes. */
#define OLD_STEPS (BETA != 0 ? 4 : 0)
#define OLD_BOXES (RESULT == IS_F32 ? 2 : 1)
#define OLD_BYTES (LINES * 128)

/* Offsets in the arena. */
#define OUT_AT   (STAGES * STAGE_BYTES)
#define FULL_AT  (OUT_AT + 8 * OUTS * PIECE_BYTES)
#define EMPTY_AT (FULL_AT + 8 * STAGES)
#define TOTAL_AT (FULL_AT + 120)
#define TILES_AT (FULL_AT + 128)
#define ENDS_AT  (TILES_AT + 128)

/* The description of a tile for the consumers; k_size -1: no more tiles. */
typedef struct tile {
    int k_size, line, end,
        column;        /* first line and column in the result; end of the group's lines */
    uint group, split; /* split: another work-group computes the second consumer's lines */
} tile;

#include "gemm/nvidia/epilogue.h"
typedef struct shape {
    uint skip, groups, lines, columns,
        k_size; /* groups from skip on; k_size not in WGRAD, lines only in WGRAD */
} shape;

#include "gemm/nvidia/ahead.h"
#include "gemm/nvidia/tiles.h"
#include "gemm/nvidia/walk.h"
#include "gemm/nvidia/wgmma.h"

/* Clears the rows from `k_size` on in the boxes that a consumer multiplies: its own box of A and
 * all boxes of B. Both consumers clear B, so that neither waits for the other. */
static inline void clear_rows(local uchar *stage, uint k_size, uint consumer) {
    for (uint box = 1; box < 6; box++)
        for (uint at = k_size * 128 + get_local_id(0) % 128 * 16; at < BOX_BYTES; at += 128 * 16)
            *(local uint4 *)(stage + (box == 1 ? consumer : box) * BOX_BYTES + at) = (uint4)(0);
    fence_tensor();
    barrier_of(1 + consumer, 128);
}

/* sum += 64 lines x 64 K values of a by 64 K values x 256 columns of b. */
static inline void multiply(float *sum, ulong a, ulong b) {
    const uint next_a = TRANSPOSED_A ? 128 : 2,
               next_b = TRANSPOSED_B ? 128 : 2; /* 16 K values, in 16-byte units */
    wgmma_fence();
    UNROLL_FOR(int i = 0; i < 4; i++)
        WGMMA(sum, a + i * next_a, b + i * next_b, TRANSPOSED_A, TRANSPOSED_B);
    wgmma_commit();
}

/* Reads a thread's old values of a batch of 64 columns; `lines`: its warp's first line in a
 * stage. */
static inline void read_old(float2 old[STORES][2], local const uchar *lines) {
    const uint lane = lane_again(), row = lane / 4;
    UNROLL_FOR(int b = 0; b < STORES; b++)
        UNROLL_FOR(int i = 0; i < 2; i++) {
            local const uchar *line = lines + (row + 8 * i) * 128;
            if (RESULT == IS_F32)
                old[b][i] =
                    *(local const float2 *)(line + b / 4 * OLD_BYTES +
                                            ((b % 4 * 2 + lane % 4 / 2) ^ row) * 16 + lane % 2 * 8);
            else
                old[b][i] = widen_pair(RESULT == IS_F16,
                                       *(local const uint *)(line + (b ^ row) * 16 + lane % 4 * 4));
        }
}

/* The offset of a 16-byte word in a piece of 16 lines of 128 bytes. Words that a warp stores or
 * loads at once are in different banks. */
static inline uint word_at(uint line, uint word, int type) {
    return line * 128 + (word ^ (type == IS_F32 ? line % 4 * 2 : line % 8)) * 16;
}

/* Rounds the results of a piece and stores them in local memory. */
INLINED void put_piece(const float *sum, int type, local uchar *piece, uint piece_at) {
    const uint lane = lane_again();
    if (type == IS_F32) {
        UNROLL_FOR(int j = 0; j < 8; j++)
            *(local float2 *)(piece +
                              word_at(lane / 4 + j % 2 * 8, j / 2 * 2 + lane % 4 / 2, type) +
                              lane % 2 * 8) = (float2)(sum[2 * j], sum[2 * j + 1]);
        return;
    }
    UNROLL_FOR(int j = 0; j < 8; j += 2) {
        const float *s = sum + 4 * j;
        uint pairs[4];
        UNROLL_FOR(int i = 0; i < 4; i++)
            pairs[i] = round_pair_as(type == IS_F16, s[2 * i], s[2 * i + 1]);
        store_matrices(piece_at + word_at(lane % 16, j + lane / 16, type),
                       (uint4)(pairs[0], pairs[1], pairs[2], pairs[3]));
    }
}

/* With SCATTER: loads the addresses of the four lines of which a thread stores words. They are
 * every fourth of the warp's 16 lines, from lane / 8 on; 0 beyond `end`. */
static inline void find_lines(ulong addresses[4], int line, int end, global const ulong *table) {
    line += lane_again() / 8;
    UNROLL_FOR(int i = 0; i < 4; i++)
        addresses[i] = line + 4 * i < end ? table[line + 4 * i] : 0;
}

/* The column of a matrix that corresponds to a column of a tile: the same column, or that of its
 * gate or up in v. */
enum { OWN_COLUMNS, GATES, UPS };
static inline uint column_in(uint column, int as, uint columns) {
    return as == OWN_COLUMNS ? column : column_in_v(column, columns, as == UPS);
}

/* Stores columns first to last - 1, multiples of 64, of 16 lines of a warp in a matrix of type
 * `type`. `piece`: local memory for OUTS pieces, also as an address; `addresses`: only with
 * SCATTER. */
INLINED void store_lines(const float *sum, int first, int last, local uchar *piece, uint piece_at,
                         tile t, uint columns, global uchar *c, ulong ldc, const ulong *addresses,
                         int type, int as) {
    const int bytes = type == IS_F32 ? 4 : 2, width = 128 / bytes;
    const uint lane = lane_again(), word = lane % 8;
    const int line = t.line + (int)(lane / 8);
    const uint column = t.column + word * (16 / bytes);
    const int step =
        RUN == 0 || as == OWN_COLUMNS ? 128 : 256; /* runs of gates and ups alternate */
    global uchar *to = c + (line * ldc + column_in(column, as, columns)) * bytes;
    UNROLL_FOR(int i = first / width; i < last / width; i++) {
        const uint at = i % OUTS * PIECE_BYTES;
        sync_warp();
        put_piece(sum + i * (width / 2), type, piece + at, piece_at + at);
        sync_warp();
        UNROLL_FOR(int r = 0; r < 16; r += 4) {
            const uint4 value =
                *(local const uint4 *)(piece + at + word_at(r + lane / 8, word, type));
            if (!(SCATTER ? addresses[r / 4] != 0 : line + r < t.end) ||
                column + i * width >= columns)
                continue;
            global uchar *at =
                SCATTER ? (global uchar *)addresses[r / 4] + column * bytes : to + r * ldc * bytes;
            *(global uint4 *)(at + i * step) = value;
        }
    }
}

/* Computes the tiles of a consumer. Inlined despite its length: in a called function, wgmma would
 * not be asynchronous. */
INLINED void consume(shape s, uint base, local uchar *arena, epilogue e, global uchar *c,
                     ulong ldc) {
    const uint consumer = get_local_id(0) / 128 - 1, warp = get_local_id(0) % 128 / 32;
    const uint out = OUT_AT + (consumer * 4 + warp) * OUTS * PIECE_BYTES;
    local const tile *tiles = (local const tile *)(arena + TILES_AT);
    for (uint step = 0;;) {
        await(base + FULL_AT + step % STAGES * 8, step / STAGES);
        tile t = tiles[step % STAGES];
        if (t.k_size < 0)
            return;
        t.line += consumer * 64;
        if (SPLITS && t.split && t.line >= t.end) {
            const uint count = max((t.k_size + BLOCK_K - 1) / BLOCK_K + OLD_STEPS, 1);
            skip_tile(base, step, count, consumer);
            step += count;
            continue;
        }
        ulong addresses[4];
        if (SCATTER) /* before the loop, which hides the latency */
            find_lines(addresses, t.line + (int)warp * 16, t.end, (global const ulong *)c);
        float sum[128];
        UNROLL_FOR(int i = 0; i < 128; i++)
            sum[i] = 0.0f;
        for (int k = 0; k < t.k_size; k += BLOCK_K, step++) {
            const uint stage = step % STAGES, a = base + stage * STAGE_BYTES;
            await(base + FULL_AT + 8 * stage, step / STAGES);
            if (ORIENTATION == WGRAD && t.k_size - k < BLOCK_K)
                clear_rows(arena + stage * STAGE_BYTES, t.k_size - k, consumer);
            multiply(sum, matrix_at(a + consumer * BOX_BYTES, TRANSPOSED_A),
                     matrix_at(a + A_BYTES, TRANSPOSED_B));
            wgmma_wait(1); /* waits for the GEMM of the previous block */
            if (k > 0)
                release_stage(base + EMPTY_AT + (step - 1) % STAGES * 8);
        }
        wgmma_wait(0);
        if (t.k_size > 0) {
            release_stage(base + EMPTY_AT + (step - 1) % STAGES * 8);
        } else if (OLD_STEPS == 0) {
            barrier_of(1 + consumer, 128); /* all work-items have read the tile */
            release_stage(base + EMPTY_AT + step++ % STAGES * 8);
        }
        t.line += warp * 16;
        if (OLD_STEPS > 0) {
            finishing f = begin_finish(t, s.columns, e);
            UNROLL for (int j = 0; j < OLD_STEPS; j++, step++) {
                const uint stage = step % STAGES;
                float2 old[STORES][2];
                await(base + FULL_AT + 8 * stage, step / STAGES);
                read_old(old, arena + stage * STAGE_BYTES + (consumer * 4 + warp) * 2048);
                finish_batch(sum, j * STORES, old, &f, t, s.columns, e, c, ldc);
                barrier_of(1 + consumer, 128); /* all work-items have read the stage */
                release_stage(base + EMPTY_AT + 8 * stage);
                store_lines(sum, j * 64, j * 64 + 64, arena + out, base + out, t, s.columns, c, ldc,
                            addresses, RESULT, OWN_COLUMNS);
            }
            if (AMAX)
                raise_amax(f.peak, t, e);
            continue;
        }
        if (GLU) {
            finish_gates(sum, t, s.columns, e);
#if V && KEEPS_V
            store_lines(sum, 0, RESULTS, arena + out, base + out, t, s.columns, e.v, e.ldv,
                        addresses, V_TYPE, GATES);
            store_lines(sum + SPAN / 4, 0, RESULTS, arena + out, base + out, t, s.columns, e.v,
                        e.ldv, addresses, V_TYPE, UPS);
#endif
            finish_glu(sum, t, s.columns, e, c, ldc);
        } else {
            finish(sum, t, s.columns, e, c, ldc);
        }
        store_lines(sum, 0, RESULTS, arena + out, base + out, t, s.columns, c, ldc, addresses,
                    RESULT, OWN_COLUMNS);
    }
}

kernel __attribute__((reqd_work_group_size(384, 1, 1))) void nvidia_gemm(
    tensor_map a, tensor_map b, tensor_map old, global uchar *c, global const uint *group_ends,
    global const float *alpha, global const float *beta, global const float *factor,
    global const uchar *bias, global int *amax, global uchar *v, moert_nvidia_gemm_args args,
    global const uchar *a_payload, global const uchar *a_scales, global uint4 *a_bf16,
    global const uchar *b_payload, global const uchar *b_scales, global uint4 *b_bf16,
    global uint *counts) {
    local __attribute__((aligned(1024))) uchar arena[1040];
    const uint base = local_address(arena), thread = get_local_id(0);
    const shape s = {args.skip, args.groups, args.lines, args.columns, args.terms};
    const epilogue e = epilogue_of(alpha, beta, factor, bias, amax, v, args);
    local uint *ends = (local uint *)(arena + ENDS_AT);
    if (thread == 0) {
        *(local uint *)(arena + TOTAL_AT) = 0;
        begin_ring(base + FULL_AT, base + EMPTY_AT, STAGES, 1, 2);
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
            decode_ahead(s, (quantized){a_payload, a_scales, a_bf16},
                         (quantized){b_payload, b_scales, b_bf16}, ends, counts);
        if (COUNTED)
            leave(counts);
    } else {
        claim_registers(CONSUMER_REGISTERS);
        consume(s, base, arena, e, SCATTER ? c : c + args.first_column * (RESULT == IS_F32 ? 4 : 2),
                args.ldc);
        if (COUNTED)
            pass_barrier(BAR_DONE, 384);
    }
}
