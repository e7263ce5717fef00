/*
 * Tensors in buffers of the caller. Kernels use bound weights, and bound gradients of experts, in
 * place. Sums over ranks are formed in the block's own gradient, because scattered tensors would
 * cost a message for each tensor and rank. So each reduction copies bound gradients to the block's
 * own gradient and back: always those of replicated blocks, those of experts only if the experts
 * have replicas.
 */
#include "base/memory.h"
#include "layer/check.h"

/* Whether the ranks sum the block's gradients in the block's own buffer. */
static bool sums_inside(const moert_block *block) {
    return block->replicated || moert_comm_size(block->comm) > 1;
}

/* Frees a block's own buffer when no tensor is in it any more. */
static void free_unused(moert_block *block) {
    bool weights = false, gradients = sums_inside(block);
    for (size_t i = 0; i < block->count; i++) {
        const moert_block_tensor *tensor = &block->tensor[i];
        weights = weights || (tensor->elements > 0 && !tensor->bound_weight);
        gradients = gradients || (tensor->elements > 0 && tensor->bound_gradient == NULL);
    }
    if (!weights) {
        moert_buffer_destroy(block->weight);
        block->weight = NULL;
    }
    if (!gradients) {
        moert_buffer_destroy(block->gradient);
        block->gradient = NULL;
    }
}

/* Replaces a view of the block's buffer by a view of the caller's buffer. */
static moert_status replace(const moert_buffer *by, size_t bytes, moert_buffer **view) {
    moert_buffer *made;
    MOERT_TRY(moert_buffer_view(by, 0, bytes, &made));
    moert_buffer_destroy(*view);
    *view = made;
    return MOERT_OK;
}

moert_status moert_block_bind(moert_block *block, size_t index, const moert_buffer *weight,
                              const moert_buffer *gradient) {
    moert_block_tensor *tensor = &block->tensor[index];
    const size_t bytes = tensor->elements * sizeof(float);
    if (weight != NULL) {
        MOERT_TRY(replace(weight, bytes, &tensor->weight));
        tensor->bound_weight = true;
        moert_weight_cache_changed(&tensor->cache);
    }
    if (gradient != NULL)
        MOERT_TRY(replace(gradient, bytes, &tensor->bound_gradient));
    if (gradient != NULL && !block->replicated)
        MOERT_TRY(replace(gradient, bytes, &tensor->gradient));
    free_unused(block);
    return MOERT_OK;
}

/* Copies the bound gradients to their places in the block's buffer, or back. */
static moert_status copy_bound(const moert_block *block, bool back) {
    for (size_t i = 0; i < block->count; i++) {
        const moert_block_tensor *tensor = &block->tensor[i];
        const size_t place = tensor->offset * sizeof(float);
        const size_t bytes = tensor->elements * sizeof(float);
        if (tensor->bound_gradient == NULL)
            continue;
        MOERT_TRY(
            back ? moert_buffer_copy(block->gradient, place, tensor->bound_gradient, 0, bytes)
                 : moert_buffer_copy(tensor->bound_gradient, 0, block->gradient, place, bytes));
    }
    return MOERT_OK;
}

moert_status moert_block_take_bound(const moert_block *block) {
    return sums_inside(block) ? copy_bound(block, false) : MOERT_OK;
}

moert_status moert_block_give_bound(const moert_block *block) {
    return sums_inside(block) ? copy_bound(block, true) : MOERT_OK;
}
