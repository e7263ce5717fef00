/* What the layers above see of a context. */
#pragma once

#include "comm/comm.h"
#include "device/device.h"
#include "moert/context.h"
#include "topology/topology.h"

moert_comm *moert_context_comm(const moert_context *context);
/* moert_topology_describe of this host, as it was before the rank was bound; "" when nothing was
 * bound. */
const char *moert_context_topology(const moert_context *context);
/* Where this rank was placed; cpu_count 0 when nothing was bound. */
const moert_placement *moert_context_placement(const moert_context *context);

/* Sums have the same bits on all ranks: where one has no AMX, none uses it. Collective; part of
 * moert_context_create. Errors: ERROR_USAGE (MOERT_BF16=tiles asks for its sums, but not on all
 * ranks, or one is no CPU). */
moert_status moert_context_settle_tiles(moert_comm *comm, moert_device *device);

/* Whether the watchdog guards this rank. */
bool moert_context_is_watched(const moert_context *context);

/* True for the first rank of its host that is about to report a failure and to abort; the others
 * end without words. context may be NULL. Not collective. */
bool moert_context_claim_report(moert_context *context);
