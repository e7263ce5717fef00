/*
 * The producers of fp8.cl: the walk over the tiles, and the ring of stages in local memory
 * through which blocks of both operands, their scales and what tile it is reach the consumers.
 *
 *     stage of the ring    LINES x 128 bytes of a, COLUMNS x 128 bytes of b, both swizzled; SCALES
 *                          floats; a tile
 *     barrier FULL         one arrival for the operands, which also counts their bytes, and 3 for
 *                          the scales
 *     barrier EMPTY        one arrival of each of the consumers' 8 warps
 */
#define LINES       128
#define COLUMNS     256
#define TERMS       128
#define WIDTH       128 /* columns of a part */
#define PARTS       (COLUMNS / WIDTH)
#define PART_SUMS   (WIDTH / 2) /* of a work-item */
#define STEP        32          /* terms of a wgmma */
#define A_BYTES     (LINES * TERMS)
#define STAGE_BYTES ((LINES + COLUMNS) * TERMS)
#define PIECE_BYTES 2048
#define TURN                                                                                       \
    4 /* and 5: the barriers at which the consumers wait for their turns; clear_terms has 3 */
#define BLOCK  128                                 /* columns that share a scale, but for WGRAD */
#define RIGHT  (WGRAD ? COLUMNS : COLUMNS / BLOCK) /* scales of a block of the second factor */
#define SCALES (LINES + (WGRAD ? COLUMNS : 4))
#define SHARE  ((LINES + RIGHT + 95) / 96) /* of a work-item that brings scales */

/* Offsets in the arena. */
#define OUT_AT    (STAGES * STAGE_BYTES)
#define FULL_AT   (OUT_AT + 8 * OUTS * PIECE_BYTES)
#define EMPTY_AT  (FULL_AT + 8 * STAGES)
#define TILES_AT  (FULL_AT + 128)
#define SCALES_AT (TILES_AT + 32 * STAGES)
#define ENDS_AT   (SCALES_AT + 4 * SCALES * STAGES)

/* What the consumers must know of a tile; group -1: there are no more. */
typedef struct tile {
    int group, line, end,
        column; /* its first line and column, and the end of the group's lines, in the result */
    uint terms;
} tile;

/* Where the walk over the groups is: tiles of the group from `base` on, rows from `first` to
 * `last`, blocks of rows. */
typedef struct walk {
    uint group, first, last, base, block;
} walk;

typedef struct shape {
    uint groups, lines, columns, terms; /* lines of all groups, of WGRAD of each */
} shape;

/* Scales: where they lie, see fp8.cl. */
typedef struct scales {
    global const float *s, *t;
    uint s_line, t_group, t_block, t_column;
} scales;

static inline uint blocks_of(uint terms) {
    return (terms + TERMS - 1) / TERMS;
}

static inline uint tiles_down(const shape *s, const walk *w) {
    return ((WGRAD ? s->lines : w->last - w->first) + LINES - 1) / LINES;
}

/* Finds the group of tile n, which grows from call to call; false past the last one. */
static inline bool find_group(const shape *s, local const uint *ends, uint n, walk *w) {
    const uint across = (s->columns + COLUMNS - 1) / COLUMNS;
    for (; w->group < s->groups; w->group++) {
        w->first = w->group > 0 ? ends[w->group - 1] : 0;
        w->last = ends[w->group];
        const uint count = tiles_down(s, w) * across;
        if (n - w->base < count)
            return true;
        w->base += count;
        w->block += blocks_of(w->last - w->first);
    }
    return false;
}

/* Where a block of terms is: of the tile that begins at (line, column) of the group at which the
 * walk is. */
typedef struct place {
    uint line, column, block;
} place;

/* The first work-item asks for both operands of a block. */
static inline void load_operands(const walk *w, place at, ulong map_a, ulong map_b, uint stage,
                                 uint full) {
    const uint term = (WGRAD ? w->first & ~15u : 0) + at.block * TERMS; /* TMA takes no others */
    expect(full, STAGE_BYTES);
    load_box(stage, map_a, term, WGRAD ? at.line : w->first + at.line, 0, full);
    load_box(stage + LINES * TERMS, map_b, term, at.column, WGRAD ? 0 : w->group, full);
}

/* Scale j of a block: of its lines, then of its columns; those past the end are the last ones. */
static inline float load_scale(const shape *s, const scales *of, const walk *w, place at, uint j) {
    const uint block = WGRAD ? min(w->block + at.block, of->s_line - 1) : at.block,
               unit = WGRAD ? 1 : BLOCK;
    if (j < LINES)
        return of
            ->s[min((WGRAD ? at.line : w->first + at.line) + j, s->lines - 1) * of->s_line + block];
    return of->t[w->group * of->t_group + block * of->t_block +
                 min(at.column / unit + j - LINES, (s->columns - 1) / unit) * of->t_column];
}

/*
 * Brings the blocks of all tiles of this work-group, one after the other, as stages become free:
 * work-item 0 asks for the operands and says what tile it is; warps 1 to 3 bring the scales, which
 * they have asked for before.
 */
static inline void produce(shape s, const scales *of, ulong map_a, ulong map_b, uint base,
                           local uchar *arena) {
    const uint across = (s.columns + COLUMNS - 1) / COLUMNS;
    const bool brings_scales = get_local_id(0) >= 32;
    local const uint *ends = (local const uint *)(arena + ENDS_AT);
    walk w = {0, 0, 0, 0, 0};
    uint step = 0;
    for (uint n = get_group_id(0);; n += get_num_groups(0)) {
        const bool more = find_group(&s, ends, n, &w);
        const uint down = tiles_down(&s, &w), nth = n - w.base;
        const uint high = nth / (GROUP * across) * GROUP, rest = nth % (GROUP * across),
                   span = min(GROUP, (int)(down - high));
        place at = {(high + rest % span) * LINES, rest / span * COLUMNS, 0};
        const uint terms = WGRAD ? w.last - w.first : s.terms, blocks = more ? blocks_of(terms) : 0;
        for (; at.block < max(blocks, 1u); at.block++, step++) {
            const uint stage = step % STAGES, full = base + FULL_AT + 8 * stage,
                       empty = base + EMPTY_AT + 8 * stage;
            float own[SHARE];
            if (SCALED && brings_scales && blocks > 0)
                UNROLL_FOR(uint i = 0; i < SHARE; i++)
                    own[i] = load_scale(&s, of, &w, at, get_local_id(0) - 32 + 96 * i);
            if (step >= STAGES)
                await(empty, step / STAGES - 1);
            if (SCALED && brings_scales) {
                local float *to =
                    (local float *)(arena + SCALES_AT) + stage * SCALES + get_local_id(0) - 32;
                UNROLL_FOR(uint i = 0; i < SHARE; i++)
                    if (blocks > 0 && get_local_id(0) - 32 + 96 * i < LINES + RIGHT)
                        to[96 * i] = own[i];
                sync_warp();
                if (get_local_id(0) % 32 == 0)
                    arrive(full);
                continue;
            }
            if (at.block == 0)
                *(local tile *)(arena + TILES_AT + 32 * stage) = (tile){
                    more ? (int)w.group : -1, at.line + (WGRAD ? w.group * s.lines : w.first),
                    WGRAD ? (w.group + 1) * s.lines : w.last, at.column, terms};
            if (blocks > 0)
                load_operands(&w, at, map_a, map_b, base + stage * STAGE_BYTES, full);
            else
                arrive(full);
        }
        if (!more)
            return;
    }
}
