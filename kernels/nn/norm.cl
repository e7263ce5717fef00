/*
 * RMSNorm over the rows of x[R,W], and its gradients.
 *
 *   forward   rstd[r] = 1 / sqrt(sum_c x[r,c]^2 / W + epsilon),  y[r,c] = x[r,c] * rstd[r] *
 *             weight[c]
 *   dx        g[r,c] = dy[r,c] * weight[c],  s[r] = sum_c g[r,c] * x[r,c]
 *             dx[r,c] (+)= rstd[r] * g[r,c] - x[r,c] * rstd[r]^3 / W * s[r]
 *   partial   partial[p,c] = sum over the rows r of piece p, ascending, of dy[r,c] * x[r,c] *
 *             rstd[r]
 *
 * y and dx are float32 matrices, bf16 matrices, or both, as RESULTS says. All other matrices are
 * float32. All matrices are row-major without padding; W is any positive number. A piece is `block`
 * rows of a sequence, counted from its first row. On GPUs norm_sum_pieces adds the pieces of each
 * sequence; on CPUs norm_partial does, in the same order.
 *
 * A row group owns `block` rows (forward, dx), or COLUMNS columns of a piece (partial), and reads
 * rows twice. If STEPS is not 0, GROUPS_PER_ROW row groups own a row together and keep it in
 * registers, and norm_gradients computes dx and a piece in one pass. Local memory on GPUs: 132
 * bytes for each row group; 16 KiB (norm_sum_pieces). On CPUs a work-item adds the parts of a row,
 * `part` columns each, in the order in which row groups add them on GPUs.
 *
 * If ROTATED is 1, rows are heads, `heads` for each token of a sequence of `length`. The first
 * `rotated` columns of y are rotated by the token's position, as by rope.cl; those of dy are
 * rotated back before use. For this an item also reads the partners of its columns, rotated / 2
 * columns away.
 *
 * Required: COLUMNS, a multiple of VEC; STEPS, steps of a row group's part of a row, or 0;
 * GROUPS_PER_ROW; RESULTS, 1 (float32), 2 (bf16) or 3 (both); ROTATED (0, 1; 1 only with STEPS,
 * `rotated` a multiple of 8, and results that are not the input).
 *
 * Deterministic: a sum over a row runs by lane and then over the lanes as a tree, so a row's result
 * depends on that row only. A column's sum has one accumulator per piece, and pieces are added in
 * an order that depends on their number only.
 */
#if !defined(COLUMNS) || !defined(STEPS) || !defined(GROUPS_PER_ROW) || !defined(RESULTS) ||       \
    !defined(ROTATED)
#error "COLUMNS, STEPS, GROUPS_PER_ROW, RESULTS and ROTATED must be defined"
#endif
#include "args/nn.h"
#include "lib/row_groups.h"
#if STEPS == 0
#include "nn/norm_streamed.h"
#else
#include "nn/norm_held.h"
#endif

#if MOERT_ITEMS > 1
/* partial[s,c] = the sum of sequence s's pieces. Each row group adds every JOIN_ROW_GROUPS-th
 * piece. */
KERNEL_OF(JOIN_ROW_GROUPS)
void norm_sum_pieces(global const float *piece, global float *partial, moert_norm_args args) {
    SUMS_OF(JOIN_ROW_GROUPS);
    const int column = get_group_id(0) * VEC, n = args.width - column;
    const ulong end = (get_group_id(1) + 1) * args.pieces;
    vec sum = 0.0f;
    for (ulong row = get_group_id(1) * args.pieces + row_group_index(); row < end;
         row += ROWS_AHEAD * JOIN_ROW_GROUPS) {
        vec part[ROWS_AHEAD];
        UNROLL_FOR(int k = 0; k < ROWS_AHEAD; k++)
            part[k] = load_part(piece + (row + k * JOIN_ROW_GROUPS) * args.width + column,
                                row + k * JOIN_ROW_GROUPS < end ? n : 0);
        UNROLL_FOR(int k = 0; k < ROWS_AHEAD; k++)
            sum += part[k];
    }
    sum = sum_row_groups(sum, JOIN_ROW_GROUPS, sums);
    if (row_group_index() == 0)
        store_part(sum, partial + get_group_id(1) * args.width + column, n);
}
#endif
