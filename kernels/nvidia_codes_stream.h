/*
 * Included by nvidia_codes.cl: from codes in global memory to stages that tensor cores read. An errand is what the first
 * team's first thread has to fetch, the parts of all tiles in turn; a stream is what a team decodes of it.
 */

/* ---- codes on their way ---- */

/* Slots of parts in turn. */
typedef struct ring {
    uint slot, round; /* the next slot's number, how often all have come before */
} ring;

static inline void advance(ring *r, uint slots)
{
    r->slot += slots;
    r->round += r->slot >= SLOTS;
    r->slot -= r->slot >= SLOTS ? SLOTS : 0;
}

typedef struct errand {
    place at;
    int part, term;
    ring to;
    ulong map_a, map_b;
} errand;

/* Asks for the next part, if there is one. */
static inline void fetch(const shape *s, local const uint *ends, uint base, errand *e)
{
    const uint to = base + SLOTS_AT + e->to.slot * SLOT_BYTES, barrier = base + CODES_AT + 8 * e->to.slot;
    if (!e->at.more)
        return;
    if (e->part == 0) {
        expect(barrier, ROWS * ROW_BYTES(A_FORMAT));
        load_box(to, e->map_a, e->term * CODE_BITS(A_FORMAT) / 8, e->at.first + e->at.line, 0, barrier);
    } else {
        expect(barrier, ROWS * ROW_BYTES(B_FORMAT));
        const int term = e->term * CODE_BITS(B_FORMAT) / 8, column = column_of(s, &e->at, e->part);
        load_box(to, e->map_b, TURNED ? column : term, TURNED ? term : column, e->at.group, barrier);
    }
    advance(&e->to, 1);
    if (++e->part < 3)
        return;
    e->part = FIRST_PART;
    e->term += TERMS;
    if (e->term < s->terms)
        return;
    e->term = 0;
    e->at.t += get_num_groups(0);
    locate(s, ends, &e->at);
}

/* ---- scales ---- */

typedef struct scales {
    global const uchar *p;
    uint lines, width; /* of the first factor, of a group of the second; scales of a line */
} scales;

/* Where the scales of a row lie, from the first term on: the row in the matrix of its group, which begins with row `first`
 * of all and tile `down`. */
static inline global const uchar *scales_of(const scales *s, int layout, uint row, uint first, uint down)
{
    if (layout == 0)
        return s->p + (ulong)(first + row) * s->width;
    const uint r = layout == 1 ? row : first + row;
    return s->p + ((layout == 1 ? down : 0) + r / 128) * ((ulong)s->width / 4 * 512) + r % 32 * 16 + r % 128 / 32 * 4;
}

/* The scales of a part's 64 terms from `term` on: `word` has four, the next four are on their way in `next`. */
static inline uint scales_at(int format, int layout, global const uchar *p, int term, int terms, uint *word, uint *next)
{
    const int run = SCALE_RUN(format) * 4, step = layout == 0 ? 4 : 512;
    if (term % run == 0) {
        *word = *next;
        if (term + run < terms)
            *next = *(global const uint *)(p + (term / run + 1) * step);
    }
    return *word >> (term % run / SCALE_RUN(format) * 8);
}

/* The same of a turned factor: this lane's scales of a step. */
static inline uint scales_down(global const uchar *p, int term, int terms, uint width, uint *next)
{
    const uint codes = *next, blocks = TERMS / SCALE_RUN(B_FORMAT);
    if (term + TERMS < terms)
        *next = load_pair(B_FORMAT, p + (ulong)((term / TERMS + 1) * blocks) * width, width);
    return codes;
}

/* Where the scales of a part of the second factor lie. */
static inline global const uchar *b_scales_of(const shape *s, const scales *b, const place *at, int part)
{
    const int column = column_of(s, at, part);
    const uint thread = get_local_id(0) % 128;
    if (!TURNED)
        return scales_of(b, B_SCALES, min(column + thread, b->lines - 1), at->group * b->lines,
                         at->group * ((b->lines + 127) / 128));
    const uint2 own = scale_place(B_FORMAT, thread);
    const ulong block = at->group * (s->terms / SCALE_RUN(B_FORMAT)) + own.x;
    return b->p + block * b->width + min(column + own.y, b->width - 2);
}

/* ---- decoding ---- */

/* What a team decodes: one part of every step of all tiles. */
typedef struct stream {
    place at;
    int part, term;
    uint step;
    ring from;
    scales scales;
    global const uchar *p; /* scales of this thread's row, or columns, in the tile */
    uint word, next;
    bool done;
} stream;

static inline void begin_tile(const shape *s, bool first, stream *d)
{
    const uint row = get_local_id(0) % 128;
    d->term = 0;
    if (!d->at.more)
        return;
    if (first && A_FORMAT == PLAIN)
        return;
    if (first) /* past the last line, the last line's */
        d->p = scales_of(&d->scales, A_SCALES, min(d->at.line + row, d->scales.lines - 1 - d->at.first), d->at.first,
                         d->at.down);
    else
        d->p = b_scales_of(s, &d->scales, &d->at, d->part);
    d->next = TURNED && !first ? load_pair(B_FORMAT, d->p, d->scales.width) : *(global const uint *)d->p;
}

static inline stream begin(const shape *s, bool first, scales of, local const uint *ends)
{
    const int part = first ? 0 : get_local_id(0) / 128;
    stream d = {{get_group_id(0), 0, 0, 0, 0, 0, 0, 0, false}, part, 0, 0, {part - FIRST_PART, 0}, of, 0, 0, 0, false};
    locate(s, ends, &d.at);
    begin_tile(s, first, &d);
    return d;
}

/* Decodes this team's part of a step, from its slot to its place in a stage. */
static inline __attribute__((always_inline))
void decode_part(const shape *s, bool first, stream *d, uint base, local uchar *arena, local uchar *to)
{
    const uint row = get_local_id(0) % 128;
    local const uchar *slot = arena + SLOTS_AT + d->from.slot * SLOT_BYTES;
    if (A_FORMAT == PLAIN && first)
        return;
    const uint some = TURNED && !first ? scales_down(d->p, d->term, s->terms, d->scales.width, &d->next)
                      : first ? scales_at(A_FORMAT, A_SCALES, d->p, d->term, s->terms, &d->word, &d->next)
                              : scales_at(B_FORMAT, B_SCALES, d->p, d->term, s->terms, &d->word, &d->next);
    await(base + CODES_AT + 8 * d->from.slot, d->from.round);
    if (first)
        decode_row(A_FORMAT, slot, row, some, AS_MOVED, to);
    else if (TURNED)
        decode_columns(B_FORMAT, slot, row, some, arena + FACTORS_AT + (get_local_id(0) / 32 - 4) * FACTOR_BYTES, to);
    else
        decode_row(B_FORMAT, slot, row, some, AS_MOVED, to);
    advance(&d->from, PARTS);
}

/* The next step of a team: its part into a free stage, or, after the last tile, only word of it. */
static inline __attribute__((always_inline))
void decode(const shape *s, bool first, stream *d, uint base, local uchar *arena, local const uint *ends)
{
    const uint stage = d->step % STAGES;
    if (d->done)
        return;
    if (!first && d->step >= STAGES)
        await(base + EMPTY_AT + 8 * stage, d->step / STAGES - 1);
    if (d->at.more)
        decode_part(s, first, d, base, arena, arena + stage * STAGE_BYTES + d->part * PART_BYTES);
    fence_tensor();
    sync_warp();
    if (get_local_id(0) % 32 == 0)
        arrive(base + FULL_AT + 8 * stage);
    d->done = !d->at.more;
    d->step++;
    d->term += TERMS;
    if (d->done || d->term < s->terms)
        return;
    d->at.t += get_num_groups(0);
    locate(s, ends, &d->at);
    begin_tile(s, first, d);
}

/* The first team: says what the tiles are, asks for codes and decodes, or asks for, the first factor. */
static inline __attribute__((always_inline))
void lead(shape s, stream d, ulong map_a, ulong map_b, uint base, local uchar *arena, local const uint *ends)
{
    const bool leader = get_local_id(0) == 0;
    local tile *tiles = (local tile *)(arena + TILES_AT);
    errand e = {d.at, FIRST_PART, 0, {0, 0}, map_a, map_b};
    for (int i = 0; leader && i < SLOTS; i++)
        fetch(&s, ends, base, &e);
    for (uint n = 0; !d.done;) {
        const uint stage = d.step % STAGES, full = base + FULL_AT + 8 * stage;
        if (d.step >= STAGES)
            await(base + EMPTY_AT + 8 * stage, d.step / STAGES - 1);
        if (leader && d.step >= STAGES) /* the codes of a stage that is free have been read */
            for (int part = FIRST_PART; part < 3; part++)
                fetch(&s, ends, base, &e);
        if (leader && d.term == 0)
            tiles[n++ % TILES] = (tile){d.at.more ? s.terms : -1, d.at.first + d.at.line, d.at.last, d.at.column, d.at.group};
        if (A_FORMAT == PLAIN && leader && d.at.more) {
            expect(full, PART_BYTES);
            load_box(base + stage * STAGE_BYTES, map_a, d.term, d.at.first + d.at.line, 0, full);
        } else if (A_FORMAT == PLAIN && leader) {
            arrive(full);
        }
        decode(&s, true, &d, base, arena, ends);
    }
}
