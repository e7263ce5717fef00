/*
 * A barrier of all ranks' devices.
 *
 *   barrier_of_devices   stores `number` in flag[rank] of every rank's segment, then waits until
 *                        flag[r] of this rank's segment has reached `number` for all r. If rank r
 *                        is late by `patience`, verdict = {r + 1, number}, and later barriers
 *                        do not wait.
 *
 *   count_ticks          result = {ticks after polling the flag `polls` times more, 0}, so that the
 *                        host can measure how long a tick takes; {0, 1} at once where a tick is a
 *                        nanosecond
 *
 * Barriers are numbered; the number grows by one and wraps. Commands enqueued after a barrier see
 * the results of all commands enqueued before it on any rank's device. One work-group, no local
 * memory. The kernel waits for kernels of other devices, which must run at the same time.
 */
#include "exchange/barrier.h"

KERNEL void count_ticks(global int *flag, global ulong *result, ulong polls) {
    if (!is_first_item())
        return;
#ifdef TICK_IS_NS
    result[1] = 1;
#else
    int seen = 0;
    for (ulong i = 0; i < polls; i++)
        seen |= load_flag(flag);
    result[1] = seen < 0; /* is 0, as no flag is negative; this makes the compiler keep the loads */
    result[0] = ticks(result[0] + polls);
#endif
}

KERNEL void barrier_of_devices(volatile global uint *state, moert_barrier_args m) {
    raise_all(state, m);
    wait_for_all(state, m);
}
