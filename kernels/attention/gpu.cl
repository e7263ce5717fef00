/*
 * Causal attention with grouped-query heads in float32, for GPUs. Formulas, shapes and passes are
 * those of attention.cl.
 *
 * A work-group of 16 x 16 items owns OWN positions of one head of one sequence: queries in
 * attention_forward and attention_backward_q, keys in attention_backward_kv. It passes over the
 * keys (attention_backward_kv: the queries), called the others below, in blocks of 64, starting
 * with the first row that the causal mask lets through:
 *
 *                64 others
 *             +------------+
 *   OWN rows  |   scores   |  s, p, dp or ds
 *             +------------+
 *             +------------+
 *   OWN rows  |    sums    |  HEAD_SIZE wide
 *             +------------+
 *
 * Item (y, x) computes the own rows y * R to y * R + R - 1: scores of the others x, x + 16, x + 32
 * and x + 48, and sums of the columns 64 s + 4 x to 64 s + 4 x + 3 of each slice s. Both operands
 * go through local memory, DEPTH columns or 64 rows at a time.
 *
 * Required: HEAD_SIZE, D, any positive number; OWN, a multiple of 16 up to 64. An item holds up to
 * 2 * OWN * D / 256 sums in registers, plus scores. Local memory: 39 KiB.
 *
 * Deterministic, without atomics: blocks are counted from the start of the sequence. Blocks, and
 * the heads of a group, are summed in order, so a sequence's result depends on that sequence alone.
 */
#if !defined(HEAD_SIZE) || !defined(OWN)
#error "HEAD_SIZE and OWN must be defined"
#endif
#include "attention/gpu.h"
#include "attention/place.h"
#include "lib/elementary.h"

/* Turns the scores of the keys from `other` on into exp(score - running maximum), and rescales
 * total and sums when the maximum grows. */
INLINED void softmax_block(float score[R][4], int query, int other, float scale, float maximum[R],
                           float total[R], float4 sums[SLICES][R], local float4 *w) {
    float highest[R];
    UNROLL_FOR(int i = 0; i < R; i++) {
        highest[i] = -INFINITY;
        UNROLL_FOR(int j = 0; j < 4; j++) {
            const bool later = other + item_x() + 16 * j > query + item_y() * R + i;
            score[i][j] = later ? -INFINITY : scale * score[i][j];
            highest[i] = fmax(highest[i], score[i][j]);
        }
    }
    reduce_row(highest, true, w);
    UNROLL_FOR(int i = 0; i < R; i++) {
        highest[i] = fmax(highest[i], maximum[i]);
        const float keep = moert_expf(maximum[i] - highest[i]);
        maximum[i] = highest[i];
        total[i] *= keep;
        UNROLL_FOR(int s = 0; s < SLICES; s++)
            sums[s][i] *= keep;
        UNROLL_FOR(int j = 0; j < 4; j++) {
            score[i][j] = moert_expf(score[i][j] - highest[i]);
            total[i] += score[i][j];
        }
    }
}

/* Grid: {blocks of OWN queries, heads, sequences}; later blocks, which see more keys, start
 * first. */
GROUP void attention_forward(global const float *q, global const float *k, global const float *v,
                             global float *out, global float *lse, moert_attention_args args) {
    WORKSPACE;
    const place p = query_place(args, OWN);
    float maximum[R], total[R], score[R][4];
    float4 sums[SLICES][R];
    UNROLL_FOR(int i = 0; i < R; i++) {
        maximum[i] = -INFINITY;
        total[i] = 0.0f;
    }
    clear(sums);
    for (int key = 0; key < p.query + p.count; key += OTHERS) {
        const int keys = min(p.query + p.count - key, OTHERS);
        const size_t at = p.kv_from + key * p.kv_stride;
        score_gemm(q + p.from, p.stride, p.count, k + at, p.kv_stride, keys, w, score);
        softmax_block(score, p.query, key, args.scale, maximum, total, sums, w);
        put_weights(score, w);
        weighted_sum(v + at, p.kv_stride, keys, w, sums);
    }
    reduce_row(total, false, w);
    UNROLL_FOR(int i = 0; i < R; i++) {
        const int row = item_y() * R + i;
        if (row < p.count && item_x() == 0)
            lse[(p.token + p.query + row) * args.heads + p.head] =
                maximum[i] + moert_logf(total[i]);
        total[i] = 1.0f / total[i];
    }
    store_sums(sums, total, p.count, out + p.from, p.stride);
}

/* Grid: that of attention_forward. */
GROUP void attention_backward_q(BACKWARD_INPUTS, global float *dq, moert_attention_args args) {
    WORKSPACE;
    const place p = query_place(args, OWN);
    float normaliser[R], delta[R], factor[R], score[R][4], dscore[R][4];
    float4 sums[SLICES][R];
    dot_rows(dout + p.from, out + p.from, p.stride, p.count, w);
    UNROLL_FOR(int i = 0; i < R; i++) {
        const int row = item_y() * R + i;
        normaliser[i] = row < p.count ? lse[(p.token + p.query + row) * args.heads + p.head] : 0.0f;
        delta[i] = row_dot(w, row);
        factor[i] = args.scale;
    }
    clear(sums);
    for (int key = 0; key < p.query + p.count; key += OTHERS) {
        const int keys = min(p.query + p.count - key, OTHERS);
        const size_t at = p.kv_from + key * p.kv_stride;
        score_gemm(q + p.from, p.stride, p.count, k + at, p.kv_stride, keys, w, score);
        score_gemm(dout + p.from, p.stride, p.count, v + at, p.kv_stride, keys, w, dscore);
        UNROLL_FOR(int i = 0; i < R; i++)
            UNROLL_FOR(int j = 0; j < 4; j++) {
                const bool later = key + item_x() + 16 * j > p.query + item_y() * R + i;
                const float weight = moert_expf(args.scale * score[i][j] - normaliser[i]);
                dscore[i][j] = later ? 0.0f : weight * (dscore[i][j] - delta[i]);
            }
        put_weights(dscore, w);
        weighted_sum(k + at, p.kv_stride, keys, w, sums);
    }
    store_sums(sums, factor, p.count, dq + p.from, p.stride);
}

/* Grid: {blocks of OWN keys, kv_heads, sequences}. */
GROUP void attention_backward_kv(BACKWARD_INPUTS, global float *dk, global float *dv,
                                 moert_attention_args args) {
    WORKSPACE;
    const int key = (int)get_group_id(0) * OWN, kv_head = get_group_id(1),
              group = args.heads / args.kv_heads;
    const int count = min((int)args.length - key, OWN);
    const size_t token = get_group_id(2) * args.length, stride = args.heads * HEAD_SIZE,
                 kv_stride = args.kv_heads * HEAD_SIZE;
    const size_t kv_from = (token + key) * kv_stride + kv_head * HEAD_SIZE;
    float factor[R], one[R], score[R][4], dscore[R][4];
    float4 dksums[SLICES][R], dvsums[SLICES][R];
    UNROLL_FOR(int i = 0; i < R; i++) {
        factor[i] = args.scale;
        one[i] = 1.0f;
    }
    clear(dksums);
    clear(dvsums);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int query = key; query < (int)args.length; query += OTHERS) {
            const int queries = min((int)args.length - query, OTHERS);
            const size_t at = (token + query) * stride + head * HEAD_SIZE;
            score_gemm(k + kv_from, kv_stride, count, q + at, stride, queries, w, score);
            score_gemm(v + kv_from, kv_stride, count, dout + at, stride, queries, w, dscore);
            dot_rows(dout + at, out + at, stride, queries, w);
            UNROLL_FOR(int j = 0; j < 4; j++) {
                const int other = item_x() + 16 * j;
                const float normaliser =
                    other < queries ? lse[(token + query + other) * args.heads + head] : 0.0f;
                const float delta = row_dot(w, other);
                UNROLL_FOR(int i = 0; i < R; i++) {
                    const bool earlier = query + other < key + item_y() * R + i || other >= queries;
                    const float p =
                        earlier ? 0.0f : moert_expf(args.scale * score[i][j] - normaliser);
                    score[i][j] = p;
                    dscore[i][j] = p * (dscore[i][j] - delta);
                }
            }
            put_weights(score, w);
            weighted_sum(dout + at, stride, queries, w, dvsums);
            put_weights(dscore, w);
            weighted_sum(q + at, stride, queries, w, dksums);
        }
    store_sums(dksums, factor, count, dk + kv_from, kv_stride);
    store_sums(dvsums, one, count, dv + kv_from, kv_stride);
}
