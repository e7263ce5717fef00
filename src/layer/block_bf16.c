/* Blocks that keep their gradients in bf16, and have float32 gradients only while they are open. */
#include <string.h>

#include "base/memory.h"
#include "layer/block.h"
#include "moert/quantize.h"

moert_status moert_gradient_pool_create(moert_device *device, moert_gradient_pool **pool) {
    MOERT_TRY(MOERT_NEW(pool));
    (*pool)->device = device;
    return MOERT_OK;
}

void moert_gradient_pool_destroy(moert_gradient_pool *pool) {
    for (size_t i = 0; pool != NULL && i < MOERT_COUNT(pool->free); i++)
        moert_buffer_destroy(pool->free[i].buffer);
    MOERT_FREE(pool);
}

static size_t float_bytes(const moert_block *block) {
    return block->floats * sizeof(float);
}

static moert_status take(const moert_block *block, moert_buffer **buffer) {
    moert_gradient_pool *pool = block->pool;
    for (size_t i = 0; i < MOERT_COUNT(pool->free); i++)
        if (pool->free[i].buffer != NULL && strcmp(pool->free[i].what, block->what) == 0 &&
            moert_buffer_bytes(pool->free[i].buffer) == float_bytes(block)) {
            *buffer = pool->free[i].buffer;
            pool->free[i].buffer = NULL;
            return MOERT_OK;
        }
    if (moert_buffer_create(pool->device, float_bytes(block), buffer) != MOERT_OK)
        return MOERT_FAIL(ERROR_MEMORY, "no memory for float32 gradients of %s: %s", block->what,
                          moert_last_error());
    return moert_buffer_clear(*buffer, 0, float_bytes(block));
}

static void give_back(const moert_block *block, moert_buffer *buffer) {
    moert_gradient_pool *pool = block->pool;
    size_t place = 0;
    while (place < MOERT_COUNT(pool->free) && pool->free[place].buffer != NULL)
        place++;
    if (place == MOERT_COUNT(pool->free)) {
        moert_buffer_destroy(buffer);
        return;
    }
    pool->free[place].what = block->what;
    pool->free[place].buffer = buffer;
}

static void drop_views(moert_block *block) {
    for (size_t i = 0; i < block->count; i++) {
        moert_buffer_destroy(block->tensor[i].gradient);
        block->tensor[i].gradient = NULL;
    }
}

moert_status moert_block_keep_bf16(moert_block *block, moert_gradient_pool *pool) {
    const size_t bytes = block->floats * sizeof(uint16_t);
    drop_views(block);
    moert_buffer_destroy(block->gradient);
    block->gradient = NULL;
    block->pool = pool;
    if (moert_buffer_create(block->device, bytes, &block->kept) != MOERT_OK)
        return MOERT_FAIL(ERROR_MEMORY, "no memory for gradients of %s: %s", block->what,
                          moert_last_error());
    return moert_buffer_clear(block->kept, 0, bytes);
}

static moert_status cast(const moert_block *block, bool rounds, moert_buffer *floats) {
    return moert_cast_run(&(moert_cast){.size = sizeof(moert_cast),
                                        .from = rounds ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16,
                                        .to = rounds ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32,
                                        .n = block->floats,
                                        .source = rounds ? floats : block->kept,
                                        .target = rounds ? block->kept : floats});
}

moert_status moert_block_open(moert_block *block, bool accumulate) {
    if (block->pool == NULL || block->gradient != NULL)
        return MOERT_OK;
    MOERT_TRY(take(block, &block->gradient));
    for (size_t i = 0; i < block->count; i++) {
        moert_block_tensor *tensor = &block->tensor[i];
        if (tensor->elements > 0)
            MOERT_TRY(moert_buffer_view(block->gradient, tensor->offset * sizeof(float),
                                        tensor->elements * sizeof(float), &tensor->gradient));
    }
    return accumulate ? cast(block, false, block->gradient) : MOERT_OK;
}

moert_status moert_block_close(moert_block *block) {
    if (block->pool == NULL || block->gradient == NULL)
        return MOERT_OK;
    MOERT_TRY(cast(block, true, block->gradient));
    drop_views(block);
    give_back(block, block->gradient);
    block->gradient = NULL;
    return MOERT_OK;
}

moert_elements moert_block_gradient(const moert_block *block, size_t at) {
    return block->kept != NULL ? (moert_elements){block->kept, MOERT_DTYPE_BF16, at}
                               : (moert_elements){block->gradient, MOERT_DTYPE_F32, at};
}

moert_status moert_block_copy_gradient(const moert_block *block, moert_buffer *target) {
    if (block->floats == 0)
        return MOERT_OK;
    return block->kept != NULL
               ? cast(block, false, target)
               : moert_buffer_copy(block->gradient, 0, target, 0, float_bytes(block));
}
