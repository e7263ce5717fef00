/*
 * A dispatch and a combine of any shape. Rows, slots and sums must equal values that the host
 * computes from the global token index. A sum has the bits of a chain of fmaf in slot order. If
 * each node sums first, the chain runs over the sums of the nodes.
 */
#pragma once

#include "exchange/exchange.h"

enum { MAX_RANKS = 4, MAX_EXPERTS = 16 };

/* How the tokens of a shape choose their experts. ZIPF: the n-th expert is chosen about 1/n as
 * often as the first. HOT: one expert gets at least 30 % of the slots. */
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
    bool bf16;                   /* y holds bf16 */
    size_t chunks;               /* number of chunks; 0 means 1 */
    float *host;                 /* large enough for each window and buffer */
    const moert_comm *presummed; /* each of its nodes sums before it sends; NULL: no node sums */
    bool summed;                 /* every rank sums before it sends, and rounds the sums if bf16 */
    size_t wrong;                /* number of wrong values so far */
} trip;

/* Windows serve several shapes; buffers and a plan serve one shape. With `bf16`, `width` must be
 * even. A row of x then has 2 `width` bf16 values, which hold `width` floats; a row of y has
 * `width` bf16 values. Collective. */
moert_status trip_make_windows(moert_exchange *exchange, size_t width, bool bf16, trip *t);
void trip_make_buffers(const shape *c, trip *t);
/* Frees the windows and the plan. */
void trip_free(trip *t);

/* Makes the plan for the choices in t->index. */
moert_status trip_plan(const shape *c, const trip *t, moert_status local,
                       moert_exchange_plan **plan);

/* Describe the transfer of a dispatch, of a combine, and of a combine with pushed rows. With
 * `slots`, the transfer also carries one value per slot. */
moert_transfer trip_there(const trip *t, bool slots);
moert_transfer trip_back(const trip *t, bool weighted, bool slots);
moert_transfer trip_push(const trip *t, bool weighted, bool slots);
moert_status trip_dispatch(const trip *t, bool slots, moert_status local);
moert_status trip_combine(const trip *t, bool weighted, bool slots, moert_status local);

/* Makes buffers and a plan with t->chunks chunks. Dispatches, then combines with weights, without
 * weights, and with pushed rows if the exchange pushes. Repeats this chunk by chunk, as a layer
 * does. Fails on all ranks if it fails on one. */
moert_status trip_run(const shape *c, trip *t);
