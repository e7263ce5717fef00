/*
 * Included by the kernels that move rows between ranks: the slots of a token, their rows, and their
 * cells in a window of slots.
 */
#ifndef MOERT_EXCHANGE_SLOTS_H
#define MOERT_EXCHANGE_SLOTS_H

#include "exchange/window.h"

/* `receiver`: if owners have sent rows back, the rank in whose window the row of slot s is row s.
 * Else NO_RECEIVER: rows are read from their owners' windows. */
#define NO_RECEIVER DROPPED

/* The rank and the row of slot number `slot`. */
static inline uint2 slot_row(global const uint2 *destination, size_t slot, uint receiver) {
    const uint2 to = destination[slot];
    return receiver != NO_RECEIVER ? (uint2)(to.x, (uint)slot) : to;
}

static inline global float *row_from(WINDOW window, uint2 to, uint receiver, uint stride) {
    return row_of(window, receiver != NO_RECEIVER ? (uint2)(receiver, to.y) : to, stride);
}

/* The token's first slot on the rank of slot k. If that rank is `own`, the result is k itself, as
 * every slot gets a row there. */
static inline uint first_slot(global const uint2 *destination, uint k, uint own) {
    uint first = 0;
    while (destination[k].x != own && destination[first].x != destination[k].x)
        first++;
    return destination[k].x != own ? first : k;
}

#if MOERT_ITEMS > 1
/* Loads the destinations of STREAMS slots of a token, from its slot `first` on, without one load
 * waiting for another. `slot` is the number of the token's slot 0. Slots past the token's last get
 * the rank DROPPED. */
INLINED void load_slots(global const uint2 *destination, uint receiver, size_t slot, uint first,
                        uint topk, uint2 to[STREAMS]) {
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        to[k] = slot_row(destination, slot + min(first + k, topk - 1), receiver);
    UNROLL_FOR(uint k = 0; k < STREAMS; k++)
        to[k].x = first + k < topk ? to[k].x : DROPPED;
}

/* The addresses of the rows that to[] names; null where the rank is DROPPED. */
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
#endif

/* ---- cells ---- */

/* The link of slot `slot` (window.h); `token` is the number of its token's first slot. */
static inline uint link_of(global const uint2 *destination, uint token, uint slot, uint topk) {
    const uint rank = destination[slot].x;
    uint next = slot + 1, later = 0;
    while (next < token + topk && destination[next].x != rank)
        next++;
    for (uint before = token; before < slot; before++)
        later = destination[before].x == rank ? LATER : later;
    return later | (next < token + topk ? destination[next].y + 1 : 0);
}

/* Stores the cell of this rank's slot s. */
INLINED void put_slot(WINDOW window, global const uint2 *destination, global const float *source,
                      uint s, uint topk, uint rank) {
    const uint2 to = destination[s];
    if (to.x == DROPPED)
        return;
    const uint4 words =
        (uint4)(as_uint(source[s]), s, rank, link_of(destination, s / topk * topk, s, topk));
#if MOERT_CPU
    cell x = 0.0f;
    x.lo.lo = as_float4(words);
    put(x, row_of(window, to, CELL));
#else /* storing only 16 of a cell's 64 bytes needs a quarter of the packets */
    *(global uint4 *)row_of(window, to, CELL) = words;
#endif
}

INLINED float slot_of(WINDOW window, uint2 to) {
    return to.x != DROPPED ? row_of(window, to, CELL)[0] : 0.0f;
}

#endif
