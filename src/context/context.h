/* Functions of a context for other modules of moert. */
#pragma once

#include "comm/comm.h"
#include "moert/context.h"
#include "moert/device.h"
#include "topology/topology.h"

/* Like moert_context_create, with the communicator *(const MPI_Comm *)comm. same_variables: fail if
 * ranks differ in a variable whose scope is AGREE (base/config.h). moert-preflight reports these
 * differences itself. Collective. */
moert_status moert_context_open(const void *comm, const moert_context_options *options,
                                bool same_variables, moert_context **context);

moert_comm *moert_context_comm(const moert_context *context);
/* The text of moert_topology_describe for this host, written before the rank was bound; "" if the
 * rank was not bound. */
const char *moert_context_topology(const moert_context *context);
/* The placement of this rank; cpu_count is 0 if the rank was not bound. */
const moert_placement *moert_context_placement(const moert_context *context);

/* The text of moert_device_difference for this rank's device. */
const char *moert_context_difference(const moert_context *context);

/* Makes bf16 sums have the same bits on all ranks: if a rank has no AMX, no rank uses AMX.
 * Collective; part of moert_context_create. Errors: ERROR_USAGE (MOERT_BF16=tiles on one rank
 * requires sums in tiles on all ranks, but a rank without AMX does not set it, or a rank's device
 * takes kernels in GPU form). */
moert_status moert_context_settle_tiles(moert_comm *comm, moert_device *device);

/* The engine of the context's exchanges: MOERT_EXCHANGE_* of base/config.h. */
unsigned moert_context_exchange(const moert_context *context);

/* Whether the watchdog guards this rank. */
bool moert_context_is_watched(const moert_context *context);

/* Call this before reporting a failure and aborting. Returns true on the first rank of its host,
 * which must print the message; other ranks must not print it. context may be NULL. Not
 * collective. */
bool moert_context_claim_report(moert_context *context);
