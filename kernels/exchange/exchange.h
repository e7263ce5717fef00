/*
 * Included by kernels/exchange/exchange.cl: what a row_group does in dispatch and combine.
 *
 * In the CPU form it moves the rows of TOKENS tokens, whole rows one after the other, so that
 * stores stream, and sums up to STREAMS rows side by side. In the GPU form it has a piece of one
 * token's rows, PIECE floats of each in dispatch and STRIP in combine, all of whose loads are under
 * way at once: to fetch a row from another GPU takes two microseconds, and as many pieces hide that
 * as there is room for. Pieces of a token follow each other. A combine may have fewer work-groups
 * than that, each of which then goes on with the tokens, or strips, behind those of all.
 */

/* What a row_group copies: a piece of rows first to last - 1, `at` floats from their starts. */
typedef struct share {
    uint first, last;
    int at;
} share;

/* Such pieces of so many rows. */
static inline uint shares_of(uint rows, uint stride) {
    return (rows + TOKENS - 1) / TOKENS * ((stride + PIECE - 1) / PIECE);
}

static inline share share_of(uint row_group, uint rows, uint stride) {
    const uint pieces = (stride + PIECE - 1) / PIECE, first = row_group / pieces * TOKENS;
    return (share){first, min(first + TOKENS, rows), (int)(row_group % pieces * PIECE)};
}

INLINED void copy_piece(global const float *from, global float *to, int at, uint stride) {
#if MOERT_ITEMS == 1
    for (uint i = 0; i < stride; i += VEC)
        put(vload16(0, from + i), to + i);
#else
    vec part[BATCH];
    load_batch(part, from + at, (int)stride - at);
    store_batch(part, to + at, (int)stride - at);
#endif
}

/* Rows that are summed before they are sent: at most `chain` of a token. */
typedef struct chained {
    global const uint4 *cells;
    global const float *rows;
    uint count, chain;
    bool codes;
} chained;

/* The row behind row r, or `count`. */
static inline uint next_of(chained c, uint r) {
    return min((c.cells[(size_t)r * (CELL / 4)].w & ~LATER) - 1, c.count);
}

/* A vector of floats, or of pairs of codes, as sums of either half. */
INLINED void add_part(vec x, bool codes, vec sum[2]) {
    sum[0] += codes ? as_vec(as_uvec(x) << 16) : x;
    if (codes)
        sum[1] += as_vec(as_uvec(x) & 0xffff0000u);
}

INLINED vec whole_part(bool codes, const vec sum[2]) {
    return codes ? as_vec(encode_as(sum[0], IS_BF16) | encode_as(sum[1], IS_BF16) << 16) : sum[0];
}

/* The sum of row r and those behind it: all of it, or a piece. */
INLINED void sum_piece(chained c, uint r, global float *to, int at, uint stride) {
#if MOERT_ITEMS == 1
    for (uint i = 0; i < stride; i += VEC) {
        vec sum[2] = {0.0f, 0.0f};
        uint row = r;
        for (uint k = 0; k < c.chain && row < c.count; k++, row = next_of(c, row))
            add_part(vload16(0, c.rows + (size_t)row * stride + i), c.codes, sum);
        put(whole_part(c.codes, sum), to + i);
    }
#else
    vec part[BATCH], sum[BATCH][2];
    const int n = (int)stride - at;
    UNROLL_FOR(int i = 0; i < BATCH; i++)
        sum[i][0] = sum[i][1] = 0.0f;
    for (uint k = 0; k < c.chain && r < c.count; k++, r = next_of(c, r)) {
        load_batch(part, c.rows + (size_t)r * stride + at, n);
        UNROLL_FOR(int i = 0; i < BATCH; i++)
            add_part(part[i], c.codes, sum[i]);
    }
    UNROLL_FOR(int i = 0; i < BATCH; i++)
        part[i] = whole_part(c.codes, sum[i]);
    store_batch(part, to + at, n);
#endif
}

/* `home`, where rows have been sent: the rank in whose window each has the number of its slot; else
 * FAR. */
#define FAR DROPPED

/* What a combine is told; weight 0 (null) means 1 for all; codes: rows are codes. */
typedef struct combining {
    WINDOW window;
    global const uint2 *destination;
    global const float *weight;
    global float *target;
    moert_exchange_args args;
    bool codes;
    uint home;
} combining;

/* The rank of slot number `slot`, and its row. */
static inline uint2 place_of(global const uint2 *destination, size_t slot, uint home) {
    const uint2 to = destination[slot];
    return home != FAR ? (uint2)(to.x, (uint)slot) : to;
}

static inline global float *row_from(WINDOW window, uint2 to, uint home, uint stride) {
    return row_of(window, home != FAR ? (uint2)(home, to.y) : to, stride);
}

#if MOERT_ITEMS == 1
/* A whole row to one expert after the other: the stores stream. */
INLINED void dispatch_token(WINDOW window, global const uint2 *destination, global const float *x,
                            moert_exchange_args args, bool once) {
    const uint width = args.width, whole = width / VEC * VEC;
    for (uint k = 0; k < args.topk; k++) {
        const uint2 to = destination[k];
        if (to.x == DROPPED || (once && first_slot(destination, k, args.rank) != k))
            continue;
        global float *row = row_of(window, to, args.stride);
        for (uint i = 0; i < whole; i += VEC)
            put(vload16(0, x + i), row + i);
        if (whole < width)
            put(load_part(x + whole, width - whole), row + whole);
    }
}

INLINED void dispatch_row_group(uint nth, WINDOW window, global const uint2 *destination,
                                global const float *source, moert_exchange_args args, bool once) {
    const uint first = nth * TOKENS, last = min(first + TOKENS, args.tokens);
    for (uint t = first; t < last; t++)
        dispatch_token(window, destination + (size_t)t * args.topk, source + (size_t)t * args.width,
                       args, once);
    put_end();
}

/* The numbers of a row from i on: n are wanted, and there are whole vectors of floats. */
INLINED vec read_row(global const float *row, bool codes, int i, int n) {
    if (codes)
        return as_vec(load_shorts((global const ushort *)row + i, n) << 16);
    return *(global const vec *)(row + i);
}

/* Adds the rows of up to STREAMS slots from slot `from` on, read side by side, to the sum of the
 * token whose first slot is number `token`. */
INLINED void combine_slots_of(const combining *c, global float *out, size_t token, uint from) {
    const uint width = c->args.width, end = min(from + STREAMS, c->args.topk);
    const bool firsts = c->home != FAR && c->args.chain > 1;
    global const float *row[STREAMS];
    float factor[STREAMS];
    uint streams = 0;
    for (uint k = from; k < end; k++) {
        const uint2 to = place_of(c->destination, token + k, c->home);
        if (to.x == DROPPED || (firsts && first_slot(c->destination + token, k, DROPPED) != k))
            continue;
        row[streams] = row_from(c->window, to, c->home, c->args.stride);
        factor[streams++] = c->weight != 0 ? c->weight[token + k] : 1.0f;
    }
    for (uint i = 0; i < width; i += VEC) {
        vec sum = from > 0 ? load_part(out + i, width - i) : (vec)0.0f;
        for (uint j = 0; j < streams; j++)
            sum = fma((vec)factor[j], read_row(row[j], c->codes, i, width - i), sum);
        store_part(sum, out + i, width - i);
    }
}

/* A token with more than STREAMS slots continues from the partial sum in `target`, which has the
 * same bits as one long chain. */
INLINED void combine_row_group(uint nth, uint row_groups, const combining *c) {
    for (uint first = nth * TOKENS; first < c->args.tokens; first += row_groups * TOKENS)
        for (uint t = first; t < min(first + TOKENS, c->args.tokens); t++) {
            uint k = 0;
            do {
                combine_slots_of(c, c->target + (size_t)t * c->args.width, (size_t)t * c->args.topk,
                                 k);
                k += STREAMS;
            } while (k < c->args.topk);
        }
}
#else
/* The destinations of STREAMS slots of a token, whose first is number `slot`, from its slot `first`
 * on, in loads that do not wait for each other; DROPPED: none. */
INLINED void load_slots(global const uint2 *destination, uint home, size_t slot, uint first,
                        uint topk, uint2 to[STREAMS]) {
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        to[k] = place_of(destination, slot + min(first + k, topk - 1), home);
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        to[k].x = first + k < topk ? to[k].x : DROPPED;
}

/* Their rows, found in the same way; null: none. */
INLINED void find_rows(WINDOW window, const uint2 to[STREAMS], uint home, uint stride,
                       global float *row[STREAMS]) {
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        row[k] = row_from(window, to[k].x != DROPPED ? to[k] : (uint2)0, home, stride);
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        row[k] = to[k].x != DROPPED ? row[k] : 0;
}

/* Drops those that are not the first of the token on a rank other than `own`. */
INLINED void keep_first(global const uint2 *destination, uint first, uint own, uint2 to[STREAMS]) {
    UNROLL_FOR(int k = STREAMS - 1; k >= 0; k--) {
        bool again = false;
        for (uint j = 0; j < first; j++)
            again = again || destination[j].x == to[k].x;
        UNROLL_FOR(int j = 0; j < k; j++)
            again = again || to[j].x == to[k].x;
        to[k].x = again && to[k].x != own ? DROPPED : to[k].x;
    }
}

/* A piece to all experts: it is read once. */
INLINED void dispatch_row_group(uint nth, WINDOW window, global const uint2 *destination,
                                global const float *source, moert_exchange_args args, bool once) {
    const uint topk = args.topk, width = args.width, stride = args.stride;
    const uint pieces = (stride + PIECE - 1) / PIECE, t = nth / pieces;
    const int i = (int)(nth % pieces * PIECE);
    vec part[BATCH];
    load_batch(part, source + (size_t)t * width + i, (int)width - i);
    destination += (size_t)t * topk;
    for (uint first = 0; first < topk; first += STREAMS) {
        uint2 to[STREAMS];
        global float *row[STREAMS];
        load_slots(destination, FAR, 0, first, topk, to);
        if (once)
            keep_first(destination, first, args.rank, to);
        find_rows(window, to, FAR, stride, row);
        UNROLL_FOR(uint k = 0; k < STREAMS; k++)
            if (row[k] != 0)
                store_batch(part, row[k] + i, (int)stride - i);
    }
}

/* 16 bytes; zeros for null. The compiler may not put off these loads until each is used: they are
 * under way together. */
INLINED uint4 fetch(global const float *p) {
    uint4 x = 0;
#if MOERT_NVIDIA
    __asm__ volatile("{.reg .pred given; setp.ne.u64 given, %4, 0; @given ld.global.v4.u32 {%0, "
                     "%1, %2, %3}, [%4];}"
                     : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                     : "l"(p));
#else
    if (p != 0)
        x = *(global const uint4 *)p;
#endif
    return x;
}

/* 16 bytes of a row, as 4 floats or, in their order, as 8 codes' values. */
INLINED void widen(uint4 x, bool codes, vec value[2]) {
    const uint high = 0xffff0000u;
    value[0] = as_vec(codes ? (uint4)(x.x << 16, x.x & high, x.y << 16, x.y & high) : x);
    value[1] = as_vec((uint4)(x.z << 16, x.z & high, x.w << 16, x.w & high));
}

/* Adds 16 bytes at `offset` floats of the rows of STREAMS slots from slot `first` on. */
INLINED void add_slots(const combining *c, size_t slot, uint first, size_t offset, vec sum[2]) {
    const uint topk = c->args.topk;
    global float *row[STREAMS];
    float factor[STREAMS];
    uint2 to[STREAMS];
    uint4 part[STREAMS];
    load_slots(c->destination, c->home, slot, first, topk, to);
    if (c->home != FAR && c->args.chain > 1)
        keep_first(c->destination + slot, first, DROPPED, to);
    find_rows(c->window, to, c->home, c->args.stride, row);
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        factor[k] = c->weight != 0 ? c->weight[slot + min(first + k, topk - 1)] : 1.0f;
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        part[k] = fetch(row[k] != 0 ? row[k] + offset : 0);
    UNROLL_FOR(uint k = 0; k < STREAMS; k++) {
        vec value[2];
        widen(part[k], c->codes, value);
        UNROLL_FOR(int i = 0; i < 2; i++)
            sum[i] = row[k] != 0 ? fma((vec)factor[k], value[i], sum[i]) : sum[i];
    }
}

/* Strip `nth` of all: 16 bytes of each row of a token for a work-item. */
INLINED void combine_strip(uint nth, uint strips, const combining *c) {
    const uint topk = c->args.topk, width = c->args.width, t = nth / strips;
    const bool codes = c->codes;
    /* an item's codes begin twice as far from the strip's start as its floats would */
    const int i = (int)(nth % strips * (codes ? 2 * STRIP : STRIP)) + (codes ? part_start() : 0),
              n = (int)width - i;
    global float *out = c->target + (size_t)t * width + i;
    vec sum[2] = {0.0f, 0.0f};
    if (n <= part_start())
        return;
    for (uint first = 0; first < topk; first += STREAMS)
        add_slots(c, (size_t)t * topk, first, (size_t)(i + part_start()) / (codes ? 2 : 1), sum);
    store_part(sum[0], out, n);
    if (codes)
        store_part(sum[1], out + PART, n - PART);
}

INLINED void combine_row_group(uint nth, uint row_groups, const combining *c) {
    const uint numbers = c->codes ? 2 * STRIP : STRIP,
               strips = (c->args.width + numbers - 1) / numbers;
    for (; nth < c->args.tokens * strips; nth += row_groups)
        combine_strip(nth, strips, c);
}
#endif
