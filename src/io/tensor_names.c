/* Writes the names of a layer's tensors in files. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "io/families.h"

static const moert_tensor_names *names_of(const moert_model_config *config) {
    const moert_family_row *row = moert_family_of(config->family);
    return config->joined_experts && row->joined != NULL ? row->joined : &row->names;
}

moert_expert_files moert_experts_in_files(const moert_model_config *config) {
    const moert_expert_files files = moert_family_of(config->family)->names.files;
    return config->joined_experts ? MOERT_EXPERTS_JOINED : files;
}

const char *moert_norm_name(const moert_model_config *config, size_t layer,
                            moert_norm_place place) {
    const moert_family_row *row = moert_family_of(config->family);
    const bool all = row->norms[0] == NULL && row->norms[1] == NULL && row->norms[2] == NULL;
    static const char *const usual[MOERT_NORMS] = {"input_layernorm.weight",
                                                   "post_attention_layernorm.weight", NULL, NULL};
    if (place == MOERT_NORM_MLP_RESULT && row->sparse_result_norm &&
        !moert_layer_is_moe(config, layer))
        return NULL;
    return (all ? usual : row->norms)[place];
}

const char *moert_head_norm_name(const moert_model_config *config, bool k) {
    static const char *const usual[] = {"self_attn.q_norm.weight", "self_attn.k_norm.weight"};
    const moert_family_row *row = moert_family_of(config->family);
    return row->head_norms[0] != NULL ? row->head_norms[k] : usual[k];
}

bool moert_norms_are_alike(const moert_model_config *config) {
    return !moert_family_of(config->family)->sparse_result_norm ||
           !moert_layer_set_any(&config->dense_layers);
}

void moert_layer_tensor_name(size_t layer, const char *suffix, char name[MOERT_TENSOR_NAME_BYTES]) {
    snprintf(name, MOERT_TENSOR_NAME_BYTES, "model.layers.%zu.%s", layer, suffix);
}

void moert_router_tensor_name(const moert_model_config *config, size_t layer,
                              moert_router_part part, char name[MOERT_TENSOR_NAME_BYTES]) {
    moert_layer_tensor_name(layer, names_of(config)->router[part], name);
}

void moert_shared_gate_name(const moert_model_config *config, size_t layer,
                            char name[MOERT_TENSOR_NAME_BYTES]) {
    moert_layer_tensor_name(layer, names_of(config)->shared_gate, name);
}

void moert_joined_tensor(const moert_model_config *config, size_t layer, moert_expert_part part,
                         char name[MOERT_TENSOR_NAME_BYTES], size_t shape[3]) {
    const moert_tensor_names *names = names_of(config);
    const bool down = part == MOERT_EXPERT_DOWN;
    snprintf(name, MOERT_TENSOR_NAME_BYTES, "model.layers.%zu.%s.%s", layer, names->experts,
             names->joined[down]);
    shape[0] = config->router.experts;
    shape[1] = down ? config->hidden : 2 * config->intermediate;
    shape[2] = down ? config->intermediate : config->hidden;
}

size_t moert_joined_index(size_t expert, moert_expert_part part) {
    return part == MOERT_EXPERT_DOWN ? expert : 2 * expert + (part == MOERT_EXPERT_UP);
}

void moert_expert_tensor_name(const moert_model_config *config, size_t layer, size_t expert,
                              moert_expert_part part, char name[MOERT_TENSOR_NAME_BYTES]) {
    const moert_tensor_names *names = names_of(config);
    snprintf(name, MOERT_TENSOR_NAME_BYTES, "model.layers.%zu.%s.%zu.%s.weight", layer,
             names->experts, expert, names->parts[part]);
}

/* Sets the name and range of a projection of the MLP `mlp` of width I. */
static void mlp_tensor(const moert_model_config *config, size_t layer, const char *mlp,
                       size_t width, moert_expert_part part, moert_mlp_tensor *tensor) {
    const char *const *parts = names_of(config)->shared_parts;
    const bool down = part == MOERT_EXPERT_DOWN, both = !down && strcmp(parts[0], parts[1]) == 0;
    const size_t rows = down ? config->hidden : width, columns = down ? width : config->hidden;
    snprintf(tensor->name, sizeof tensor->name, "model.layers.%zu.%s.%s.weight", layer, mlp,
             parts[part]);
    tensor->rows = rows;
    tensor->columns = columns;
    tensor->file_rows = both ? 2 * rows : rows;
    tensor->file_first = both && part == MOERT_EXPERT_UP ? rows * columns : 0;
}

void moert_shared_tensor(const moert_model_config *config, size_t layer, moert_expert_part part,
                         moert_mlp_tensor *tensor) {
    mlp_tensor(config, layer, names_of(config)->shared, config->shared_intermediate, part, tensor);
}

void moert_dense_tensor(const moert_model_config *config, size_t layer, moert_expert_part part,
                        moert_mlp_tensor *tensor) {
    mlp_tensor(config, layer, names_of(config)->dense, config->dense_intermediate, part, tensor);
}
