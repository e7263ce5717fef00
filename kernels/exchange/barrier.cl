/*
 * A barrier of all ranks' devices.
 *
 *   barrier_of_devices   stores `number` in flag[rank] of every rank's segment, then waits until
 *                        flag[r] of this rank's segment has reached `number` for all r. If rank r
 *                        is late by `patience_ns`, verdict = {r + 1, number}, and later barriers
 *                        do not wait.
 *
 *   poll_flag            where polls are counted, loads flag[0] `polls` times, so that the host can
 *                        measure how long a poll takes
 *
 * Barriers are numbered; the number grows by one and wraps. Commands enqueued after a barrier see
 * the results of all commands enqueued before it on any rank's device. One work-group, no local
 * memory. The kernel waits for kernels of other devices, which must run at the same time.
 */
#include "exchange/barrier.h"

KERNEL void poll_flag(global int *flag, global int *seen, ulong polls) {
    int all = 0;
#ifdef COUNTS_POLLS
    for (ulong i = 0; i < polls; i++)
        all |= load_flag(flag);
#endif
    *seen = all;
}

KERNEL void barrier_of_devices(BARRIER_PARAMETERS) {
    raise_all(segments, verdict, m);
    wait_for_all(segments, verdict, m);
}
