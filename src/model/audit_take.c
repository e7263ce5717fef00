/* The hashes that an audited run leaves. */
#include <string.h>

#include "base/memory.h"
#include "device/buffer.h"
#include "model/audit_internal.h"
#include "model/audit_points.h"
#include "model/sublayer.h"

/* *hash = a hash of its value before and of floats of a buffer. */
static moert_status hash_floats(moert_audit *audit, moert_buffer *buffer, size_t at, size_t floats,
                                uint64_t *hash) {
    return moert_digest_floats(buffer, at, floats, &audit->digests, hash);
}

/* Whether a layer's weights are those of the second run. */
static bool repeats(const moert_audit *audit, const moert_model_layer *layer) {
    return layer == &audit->copy;
}

/* Whether the site is to be hashed now; at its first computation in a run. */
static bool takes(moert_audit *audit, const moert_model_layer *layer, moert_audit_site site) {
    bool *const taken = &audit->taken[repeats(audit, layer)][site];
    const bool takes = (layer == audit->layer || repeats(audit, layer)) && !*taken;
    *taken |= takes;
    return takes;
}

static uint64_t *hash_of(moert_audit *audit, const moert_model_layer *layer,
                         moert_audit_site site) {
    return audit->hash[repeats(audit, layer)] + site * audit->slots;
}

static bool plants(moert_audit *audit, const moert_model_layer *layer, moert_audit_site site) {
    const moert_audit_plant *plant = audit->plant;
    return plant != NULL && !repeats(audit, layer) && plant->site == site &&
           plant->layer == layer->index;
}

/* A site's result at the start of a buffer. */
static moert_status take_floats(moert_audit *audit, const moert_model_layer *layer,
                                moert_audit_site site, moert_buffer *buffer, size_t floats) {
    const bool first = !audit->taken[0][site];
    uint64_t *hash = hash_of(audit, layer, site);
    if (plants(audit, layer, site) && (first || layer != audit->layer))
        MOERT_TRY(moert_plant_bit(&audit->plant->plant, buffer, 0, floats));
    return takes(audit, layer, site) ? hash_floats(audit, buffer, 0, floats, hash) : MOERT_OK;
}

/* Gradients of a replicated block, without the last `without` tensors. */
static moert_status take_gradient(moert_audit *audit, const moert_run *run,
                                  const moert_model_layer *layer, moert_audit_site site,
                                  const moert_block *block, size_t without) {
    const moert_batch *batch = &run->batch;
    moert_tree_node list[MOERT_TREE_MAX_NODES];
    const size_t end = block->count - without,
                 floats = without > 0 ? block->tensor[end].offset : block->floats;
    const size_t nodes = block->collects_sum ? 1 : moert_tree_nodes(moert_batch_span(batch), list);
    moert_buffer *const buffer = block->collects_sum ? block->gradient : block->nodes;
    uint64_t *hash = hash_of(audit, layer, site);
    if (batch->sequences == 0)
        return MOERT_OK;
    if (plants(audit, layer, site))
        MOERT_TRY(moert_plant_bit(&audit->plant->plant, buffer, 0, block->tensor[0].elements));
    if (!takes(audit, layer, site))
        return MOERT_OK;
    for (size_t n = 0; n < nodes; n++)
        MOERT_TRY(hash_floats(audit, buffer, n * block->floats, floats, hash));
    return MOERT_OK;
}

/* Gradients of the experts' weights, slot by slot. */
static moert_status take_experts(moert_audit *audit, const moert_model_layer *layer) {
    const moert_audit_site site = MOERT_AUDIT_EXPERT_GRADIENT;
    const bool planting = plants(audit, layer, site), hashing = takes(audit, layer, site);
    const size_t local = moert_layer_local_experts(layer->moe);
    for (size_t b = 1; b <= MOERT_AUDIT_EXPERT_BLOCKS && (planting || hashing); b++) {
        const moert_block *block = moert_layer_block(layer->moe, b);
        if (planting && b == 1)
            MOERT_TRY(moert_plant_bit(&audit->plant->plant, block->gradient, 0,
                                      block->tensor[0].elements));
        for (size_t s = 0; s < local && hashing; s++)
            for (size_t i = 0; i < block->count; i++) {
                const size_t floats = block->tensor[i].elements / local;
                MOERT_TRY(hash_floats(audit, block->gradient, block->tensor[i].offset + s * floats,
                                      floats, hash_of(audit, layer, site) + s));
            }
    }
    return MOERT_OK;
}

/* Takes the router's choice while the pass is there. */
static moert_status take_route(moert_audit *audit, const moert_run *run,
                               const moert_run_layer *of_run) {
    const moert_model_layer *layer = of_run->of;
    const moert_routing *routing = moert_pass_routing(of_run->pass);
    const size_t slots = run->batch.tokens * run->config->router.topk;
    uint64_t *hash = hash_of(audit, layer, MOERT_AUDIT_ROUTE);
    if (plants(audit, layer, MOERT_AUDIT_ROUTE))
        MOERT_TRY(moert_plant_bit(&audit->plant->plant, routing->weight, 0, slots));
    if (!takes(audit, layer, MOERT_AUDIT_ROUTE))
        return MOERT_OK;
    MOERT_TRY(hash_floats(audit, routing->index, 0, slots, hash));
    return hash_floats(audit, routing->weight, 0, slots, hash);
}

/* The probe's hashes of the forward or the backward. */
static void take_probe(moert_audit *audit, const moert_model_layer *layer, bool forward) {
    static const moert_audit_site first[] = {MOERT_AUDIT_DY, MOERT_AUDIT_ROWS};
    const size_t points = 3, local = moert_layer_local_experts(layer->moe);
    const uint64_t *from = audit->probe->hash + (forward ? 0 : points * local);
    uint64_t *to = hash_of(audit, layer, first[forward]);
    if (takes(audit, layer, first[forward]))
        for (size_t p = 0; p < points; p++)
            memcpy(to + p * audit->slots, from + p * local, local * sizeof *to);
}

/* ---- inputs saved for the recomputation ---- */

static moert_status keep_copy(moert_audit *audit, const moert_buffer *source, size_t floats,
                              moert_buffer **copy) {
    const size_t bytes = floats * sizeof(float);
    MOERT_TRY(moert_buffer_reserve(audit->model->device, bytes, copy));
    return bytes > 0 ? moert_buffer_copy(source, 0, *copy, 0, bytes) : MOERT_OK;
}

/* Copies the gradients to which the backward adds. */
static moert_status keep_gradients(moert_audit *audit, const moert_model_layer *layer) {
    const moert_model *model = audit->model;
    const moert_block *own[] = {layer->attention, layer->mlp},
                      *copy[] = {audit->copy.attention, audit->copy.mlp};
    for (size_t i = 0; i < MOERT_COUNT(own); i++)
        if (own[i] != NULL && own[i]->collects_sum)
            MOERT_TRY(moert_block_copy_gradient(own[i], copy[i]->gradient));
    for (size_t b = 1; b <= MOERT_AUDIT_EXPERT_BLOCKS && !layer->is_dense; b++) {
        const moert_block *block = moert_layer_block(layer->moe, b);
        MOERT_TRY(moert_buffer_reserve(model->device, block->floats * sizeof(float),
                                       &audit->before[b - 1]));
        MOERT_TRY(moert_block_copy_gradient(block, audit->before[b - 1]));
    }
    return MOERT_OK;
}

static moert_status begin_backward(moert_audit *audit, const moert_run *run,
                                   const moert_model_layer *layer, size_t floats) {
    if (layer != audit->layer)
        return MOERT_OK;
    if (run->accumulate)
        MOERT_TRY(keep_gradients(audit, layer));
    return keep_copy(audit, run->d, floats, &audit->d[0]);
}

static moert_status end_mlp(moert_audit *audit, const moert_run *run,
                            const moert_model_layer *layer, size_t floats) {
    if (layer->is_dense) {
        MOERT_TRY(take_gradient(audit, run, layer, MOERT_AUDIT_MLP_GRADIENT, layer->mlp, 0));
    } else {
        take_probe(audit, layer, false);
        MOERT_TRY(take_experts(audit, layer));
    }
    MOERT_TRY(take_floats(audit, layer, MOERT_AUDIT_D_MIDDLE, run->d, floats));
    return layer == audit->layer ? keep_copy(audit, run->d, floats, &audit->d[1]) : MOERT_OK;
}

moert_status moert_audit_take(moert_run *run, const moert_run_layer *of_run,
                              moert_audit_point point) {
    moert_audit *audit = run->audit;
    const moert_model_layer *layer = of_run->of;
    moert_buffer *const middle = of_run->activations->middle;
    const size_t floats = run->batch.tokens * run->config->hidden;
    switch (point) {
    case MOERT_AUDIT_ATTENDED:
        MOERT_TRY(take_floats(audit, layer, MOERT_AUDIT_MIDDLE, middle, floats));
        return layer == audit->layer ? keep_copy(audit, middle, floats, &audit->middle) : MOERT_OK;
    case MOERT_AUDIT_FORWARDED:
        if (!layer->is_dense) {
            take_probe(audit, layer, true);
            MOERT_TRY(take_route(audit, run, of_run));
        }
        return take_floats(audit, layer, MOERT_AUDIT_OUT, of_run->out, floats);
    case MOERT_AUDIT_BACKWARD:
        return begin_backward(audit, run, layer, floats);
    case MOERT_AUDIT_MLP_DONE:
        return end_mlp(audit, run, layer, floats);
    case MOERT_AUDIT_DIFFERENTIATED:
        MOERT_TRY(take_floats(audit, layer, MOERT_AUDIT_D_INPUT, run->d, floats));
        return take_gradient(audit, run, layer, MOERT_AUDIT_ATTENTION_GRADIENT, layer->attention,
                             1);
    }
    return MOERT_OK;
}
