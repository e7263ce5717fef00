/* Declarations that the files of src/topology share. */
#pragma once

#include <hwloc.h>

#include "topology/topology.h"

typedef struct moert_gpu_location {
    char pci[24];
    hwloc_bitmap_t near; /* usable processors near the GPU; all usable processors if hwloc does not
                            know the nearest */
} moert_gpu_location;

struct moert_topology {
    hwloc_topology_t tree;
    hwloc_bitmap_t usable;      /* processors that both the machine and the process's mask allow */
    hwloc_obj_type_t core_type; /* object type that counts as a core: HWLOC_OBJ_CORE, or PUs if
                                   hwloc finds no cores */
    bool here;                  /* the topology is this machine's, not one described by
                                   MOERT_TOPOLOGY */
    bool masked;                /* the mask excludes processors that the machine allows */
    moert_gpu_location *gpus;   /* in hwloc's order */
    size_t gpu_count;
    bool gpus_apart; /* the `near` sets of any two GPUs are equal or disjoint */
};

/* The core after `previous` (NULL: the first) with a processor in `set`, in logical order; NULL
 * past the last. */
hwloc_obj_t moert_topology_next_core(const moert_topology *topology, hwloc_const_bitmap_t set,
                                     hwloc_obj_t previous);

size_t moert_topology_count_cores(const moert_topology *topology, hwloc_const_bitmap_t set);

/* Writes `set` to `text` as a list such as "0-3,8". Errors: ERROR_UNSUPPORTED if the list does not
 * fit. */
moert_status moert_topology_list(hwloc_const_bitmap_t set, char *text, size_t bytes);

/* Creates an empty bitmap. Errors: ERROR_MEMORY. */
moert_status moert_topology_bitmap(hwloc_bitmap_t *set);
