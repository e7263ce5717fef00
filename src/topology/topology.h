/*
 * Chooses the cores of a rank, by hwloc. No other module includes hwloc.h.
 *
 * The ranks of a host get disjoint runs of neighbouring cores if there are enough cores. On hosts
 * with GPUs, a rank's cores are near its GPU. A core is a physical core with all its hardware
 * threads.
 *
 * The ranks divide the cores that the machine (its cgroup) allows and that the process's mask, set
 * by the launcher, contains. Ranks with equal masks divide the mask among themselves. All ranks of
 * an unbound host or of a container have equal masks, and so have the ranks of a socket under
 * mpirun --bind-to socket; under --bind-to core each rank has a mask of its own. A rank cannot see
 * the masks of other ranks, so the caller gathers moert_topology_mask_text() of all ranks of the
 * host. A mask smaller than the machine makes the placement `confined`.
 *
 * The placement is pure arithmetic on the topology, so synthetic topologies test it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct moert_topology moert_topology;

enum { MOERT_CPUS_BYTES = 1024 }; /* a list of logical processors as text */

typedef struct moert_placement {
    char cpus[MOERT_CPUS_BYTES]; /* logical-processor list such as "0-3,8" (OS numbers) */
    unsigned cpu_count;          /* cores in `cpus`; the number of threads for a CPU device */
    char pci[24];                /* "0000:3b:00.0" of the GPU meant for this rank, or "" */
    bool confined;               /* the launcher set a mask smaller than the machine */
    bool shared;                 /* more ranks than cores: cores are shared between ranks */
} moert_placement;

/*
 * Loads this machine (NULL or ""), a synthetic hwloc description such as "pack:2 core:4 pu:2", or a
 * file "*.xml" that lstopo or hwloc wrote on another machine. A description or a file serves to
 * inspect placements: it has no mask, and binding to it does nothing. The call reads the mask of
 * the process, so a later moert_topology_bind does not change the placements of this topology.
 * Errors: ERROR_USAGE (names MOERT_TOPOLOGY), ERROR_TOPOLOGY, ERROR_MEMORY.
 */
moert_status moert_topology_create(const char *synthetic, moert_topology **topology);
void moert_topology_destroy(moert_topology *topology);

/* Describes the topology in one line: packages, NUMA nodes, cores and GPUs, and the cores within
 * the mask if it excludes some. */
void moert_topology_describe(const moert_topology *topology, char *text, size_t bytes);

/* The logical processors that this process may use, in the format of moert_placement.cpus. Equal
 * texts mean equal masks. ERROR_UNSUPPORTED if the text does not fit; MOERT_CPUS_BYTES suffice for
 * placements. */
moert_status moert_topology_mask_text(const moert_topology *topology, char *text, size_t bytes);

/*
 * Places rank number `local_rank` of `local_size` on this host. masks[local_size]: the text of
 * moert_topology_mask_text() of each rank, in order; NULL when all are the same. gpus: whether the
 * rank uses a GPU if there is one.
 *
 *   C cores in the mask, n ranks with this mask: the i-th of these ranks gets the cores
 *   [i C/n, (i+1) C/n), or core i C/n when C < n (`shared`).
 *
 *   G GPUs in hwloc's order, N ranks on the host: rank i gets GPU i G/N. When all masks are the
 *   same, n ranks whose GPUs are near the same package or NUMA node divide the C cores there.
 *
 * Errors: ERROR_TOPOLOGY (no cores), ERROR_UNSUPPORTED (the list is too long), ERROR_MEMORY,
 * ERROR_INTERNAL (local_rank).
 */
moert_status moert_topology_place(const moert_topology *topology, size_t local_rank,
                                  size_t local_size, const char (*masks)[MOERT_CPUS_BYTES],
                                  bool gpus, moert_placement *placement);

/* Binds the calling process, with its present and future threads, to the placement. Does nothing if
 * the topology comes from a description or a file. Errors: ERROR_TOPOLOGY, ERROR_MEMORY. */
moert_status moert_topology_bind(const moert_topology *topology, const moert_placement *placement);

/* The masks of all threads of this process, to be restored. restore frees `affinity`; a thread that
 * has ended, or started later, is no error. NULL is legal. Errors: ERROR_TOPOLOGY, ERROR_MEMORY. */
typedef struct moert_affinity moert_affinity;
moert_status moert_affinity_save(moert_affinity **affinity);
void moert_affinity_restore(moert_affinity *affinity);

/*
 * moert_threads_pin_new pins the threads that have started since moert_threads_snapshot to the
 * cores of the placement, one thread per core in turn. Take a snapshot, let the OpenCL runtime
 * start its workers, then pin the new threads.
 *
 * For PoCL set POCL_MAX_PTHREAD_COUNT to cpu_count before the first OpenCL call. Workers that are
 * not pinned often share a core, and PoCL's POCL_AFFINITY pins them without regard to the mask of
 * the process.
 */
typedef struct moert_thread_snapshot {
    int *ids; /* ascending */
    size_t count;
} moert_thread_snapshot;

/* Errors: ERROR_TOPOLOGY, ERROR_MEMORY. */
moert_status moert_threads_snapshot(moert_thread_snapshot *snapshot);

/* Frees the snapshot, also on failure. *pinned = 0 if the topology comes from a description or a
 * file. Errors: ERROR_TOPOLOGY, ERROR_MEMORY. */
moert_status moert_threads_pin_new(const moert_topology *topology, const moert_placement *placement,
                                   moert_thread_snapshot *snapshot, size_t *pinned);
