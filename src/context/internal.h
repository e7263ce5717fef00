/* The context's struct, and functions that its files share. */
#pragma once

#include "comm/watchdog/watchdog.h"
#include "context/context.h"

struct moert_context {
    moert_comm *comm;
    moert_device *device;
    moert_watchdog *watchdog;
    moert_placement placement;
    char topology[256];
    char *difference;
    moert_context_options options;
    bool bound; /* counts in `process` */
};

/* Gathers the `bytes` bytes at `mine` of every rank, in rank order. *out = the result, which the
 * caller frees. All ranks return the same failure. Collective. */
moert_status moert_context_gather(moert_comm *comm, const void *mine, size_t bytes, void *out);

/* Binds the rank as its options or variables say, and opens its device. All ranks must get their
 * devices in the same way, since each way makes different collective calls. Collective. */
moert_status moert_context_open_device(moert_context *context);
/* Restores the affinity of the process's threads, unless another bound context still exists. */
void moert_context_unbind(const moert_context *context);
