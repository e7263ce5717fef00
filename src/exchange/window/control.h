/*
 * The window engine without its transfers (engine.c): allocations and tests when the engine opens,
 * and the barriers of its ranks.
 */
#pragma once

#include "device/queue.h"
#include "exchange/window/flags.h"

/* exchange->state of the engine. */
typedef struct moert_control {
    const moert_exchange_memory *memory; /* the memory of the windows */
    moert_storage probe;                 /* memory of the start-up test: rank r writes row r */
    moert_shared *shared;                /* memory of the host processes: two status words and two
                                            messages per rank */
    uint64_t barriers;                   /* number of host barriers so far */
    moert_flags *flags;                  /* barriers of the devices; NULL: the host processes wait
                                            for their devices instead */
    bool needs_barrier;         /* some device may still read rows of the last dispatch, since the
                                   last combine overlapped with other work */
    moert_event *combine_start; /* the next combine starts after this event and overlaps with other
                                   work; or NULL */
    moert_event *combine_end;   /* event at the end of an overlapped combine for which other work
                                   must still wait; or NULL */
    enum {
        MOERT_ONE_COPY_NEVER,
        MOERT_ONE_COPY_IF_IT_SAVES,
        MOERT_ONE_COPY_ALWAYS
    } one_copy_per_rank;
    unsigned push;     /* MOERT_PUSH_AUTO (if the GEMM scatters), OFF or ON */
    bool fuse;         /* transfers of few rows are one kernel on this rank; other ranks may use
                          separate kernels */
    unsigned compiled; /* bit mask of the fused kernels that are compiled */
} moert_control;

/* Opens the engine. On success `reason` is empty on all ranks. Otherwise `reason` says why the
 * engine cannot work, and everything is released. Collective. */
void moert_control_open(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]);
void moert_control_close(moert_exchange *exchange);

/* A barrier of the ranks' host processes. If a rank's status is a failure, all ranks return this
 * failure. */
moert_status moert_control_barrier(moert_exchange *exchange, moert_status status);
/* A barrier of the devices, by their host processes or by flags. A device's stores before the
 * barrier are visible to all devices after it. If a rank's status is a failure, all ranks return
 * this failure instead. */
moert_status moert_control_pass(moert_exchange *exchange, moert_status status);
/* Entries of moert_engine. moert_control_fetch_verdict does not wait for the second queue. */
moert_status moert_control_gather(moert_exchange *exchange, const void *mine, size_t bytes,
                                  void *all);
moert_status moert_control_fetch_verdict(moert_exchange *exchange);
moert_status moert_control_check_verdict(moert_exchange *exchange);
