/*
 * Included by the kernels that move rows between ranks: which columns of which rows a row group
 * moves. The row group copies these columns or, where the owner sends sums of rows, adds up the
 * rows and sends the sum.
 */
#include "exchange/window.h"
#include "lib/formats.h"

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

/* Rows that their owner sums before it sends the sum: at most `chain` rows of a token. */
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

/* Stores the sum of row r and the token's next rows, at most `chain` rows in all: the whole row on
 * CPUs, a piece on GPUs. */
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

/* A row group's part of fan_out. */
INLINED void fan_out_piece(uint nth, global float *rows, moert_exchange_args args) {
    const uint stride = args.stride, capacity = args.capacity;
    global const uint *origin = origins_of(rows, capacity, stride);
    const piece s = piece_of(nth, args.rows, stride);
    for (uint r = s.first; r < s.last; r++)
        if (origin[r] != r && origin[r] < capacity)
            copy_piece(rows + (size_t)origin[r] * stride, rows + (size_t)r * stride, s.at, stride);
    put_end();
}

#if REMOTE
/* The destination address of a cell's row, or null if the cell is not valid. If a rank was late at
 * the barrier, its cells may hold anything; so they are checked. */
static inline global float *target_of(WINDOW window, uint4 words, moert_exchange_args args) {
    return words.z < args.ranks && words.y < args.capacity ? row_of(window, words.zy, args.stride)
                                                           : 0;
}

/* A row group's part of send_rows and send_bf16. */
INLINED void send_piece(uint nth, WINDOW window, global const uint4 *cells,
                        global const float *rows, moert_exchange_args args, bool bf16) {
    const uint stride = args.stride, chain = args.chain;
    const piece s = piece_of(nth, args.rows, stride);
    for (uint r = s.first; r < s.last; r++) {
        const uint4 words = cells[(size_t)r * (CELL / 4)];
        global float *target = target_of(window, words, args);
        if (target == 0 || (chain > 1 && (words.w & LATER) != 0))
            continue;
        if (chain > 1 && words.w != 0)
            sum_piece((chained){cells, rows, args.rows, chain, bf16}, r, target, s.at, stride);
        else
            copy_piece(rows + (size_t)r * stride, target, s.at, stride);
    }
    put_end();
}
#endif
