/*
 * Divides cores among the ranks of a host. The functions are pure: the same topology and rank give
 * the same placement, so every rank can compute the placement of every other rank.
 */
#include <stdio.h>
#include <string.h>

#include "topology/internal.h"

/* Part number `part` of `parts` equal parts of the cores in `set`. */
typedef struct core_part {
    hwloc_const_bitmap_t set;
    size_t part, parts;
} core_part;

static size_t gpu_of(const moert_topology *topology, size_t rank, size_t size) {
    return rank * topology->gpu_count / size;
}

/* The rank's part of its mask, among the ranks with the same mask. */
static core_part of_mask(const moert_topology *topology, size_t local_rank, size_t local_size,
                         const char (*masks)[MOERT_CPUS_BYTES]) {
    if (masks == NULL)
        return (core_part){topology->usable, local_rank, local_size};
    core_part mine = {.set = topology->usable};
    for (size_t rank = 0; rank < local_size; rank++) {
        if (strcmp(masks[rank], masks[local_rank]) != 0)
            continue;
        mine.part += rank < local_rank;
        mine.parts++;
    }
    return mine;
}

/* The rank's part of the cores near its GPU, among the ranks whose GPUs are near the same cores. */
static core_part near_gpu(const moert_topology *topology, size_t local_rank, size_t local_size) {
    core_part mine = {.set = topology->gpus[gpu_of(topology, local_rank, local_size)].near};
    for (size_t rank = 0; rank < local_size; rank++) {
        const moert_gpu_location *gpu = &topology->gpus[gpu_of(topology, rank, local_size)];
        if (!hwloc_bitmap_isequal(gpu->near, mine.set))
            continue;
        mine.part += rank < local_rank;
        mine.parts++;
    }
    return mine;
}

static moert_status take(const moert_topology *topology, core_part mine,
                         moert_placement *placement) {
    size_t count = moert_topology_count_cores(topology, mine.set);
    if (count == 0)
        return MOERT_FAIL(ERROR_TOPOLOGY, "hwloc finds no cores in this machine");
    size_t first = mine.part * count / mine.parts;
    placement->shared = count < mine.parts;
    size_t end = placement->shared ? first + 1 : (mine.part + 1) * count / mine.parts;

    moert_status status;
    hwloc_bitmap_t cpus;
    MOERT_TRY(moert_topology_bitmap(&cpus));
    hwloc_obj_t core = NULL;
    for (size_t i = 0; i < end; i++) {
        core = moert_topology_next_core(topology, mine.set, core);
        if (i >= first)
            hwloc_bitmap_or(cpus, cpus, core->cpuset);
    }
    hwloc_bitmap_and(cpus, cpus, mine.set);
    MOERT_TRY_OR(free_cpus, moert_topology_list(cpus, placement->cpus, sizeof placement->cpus));
    placement->cpu_count = (unsigned)(end - first);
free_cpus:
    hwloc_bitmap_free(cpus);
    return status;
}

moert_status moert_topology_place(const moert_topology *topology, size_t local_rank,
                                  size_t local_size, const char (*masks)[MOERT_CPUS_BYTES],
                                  bool gpus, moert_placement *placement) {
    if (local_rank >= local_size)
        return MOERT_FAIL(ERROR_INTERNAL,
                          "local rank %zu is not below the number of local ranks, %zu", local_rank,
                          local_size);
    moert_placement made = {.confined = topology->masked};
    core_part mine = of_mask(topology, local_rank, local_size, masks);
    if (gpus && topology->gpu_count > 0) {
        snprintf(made.pci, sizeof made.pci, "%s",
                 topology->gpus[gpu_of(topology, local_rank, local_size)].pci);
        if (mine.parts == local_size && topology->gpus_apart)
            mine = near_gpu(topology, local_rank, local_size);
    }
    MOERT_TRY(take(topology, mine, &made));
    *placement = made;
    return MOERT_OK;
}
