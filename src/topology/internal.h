/* What the files of this module share. */
#pragma once

#include <hwloc.h>

#include "topology/topology.h"

typedef struct moert_gpu_place {
    char pci[24];
    hwloc_bitmap_t near; /* usable processors close to it; all of them when that is not known */
} moert_gpu_place;

struct moert_topology {
    hwloc_topology_t tree;
    hwloc_bitmap_t usable;      /* processors that the machine and the process's mask allow */
    hwloc_obj_type_t core_type; /* cores, or processors on a machine that does not tell cores */
    bool here;                  /* this machine, not a synthetic one */
    bool masked;                /* usable is less than the machine allows */
    moert_gpu_place *gpus;      /* in hwloc's order */
    size_t gpu_count;
    bool gpus_apart; /* any two GPUs are near the same processors, or have none in common */
};

/* The core after `previous` (NULL: the first) with a processor in `set`, in logical order; NULL
 * past the last. */
hwloc_obj_t moert_topology_next_core(const moert_topology *topology, hwloc_const_bitmap_t set,
                                     hwloc_obj_t previous);

size_t moert_topology_count_cores(const moert_topology *topology, hwloc_const_bitmap_t set);

/* `set` as a list such as "0-3,8"; ERROR_UNSUPPORTED if it does not fit. */
moert_status moert_topology_list(hwloc_const_bitmap_t set, char *text, size_t bytes);

/* A bitmap that is never NULL when the call succeeds. */
moert_status moert_topology_bitmap(hwloc_bitmap_t *set);
