/* The optimizer of a model. */
#include "train/optimizer.h"

#include <stdlib.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/phase.h"
#include "base/rng.h"
#include "device/buffer.h"

const moert_optimizer_row *moert_optimizer_of(const moert_model *model) {
    return &moert_optimizers[moert_model_describe(model)->memory.optimizer];
}

static moert_dtype moment_type(const moert_model *model) {
    return moert_state_dtype(moert_model_describe(model)->memory.moments);
}

static moert_status create_moments(const moert_model *model, const moert_block *block,
                                   moert_moments *moments) {
    size_t first;
    const moert_dtype type = moment_type(model);
    const size_t bytes = moert_block_shard(block, &first) * (moert_dtype_bits(type) / 8);
    for (size_t i = 0; i < moert_optimizer_of(model)->moments; i++) {
        const moert_status status = moert_buffer_create(block->device, bytes, &moments->moment[i]);
        if (status != MOERT_OK)
            return MOERT_FAIL(ERROR_MEMORY, "no memory for the moments of %s: %s", block->what,
                              moert_last_error());
        MOERT_TRY(moert_buffer_clear(moments->moment[i], 0, bytes));
    }
    return type == MOERT_DTYPE_F32
               ? MOERT_OK
               : moert_buffer_create(block->device, moert_block_parts(block) * sizeof(uint64_t),
                                     &moments->keys);
}

uint64_t moert_optimizer_key(const moert_model_tensor *tensor) {
    const moert_random r = moert_rng_block(moert_rng_stream(tensor->name), 0, tensor->file_first);
    return (uint64_t)r.word[1] << 32 | r.word[0];
}

/* keys[parts of the block's tensors] = moert_optimizer_key of the model's tensor in each part.
 * Leaves out the parts of slots without an expert. */
static void list_keys(const moert_model *model, const moert_block *block, uint64_t *keys) {
    const moert_model_tensor *tensor = moert_model_tensors(model);
    for (size_t t = 0; t < moert_model_tensor_count(model); t++) {
        size_t part = 0;
        for (size_t i = 0; tensor[t].block == block && i < block->count; i++) {
            const moert_block_tensor *whole = &block->tensor[i];
            const size_t at = tensor[t].offset - whole->offset;
            if (at < whole->elements)
                keys[part + at / tensor[t].elements] = moert_optimizer_key(&tensor[t]);
            part += whole->parts;
        }
    }
}

static moert_status write_keys(const moert_model *model, const moert_block *block,
                               moert_buffer *buffer) {
    const size_t parts = moert_block_parts(block);
    uint64_t *keys;
    MOERT_TRY(MOERT_NEW_ARRAY(&keys, parts));
    list_keys(model, block, keys);
    const moert_status status = moert_buffer_write(buffer, 0, keys, parts * sizeof *keys);
    free(keys);
    return status;
}

moert_status moert_optimizer_renew(moert_optimizer *optimizer) {
    const moert_model *model = optimizer->model;
    moert_gradient_norm_destroy(optimizer->norm);
    optimizer->norm = NULL;
    MOERT_TRY(moert_gradient_norm_create(optimizer->model, &optimizer->norm));
    for (size_t i = 0; i < moert_model_block_count(model); i++)
        if (optimizer->moments[i].keys != NULL)
            MOERT_TRY(write_keys(model, moert_model_block(model, i), optimizer->moments[i].keys));
    return MOERT_OK;
}

moert_status moert_optimizer_create(moert_model *model, const moert_optimizer_options *options,
                                    moert_optimizer **optimizer) {
    size_t blocks = moert_model_block_count(model);
    moert_optimizer *made;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    made->model = model;
    made->options = *options;
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->moments, blocks));
    for (size_t i = 0; i < blocks; i++)
        MOERT_TRY_OR(fail, create_moments(model, moert_model_block(model, i), &made->moments[i]));
    MOERT_TRY_OR(fail, moert_optimizer_renew(made));
    *optimizer = made;
    return MOERT_OK;
fail:
    moert_optimizer_destroy(made);
    return status;
}

void moert_optimizer_destroy(moert_optimizer *optimizer) {
    if (optimizer == NULL)
        return;
    for (size_t i = 0; optimizer->moments != NULL && i < moert_model_block_count(optimizer->model);
         i++) {
        moert_buffers_destroy(optimizer->moments[i].moment, MOERT_MOMENTS_MOST);
        MOERT_DESTROY(optimizer->moments[i].keys);
    }
    free(optimizer->moments);
    moert_gradient_norm_destroy(optimizer->norm);
    free(optimizer);
}

moert_elements moert_optimizer_moment(const moert_optimizer *optimizer, const moert_block *block,
                                      size_t which, size_t at) {
    size_t index = 0, first;
    while (moert_model_block(optimizer->model, index) != block)
        index++;
    moert_block_shard(block, &first);
    return (moert_elements){optimizer->moments[index].moment[which], moment_type(optimizer->model),
                            at - first};
}

bool moert_optimizer_decays(const moert_optimizer *optimizer, const moert_model_tensor *tensor) {
    return !tensor->is_fixed && (optimizer->options.decay_all || tensor->is_matrix);
}

/* Finds one of the model's tensors that lie in a tensor of a block; all these tensors are of the
 * same kind. NULL if no slot has an expert. */
static const moert_model_tensor *find_tensor(const moert_model *model, const moert_block *block,
                                             const moert_block_tensor *whole) {
    const moert_model_tensor *tensor = moert_model_tensors(model);
    for (size_t i = 0; i < moert_model_tensor_count(model); i++)
        if (tensor[i].block == block && tensor[i].offset - whole->offset < whole->elements)
            return &tensor[i];
    return NULL;
}

/* Updates the elements of a tensor that lie in this rank's shard of the block. If several ranks
 * hold the block, writes no rounded copy or FP8 operands of the weight, since these would cover
 * only this shard. */
static moert_status update_tensor(const moert_optimizer *optimizer, const moert_block *block,
                                  moert_block_tensor *tensor, const moert_update *step) {
    size_t first;
    const size_t end = moert_block_shard(block, &first) + first;
    const size_t from = moert_max(first, tensor->offset),
                 to = moert_min(end, tensor->offset + tensor->elements);
    moert_update update = *step;
    if (from >= to)
        return MOERT_OK;
    const moert_elements gradient = moert_block_gradient(block, from);
    moert_elements moments[MOERT_MOMENTS_MOST];
    for (size_t i = 0; i < moert_optimizer_of(optimizer->model)->moments; i++)
        moments[i] = moert_optimizer_moment(optimizer, block, i, from);
    update.at = update.first = from - tensor->offset;
    update.part = tensor->elements / tensor->parts;
    if (moert_comm_size(block->comm) == 1)
        update.fp8 = moert_block_fp8(tensor);
    if (moert_comm_size(block->comm) == 1 && update.fp8 == NULL)
        update.rounded = moert_weight_cache_copy(&tensor->cache, tensor->elements);
    MOERT_TRY(moert_update_weights(&update, to - from, tensor->weight, &gradient, moments));
    if (update.rounded != NULL)
        moert_weight_cache_rounded(&tensor->cache);
    tensor->fp8_current = update.fp8 != NULL;
    return MOERT_OK;
}

static moert_status update_block(const moert_optimizer *optimizer, size_t index,
                                 const moert_update *step) {
    const moert_block *block = moert_model_block(optimizer->model, index);
    moert_update update = *step;
    update.keys = optimizer->moments[index].keys;
    for (size_t i = 0; i < block->count; i++) {
        const moert_model_tensor *tensor = find_tensor(optimizer->model, block, &block->tensor[i]);
        const bool decays = tensor != NULL && moert_optimizer_decays(optimizer, tensor);
        update.decay = decays ? step->decay : 0.0;
        MOERT_TRY(update_tensor(optimizer, block, &block->tensor[i], &update));
        update.keys_at += block->tensor[i].parts;
    }
    return moert_block_gather(block, block->weight);
}

moert_update moert_optimizer_coefficients(const moert_optimizer *optimizer, double rate,
                                          double norm, uint64_t step) {
    const moert_optimizer_options *o = &optimizer->options;
    return (moert_update){.optimizer = moert_model_describe(optimizer->model)->memory.optimizer,
                          .rate = rate,
                          .beta1 = o->beta1,
                          .beta2 = o->beta2,
                          .epsilon = o->epsilon,
                          .momentum = o->momentum,
                          .decay = o->decay,
                          .scale = o->clip > 0.0 && norm + 1e-6 > o->clip ? o->clip / (norm + 1e-6)
                                                                          : 1.0,
                          .step = step};
}

moert_status moert_optimizer_step(moert_optimizer *optimizer, double rate, double norm,
                                  uint64_t step) {
    const moert_update update = moert_optimizer_coefficients(optimizer, rate, norm, step);
    moert_phase_set(MOERT_PHASE_OPTIMIZER);
    moert_model_weights_changed(optimizer->model);
    for (size_t b = 0; b < moert_model_block_count(optimizer->model); b++)
        MOERT_TRY(update_block(optimizer, b, &update));
    return MOERT_OK;
}
