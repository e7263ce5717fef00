/* The model's forward pass, from tokens to the last norm. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"
#include "device/buffer.h"
#include "model/audit_points.h"
#include "model/sizes.h"
#include "model/sublayer.h"

/* Uploads the links between equal tokens that moert_embedding_gradient needs. */
static moert_status link_tokens(moert_run *run, const int32_t *token) {
    const size_t bytes = 2 * run->batch.tokens * sizeof(int32_t);
    int32_t *links;
    if (run->config->tied_embeddings || run->batch.forward_only)
        return MOERT_OK;
    MOERT_TRY(moert_alloc(&links, bytes, 1));
    moert_status status;
    MOERT_TRY_OR(done, moert_embedding_links(moert_batch_span(&run->batch), run->length,
                                             run->config->vocabulary, run->config->pad_token, token,
                                             links));
    status = moert_buffer_write(run->links, 0, links, bytes);
done:
    free(links);
    return status;
}

moert_status moert_model_upload_tokens(moert_run *run, const int32_t *token,
                                       const int32_t *target) {
    const size_t bytes = run->batch.tokens * sizeof *token;
    MOERT_TRY(moert_buffer_write(run->tokens, 0, token, bytes));
    if (target != NULL)
        MOERT_TRY(moert_buffer_write(run->targets, 0, target, bytes));
    return link_tokens(run, token);
}

static bool has_padding(const moert_model_batch *batch, size_t tokens) {
    for (size_t i = 0; i < tokens; i++)
        if (batch->input[i] < 0)
            return true;
    return false;
}

static moert_status check_cache(const moert_run *run, const moert_model_batch *batch) {
    const size_t tokens = batch->past + batch->length;
    if (run->room > 0 && (batch->positions != NULL || !batch->forward_only))
        return MOERT_FAIL(ERROR_USAGE, "a run with a cache takes no positions and has no backward");
    if (tokens > run->room && (run->room > 0 || batch->past > 0))
        return MOERT_FAIL(
            ERROR_USAGE,
            "a sequence of %zu tokens is longer than the cache, which has room for %zu", tokens,
            run->room);
    return MOERT_OK;
}

/* The largest number of tokens of a sequence, earlier tokens included. */
static size_t longest(const moert_run *run) {
    return moert_max(run->length, run->room);
}

/* Uploads this rank's sequences of the batch. */
static moert_status take_batch(moert_run *run, const moert_model_batch *batch) {
    size_t first, count, length = batch->length;
    moert_model_partition(batch->total_sequences, moert_comm_rank(run->mesh->world),
                          moert_comm_size(run->mesh->world), &first, &count);
    const size_t tokens = count * length;
    MOERT_TRY(moert_model_config_check_length(run->config, batch->past + length));
    MOERT_TRY(check_cache(run, batch));
    run->batch = (moert_batch){.size = sizeof run->batch,
                               .tokens = tokens,
                               .sequences = count,
                               .first_sequence = first,
                               .total_sequences = batch->total_sequences,
                               .forward_only = batch->forward_only,
                               .draws = batch->draws,
                               .bf16_operands = batch->bf16_operands};
    run->given = *batch;
    run->length = length;
    const moert_model_sizes sizes = moert_run_sizes(run);
    MOERT_TRY(moert_buffer_table_reserve(moert_run_rows_buffers, run->device, &sizes, run, false));
    MOERT_TRY(moert_buffer_table_reserve(moert_run_batch_buffers, run->device, &sizes, run, false));
    run->batch.ends = run->ends;
    run->batch.token = has_padding(batch, tokens) ? run->tokens : NULL;
    MOERT_TRY(moert_buffer_write_ends(count, length, run->ends));
    if (batch->positions != NULL)
        MOERT_TRY(moert_documents_set(run->documents, count, length, batch->positions));
    else if (run->room > 0)
        MOERT_TRY(moert_documents_continue(run->documents, count, length, batch->past, run->room));
    run->packed = batch->positions != NULL || run->room > 0;
    run->counted = batch->targets;
    run->accumulate = batch->accumulate;
    run->logits_rows = 0;
    return moert_model_upload_tokens(run, batch->input, batch->target);
}

moert_status moert_model_reserve_layer(moert_run *run, moert_run_layer *layer) {
    const moert_model_sizes sizes = moert_run_sizes(run);
    moert_model_activations *a = layer->activations;
    MOERT_TRY(
        moert_buffer_table_reserve(moert_run_layer_buffers, run->device, &sizes, layer, false));
    MOERT_TRY(moert_buffer_table_reserve(moert_activation_buffers, run->device, &sizes, a, false));
    MOERT_TRY(
        layer->of->is_dense
            ? moert_buffer_table_reserve(moert_dense_buffers, run->device, &sizes, a, false)
            : moert_buffer_table_reserve(moert_run_moe_buffers, run->device, &sizes, layer, false));
    return moert_model_reserve_rows(run, run->model->attention.kept, a->kept);
}

moert_status moert_model_run_layer(moert_run *run, size_t index) {
    moert_run_layer *layer = &run->layer[index];
    if (!layer->of->is_dense)
        MOERT_TRY(moert_layer_send_weights(layer->of->moe)); /* sent while attention computes */
    MOERT_TRY(moert_model_attention_forward(run, layer, moert_model_input(run, index)));
    return moert_model_mlp_forward(run, layer);
}

/* Prefixes the message of ERROR_NUMERIC with the number of the layer. */
static moert_status name_layer(size_t layer, moert_status status) {
    if (status != MOERT_ERROR_NUMERIC)
        return status;
    char *message = moert_error_keep();
    MOERT_FAIL(ERROR_NUMERIC, "layer %zu: %s", layer, message != NULL ? message : "");
    free(message);
    return status;
}

moert_status moert_model_embed(moert_run *run) {
    MOERT_TRY(moert_embedding_forward(run->batch.tokens, run->config->hidden,
                                      run->outer->tensor[OUTER_EMBED].weight, run->tokens,
                                      run->embedded));
    if (moert_or_one(run->config->embedding_scale) != 1.0f)
        MOERT_TRY(moert_scale(run->batch.tokens * run->config->hidden, run->config->embedding_scale,
                              run->embedded));
    return moert_audit_at(run, NULL, MOERT_AUDIT_EMBEDDINGS_DONE);
}

/* Makes the tables of rotations, unless those of an earlier batch are long enough. */
static moert_status make_rotations(moert_run *run) {
    moert_model *model = run->model;
    if (model->rope[0] != NULL && model->rope_length >= longest(run))
        return MOERT_OK;
    moert_buffers_destroy(model->rope, MOERT_ROPES);
    model->rope_length = longest(run);
    for (size_t i = 0; i < MOERT_ROPES; i++) {
        const moert_rope_scheme scheme = moert_model_rope_scheme(&model->config, i);
        model->rope[i] = NULL;
        if (scheme.theta > 0.0)
            MOERT_TRY(moert_rope_table_create(run->device, &scheme, longest(run), &model->rope[i]));
    }
    return MOERT_OK;
}

moert_status moert_run_forward(moert_run *run, const moert_model_batch *batch) {
    const moert_model_config *c = run->config;
    moert_phase_set(MOERT_PHASE_EMBEDDING);
    MOERT_TRY(take_batch(run, batch));
    MOERT_TRY(make_rotations(run));
    MOERT_TRY(moert_model_embed(run));
    for (size_t i = 0; i < c->layers; i++) {
        MOERT_TRY(moert_model_reserve_layer(run, &run->layer[i]));
        /* The backward begins with the last layer, so the forward keeps that layer's
         * activations. */
        run->discards = moert_model_recomputes(run->model) && i + 1 < c->layers;
        MOERT_TRY(name_layer(i, moert_model_run_layer(run, i)));
        if (!run->layer[i].of->is_dense)
            MOERT_TRY(moert_model_take_loads(run, &run->layer[i]));
        if (run->discards)
            moert_model_discard(&run->layer[i]);
    }
    const moert_buffer *x = run->layer[c->layers - 1].out;
    moert_phase_set(MOERT_PHASE_LOGITS);
    MOERT_TRY(
        moert_model_normalise(run, run->outer, OUTER_NORM, x, run->final_normed, run->final_rstd));
    return moert_audit_at(run, NULL, MOERT_AUDIT_NORM_DONE);
}
