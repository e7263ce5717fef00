/*
 * Ranks wait for each other on their devices.
 *
 *   meet   flag[rank] of every rank's segment = number; then until flag[r] of this rank's segment
 *          has come to `number`, for all r, or `patience_ns` have passed: then verdict = {r + 1,
 *          number} and later meetings wait no more
 *
 * Numbers count up by one, and wrap. What the queues have done before a meeting, on any rank's
 * device, is seen by what they do after it. One work-group, no local memory. Waits for kernels of
 * other devices, which must run at the same time.
 */
#include "exchange/barrier.h"

KERNEL void barrier_of_devices(BARRIER_PARAMETERS) {
    raise_all(segments, verdict, m);
    wait_for_all(segments, verdict, m);
}
