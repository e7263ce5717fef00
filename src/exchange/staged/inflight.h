/*
 * A dispatch or combine of the staged engine in flight: the messages of each chunk, and when the
 * host posts them.
 *
 * Each chunk has an event that completes after the work that computes the chunk's rows. The host
 * then posts the chunk's messages. The first chunk's event also guarantees that earlier work has
 * finished with the receive memory, so the host posts all receives after this event. A dispatch
 * sends its chunks one after the other, so that the first chunk arrives early. A waiting host polls
 * events and lets MPI make progress.
 */
#pragma once

#include "device/queue.h"
#include "device/staging.h"
#include "exchange/internal.h"
#include "exchange/routes.h"

enum { MOERT_INFLIGHT_CHUNKS = MOERT_EXCHANGE_MOST_CHUNKS };

/* Kinds of messages: rows of the window, and slots (one float per row). */
enum { MOERT_INFLIGHT_ROWS, MOERT_INFLIGHT_SLOTS, MOERT_INFLIGHT_KINDS };

/* The state of a dispatch or a combine. */
typedef struct moert_inflight {
    bool back;                                        /* a combine */
    const moert_exchange_plan *plan;                  /* the transfer's plan; NULL before the first
                                                         transfer */
    const moert_window *window[MOERT_INFLIGHT_KINDS]; /* slots may be NULL */
    moert_staging *packed[MOERT_INFLIGHT_KINDS];      /* memory of the packed rows and slots, which
                                                         later transfers reuse */
    moert_event *event[MOERT_INFLIGHT_CHUNKS]; /* each event completes after the work that computes
                                                  its chunk's rows */
    size_t recorded, posted;                   /* chunks */
    uint64_t began_ns;                         /* when the host posted the first chunk; 0: not yet,
                                                  or the time has been reported to a profile */
} moert_inflight;

/* exchange->state of the engine. */
typedef struct moert_staged {
    moert_exchange *exchange;
    moert_mail *mail;
    moert_routes routes;
    moert_inflight out, back;
    size_t stride;       /* the widest rows that back.packed has room for */
    moert_status status; /* the first failure since the dispatch began */
} moert_staged;

/* Stores `status` unless stage->status is already a failure. */
static inline void moert_staged_note(moert_staged *stage, moert_status status) {
    if (stage->status == MOERT_OK)
        stage->status = status;
}

/* Begins a transfer, without chunks so far. */
void moert_inflight_begin(moert_inflight *inflight, const moert_transfer *t);
/* Records the event of the next chunk, after the work enqueued so far, which computes the chunk's
 * rows. Stores a failure in stage->status. */
void moert_inflight_record(moert_staged *stage, moert_inflight *inflight);
void moert_inflight_free(moert_inflight *inflight);

/* Posts all messages whose events have completed, and lets MPI make progress. Stores a failure in
 * stage->status. */
void moert_staged_advance(moert_staged *stage);
/* Waits until a chunk's rows have arrived or, with MOERT_STAGED_ALL, until all messages are
 * complete. Returns stage->status. */
enum { MOERT_STAGED_ALL = -1 };
moert_status moert_staged_await(moert_staged *stage, int chunk);
