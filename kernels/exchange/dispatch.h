/*
 * Included by the kernels that move rows between ranks: a row group's part of a dispatch.
 *
 * In the CPU form, a row group moves the rows of TOKENS tokens, whole rows one after the other, so
 * that stores stream. In the GPU form, a row group moves one piece of one token's rows, PIECE
 * floats of each. Pieces of a token have consecutive numbers.
 */
#include "exchange/slots.h"

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
#else
/* Reads a piece of a token's row once and stores it for all experts of the token. */
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
#endif

/* Stores the origins of a token's rows: for each row, the number of the row of the token's first
 * slot on that rank. */
INLINED void store_origins(WINDOW window, global const uint2 *destination,
                           moert_exchange_args args) {
    for (uint k = item_index(); k < args.topk; k += MOERT_ITEMS) {
        const uint2 to = destination[k];
        if (to.x != DROPPED)
            origins_of(row_of(window, (uint2)(to.x, 0), args.stride), args.capacity,
                       args.stride)[to.y] = destination[first_slot(destination, k, args.rank)].y;
    }
}

/* Row group `nth`'s part of dispatch_once. */
INLINED void dispatch_row_group_once(uint nth, WINDOW window, global const uint2 *destination,
                                     global const float *source, moert_exchange_args args) {
#if MOERT_ITEMS == 1
    const uint first = nth * TOKENS, last = min(first + TOKENS, args.tokens);
#else
    const uint pieces = (args.stride + PIECE - 1) / PIECE, first = nth / pieces;
    const uint last = nth % pieces == 0 ? first + 1 : first;
#endif
    for (uint t = first; t < last; t++)
        store_origins(window, destination + (size_t)t * args.topk, args);
    dispatch_row_group(nth, window, destination, source, args, true);
}
