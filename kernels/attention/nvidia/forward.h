/*
 * The pass FORWARD of attention.cl. Work-groups take tiles one by one from a counter; `turn` counts
 * a work-group's tiles. One thread announces each tile to the others through two words of local
 * memory, used in turn.
 */

INLINED void announce_tile(uint base, local uchar *arena, uint turn, int tile) {
    if (turn > 1)
        await(base + TILE_EMPTY + turn % 2 * 8, turn / 2 - 1);
    ((volatile local int *)(arena + TILE_AT))[turn % 2] = tile;
    arrive(base + TILE_FULL + turn % 2 * 8);
}

INLINED int take_tile(uint base, local const uchar *arena, uint turn) {
    await(base + TILE_FULL + turn % 2 * 8, turn / 2);
    const int tile = ((volatile local const int *)(arena + TILE_AT))[turn % 2];
    arrive(base + TILE_EMPTY + turn % 2 * 8);
    return tile;
}

/* Loads the own rows of q of both consumers. */
INLINED void load_tile_queries(place at, ulong map, uint base, uint turn) {
    for (int consumer = 0; consumer < 2; consumer++) {
        const uint full = base + QUERIES_FULL + 8 * consumer,
                   to = base + QUERIES_AT + consumer * QUERIES_BYTES;
        if (turn > 0)
            await(base + QUERIES_EMPTY + 8 * consumer, turn - 1);
        expect(full, QUERIES_BYTES);
        load_block(to, map, ROWS, KEY_SIZE, at.head * KEY_SIZE,
                   at.offset + at.first + consumer * ROWS, at.sequence, full);
    }
}

/* Takes and announces tiles, and loads their queries. */
INLINED void produce_queries(moert_nvidia_attention_args args,
                             global const moert_attention_block *list, tensors t, ulong map,
                             uint base, local uchar *arena) {
    int tile = get_group_id(0);
    uint turn = 0;
    for (; tile < args.tiles; turn++) {
        announce_tile(base, arena, turn, tile);
        load_tile_queries(place_of(tile, args, list), map, base, turn);
        tile = get_num_groups(0) + count_global((global uint *)t.scratch);
    }
    announce_tile(base, arena, turn, tile);
}

/* Loads the blocks of all tiles into the ring, the last keys of a tile first. */
INLINED void produce_tiles(moert_nvidia_attention_args args,
                           global const moert_attention_block *list, maps of, uint base,
                           local uchar *arena) {
    uint turn = 0, step = 0;
    for (int tile; (tile = take_tile(base, arena, turn)) < args.tiles; turn++) {
        const place at = place_of(tile, args, list);
        const range seen = blocks_seen(at, at.first, OWN);
        ROLLED for (int block = seen.end - 1; block >= seen.begin; block--, step += 2)
            load_keys(at, of, base, block, step);
    }
}

/* The maximum that weights refer to moves only when a score exceeds it by more than SLACK, since a
 * move rescales all sums. Weights are at most 2^SLACK. */
#define SLACK 8.0f

/* LOWEST is below all scores, but finite, since a query that sees no key of a block has only scores
 * of -INFINITY. */
#define LOWEST -1e30f

/* The state of a work-item's two rows: the maximum that weights refer to, the weights' sum so far,
 * and the factor by which the last block multiplied all earlier sums. */
typedef struct rows {
    float maximum[2], total[2], keep[2];
} rows;

/* The state before the first block; a sink counts as a score without a key. */
INLINED void begin_rows(rows *of, tensors t, int head) {
    UNROLL_FOR(int side = 0; side < 2; side++) {
        of->maximum[side] = t.sinks != 0 ? LOG2E * t.sinks[head] : LOWEST;
        of->total[side] = t.sinks != 0 && get_local_id(0) % 4 == 0 ? 1.0f : 0.0f;
    }
}

/* Turns scores into weights 2^(factor * score - maximum). */
INLINED void softmax_block(float *score, float factor, rows *of) {
    UNROLL_FOR(int side = 0; side < 2; side++) {
        float highest = score[2 * side], sum = 0.0f;
        UNROLL_FOR(int j = 1; j < BLOCK / 4; j++)
            highest = larger(highest, score[j / 2 * 4 + 2 * side + j % 2]);
        highest = factor * row_max(highest);
        highest = highest > of->maximum[side] + SLACK ? highest : of->maximum[side];
        UNROLL_FOR(int j = 0; j < BLOCK / 4; j++) {
            float *s = score + j / 2 * 4 + 2 * side + j % 2;
            *s = exp2_of(fma(*s, factor, -highest));
            sum += *s;
        }
        of->keep[side] = exp2_of(of->maximum[side] - highest);
        of->total[side] = fma(of->total[side], of->keep[side], sum);
        of->maximum[side] = highest;
    }
}

/* own = the own rows of q. Rows past the document's end belong to the next document and are not
 * stored. The loads from local memory must end before the producer overwrites these rows with the
 * next tile's. No instruction here uses the loaded values, so a fence is needed. */
INLINED void take_queries(uint own[][4], uint base, uint turn) {
    const uint consumer = get_local_id(0) / 128 - 1;
    await(base + QUERIES_FULL + 8 * consumer, turn);
    load_own(own, KEY_SIZE, base + QUERIES_AT + consumer * QUERIES_BYTES);
    fence_tensor();
    arrive(base + QUERIES_EMPTY + 8 * consumer);
}

/* Stores the results of a tile. */
INLINED void store_tile(place at, tensors t, const float *sums, const rows *of) {
    const int first = at.first + (get_local_id(0) / 128 - 1) * ROWS, count = at.length - first;
    const size_t head = (at.token + first) * at.heads + at.head;
    float factor[2];
    UNROLL_FOR(int side = 0; side < 2; side++) {
        const float all = row_sum(of->total[side]);
        const int row = opaque(own_row()) + 8 * side;
        if (row < count && get_local_id(0) % 4 == 0)
            t.other[head + (size_t)row * at.heads] = LN2 * (of->maximum[side] + log2_of(all));
        factor[side] = 1.0f / all;
    }
    store_rows(sums, VALUE_SIZE, factor, at, first, at.heads, t.result);
    if (t.out_bf16 != 0)
        store_bf16(sums, VALUE_SIZE, factor, count, t.out_bf16 + head * VALUE_SIZE,
                   at.heads * VALUE_SIZE);
}

/* Adds a block's values (stage of `step`), multiplied by `weights`, to `sums`. Meanwhile computes
 * the next block's scores from its keys (stage of `step` + 1), and turns these scores into
 * `weights`. `ahead` as in mask_unseen. */
INLINED void add_block(float *sums, float *score, uint weights[][4], uint own[][4], rows *of,
                       float factor, int ahead, int window, uint base, uint step) {
    const uint v = step, k = step + 1;
    await_full(base, v);
    await_full(base, k);
    wgmma_fence();
    score_gemm_rs(score, own, KEY_SIZE, stage_at(base, k));
    wgmma_commit();
    sum_values(sums, weights, stage_at(base, v));
    wgmma_commit();
    wgmma_wait(1);
    hand_back(base, k);
    if (WINDOW ? true : BLOCK < OWN)
        mask_unseen(score, ahead, window);
    softmax_block(score, factor, of);
    wgmma_wait(0);
    hand_back(base, v);
    round_weights(score, weights);
    if (any_lane(of->keep[0] != 1.0f || of->keep[1] != 1.0f))
        UNROLL_FOR(int i = 0; i < VALUE_SIZE / 2; i++)
            sums[i] *= of->keep[i / 2 % 2];
}

/* Computes the next tile's first score while the current tile's last sum is computed and its
 * results are stored. After the last tile, this score comes from unspecified data and is not
 * used. */
INLINED void consume_tiles(moert_nvidia_attention_args args,
                           global const moert_attention_block *list, tensors t, uint base,
                           local uchar *arena) {
    float sums[VALUE_SIZE / 2], score[BLOCK / 2];
    uint own[STEPS(KEY_SIZE)][4], weights[STEPS(BLOCK)][4];
    rows of;
    uint turn = 0, step = 0;
    int tile = take_tile(base, arena, 0);
    take_queries(own, base, 0);
    await_full(base, 0);
    wgmma_fence();
    score_gemm_rs(score, own, KEY_SIZE, stage_at(base, 0));
    wgmma_commit();
    wgmma_wait(0);
    do {
        place at = place_of(tile, args, list);
        const range seen = blocks_seen(at, at.first, OWN);
        int block = seen.end - 1;
        int ahead = at.first + (get_local_id(0) / 128 - 1) * ROWS - block * BLOCK;
        begin_rows(&of, t, at.head);
        hand_back(base, step);
        clear(sums, VALUE_SIZE / 2);
        mask_unseen(score, ahead, at.window);
        softmax_block(score, t.factor, &of);
        round_weights(score, weights);
        for (step++; --block >= seen.begin; step += 2) {
            ahead += BLOCK;
            add_block(sums, score, weights, own, &of, t.factor, ahead, at.window, base, step);
        }
        await_full(base, step);
        wgmma_fence();
        sum_values(sums, weights, stage_at(base, step));
        wgmma_commit();
        const int next = take_tile(base, arena, ++turn);
        if (next < args.tiles) {
            take_queries(own, base, turn);
            await_full(base, step + 1);
        }
        wgmma_fence();
        score_gemm_rs(score, own, KEY_SIZE, stage_at(base, step + 1));
        wgmma_commit();
        wgmma_wait(1);
        hand_back(base, step++);
        store_tile(place_of(opaque(tile), args, list), t, sums, &of);
        tile = next;
        wgmma_wait(0);
    } while (tile < args.tiles);
}
