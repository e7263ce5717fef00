/*
 * A dispatch and a combine of any shape, checked against values computed from the global token
 * index: rows, slots and sums, exactly. The sums are the host's chains of fmaf, bit for bit; of an
 * exchange that sums by node first, chains of chains.
 */
#pragma once

#include "exchange/exchange.h"

enum { MAX_RANKS = 4, MAX_EXPERTS = 16 };

/* How the tokens of a shape choose their experts. ZIPF: the n-th about 1/n as often; HOT: one takes
 * 30 % of the slots or more. */
typedef enum { RANDOM, ONE_EXPERT, SOME_DROPPED, ALL_DROPPED, ZIPF, HOT } pattern;

typedef struct {
    const char *name;
    size_t experts, topk, width, tokens[MAX_RANKS];
    pattern choice;
    unsigned salt; /* changes payload and routing */
} shape;

/* The objects of a round trip on this rank. */
typedef struct {
    moert_exchange *exchange;
    moert_window *x, *y, *slot_x, *slot_y;
    moert_exchange_plan *plan;
    moert_buffer *index, *source, *weight, *target, *slot_target;
    bool codes;                  /* y is a window of codes */
    size_t chunks;               /* 0 = 1 */
    float *host;                 /* at least as large as any of them */
    const moert_comm *presummed; /* whose nodes sum first; NULL: none does */
    bool summed;                 /* every rank sums first, and rounds codes */
    size_t wrong;
} trip;

/* Windows outlive a shape, buffers and plan do not. With `codes`, of an even width, rows go into a
 * window of as many pairs of codes, and results come back as codes. Collective. */
moert_status trip_make_windows(moert_exchange *exchange, size_t width, bool codes, trip *t);
void trip_make_buffers(const shape *c, trip *t);
/* Frees the windows and the plan. */
void trip_free(trip *t);

/* The plan of the buffers. */
moert_status trip_plan(const shape *c, const trip *t, moert_status local,
                       moert_exchange_plan **plan);

/* The transfers of x and, with `slots`, their weights; of y back, `weighted` or not; and of rows that
 * are pushed to it. */
moert_transfer trip_there(const trip *t, bool slots);
moert_transfer trip_back(const trip *t, bool weighted, bool slots);
moert_transfer trip_push(const trip *t, bool weighted, bool slots);
moert_status trip_dispatch(const trip *t, bool slots, moert_status local);
moert_status trip_combine(const trip *t, bool weighted, bool slots, moert_status local);

/* Buffers, plan, dispatch, combine with and without weights, and of rows that are pushed if the
 * exchange does that, in t->chunks; the first round trip chunk by chunk, as a layer goes. The verdict
 * is that of all ranks. */
moert_status trip_run(const shape *c, trip *t);
