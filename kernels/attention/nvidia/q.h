/* The pass BACKWARD_Q of attention.cl, whose tiles are queries. A work-group has one tile. */

INLINED void produce(place at, tensors t, maps of, uint base) {
    const range seen = blocks_seen(at, at.first, OWN);
    uint step = 0;
    load_kept(at, of.q, of.dout, base);
    ROLLED for (int block = seen.begin; block < seen.end; block++, step += 2)
        load_keys(at, of, base, block, step);
}

/* Hands back the stages of steps [step, end), whose blocks only the other consumer needs. Returns
 * `end`. The warps of the consumer meet first, since no wgmma synchronises them here. Otherwise a
 * late warp would miss that a stage was full, if the producer had filled the stage again
 * meanwhile. */
INLINED uint skip_steps(uint base, uint step, uint end) {
    for (uint full = step; full < end; full++)
        await_full(base, full);
    if (step < end)
        meet_consumer();
    for (; step < end; step++)
        hand_back(base, step);
    return end;
}

/* Turns scores into ds by the own rows' lse and delta. `ahead` as in mask_unseen. */
INLINED void differentiate(float *score, const float *dscore, float factor, int ahead, int window,
                           const float *normaliser, const float *delta) {
    mask_unseen(score, ahead, window);
    UNROLL_FOR(int i = 0; i < 32; i++)
        score[i] =
            exp2_of(fma(score[i], factor, -normaliser[i / 2 % 2])) * (dscore[i] - delta[i / 2 % 2]);
}

#if KEY_SIZE <= 128 /* larger keys leave too few registers for the own rows of q and dout */
#define SCORE_Q(block)    score_gemm_rs(score, own_q, KEY_SIZE, block)
#define SCORE_DOUT(block) score_gemm_rs(dscore, own_dout, VALUE_SIZE, block)
#else
#define SCORE_Q(block)    score_gemm_ss(score, q, KEY_SIZE, block)
#define SCORE_DOUT(block) score_gemm_ss(dscore, dout, VALUE_SIZE, block)
#endif

INLINED void consume(place at, tensors t, uint base, local const uchar *arena) {
    const int consumer = get_local_id(0) / 128 - 1, first = at.first + consumer * ROWS;
    const range seen = blocks_seen(at, first, ROWS);
    const int blocks = seen.end - seen.begin, ahead = first - seen.begin * BLOCK;
    const uint q = base + consumer * ROWS * KEY_SIZE * 2,
               dout = base + OWN * KEY_SIZE * 2 + consumer * ROWS * VALUE_SIZE * 2;
    global const float *stats =
        stats_of(at, t, at.head, min(first / ROWS, blocks_of(at.length) - 1)) + own_row();
    float normaliser[2], delta[2], sums[KEY_SIZE / 2], score[32], dscore[32];
    uint weights[4][4];
    UNROLL_FOR(int side = 0; side < 2; side++) {
        normaliser[side] = stats[8 * side];
        delta[side] = stats[ROWS + 8 * side];
    }
    clear(sums, KEY_SIZE / 2);
    await(base + KEPT_AT, 0);
#if KEY_SIZE <= 128
    uint own_q[STEPS(KEY_SIZE)][4], own_dout[STEPS(VALUE_SIZE)][4];
    load_own(own_q, KEY_SIZE, q);
    load_own(own_dout, VALUE_SIZE, dout);
#endif
    uint step = 0;
    if (WINDOW)
        step = skip_steps(base, 0, 2 * (seen.begin - blocks_seen(at, at.first, OWN).begin));
    await_full(base, step);
    await_full(base, step + 1);
    wgmma_fence();
    SCORE_Q(stage_at(base, step));
    SCORE_DOUT(stage_at(base, step + 1));
    wgmma_commit();
    wgmma_wait(0);
    hand_back(base, step + 1);
    differentiate(score, dscore, t.factor, ahead, at.window, normaliser, delta);
    round_weights(score, weights);
    for (int block = 1; block < blocks; block++) {
        const uint k = step + 2 * block, v = k + 1;
        await_full(base, k);
        await_full(base, v);
        wgmma_fence();
        SCORE_Q(stage_at(base, k));
        SCORE_DOUT(stage_at(base, v));
        wgmma_commit();
        sum_keys(sums, weights, stage_at(base, k - 2));
        wgmma_commit();
        wgmma_wait(1);
        hand_back(base, v);
        differentiate(score, dscore, t.factor, ahead - block * ROWS, at.window, normaliser, delta);
        wgmma_wait(0);
        hand_back(base, k - 2);
        round_weights(score, weights);
    }
    wgmma_fence();
    sum_keys(sums, weights, stage_at(base, step + 2 * blocks - 2));
    wgmma_commit();
    wgmma_wait(0);
    const float factor[2] = {t.scale, t.scale};
    store_rows(sums, KEY_SIZE, factor, at, opaque(first), at.heads, t.result);
}
