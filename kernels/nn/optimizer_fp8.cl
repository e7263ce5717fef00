/*
 * The optimizers of optimizer.cl for weights [M,N] that FP8 GEMMs read. Also writes the new weights
 * as FP8 operands in tiles of 128 x 128, with the bytes that fp8_operands.cl would write with
 * TILES. So no separate pass reads the weights again.
 *
 * The weights are whole tensors: args.at, args.first and args.first_part are 0. The parts of
 * optimizer.cl are whole tiles of rows. A work-group of 8 row groups updates a tile; a row group
 * holds its 16 rows in registers until the tile's scale is known.
 *
 * Required: the defines of fp8_operands.cl with ALONG 1, DOWN 1, X_BF16 0 and TILES; BF16_MOMENTS
 * and BF16_GRADIENT, as in optimizer.cl; the GPU form. Optional: SGD. Grid: (N / 128, M / 128).
 * Local memory: 21504 bytes. Deterministic.
 */
#if !defined(TILES) || !defined(ALIGNED) || MOERT_ITEMS == 1
#error "TILES and ALIGNED must be defined, in the GPU form"
#endif
#define AHEAD 2 /* rows; with more, only one work-group would run on an SM */
#include "nn/update.h"
#include "quant/fp8_rows.h"

KERNEL_OF(ROW_GROUPS)
void OPTIMIZER(global float *restrict parameter, global const gradient_type *restrict gradient,
               global moment *restrict first_moment, global moment *restrict second_moment,
               global const ulong *restrict keys, global uint *along, global float *along_scale,
               global uchar *down, global float *down_scale, moert_update_fp8_args all) {
    ROW_GROUP_OF(ROW_GROUPS);
    PEAKS;
    local uint4 turned[BLOCK * WORDS];
    const moert_update_args args = all.update;
    const moert_quantize_args shape = {
        .q_bytes = all.height, .scales = all.height / BLOCK, .columns = all.columns};
    const uint column = get_group_id(0) * BLOCK, slot = get_group_id(1), row = slot * BLOCK;
    const part p = {0, row, BLOCK, slot, column, column + BLOCK};
    task t = {&shape, p, 0, along, along_scale, down_scale, down};
    find_down(&t, 0, 0);
    const ulong columns = shape.columns, first = row * columns + column;
    const ulong index = first / args.part, before = index * args.part;
    const ulong key = key_of(args, keys, index);
    loaded own[HELD];
    UNROLL_FOR(int r = 0; r < HELD; r += AHEAD) {
        const ulong i = first + (first_held() + r) * columns;
        const weights w = {parameter + i,
                           gradient + args.gradient_at + i,
                           first_moment + args.state_at + i,
                           second_moment + args.state_at + i,
                           i - before,
                           key};
        update_batch(args, &w, columns, VEC, 0, own + r);
    }
    round_tile(&t, own, column, row_group[row_group_index()], peaks, turned);
}
