/* The second run of an audited layer, with the work of other ranks. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/audit_internal.h"
#include "model/audit_points.h"
#include "model/sublayer.h"
#include "moert/quantize.h"

/* ---- handing work on ---- */

/* Floats of a buffer. */
typedef struct stretch {
    moert_buffer *buffer;
    size_t at, floats;
} stretch;

/* Sends `source` to the rank that repeats this rank's work, and receives the `target` of the rank
 * whose work this one repeats. Collective. */
static moert_status hand_on(const moert_audit *audit, moert_audit_class class, size_t distance,
                            const stretch *source, const stretch *target) {
    moert_comm *world = audit->model->mesh->world;
    const size_t ranks = moert_comm_size(world), rank = moert_comm_rank(world);
    size_t *sent = NULL, *received = NULL;
    float *from = NULL, *to = NULL;
    moert_status status = MOERT_NEW_ARRAY(&sent, ranks);
    if (status == MOERT_OK)
        status = MOERT_NEW_ARRAY(&received, ranks);
    if (status == MOERT_OK && source->floats > 0)
        status = moert_buffer_map(source->buffer, &from);
    if (status == MOERT_OK && target->floats > 0)
        status = moert_buffer_map(target->buffer, &to);
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    sent[moert_audit_repeater(audit, class, rank, distance)] = source->floats;
    received[moert_audit_repeated(audit, class, rank, distance)] = target->floats;
    status =
        moert_comm_alltoallv(world, from + source->at, sent, to + target->at, received, sizeof *to);
done:
    if (from != NULL)
        status = moert_first(status, moert_buffer_unmap(source->buffer, from));
    if (to != NULL)
        status = moert_first(status, moert_buffer_unmap(target->buffer, to));
    MOERT_FREE(sent, received);
    return status;
}

/* Receives rows [tokens of the other rank, H] in *received. */
static moert_status hand_on_rows(moert_audit *audit, size_t distance, const moert_buffer *rows,
                                 size_t own, size_t tokens, moert_buffer **received) {
    const size_t width = audit->model->config.hidden;
    MOERT_TRY(moert_comm_agree(audit->model->mesh->world,
                               moert_model_reserve(audit->model, tokens * width, received)));
    return hand_on(audit, MOERT_AUDIT_TOKENS, distance,
                   &(stretch){(moert_buffer *)rows, 0, own * width},
                   &(stretch){*received, 0, tokens * width});
}

/* ---- weights ---- */

static moert_status copy_weights(const moert_block *from, moert_block *to) {
    moert_block_weights_changed(to);
    return from->floats > 0
               ? moert_buffer_copy(from->weight, 0, to->weight, 0, from->floats * sizeof(float))
               : MOERT_OK;
}

/* Places the experts of each owner on the rank that repeats its work. */
static moert_status place(moert_audit *audit, size_t distance) {
    const moert_model *model = audit->model;
    const moert_mesh *mesh = model->mesh;
    const moert_expert_map *own = moert_layer_placement(audit->layer->moe);
    const size_t ranks = moert_comm_size(mesh->world), members = moert_comm_size(mesh->experts);
    moert_mesh_place *places = NULL;
    uint32_t *expert = NULL;
    moert_status status = MOERT_NEW_ARRAY(&places, ranks);
    if (status == MOERT_OK)
        status = moert_alloc(&expert, members * audit->slots, sizeof *expert);
    MOERT_TRY_OR(done, moert_comm_agree(mesh->world, status));
    moert_mesh_places(mesh->world, members, places);
    for (size_t i = 0; i < members * audit->slots; i++)
        expert[i] = MOERT_LAYER_NO_EXPERT;
    for (size_t r = 0; r < ranks; r++) {
        const size_t to = moert_audit_repeater(audit, MOERT_AUDIT_EXPERTS, r, distance);
        const size_t member = places[r].member, slots = moert_expert_map_slots_of(own, member);
        for (size_t s = 0; s < slots; s++)
            expert[places[to].member * audit->slots + s] = own->expert[own->first[member] + s];
    }
    status = moert_layer_place(audit->again.moe, expert);
done:
    MOERT_FREE(places, expert);
    return status;
}

/* Hands on the experts' weights or, with `before`, the gradients to which the backward adds. */
static moert_status hand_on_experts(moert_audit *audit, size_t distance, bool before) {
    const moert_model *model = audit->model;
    const moert_layer *own = audit->layer->moe;
    const moert_expert_map *placement = moert_layer_placement(own);
    const size_t ranks = moert_comm_size(model->mesh->world),
                 rank = moert_comm_rank(model->mesh->world), local = moert_layer_local_experts(own);
    const size_t from = moert_audit_repeated(audit, MOERT_AUDIT_EXPERTS, rank, distance);
    moert_mesh_place *places = NULL;
    moert_status status = MOERT_NEW_ARRAY(&places, ranks);
    MOERT_TRY_OR(done, moert_comm_agree(model->mesh->world, status));
    moert_mesh_places(model->mesh->world, moert_comm_size(model->mesh->experts), places);
    const size_t others = moert_expert_map_slots_of(placement, places[from].member);
    for (size_t b = 1; b <= MOERT_AUDIT_EXPERT_BLOCKS; b++) {
        const moert_block *block = moert_layer_block((moert_layer *)own, b),
                          *again = moert_layer_block(audit->again.moe, b);
        for (size_t i = 0; i < block->count; i++) {
            const size_t floats = block->tensor[i].elements / moert_max(local, 1);
            const stretch source = {before ? audit->before[b - 1] : block->weight,
                                    block->tensor[i].offset, local * floats},
                          target = {before ? again->gradient : again->weight,
                                    again->tensor[i].offset, others * floats};
            MOERT_TRY_OR(done, hand_on(audit, MOERT_AUDIT_EXPERTS, distance, &source, &target));
        }
    }
done:
    free(places);
    return status;
}

static moert_status take_weights(moert_audit *audit, size_t distance) {
    const moert_model_layer *layer = audit->layer;
    MOERT_TRY(copy_weights(layer->attention, audit->again.attention));
    if (layer->is_dense)
        return copy_weights(layer->mlp, audit->again.mlp);
    MOERT_TRY(place(audit, distance));
    MOERT_TRY(
        copy_weights(moert_layer_block(layer->moe, 0), moert_layer_block(audit->again.moe, 0)));
    MOERT_TRY(hand_on_experts(audit, distance, false));
    if (audit->model->accumulate)
        MOERT_TRY(hand_on_experts(audit, distance, true));
    moert_layer_weights_changed(audit->again.moe);
    return MOERT_OK;
}

/* ---- tokens ---- */

/* Restores the gradient that a sublayer's backward reads, also in bf16. */
static moert_status restore_gradient(moert_model *model, const moert_buffer *d) {
    const size_t n = model->batch.tokens * model->config.hidden;
    MOERT_TRY(moert_model_reserve(model, n, &model->d));
    if (n == 0)
        return MOERT_OK;
    MOERT_TRY(moert_buffer_copy(d, 0, model->d, 0, n * sizeof(float)));
    if (model->bf16 == NULL)
        return MOERT_OK;
    MOERT_TRY(moert_model_reserve(model, moert_operand_floats(MOERT_DTYPE_BF16, n), &model->bf16));
    return moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32, MOERT_DTYPE_BF16, n,
                                        model->d, model->bf16});
}

/* Makes the model's batch that of `rank`. `positions`: its documents on the host, or NULL. */
static moert_status take_tokens(moert_model *model, moert_batch batch, const int32_t *positions) {
    MOERT_TRY(
        moert_buffer_reserve(model->device, batch.sequences * sizeof(uint32_t), &model->ends));
    MOERT_TRY(moert_buffer_write_ends(batch.sequences, model->length, model->ends));
    batch.ends = model->ends;
    model->batch = batch;
    return positions != NULL
               ? moert_documents_set(model->documents, batch.sequences, model->length, positions)
               : MOERT_OK;
}

/* The positions of this rank's documents, and of those of the rank whose work it repeats. */
static moert_status read_positions(moert_audit *audit, size_t distance, size_t tokens,
                                   int32_t **own, int32_t **other) {
    const moert_model *model = audit->model;
    const size_t mine = model->batch.tokens;
    const moert_buffer *positions = moert_model_positions(model);
    if (positions == NULL)
        return MOERT_OK;
    moert_status status = moert_alloc(own, mine + 1, sizeof **own);
    if (status == MOERT_OK)
        status = moert_alloc(other, tokens + 1, sizeof **other);
    if (status == MOERT_OK)
        status = moert_buffer_reserve(model->device, tokens * sizeof **own, &audit->positions);
    if (status == MOERT_OK && mine > 0)
        status = moert_buffer_read(positions, 0, *own, mine * sizeof **own);
    MOERT_TRY(moert_comm_agree(model->mesh->world, status));
    MOERT_TRY(hand_on(audit, MOERT_AUDIT_TOKENS, distance,
                      &(stretch){(moert_buffer *)positions, 0, mine},
                      &(stretch){audit->positions, 0, tokens}));
    return tokens > 0 ? moert_buffer_read(audit->positions, 0, *other, tokens * sizeof **other)
                      : MOERT_OK;
}

/* Runs attention, and a dense MLP, on the rows in audit->x and audit->received. */
static moert_status run_tokens(moert_audit *audit) {
    moert_model *model = audit->model;
    moert_model_layer *again = &audit->again;
    const size_t floats = model->batch.tokens * model->config.hidden;
    MOERT_TRY(moert_model_reserve_layer(model, again));
    MOERT_TRY(moert_model_reserve(model, floats, &model->dn));
    MOERT_TRY(moert_model_reserve_rows(model, model->attention.scratch, model->scratch));
    if (model->bf16 != NULL)
        MOERT_TRY(moert_model_reserve(model, moert_operand_floats(MOERT_DTYPE_BF16, floats),
                                      &model->bf16));
    MOERT_TRY(moert_model_attend(model, again, audit->x));
    if (again->is_dense)
        MOERT_TRY(moert_model_run_mlp(model, again));
    MOERT_TRY(restore_gradient(model, audit->received));
    MOERT_TRY(moert_block_begin(again->attention, &model->batch, model->accumulate));
    if (again->is_dense)
        MOERT_TRY(moert_model_differentiate_mlp(model, again, model->accumulate));
    return moert_model_differentiate_attention(model, again, audit->x);
}

/* Repeats what another rank has computed for its tokens alone. */
static moert_status repeat_tokens(moert_audit *audit, size_t distance) {
    moert_model *model = audit->model;
    const moert_mesh *mesh = model->mesh;
    const moert_batch own = model->batch;
    const size_t from =
        moert_audit_repeated(audit, MOERT_AUDIT_TOKENS, moert_comm_rank(mesh->world), distance);
    int32_t *positions[2] = {NULL, NULL};
    moert_batch other = own;
    moert_status status;
    other.token = NULL; /* padding is computed like other tokens */
    moert_model_partition(own.total_sequences, from, moert_comm_size(mesh->world),
                          &other.first_sequence, &other.sequences);
    other.tokens = other.sequences * model->length;
    MOERT_TRY_OR(done, hand_on_rows(audit, distance, moert_model_input(model, audit->layer->index),
                                    own.tokens, other.tokens, &audit->x));
    MOERT_TRY_OR(done, hand_on_rows(audit, distance, audit->d[!audit->layer->is_dense], own.tokens,
                                    other.tokens, &audit->received));
    MOERT_TRY_OR(done, read_positions(audit, distance, other.tokens, &positions[0], &positions[1]));
    status = take_tokens(model, other, positions[1]);
    if (status == MOERT_OK)
        status = run_tokens(audit);
    status = moert_first(status, take_tokens(model, own, positions[0]));
    status = moert_comm_agree(mesh->world, status);
done:
    MOERT_FREE(positions[0], positions[1]);
    return status;
}

/* ---- the MoE layer ---- */

static moert_status repeat_experts(moert_audit *audit) {
    moert_model *model = audit->model;
    moert_model_layer *again = &audit->again;
    const size_t floats = model->batch.tokens * model->config.hidden;
    MOERT_TRY(moert_model_reserve_layer(model, again));
    if (floats > 0)
        MOERT_TRY(moert_buffer_copy(audit->middle, 0, again->activations->middle, 0,
                                    floats * sizeof(float)));
    MOERT_TRY(moert_model_run_mlp(model, again));
    MOERT_TRY(restore_gradient(model, audit->d[0]));
    MOERT_TRY(moert_block_begin(again->attention, &model->batch, model->accumulate));
    MOERT_TRY(moert_model_differentiate_mlp(model, again, model->accumulate));
    moert_model_discard(again);
    MOERT_TRY(moert_layer_reduce_start(again->moe, false));
    return moert_layer_reduce_wait(again->moe);
}

moert_status moert_audit_repeat(moert_audit *audit, size_t distance) {
    moert_model *model = audit->model;
    const moert_model_layer *layer = audit->layer;
    moert_model_layer *again = &audit->again;
    audit->repeats = true;
    memset(audit->taken[1], 0, sizeof audit->taken[1]);
    memset(audit->hash[1], 0, MOERT_AUDIT_SITES * audit->slots * sizeof *audit->hash[1]);
    again->index = layer->index;
    again->is_dense = layer->is_dense;
    again->moe_index = layer->moe_index;
    again->aux_gradient = layer->aux_gradient;
    again->activations = layer->activations;
    MOERT_TRY(take_weights(audit, distance));
    if (!layer->is_dense) {
        moert_audit_open_probe(audit->probe, true, NULL);
        moert_layer_set_probe(again->moe, audit->probe);
        moert_model_discard(model->moe[0]); /* its pass is free for the second run */
        MOERT_TRY(repeat_experts(audit));
    }
    return repeat_tokens(audit, distance);
}
