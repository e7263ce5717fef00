/*
 * Included by kernels/exchange/exchange.cl: a row group's part of dispatch and combine.
 *
 * In the CPU form, a row group moves the rows of TOKENS tokens, whole rows one after the other, so
 * that stores stream. It sums up to STREAMS rows at a time. In the GPU form, a row group moves one
 * piece of one token's rows: PIECE floats of each row in dispatch, STRIP in combine. It issues all
 * loads of a piece at once. Reading a row from another GPU takes two microseconds, which only many
 * pieces in flight hide. Pieces of a token have consecutive numbers. A combine may have fewer
 * work-groups than pieces; each then continues with the tokens or strips `row_groups` further on.
 */

/* The part that a row group copies: PIECE floats of rows first to last - 1, `at` floats from their
 * starts. */
typedef struct piece {
    uint first, last;
    int at;
} piece;

/* The number of pieces of `rows` rows. */
static inline uint count_pieces(uint rows, uint stride) {
    return (rows + TOKENS - 1) / TOKENS * ((stride + PIECE - 1) / PIECE);
}

static inline piece piece_of(uint row_group, uint rows, uint stride) {
    const uint pieces = (stride + PIECE - 1) / PIECE, first = row_group / pieces * TOKENS;
    return (piece){first, min(first + TOKENS, rows), (int)(row_group % pieces * PIECE)};
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

/* Rows that their owner sums before sending: at most `chain` of a token. */
typedef struct chained {
    global const uint4 *cells;
    global const float *rows;
    uint count, chain;
    bool bf16;
} chained;

/* The row of the token's next slot after that of row r, or `count` after the last. */
static inline uint next_of(chained c, uint r) {
    return min((c.cells[(size_t)r * (CELL / 4)].w & ~LATER) - 1, c.count);
}

/* Adds x, a vector of floats or of bf16 pairs; sum[1] holds the high halves of pairs. */
INLINED void add_part(vec x, bool bf16, vec sum[2]) {
    sum[0] += bf16 ? as_vec(as_uvec(x) << 16) : x;
    if (bf16)
        sum[1] += as_vec(as_uvec(x) & 0xffff0000u);
}

/* The sums as a vector of floats or of bf16 pairs, rounded once. */
INLINED vec finish_part(bool bf16, const vec sum[2]) {
    return bf16 ? as_vec(encode_as(sum[0], IS_BF16) | encode_as(sum[1], IS_BF16) << 16) : sum[0];
}

/* Stores the sum of row r and its chain: the whole row on CPUs, a piece on GPUs. */
INLINED void sum_piece(chained c, uint r, global float *to, int at, uint stride) {
#if MOERT_ITEMS == 1
    for (uint i = 0; i < stride; i += VEC) {
        vec sum[2] = {0.0f, 0.0f};
        uint row = r;
        for (uint k = 0; k < c.chain && row < c.count; k++, row = next_of(c, row))
            add_part(vload16(0, c.rows + (size_t)row * stride + i), c.bf16, sum);
        put(finish_part(c.bf16, sum), to + i);
    }
#else
    vec part[BATCH], sum[BATCH][2];
    const int n = (int)stride - at;
    UNROLL_FOR(int i = 0; i < BATCH; i++)
        sum[i][0] = sum[i][1] = 0.0f;
    for (uint k = 0; k < c.chain && r < c.count; k++, r = next_of(c, r)) {
        load_batch(part, c.rows + (size_t)r * stride + at, n);
        UNROLL_FOR(int i = 0; i < BATCH; i++)
            add_part(part[i], c.bf16, sum[i]);
    }
    UNROLL_FOR(int i = 0; i < BATCH; i++)
        part[i] = finish_part(c.bf16, sum[i]);
    store_batch(part, to + at, n);
#endif
}

/* `receiver`: if owners have sent rows back, the rank in whose window the row of slot s is row s.
 * Else NO_RECEIVER: rows are read from their owners' windows. */
#define NO_RECEIVER DROPPED

/* Arguments of a combine. A null weight means 1 for all slots; bf16: rows hold bf16 values. */
typedef struct combining {
    WINDOW window;
    global const uint2 *destination;
    global const float *weight;
    global float *target;
    moert_exchange_args args;
    bool bf16;
    uint receiver;
} combining;

/* The rank and the row of slot number `slot`. */
static inline uint2 slot_row(global const uint2 *destination, size_t slot, uint receiver) {
    const uint2 to = destination[slot];
    return receiver != NO_RECEIVER ? (uint2)(to.x, (uint)slot) : to;
}

static inline global float *row_from(WINDOW window, uint2 to, uint receiver, uint stride) {
    return row_of(window, receiver != NO_RECEIVER ? (uint2)(receiver, to.y) : to, stride);
}

#if MOERT_ITEMS == 1
/* Stores whole rows, one expert after the other, so that the stores stream. */
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

/* The values of a row from i on. Of bf16 rows, n are read and the rest is zero; float32 rows
 * consist of whole vectors. */
INLINED vec read_row(global const float *row, bool bf16, int i, int n) {
    if (bf16)
        return as_vec(load_shorts((global const ushort *)row + i, n) << 16);
    return *(global const vec *)(row + i);
}

/* Adds the rows of up to STREAMS slots, from a token's slot `from` on, to the token's sum. `token`
 * is the number of its first slot. */
INLINED void combine_slots_of(const combining *c, global float *out, size_t token, uint from) {
    const uint width = c->args.width, end = min(from + STREAMS, c->args.topk);
    const bool firsts = c->receiver != NO_RECEIVER && c->args.chain > 1;
    global const float *row[STREAMS];
    float factor[STREAMS];
    uint streams = 0;
    for (uint k = from; k < end; k++) {
        const uint2 to = slot_row(c->destination, token + k, c->receiver);
        if (to.x == DROPPED || (firsts && first_slot(c->destination + token, k, DROPPED) != k))
            continue;
        row[streams] = row_from(c->window, to, c->receiver, c->args.stride);
        factor[streams++] = c->weight != 0 ? c->weight[token + k] : 1.0f;
    }
    for (uint i = 0; i < width; i += VEC) {
        vec sum = from > 0 ? load_part(out + i, width - i) : (vec)0.0f;
        for (uint j = 0; j < streams; j++)
            sum = fma((vec)factor[j], read_row(row[j], c->bf16, i, width - i), sum);
        store_part(sum, out + i, width - i);
    }
}

/* A token with more than STREAMS slots continues from the partial sum in `target`, with the same
 * bits as one chain. */
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
/* Loads the destinations of STREAMS slots of a token, from its slot `first` on, without one load
 * waiting for another. `slot` is the number of the token's slot 0. Past the last slot, the rank is
 * DROPPED. */
INLINED void load_slots(global const uint2 *destination, uint receiver, size_t slot, uint first,
                        uint topk, uint2 to[STREAMS]) {
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        to[k] = slot_row(destination, slot + min(first + k, topk - 1), receiver);
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        to[k].x = first + k < topk ? to[k].x : DROPPED;
}

/* The addresses of these slots' rows; null for DROPPED. */
INLINED void find_rows(WINDOW window, const uint2 to[STREAMS], uint receiver, uint stride,
                       global float *row[STREAMS]) {
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        row[k] = row_from(window, to[k].x != DROPPED ? to[k] : (uint2)0, receiver, stride);
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        row[k] = to[k].x != DROPPED ? row[k] : 0;
}

/* Drops slots that are not their token's first on their rank, except on rank `own`. */
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

/* Reads a piece once and stores it for all experts. */
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
        load_slots(destination, NO_RECEIVER, 0, first, topk, to);
        if (once)
            keep_first(destination, first, args.rank, to);
        find_rows(window, to, NO_RECEIVER, stride, row);
        UNROLL_FOR(uint k = 0; k < STREAMS; k++)
            if (row[k] != 0)
                store_batch(part, row[k] + i, (int)stride - i);
    }
}

/* Loads 16 bytes; zeros for null. As volatile assembly, so that the compiler does not delay each
 * load until its use: all must be in flight together. */
INLINED uint4 load_quad(global const float *p) {
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

/* 16 bytes of a row as 4 floats, or as 8 floats from bf16 in the order of the columns. */
INLINED void widen(uint4 x, bool bf16, vec value[2]) {
    const uint high = 0xffff0000u;
    value[0] = as_vec(bf16 ? (uint4)(x.x << 16, x.x & high, x.y << 16, x.y & high) : x);
    value[1] = as_vec((uint4)(x.z << 16, x.z & high, x.w << 16, x.w & high));
}

/* Adds 16 bytes, at `offset` floats, of the rows of STREAMS slots from the token's slot `first`
 * on. */
INLINED void add_slots(const combining *c, size_t slot, uint first, size_t offset, vec sum[2]) {
    const uint topk = c->args.topk;
    global float *row[STREAMS];
    float factor[STREAMS];
    uint2 to[STREAMS];
    uint4 part[STREAMS];
    load_slots(c->destination, c->receiver, slot, first, topk, to);
    if (c->receiver != NO_RECEIVER && c->args.chain > 1)
        keep_first(c->destination + slot, first, DROPPED, to);
    find_rows(c->window, to, c->receiver, c->args.stride, row);
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        factor[k] = c->weight != 0 ? c->weight[slot + min(first + k, topk - 1)] : 1.0f;
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        part[k] = load_quad(row[k] != 0 ? row[k] + offset : 0);
    UNROLL_FOR(uint k = 0; k < STREAMS; k++) {
        vec value[2];
        widen(part[k], c->bf16, value);
        UNROLL_FOR(int i = 0; i < 2; i++)
            sum[i] = row[k] != 0 ? fma((vec)factor[k], value[i], sum[i]) : sum[i];
    }
}

/* Computes strip number `nth` over all tokens: each work-item sums 16 bytes of each of a token's
 * rows. */
INLINED void combine_strip(uint nth, uint strips, const combining *c) {
    const uint topk = c->args.topk, width = c->args.width, t = nth / strips;
    const bool bf16 = c->bf16;
    /* an item's 8 bf16 columns begin twice as far from the strip's start as its 4 floats would */
    const int i = (int)(nth % strips * (bf16 ? 2 * STRIP : STRIP)) + (bf16 ? part_start() : 0),
              n = (int)width - i;
    global float *out = c->target + (size_t)t * width + i;
    vec sum[2] = {0.0f, 0.0f};
    if (n <= part_start())
        return;
    for (uint first = 0; first < topk; first += STREAMS)
        add_slots(c, (size_t)t * topk, first, (size_t)(i + part_start()) / (bf16 ? 2 : 1), sum);
    store_part(sum[0], out, n);
    if (bf16)
        store_part(sum[1], out + PART, n - PART);
}

INLINED void combine_row_group(uint nth, uint row_groups, const combining *c) {
    const uint columns = c->bf16 ? 2 * STRIP : STRIP,
               strips = (c->args.width + columns - 1) / columns;
    for (; nth < c->args.tokens * strips; nth += row_groups)
        combine_strip(nth, strips, c);
}
#endif
