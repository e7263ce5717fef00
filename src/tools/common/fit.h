/*
 * Whether a training run fits the memory that its ranks may take, and which way of computing makes
 * it fit. All functions but moert_fit_prepare are collective over `world` and give the same result
 * on all ranks. setting->device is this rank's device.
 */
#pragma once

#include "estimate/memory.h"

/* The rank with the least room (limit - needed), by the estimate. */
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
 * Estimates the memory of all ranks. A rank may take `most` bytes. If that is 0, ranks that use the
 * same GPU share its memory equally, and ranks that use the CPUs of one host share its available
 * memory. If setting->ranks is not the size of `world`, each of the ranks is estimated as if it had
 * this rank's device. Errors: those of moert_memory_estimate.
 */
moert_status moert_fit_compare(moert_comm *world, const moert_memory_setting *setting, size_t most,
                               moert_fit *fit);

static inline bool moert_fit_holds(const moert_fit *fit) {
    return fit->needed <= fit->limit;
}

/*
 * Finds the choice that fits memory and recomputes the least: first with all logits at once, then
 * with logits in chunks, unless choice->loss_chunk is given (above 0). *choice and *fit are the
 * first one that fits, or the last one tried. setting->config is not changed.
 */
moert_status moert_fit_choose(moert_comm *world, const moert_memory_setting *setting, size_t most,
                              moert_memory_choice *choice, moert_fit *fit);
