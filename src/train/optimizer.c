/* AdamW over a model. */
#include "train/optimizer.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"

static moert_status create_moments(const moert_block *block, moert_moments *moments) {
    size_t first;
    const size_t bytes = moert_block_shard(block, &first) * sizeof(float);
    moert_buffer **const both[] = {&moments->first, &moments->second};
    for (size_t i = 0; i < 2; i++) {
        const moert_status status = moert_buffer_create(block->device, bytes, both[i]);
        if (status != MOERT_OK)
            return MOERT_FAIL(ERROR_MEMORY, "moments of %s: %s", block->what, moert_last_error());
        MOERT_TRY(moert_buffer_clear(*both[i], 0, bytes));
    }
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
        MOERT_TRY_OR(fail, create_moments(moert_model_block(model, i), &made->moments[i]));
    MOERT_TRY_OR(fail, moert_gradient_norm_create(model, &made->norm));
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
        MOERT_DESTROY(optimizer->moments[i].first, optimizer->moments[i].second);
    }
    free(optimizer->moments);
    moert_gradient_norm_destroy(optimizer->norm);
    free(optimizer);
}

const moert_moments *moert_optimizer_moments_of(const moert_optimizer *optimizer,
                                                const moert_block *block) {
    size_t index = 0;
    while (moert_model_block(optimizer->model, index) != block)
        index++;
    return &optimizer->moments[index];
}

const moert_moments *moert_optimizer_moments(const moert_optimizer *optimizer,
                                             const moert_model_tensor *tensor, size_t *at) {
    size_t first;
    moert_block_shard(tensor->block, &first);
    *at = tensor->offset + moert_model_shard(tensor).first - first;
    return moert_optimizer_moments_of(optimizer, tensor->block);
}

/* All tensors of the model that form one of the block are alike. */
bool moert_optimizer_decays(const moert_optimizer *optimizer, const moert_block *block,
                            size_t index) {
    const moert_model_tensor *tensor = moert_model_tensors(optimizer->model);
    for (size_t i = 0; i < moert_model_tensor_count(optimizer->model); i++)
        if (tensor[i].block == block &&
            tensor[i].offset - block->tensor[index].offset < block->tensor[index].elements)
            return !tensor[i].is_fixed && (optimizer->options.decay_all || tensor[i].is_matrix);
    return optimizer->options.decay_all;
}

/* Updates the elements of a tensor in the shard [first, end) of its block. If several ranks hold
 * the block (`shared`), it writes no rounded copy, since that would only cover this shard. */
static moert_status update_tensor(moert_block_tensor *tensor, const moert_moments *moments,
                                  const moert_adamw *step, size_t first, size_t end, bool shared) {
    const size_t from = moert_max(first, tensor->offset),
                 to = moert_min(end, tensor->offset + tensor->elements);
    moert_adamw adamw = *step;
    if (from >= to)
        return MOERT_OK;
    adamw.at = from - tensor->offset;
    adamw.state_at = from - first;
    adamw.rounded = shared ? NULL : moert_prepacks_copy(&tensor->prepacks, tensor->elements);
    MOERT_TRY(moert_adamw_step(&adamw, to - from, tensor->weight, tensor->gradient, moments->first,
                               moments->second));
    if (adamw.rounded != NULL)
        moert_prepacks_rounded(&tensor->prepacks);
    return MOERT_OK;
}

static moert_status update_block(const moert_optimizer *optimizer, size_t index,
                                 const moert_adamw *step) {
    const moert_block *block = moert_model_block(optimizer->model, index);
    size_t first;
    const size_t end = moert_block_shard(block, &first) + first;
    for (size_t i = 0; i < block->count; i++) {
        moert_adamw adamw = *step;
        if (!moert_optimizer_decays(optimizer, block, i))
            adamw.decay = 0.0;
        MOERT_TRY(update_tensor(&block->tensor[i], &optimizer->moments[index], &adamw, first, end,
                                moert_comm_size(block->comm) > 1));
    }
    return moert_block_gather(block, block->weight);
}

moert_adamw moert_optimizer_coefficients(const moert_optimizer *optimizer, double rate, double norm,
                                         uint64_t step) {
    const moert_optimizer_options *o = &optimizer->options;
    return (moert_adamw){.rate = rate,
                         .beta1 = o->beta1,
                         .beta2 = o->beta2,
                         .epsilon = o->epsilon,
                         .decay = o->decay,
                         .scale =
                             o->clip > 0.0 && norm + 1e-6 > o->clip ? o->clip / (norm + 1e-6) : 1.0,
                         .step = step};
}

moert_status moert_optimizer_step(moert_optimizer *optimizer, double rate, double norm,
                                  uint64_t step) {
    const moert_adamw adamw = moert_optimizer_coefficients(optimizer, rate, norm, step);
    moert_phase_set(MOERT_PHASE_OPTIMIZER);
    moert_model_weights_changed(optimizer->model);
    for (size_t b = 0; b < moert_model_block_count(optimizer->model); b++)
        MOERT_TRY(update_block(optimizer, b, &adamw));
    return MOERT_OK;
}
