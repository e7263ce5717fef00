/*
 * Checks whether a training run fits the memory that its ranks may take, and chooses recomputation
 * and chunks of logits that make it fit. All functions but moert_fit_prepare are collective over
 * `world` and give the same result on all ranks. setting->device is this rank's device.
 */
#pragma once

#include "estimate/memory.h"

/* The rank with the least room (limit - needed) according to the estimate. */
typedef struct moert_fit {
    size_t rank;
    size_t needed; /* bytes that the rank needs */
    size_t limit;  /* bytes that the rank may take */
} moert_fit;

/* Fills in the fields of a setting that follow from the mesh: ranks, ep, places, engine,
 * largest_bytes, device. places[R] must live as long as the setting. Not collective. */
void moert_fit_prepare(const moert_mesh *mesh, moert_mesh_place *places,
                       moert_memory_setting *setting);

/*
 * Estimates the memory of all ranks. A rank may take `most` bytes. If `most` is 0, ranks that use
 * the same GPU share its memory equally, and ranks that use the CPUs of one host share its
 * available memory. If setting->ranks is not the size of `world`, every rank is assumed to have a
 * device like this rank's. Errors: those of moert_memory_estimate.
 */
moert_status moert_fit_compare(moert_comm *world, const moert_memory_setting *setting, size_t most,
                               moert_fit *fit);

static inline bool moert_fit_holds(const moert_fit *fit) {
    return fit->needed <= fit->limit;
}

/*
 * Finds the memory choice that fits and recomputes the least. Tries choices with all logits at
 * once, then choices with logits in chunks; if choice->loss_chunk is above 0, only chunks of this
 * size. *choice and *fit describe the first choice that fits, or the last choice tried.
 * setting->config is not changed.
 */
moert_status moert_fit_choose(moert_comm *world, const moert_memory_setting *setting, size_t most,
                              moert_memory_choice *choice, moert_fit *fit);
