/* Lists the model's tensors with their names in its files, and reads their values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/elements.h"
#include "io/weights.h"
#include "model/file_runs.h"
#include "model/layer_files.h"
#include "model/sublayer.h"

/* Number of floats read at once; they fit into the CPU's cache. */
enum { PIECE = MOERT_PIECE_BYTES / sizeof(float) };

static moert_model_tensor *add(moert_model *model, size_t rank, size_t rows, size_t columns) {
    moert_model_tensor *tensor = &model->tensor[model->tensor_count++];
    *tensor = (moert_model_tensor){.rank = rank,
                                   .layer = model->config.layers,
                                   .shape = {rows, columns},
                                   .elements = rank == 2 ? rows * columns : rows,
                                   .replicated = true,
                                   .is_matrix = rank == 2};
    return tensor;
}

/* Adds tensor `index` of a block, unless it is empty. */
static void add_whole(moert_model *model, moert_block *block, size_t index, const char *name,
                      const moert_model_parameter *p) {
    if (block->tensor[index].elements == 0)
        return;
    moert_model_tensor *tensor =
        add(model, p->columns > 0 ? 2 : 1, p->rows, moert_max(p->columns, 1));
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    tensor->initial = p->initial;
    tensor->is_fixed = p->is_fixed;
    tensor->block = block;
    tensor->offset = block->tensor[index].offset;
}

/* Adds tensor `index` of the block outside of the layers. The tensor's shape is [rows,H], or [H]
 * for a norm (rows 0). */
static void add_outer(moert_model *model, size_t index, const char *name, size_t rows) {
    const size_t h = model->config.hidden;
    const moert_model_parameter p = {.rows = rows > 0 ? rows : h,
                                     .columns = rows > 0 ? h : 0,
                                     .initial =
                                         rows > 0 ? MOERT_INITIAL_NORMAL : MOERT_INITIAL_ONES};
    add_whole(model, model->outer, index, name, &p);
}

/* Adds a norm of a layer, if the layer has it. */
static void add_norm(moert_model *model, size_t index, moert_norm_place place) {
    moert_block *block = model->layer[index].attention;
    const moert_model_parameter p = {.suffix = moert_norm_name(&model->config, index, place),
                                     .rows = model->config.hidden,
                                     .initial = MOERT_INITIAL_ONES};
    char name[MOERT_TENSOR_NAME_BYTES];
    if (p.suffix == NULL)
        return;
    moert_layer_tensor_name(index, p.suffix, name);
    add_whole(model, block, moert_model_norm_at(block, place), name, &p);
}

/* Adds the norms and the attention of a layer. */
static void add_attention(moert_model *model, size_t index) {
    const moert_attention_shape *attention = &model->attention;
    char name[MOERT_TENSOR_NAME_BYTES];
    add_norm(model, index, MOERT_NORM_ATTENTION);
    for (size_t i = 0; i < attention->parameters; i++) {
        moert_layer_tensor_name(index, attention->parameter[i].suffix, name);
        add_whole(model, model->layer[index].attention, MOERT_ATTENTION_FIRST + i, name,
                  &attention->parameter[i]);
    }
    for (moert_norm_place place = MOERT_NORM_MLP; place < MOERT_NORMS; place++)
        add_norm(model, index, place);
}

/* Adds a projection of a dense GLU, in tensors `first` (gate, then up) and first + 1 of a block. */
static void add_projection(moert_model *model, moert_block *block, size_t first,
                           moert_expert_part part, const moert_mlp_tensor *projection) {
    moert_model_tensor *tensor = add(model, 2, projection->rows, projection->columns);
    snprintf(tensor->name, sizeof tensor->name, "%s", projection->name);
    tensor->shape[0] = projection->file_rows;
    tensor->file_first = projection->file_first;
    tensor->block = block;
    tensor->offset = block->tensor[part == MOERT_EXPERT_DOWN ? first + 1 : first].offset;
    if (part == MOERT_EXPERT_UP)
        tensor->offset += tensor->elements;
}

static void add_dense(moert_model *model, size_t index) {
    for (moert_expert_part part = MOERT_EXPERT_GATE; part <= MOERT_EXPERT_DOWN; part++) {
        moert_mlp_tensor projection;
        moert_dense_tensor(&model->config, index, part, &projection);
        add_projection(model, model->layer[index].mlp, 0, part, &projection);
    }
}

/* Sets the owner of an expert's tensor, and the offset of the expert's slot in the owner's block. A
 * slot has `stride` floats. On other ranks the tensor's block is NULL. */
static void give_to_owner(const moert_model *model, const moert_layer *moe, size_t expert,
                          size_t stride, moert_model_tensor *tensor) {
    const moert_expert_map *placement = moert_layer_placement(moe);
    tensor->replicated = false;
    tensor->owner = placement->rank[expert];
    tensor->offset += placement->slot[expert] * stride;
    if (tensor->owner != moert_comm_rank(model->mesh->experts))
        tensor->block = NULL;
}

/* Adds one projection of one expert. The rank that owns the expert holds the projection in rows of
 * W1 (gate, then up) or W2 of a block. */
static void add_expert(moert_model *model, size_t index, size_t expert, moert_expert_part part) {
    const moert_model_config *c = &model->config;
    moert_layer *moe = model->layer[index].moe;
    bool down = part == MOERT_EXPERT_DOWN;
    moert_model_tensor *tensor = down ? add(model, 2, c->hidden, c->intermediate)
                                      : add(model, 2, c->intermediate, c->hidden);
    moert_expert_tensor_name(c, index, expert, part, tensor->name);
    tensor->block = moert_layer_block(moe, down ? 2 : 1);
    tensor->offset = tensor->block->tensor[0].offset;
    give_to_owner(model, moe, expert, tensor->elements * (down ? 1 : 2), tensor);
    if (part == MOERT_EXPERT_UP)
        tensor->offset += tensor->elements;
}

/* Adds part `p` of `parts` (gate and up, or all rows) of expert `e` in a fused tensor. */
static void add_fused_part(moert_model *model, size_t index, const moert_fused_tensor *fused,
                           size_t e, size_t p, size_t parts) {
    const size_t rows = fused->rows, columns = fused->columns, own = rows / parts,
                 whole = moert_max(rows, 1) * columns;
    moert_layer *moe = model->layer[index].moe;
    const bool in = fused->which == MOERT_LAYER_W1 || fused->which == MOERT_LAYER_B1;
    moert_model_tensor *tensor = &model->tensor[model->tensor_count++];
    *tensor =
        (moert_model_tensor){.rank = rows > 0 ? 3 : 2,
                             .shape = {model->config.router.experts, columns, rows},
                             .elements = moert_max(own, 1) * columns,
                             .file_first = e * whole + p * own,
                             .transposed = rows > 0,
                             .is_matrix = rows > 0,
                             .initial = rows > 0 ? MOERT_INITIAL_NORMAL : MOERT_INITIAL_ZEROS};
    moert_fused_name(&model->config, index, fused, tensor->name);
    tensor->block = moert_layer_block(moe, in ? 1 : 2);
    tensor->offset =
        tensor->block->tensor[rows > 0 ? 0 : 1].offset + p * tensor->elements; /* weight or bias */
    give_to_owner(model, moe, e, whole, tensor);
}

/* Adds the parts of a fused tensor for all experts. */
static void add_fused(moert_model *model, size_t index, const moert_fused_tensor *fused) {
    const bool divided = fused->which == MOERT_LAYER_W1 && !model->config.glu.interleaved;
    for (size_t e = 0; e < model->config.router.experts; e++)
        for (size_t p = 0, parts = divided ? 2 : 1; p < parts; p++)
            add_fused_part(model, index, fused, e, p, parts);
}

/* Adds a projection of an expert whose files have joined experts. */
static void add_joined(moert_model *model, size_t index, size_t expert, moert_expert_part part) {
    add_expert(model, index, expert, part);
    moert_model_tensor *tensor = &model->tensor[model->tensor_count - 1];
    tensor->rank = 3;
    tensor->file_first = tensor->elements * moert_joined_index(expert, part);
    moert_joined_tensor(&model->config, index, part, tensor->name, tensor->shape);
}

/* Adds the tensors of all experts, in the order of the files. */
static void add_experts(moert_model *model, size_t index) {
    const moert_model_config *c = &model->config;
    const moert_expert_files files = moert_experts_in_files(c);
    const size_t experts = c->router.experts;
    moert_fused_tensor fused[MOERT_FUSED_MOST];
    if (files == MOERT_EXPERTS_TRANSPOSED) {
        const size_t count = moert_fused_tensors_of(c, fused);
        for (size_t t = 0; t < count; t++)
            add_fused(model, index, &fused[t]);
    } else if (files == MOERT_EXPERTS_JOINED) {
        for (size_t i = 0; i < 2 * experts; i++)
            add_joined(model, index, i / 2, i % 2 == 0 ? MOERT_EXPERT_GATE : MOERT_EXPERT_UP);
        for (size_t e = 0; e < experts; e++)
            add_joined(model, index, e, MOERT_EXPERT_DOWN);
    } else {
        for (size_t e = 0; e < experts; e++)
            for (int part = MOERT_EXPERT_GATE; part <= MOERT_EXPERT_DOWN; part++)
                add_expert(model, index, e, (moert_expert_part)part);
    }
}

/* Sets `file` of each tensor to the index of the file's tensor that contains it. */
static void number_files(moert_model *model) {
    model->file_tensor_count = 0;
    for (size_t i = 0; i < model->tensor_count; i++) {
        moert_model_tensor *tensor = &model->tensor[i];
        /* a tensor with file_first 0 is the start of the next tensor of the files */
        model->file_tensor_count += tensor->file_first == 0;
        tensor->file = model->file_tensor_count - 1;
    }
}

/* Adds the replicated tensors of a MoE layer's MLP. */
static void add_router(moert_model *model, size_t index) {
    const moert_model_config *c = &model->config;
    moert_block *block = moert_layer_block(model->layer[index].moe, 0);
    const size_t e = c->router.experts;
    const moert_model_parameter tensors[MOERT_ROUTER_PARTS] = {
        [MOERT_ROUTER_WEIGHT] = {NULL, e, c->hidden, MOERT_INITIAL_NORMAL, false},
        [MOERT_ROUTER_BIAS] = {NULL, e, 0, MOERT_INITIAL_NORMAL, true},
        [MOERT_ROUTER_CORRECTION] = {NULL, e, 0, MOERT_INITIAL_ZEROS, false}};
    char name[MOERT_TENSOR_NAME_BYTES];
    for (size_t i = 0; i < MOERT_ROUTER_PARTS; i++) {
        if (block->tensor[i].elements == 0)
            continue;
        moert_router_tensor_name(c, index, (moert_router_part)i, name);
        add_whole(model, block, i, name, &tensors[i]);
    }
    if (c->correction_bias)
        model->tensor[model->tensor_count - 1].is_fixed = true;
    for (moert_expert_part part = MOERT_EXPERT_GATE;
         c->shared_intermediate > 0 && part <= MOERT_EXPERT_DOWN; part++) {
        moert_mlp_tensor projection;
        moert_shared_tensor(c, index, part, &projection);
        add_projection(model, block, MOERT_ROUTER_PARTS, part, &projection);
    }
    if (c->shared_gate) {
        moert_shared_gate_name(c, index, name);
        add_whole(model, block, MOERT_ROUTER_PARTS + 2, name,
                  &(moert_model_parameter){.rows = 1, .columns = c->hidden});
    }
}

static void fill_tensors(moert_model *model) {
    const moert_model_config *c = &model->config;
    model->tensor_count = 0;
    add_outer(model, OUTER_EMBED, "model.embed_tokens.weight", c->vocabulary);
    for (size_t i = 0; i < c->layers; i++) {
        const size_t first = model->tensor_count;
        add_attention(model, i);
        if (model->layer[i].is_dense) {
            add_dense(model, i);
        } else {
            add_router(model, i);
            add_experts(model, i);
        }
        for (size_t t = first; t < model->tensor_count; t++)
            model->tensor[t].layer = i;
    }
    add_outer(model, OUTER_NORM, "model.norm.weight", 0);
    add_outer(model, OUTER_HEAD, "lm_head.weight", c->vocabulary);
    number_files(model);
}

moert_status moert_model_list_tensors(moert_model *model) {
    const moert_model_config *c = &model->config;
    MOERT_TRY(MOERT_NEW_ARRAY(&model->tensor,
                              OUTER_TENSORS + c->layers * (MOERT_ATTENTION_TENSORS + 8 +
                                                           MOERT_FUSED_MOST * c->router.experts)));
    fill_tensors(model);
    return MOERT_OK;
}

void moert_model_join_experts(moert_model *model, bool joined) {
    model->config.joined_experts = joined;
    fill_tensors(model);
}

const moert_expert_map *moert_model_placement(const moert_model *model, size_t layer) {
    return moert_layer_placement(model->moe[layer]->moe);
}

moert_status moert_model_place(moert_model *model, size_t layer, const uint32_t *expert) {
    MOERT_TRY(moert_layer_place(model->moe[layer]->moe, expert));
    fill_tensors(model);
    return MOERT_OK;
}

size_t moert_model_tensor_count(const moert_model *model) {
    return model->tensor_count;
}

size_t moert_model_file_tensor_count(const moert_model *model) {
    return model->file_tensor_count;
}

const moert_model_tensor *moert_model_tensors(const moert_model *model) {
    return model->tensor;
}

moert_model_range moert_model_shard(const moert_model_tensor *tensor) {
    size_t first;
    if (tensor->block == NULL)
        return (moert_model_range){0, 0};
    const size_t end = moert_block_shard(tensor->block, &first) + first;
    const size_t from = moert_max(first, tensor->offset),
                 to = moert_min(end, tensor->offset + tensor->elements);
    return from < to ? (moert_model_range){from - tensor->offset, to - from}
                     : (moert_model_range){0, 0};
}

moert_status moert_model_read_values(const moert_tensors *files, const char *name,
                                     const moert_model_tensor *tensor, moert_model_range range,
                                     const moert_elements *target) {
    moert_weight source;
    float *values;
    MOERT_TRY(moert_weight_find(files, name, tensor->rank, tensor->shape, &source));
    if (range.count == 0)
        return MOERT_OK;
    const bool transposed = tensor->transposed != source.transposed;
    /* number of values that are collected in the model's order; 0 if the tensor is not transposed,
     * since its values are then written piece by piece */
    const size_t whole = transposed ? range.count : 0;
    MOERT_TRY(moert_alloc(&values, whole + moert_min(range.count, PIECE), sizeof *values));
    float *piece = values + whole;
    moert_status status = MOERT_OK;
    moert_file_runs runs = moert_file_runs_of(tensor, range, transposed);
    while (moert_file_runs_next(&runs, PIECE)) {
        MOERT_TRY_OR(done, moert_weight_read(&source, runs.first, runs.count, piece));
        if (transposed)
            moert_file_runs_scatter(&runs, piece, values);
        else
            MOERT_TRY_OR(done, moert_elements_write(target, runs.done, runs.count, piece));
    }
    if (transposed)
        status = moert_elements_write(target, 0, whole, values);
done:
    free(values);
    return status;
}

void moert_model_weights_changed(moert_model *model) {
    moert_block_weights_changed(model->outer);
    for (size_t i = 0; i < model->config.layers; i++) {
        moert_block_weights_changed(model->layer[i].attention);
        moert_model_mlp_of(&model->layer[i])->weights_changed(&model->layer[i]);
    }
}

void moert_model_repeat(moert_model *model, bool repeats) {
    for (size_t b = 0; b < model->blocks; b++)
        moert_block_repeat(model->block[b], repeats);
}
