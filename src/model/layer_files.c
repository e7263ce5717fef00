/* Reads a single MoE layer's weights from its model's files, and writes its gradients. */
#include "model/layer_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/weights.h"

moert_layer_options moert_layer_options_of(const moert_model_config *config) {
    moert_layer_options options = MOERT_LAYER_OPTIONS_INIT;
    options.hidden = config->hidden;
    options.intermediate = config->intermediate;
    options.shared_intermediate = config->shared_intermediate;
    options.router = config->router;
    options.shared_gate = config->shared_gate;
    options.glu = config->glu;
    options.router_bias = config->router_bias;
    options.correction_bias = config->correction_bias;
    options.expert_biases = config->expert_biases;
    options.precision = config->precision;
    options.recipe = config->recipe;
    options.dense = config->dense;
    options.dispatch = config->dispatch;
    options.combine = config->combine;
    options.slots = config->expert_slots;
    options.recompute_experts = config->memory.recompute == MOERT_RECOMPUTE_EXPERTS;
    return options;
}

bool moert_files_join_experts(const moert_model_config *config, const moert_tensors *files) {
    for (size_t i = 0; i < moert_tensors_count(files); i++)
        if (strstr(moert_tensors_at(files, i)->name, ".experts.gate_up_proj") != NULL)
            return moert_experts_in_files(config) == MOERT_EXPERTS_SEPARATE;
    return false;
}

typedef struct range_list {
    const moert_model_config *config;
    size_t layer;
    moert_layer_range *ranges;
    size_t count;
} range_list;

static moert_layer_range *add(range_list *list, moert_layer_tensor which, size_t rows,
                              size_t columns) {
    moert_layer_range *range = &list->ranges[list->count++];
    *range = (moert_layer_range){
        .rank = 2, .shape = {rows, columns}, .rows = rows, .columns = columns, .which = which};
    return range;
}

static void add_router(range_list *list, moert_router_part part, moert_layer_tensor which,
                       size_t rank, size_t rows, size_t columns) {
    moert_layer_range *range = add(list, which, rows, columns);
    range->rank = rank;
    if (rank == 1)
        range->shape[0] = columns;
    moert_router_tensor_name(list->config, list->layer, part, range->name);
}

/* Adds the ranges of the projections of `expert`, which is expert number `at` in the layer's
 * tensors. */
static void add_expert(range_list *list, size_t expert, size_t at) {
    const moert_model_config *c = list->config;
    const size_t hidden = c->hidden, width = c->intermediate, matrix = width * hidden;
    for (moert_expert_part part = MOERT_EXPERT_GATE; part <= MOERT_EXPERT_DOWN; part++) {
        const bool down = part == MOERT_EXPERT_DOWN;
        moert_layer_range *range = down ? add(list, MOERT_LAYER_W2, hidden, width)
                                        : add(list, MOERT_LAYER_W1, width, hidden);
        range->layer_first = moert_joined_index(at, part) * matrix;
        if (moert_experts_in_files(c) == MOERT_EXPERTS_SEPARATE) {
            moert_expert_tensor_name(c, list->layer, expert, part, range->name);
            continue;
        }
        range->rank = 3;
        range->file_first = moert_joined_index(expert, part) * matrix;
        moert_joined_tensor(c, list->layer, part, range->name, range->shape);
    }
}

static void add_shared(range_list *list) {
    const moert_model_config *c = list->config;
    for (moert_expert_part part = MOERT_EXPERT_GATE; part <= MOERT_EXPERT_DOWN; part++) {
        const bool down = part == MOERT_EXPERT_DOWN;
        moert_mlp_tensor tensor;
        moert_shared_tensor(c, list->layer, part, &tensor);
        moert_layer_range *range = add(list, down ? MOERT_LAYER_SHARED_W2 : MOERT_LAYER_SHARED_W1,
                                       tensor.rows, tensor.columns);
        snprintf(range->name, sizeof range->name, "%s", tensor.name);
        range->shape[0] = tensor.file_rows;
        range->file_first = tensor.file_first;
        range->layer_first = part == MOERT_EXPERT_UP ? tensor.rows * tensor.columns : 0;
    }
}

size_t moert_fused_tensors_of(const moert_model_config *config,
                              moert_fused_tensor tensors[MOERT_FUSED_MOST]) {
    const size_t h = config->hidden, i = config->intermediate;
    const moert_fused_tensor all[MOERT_FUSED_MOST] = {{MOERT_EXPERT_GATE, MOERT_LAYER_W1, 2 * i, h},
                                                      {MOERT_EXPERT_GATE, MOERT_LAYER_B1, 0, 2 * i},
                                                      {MOERT_EXPERT_DOWN, MOERT_LAYER_W2, h, i},
                                                      {MOERT_EXPERT_DOWN, MOERT_LAYER_B2, 0, h}};
    size_t count = 0;
    for (size_t t = 0; t < MOERT_FUSED_MOST; t++)
        if (all[t].rows > 0 || config->expert_biases)
            tensors[count++] = all[t];
    return count;
}

void moert_fused_name(const moert_model_config *config, size_t layer,
                      const moert_fused_tensor *fused, char name[MOERT_TENSOR_NAME_BYTES]) {
    size_t shape[3];
    moert_joined_tensor(config, layer, fused->part, name, shape);
    if (fused->rows == 0)
        strcat(name, "_bias");
}

/* Adds the ranges of an expert: its own tensors, or its parts of the fused tensors of all
 * experts. */
static void add_local_expert(range_list *list, size_t expert, size_t at) {
    const moert_model_config *c = list->config;
    moert_fused_tensor tensors[MOERT_FUSED_MOST];
    if (moert_experts_in_files(c) != MOERT_EXPERTS_TRANSPOSED) {
        add_expert(list, expert, at);
        return;
    }
    const size_t count = moert_fused_tensors_of(c, tensors);
    for (size_t t = 0; t < count; t++) {
        const size_t rows = tensors[t].rows, columns = tensors[t].columns;
        moert_layer_range *range = add(list, tensors[t].which, moert_max(rows, 1), columns);
        range->rank = rows > 0 ? 3 : 2;
        range->shape[0] = c->router.experts;
        range->shape[1] = columns;
        range->shape[2] = rows;
        range->transposed = rows > 0;
        range->file_first = expert * range->rows * columns;
        range->layer_first = at * range->rows * columns;
        moert_fused_name(c, list->layer, &tensors[t], range->name);
    }
}

moert_status moert_layer_ranges(const moert_model_config *config, size_t index, size_t first,
                                size_t count, moert_layer_range **ranges, size_t *range_count) {
    range_list list = {.config = config, .layer = index};
    size_t experts = config->router.experts;
    MOERT_TRY(MOERT_NEW_ARRAY(&list.ranges, 7 + 4 * count));
    add_router(&list, MOERT_ROUTER_WEIGHT, MOERT_LAYER_ROUTER, 2, experts, config->hidden);
    if (config->router_bias)
        add_router(&list, MOERT_ROUTER_BIAS, MOERT_LAYER_ROUTER_BIAS, 1, 1, experts);
    if (config->correction_bias)
        add_router(&list, MOERT_ROUTER_CORRECTION, MOERT_LAYER_CORRECTION, 1, 1, experts);
    if (config->shared_intermediate > 0)
        add_shared(&list);
    if (config->shared_gate) {
        moert_layer_range *range = add(&list, MOERT_LAYER_SHARED_GATE, 1, config->hidden);
        moert_shared_gate_name(config, index, range->name);
    }
    for (size_t e = 0; e < count; e++)
        add_local_expert(&list, first + e, e);
    *ranges = list.ranges;
    *range_count = list.count;
    return MOERT_OK;
}

moert_status moert_layer_check_files(const moert_model_config *config, const moert_tensors *files,
                                     size_t index) {
    moert_layer_range *ranges;
    moert_weight weight;
    size_t count;
    MOERT_TRY(moert_layer_ranges(config, index, 0, config->router.experts, &ranges, &count));
    moert_status status = MOERT_OK;
    if (moert_tensors_find(files, ranges[0].name) == NULL)
        status = MOERT_FAIL(ERROR_MISMATCH,
                            "layer %zu is not a MoE layer of these files: there is no tensor %s",
                            index, ranges[0].name);
    for (size_t i = 0; i < count && status == MOERT_OK; i++)
        status = moert_weight_find(files, ranges[i].name, ranges[i].rank, ranges[i].shape, &weight);
    free(ranges);
    return status;
}

/* target[columns, rows] = source[rows, columns] transposed. */
static void transpose(const float *source, size_t rows, size_t columns, float *target) {
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            target[c * rows + r] = source[r * columns + c];
}

/* Allocates memory for a range and for its transpose, one after the other. */
static moert_status alloc_range(const moert_layer_range *range, float **values) {
    return moert_alloc(values, 2 * range->rows * range->columns, sizeof **values);
}

static moert_status load_range(moert_layer *layer, const moert_layer_range *range,
                               const moert_tensors *files) {
    size_t elements = range->rows * range->columns;
    moert_weight weight;
    float *values;
    MOERT_TRY(moert_weight_find(files, range->name, range->rank, range->shape, &weight));
    MOERT_TRY(alloc_range(range, &values));
    const bool transposed = range->transposed != weight.transposed;
    moert_status status;
    MOERT_TRY_OR(done, moert_weight_read(&weight, range->file_first, elements, values));
    if (transposed)
        transpose(values, range->columns, range->rows, values + elements);
    status = moert_buffer_write(moert_layer_weight(layer, range->which),
                                range->layer_first * sizeof(float),
                                transposed ? values + elements : values, elements * sizeof(float));
done:
    free(values);
    return status;
}

moert_status moert_layer_load(moert_layer *layer, const moert_layer_range *ranges, size_t count,
                              const moert_tensors *files) {
    for (size_t i = 0; i < count; i++)
        MOERT_TRY(load_range(layer, &ranges[i], files));
    moert_layer_weights_changed(layer);
    return MOERT_OK;
}

static moert_status put_gradient(const moert_buffer *gradient, const moert_layer_range *range,
                                 moert_tensor_writer *writer) {
    size_t elements = range->rows * range->columns;
    char name[sizeof range->name + 8];
    float *values;
    snprintf(name, sizeof name, "grad.%s", range->name);
    MOERT_TRY(alloc_range(range, &values));
    moert_status status;
    MOERT_TRY_OR(done, moert_buffer_read(gradient, range->layer_first * sizeof(float), values,
                                         elements * sizeof(float)));
    if (range->transposed)
        transpose(values, range->rows, range->columns, values + elements);
    status = moert_writer_put(writer, name, range->file_first, elements,
                              range->transposed ? values + elements : values);
done:
    free(values);
    return status;
}

moert_status moert_layer_put_gradients(moert_layer *layer, const moert_layer_range *ranges,
                                       size_t count, bool replicated, moert_tensor_writer *writer) {
    for (size_t i = 0; i < count; i++) {
        moert_layer_tensor which = ranges[i].which;
        bool of_expert = which == MOERT_LAYER_W1 || which == MOERT_LAYER_W2 ||
                         which == MOERT_LAYER_B1 || which == MOERT_LAYER_B2;
        const moert_buffer *gradient = moert_layer_gradient(layer, which);
        if (gradient != NULL && (of_expert || replicated))
            MOERT_TRY(put_gradient(gradient, &ranges[i], writer));
    }
    return MOERT_OK;
}
