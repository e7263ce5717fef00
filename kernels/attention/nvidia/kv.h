/* The pass of attention.cl whose work-groups own keys and values: BACKWARD_KV. */

/* The end of the blocks whose queries see an own key. */
INLINED int end_block(place at) {
    const int blocks = blocks_of(at.length);
    return WINDOW ? min(blocks, (at.first + OWN - 1 + at.window - 1) / ROWS + 1) : blocks;
}

/* Loads the blocks of queries, from the first one that sees an own key on, for each head of the
 * group. */
INLINED uint produce(place at, tensors t, ulong map, uint base, uint step) {
    const int end = end_block(at), group = at.heads / at.kv_heads, q_column = 2 * at.kv_heads;
    load_kept(at, map, base, at.head * HEAD_SIZE, (at.kv_heads + at.head) * HEAD_SIZE);
    for (int head = at.head * group; head < (at.head + 1) * group; head++)
        ROLLED for (int block = at.first / ROWS; block < end; block++, step++) {
            const uint full = claim_stage(base, step, STAGE_BYTES + 512), to = stage_at(base, step);
            const int row = at.offset + block * ROWS;
            load_block(to, map, (q_column + head) * HEAD_SIZE, row, at.sequence, full);
            load_block(to + BLOCK_BYTES, map, (q_column + at.heads + head) * HEAD_SIZE, row,
                       at.sequence, full);
            load_bytes(base + STATS_AT + step % STAGES * 512, stats_of(at, t, head, block), 512,
                       full);
        }
    return step;
}

/* Turns scores, keys by queries, into probabilities. `ahead` as in mask_unseen. */
INLINED void exponentiate(float *score, local const float *normaliser, int ahead, int window) {
    mask_unseen(score, ahead, window);
    UNROLL_FOR(int j = 0; j < 8; j++) {
        const float2 pair = *(local const float2 *)(normaliser + own_column(j));
        UNROLL_FOR(int i = 0; i < 4; i++)
            score[4 * j + i] = exp2_of(score[4 * j + i] - (i % 2 ? pair.y : pair.x));
    }
}

/* Turns the probabilities in `score` into ds. */
INLINED void differentiate(float *score, const float *dscore, local const float *delta) {
    UNROLL_FOR(int j = 0; j < 8; j++) {
        const float2 pair = *(local const float2 *)(delta + own_column(j));
        UNROLL_FOR(int i = 0; i < 4; i++)
            score[4 * j + i] *= dscore[4 * j + i] - (i % 2 ? pair.y : pair.x);
    }
}

INLINED uint consume(place at, tensors t, uint base, local const uchar *arena, uint step) {
    const int consumer = get_local_id(0) / 128 - 1, first = at.first + consumer * ROWS;
    const int blocks = end_block(at) - at.first / ROWS, steps = blocks * (at.heads / at.kv_heads);
    const uint k = base + consumer * BLOCK_BYTES, v = k + 2 * BLOCK_BYTES;
    float dksums[HEAD_SIZE / 2], dvsums[HEAD_SIZE / 2], score[32], dscore[32];
    uint weights[4][4], dweights[4][4];
    clear(dksums);
    clear(dvsums);
    await(base + KEPT_AT, 0);
    int block = 0; /* among those of one head */
    do { /* at least one step: with a branch around the loop, ptxas would wait after every wgmma */
        const uint q = stage_at(base, step), dout = q + BLOCK_BYTES;
        local const float *stats = (local const float *)(arena + STATS_AT + step % STAGES * 512);
        await_full(base, step);
        wgmma_fence();
        score_gemm_ss(score, k, q);
        wgmma_commit();
        score_gemm_ss(dscore, v, dout);
        wgmma_commit();
        wgmma_wait(1); /* waits for `score` */
        exponentiate(score, stats, (block - consumer) * ROWS, at.window);
        round_weights(score, weights);
        wgmma_fence();
        weighted_sum(dvsums, weights, dout);
        wgmma_commit();
        wgmma_wait(1); /* waits for `dscore` */
        differentiate(score, dscore, stats + ROWS);
        round_weights(score, dweights);
        wgmma_fence();
        weighted_sum(dksums, dweights, q);
        wgmma_commit();
        block = block + 1 < blocks ? block + 1 : 0;
        wgmma_wait(0); /* until here wgmma reads the registers of `dweights` */
        release_stage(base, step);
    } while (++step < (uint)steps);
    /* round.cl multiplied q by scale / log 2; the factor LN2 leaves scale */
    const float factor[2] = {LN2, LN2}, one[2] = {1.0f, 1.0f};
    store_rows(dksums, factor, at, opaque(first), at.kv_heads, t.result);
    store_rows(dvsums, one, at, opaque(first), at.kv_heads, t.other);
    return step;
}
