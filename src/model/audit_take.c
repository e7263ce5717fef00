/* Hashes of an audited run's values. */
#include <string.h>

#include "base/memory.h"
#include "device/buffer.h"
#include "layer/operand.h"
#include "model/audit_internal.h"
#include "model/audit_points.h"
#include "model/sizes.h"
#include "model/sublayer.h"

/* A point in the first or the second run, in a layer or outside of the layers. */
typedef struct place {
    moert_audit *audit;
    const moert_run *run;
    const moert_model_layer *layer; /* NULL: outside */
    size_t part;
    bool repeats; /* the second run */
} place;

static place place_of(moert_audit *audit, const moert_run *run, const moert_run_layer *layer) {
    return (place){.audit = audit,
                   .run = run,
                   .layer = layer != NULL ? layer->of : NULL,
                   .part = layer != NULL ? layer->of->index : audit->model->config.layers,
                   .repeats = run == audit->repeat};
}

static uint64_t *hash_of(const place *at, moert_audit_site site) {
    moert_audit *audit = at->audit;
    uint64_t *const hash =
        at->repeats ? audit->again_hash : audit->hash + at->part * MOERT_AUDIT_SITES * audit->slots;
    return hash + site * audit->slots;
}

static bool *taken_at(const place *at, moert_audit_site site) {
    return at->repeats ? &at->audit->again_taken[site]
                       : &at->audit->taken[at->part * MOERT_AUDIT_SITES + site];
}

/* Marks the site as reached. Returns whether to hash the site: yes at its first computation in a
 * run, if the audit has a `check`. */
static bool takes(const place *at, moert_audit_site site) {
    bool *const taken = taken_at(at, site);
    const bool first = !*taken;
    *taken = true;
    return first && at->audit->check != NULL;
}

/* Whether to plant a wrong bit in the site now. */
static bool plants(const place *at, moert_audit_site site) {
    const moert_audit_plant *plant = at->audit->plant;
    return plant != NULL && !at->repeats && plant->site == site && !*taken_at(at, site) &&
           (at->part == at->audit->model->config.layers || plant->layer == at->part);
}

/* Queues floats of a buffer for hashing. After a flush, *hash combines its earlier value with the
 * hash of these floats. */
static moert_status hash_floats(const place *at, const moert_buffer *buffer, size_t first,
                                size_t floats, uint64_t *hash) {
    return moert_digest_add(&at->audit->digests, buffer, first, floats, hash);
}

/* Hashes a site's result, which is at the start of a buffer, after planting a wrong bit if one is
 * due. */
static moert_status take_floats(const place *at, moert_audit_site site, moert_buffer *buffer,
                                size_t floats) {
    if (plants(at, site))
        MOERT_TRY(moert_plant_bit(&at->audit->plant->plant, buffer, 0, floats));
    return takes(at, site) ? hash_floats(at, buffer, 0, floats, hash_of(at, site)) : MOERT_OK;
}

/* Copies the gradients of a block that will be summed over the ranks, before the gradients are
 * hashed. A bit that flips after the copy changes the sum, but not the repeated sum. */
static moert_status keep_nodes(const place *at, size_t index, const moert_block *block) {
    return at->repeats ? MOERT_OK
                       : moert_audit_keep_nodes(at->audit, index, block, &at->run->batch);
}

/* Hashes the gradients of tensors [first, end) of a replicated block. */
static moert_status take_gradient(const place *at, moert_audit_site site, const moert_block *block,
                                  size_t first, size_t end) {
    const moert_batch *batch = &at->run->batch;
    moert_tree_node list[MOERT_TREE_MAX_NODES];
    const size_t from = block->tensor[first].offset,
                 to = end < block->count ? block->tensor[end].offset : block->floats;
    const size_t nodes = block->collects_sum ? 1 : moert_tree_nodes(moert_batch_span(batch), list);
    moert_buffer *const buffer = block->collects_sum ? block->gradient : block->nodes;
    if (batch->sequences == 0)
        return MOERT_OK;
    if (plants(at, site))
        MOERT_TRY(
            moert_plant_bit(&at->audit->plant->plant, buffer, from, block->tensor[first].elements));
    if (!takes(at, site))
        return MOERT_OK;
    for (size_t n = 0; n < nodes; n++)
        MOERT_TRY(hash_floats(at, buffer, n * block->floats + from, to - from, hash_of(at, site)));
    return MOERT_OK;
}

/* hash[slots] = hashes of the experts' gradients in `buffers`, which have the layout of the layer's
 * blocks. */
static moert_status hash_experts(const place *at, moert_buffer *const *buffers, uint64_t *hash) {
    const size_t local = moert_layer_local_experts(at->layer->moe);
    for (size_t b = 1; b <= MOERT_AUDIT_EXPERT_BLOCKS; b++) {
        const moert_block *block = moert_layer_block(at->layer->moe, b);
        for (size_t s = 0; s < local; s++)
            for (size_t i = 0; i < block->count; i++) {
                const size_t floats = block->tensor[i].elements / local;
                MOERT_TRY(hash_floats(at, buffers[b - 1], block->tensor[i].offset + s * floats,
                                      floats, hash + s));
            }
    }
    return MOERT_OK;
}

static moert_status take_experts(const place *at) {
    const moert_audit_site site = MOERT_AUDIT_EXPERT_GRADIENT;
    const moert_block *in = moert_layer_block(at->layer->moe, 1);
    moert_buffer *const gradients[] = {in->gradient,
                                       moert_layer_block(at->layer->moe, 2)->gradient};
    if (plants(at, site))
        MOERT_TRY(
            moert_plant_bit(&at->audit->plant->plant, in->gradient, 0, in->tensor[0].elements));
    return takes(at, site) ? hash_experts(at, gradients, hash_of(at, site)) : MOERT_OK;
}

/* Hashes the router's choice, before the pass is discarded. */
static moert_status take_route(const place *at, const moert_run_layer *of_run) {
    const moert_routing *routing = moert_pass_routing(of_run->pass);
    const size_t slots = at->run->batch.tokens * at->run->config->router.topk;
    uint64_t *hash = hash_of(at, MOERT_AUDIT_ROUTE);
    if (plants(at, MOERT_AUDIT_ROUTE))
        MOERT_TRY(moert_plant_bit(&at->audit->plant->plant, routing->weight, 0, slots));
    if (!takes(at, MOERT_AUDIT_ROUTE))
        return MOERT_OK;
    MOERT_TRY(hash_floats(at, routing->index, 0, slots, hash));
    return hash_floats(at, routing->weight, 0, slots, hash);
}

/* Prepares the probe, which hashes the experts' rows, for the forward or the backward of a layer in
 * the first run. */
static void open_probe(const place *at, bool forward) {
    static const moert_audit_site sites[MOERT_PROBE_POINTS] = {MOERT_AUDIT_ROWS, MOERT_AUDIT_PROB,
                                                               MOERT_AUDIT_Y,    MOERT_AUDIT_DY,
                                                               MOERT_AUDIT_DX,   MOERT_AUDIT_DPROB};
    moert_probe *probe = at->audit->probe;
    const moert_audit_plant *plant = at->audit->plant;
    if (at->repeats || at->layer->is_dense)
        return;
    probe->takes = at->audit->check != NULL;
    probe->closed[!forward] = *taken_at(at, forward ? MOERT_AUDIT_ROWS : MOERT_AUDIT_DY);
    for (int p = 0; p < MOERT_PROBE_POINTS; p++)
        probe->plant[p] = plant != NULL && plants(at, sites[p]) ? &plant->plant : NULL;
}

/* Copies the probe's hashes of the forward or the backward to their sites. */
static void take_probe(const place *at, bool forward) {
    static const moert_audit_site first[] = {MOERT_AUDIT_DY, MOERT_AUDIT_ROWS},
                                  combined[] = {MOERT_AUDIT_D_COMBINED, MOERT_AUDIT_COMBINED};
    const moert_probe *probe = at->audit->probe;
    const size_t points = 3, local = moert_layer_local_experts(at->layer->moe);
    const uint64_t *from = probe->hash + (forward ? 0 : points * local);
    uint64_t *to = hash_of(at, first[forward]);
    if (!takes(at, first[forward]))
        return;
    for (size_t p = 0; p < points; p++)
        memcpy(to + p * at->audit->slots, from + p * local, local * sizeof *to);
    *hash_of(at, combined[forward]) = probe->combined[!forward];
}

/* ---- copies of values that later parts or the second run read ---- */

/* Copies the gradients, of the block outside of the layers, to which the backward adds. */
static moert_status keep_outside(const place *at) {
    moert_audit *audit = at->audit;
    const moert_block *outer = at->run->outer;
    if (at->repeats || audit->check == NULL || !at->run->accumulate)
        return MOERT_OK;
    if (moert_comm_size(outer->comm) > 1)
        return moert_audit_keep_addend(audit, MOERT_AUDIT_SUM_OUTSIDE, outer);
    MOERT_TRY(moert_buffer_reserve(audit->model->device, outer->floats * sizeof(float),
                                   &audit->before_outer));
    return moert_block_copy_gradient(outer, audit->before_outer);
}

static moert_status keep_copy(const place *at, size_t floats, moert_buffer **copy) {
    const size_t bytes = floats * sizeof(float);
    MOERT_TRY(moert_buffer_reserve(at->audit->model->device, bytes, copy));
    return bytes > 0 ? moert_buffer_copy(at->run->d, 0, *copy, 0, bytes) : MOERT_OK;
}

/* The replicated block of a layer's MLP. */
static const moert_block *mlp_block(const moert_model_layer *layer, bool dense) {
    return dense ? layer->mlp : moert_layer_block(layer->moe, 0);
}

/* Copies and hashes the gradients to which a layer's backward adds. */
static moert_status keep_gradients(const place *at) {
    moert_audit *audit = at->audit;
    const moert_model_layer *layer = at->layer;
    const bool dense = layer->is_dense;
    const moert_block *own[] = {layer->attention, mlp_block(layer, dense)},
                      *again[] = {moert_audit_attention(audit, layer),
                                  mlp_block(&audit->copy, dense)};
    MOERT_TRY(moert_audit_keep_addend(audit, MOERT_AUDIT_SUM_ATTENTION, own[0]));
    MOERT_TRY(moert_audit_keep_addend(audit, MOERT_AUDIT_SUM_MLP, own[1]));
    for (size_t i = 0; i < MOERT_COUNT(own); i++)
        if (moert_comm_size(own[i]->comm) == 1)
            MOERT_TRY(moert_block_copy_gradient(own[i], again[i]->gradient));
    for (size_t b = 1; b <= MOERT_AUDIT_EXPERT_BLOCKS && !dense; b++) {
        const moert_block *block = moert_layer_block(layer->moe, b);
        MOERT_TRY(moert_buffer_reserve(audit->model->device, block->floats * sizeof(float),
                                       &audit->before[b - 1]));
        MOERT_TRY(moert_block_copy_gradient(block, audit->before[b - 1]));
    }
    return !dense && takes(at, MOERT_AUDIT_ADDEND)
               ? hash_experts(at, audit->before, hash_of(at, MOERT_AUDIT_ADDEND))
               : MOERT_OK;
}

/* Hashes the inputs of the router's losses, which the host has read. */
static moert_status take_loss_inputs(const place *at) {
    const moert_audit_site site = MOERT_AUDIT_ROUTER_LOSS;
    const moert_run *run = at->run;
    const size_t sums = run->batch.sequences * run->config->router.experts,
                 floats = run->batch.tokens + sums * (moert_balances_sequences(run) ? 2 : 1),
                 first = moert_loss_inputs_at(run->batch.tokens, sums, at->layer->moe_index);
    if (plants(at, site))
        MOERT_TRY(moert_plant_bit(&at->audit->plant->plant, run->loss_inputs, first, floats));
    return takes(at, site) ? hash_floats(at, run->loss_inputs, first, floats, hash_of(at, site))
                           : MOERT_OK;
}

/* Copies the gradient of the auxiliary loss for the second run. */
static moert_status keep_aux(const place *at, const moert_run_layer *of_run) {
    const moert_model_sizes sizes = moert_run_sizes(at->run);
    moert_run *repeat = at->audit->repeat;
    MOERT_TRY(moert_buffer_table_reserve(moert_run_moe_buffers, repeat->device, &sizes,
                                         repeat->layer, false));
    moert_buffer *const copy = repeat->layer->aux_gradient;
    return moert_buffer_copy(
        of_run->aux_gradient, 0, copy, 0,
        moert_min(moert_buffer_bytes(of_run->aux_gradient), moert_buffer_bytes(copy)));
}

/* Hashes and copies the inputs of a layer's backward. */
static moert_status begin_backward(const place *at, const moert_run_layer *of_run, size_t floats) {
    moert_audit *audit = at->audit;
    const moert_run *run = at->run;
    if (at->repeats)
        return at->layer->is_dense ? MOERT_OK : take_loss_inputs(at);
    open_probe(at, false);
    if (audit->check == NULL)
        return MOERT_OK;
    if (run->accumulate)
        MOERT_TRY(keep_gradients(at));
    MOERT_TRY(keep_copy(at, floats, &audit->d[0]));
    MOERT_TRY(take_floats(at, MOERT_AUDIT_D_RESULT, audit->d[0], floats));
    MOERT_TRY(take_floats(at, MOERT_AUDIT_RESIDUAL, of_run->activations->middle, floats));
    if (at->layer->is_dense)
        return MOERT_OK;
    MOERT_TRY(take_loss_inputs(at));
    MOERT_TRY(keep_aux(at, of_run));
    return moert_balances_sequences(run) ? MOERT_OK
                                         : take_floats(at, MOERT_AUDIT_AUX, of_run->aux_gradient,
                                                       run->config->router.experts);
}

static moert_status end_mlp(const place *at, size_t floats) {
    const moert_model_layer *layer = at->layer;
    const moert_block *mlp = mlp_block(layer, layer->is_dense);
    if (!layer->is_dense) {
        take_probe(at, false);
        MOERT_TRY(take_experts(at));
    }
    MOERT_TRY(keep_nodes(at, MOERT_AUDIT_SUM_MLP, mlp));
    MOERT_TRY(take_gradient(at, MOERT_AUDIT_MLP_GRADIENT, mlp, 0, mlp->count));
    MOERT_TRY(take_gradient(at, MOERT_AUDIT_NORM_GRADIENT, layer->attention,
                            moert_model_norm_at(layer->attention, MOERT_NORM_MLP),
                            layer->attention->count));
    /* copies the gradient before hashing it, so that a bit that flips later in run->d does not
     * change the copy */
    if (at->audit->check != NULL && !at->repeats)
        MOERT_TRY(keep_copy(at, floats, &at->audit->d[1]));
    return take_floats(at, MOERT_AUDIT_D_MIDDLE, at->run->d, floats);
}

/* ---- points ---- */

static moert_status take_outside(const place *at, moert_audit_point point) {
    const moert_run *run = at->run;
    const size_t tokens = run->batch.tokens, floats = tokens * run->config->hidden;
    switch (point) {
    case MOERT_AUDIT_EMBEDDINGS_DONE:
        return take_floats(at, MOERT_AUDIT_EMBEDDED, run->embedded, floats);
    case MOERT_AUDIT_NORM_DONE:
        MOERT_TRY(keep_outside(at));
        return take_floats(at, MOERT_AUDIT_NORMED, run->final_normed,
                           moert_operand_floats(moert_model_type(run->model), floats));
    case MOERT_AUDIT_LOSS_DONE:
        return take_floats(at, MOERT_AUDIT_D_NORMED, run->dn, floats);
    case MOERT_AUDIT_HEAD_DONE: /* in the first run, hashes the losses that the host has read */
        MOERT_TRY(take_floats(at, MOERT_AUDIT_TOKEN_LOSS,
                              at->repeats ? run->token_loss : run->loss_inputs, tokens));
        return take_floats(at, MOERT_AUDIT_D_HEAD, run->d, floats);
    default:
        MOERT_TRY(keep_nodes(at, MOERT_AUDIT_SUM_OUTSIDE, run->outer));
        return take_gradient(at, MOERT_AUDIT_OUTER_GRADIENT, run->outer, 0, run->outer->count);
    }
}

moert_status moert_audit_take(moert_run *run, const moert_run_layer *layer,
                              moert_audit_point point) {
    const place at = place_of(run->audit, run, layer);
    const size_t floats = run->batch.tokens * run->config->hidden;
    switch (point) {
    case MOERT_AUDIT_ATTENDED:
        open_probe(&at, true);
        return take_floats(&at, MOERT_AUDIT_MIDDLE, layer->activations->middle, floats);
    case MOERT_AUDIT_FORWARDED:
        if (!layer->of->is_dense) {
            take_probe(&at, true);
            MOERT_TRY(take_route(&at, layer));
        }
        return take_floats(&at, MOERT_AUDIT_OUT, layer->out, floats);
    case MOERT_AUDIT_BACKWARD:
        return begin_backward(&at, layer, floats);
    case MOERT_AUDIT_MLP_DONE:
        return end_mlp(&at, floats);
    case MOERT_AUDIT_DIFFERENTIATED:
        MOERT_TRY(keep_nodes(&at, MOERT_AUDIT_SUM_ATTENTION, layer->of->attention));
        MOERT_TRY(take_floats(&at, MOERT_AUDIT_D_INPUT, run->d, floats));
        return take_gradient(&at, MOERT_AUDIT_ATTENTION_GRADIENT, layer->of->attention, 0,
                             moert_model_norm_at(layer->of->attention, MOERT_NORM_MLP));
    default:
        return take_outside(&at, point);
    }
}

moert_status moert_audit_take_rests(moert_audit *audit) {
    moert_run *run = audit->run;
    const size_t layers = audit->model->config.layers, part = audit->part;
    const size_t floats = run->batch.tokens * run->config->hidden;
    const place at = {.audit = audit, .run = run, .part = part};
    MOERT_TRY(take_floats(&at, part < layers ? MOERT_AUDIT_INPUT : MOERT_AUDIT_LAST,
                          (moert_buffer *)moert_model_input(run, part), floats));
    if (part == layers)
        MOERT_TRY(take_floats(&at, MOERT_AUDIT_D_EMBEDDED, run->d, floats));
    return moert_digest_flush(&audit->digests);
}

/* Whether the experts' gradients are still those that the audited backward computed. */
static bool are_left(const moert_audit *audit, const moert_model_layer *layer) {
    const moert_block *block = layer->is_dense ? NULL : moert_layer_block(layer->moe, 1);
    return block != NULL && block->kept == NULL && moert_comm_size(block->comm) == 1 &&
           audit->taken[layer->index * MOERT_AUDIT_SITES + MOERT_AUDIT_EXPERT_GRADIENT];
}

moert_status moert_audit_left_gradients(moert_audit *audit, bool now, uint64_t *hash) {
    const size_t row = MOERT_AUDIT_SITES * audit->slots;
    for (size_t l = 0; l < audit->model->config.layers; l++) {
        const moert_model_layer *layer = &audit->model->layer[l];
        uint64_t *to = hash + l * audit->slots;
        memset(to, 0, audit->slots * sizeof *to);
        if (!are_left(audit, layer))
            continue;
        const place at = {.audit = audit, .run = audit->run, .layer = layer, .part = l};
        moert_buffer *const gradients[] = {moert_layer_block(layer->moe, 1)->gradient,
                                           moert_layer_block(layer->moe, 2)->gradient};
        if (now)
            MOERT_TRY(hash_experts(&at, gradients, to));
        else
            memcpy(to, audit->hash + l * row + MOERT_AUDIT_EXPERT_GRADIENT * audit->slots,
                   audit->slots * sizeof *to);
    }
    return moert_digest_flush(&audit->digests);
}
