/*
 * The consumers of wgmma.cl: they multiply the blocks of a tile, apply the epilogue and store the
 * results. Every function is inlined: in a called function, wgmma would not be asynchronous.
 */

/* ---- the sums of a tile ---- */

/* Clears the rows from `k_size` on in the boxes that a consumer multiplies: its own box of A and
 * all boxes of B. Both consumers clear B, so that neither waits for the other. */
static inline void clear_rows(local uchar *stage, uint k_size, uint consumer) {
    for (uint box = 1; box < 6; box++)
        for (uint at = k_size * 128 + get_local_id(0) % 128 * 16; at < BOX_BYTES; at += 128 * 16)
            *(local uint4 *)(stage + (box == 1 ? consumer : box) * BOX_BYTES + at) = (uint4)(0);
    fence_tensor();
    barrier_of(1 + consumer, 128);
}

/* sum += 64 lines x 64 K values of a by 64 K values x 256 columns of b. */
static inline void multiply(float *sum, ulong a, ulong b) {
    const uint next_a = TRANSPOSED_A ? 128 : 2,
               next_b = TRANSPOSED_B ? 128 : 2; /* 16 K values, in 16-byte units */
    wgmma_fence();
    UNROLL_FOR(int i = 0; i < 4; i++)
        WGMMA(sum, a + i * next_a, b + i * next_b, TRANSPOSED_A, TRANSPOSED_B);
    wgmma_commit();
}

/* Adds the blocks of a tile, from `step` on. A stage is released when the GEMM of the next block
 * has begun; the last one is not released. */
INLINED void add_blocks(float *sum, uint base, local uchar *arena, uint step, int k_size,
                        uint consumer) {
    for (int k = 0; k < k_size; k += BLOCK_K, step++) {
        const uint stage = step % STAGES, a = base + stage * STAGE_BYTES;
        await_full(base, step);
        if (ORIENTATION == WGRAD && k_size - k < BLOCK_K)
            clear_rows(arena + stage * STAGE_BYTES, k_size - k, consumer);
        multiply(sum, matrix_at(a + consumer * BOX_BYTES, TRANSPOSED_A),
                 matrix_at(a + A_BYTES, TRANSPOSED_B));
        wgmma_wait(1); /* waits for the GEMM of the previous block */
        if (k > 0)
            release_stage(base, step - 1);
    }
    wgmma_wait(0);
}

/* Skips `count` steps of a tile in which this consumer has no lines. */
INLINED void skip_tile(ring r, uint count) {
    barrier_of(1 + r.consumer, 128); /* all work-items have read the tile */
    if (get_local_id(0) % 128 < 32)
        for (uint step = r.step; step < r.step + count; step++) {
            await_full(r.base, step);
            release_stage(r.base, step);
        }
    /* Without this barrier a work-item could be two rounds of the stage's barrier ahead, and take
     * one round for the other. */
    barrier_of(1 + r.consumer, 128);
}

/* ---- the results of a tile ---- */

/* With SCATTER: loads the addresses of the four lines of which a thread stores words. These lines
 * are every fourth of the warp's 16 lines, from line lane / 8 on. A line beyond `end` gets the
 * address 0. */
static inline void find_lines(ulong addresses[4], int line, int end, global const ulong *table) {
    line += lane_again() / 8;
    UNROLL_FOR(int i = 0; i < 4; i++)
        addresses[i] = line + 4 * i < end ? table[line + 4 * i] : 0;
}

/* Reads a thread's old values of a batch of 64 columns; `lines`: its warp's first line in a
 * stage. */
static inline void read_old(float2 old[STORES][2], local const uchar *lines) {
    const uint lane = lane_again(), row = lane / 4;
    UNROLL_FOR(int b = 0; b < STORES; b++)
        UNROLL_FOR(int i = 0; i < 2; i++) {
            local const uchar *line = lines + (row + 8 * i) * 128;
            if (RESULT == IS_F32)
                old[b][i] =
                    *(local const float2 *)(line + b / 4 * OLD_BYTES +
                                            ((b % 4 * 2 + lane % 4 / 2) ^ row) * 16 + lane % 2 * 8);
            else
                old[b][i] = widen_pair(RESULT == IS_F16,
                                       *(local const uint *)(line + (b ^ row) * 16 + lane % 4 * 4));
        }
}

/* Adds old values as they arrive, and stores the results. */
INLINED void finish_old(float *sum, ring r, tile t, epilogue e, pieces own, target to) {
    const uint warp = get_local_id(0) % 128 / 32;
    finishing f = begin_finish(t, e);
    UNROLL for (int j = 0; j < OLD_STEPS; j++, r.step++) {
        float2 old[STORES][2];
        await_full(r.base, r.step);
        read_old(old, r.arena + r.step % STAGES * STAGE_BYTES + (r.consumer * 4 + warp) * 2048);
        finish_batch(sum, j * STORES, old, &f, t, e);
        barrier_of(1 + r.consumer, 128); /* all work-items have read the stage */
        release_stage(r.base, r.step);
        store_lines(sum, 1.0f, j * 64, j * 64 + 64, own, t, to);
    }
    if (AMAX)
        raise_amax(f.peak, t, e);
}

/* Applies the epilogue and stores the results, with a GLU also v. */
INLINED void finish_new(float *sum, tile t, epilogue e, pieces own, target to) {
    if (GLU) {
        finish_gates(sum, t, e);
#if V && KEEPS_V
        const target gates = {e.v, e.ldv, e.columns, V_TYPE, GATES, 0},
                     ups = {e.v, e.ldv, e.columns, V_TYPE, UPS, 0};
        store_lines(sum, 1.0f, 0, RESULTS, own, t, gates);
        store_lines(sum + SPAN / 4, 1.0f, 0, RESULTS, own, t, ups);
#endif
        finish_glu(sum, t, e);
    } else {
        finish(sum, t, e);
    }
    store_lines(sum, 1.0f, 0, RESULTS, own, t, to);
}

/* Computes the tiles of a consumer. */
INLINED void consume(uint base, local uchar *arena, epilogue e) {
    const uint consumer = get_local_id(0) / 128 - 1, warp = get_local_id(0) % 128 / 32;
    const uint out = OUT_AT + (consumer * 4 + warp) * OUTS * PIECE_BYTES;
    const pieces own = {arena + out, base + out};
    ring r = {base, 0, consumer, arena};
    for (;;) {
        await_full(base, r.step);
        tile t = ((local const tile *)(arena + TILES_AT))[r.step % STAGES];
        if (t.k_size < 0)
            return;
        const int blocks = (t.k_size + BLOCK_K - 1) / BLOCK_K;
        t.line += consumer * 64;
        if (SPLITS && t.split && t.line >= t.end) {
            const uint count = max(blocks + OLD_STEPS, 1);
            skip_tile(r, count);
            r.step += count;
            continue;
        }
        ulong addresses[4];
        if (SCATTER) /* loads addresses here, so that the GEMM hides the latency */
            find_lines(addresses, t.line + (int)warp * 16, t.end, (global const ulong *)e.c);
        const target to = {e.c, e.ldc, e.columns, RESULT, OWN_COLUMNS, addresses};
        float sum[128];
        UNROLL_FOR(int i = 0; i < 128; i++)
            sum[i] = 0.0f;
        add_blocks(sum, base, arena, r.step, t.k_size, consumer);
        r.step += blocks;
        if (t.k_size > 0) {
            release_stage(base, r.step - 1);
        } else if (OLD_STEPS == 0) {
            barrier_of(1 + consumer, 128); /* all work-items have read the tile */
            release_stage(base, r.step++);
        }
        t.line += warp * 16;
        if (OLD_STEPS > 0)
            finish_old(sum, r, t, e, own, to);
        else
            finish_new(sum, t, e, own, to);
        r.step += OLD_STEPS;
    }
}
