/* The pass BACKWARD_KV of attention.cl, whose tiles are keys and values. A work-group has one
 * tile. */

/* The number of the block after the last block with a query that sees an own key. */
INLINED int end_block(place at) {
    const int blocks = blocks_of(at.length);
    return WINDOW ? min(blocks, (at.first + OWN - 1 + at.window - 1) / ROWS + 1) : blocks;
}

/* Loads the blocks of queries, from the first one that sees an own key on, for each head of the
 * group. */
INLINED void produce(place at, tensors t, maps of, uint base) {
    uint step = 0;
    const int end = end_block(at), group = at.heads / at.kv_heads;
    load_kept(at, of.k, of.v, base);
    for (int head = at.head * group; head < (at.head + 1) * group; head++)
        ROLLED for (int block = at.first / ROWS; block < end; block++, step++) {
            const uint full = begin_stage(base, step, PAIR_BYTES + 512), to = stage_at(base, step);
            const int row = at.offset + block * ROWS;
            load_block(to, of.q, ROWS, KEY_SIZE, head * KEY_SIZE, row, at.sequence, full);
            load_block(to + KEY_BYTES, of.dout, ROWS, VALUE_SIZE, head * VALUE_SIZE, row,
                       at.sequence, full);
            load_bytes(base + STATS_AT + step % STAGES * 512, stats_of(at, t, head, block), 512,
                       full);
        }
}

/* Turns scores, keys by queries, into probabilities. `ahead` as in mask_unseen. */
INLINED void exponentiate(float *score, float factor, local const float *normaliser, int ahead,
                          int window) {
    mask_unseen(score, ahead, window);
    UNROLL_FOR(int j = 0; j < 8; j++) {
        const float2 pair = *(local const float2 *)(normaliser + own_column(j));
        UNROLL_FOR(int i = 0; i < 4; i++)
            score[4 * j + i] = exp2_of(fma(score[4 * j + i], factor, i % 2 ? -pair.y : -pair.x));
    }
}

#if KEY_SIZE <= 128
/* Turns the probabilities in `score` into ds. */
INLINED void differentiate(float *score, const float *dscore, local const float *delta) {
    UNROLL_FOR(int j = 0; j < 8; j++) {
        const float2 pair = *(local const float2 *)(delta + own_column(j));
        UNROLL_FOR(int i = 0; i < 4; i++)
            score[4 * j + i] *= dscore[4 * j + i] - (i % 2 ? pair.y : pair.x);
    }
}
#else
/* Turns dscore into ds; the probabilities are those in `weights`. */
INLINED void differentiate_rounded(float *dscore, uint weights[][4], local const float *delta) {
    UNROLL_FOR(int j = 0; j < 8; j++) {
        const float2 pair = *(local const float2 *)(delta + own_column(j));
        UNROLL_FOR(int i = 0; i < 2; i++) {
            const float2 p = widen_pair(0, weights[j / 2][j % 2 * 2 + i]);
            dscore[4 * j + 2 * i] = p.x * (dscore[4 * j + 2 * i] - pair.x);
            dscore[4 * j + 2 * i + 1] = p.y * (dscore[4 * j + 2 * i + 1] - pair.y);
        }
    }
}
#endif

/* If KEY_SIZE is at most 128, dp is computed while p is computed. For larger keys, both together
 * need more registers than exist: p is rounded first, and ds is computed from the rounded p. */
INLINED void consume(place at, tensors t, uint base, local const uchar *arena) {
    const int consumer = get_local_id(0) / 128 - 1, first = at.first + consumer * ROWS;
    const int blocks = end_block(at) - at.first / ROWS, steps = blocks * (at.heads / at.kv_heads);
    const uint k = base + consumer * ROWS * KEY_SIZE * 2,
               v = base + OWN * KEY_SIZE * 2 + consumer * ROWS * VALUE_SIZE * 2;
    float dksums[KEY_SIZE / 2], dvsums[VALUE_SIZE / 2], score[32], dscore[32];
    uint weights[4][4], dweights[4][4], step = 0;
    clear(dksums, KEY_SIZE / 2);
    clear(dvsums, VALUE_SIZE / 2);
    await(base + KEPT_AT, 0);
    int block = 0; /* number among the blocks of one head */
    do { /* at least one step: with a branch around the loop, ptxas would wait after every wgmma */
        const uint q = stage_at(base, step), dout = q + KEY_BYTES;
        local const float *stats = (local const float *)(arena + STATS_AT + step % STAGES * 512);
        await_full(base, step);
        wgmma_fence();
        score_gemm_ss(score, k, KEY_SIZE, q);
        wgmma_commit();
#if KEY_SIZE <= 128
        score_gemm_ss(dscore, v, VALUE_SIZE, dout);
        wgmma_commit();
        wgmma_wait(1); /* waits for `score` */
        exponentiate(score, t.factor, stats, (block - consumer) * ROWS, at.window);
        round_weights(score, weights);
        wgmma_fence();
#else
        wgmma_wait(0);
        exponentiate(score, t.factor, stats, (block - consumer) * ROWS, at.window);
        round_weights(score, weights);
        wgmma_fence();
        score_gemm_ss(dscore, v, VALUE_SIZE, dout);
        wgmma_commit();
#endif
        sum_values(dvsums, weights, dout);
        wgmma_commit();
        wgmma_wait(1); /* waits for `dscore` */
#if KEY_SIZE <= 128
        differentiate(score, dscore, stats + ROWS);
        round_weights(score, dweights);
#else
        differentiate_rounded(dscore, weights, stats + ROWS);
        round_weights(dscore, dweights);
#endif
        wgmma_fence();
        sum_keys(dksums, dweights, q);
        wgmma_commit();
        block = block + 1 < blocks ? block + 1 : 0;
        wgmma_wait(0); /* until here wgmma reads the registers of `dweights` */
        hand_back(base, step);
    } while (++step < (uint)steps);
    const float factor[2] = {t.scale, t.scale}, one[2] = {1.0f, 1.0f};
    store_rows(dksums, KEY_SIZE, factor, at, opaque(first), at.kv_heads, t.result);
    store_rows(dvsums, VALUE_SIZE, one, at, opaque(first), at.kv_heads, t.other);
}
