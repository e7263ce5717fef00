/*
 * Who waits for whom in the collective calls of all communicators of this process.
 *
 * While calls are noted, each keeps two times: when this rank entered it and when it left. At the
 * end the ranks of each communicator compare them: what a rank has spent in a call until the last
 * of the others came, of those without whom it did not leave, it has waited for that one. The rest
 * of the call is the message's. Process-wide, as base/phase.h; off it costs a branch a call.
 */
#pragma once

#include "comm/comm.h"

/* Compares the clocks of the hosts; to be called once. Between hosts they then agree to within
 * the length of a barrier. Collective over all ranks of the program. Errors: ERROR_COMM. */
moert_status moert_arrivals_enable(moert_comm *world);

/* Calls are noted from here on; all ranks between the same two of them. */
void moert_arrivals_begin(void);

/*
 * Ends that; all ranks likewise. waited_ns[r] += what this rank has waited for rank r, as
 * moert_comm_create counts. Calls that not all ranks of a communicator have made do not count.
 * Collective over all communicators there are. Errors: ERROR_MEMORY, ERROR_COMM.
 */
moert_status moert_arrivals_end(double *waited_ns);
