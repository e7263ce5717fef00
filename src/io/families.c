/* The table of model families. */
#include "io/families.h"

#include <string.h>

#define ROUTER(score, renormalise, scale, groups, kept)                                            \
    { sizeof(moert_router_options), 0, 0, MOERT_SCORE_##score, renormalise, scale, groups, kept, 2 }

/* clang-format off */
/* Names of the MLP, the router, gate, up, down and the shared expert; whether the experts' tensors
 * are fused. */
#define MIXTRAL_NAMES    "block_sparse_moe", "gate", {"w1", "w3", "w2"}, NULL, false
#define SEPARATE(shared) "mlp", "gate", {"gate_proj", "up_proj", "down_proj"}, shared, false
#define FUSED            "mlp", "router", {"gate_up_proj", "gate_up_proj", "down_proj"}, NULL, true

/* One row of the table. The last arguments initialise fields of moert_family_row.standard. */
#define FAMILY(id, keys, type, architecture, output_bias, windows, names, ...)                     \
    [MOERT_FAMILY_##id] = {MOERT_FAMILY_##keys, type, architecture, output_bias,                   \
                           MOERT_WINDOW_##windows, names, {__VA_ARGS__}}
/* clang-format on */

static const moert_family_row rows[MOERT_FAMILIES] = {
    FAMILY(MIXTRAL, MIXTRAL, "mixtral", "MixtralForCausalLM", false, ALL, MIXTRAL_NAMES,
           .max_positions = 131072, .norm_epsilon = 1e-5f, .rope = {.theta = 1e6},
           .aux_coefficient = 0.001f, .router = ROUTER(SOFTMAX, true, 1.0f, 1, 1),
           .glu = MOERT_GLU_SWIGLU),
    FAMILY(QWEN3_MOE, QWEN3_MOE, "qwen3_moe", "Qwen3MoeForCausalLM", true, SWITCHED, SEPARATE(NULL),
           .max_positions = 32768, .norm_epsilon = 1e-6f, .rope = {.theta = 1e4},
           .aux_coefficient = 0.001f, .qk_norm = true, .router = ROUTER(SOFTMAX, false, 1.0f, 1, 1),
           .glu = MOERT_GLU_SWIGLU),
    FAMILY(OLMOE, OLMOE, "olmoe", "OlmoeForCausalLM", true, ALL, SEPARATE(NULL),
           .max_positions = 4096, .norm_epsilon = 1e-5f, .rope = {.theta = 1e4},
           .aux_coefficient = 0.01f, .qk_norm = true, .qk_norm_whole = true,
           .router = ROUTER(SOFTMAX, false, 1.0f, 1, 1), .glu = MOERT_GLU_SWIGLU),
    FAMILY(DEEPSEEK_V3, DEEPSEEK_V3, "deepseek_v3", "DeepseekV3ForCausalLM", true, ALL,
           SEPARATE("shared_experts"), .max_positions = 4096, .kv_heads = 128,
           .norm_epsilon = 1e-6f, .rope = {.theta = 1e4, .interleaved = true},
           .latent = {1536, 512, 128, 64, 128}, .router = ROUTER(SIGMOID, true, 2.5f, 8, 4),
           .correction_bias = true, .shared_experts = 1, .first_dense = 3, .glu = MOERT_GLU_SWIGLU),
    FAMILY(GPT_OSS, GPT_OSS, "gpt_oss", "GptOssForCausalLM", true, EVEN, FUSED, .head_size = 64,
           .max_positions = 131072, .norm_epsilon = 1e-5f,
           .rope = {.type = MOERT_ROPE_YARN, .theta = 150000.0, .factor = 32.0, .original = 4096},
           .aux_coefficient = 0.001f, .attention_bias = true, .sinks = true, .sliding_window = 128,
           .router = ROUTER(SOFTMAX_TOPK, false, 1.0f, 1, 1), .router_bias = true,
           .expert_biases = true, .glu = MOERT_GLU_GPT_OSS),
    FAMILY(QWEN2_MOE, QWEN2_MOE, "qwen2_moe", "Qwen2MoeForCausalLM", false, FIRST,
           SEPARATE("shared_expert"), .max_positions = 32768, .norm_epsilon = 1e-6f,
           .rope = {.theta = 1e4}, .aux_coefficient = 0.001f, .attention_bias = true,
           .sliding_window = 4096, .shared_intermediate = 5632, .shared_gate = true,
           .router = ROUTER(SOFTMAX, false, 1.0f, 1, 1), .glu = MOERT_GLU_SWIGLU),
    FAMILY(GLM4_MOE, GLM4_MOE, "glm4_moe", "Glm4MoeForCausalLM", false, ALL,
           SEPARATE("shared_experts"), .max_positions = 131072, .norm_epsilon = 1e-5f,
           .rope = {.theta = 1e4}, .partial_rotary = 0.5f,
           .router = ROUTER(SIGMOID, true, 1.0f, 1, 1), .correction_bias = true,
           .shared_experts = 1, .first_dense = 1, .glu = MOERT_GLU_SWIGLU),
    FAMILY(DEEPSEEK_V2, DEEPSEEK_V2, "deepseek_v2", "DeepseekV2ForCausalLM", true, ALL,
           SEPARATE("shared_experts"), .max_positions = 2048, .kv_heads = 32, .norm_epsilon = 1e-6f,
           .rope = {.theta = 1e4, .interleaved = true}, .latent = {1536, 512, 128, 64, 128},
           .router = ROUTER(SOFTMAX, false, 1.0f, 1, 1), .shared_experts = 2,
           .glu = MOERT_GLU_SWIGLU),
};

const moert_family_row *moert_family_of(moert_family family) {
    return &rows[family];
}

moert_family moert_family_find(const char *model_type) {
    moert_family family = 0;
    while (family < MOERT_FAMILIES && strcmp(rows[family].model_type, model_type) != 0)
        family++;
    return family;
}
