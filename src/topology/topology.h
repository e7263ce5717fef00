/*
 * Which cores a rank runs on: hwloc, the only module that includes hwloc.h.
 *
 * The ranks of a host get disjoint sets of cores when there are enough, each set close together,
 * and near the rank's GPU when there are GPUs. When the launcher has bound the rank already (its
 * mask is smaller than the machine), moert stays inside that mask. Placement is pure: it is tested
 * on synthetic topologies.
 */
#ifndef MOERT_TOPOLOGY_TOPOLOGY_H
#define MOERT_TOPOLOGY_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct moert_topology moert_topology;

typedef struct moert_placement {
    char cpus[256];     /* logical-processor list such as "0-3,8" (OS numbers) */
    unsigned cpu_count; /* cores in it: threads a CPU device should use */
    char pci[24];       /* "0000:3b:00.0" of the GPU meant for this rank, or "" */
    bool confined;      /* the launcher's mask was kept */
    bool shared;        /* more ranks than cores: cores are shared between ranks */
} moert_placement;

/* The machine, or a synthetic hwloc description such as "pack:2 core:4 pu:2". Errors:
 * ERROR_TOPOLOGY, ERROR_USAGE. */
moert_status moert_topology_create(const char *synthetic, moert_topology **topology);
void moert_topology_destroy(moert_topology *topology);

/* One line: packages, NUMA nodes, cores, GPUs. */
void moert_topology_describe(const moert_topology *topology, char *text, size_t bytes);

/* Where rank number `local_rank` of `local_size` on this host runs; gpus: whether it is to run on a
 * GPU if there is one. */
moert_status moert_topology_place(const moert_topology *topology, size_t local_rank,
                                  size_t local_size, bool gpus, moert_placement *placement);

/* Binds the calling process (all its threads) to the placement; a no-op on synthetic topologies. */
moert_status moert_topology_bind(const moert_topology *topology, const moert_placement *placement);

/*
 * Pins threads that a library starts in between, one to each core of the placement in turn: take a
 * snapshot, let the OpenCL runtime start its workers, then pin those that are new.
 */
typedef struct moert_thread_snapshot {
    int *ids;
    size_t count;
} moert_thread_snapshot;
moert_status moert_threads_snapshot(moert_thread_snapshot *snapshot);
moert_status moert_threads_pin_new(const moert_topology *topology, const moert_placement *placement,
                                   moert_thread_snapshot *snapshot,
                                   size_t *pinned); /* frees the snapshot */

#endif
