/*
 * The producer of wgmma.cl: it walks over the tiles and fills a ring of stages in local memory with
 * blocks of both operands, old values, and descriptions of tiles, for the consumers.
 *
 *     stage of the ring    LINES x 64 values of A and COLUMNS x 64 of B, or 64 columns of old
 *                          values of LINES lines, in boxes of 128 bytes a row, swizzled
 *     barrier FULL         one arrival, and the bytes that TMA writes
 *     barrier EMPTY        one arrival of each consumer
 */
/* The number of tiles that are not split. If the last round has tiles for at most half of the
 * work-groups, these are split. Tiles of weight gradients are never split, since they would gain
 * nothing. All work-items of the work-group call this; `total` must be 0 on entry. */
static inline uint whole_tiles(const shape *s, local const uint *ends, local uint *total) {
    if (!SPLITS)
        return ~0u;
    for (uint g = s->skip + get_local_id(0); g < s->groups; g += 384) {
        const walk w = {g, g > 0 ? ends[g - 1] : 0, ends[g], 0, 0};
        add_local(local_address(total), tiles_down(s, &w) * tiles_across(s));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint rest = *total % get_num_groups(0);
    return 2 * rest <= get_num_groups(0) ? *total - rest : *total;
}

/* A tile's first line and column in its group. */
typedef struct corner {
    int line, column;
} corner;

/* The index of tile `nth` of a column of tiles, if tiles are taken from SCATTER runs in
 * rotation. */
static inline uint scattered(uint nth, uint down) {
    const uint runs = max(SCATTER, 1), run = nth % runs;
    return run * (down / runs) + min(run, down % runs) + nth / runs;
}

static inline corner find_tile(const shape *s, const walk *w, uint k_size, uint nth) {
    const uint most = max((uint)GROUP, GROUP * 4096u / max(k_size, 1u)), down = tiles_down(s, w);
    const tile_position at = tile_position_of(nth, most, down, tiles_across(s));
    return (corner){scattered(at.down, down) * LINES, at.across * RESULTS};
}

/* Starts the loads of a block of both operands. */
static inline void load_blocks(const walk *w, corner at, int k, ulong map_a, ulong map_b, uint a,
                               uint full) {
    const int row = w->first;
    expect(full, STAGE_BYTES);
#if TRANSPOSED_A
    for (int i = 0; i < LINES / 64; i++)
        load_box(a + i * BOX_BYTES, map_a, at.line + 64 * i, row + k, 0, full);
#else
    load_box(a, map_a, k, row + at.line, 0, full);
#endif
#if GLU
    for (int i = 0; i < 2; i++)
        load_gated_box(a + A_BYTES + i * A_BYTES, map_b, k, RUN == 0 ? at.column : 0, i != SWAPPED,
                       RUN == 0 ? 0 : at.column / RUN, w->group, full);
#elif TRANSPOSED_B
    for (int i = 0; i < COLUMNS / 64; i++)
        load_box(a + A_BYTES + i * BOX_BYTES, map_b, at.column + 64 * i,
                 ORIENTATION == WGRAD ? row + k : k, ORIENTATION == WGRAD ? 0 : w->group, full);
#else
    load_box(a + A_BYTES, map_b, k, at.column, w->group, full);
#endif
}

/* The description of a tile for the consumers. */
static inline tile describe(const shape *s, const walk *w, corner at, int k_size, bool split) {
    const int first = ORIENTATION == WGRAD ? w->group * s->lines : w->first, line = first + at.line;
    const int end = ORIENTATION == WGRAD ? first + s->lines : w->last;
    return (tile){k_size, line, split ? min(end, line + 64) : end, at.column, w->group, split};
}

/* Starts the load of 64 columns of a tile's old values, part `nth` of them. */
static inline void load_old(const tile *t, int nth, ulong map_c, uint to, uint full) {
    expect(full, OLD_BOXES * OLD_BYTES);
    UNROLL_FOR(int i = 0; i < OLD_BOXES; i++) /* columns in units of 16 bits */
        load_box(to + i * OLD_BYTES, map_c, (t->column + nth * 64) * OLD_BOXES + i * 64, t->line, 0,
                 full);
}

/* Takes the next tile from the counter; without a counter, returns t. */
static inline uint take_tile(uint t, global uint *counts) {
    return COUNTED ? add_global(counts, 1) : t;
}

/* Waits until this work-group's consumers have finished, then until all tiles are complete. A
 * work-group that starts later finds no tile to compute. */
static inline void leave(global uint *counts) {
    barrier_of(BAR_DONE, 384);
    if (get_local_id(0) > 0)
        return;
    add_global(counts + 1, -1);
    while (acquire_global(counts + 1) > 0)
        ;
}

/* Starts the loads of all blocks of this work-group's tiles, in order, as stages become free. Tiles
 * from `whole` on are split into two halves of 64 lines, each for another work-group. */
static inline void produce(shape s, ulong map_a, ulong map_b, ulong map_c, uint base,
                           local tile *tiles, local const uint *ends, uint whole,
                           global uint *counts) {
    walk w = {s.skip, 0, 0, 0, 0};
    uint step = 0, known = ~0u; /* the group whose operands are known to be decoded */
    for (uint t = take_tile(get_group_id(0), counts);;
         t = take_tile(t + get_num_groups(0), counts)) {
        const bool split = t >= whole;
        const uint nth = split ? whole + (t - whole) / 2 : t;
        const bool more = find_group(&s, ends, nth, &w);
        const int k_size = ORIENTATION == WGRAD ? w.last - w.first : s.k_size,
                  steps = blocks_of(k_size);
        const int all = steps + OLD_STEPS;
        corner at = find_tile(&s, &w, k_size, nth - w.base);
        at.line += split ? (t - whole) % 2 * 64 : 0;
        const tile this_tile = describe(&s, &w, at, k_size, split);
        if (QUANTIZED && more && w.group != known)
            await_ready(counts + w.group);
        known = w.group;
        for (int k = 0; k < max(all, 1); k++, step++) {
            const uint stage = step % STAGES, full = claim_stage(base, step);
            if (!more) {
                tiles[stage].k_size = -1;
                arrive(full);
                return;
            }
            if (k == 0)
                tiles[stage] = this_tile;
            if (k < steps)
                load_blocks(&w, at, k * BLOCK_K, map_a, map_b, base + stage * STAGE_BYTES, full);
            else if (all > 0)
                load_old(&this_tile, k - steps, map_c, base + stage * STAGE_BYTES, full);
            else
                arrive(full);
        }
    }
}
