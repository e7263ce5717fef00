/*
 * The producer of wgmma.cl: the walk over the tiles, and the ring of stages in local memory
 * through which blocks of both operands, old values and what tile it is reach the consumers.
 *
 *     stage of the ring    LINES x 64 terms of the first factor and COLUMNS x 64 of the second, or
 *                          64 columns of old values of LINES lines, in boxes of 128 bytes a row,
 *                          swizzled
 *     barrier FULL         one arrival, and the bytes that TMA brings
 *     barrier EMPTY        one arrival of each consumer
 */
/* Where the walk over the groups is: tiles of the group from `base` on, lines or rows from `first`
 * to `last`. */
typedef struct walk {
    uint group, first, last, base;
} walk;

/* None if the old values stay as they are. */
static inline uint tiles_down(const shape *s, const walk *w) {
    const bool all = ORIENTATION == WGRAD ? BETA != 1 || w->last > w->first : false;
    return ((all ? s->lines : w->last - w->first) + LINES - 1) / LINES;
}

static inline uint tiles_across(const shape *s) {
    return (s->columns + RESULTS - 1) / RESULTS;
}

/* Finds the group of tile t, which grows from call to call; false past the last one. */
static inline bool find_group(const shape *s, local const uint *ends, uint t, walk *w) {
    for (; w->group < s->groups; w->group++) {
        w->first = w->group > 0 ? ends[w->group - 1] : 0;
        w->last = ends[w->group];
        const uint count = tiles_down(s, w) * tiles_across(s);
        if (t - w->base < count)
            return true;
        w->base += count;
    }
    return false;
}

/* How many tiles are taken as they are: if the last round has tiles for less than half of the
 * work-groups, not those (of a weight's gradient, which is as fast without, all). All work-items of
 * the work-group; `total` is 0. */
static inline uint whole_tiles(const shape *s, local const uint *ends, local uint *total) {
    if (!SPLITS)
        return ~0u;
    for (uint g = s->skip + get_local_id(0); g < s->groups; g += 384) {
        const walk w = {g, g > 0 ? ends[g - 1] : 0, ends[g], 0};
        add_local(local_address(total), tiles_down(s, &w) * tiles_across(s));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint rest = *total % get_num_groups(0);
    return 2 * rest <= get_num_groups(0) ? *total - rest : *total;
}

/* A tile's first line and column in its group. */
typedef struct place {
    int line, column;
} place;

/* Number `nth` of tiles in a column whose SCATTER runs take turns. */
static inline uint in_turns(uint nth, uint down) {
    const uint runs = max(SCATTER, 1), run = nth % runs;
    return run * (down / runs) + min(run, down % runs) + nth / runs;
}

static inline place find_tile(const shape *s, const walk *w, uint terms, uint nth) {
    const uint most = max((uint)GROUP, GROUP * 4096u / max(terms, 1u)), down = tiles_down(s, w),
               across = tiles_across(s);
    const uint high = nth / (most * across) * most, rest = nth % (most * across),
               span = min(most, down - high);
    return (place){in_turns(high + rest % span, down) * LINES, rest / span * RESULTS};
}

/* Asks for a block of both operands. */
static inline void bring(const walk *w, place at, int term, ulong map_a, ulong map_b, uint a,
                         uint full) {
    const int row = w->first;
    expect(full, STAGE_BYTES);
#if TRANSPOSED_A
    for (int i = 0; i < LINES / 64; i++)
        load_box(a + i * BOX_BYTES, map_a, at.line + 64 * i, row + term, 0, full);
#else
    load_box(a, map_a, term, row + at.line, 0, full);
#endif
#if GLU
    for (int i = 0; i < 2; i++)
        load_gated_box(a + A_BYTES + i * A_BYTES, map_b, term, RUN == 0 ? at.column : 0,
                       i != SWAPPED, RUN == 0 ? 0 : at.column / RUN, w->group, full);
#elif TRANSPOSED_B
    for (int i = 0; i < COLUMNS / 64; i++)
        load_box(a + A_BYTES + i * BOX_BYTES, map_b, at.column + 64 * i,
                 ORIENTATION == WGRAD ? row + term : term, ORIENTATION == WGRAD ? 0 : w->group,
                 full);
#else
    load_box(a + A_BYTES, map_b, term, at.column, w->group, full);
#endif
}

/* What the consumers must know of a tile. */
static inline tile describe(const shape *s, const walk *w, place at, int terms, bool split) {
    const int first = ORIENTATION == WGRAD ? w->group * s->lines : w->first, line = first + at.line;
    const int end = ORIENTATION == WGRAD ? first + s->lines : w->last;
    return (tile){terms, line, split ? min(end, line + 64) : end, at.column, w->group, split};
}

/* Asks for 64 columns of the old values, number `nth` of a tile. */
static inline void bring_old(const tile *t, int nth, ulong map_c, uint to, uint full) {
    expect(full, OLD_BOXES * OLD_BYTES);
    UNROLL_FOR(int i = 0; i < OLD_BOXES; i++) /* in numbers of 16 bits */
        load_box(to + i * OLD_BYTES, map_c, (t->column + nth * 64) * OLD_BOXES + i * 64, t->line, 0,
                 full);
}

/* The next tile, number `t` if none counts. */
static inline uint take_tile(uint t, global uint *counts) {
    return COUNTED ? add_global(counts, 1) : t;
}

/* Once the consumers have passed the barrier. Behind this all tiles are done: who comes later finds
 * none. */
static inline void leave(global uint *counts) {
    barrier_of(BAR_DONE, 384);
    if (get_local_id(0) > 0)
        return;
    add_global(counts + 1, -1);
    while (acquire_global(counts + 1) > 0)
        ;
}

/* Asks for the blocks of all tiles of this work-group, one after the other, as stages become free;
 * of those from number `whole` on each consumer has its half on an SM of its own. */
static inline void produce(shape s, ulong map_a, ulong map_b, ulong map_c, uint base,
                           local tile *tiles, local const uint *ends, uint whole,
                           global uint *counts) {
    walk w = {s.skip, 0, 0, 0};
    uint step = 0, known = ~0u; /* the group that has been decoded, if it must be */
    for (uint t = take_tile(get_group_id(0), counts);;
         t = take_tile(t + get_num_groups(0), counts)) {
        const bool split = t >= whole;
        const uint nth = split ? whole + (t - whole) / 2 : t;
        const bool more = find_group(&s, ends, nth, &w);
        const int terms = ORIENTATION == WGRAD ? w.last - w.first : s.terms,
                  steps = (terms + TERMS - 1) / TERMS;
        const int all = steps + OLD_STEPS;
        place at = find_tile(&s, &w, terms, nth - w.base);
        at.line += split ? (t - whole) % 2 * 64 : 0;
        const tile is = describe(&s, &w, at, terms, split);
        if (CODED && more && w.group != known)
            await_ready(counts + w.group);
        known = w.group;
        for (int k = 0; k < max(all, 1); k++, step++) {
            const uint stage = step % STAGES, full = base + FULL_AT + 8 * stage;
            if (step >= STAGES)
                await(base + EMPTY_AT + 8 * stage, step / STAGES - 1);
            if (!more) {
                tiles[stage].terms = -1;
                arrive(full);
                return;
            }
            if (k == 0)
                tiles[stage] = is;
            if (k < steps)
                bring(&w, at, k * TERMS, map_a, map_b, base + stage * STAGE_BYTES, full);
            else if (all > 0)
                bring_old(&is, k - steps, map_c, base + stage * STAGE_BYTES, full);
            else
                arrive(full);
        }
    }
}

/* Tells the producer that this consumer is done with a stage. */
static inline void give_back(uint empty) {
    if (get_local_id(0) % 128 == 0)
        arrive(empty);
}

/* Lets the steps of a tile pass in which a consumer has no line. */
static inline void pass_by(uint base, uint step, uint count, uint consumer) {
    barrier_of(1 + consumer, 128); /* all have read the tile */
    if (get_local_id(0) % 128 < 32)
        for (const uint last = step + count; step < last; step++) {
            await(base + FULL_AT + 8 * (step % STAGES), step / STAGES);
            give_back(base + EMPTY_AT + 8 * (step % STAGES));
        }
    barrier_of(1 + consumer,
               128); /* none is ahead by so much that it mistakes one round for another */
}
