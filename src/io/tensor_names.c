/* Writes the names of a layer's tensors in released checkpoints. */
#include <stdint.h>
#include <stdio.h>

#include "io/families.h"

static const moert_tensor_names *names_of(const moert_model_config *config) {
    return &moert_family_of(config->family)->names;
}

bool moert_experts_are_fused(const moert_model_config *config) {
    return names_of(config)->fused;
}

/* The name of a layer's MLP. */
static const char *mlp_of(const moert_model_config *config) {
    return config->joined_experts ? "mlp" : names_of(config)->mlp;
}

void moert_moe_tensor_name(const moert_model_config *config, size_t layer, const char *suffix,
                           char *name, size_t bytes) {
    snprintf(name, bytes, "model.layers.%zu.%s.%s", layer, mlp_of(config), suffix);
}

void moert_router_tensor_name(const moert_model_config *config, size_t layer,
                              moert_router_part part, char *name, size_t bytes) {
    moert_moe_tensor_name(config, layer, names_of(config)->router[part], name, bytes);
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
    const moert_tensor_names *names = names_of(config);
    char suffix[64];
    if (names->fused)
        snprintf(suffix, sizeof suffix, "experts.%s", names->projections[part]);
    else if (expert == SIZE_MAX)
        snprintf(suffix, sizeof suffix, "%s.%s.weight", names->shared, names->projections[part]);
    else
        snprintf(suffix, sizeof suffix, "experts.%zu.%s.weight", expert, names->projections[part]);
    moert_moe_tensor_name(config, layer, suffix, name, bytes);
}

void moert_dense_tensor_name(const moert_model_config *config, size_t layer, moert_expert_part part,
                             char *name, size_t bytes) {
    char suffix[64];
    snprintf(suffix, sizeof suffix, "%s.weight", names_of(config)->projections[part]);
    moert_moe_tensor_name(config, layer, suffix, name, bytes);
}
