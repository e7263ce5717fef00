/* Writes the names of a layer's tensors in released checkpoints. */
#include <stdint.h>
#include <stdio.h>

#include "io/families.h"

bool moert_experts_are_fused(const moert_model_config *config) {
    return moert_family_of(config->family)->fused;
}

/* The name of a layer's MLP. */
static const char *mlp_of(const moert_model_config *config) {
    return config->joined_experts ? "mlp" : moert_family_of(config->family)->mlp;
}

void moert_moe_tensor_name(const moert_model_config *config, size_t layer, const char *suffix,
                           char *name, size_t bytes) {
    snprintf(name, bytes, "model.layers.%zu.%s.%s", layer, mlp_of(config), suffix);
}

void moert_router_tensor_name(const moert_model_config *config, size_t layer, const char *suffix,
                              char *name, size_t bytes) {
    snprintf(name, bytes, "model.layers.%zu.%s.%s.%s", layer, mlp_of(config),
             moert_family_of(config->family)->router, suffix);
}

void moert_joined_tensor(const moert_model_config *config, size_t layer, moert_expert_part part,
                         char *name, size_t bytes, size_t shape[3]) {
    const bool down = part == MOERT_EXPERT_DOWN;
    moert_moe_tensor_name(config, layer, down ? "experts.down_proj" : "experts.gate_up_proj", name,
                          bytes);
    shape[0] = config->router.experts;
    shape[1] = down ? config->hidden : 2 * config->intermediate;
    shape[2] = down ? config->intermediate : config->hidden;
}

size_t moert_joined_index(size_t expert, moert_expert_part part) {
    return part == MOERT_EXPERT_DOWN ? expert : 2 * expert + (part == MOERT_EXPERT_UP);
}

void moert_expert_tensor_name(const moert_model_config *config, size_t layer, size_t expert,
                              moert_expert_part part, char *name, size_t bytes) {
    const moert_family_row *row = moert_family_of(config->family);
    char suffix[64];
    if (row->fused)
        snprintf(suffix, sizeof suffix, "experts.%s", row->projections[part]);
    else if (expert == SIZE_MAX)
        snprintf(suffix, sizeof suffix, "%s.%s.weight", row->shared, row->projections[part]);
    else
        snprintf(suffix, sizeof suffix, "experts.%zu.%s.weight", expert, row->projections[part]);
    moert_moe_tensor_name(config, layer, suffix, name, bytes);
}

void moert_dense_tensor_name(const moert_model_config *config, size_t layer, moert_expert_part part,
                             char *name, size_t bytes) {
    char suffix[64];
    snprintf(suffix, sizeof suffix, "%s.weight",
             moert_family_of(config->family)->projections[part]);
    moert_moe_tensor_name(config, layer, suffix, name, bytes);
}
