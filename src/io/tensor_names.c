/* Writes the names of a layer's tensors in released checkpoints. */
#include <stdint.h>
#include <stdio.h>

#include "io/model_config.h"

static bool is_mixtral(const moert_model_config *config) {
    return config->family == MOERT_FAMILY_MIXTRAL;
}

bool moert_experts_are_fused(const moert_model_config *config) {
    return config->family == MOERT_FAMILY_GPT_OSS;
}

void moert_moe_tensor_name(const moert_model_config *config, size_t layer, const char *suffix,
                           char *name, size_t bytes) {
    snprintf(name, bytes, "model.layers.%zu.%s.%s", layer,
             is_mixtral(config) ? "block_sparse_moe" : "mlp", suffix);
}

void moert_expert_tensor_name(const moert_model_config *config, size_t layer, size_t expert,
                              moert_expert_part part, char *name, size_t bytes) {
    static const char *const mixtral[] = {"w1", "w3", "w2"};
    static const char *const separate[] = {"gate_proj", "up_proj", "down_proj"};
    static const char *const fused[] = {"gate_up_proj", "gate_up_proj", "down_proj"};
    char suffix[64];
    if (moert_experts_are_fused(config))
        snprintf(suffix, sizeof suffix, "experts.%s", fused[part]);
    else if (expert == SIZE_MAX)
        snprintf(suffix, sizeof suffix, "shared_experts.%s.weight", separate[part]);
    else
        snprintf(suffix, sizeof suffix, "experts.%zu.%s.weight", expert,
                 is_mixtral(config) ? mixtral[part] : separate[part]);
    moert_moe_tensor_name(config, layer, suffix, name, bytes);
}
