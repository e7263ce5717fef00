/* The model's forward pass, from tokens to the last norm. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"
#include "model/sublayer.h"

/* Uploads the links between equal tokens that moert_embedding_gradient needs. */
static moert_status link_tokens(moert_model *model, const int32_t *token) {
    const size_t bytes = 2 * model->batch.tokens * sizeof(int32_t);
    int32_t *links;
    if (model->config.tied_embeddings || model->batch.forward_only)
        return MOERT_OK;
    MOERT_TRY(moert_buffer_reserve(model->device, bytes, &model->links));
    MOERT_TRY(moert_alloc(&links, bytes, 1));
    moert_status status =
        moert_embedding_links(moert_batch_span(&model->batch), model->length,
                              model->config.vocabulary, model->config.pad_token, token, links);
    if (status == MOERT_OK)
        status = moert_buffer_write(model->links, 0, links, bytes);
    free(links);
    return status;
}

static bool has_padding(const moert_model_batch *batch, size_t tokens) {
    for (size_t i = 0; i < tokens; i++)
        if (batch->input[i] < 0)
            return true;
    return false;
}

/* Uploads this rank's sequences of the batch. */
static moert_status take_batch(moert_model *model, const moert_model_batch *batch) {
    size_t first, count, length = batch->length;
    moert_model_partition(batch->total_sequences, moert_comm_rank(model->mesh->world),
                          moert_comm_size(model->mesh->world), &first, &count);
    size_t tokens = count * length, bytes = tokens * sizeof(int32_t);
    MOERT_TRY(moert_model_config_check_length(&model->config, length));
    MOERT_TRY(moert_buffer_reserve(model->device, count * sizeof(uint32_t), &model->ends));
    MOERT_TRY(moert_buffer_write_ends(count, length, model->ends));
    MOERT_TRY(moert_buffer_reserve(model->device, bytes, &model->tokens));
    MOERT_TRY(moert_buffer_reserve(model->device, bytes, &model->targets));
    MOERT_TRY(moert_buffer_write(model->tokens, 0, batch->input, bytes));
    if (batch->target != NULL)
        MOERT_TRY(moert_buffer_write(model->targets, 0, batch->target, bytes));
    if (batch->positions != NULL)
        MOERT_TRY(moert_documents_set(model->documents, count, length, batch->positions));
    model->packed = batch->positions != NULL;
    model->batch = (moert_batch){.size = sizeof model->batch,
                                 .tokens = tokens,
                                 .sequences = count,
                                 .first_sequence = first,
                                 .total_sequences = batch->total_sequences,
                                 .ends = model->ends,
                                 .forward_only = batch->forward_only,
                                 .token = has_padding(batch, tokens) ? model->tokens : NULL};
    model->length = length;
    model->counted = batch->targets;
    model->accumulate = batch->accumulate;
    model->logits_rows = 0;
    return link_tokens(model, batch->input);
}

moert_status moert_model_reserve_layer(moert_model *model, moert_model_layer *layer) {
    moert_model_activations *a = layer->activations;
    const size_t t = model->batch.tokens, h = model->config.hidden;
    const struct {
        moert_buffer **buffer;
        size_t floats;
    } rows[] = {
        {&a->normed, moert_operand_floats(moert_model_type(model), t * h)},
        {&a->rstd, t},
        {&a->middle, t * h},
        {&a->post_normed, t * h},
        {&a->post_rstd, t},
        {&layer->out, t * h},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++)
        MOERT_TRY(moert_model_reserve(model, rows[i].floats, rows[i].buffer));
    return moert_model_reserve_rows(model, model->attention.kept, a->kept);
}

moert_status moert_model_run_layer(moert_model *model, size_t index) {
    moert_model_layer *layer = &model->layer[index];
    if (!layer->is_dense)
        MOERT_TRY(moert_layer_send_weights(layer->moe)); /* they travel during the attention */
    MOERT_TRY(moert_model_attend(model, layer, moert_model_input(model, index)));
    return moert_model_run_mlp(model, layer);
}

/* Puts the layer before the message of values that are not finite. */
static moert_status name_layer(size_t layer, moert_status status) {
    if (status != MOERT_ERROR_NUMERIC)
        return status;
    char *message = moert_error_keep();
    MOERT_FAIL(ERROR_NUMERIC, "layer %zu: %s", layer, message != NULL ? message : "");
    free(message);
    return status;
}

moert_status moert_model_forward(moert_model *model, const moert_model_batch *batch) {
    const moert_model_config *c = &model->config;
    moert_phase_set(MOERT_PHASE_EMBEDDING);
    MOERT_TRY(take_batch(model, batch));
    if (model->rope == NULL || model->rope_length < model->length) {
        moert_buffer_destroy(model->rope);
        model->rope = NULL;
        model->rope_length = model->length;
        const moert_rope_scheme scheme = moert_model_rope_scheme(c);
        MOERT_TRY(moert_rope_table_create(model->device, &scheme, model->length, &model->rope));
    }
    MOERT_TRY(moert_model_reserve(model, model->batch.tokens * c->hidden, &model->embedded));
    if (moert_model_type(model) != MOERT_DTYPE_F32)
        MOERT_TRY(moert_model_reserve(
            model, moert_operand_floats(moert_model_type(model), model->batch.tokens * c->hidden),
            &model->bf16));
    MOERT_TRY(moert_embedding_forward(model->batch.tokens, c->hidden,
                                      model->outer->tensor[OUTER_EMBED].weight, model->tokens,
                                      model->embedded));
    MOERT_TRY(moert_model_reserve_loss(model));
    for (size_t i = 0; i < c->layers; i++) {
        MOERT_TRY(moert_model_reserve_layer(model, &model->layer[i]));
        /* the backward begins with the last layer, whose activations are still there then */
        model->discards = moert_model_recomputes(model) && i + 1 < c->layers;
        MOERT_TRY(name_layer(i, moert_model_run_layer(model, i)));
        if (!model->layer[i].is_dense)
            MOERT_TRY(moert_model_take_loads(model, &model->layer[i]));
        if (model->discards)
            moert_model_discard(&model->layer[i]);
    }
    const moert_buffer *x = model->layer[c->layers - 1].out;
    moert_phase_set(MOERT_PHASE_LOGITS);
    MOERT_TRY(moert_model_reserve(
        model, moert_operand_floats(moert_model_type(model), model->batch.tokens * c->hidden),
        &model->final_normed));
    MOERT_TRY(moert_model_reserve(model, model->batch.tokens, &model->final_rstd));
    return moert_model_normalise(model, model->outer, OUTER_NORM, x, model->final_normed,
                                 model->final_rstd);
}
