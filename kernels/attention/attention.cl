/*
 * Causal attention with grouped-query heads in float32, for CPUs. N heads of q share M heads of k
 * and v: head h uses head g = h * M / N. D = HEAD_SIZE, E = VALUE_SIZE; i, j are positions of one
 * document: a sequence, or a part of it that `blocks` lists. q, dq [T,N,D]; k, dk [T,M,D]; v, dv
 * [T,M,E]; out, dout [T,N,E]; without gaps.
 *
 *   s[i,j] = scale * q[i] . k[j] for i - window < j <= i
 *   lse[i] = log (exp(sink[h]) + sum_j exp(s[i,j])),  p[i,j] = exp(s[i,j] - lse[i])
 *   out[i] = sum_j p[i,j] v[j]
 *   delta[i] = dout[i] . out[i],  ds[i,j] = p[i,j] * (dout[i] . v[j] - delta[i])
 *   dq[i] = scale * sum_j ds[i,j] k[j]
 *   dk[j] = scale * sum_h sum_i ds[i,j] q[i],  dv[j] = sum_h sum_i p[i,j] dout[i]
 *   with sum_h over the heads h of g, ascending
 *
 * Without sinks (null), exp(sink[h]) is 0. attention/sinks.cl computes their gradient.
 *
 * The forward is an online softmax (Milakov and Gimelshein, 2018; Dao et al., FlashAttention,
 * 2022).
 *
 * A work-group owns LANES positions of one head of one document: queries in attention_forward and
 * attention_backward_q, keys in attention_backward_kv. The work-group keeps its own vectors
 * transposed in local memory, one position per lane. The work-group passes over the other operand's
 * rows (keys, or queries in attention_backward_kv) in blocks of ROWS, which it reads in place. Each
 * FMA broadcasts one scalar of a row of the other operand:
 *
 *               LANES positions, one per lane
 *             +-------------------------+
 *   D or E    |  lanes  (transposed)    |
 *             +-------------------------+
 *   ROWS rows |  scores, s, p, dp or ds |  score_gemm: row . lane for each row and lane
 *   as stored |                         |
 *             +-------------------------+
 *   E or D    |  sums   (transposed)    |  weighted_sum adds sum_rows row[d] * weight[row,lane]
 *             +-------------------------+
 *
 * Softmax is elementwise over lanes.
 *
 * Blocks that the mask hides from all lanes are skipped.
 *
 * Required: HEAD_SIZE, D, and VALUE_SIZE, E, any positive numbers; LANE_VECS, LANES / 16, 1 or 2.
 * Local memory: 4 * LANES * (A * D + B * E + C * ROWS) bytes, with A, B, C = 1, 1, 2 (forward), 2,
 * 1, 2 (backward_q, plus 8 * LANES bytes), 2, 2, 2 (backward_kv).
 *
 * Deterministic, without atomics, and with the bits of gpu.cl: rows are added in ascending order.
 * attention_forward counts its blocks from the start of the document, and a block that the mask
 * hides from a lane does not change the lane's sums. So a document's result depends on that
 * document alone, and not on LANES.
 */
#if !defined(HEAD_SIZE) || !defined(VALUE_SIZE) || !defined(LANE_VECS)
#error "HEAD_SIZE, VALUE_SIZE and LANE_VECS must be defined"
#endif
#include "attention/cpu.h"
#include "attention/place.h"
#include "lib/elementary.h"

/* Turns one block of scores into exp(score - running maximum). keep[] is the factor by which the
 * sums of all earlier blocks must be multiplied. */
static inline void softmax_block(local vec *score, int row, int rows, const place *p, float scale,
                                 vec *maximum, vec (*total)[SUMS], vec *keep) {
    for (int v = 0; v < NV; v++) {
        int16 position = lane_positions(p->query, v);
        vec highest = maximum[v];
        for (int r = 0; r < rows; r++) {
            vec s = select((vec)-INFINITY, scale * score[r * NV + v],
                           sees(position - (row + r), p->window));
            score[r * NV + v] = s;
            highest = fmax(highest, s);
        }
        keep[v] = moert_exp(maximum[v] - highest);
        for (int i = 0; i < SUMS; i++)
            total[v][i] *= keep[v];
        for (int r = 0; r < rows; r++) {
            vec weight = moert_exp(score[r * NV + v] - highest);
            score[r * NV + v] = weight;
            total[v][r % SUMS] += weight;
        }
        maximum[v] = highest;
    }
}

/* Grid: {blocks of LANES queries, heads, sequences}, or {blocks, heads, 1} if `blocks` lists them;
 * later blocks, which see more keys, start first. */
KERNEL void attention_forward(FORWARD_INPUTS, global const float *sinks, global float *out,
                              global float *lse, moert_attention_args args) {
    local vec lanes[HEAD_SIZE * NV], sums[VALUE_SIZE * NV], score[KEYS * NV];
    const place p = query_place(blocks, args, LANES, KEYS);
    vec maximum[NV], total[NV][SUMS], keep[NV];
    UNROLL_FOR(int v = 0; v < NV; v++) {
        maximum[v] = sinks != 0 ? sinks[p.head] : LOWEST;
        for (int i = 0; i < SUMS; i++)
            total[v][i] = sinks != 0 && i == 0 ? 1.0f : 0.0f;
    }
    load_lanes(rows_from(q, p.row, args.heads, HEAD_SIZE), p.count, lanes);
    clear(sums, VALUE_SIZE);
    for (int row = p.first_key; row < p.end_key; row += KEYS) {
        int rows = min(p.end_key - row, KEYS);
        size_t at = p.kv_row + (size_t)row * args.kv_heads;
        score_gemm(rows_from(k, at, args.kv_heads, HEAD_SIZE), rows, lanes, score);
        softmax_block(score, row, rows, &p, args.scale, maximum, total, keep);
        weighted_sum(rows_from(v, at, args.kv_heads, VALUE_SIZE), rows, score, keep, sums);
    }
    UNROLL_FOR(int v = 0; v < NV; v++) {
        vec all = total[v][0];
        for (int i = 1; i < SUMS; i++)
            all += total[v][i];
        keep[v] = 1.0f / all;
        score[v] = maximum[v] + moert_log(all);
    }
    store_lanes(sums, keep, p.count, rows_from(out, p.row, args.heads, VALUE_SIZE));
    for (int i = 0; i < p.count; i++)
        lse[p.row + (size_t)i * args.heads] = ((local const float *)score)[i];
}

/* Grid: that of attention_forward. */
KERNEL void attention_backward_q(BACKWARD_INPUTS, global float *dq, moert_attention_args args) {
    local vec lanes[HEAD_SIZE * NV], dlanes[VALUE_SIZE * NV], sums[HEAD_SIZE * NV],
        score[ROWS * NV], dscore[ROWS * NV];
    local vec normaliser[NV], delta[NV];
    const place p = query_place(blocks, args, LANES, ROWS);
    vec keep[NV];
    for (int i = 0; i < LANES; i++) {
        size_t row = p.row + (size_t)min(i, p.count - 1) * args.heads;
        ((local float *)normaliser)[i] = lse[row];
        ((local float *)delta)[i] = dot_row(dout + row * VALUE_SIZE, out + row * VALUE_SIZE);
    }
    load_lanes(rows_from(q, p.row, args.heads, HEAD_SIZE), p.count, lanes);
    load_lanes(rows_from(dout, p.row, args.heads, VALUE_SIZE), p.count, dlanes);
    clear(sums, HEAD_SIZE);
    UNROLL_FOR(int i = 0; i < NV; i++)
        keep[i] = 1.0f;
    for (int row = p.first_key; row < p.end_key; row += ROWS) {
        int rows = min(p.end_key - row, ROWS);
        size_t at = p.kv_row + (size_t)row * args.kv_heads;
        head_rows keys = rows_from(k, at, args.kv_heads, HEAD_SIZE);
        score_gemm(keys, rows, lanes, score);
        score_gemm(rows_from(v, at, args.kv_heads, VALUE_SIZE), rows, dlanes, dscore);
        for (int r = 0; r < rows; r++)
            UNROLL_FOR(int i = 0; i < NV; i++) {
                vec weight = moert_exp(args.scale * score[r * NV + i] - normaliser[i]),
                    d = weight * (dscore[r * NV + i] - delta[i]);
                dscore[r * NV + i] =
                    select((vec)0.0f, d, sees(lane_positions(p.query, i) - (row + r), args.window));
            }
        weighted_sum(keys, rows, dscore, keep, sums);
    }
    UNROLL_FOR(int i = 0; i < NV; i++)
        keep[i] = args.scale;
    store_lanes(sums, keep, p.count, rows_from(dq, p.row, args.heads, HEAD_SIZE));
}

/* Grid: {blocks of LANES keys, kv_heads, sequences}, or {blocks, kv_heads, 1} if `blocks` lists
 * them. */
KERNEL void attention_backward_kv(BACKWARD_INPUTS, global float *dk, global float *dv,
                                  moert_attention_args args) {
    local vec klanes[HEAD_SIZE * NV], vlanes[VALUE_SIZE * NV], dksums[HEAD_SIZE * NV],
        dvsums[VALUE_SIZE * NV];
    local vec score[ROWS * NV], dscore[ROWS * NV];
    const key_place p = key_place_of(blocks, args, LANES);
    vec keep[NV], factor[NV];
    UNROLL_FOR(int i = 0; i < NV; i++) {
        keep[i] = 1.0f;
        factor[i] = args.scale;
    }
    load_lanes(rows_from(k, p.kv_row, args.kv_heads, HEAD_SIZE), p.count, klanes);
    load_lanes(rows_from(v, p.kv_row, args.kv_heads, VALUE_SIZE), p.count, vlanes);
    clear(dksums, HEAD_SIZE);
    clear(dvsums, VALUE_SIZE);
    for (int head = p.first_head; head < p.end_head; head++)
        for (int row = p.key; row < p.end_query; row += ROWS) {
            int rows = min(p.end_query - row, ROWS);
            size_t at = (p.token + row) * args.heads + head;
            head_rows queries = rows_from(q, at, args.heads, HEAD_SIZE),
                      douts = rows_from(dout, at, args.heads, VALUE_SIZE);
            score_gemm(queries, rows, klanes, score);
            score_gemm(douts, rows, vlanes, dscore);
            for (int r = 0; r < rows; r++) {
                size_t own = at + (size_t)r * args.heads;
                float normaliser = lse[own];
                float delta = dot_row(dout + own * VALUE_SIZE, out + own * VALUE_SIZE);
                UNROLL_FOR(int i = 0; i < NV; i++) {
                    vec weight = moert_exp(args.scale * score[r * NV + i] - normaliser);
                    weight = select((vec)0.0f, weight,
                                    sees(row + r - lane_positions(p.key, i), args.window));
                    score[r * NV + i] = weight;
                    dscore[r * NV + i] = weight * (dscore[r * NV + i] - delta);
                }
            }
            weighted_sum(douts, rows, score, keep, dvsums);
            weighted_sum(queries, rows, dscore, keep, dksums);
        }
    store_lanes(dksums, factor, p.count, rows_from(dk, p.kv_row, args.kv_heads, HEAD_SIZE));
    store_lanes(dvsums, keep, p.count, rows_from(dv, p.kv_row, args.kv_heads, VALUE_SIZE));
}
