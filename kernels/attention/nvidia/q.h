/* The passes of attention.cl whose work-groups own queries: FORWARD and BACKWARD_Q. */

/* Loads the blocks of one tile into the ring, from step number `step` on; returns the next
 * number. */
INLINED uint produce(place at, tensors t, ulong map, uint base, uint step) {
    const int blocks = blocks_until(at, at.first + ROWS), begin = first_block(at, at.first),
              kv_head = at.head / (at.heads / at.kv_heads);
    if (PASS == BACKWARD_Q)
        load_kept(at, map, base, (2 * at.kv_heads + at.head) * HEAD_SIZE,
                  (2 * at.kv_heads + at.heads + at.head) * HEAD_SIZE);
    ROLLED for (int i = 2 * begin; i < 2 * blocks; i++, step++) {
        const uint full = claim_stage(base, step, BLOCK_BYTES);
        load_block(stage_at(base, step), map, (i % 2 * at.kv_heads + kv_head) * HEAD_SIZE,
                   at.offset + i / 2 * ROWS, at.sequence, full);
    }
    return step;
}

/* Hands back the stages of steps [step, end), whose blocks only the other consumer needs. Returns
 * `end`. No wgmma holds the warps together here: one that is late would miss that a stage was full,
 * if it had been filled again meanwhile. */
INLINED uint skip_steps(uint base, uint step, uint end) {
    for (uint full = step; full < end; full++)
        await_full(base, full);
    if (step < end)
        meet_consumer();
    for (; step < end; step++)
        release_stage(base, step);
    return end;
}

#if PASS == FORWARD
/* The maximum that weights refer to moves only when a score exceeds it by more than SLACK, since a
 * move rescales all sums. Weights are at most 2^SLACK. */
#define SLACK 8.0f

/* Below all scores, but finite: in a block that it does not see a query has only -INFINITY. */
#define LOWEST -1e30f

/* Turns scores into weights 2^(score - running maximum). keep[side] is the factor for the sums of
 * all earlier blocks. `ahead` as in mask_unseen. */
INLINED void softmax_block(float *score, int ahead, int window, float *maximum, float *total,
                           float *keep) {
    mask_unseen(score, ahead, window);
    UNROLL_FOR(int side = 0; side < 2; side++) {
        float highest = maximum[side], sum = 0.0f;
        UNROLL_FOR(int j = 0; j < 16; j++)
            highest = larger(highest, score[j / 2 * 4 + 2 * side + j % 2]);
        highest = row_max(highest);
        highest = highest > maximum[side] + SLACK ? highest : maximum[side];
        UNROLL_FOR(int j = 0; j < 16; j++) {
            float *s = score + j / 2 * 4 + 2 * side + j % 2;
            *s = exp2_of(*s - highest);
            sum += *s;
        }
        keep[side] = exp2_of(maximum[side] - highest);
        total[side] = fma(total[side], keep[side], sum);
        maximum[side] = highest;
    }
}

INLINED uint consume(place at, tensors t, uint base, local const uchar *arena, uint step) {
    const int first = at.first + (get_local_id(0) / 128 - 1) * ROWS;
    const int begin = first_block(at, first), blocks = blocks_until(at, first) - begin;
    const int ahead = first - begin * ROWS; /* of the first block; `first` may be past the end */
    const uint end = step + 2 * (blocks_until(at, at.first + ROWS) - first_block(at, at.first));
    const int count = at.length - first;
    const size_t stride = at.heads * HEAD_SIZE, row = at.token + first;
    const size_t from = row * stride + at.head * HEAD_SIZE;
    const float sink = t.sinks != 0 ? LOG2E * t.sinks[at.head] : LOWEST; /* the score of no key */
    const float of_sink = t.sinks != 0 && get_local_id(0) % 4 == 0 ? 1.0f : 0.0f;
    float maximum[2] = {sink, sink}, total[2] = {of_sink, of_sink}, keep[2], sums[HEAD_SIZE / 2],
          score[32];
    uint own[STEPS][4], weights[4][4];
    load_rows(own, t.q + from, stride, count, t.scale * LOG2E);
    clear(sums);
    if (WINDOW)
        step = skip_steps(base, step, step + 2 * (begin - first_block(at, at.first)));
    await_full(base, step);
    wgmma_fence();
    score_gemm_rs(score, own, stage_at(base, step));
    wgmma_commit();
    wgmma_wait(0);
    release_stage(base, step);
    softmax_block(score, ahead, at.window, maximum, total, keep);
    round_weights(score, weights);
    for (int block = 1; block < blocks; block++) {
        const uint k = step + 2 * block, v = k - 1;
        await_full(base, v);
        await_full(base, k);
        wgmma_fence();
        score_gemm_rs(score, own, stage_at(base, k));
        wgmma_commit();
        weighted_sum(sums, weights, stage_at(base, v));
        wgmma_commit();
        wgmma_wait(1);
        release_stage(base, k);
        softmax_block(score, ahead - block * ROWS, at.window, maximum, total, keep);
        wgmma_wait(0);
        release_stage(base, v);
        round_weights(score, weights);
        if (any_lane(keep[0] != 1.0f || keep[1] != 1.0f))
            UNROLL_FOR(int i = 0; i < HEAD_SIZE / 2; i++)
                sums[i] *= keep[i / 2 % 2];
    }
    step += 2 * blocks - 1;
    await_full(base, step);
    wgmma_fence();
    weighted_sum(sums, weights, stage_at(base, step));
    wgmma_commit();
    wgmma_wait(0);
    release_stage(base, step++);
    step = skip_steps(base, step, end); /* a block of later keys */
    UNROLL_FOR(int side = 0; side < 2; side++) {
        const float all = row_sum(total[side]);
        const int own_side = own_row() + 8 * side;
        if (own_side < count && get_local_id(0) % 4 == 0)
            t.other[(row + own_side) * at.heads + at.head] = LN2 * (maximum[side] + log2_of(all));
        keep[side] = 1.0f / all;
    }
    store_rows(sums, keep, at, first, at.heads, t.result);
    if (t.out_bf16 != 0)
        store_bf16(sums, keep, count, t.out_bf16 + from, stride);
    return step;
}

#elif PASS == BACKWARD_Q
/* Turns scores into ds by the own rows' lse and delta. `ahead` as in mask_unseen. */
INLINED void differentiate(float *score, const float *dscore, int ahead, int window,
                           const float *normaliser, const float *delta) {
    mask_unseen(score, ahead, window);
    UNROLL_FOR(int i = 0; i < 32; i++)
        score[i] = exp2_of(score[i] - normaliser[i / 2 % 2]) * (dscore[i] - delta[i / 2 % 2]);
}

INLINED uint consume(place at, tensors t, uint base, local const uchar *arena, uint step) {
    const int consumer = get_local_id(0) / 128 - 1, first = at.first + consumer * ROWS;
    const int begin = first_block(at, first), blocks = blocks_until(at, first) - begin;
    const int ahead = first - begin * ROWS;
    const uint q = base + consumer * BLOCK_BYTES, dout = q + 2 * BLOCK_BYTES;
    global const float *stats =
        stats_of(at, t, at.head, min(first / ROWS, blocks_of(at.length) - 1)) + own_row();
    float normaliser[2], delta[2], sums[HEAD_SIZE / 2], score[32], dscore[32];
    uint weights[4][4];
    UNROLL_FOR(int side = 0; side < 2; side++) {
        normaliser[side] = stats[8 * side];
        delta[side] = stats[ROWS + 8 * side];
    }
    clear(sums);
    await(base + KEPT_AT, 0);
    if (WINDOW)
        step = skip_steps(base, step, 2 * (begin - first_block(at, at.first)));
    await_full(base, step);
    await_full(base, step + 1);
    wgmma_fence();
    score_gemm_ss(score, q, stage_at(base, step));
    score_gemm_ss(dscore, dout, stage_at(base, step + 1));
    wgmma_commit();
    wgmma_wait(0);
    release_stage(base, step + 1);
    differentiate(score, dscore, ahead, at.window, normaliser, delta);
    round_weights(score, weights);
    for (int block = 1; block < blocks; block++) {
        const uint k = step + 2 * block, v = k + 1;
        await_full(base, k);
        await_full(base, v);
        wgmma_fence();
        score_gemm_ss(score, q, stage_at(base, k));
        score_gemm_ss(dscore, dout, stage_at(base, v));
        wgmma_commit();
        weighted_sum(sums, weights, stage_at(base, k - 2));
        wgmma_commit();
        wgmma_wait(1);
        release_stage(base, v);
        differentiate(score, dscore, ahead - block * ROWS, at.window, normaliser, delta);
        wgmma_wait(0);
        release_stage(base, k - 2);
        round_weights(score, weights);
    }
    wgmma_fence();
    weighted_sum(sums, weights, stage_at(base, step + 2 * blocks - 2));
    wgmma_commit();
    wgmma_wait(0);
    const float factor[2] = {t.scale, t.scale};
    store_rows(sums, factor, at, opaque(first), at.heads, t.result);
    return step; /* a work-group has one tile in this pass */
}
#endif
