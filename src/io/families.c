/* The table of model families. Defaults are those of Hugging Face's transformers 5. */
#include "io/families.h"

#include <string.h>

#include "base/memory.h"

#define ROUTER(score, renormalise)                                                                 \
    { sizeof(moert_router_options), 0, 0, MOERT_SCORE_##score, renormalise, 1.0f, 1, 1, 2 }
#define SWIGLU .glu = MOERT_GLU_SWIGLU

/* clang-format off */
#define W123    {"w1", "w3", "w2"}
#define GATE_UP {"gate_proj", "up_proj", "down_proj"}
#define JOINED  .joined = {"gate_up_proj", "down_proj"}
#define ROUTER_NAMES(name) {name ".weight", name ".bias", name ".e_score_correction_bias"}
#define MLP_NAMES \
    .dense = "mlp", .experts = "mlp.experts", .parts = GATE_UP, JOINED, .shared_parts = GATE_UP
#define SEPARATE  .router = ROUTER_NAMES("mlp.gate"), MLP_NAMES
#define SHARED    SEPARATE, .shared = "mlp.shared_experts"
#define CORRECTED_NAMES /* the MLP has the correction bias, not the router */ \
    .router = {"mlp.gate.weight", NULL, "mlp.e_score_correction_bias"}, MLP_NAMES,                 \
    .shared = "mlp.shared_experts"
#define BLOCK_NAMES .experts = "block_sparse_moe.experts", .parts = W123
/* files of transformers with joined experts */
static const moert_tensor_names joined_names = {
    SHARED, .files = MOERT_EXPERTS_JOINED};
static const moert_tensor_names joined_corrected = {
    CORRECTED_NAMES, .files = MOERT_EXPERTS_JOINED};

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
#define CORRECTED .router = ROUTER(SIGMOID, true), .correction_bias = true, SWIGLU

#define GRANITE                                                                                    \
    LOCAL_EXPERTS EXPERT_SIZE AUXILIARY_LOSS                                                       \
        "attention_bias:false attention_multiplier:1 embedding_multiplier:1 logits_scaling:1 "     \
        "max_position_embeddings:2048 num_key_value_heads~ residual_multiplier:1 "                 \
        "rms_norm_eps:1e-6 rope_theta?:1e4 "
#define GRANITE_NAMES                                                                              \
    .files = MOERT_EXPERTS_JOINED, .router = ROUTER_NAMES("block_sparse_moe.router.layer"),        \
    .experts = "block_sparse_moe", .joined = {"input_linear.weight", "output_linear.weight"}
#define GRANITE_SHARED                                                                             \
    .shared = "shared_mlp", .shared_parts = {"input_linear", "input_linear", "output_linear"}
#define GRANITE_SETTINGS .router = ROUTER(SOFTMAX_TOPK, false), SWIGLU
#define SPARSE_INDEXER                                                                             \
    "index_topk:2048 index_head_dim:128 mlp_layer_types? layer_types? rope_interleave!1 "
#define POST             "post_"
#define NORM             "_layernorm.weight"

static const moert_family_row rows[] = {
    {"mixtral", "MixtralForCausalLM",
     .keys = LOCAL_EXPERTS EXPERT_SIZE AUXILIARY_LOSS
     "head_dim? max_position_embeddings:131072 rms_norm_eps:1e-5 rope_theta?:1e6 sliding_window? "
     "router_jitter_noise!0",
     .names = {.router = ROUTER_NAMES("block_sparse_moe.gate"), BLOCK_NAMES},
     .joined = &joined_names,
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
     .names = {SHARED}, .output_bias = true,
     .standard = {CORRECTED}},
    {"gpt_oss", "GptOssForCausalLM",
     .keys = LOCAL_EXPERTS EXPERT_SIZE AUXILIARY_LOSS
     "attention_bias:true head_dim:64 layer_types? max_position_embeddings:131072 "
     "rms_norm_eps:1e-5 rope_theta?:150000 sliding_window?:128 swiglu_alpha:1.702 swiglu_limit:7",
     .names = {.files = MOERT_EXPERTS_TRANSPOSED, .router = ROUTER_NAMES("mlp.router"),
               .experts = "mlp.experts", JOINED},
     .quant_method = "mxfp4",
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
     .names = {SEPARATE, .shared = "mlp.shared_expert",
               .shared_gate = "mlp.shared_expert_gate.weight"},
     .windows = MOERT_WINDOW_FIRST,
     .standard = {.shared_gate = true, .router = ROUTER(SOFTMAX, false), SWIGLU}},
    {"glm4_moe", "Glm4MoeForCausalLM",
     .keys = ROUTED_EXPERTS MLP_SIZES CORRECTED_SCORES PREDICTION_LAYERS SHARED_EXPERTS
     ":1 "
     "attention_bias:false first_k_dense_replace:1 max_position_embeddings:131072 "
     "partial_rotary_factor?:0.5 rms_norm_eps:1e-5 rope_theta?:1e4 use_qk_norm:false",
     .names = {SHARED}, .standard = {CORRECTED}},
    {"deepseek_v2", "DeepseekV2ForCausalLM",
     .keys = ROUTED_EXPERTS MLP_SIZES LATENT_ATTENTION DEEPSEEK_NULLS SHARED_EXPERTS
     ":2 "
     "first_k_dense_replace:0 max_position_embeddings:2048 norm_topk_prob?!0 "
     "num_key_value_heads~:32 rms_norm_eps:1e-6 rope_theta?:1e4 routed_scaling_factor:1 "
     "scoring_func!softmax topk_method",
     .names = {SHARED}, .output_bias = true,
     .standard = {.rope = {.interleaved = true}, .router = ROUTER(SOFTMAX, false), SWIGLU}},
    {"glm4_moe_lite", "Glm4MoeLiteForCausalLM",
     .keys = DEEPSEEK_V3
     "n_group~:1 topk_group?:1 routed_scaling_factor:1.8 q_lora_rank~:768 qk_nope_head_dim:192 "
     "v_head_dim?:256 num_key_value_heads~:20 max_position_embeddings:202752 rms_norm_eps:1e-5 "
     "mlp_layer_types? first_k_dense_replace!1",
     .names = {SHARED}, .output_bias = true,
     .standard = {CORRECTED, .first_dense = 1}},
    {"sarvam_mla", "DeepseekV3ForCausalLM",
     .keys = DEEPSEEK_V3
     "n_group~:1 topk_group?:1 q_lora_rank~ num_key_value_heads~:64 initializer_range:0.006 "
     "first_k_dense_replace?:1",
     .names = {SHARED}, .output_bias = true,
     .standard = {CORRECTED}},
    {"solar_open", "SolarOpenForCausalLM",
     .keys = ROUTED_EXPERTS CORRECTED_SCORES SHARED_EXPERTS ":1 "
     "moe_intermediate_size attention_bias:false head_dim:128 num_key_value_heads:8 "
     "max_position_embeddings:131072 rms_norm_eps:1e-5 rope_theta?:1e6",
     .names = {SHARED}, .standard = {CORRECTED}},
    {"dots1", "Dots1ForCausalLM",
     .keys = ROUTED_EXPERTS MLP_SIZES CORRECTED_SCORES
     "n_shared_experts~ attention_bias:false attention_dropout?!0 first_k_dense_replace?:0 "
     "max_position_embeddings:2048 max_window_layers?:62 n_group~:1 norm_topk_prob?:false "
     "num_key_value_heads~:32 rms_norm_eps:1e-6 rope_theta?:1e4 sliding_window?:4096 topk_group?:1",
     .names = {SHARED}, .windows = MOERT_WINDOW_AFTER,
     .output_bias = true, .standard = {CORRECTED, .qk_norm = true}},
    {"hy_v3", "HYV3ForCausalLM",
     .keys = EXPERTS MLP_SIZES
     "num_shared_experts=n_shared_experts:1 router_scaling_factor=routed_scaling_factor:2.826 "
     "attention_bias:false enable_moe_fp32_combine* head_dim:128 initializer_range:0.006 "
     "max_position_embeddings:131072 mlp_layer_types? num_key_value_heads:8 rms_norm_eps:1e-5 "
     "rope_theta?:11158840",
     .names = {.router = {"mlp.router.gate.weight", NULL, "mlp.expert_bias"}, MLP_NAMES,
               .shared = "mlp.shared_mlp"},
     .joined = &joined_corrected, .output_bias = true,
     .standard = {CORRECTED, .qk_norm = true, .first_dense = 1}},
    {"aria_text", "AriaTextForCausalLM",
     .keys = EXPERT_SIZE
     "moe_num_experts=num_experts moe_topk=num_experts_per_tok "
     "moe_num_shared_experts=n_shared_experts:2 attention_bias:false max_position_embeddings:2048 "
     "num_key_value_heads~ pad_token_id?:2 rms_norm_eps:1e-6 rope_theta?:1e4",
     .names = {.files = MOERT_EXPERTS_TRANSPOSED, .router = ROUTER_NAMES("mlp.router"),
               .experts = "mlp.experts", .joined = {"fc1.weight", "fc2.weight"},
               .shared = "mlp.shared_experts", .shared_parts = GATE_UP},
     .output_bias = true, .standard = {.router = ROUTER(SOFTMAX_TOPK, false), SWIGLU}},
    {"exaone_moe", "ExaoneMoeForCausalLM",
     .keys = EXPERTS MLP_SIZES CORRECTED_SCORES
     "num_shared_experts=n_shared_experts:1 routed_scaling_factor:2.5 first_k_dense_replace:1 "
     "max_position_embeddings:2048 mlp_layer_types? num_key_value_heads~:32 pad_token_id?:0 "
     "rms_norm_eps:1e-5 rope_theta?:1e4 sliding_window?:4096 sliding_window_pattern",
     .names = {CORRECTED_NAMES},
     .joined = &joined_corrected, .windows = MOERT_WINDOW_PATTERN, .full_unrotated = true,
     .standard = {CORRECTED, .qk_norm = true}},
    {"mellum", "MellumForCausalLM",
     .keys = LOCAL_EXPERTS MLP_SIZES AUXILIARY_LOSS PREDICTION_LAYERS
     "attention_bias:false head_dim:128 max_position_embeddings:131072 mlp_layer_types? "
     "mtp_layer_types* mtp_mlp_layer_types* norm_topk_prob:true num_key_value_heads~:4 "
     "rms_norm_eps:1e-6 rope_theta?:500000 sliding_window?:1024",
     .names = {SEPARATE}, .windows = MOERT_WINDOW_NONE, .rope_by_type = true, .output_bias = true,
     .standard = {.qk_norm = true, .window_rope = {.theta = 1e4}, .router = ROUTER(SOFTMAX, true),
                  SWIGLU}},
    {"flex_olmo", "FlexOlmoForCausalLM",
     .keys = EXPERTS EXPERT_SIZE
     "router_aux_loss_coef:0.01 norm_topk_prob:false attention_bias:false "
     "max_position_embeddings:4096 num_key_value_heads~ pad_token_id?:100277 rms_norm_eps:1e-6 "
     "rope_theta?:500000",
     .names = {SEPARATE}, .norms = {NULL, NULL, POST "attention" NORM, POST "feedforward" NORM},
     .output_bias = true,
     .standard = {.qk_norm = true, .qk_norm_whole = true, .router = ROUTER(SOFTMAX, false),
                  SWIGLU}},
    {"axk1", "AXK1ForCausalLM",
     .keys = DEEPSEEK_V3
     "num_key_value_heads~:64 max_position_embeddings:32768 first_k_dense_replace!1 "
     "mlp_layer_types?",
     .names = {SHARED},
     .norms = {"input" NORM, POST "attention" NORM, NULL, POST "mlp" NORM},
     .sparse_result_norm = true, .output_bias = true, .standard = {CORRECTED, .first_dense = 1}},
    {"granitemoe", "GraniteMoeForCausalLM", .keys = GRANITE, .names = {GRANITE_NAMES},
     .output_bias = true, .standard = {GRANITE_SETTINGS}},
    {"granitemoeshared", "GraniteMoeSharedForCausalLM",
     .keys = GRANITE "shared_intermediate_size=shared_expert_intermediate_size:0",
     .names = {GRANITE_NAMES, GRANITE_SHARED},
     .output_bias = true, .standard = {GRANITE_SETTINGS}},
    {"granitemoe_swa", "GraniteMoeSWAForCausalLM",
     .keys = GRANITE
     "shared_intermediate_size=shared_expert_intermediate_size:0 layer_rope_theta? layer_types? "
     "sliding_window?:128",
     .names = {.files = MOERT_EXPERTS_JOINED, .router = ROUTER_NAMES("block_sparse_moe.router"),
               .experts = "block_sparse_moe.experts", JOINED, GRANITE_SHARED},
     .windows = MOERT_WINDOW_FOURTH, .output_bias = true,
     .standard = {GRANITE_SETTINGS, .sinks = true}},
    {"hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM",
     .keys = EXPERTS
     "intermediate_size=moe_intermediate_size moe_topk=num_experts_per_tok+ attention_bias:false "
     "eod_token_id* head_dim? max_position_embeddings:2048 num_key_value_heads~ pad_token_id?:0 "
     "rms_norm_eps:1e-5 rope_theta?:1e4 sep_token_id*",
     .names = {.router = ROUTER_NAMES("mlp.gate.wg"), MLP_NAMES, .shared = "mlp.shared_mlp"},
     .head_norms = {"self_attn.query" NORM, "self_attn.key" NORM}, .output_bias = true,
     .standard = {.qk_norm = true, .qk_norm_last = true, .shared_experts = 1,
                  .router = ROUTER(SOFTMAX, true), SWIGLU}},
    {"deepseek_v32", "DeepseekV32ForCausalLM",
     .keys = DEEPSEEK_V3 SPARSE_INDEXER "index_n_heads:64 max_position_embeddings:163840",
     .names = {SHARED}, .output_bias = true,
     .standard = {CORRECTED, .rope = {.interleaved = true}}},
    {"glm_moe_dsa", "GlmMoeDsaForCausalLM",
     .keys = DEEPSEEK_V3 SPARSE_INDEXER
     "index_n_heads:32 indexer_types index_topk_freq!1 index_skip_topk_offset* q_lora_rank~:2048 "
     "n_group~:1 topk_group?:1 "
     "qk_nope_head_dim:192 v_head_dim?:256 num_key_value_heads~:64 max_position_embeddings:202752 "
     "rms_norm_eps:1e-5",
     .names = {SHARED}, .output_bias = true,
     .standard = {CORRECTED, .rope = {.interleaved = true}}},
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
