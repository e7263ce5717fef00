/* AdamW over a model. */
#include "train/optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"

static moert_status create_moments(const moert_block *block, moert_block **moments) {
    size_t *elements;
    MOERT_TRY(moert_alloc(&elements, block->count, sizeof *elements));
    for (size_t i = 0; i < block->count; i++)
        elements[i] = block->tensor[i].elements;
    moert_status status = moert_block_create(block->device, block->what, block->replicated,
                                             elements, block->count, moments);
    free(elements);
    return status;
}

/* The squares of the gradients of all tensors that this rank holds. */
static moert_status create_squares(moert_optimizer *optimizer) {
    moert_model *model = optimizer->model;
    size_t count = moert_model_tensor_count(model);
    const moert_model_tensor *tensor = moert_model_tensors(model);
    moert_square_span *span;
    MOERT_TRY(MOERT_NEW_ARRAY(&optimizer->squared, count));
    MOERT_TRY(MOERT_NEW_ARRAY(&span, count));
    for (size_t b = 0; b < moert_model_block_count(model); b++) {
        const moert_block *block = moert_model_block(model, b);
        for (size_t i = 0; i < count; i++)
            if (tensor[i].block == block) {
                span[optimizer->held] =
                    (moert_square_span){block->gradient, tensor[i].offset, tensor[i].elements};
                optimizer->squared[optimizer->held++] = i;
            }
    }
    moert_status status = moert_squares_create(moert_model_mesh(model)->device, span,
                                               optimizer->held, &optimizer->squares);
    free(span);
    return status;
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
    MOERT_TRY_OR(fail, create_squares(made));
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
         i++)
        moert_block_destroy(optimizer->moments[i]);
    free(optimizer->moments);
    moert_squares_destroy(optimizer->squares);
    free(optimizer->squared);
    free(optimizer);
}

moert_block *moert_optimizer_moments(const moert_optimizer *optimizer,
                                     const moert_model_tensor *tensor) {
    for (size_t i = 0; i < moert_model_block_count(optimizer->model); i++)
        if (moert_model_block(optimizer->model, i) == tensor->block)
            return optimizer->moments[i];
    return NULL;
}

/* Sums of squares of the tensors that this rank holds, into square[tensors]. */
static moert_status square_held(moert_optimizer *optimizer, double *square) {
    double *sums;
    MOERT_TRY(moert_alloc(&sums, optimizer->held, sizeof *sums));
    moert_status status = moert_squares_sum(optimizer->squares, sums);
    for (size_t i = 0; status == MOERT_OK && i < optimizer->held; i++)
        square[optimizer->squared[i]] = sums[i];
    free(sums);
    return status;
}

/* Completes square[tensors] with the experts of the other ranks. Collective. */
static moert_status gather_squares(moert_model *model, double *square) {
    moert_comm *experts = moert_model_mesh(model)->experts;
    size_t count = moert_model_tensor_count(model), ranks = moert_comm_size(experts);
    const moert_model_tensor *tensor = moert_model_tensors(model);
    double *all;
    if (ranks == 1)
        return MOERT_OK;
    MOERT_TRY(moert_alloc(&all, ranks, count * sizeof *all));
    moert_status status = moert_comm_allgather(experts, square, count * sizeof *all, all);
    for (size_t i = 0; status == MOERT_OK && i < count; i++)
        if (!tensor[i].replicated)
            square[i] = all[tensor[i].owner * count + i];
    free(all);
    return status;
}

moert_status moert_optimizer_norm(moert_optimizer *optimizer, double *norm) {
    moert_model *model = optimizer->model;
    size_t count = moert_model_tensor_count(model);
    double *square, sum = 0.0;
    moert_phase_set("gradient norm");
    MOERT_TRY(moert_alloc(&square, count, sizeof *square));
    moert_status status = square_held(optimizer, square);
    if (status == MOERT_OK)
        status = gather_squares(model, square);
    for (size_t i = 0; i < count; i++)
        sum += square[i];
    *norm = sqrt(sum);
    free(square);
    return status;
}

/* A tensor of a block is decayed when it is a matrix of the model; blocks of experts hold nothing
 * else. */
static bool decays(const moert_optimizer *optimizer, const moert_block *block, size_t index) {
    const moert_model_tensor *tensor = moert_model_tensors(optimizer->model);
    if (optimizer->options.decay_all)
        return true;
    for (size_t i = 0; i < moert_model_tensor_count(optimizer->model); i++)
        if (tensor[i].block == block && tensor[i].offset == block->tensor[index].offset)
            return tensor[i].is_matrix;
    return false;
}

moert_status moert_optimizer_step(moert_optimizer *optimizer, double rate, double norm,
                                  uint64_t step) {
    const moert_optimizer_options *o = &optimizer->options;
    double scale = o->clip > 0.0 && norm + 1e-6 > o->clip ? o->clip / (norm + 1e-6) : 1.0;
    moert_phase_set("optimizer");
    moert_model_weights_changed(optimizer->model);
    for (size_t b = 0; b < moert_model_block_count(optimizer->model); b++) {
        const moert_block *block = moert_model_block(optimizer->model, b),
                          *moments = optimizer->moments[b];
        for (size_t i = 0; i < block->count; i++) {
            moert_block_tensor *tensor = &block->tensor[i];
            const moert_block_tensor *state = &moments->tensor[i];
            if (tensor->elements == 0)
                continue;
            const moert_adamw adamw = {
                .rate = rate,
                .beta1 = o->beta1,
                .beta2 = o->beta2,
                .epsilon = o->epsilon,
                .decay = decays(optimizer, block, i) ? o->decay : 0.0,
                .scale = scale,
                .step = step,
                .rounded = moert_packings_copy(&tensor->packings, tensor->elements)};
            MOERT_TRY(moert_adamw_step(&adamw, tensor->elements, tensor->weight, tensor->gradient,
                                       state->weight, state->gradient));
            if (adamw.rounded != NULL)
                moert_packings_rounded(&tensor->packings);
        }
    }
    return MOERT_OK;
}
