/* Writes the names of a layer's tensors in released checkpoints. */
#include <stdint.h>
#include <stdio.h>

#include "io/families.h"

bool moert_experts_are_fused(const moert_model_config *config) {
    return moert_family_of(config->family)->fused;
}

void moert_moe_tensor_name(const moert_model_config *config, size_t layer, const char *suffix,
                           char *name, size_t bytes) {
    snprintf(name, bytes, "model.layers.%zu.%s.%s", layer, moert_family_of(config->family)->mlp,
             suffix);
}

void moert_router_tensor_name(const moert_model_config *config, size_t layer, const char *suffix,
                              char *name, size_t bytes) {
    const moert_family_row *row = moert_family_of(config->family);
    snprintf(name, bytes, "model.layers.%zu.%s.%s.%s", layer, row->mlp, row->router, suffix);
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
