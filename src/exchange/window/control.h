/*
 * The window engine but for its moves (engine.c): what it makes and finds out as it opens,
 * and how ranks meet.
 */
#pragma once

#include "exchange/window/flags.h"

/* exchange->state of the engine. */
typedef struct moert_control {
    const moert_exchange_memory *memory; /* of the windows */
    moert_storage probe;                 /* row r is written by rank r */
    moert_shared *words;                 /* two status words per rank, then two messages */
    uint64_t meetings;                   /* of the hosts */
    moert_flags *flags;                  /* of the devices; NULL: the hosts wait for them */
    bool behind;         /* the last combine may have ended before that work has, on any rank */
    moert_event *branch; /* from which on the next combine runs beside other work, or NULL */
    moert_event *landed; /* the end of the last one that did, or NULL */
    enum { MOERT_ONCE_NEVER, MOERT_ONCE_IF_IT_SAVES, MOERT_ONCE_ALWAYS } once;
    unsigned push;     /* MOERT_PUSH_AUTO, if products do, OFF or ON */
    bool fuse;         /* transfers of few rows are one kernel; each rank may do as it likes */
    unsigned compiled; /* kernels of such transfers, a bit each */
} moert_control;

/* Makes all of it; leaves `reason` empty on all ranks, or says why it cannot work, and nothing is
 * left. Collective. */
void moert_control_open(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]);
void moert_control_close(moert_exchange *exchange);

/* All hosts wait for each other, and learn whether one of them has failed: then all return that
 * failure. */
moert_status moert_control_barrier(moert_exchange *exchange, moert_status status);
/* What all devices have done so far is seen by what they do from here on, if all ranks bring
 * MOERT_OK; else all return the same failure. */
moert_status moert_control_pass(moert_exchange *exchange, moert_status status);
/* Entries of moert_engine; fetch waits for nothing that ran aside. */
moert_status moert_control_gather(moert_exchange *exchange, const void *mine, size_t bytes,
                                  void *all);
moert_status moert_control_fetch(moert_exchange *exchange);
moert_status moert_control_check(moert_exchange *exchange);
