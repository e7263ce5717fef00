/* The second run of an audited layer, with the work of other ranks. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/buffer.h"
#include "device/elements.h"
#include "layer/ship.h"
#include "model/audit_internal.h"
#include "model/audit_points.h"
#include "model/sizes.h"
#include "model/sublayer.h"
#include "moert/quantize.h"

/* ---- handing work on ---- */

/* Sends `floats` of `source` to the rank that repeats this rank's work, and receives `others`
 * floats in `target` from the rank whose work this one repeats. Collective. */
static moert_status hand_on(const moert_audit *audit, moert_audit_class class,
                            moert_elements source, size_t floats, moert_elements target,
                            size_t others) {
    moert_comm *world = audit->model->mesh->world;
    const size_t rank = moert_comm_rank(world);
    moert_parcel out = {moert_audit_repeater(audit, class, rank, audit->distance), floats, source,
                        NULL},
                 in = {moert_audit_repeated(audit, class, rank, audit->distance), others, target,
                       NULL};
    return moert_ship(world, &(moert_parcels){&out, 1, 1}, &(moert_parcels){&in, 1, 1}, MOERT_OK);
}

static moert_elements floats_of(const moert_buffer *buffer, size_t at) {
    return (moert_elements){(moert_buffer *)buffer, MOERT_DTYPE_F32, at};
}

/* Receives rows [tokens of the other rank, H] in *received. */
static moert_status hand_on_rows(moert_audit *audit, const moert_buffer *rows, size_t own,
                                 size_t tokens, moert_buffer **received) {
    const size_t width = audit->model->config.hidden;
    MOERT_TRY(moert_comm_agree(audit->model->mesh->world,
                               moert_model_reserve(audit->model, tokens * width, received)));
    return hand_on(audit, MOERT_AUDIT_TOKENS, floats_of(rows, 0), own * width,
                   floats_of(*received, 0), tokens * width);
}

/* ---- weights ---- */

static moert_status copy_weights(const moert_block *from, moert_block *to) {
    moert_block_weights_changed(to);
    return from->floats > 0
               ? moert_buffer_copy(from->weight, 0, to->weight, 0, from->floats * sizeof(float))
               : MOERT_OK;
}

/* Places the experts of each owner on the rank that repeats its work. */
static moert_status place(moert_audit *audit) {
    const moert_mesh *mesh = audit->model->mesh;
    const moert_expert_map *own = moert_layer_placement(audit->layer->moe);
    const size_t ranks = moert_comm_size(mesh->world),
                 slots = moert_comm_size(mesh->experts) * audit->slots;
    uint32_t *expert = NULL;
    MOERT_TRY(moert_comm_agree(mesh->world, moert_alloc(&expert, slots, sizeof *expert)));
    for (size_t i = 0; i < slots; i++)
        expert[i] = MOERT_LAYER_NO_EXPERT;
    for (size_t r = 0; r < ranks; r++) {
        const size_t to = moert_audit_repeater(audit, MOERT_AUDIT_EXPERTS, r, audit->distance);
        const size_t member = audit->place[r].member,
                     count = moert_expert_map_slots_of(own, member);
        for (size_t s = 0; s < count; s++)
            expert[audit->place[to].member * audit->slots + s] =
                own->expert[own->first[member] + s];
    }
    const moert_status status = moert_layer_place(audit->copy.moe, expert);
    free(expert);
    return status;
}

/* Hands on the experts' weights or, with `before`, the gradients to which the backward adds. */
static moert_status hand_on_experts(moert_audit *audit, bool before) {
    const moert_layer *own = audit->layer->moe;
    const moert_expert_map *placement = moert_layer_placement(own);
    const size_t rank = moert_comm_rank(audit->model->mesh->world),
                 local = moert_layer_local_experts(own);
    const size_t from = moert_audit_repeated(audit, MOERT_AUDIT_EXPERTS, rank, audit->distance);
    const size_t others = moert_expert_map_slots_of(placement, audit->place[from].member);
    for (size_t b = 1; b <= MOERT_AUDIT_EXPERT_BLOCKS; b++) {
        const moert_block *block = moert_layer_block((moert_layer *)own, b),
                          *copy = moert_layer_block(audit->copy.moe, b);
        for (size_t i = 0; i < block->count; i++) {
            const size_t floats = block->tensor[i].elements / moert_max(local, 1);
            const moert_elements source = floats_of(before ? audit->before[b - 1] : block->weight,
                                                    block->tensor[i].offset),
                                 target = floats_of(before ? copy->gradient : copy->weight,
                                                    copy->tensor[i].offset);
            MOERT_TRY(hand_on(audit, MOERT_AUDIT_EXPERTS, source, local * floats, target,
                              others * floats));
        }
    }
    return MOERT_OK;
}

static moert_status take_weights(moert_audit *audit) {
    const moert_model_layer *layer = audit->layer;
    MOERT_TRY(copy_weights(layer->attention, audit->copy.attention));
    if (layer->is_dense)
        return copy_weights(layer->mlp, audit->copy.mlp);
    MOERT_TRY(place(audit));
    MOERT_TRY(
        copy_weights(moert_layer_block(layer->moe, 0), moert_layer_block(audit->copy.moe, 0)));
    MOERT_TRY(hand_on_experts(audit, false));
    if (audit->run->accumulate)
        MOERT_TRY(hand_on_experts(audit, true));
    moert_layer_weights_changed(audit->copy.moe);
    return MOERT_OK;
}

/* ---- tokens ---- */

/* Gives the second run a batch of its own, with the settings of the first one. */
static moert_status take_batch(moert_audit *audit, const moert_batch *batch) {
    const moert_run *first = audit->run;
    moert_run *run = audit->repeat;
    run->batch = *batch;
    run->length = first->length;
    const moert_model_sizes sizes = moert_run_sizes(run);
    MOERT_TRY(moert_buffer_table_reserve(moert_run_rows_buffers, run->device, &sizes, run, false));
    MOERT_TRY(moert_buffer_write_ends(batch->sequences, first->length, run->ends));
    run->batch.ends = run->ends;
    run->packed = first->packed;
    run->losses = first->losses;
    run->factor = first->factor;
    run->slope = first->slope;
    run->accumulate = first->accumulate;
    run->rows = first->rows;
    return MOERT_OK;
}

/* Makes room for what a run of one layer needs of the batch. */
static moert_status reserve(moert_run *run) {
    const moert_model_sizes sizes = moert_run_sizes(run);
    MOERT_TRY(moert_model_reserve_layer(run, run->layer));
    MOERT_TRY(
        moert_buffer_table_reserve(moert_run_backward_buffers, run->device, &sizes, run, false));
    return moert_model_reserve_rows(run, run->model->attention.scratch, run->scratch);
}

/* Gives the run the gradient that a sublayer's backward reads, also in bf16. */
static moert_status take_gradient(moert_run *run, const moert_buffer *d) {
    const size_t n = run->batch.tokens * run->config->hidden;
    if (n == 0)
        return MOERT_OK;
    MOERT_TRY(moert_buffer_copy(d, 0, run->d, 0, n * sizeof(float)));
    return run->bf16 != NULL ? moert_model_round(run, run->config->hidden, run->d, run->bf16)
                             : MOERT_OK;
}

/* Takes the positions of the documents of the rank whose work this one repeats. */
static moert_status take_positions(moert_audit *audit) {
    const moert_run *first = audit->run;
    moert_run *run = audit->repeat;
    const size_t mine = first->batch.tokens, tokens = run->batch.tokens;
    int32_t *positions = NULL;
    moert_status status;
    if (!first->packed)
        return MOERT_OK;
    MOERT_TRY(moert_comm_agree(
        first->mesh->world,
        moert_buffer_reserve(run->device, tokens * sizeof *positions, &audit->positions)));
    MOERT_TRY(hand_on(audit, MOERT_AUDIT_TOKENS, floats_of(moert_model_positions(first), 0), mine,
                      floats_of(audit->positions, 0), tokens));
    MOERT_TRY_OR(done, moert_alloc(&positions, tokens + 1, sizeof *positions));
    if (tokens > 0)
        MOERT_TRY_OR(done,
                     moert_buffer_read(audit->positions, 0, positions, tokens * sizeof *positions));
    status = moert_documents_set(run->documents, run->batch.sequences, run->length, positions);
done:
    free(positions);
    return status;
}

/* Runs attention, and a dense MLP, on the rows in audit->x and audit->received. */
static moert_status run_tokens(moert_audit *audit) {
    moert_run *run = audit->repeat;
    moert_run_layer *layer = run->layer;
    MOERT_TRY(reserve(run));
    MOERT_TRY(moert_model_attention_forward(run, layer, audit->x));
    if (layer->of->is_dense)
        MOERT_TRY(moert_model_mlp_forward(run, layer));
    MOERT_TRY(take_gradient(run, audit->received));
    MOERT_TRY(moert_block_begin(layer->of->attention, &run->batch, run->accumulate));
    if (layer->of->is_dense)
        MOERT_TRY(moert_model_mlp_backward(run, layer, run->accumulate));
    return moert_model_attention_backward(run, layer, audit->x);
}

/* Repeats what another rank has computed for its tokens alone. */
static moert_status repeat_tokens(moert_audit *audit) {
    const moert_run *first = audit->run;
    const moert_mesh *mesh = first->mesh;
    const size_t from = moert_audit_repeated(audit, MOERT_AUDIT_TOKENS,
                                             moert_comm_rank(mesh->world), audit->distance);
    const size_t own = first->batch.tokens;
    moert_batch other = first->batch;
    other.token = NULL; /* padding is computed like other tokens */
    moert_model_partition(other.total_sequences, from, moert_comm_size(mesh->world),
                          &other.first_sequence, &other.sequences);
    other.tokens = other.sequences * first->length;
    MOERT_TRY(hand_on_rows(audit, moert_model_input(first, audit->layer->index), own, other.tokens,
                           &audit->x));
    MOERT_TRY(hand_on_rows(audit, audit->d[!audit->layer->is_dense], own, other.tokens,
                           &audit->received));
    MOERT_TRY(moert_comm_agree(mesh->world, take_batch(audit, &other)));
    MOERT_TRY(moert_comm_agree(mesh->world, take_positions(audit)));
    return moert_comm_agree(mesh->world, run_tokens(audit));
}

/* ---- the MoE layer ---- */

static moert_status repeat_experts(moert_audit *audit) {
    moert_run *run = audit->repeat;
    moert_run_layer *layer = run->layer;
    const size_t floats = audit->run->batch.tokens * run->config->hidden;
    const moert_buffer *aux = audit->run->layer[audit->layer->index].aux_gradient;
    MOERT_TRY(take_batch(audit, &audit->run->batch));
    MOERT_TRY(reserve(run));
    MOERT_TRY(
        moert_buffer_copy(aux, 0, layer->aux_gradient, 0, moert_buffer_bytes(layer->aux_gradient)));
    if (floats > 0)
        MOERT_TRY(moert_buffer_copy(audit->middle, 0, layer->activations->middle, 0,
                                    floats * sizeof(float)));
    MOERT_TRY(moert_model_mlp_forward(run, layer));
    MOERT_TRY(take_gradient(run, audit->d[0]));
    MOERT_TRY(moert_block_begin(layer->of->attention, &run->batch, run->accumulate));
    MOERT_TRY(moert_model_mlp_backward(run, layer, run->accumulate));
    moert_model_discard(layer);
    MOERT_TRY(moert_layer_reduce_start(layer->of->moe, false));
    return moert_layer_reduce_wait(layer->of->moe);
}

moert_status moert_audit_repeat(moert_audit *audit, size_t distance) {
    const moert_model_layer *layer = audit->layer;
    moert_model_layer *copy = &audit->copy;
    audit->distance = distance;
    memset(audit->taken[1], 0, sizeof audit->taken[1]);
    memset(audit->hash[1], 0, MOERT_AUDIT_SITES * audit->slots * sizeof *audit->hash[1]);
    copy->index = layer->index;
    copy->is_dense = layer->is_dense;
    copy->moe_index = layer->moe_index;
    MOERT_TRY(take_weights(audit));
    if (!layer->is_dense) {
        moert_audit_open_probe(audit->probe, true, NULL);
        moert_layer_set_probe(copy->moe, audit->probe);
        moert_model_discard(audit->run->moe[0]); /* its pass is free for the second run */
        MOERT_TRY(repeat_experts(audit));
    }
    return repeat_tokens(audit);
}
