/*
 * The window engine without its transfers (engine.c): what it allocates and tests when it opens,
 * and the barriers of its ranks.
 */
#pragma once

#include "exchange/window/flags.h"

/* exchange->state of the engine. */
typedef struct moert_control {
    const moert_exchange_memory *memory; /* of the windows */
    moert_storage probe;                 /* rank r writes row r */
    moert_shared *shared;                /* of hosts: per rank two status words, two messages */
    uint64_t barriers;                   /* of the hosts, so far */
    moert_flags *flags;                  /* NULL: the hosts wait for their devices */
    bool needs_barrier;         /* some device may still read rows of the last dispatch, since the
                                   last combine overlapped with other work */
    moert_event *combine_start; /* after it the next combine overlaps with other work; or NULL */
    moert_event *combine_end; /* of the last combine that did, if no work follows it yet; or NULL */
    enum { MOERT_ONCE_NEVER, MOERT_ONCE_IF_IT_SAVES, MOERT_ONCE_ALWAYS } once;
    unsigned push;     /* MOERT_PUSH_AUTO (if the GEMM scatters), OFF or ON */
    bool fuse;         /* transfers of few rows are one kernel; ranks may differ */
    unsigned compiled; /* kernels of such transfers, a bit each */
} moert_control;

/* Opens the engine. Leaves `reason` empty on all ranks, or says why the engine cannot work and
 * releases everything. Collective. */
void moert_control_open(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]);
void moert_control_close(moert_exchange *exchange);

/* A barrier of the hosts. If a rank's status is a failure, all return it. */
moert_status moert_control_barrier(moert_exchange *exchange, moert_status status);
/* A barrier of the devices, by their hosts or by flags: what they stored before is visible to all
 * after it. If a rank's status is a failure, all return it instead. */
moert_status moert_control_pass(moert_exchange *exchange, moert_status status);
/* Entries of moert_engine. moert_control_fetch_verdict does not wait for the second queue. */
moert_status moert_control_gather(moert_exchange *exchange, const void *mine, size_t bytes,
                                  void *all);
moert_status moert_control_fetch_verdict(moert_exchange *exchange);
moert_status moert_control_check_verdict(moert_exchange *exchange);
