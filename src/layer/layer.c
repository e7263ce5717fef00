/* Makes a layer, its weights and its accessors. */
#include "layer/internal.h"

#include <stdlib.h>

#include "base/memory.h"
#include "layer/precision.h"
#include "layer/wire.h"

static moert_status check_options(const moert_mesh *mesh, const moert_layer_options *options) {
    if (options->size != sizeof *options)
        return MOERT_FAIL(
            ERROR_USAGE,
            "moert_layer_options.size is %zu, expected %zu; start from MOERT_LAYER_OPTIONS_INIT",
            options->size, sizeof *options);
    if (options->hidden == 0 || options->intermediate == 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "a layer needs sizes above 0: hidden is %zu, intermediate %zu",
                          options->hidden, options->intermediate);
    if ((unsigned)options->precision > MOERT_PRECISION_NVFP4)
        return MOERT_FAIL(ERROR_USAGE, "precision of a layer is %u, above %d",
                          (unsigned)options->precision, MOERT_PRECISION_NVFP4);
    if ((unsigned)options->dense > MOERT_PRECISION_BF16)
        return MOERT_FAIL(ERROR_USAGE, "dense of a layer is %u, above %d", (unsigned)options->dense,
                          MOERT_PRECISION_BF16);
    if ((unsigned)options->dispatch > MOERT_DISPATCH_BF16)
        return MOERT_FAIL(ERROR_USAGE, "dispatch of a layer is %u, above %d",
                          (unsigned)options->dispatch, MOERT_DISPATCH_BF16);
    if (options->dispatch == MOERT_DISPATCH_BF16 && options->hidden % 2 != 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "rows of an odd hidden size, %zu, are not dispatched as bf16",
                          options->hidden);
    if ((unsigned)options->combine > MOERT_COMBINE_BF16)
        return MOERT_FAIL(ERROR_USAGE, "combine of a layer is %u, above %d",
                          (unsigned)options->combine, MOERT_COMBINE_BF16);
    if (options->combine == MOERT_COMBINE_BF16 && options->hidden % 2 != 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "results of an odd hidden size, %zu, are not combined as bf16",
                          options->hidden);
    MOERT_TRY(moert_router_check(&options->router));
    if (options->router.experts < moert_comm_size(mesh->experts))
        return MOERT_FAIL(ERROR_USAGE,
                          "%zu experts cannot be spread over %zu ranks; use fewer ranks, or expert "
                          "parallelism (ep) of at "
                          "most %zu",
                          options->router.experts, moert_comm_size(mesh->experts),
                          options->router.experts);
    return MOERT_OK;
}

static moert_status create_blocks(moert_layer *layer) {
    const moert_layer_options *o = &layer->options;
    moert_device *device = layer->mesh->device;
    size_t experts = o->router.experts, local = layer->local_experts, h = o->hidden,
           i = o->intermediate;
    const size_t dense[DENSE_TENSORS] = {
        [DENSE_ROUTER] = experts * h,
        [DENSE_ROUTER_BIAS] = o->router_bias ? experts : 0,
        [DENSE_SHARED_W1] = 2 * o->shared_intermediate * h,
        [DENSE_SHARED_W2] = h * o->shared_intermediate,
    };
    const size_t in[EXPERT_TENSORS] = {local * 2 * i * h, o->expert_biases ? local * 2 * i : 0};
    const size_t out[EXPERT_TENSORS] = {local * h * i, o->expert_biases ? local * h : 0};
    MOERT_TRY(moert_block_create(
        device, layer->mesh->world, "the router and the shared experts of a layer", true,
        &(moert_block_shape){dense, DENSE_TENSORS, 1}, &layer->block[BLOCK_DENSE]));
    MOERT_TRY(moert_block_create(device, layer->mesh->replicas,
                                 "the first projection of all experts of a rank in one layer",
                                 false, &(moert_block_shape){in, EXPERT_TENSORS, 2 * local},
                                 &layer->block[BLOCK_EXPERT_IN]));
    MOERT_TRY(moert_block_create(device, layer->mesh->replicas,
                                 "the second projection of all experts of a rank in one layer",
                                 false, &(moert_block_shape){out, EXPERT_TENSORS, local},
                                 &layer->block[BLOCK_EXPERT_OUT]));
    if (o->correction_bias) {
        MOERT_TRY(moert_buffer_create(device, experts * sizeof(float), &layer->correction));
        MOERT_TRY(moert_buffer_clear(layer->correction, 0, experts * sizeof(float)));
    }
    return MOERT_OK;
}

moert_status moert_layer_create(moert_mesh *mesh, const moert_layer_options *options,
                                moert_layer **layer) {
    moert_layer *made;
    moert_status status;
    MOERT_TRY(moert_comm_agree(mesh->world, check_options(mesh, options)));
    MOERT_TRY(MOERT_NEW(&made));
    made->mesh = mesh;
    made->options = *options;
    made->owns_dy = options->deferred_wgrad;
    made->weights_changed = true;
    moert_plan_experts(options->router.experts, moert_comm_size(mesh->experts),
                       moert_comm_rank(mesh->experts), &made->first_expert, &made->local_experts);
    MOERT_TRY_OR(fail, moert_comm_agree(mesh->world, create_blocks(made)));
    MOERT_TRY_OR(fail, moert_window_create(mesh->exchange, moert_wire_width(options), &made->x));
    MOERT_TRY_OR(fail, moert_window_create(mesh->exchange, 1, &made->prob));
    if (made->owns_dy)
        MOERT_TRY_OR(fail,
                     moert_window_create(mesh->exchange, moert_wire_width(options), &made->dy));
    *layer = made;
    return MOERT_OK;
fail:
    moert_layer_destroy(made);
    return status;
}

void moert_layer_destroy(moert_layer *layer) {
    if (layer == NULL)
        return;
    if (layer->owns_dy)
        moert_window_destroy(layer->dy);
    moert_window_destroy(layer->prob);
    moert_window_destroy(layer->x);
    moert_exchange_free_plan(layer->plan);
    moert_precision_free(layer);
    for (int i = 0; i < BLOCKS; i++)
        moert_block_destroy(layer->block[i]);
    moert_buffer *const buffers[] = {layer->correction,
                                     layer->logits,
                                     layer->routing.scores,
                                     layer->routing.index,
                                     layer->routing.weight,
                                     layer->routing.lse,
                                     layer->v,
                                     layer->h,
                                     layer->shared_v,
                                     layer->shared_h};
    for (size_t i = 0; i < MOERT_COUNT(buffers); i++)
        moert_buffer_destroy(buffers[i]);
    free(layer);
}

moert_groups moert_layer_groups(const moert_layer *layer) {
    return (moert_groups){layer->plan->ends, layer->local_experts, layer->plan->plan->rows};
}

moert_part moert_layer_part(const moert_layer *layer, size_t wave) {
    const moert_wave part = moert_exchange_wave(layer->plan, wave);
    return (moert_part){part.first, part.end, part.first_row, part.end_row};
}

moert_gemm moert_layer_gemm(const moert_layer *layer, int block, size_t n, size_t k) {
    const moert_block *weights = layer->block[block];
    return (moert_gemm){.groups = moert_layer_groups(layer),
                        .n = n,
                        .k = k,
                        .weight = weights->tensor[EXPERT_WEIGHT].weight,
                        .bias = weights->tensor[EXPERT_BIAS].weight};
}

moert_gemm moert_layer_router_gemm(const moert_layer *layer, const moert_buffer *x,
                                   moert_buffer *logits) {
    const moert_layer_options *o = &layer->options;
    const bool splits = o->precision != MOERT_PRECISION_F32;
    return (moert_gemm){
        .groups = {layer->batch.ends, layer->batch.sequences, layer->batch.tokens},
        .n = o->router.experts,
        .k = o->hidden,
        .shared_weight = true,
        .x = (moert_buffer *)x,
        .y = logits,
        .split = splits ? &layer->mesh->scratch[MOERT_SCRATCH_ROUNDED_X] : NULL,
    };
}

moert_status moert_layer_activation(moert_layer *layer, size_t rows, size_t width,
                                    moert_buffer **buffer) {
    size_t bytes = rows * width * sizeof(float);
    if (*buffer != NULL && moert_buffer_bytes(*buffer) >= bytes)
        return MOERT_OK;
    size_t most = moert_max(bytes, moert_device_describe(layer->mesh->device)->largest_bytes);
    return moert_buffer_reserve(layer->mesh->device, moert_min(bytes + bytes / 4, most), buffer);
}

/* Where a tensor lies; BLOCKS for the correction bias. */
static const struct place {
    int block, tensor;
} places[MOERT_LAYER_TENSORS] = {
    [MOERT_LAYER_ROUTER] = {BLOCK_DENSE, DENSE_ROUTER},
    [MOERT_LAYER_ROUTER_BIAS] = {BLOCK_DENSE, DENSE_ROUTER_BIAS},
    [MOERT_LAYER_SHARED_W1] = {BLOCK_DENSE, DENSE_SHARED_W1},
    [MOERT_LAYER_SHARED_W2] = {BLOCK_DENSE, DENSE_SHARED_W2},
    [MOERT_LAYER_W1] = {BLOCK_EXPERT_IN, EXPERT_WEIGHT},
    [MOERT_LAYER_B1] = {BLOCK_EXPERT_IN, EXPERT_BIAS},
    [MOERT_LAYER_W2] = {BLOCK_EXPERT_OUT, EXPERT_WEIGHT},
    [MOERT_LAYER_B2] = {BLOCK_EXPERT_OUT, EXPERT_BIAS},
    [MOERT_LAYER_CORRECTION] = {BLOCKS, 0},
};

moert_buffer *moert_layer_weight(moert_layer *layer, moert_layer_tensor which) {
    const struct place *place = &places[which];
    return place->block == BLOCKS ? layer->correction
                                  : layer->block[place->block]->tensor[place->tensor].weight;
}

moert_buffer *moert_layer_gradient(moert_layer *layer, moert_layer_tensor which) {
    const struct place *place = &places[which];
    return place->block == BLOCKS ? NULL
                                  : layer->block[place->block]->tensor[place->tensor].gradient;
}

void moert_layer_weights_changed(moert_layer *layer) {
    layer->weights_changed = true;
    for (size_t i = 0; i < BLOCKS; i++)
        moert_block_weights_changed(layer->block[i]);
}

moert_block *moert_layer_block(moert_layer *layer, size_t index) {
    return index < BLOCKS ? layer->block[index] : NULL;
}

void moert_layer_give_codes(moert_layer *layer, const moert_buffer *codes) {
    layer->codes = codes;
}

const moert_routing *moert_layer_routing(const moert_layer *layer) {
    return &layer->routing;
}

size_t moert_layer_first_expert(const moert_layer *layer) {
    return layer->first_expert;
}

size_t moert_layer_local_experts(const moert_layer *layer) {
    return layer->local_experts;
}

const uint64_t *moert_layer_expert_counts(const moert_layer *layer) {
    return layer->plan != NULL ? layer->plan->plan->expert_counts : NULL;
}
