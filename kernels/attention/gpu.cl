/*
 * Causal attention with grouped-query heads in float32, for GPUs. Formulas, shapes and passes are
 * those of attention.cl.
 *
 * A work-group of 16 x 16 items owns OWN positions of one head of one document: queries in
 * attention_forward and attention_backward_q, keys in attention_backward_kv. The work-group passes
 * over the keys (attention_backward_kv: the queries), called the others below, in blocks of 64,
 * starting with the first row that the causal mask lets through:
 *
 *                64 others
 *             +------------+
 *   OWN rows  |   scores   |  s, p, dp or ds
 *             +------------+
 *             +------------+
 *   OWN rows  |    sums    |  VALUE_SIZE or HEAD_SIZE wide
 *             +------------+
 *
 * Item (y, x) computes the own rows y * R to y * R + R - 1: for each, the scores of rows x, x + 16,
 * x + 32 and x + 48 of the others, and the sums of columns 64 s + 4 x to 64 s + 4 x + 3 of each
 * slice s. Both operands of each GEMM are loaded into local memory, DEPTH columns or 64 rows at a
 * time.
 *
 * Required: HEAD_SIZE, D, and VALUE_SIZE, E, any positive numbers; OWN, a multiple of 16 up to 64.
 * An item holds up to OWN * (D + E) / 256 sums in registers, plus scores. Local memory: 39 KiB.
 *
 * Deterministic, without atomics: blocks are counted from the start of the document. Blocks, and
 * the heads of a group, are summed in order, so a document's result depends on that document alone.
 */
#if !defined(HEAD_SIZE) || !defined(VALUE_SIZE) || !defined(OWN)
#error "HEAD_SIZE, VALUE_SIZE and OWN must be defined"
#endif
#include "attention/gpu.h"
#include "attention/place.h"
#include "lib/elementary.h"

/* Whether a query sees a key `distance` positions before it: if 0 <= distance < window. */
INLINED bool sees(int distance, int window) {
    return (uint)distance < (uint)window;
}

/* Turns the scores of the keys from `other` on into exp(score - running maximum), and rescales
 * total and sums when the maximum grows. */
INLINED void softmax_block(float score[R][4], const place *p, int other, float scale,
                           float maximum[R], float total[R], float4 sums[SLICES_OF(VALUE_SIZE)][R],
                           local float4 *w) {
    float highest[R];
    UNROLL_FOR(int i = 0; i < R; i++) {
        highest[i] = -INFINITY;
        UNROLL_FOR(int j = 0; j < 4; j++) {
            const int distance = p->query + item_y() * R + i - (other + item_x() + 16 * j);
            score[i][j] = sees(distance, p->window) ? scale * score[i][j] : -INFINITY;
            highest[i] = fmax(highest[i], score[i][j]);
        }
    }
    reduce_row(highest, true, w);
    UNROLL_FOR(int i = 0; i < R; i++) {
        highest[i] = fmax(highest[i], maximum[i]);
        const float keep = moert_expf(maximum[i] - highest[i]);
        maximum[i] = highest[i];
        total[i] *= keep;
        UNROLL_FOR(int s = 0; s < SLICES_OF(VALUE_SIZE); s++)
            sums[s][i] *= keep;
        UNROLL_FOR(int j = 0; j < 4; j++) {
            score[i][j] = moert_expf(score[i][j] - highest[i]);
            total[i] += score[i][j];
        }
    }
}

/* Grid: {blocks of OWN queries, heads, sequences}, or {blocks, heads, 1} if `blocks` lists them;
 * later blocks, which see more keys, start first. */
GROUP void attention_forward(FORWARD_INPUTS, global const float *sinks, global float *out,
                             global float *lse, moert_attention_args args) {
    WORKSPACE;
    const place p = query_place(blocks, args, OWN, OTHERS);
    const head_rows own = rows_from(q, p.row, args.heads, HEAD_SIZE);
    float maximum[R], total[R], score[R][4];
    float4 sums[SLICES_OF(VALUE_SIZE)][R];
    UNROLL_FOR(int i = 0; i < R; i++) {
        maximum[i] = sinks != 0 ? sinks[p.head] : LOWEST;
        total[i] = sinks != 0 && item_x() == 0 ? 1.0f : 0.0f;
    }
    clear(sums, VALUE_SIZE);
    for (int key = p.first_key; key < p.end_key; key += OTHERS) {
        const int keys = min(p.end_key - key, OTHERS);
        const size_t at = p.kv_row + (size_t)key * args.kv_heads;
        score_gemm(own, p.count, rows_from(k, at, args.kv_heads, HEAD_SIZE), keys, w, score);
        softmax_block(score, &p, key, args.scale, maximum, total, sums, w);
        put_weights(score, w);
        weighted_sum(rows_from(v, at, args.kv_heads, VALUE_SIZE), keys, w, sums);
    }
    reduce_row(total, false, w);
    UNROLL_FOR(int i = 0; i < R; i++) {
        const int row = item_y() * R + i;
        if (row < p.count && item_x() == 0)
            lse[p.row + (size_t)row * args.heads] = maximum[i] + moert_logf(total[i]);
        total[i] = 1.0f / total[i];
    }
    store_sums(sums, total, p.count, rows_from(out, p.row, args.heads, VALUE_SIZE));
}

/* Grid: that of attention_forward. */
GROUP void attention_backward_q(BACKWARD_INPUTS, global float *dq, moert_attention_args args) {
    WORKSPACE;
    const place p = query_place(blocks, args, OWN, OTHERS);
    const head_rows own = rows_from(q, p.row, args.heads, HEAD_SIZE),
                    douts = rows_from(dout, p.row, args.heads, VALUE_SIZE);
    float normaliser[R], delta[R], factor[R], score[R][4], dscore[R][4];
    float4 sums[SLICES_OF(HEAD_SIZE)][R];
    dot_rows(douts, out + p.row * VALUE_SIZE, p.count, w);
    UNROLL_FOR(int i = 0; i < R; i++) {
        const int row = item_y() * R + i;
        normaliser[i] = row < p.count ? lse[p.row + (size_t)row * args.heads] : 0.0f;
        delta[i] = row_dot(w, row);
        factor[i] = args.scale;
    }
    clear(sums, HEAD_SIZE);
    for (int key = p.first_key; key < p.end_key; key += OTHERS) {
        const int count = min(p.end_key - key, OTHERS);
        const size_t at = p.kv_row + (size_t)key * args.kv_heads;
        const head_rows keys = rows_from(k, at, args.kv_heads, HEAD_SIZE);
        score_gemm(own, p.count, keys, count, w, score);
        score_gemm(douts, p.count, rows_from(v, at, args.kv_heads, VALUE_SIZE), count, w, dscore);
        UNROLL_FOR(int i = 0; i < R; i++)
            UNROLL_FOR(int j = 0; j < 4; j++) {
                const int distance = p.query + item_y() * R + i - (key + item_x() + 16 * j);
                const float weight = moert_expf(args.scale * score[i][j] - normaliser[i]);
                dscore[i][j] =
                    sees(distance, args.window) ? weight * (dscore[i][j] - delta[i]) : 0.0f;
            }
        put_weights(dscore, w);
        weighted_sum(keys, count, w, sums);
    }
    store_sums(sums, factor, p.count, rows_from(dq, p.row, args.heads, HEAD_SIZE));
}

/* Grid: {blocks of OWN keys, kv_heads, sequences}, or {blocks, kv_heads, 1} if `blocks` lists
 * them. */
GROUP void attention_backward_kv(BACKWARD_INPUTS, global float *dk, global float *dv,
                                 moert_attention_args args) {
    WORKSPACE;
    const key_place p = key_place_of(blocks, args, OWN);
    const head_rows keys = rows_from(k, p.kv_row, args.kv_heads, HEAD_SIZE),
                    values = rows_from(v, p.kv_row, args.kv_heads, VALUE_SIZE);
    float factor[R], one[R], score[R][4], dscore[R][4];
    float4 dksums[SLICES_OF(HEAD_SIZE)][R], dvsums[SLICES_OF(VALUE_SIZE)][R];
    UNROLL_FOR(int i = 0; i < R; i++) {
        factor[i] = args.scale;
        one[i] = 1.0f;
    }
    clear(dksums, HEAD_SIZE);
    clear(dvsums, VALUE_SIZE);
    for (int head = p.first_head; head < p.end_head; head++)
        for (int query = p.key; query < p.end_query; query += OTHERS) {
            const int count = min(p.end_query - query, OTHERS);
            const size_t at = (p.token + query) * args.heads + head;
            const head_rows queries = rows_from(q, at, args.heads, HEAD_SIZE),
                            douts = rows_from(dout, at, args.heads, VALUE_SIZE);
            score_gemm(keys, p.count, queries, count, w, score);
            score_gemm(values, p.count, douts, count, w, dscore);
            dot_rows(douts, out + at * VALUE_SIZE, count, w);
            UNROLL_FOR(int j = 0; j < 4; j++) {
                const int other = item_x() + 16 * j;
                const float normaliser =
                    other < count ? lse[at + (size_t)other * args.heads] : 0.0f;
                const float delta = row_dot(w, other);
                UNROLL_FOR(int i = 0; i < R; i++) {
                    const int distance = query + other - (p.key + item_y() * R + i);
                    const bool seen = sees(distance, args.window) && other < count;
                    const float weight =
                        seen ? moert_expf(args.scale * score[i][j] - normaliser) : 0.0f;
                    score[i][j] = weight;
                    dscore[i][j] = weight * (dscore[i][j] - delta);
                }
            }
            put_weights(score, w);
            weighted_sum(douts, count, w, dvsums);
            put_weights(dscore, w);
            weighted_sum(queries, count, w, dksums);
        }
    store_sums(dksums, factor, p.count, rows_from(dk, p.kv_row, args.kv_heads, HEAD_SIZE));
    store_sums(dvsums, one, p.count, rows_from(dv, p.kv_row, args.kv_heads, VALUE_SIZE));
}
