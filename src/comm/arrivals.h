/*
 * Measures which rank waits for which in the collective calls of all communicators of this process.
 *
 * While recording is on, each call stores two times: when this rank entered it and when it left. At
 * the end of the recording the ranks of each communicator compare these times. In a call, rank q
 * waits for rank p, the last rank that enters before q leaves. The wait ends when p enters. The
 * rest of the call is message time. The recording is process-wide, as base/phase.h is. While
 * recording is off, each call spends one branch on the check.
 */
#pragma once

#include "comm/comm.h"

/* Compares the clocks of the hosts; call this once. After that, recorded times of different hosts
 * are comparable to within the duration of a barrier. Collective over all ranks of the program.
 * Errors: ERROR_COMM. */
moert_status moert_arrivals_enable(moert_comm *world);

/* Starts recording calls. All ranks must begin the recording between the same two collective calls,
 * and must also end it between the same two collective calls. */
void moert_arrivals_begin(void);

/*
 * Ends recording. waited_ns[r] += the time that this rank has waited for rank r, as numbered by
 * moert_comm_create. Ignores a communicator whose ranks recorded different numbers of calls.
 * Collective over all existing communicators. Errors: ERROR_MEMORY, ERROR_COMM.
 */
moert_status moert_arrivals_end(double *waited_ns);
