/* Creates a model: blocks, layers, initial weights. */
#include "model/sublayer.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"
#include "base/rng.h"
#include "layer/choices.h"

static void list_blocks(moert_model *model) {
    model->block[model->blocks++] = model->outer;
    for (size_t l = 0; l < model->config.layers; l++) {
        const moert_model_layer *layer = &model->layer[l];
        moert_block *block;
        model->block[model->blocks++] = layer->attention;
        for (size_t i = 0; (block = moert_model_mlp_of(layer)->block(layer, i)) != NULL; i++)
            model->block[model->blocks++] = block;
    }
}

/* Keeps the gradients of a layer in bf16 if the config says so. */
static moert_status keep_bf16(moert_model *model, const moert_model_layer *layer) {
    moert_block *block;
    if (model->config.memory.gradients != MOERT_STATE_BF16)
        return MOERT_OK;
    if (model->gradient_pool == NULL)
        MOERT_TRY(moert_gradient_pool_create(model->device, &model->gradient_pool));
    MOERT_TRY(moert_block_keep_bf16(layer->attention, model->gradient_pool));
    for (size_t i = 0; (block = moert_model_mlp_of(layer)->block(layer, i)) != NULL; i++)
        MOERT_TRY(moert_block_keep_bf16(block, model->gradient_pool));
    return MOERT_OK;
}

/* Creates the parts of a model that involve no other ranks: everything but the MLPs. */
static moert_status create_own(moert_model *model) {
    const moert_model_config *c = &model->config;
    MOERT_TRY(moert_model_create_block(model, MOERT_MODEL_OUTER, &model->outer));
    MOERT_TRY(MOERT_NEW_ARRAY(&model->layer, c->layers));
    MOERT_TRY(MOERT_NEW_ARRAY(&model->moe, c->layers));
    MOERT_TRY(MOERT_NEW_ARRAY(&model->block, 1 + c->layers * (1 + MOERT_LAYER_BLOCKS)));
    for (size_t i = 0; i < c->layers; i++) {
        moert_model_layer *layer = &model->layer[i];
        layer->index = i;
        layer->is_dense = !moert_layer_is_moe(c, i);
        layer->moe_index = model->moe_layers;
        if (!layer->is_dense)
            model->moe[model->moe_layers++] = layer;
        MOERT_TRY(
            moert_model_create_block(model, moert_model_attention_kind(c, i), &layer->attention));
    }
    return MOERT_OK;
}

static moert_status create_parts(moert_model *model) {
    MOERT_TRY(moert_comm_agree(model->mesh->world, create_own(model)));
    for (size_t i = 0; i < model->config.layers; i++) {
        MOERT_TRY(moert_model_mlp_of(&model->layer[i])->create(model, &model->layer[i]));
        MOERT_TRY(moert_comm_agree(model->mesh->world, keep_bf16(model, &model->layer[i])));
    }
    list_blocks(model);
    return moert_comm_agree(model->mesh->world, moert_model_list_tensors(model));
}

moert_status moert_model_create(moert_mesh *mesh, const moert_model_config *config,
                                moert_model **model) {
    moert_model *made = NULL;
    moert_status status;
    MOERT_TRY(moert_comm_agree(mesh->world, moert_model_config_check_model(config)));
    MOERT_TRY(moert_comm_agree(mesh->world, MOERT_NEW(&made)));
    made->mesh = mesh;
    made->device = mesh->device;
    made->config = *config;
    made->config.text = NULL;
    made->attention = moert_attention_shape_of(config, made->device);
    MOERT_TRY_OR(fail, create_parts(made));
    *model = made;
    return MOERT_OK;
fail:
    moert_model_destroy(made);
    return status;
}

void moert_model_destroy(moert_model *model) {
    if (model == NULL)
        return;
    for (size_t i = 0; model->layer != NULL && i < model->config.layers; i++) {
        moert_model_mlp_of(&model->layer[i])->destroy(&model->layer[i]);
        moert_block_destroy(model->layer[i].attention);
    }
    moert_block_destroy(model->outer);
    moert_gradient_pool_destroy(model->gradient_pool);
    moert_buffers_destroy(model->rope, MOERT_ROPES);
    MOERT_FREE(model->block, model->moe, model->layer, model->tensor, model);
}

moert_rope_scheme moert_model_rope_scheme(const moert_model_config *config, size_t windowed) {
    moert_rope_scheme scheme = windowed == 0 ? config->rope : config->window_rope;
    if (config->latent.kv_rank > 0)
        scheme.width = config->latent.rope;
    return scheme;
}

const moert_model_config *moert_model_describe(const moert_model *model) {
    return &model->config;
}

moert_mesh *moert_model_mesh(const moert_model *model) {
    return model->mesh;
}

enum { PIECE = 1 << 22 }; /* number of values drawn at once */

/* Draws the values of a tensor's part on this rank. Tells the watchdog about progress, since a
 * large model takes minutes. */
static moert_status draw(const moert_model_tensor *tensor, uint64_t seed, double deviation) {
    const uint64_t stream = moert_rng_stream(tensor->name);
    float *values;
    MOERT_TRY(moert_alloc(&values, moert_min(tensor->elements, PIECE), sizeof *values));
    moert_status status = MOERT_OK;
    for (size_t first = 0; status == MOERT_OK && first < tensor->elements; first += PIECE) {
        const size_t count = moert_min(tensor->elements - first, PIECE);
        if (tensor->initial == MOERT_INITIAL_NORMAL)
            moert_rng_normals(seed, stream, tensor->file_first + first, deviation, values, count);
        for (size_t i = 0; i < count && tensor->initial != MOERT_INITIAL_NORMAL; i++)
            values[i] = tensor->initial == MOERT_INITIAL_ONES ? 1.0f : 0.0f;
        status =
            moert_buffer_write(tensor->block->weight, (tensor->offset + first) * sizeof *values,
                               values, count * sizeof *values);
        moert_phase_tick();
    }
    free(values);
    return status;
}

moert_status moert_model_initialize(moert_model *model, uint64_t seed) {
    moert_model_weights_changed(model);
    for (size_t t = 0; t < model->tensor_count; t++)
        if (model->tensor[t].block != NULL)
            MOERT_TRY(draw(&model->tensor[t], seed, (double)model->config.initializer_range));
    return MOERT_OK;
}

size_t moert_model_block_count(const moert_model *model) {
    return model->blocks;
}

moert_block *moert_model_block(const moert_model *model, size_t index) {
    return model->block[index];
}

size_t moert_model_moe_layers(const moert_model *model) {
    return model->moe_layers;
}

void moert_model_row_peaks(const moert_model *model, moert_row_peak *peaks) {
    for (size_t i = 0; i < model->moe_layers; i++)
        peaks[i] = moert_layer_row_peak(model->moe[i]->moe);
}

void moert_model_partition(size_t total, size_t rank, size_t size, size_t *first, size_t *count) {
    *first = total * rank / size;
    *count = total * (rank + 1) / size - *first;
}
