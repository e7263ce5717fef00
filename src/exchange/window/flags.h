/*
 * Ranks of one host that wait for each other on their devices: kernels raise flags in the segments
 * of all ranks and wait for those in their own (kernels/exchange/barrier.cl). The hosts only enqueue.
 *
 * For devices that run the kernels of all ranks at the same time: one rank each.
 */
#pragma once

#include "exchange/internal.h"

typedef struct moert_flags moert_flags;

/* A meeting waits for `patience_ns` at most. Collective; the status is that of all ranks. */
moert_status moert_flags_create(moert_device *device, moert_comm *comm,
                                const moert_exchange_memory *memory, uint64_t patience_ns,
                                moert_flags **flags);
void moert_flags_destroy(moert_flags *flags); /* Waits for the device. NULL is legal. */

/*
 * Enqueues a meeting: what any rank's device has done before is seen by what they do after it.
 * Every rank enqueues as many, and nothing in between that waits for another rank's host.
 */
moert_status moert_flags_barrier(moert_flags *flags);

/* Counts the next meeting, for a kernel that has it inside: enqueued next, and flushed; or one of
 * no ranks, by which such a kernel is compiled: one that waits must not hold the cache's lock. */
moert_barrier moert_flags_next(moert_flags *flags);
moert_barrier moert_flags_nobody(const moert_flags *flags);

/* Enqueues that the host learns what the meetings so far have found. */
moert_status moert_flags_fetch(moert_flags *flags);

/*
 * Once that is done: ERROR_COMM if a rank had not come to a meeting in time, once for each such
 * meeting: names the rank, and the phase in which this one had enqueued it. What was computed since
 * is worthless.
 */
moert_status moert_flags_check(moert_flags *flags);
