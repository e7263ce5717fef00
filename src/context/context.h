/* What the layers above see of a context. */
#ifndef MOERT_CONTEXT_INTERNAL_H
#define MOERT_CONTEXT_INTERNAL_H

#include "comm/comm.h"
#include "device/device.h"
#include "moert/context.h"
#include "topology/topology.h"

moert_comm *moert_context_comm(const moert_context *context);
/* moert_topology_describe of this host, as it was before the rank was bound; "" when nothing was bound. */
const char *moert_context_topology(const moert_context *context);
/* Where this rank was placed; cpu_count 0 when nothing was bound. */
const moert_placement *moert_context_placement(const moert_context *context);

#endif
