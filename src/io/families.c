/* The table of model families. Defaults are those of Hugging Face's transformers 5. */
#include "io/families.h"

#include <string.h>

#include "base/memory.h"

#define ROUTER(score, renormalise)                                                                 \
    { sizeof(moert_router_options), 0, 0, MOERT_SCORE_##score, renormalise, 1.0f, 1, 1, 2 }
#define SWIGLU .glu = MOERT_GLU_SWIGLU

/* clang-format off */
#define W123      .projections = {"w1", "w3", "w2"}
#define GATE_UP   .projections = {"gate_proj", "up_proj", "down_proj"}
#define ROUTER_NAMES(name)                                                                         \
    { name ".weight", name ".bias", name ".e_score_correction_bias" }
#define SEPARATE  .mlp = "mlp", .router = ROUTER_NAMES("gate"), GATE_UP
/* ---- groups of keys ---- */

/* the number of experts, under the names of transformers and of released models */
#define LOCAL_EXPERTS  "num_local_experts|num_experts|n_routed_experts=num_experts "
#define EXPERTS        "num_experts|num_local_experts|n_routed_experts=num_experts "
#define ROUTED_EXPERTS "n_routed_experts|num_experts|num_local_experts=num_experts "
/* the size of experts, in families that have no other MLPs; or beside that of dense layers */
#define EXPERT_SIZE       "intermediate_size/moe_intermediate_size=moe_intermediate_size "
#define MLP_SIZES "moe_intermediate_size/intermediate_size=moe_intermediate_size intermediate_size "
#define SHARED_EXPERTS    "n_shared_experts|num_shared_experts=n_shared_experts"
#define PREDICTION_LAYERS "num_nextn_predict_layers|num_mtp_layers=num_nextn_predict_layers?:0 "
#define SPARSE_LAYERS     "decoder_sparse_step:1 mlp_only_layers? "
#define AUXILIARY_LOSS    "router_aux_loss_coef:0.001 "
/* how a router with sigmoid scores and a correction bias chooses experts */
#define CORRECTED_SCORES                                                                           \
    "norm_topk_prob:true n_group:1 topk_group:1 routed_scaling_factor:1 scoring_func!sigmoid "     \
    "topk_method!noaux_tc "
#define LATENT_ATTENTION                                                                           \
    "kv_lora_rank:512 q_lora_rank~:1536 qk_nope_head_dim:128 qk_rope_head_dim:64 v_head_dim?:128 " \
    "attention_bias:false head_dim? num_key_value_heads~ "
/* what configs of DeepSeek's families may leave open */
#define DEEPSEEK_NULLS "attention_dropout?!0 pretraining_tp?!1 n_group~:1 topk_group?:1 "
#define DEEPSEEK_V3                                                                                \
    ROUTED_EXPERTS MLP_SIZES CORRECTED_SCORES LATENT_ATTENTION DEEPSEEK_NULLS PREDICTION_LAYERS    \
        "norm_topk_prob?:true routed_scaling_factor:2.5 n_group~:8 topk_group?:4 "                 \
        "num_key_value_heads~:128 max_position_embeddings:4096 rms_norm_eps:1e-6 rope_theta?:1e4 " \
        "rope_interleave?:true first_k_dense_replace?:3 " SHARED_EXPERTS ":1 "
#define LATENT_SETTINGS .router = ROUTER(SIGMOID, true), .correction_bias = true, SWIGLU

static const moert_family_row rows[] = {
    {"mixtral", "MixtralForCausalLM",
     .keys = LOCAL_EXPERTS EXPERT_SIZE AUXILIARY_LOSS
     "head_dim? max_position_embeddings:131072 rms_norm_eps:1e-5 rope_theta?:1e6 sliding_window? "
     "router_jitter_noise!0",
     .names = {.mlp = "block_sparse_moe", .router = ROUTER_NAMES("gate"), W123},
     .standard = {.router = ROUTER(SOFTMAX, true), SWIGLU}},
    {"qwen3_moe", "Qwen3MoeForCausalLM",
     .keys = LOCAL_EXPERTS MLP_SIZES SPARSE_LAYERS AUXILIARY_LOSS
     "norm_topk_prob:false attention_bias:false use_sliding_window max_window_layers* "
     "max_position_embeddings:32768 rms_norm_eps:1e-6 "
     "rope_theta?:1e4 sliding_window? "
     /* Qwen3-Coder's configs repeat what holds for all models of the family */
     "qkv_bias!0 shared_expert_intermediate_size!0 use_qk_norm!1",
     .names = {SEPARATE}, .windows = MOERT_WINDOW_SWITCHED, .output_bias = true,
     .standard = {.qk_norm = true, .router = ROUTER(SOFTMAX, false), SWIGLU}},
    {"olmoe", "OlmoeForCausalLM",
     .keys = EXPERTS EXPERT_SIZE
     "router_aux_loss_coef:0.01 norm_topk_prob:false attention_bias:false clip_qkv? head_dim? "
     "max_position_embeddings:4096 num_key_value_heads~ pad_token_id?:1 rms_norm_eps:1e-5 "
     "rope_theta?:1e4",
     .names = {SEPARATE}, .output_bias = true,
     .standard =
         {.qk_norm = true, .qk_norm_whole = true, .router = ROUTER(SOFTMAX, false), SWIGLU}},
    {"deepseek_v3", "DeepseekV3ForCausalLM", .alias = "kimi_k2", .keys = DEEPSEEK_V3,
     .names = {SEPARATE, .shared = "shared_experts"}, .output_bias = true,
     .standard = {LATENT_SETTINGS}},
    {"gpt_oss", "GptOssForCausalLM",
     .keys = LOCAL_EXPERTS EXPERT_SIZE AUXILIARY_LOSS
     "attention_bias:true head_dim:64 layer_types? max_position_embeddings:131072 "
     "rms_norm_eps:1e-5 rope_theta?:150000 sliding_window?:128 swiglu_alpha:1.702 swiglu_limit:7",
     .names = {.mlp = "mlp",
               .router = ROUTER_NAMES("router"),
               .projections = {"gate_up_proj", "gate_up_proj", "down_proj"},
               .fused = true},
     .windows = MOERT_WINDOW_EVEN, .output_bias = true,
     .standard = {.rope = {.type = MOERT_ROPE_YARN, .factor = 32.0, .original = 4096},
                  .sinks = true,
                  .router = ROUTER(SOFTMAX_TOPK, false),
                  .router_bias = true,
                  .expert_biases = true,
                  .glu = MOERT_GLU_GPT_OSS}},
    {"qwen2_moe", "Qwen2MoeForCausalLM",
     .keys = EXPERTS MLP_SIZES SPARSE_LAYERS AUXILIARY_LOSS
     "use_sliding_window norm_topk_prob:false qkv_bias=attention_bias:true head_dim? layer_types? "
     "max_position_embeddings:32768 max_window_layers:28 num_key_value_heads~ rms_norm_eps:1e-6 "
     "rope_theta?:1e4 shared_expert_intermediate_size:5632 sliding_window?:4096",
     .names = {SEPARATE, .shared = "shared_expert"}, .windows = MOERT_WINDOW_FIRST,
     .standard = {.shared_gate = true, .router = ROUTER(SOFTMAX, false), SWIGLU}},
    {"glm4_moe", "Glm4MoeForCausalLM",
     .keys = ROUTED_EXPERTS MLP_SIZES CORRECTED_SCORES PREDICTION_LAYERS SHARED_EXPERTS
     ":1 "
     "attention_bias:false first_k_dense_replace:1 max_position_embeddings:131072 "
     "partial_rotary_factor?:0.5 rms_norm_eps:1e-5 rope_theta?:1e4 use_qk_norm:false",
     .names = {SEPARATE, .shared = "shared_experts"}, .standard = {LATENT_SETTINGS}},
    {"deepseek_v2", "DeepseekV2ForCausalLM",
     .keys = ROUTED_EXPERTS MLP_SIZES LATENT_ATTENTION DEEPSEEK_NULLS SHARED_EXPERTS
     ":2 "
     "first_k_dense_replace:0 max_position_embeddings:2048 norm_topk_prob?!0 "
     "num_key_value_heads~:32 rms_norm_eps:1e-6 rope_theta?:1e4 routed_scaling_factor:1 "
     "scoring_func!softmax topk_method",
     .names = {SEPARATE, .shared = "shared_experts"}, .output_bias = true,
     .standard = {.rope = {.interleaved = true}, .router = ROUTER(SOFTMAX, false), SWIGLU}},
};
/* clang-format on */

const size_t moert_families = MOERT_COUNT(rows);

const moert_family_row *moert_family_of(moert_family family) {
    return &rows[family];
}

moert_family moert_family_find(const char *model_type) {
    moert_family family = 0;
    while (family < moert_families && strcmp(rows[family].model_type, model_type) != 0 &&
           (rows[family].alias == NULL || strcmp(rows[family].alias, model_type) != 0))
        family++;
    return family;
}
