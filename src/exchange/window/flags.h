/*
 * Barriers of the devices of one host's ranks. A kernel raises its rank's flag in the segments of
 * all ranks, then waits for the flags of all ranks in its own segment
 * (kernels/exchange/barrier.cl). The host processes only enqueue kernels.
 *
 * The kernels of all ranks must run at the same time. So each rank needs a device of its own. On
 * CPUs a waiting kernel that yields to other threads is enough.
 */
#pragma once

#include "exchange/internal.h"

typedef struct moert_flags moert_flags;

/* Whether the devices wait for each other, as MOERT_SYNC says. auto: if each rank has a GPU that no
 * other rank uses, since the kernels of all ranks can then run at the same time. Collective; the
 * result is the same on all ranks. */
moert_status moert_flags_wanted(const moert_device *device, moert_comm *comm, bool *wanted);
/* The longest wait of a device at a barrier: three quarters of the watchdog's time limit. So a
 * device names the late rank before the watchdog ends the job. */
uint64_t moert_flags_patience_ns(void);
/* Creates flags whose barriers wait for `patience_ns` at most. Collective; all ranks return the
 * same status. */
moert_status moert_flags_create(moert_device *device, moert_comm *comm,
                                const moert_exchange_memory *memory, uint64_t patience_ns,
                                moert_flags **flags);
void moert_flags_destroy(moert_flags *flags); /* Waits for the device. NULL is legal. */

/*
 * Enqueues a barrier: stores of any rank's device before the barrier are visible to all devices
 * after the barrier. All ranks must enqueue the same barriers. No work between two barriers may
 * wait for another rank's host process.
 */
moert_status moert_flags_barrier(moert_flags *flags);

/* moert_flags_next returns the arguments of the next barrier, for a kernel that contains the
 * barrier. The caller enqueues that kernel next and flushes. moert_flags_nobody returns the
 * arguments of a barrier with 0 ranks. The first launch of a kernel with a barrier takes the
 * arguments of moert_flags_nobody: that launch compiles the kernel and holds the program cache's
 * lock, so it must not wait. */
moert_barrier moert_flags_next(moert_flags *flags);
moert_barrier moert_flags_nobody(const moert_flags *flags);

/* Enqueues a copy of the verdict on all barriers so far to the host. */
moert_status moert_flags_fetch_verdict(moert_flags *flags);

/*
 * Call this after moert_flags_fetch_verdict. Returns ERROR_COMM if a rank did not reach a barrier
 * in time. The message names that rank, and the phase in which this rank enqueued the barrier. All
 * results since that barrier are invalid. The call clears the verdict.
 */
moert_status moert_flags_check_verdict(moert_flags *flags);
