/*
 * The flights of the staged engine (engine.c): which messages each chunk is, and when they
 * are posted.
 *
 * A chunk's messages are posted once a mark behind the work that makes its rows has passed. That
 * mark also says that no earlier work uses the memory to receive into, so the first chunk's posts
 * all receives. A dispatch sends its chunks one after the other, so that the first comes first. Who
 * waits lets messages move and marks pass meanwhile.
 */
#pragma once

#include "exchange/internal.h"
#include "exchange/routes.h"

enum { MOERT_INFLIGHT_CHUNKS = MOERT_EXCHANGE_MOST_CHUNKS };

/* What travels: rows, and slots of one float. */
enum { MOERT_INFLIGHT_ROWS, MOERT_INFLIGHT_SLOTS, MOERT_INFLIGHT_KINDS };

/* A dispatch or a combine. */
typedef struct moert_inflight {
    bool back;                                        /* a combine */
    const moert_exchange_plan *plan;                  /* NULL: nothing is under way */
    const moert_window *window[MOERT_INFLIGHT_KINDS]; /* slots: or NULL */
    moert_staging *packed[MOERT_INFLIGHT_KINDS];      /* kept for the next flight */
    moert_event *mark[MOERT_INFLIGHT_CHUNKS];         /* behind what makes a chunk's rows */
    size_t marked, posted;                            /* chunks */
    uint64_t began_ns;                                /* 0: told already, or not begun */
} moert_inflight;

/* What the engine keeps. */
typedef struct moert_stage {
    moert_exchange *exchange;
    moert_mail *mail;
    moert_routes routes;
    moert_inflight out, back;
    size_t stride;       /* of rows that there is room for on the way back */
    moert_status status; /* the first failure since the dispatch began */
} moert_stage;

/* Keeps the first failure. */
static inline void moert_stage_note(moert_stage *stage, moert_status status) {
    if (stage->status == MOERT_OK)
        stage->status = status;
}

/* A flight whose chunks are still to be marked. */
void moert_inflight_begin(moert_inflight *flight, const moert_transfer *t);
/* The rows that are made by what is enqueued so far are the next chunk's. Failures are noted. */
void moert_inflight_record(moert_stage *stage, moert_inflight *flight);
void moert_inflight_free(moert_inflight *flight);

/* Posts what can be, and lets messages t. Failures are noted. */
void moert_stage_advance(moert_stage *stage);
/* Until a chunk's rows have come, or ALL messages are done; the first failure noted. */
enum { MOERT_STAGE_ALL = -1 };
moert_status moert_stage_await(moert_stage *stage, int chunk);
