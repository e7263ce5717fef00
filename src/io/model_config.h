/*
 * Hugging Face config.json: the properties of a model, and the names of its tensors in files.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/rope.h"
#include "moert/formats.h"
#include "moert/glu.h"
#include "moert/router.h"

typedef enum moert_family {
    MOERT_FAMILY_MIXTRAL,
    MOERT_FAMILY_QWEN3_MOE,
    MOERT_FAMILY_OLMOE,
    MOERT_FAMILY_DEEPSEEK_V3,
    MOERT_FAMILY_GPT_OSS
} moert_family;

/* Sizes of multi-head latent attention: q and k have nope + rope elements per head, of which the
 * last `rope` rotate, and v has `value`. */
typedef struct moert_latent_sizes {
    size_t q_rank, kv_rank; /* 0: q is projected directly; the attention is no latent one */
    size_t nope, rope, value;
} moert_latent_sizes;

typedef struct moert_model_config {
    moert_family family;
    size_t vocabulary, hidden, layers, heads, kv_heads, head_size, max_positions;
    moert_latent_sizes latent;  /* replaces kv_heads and head_size */
    size_t intermediate;        /* I of one expert */
    size_t shared_intermediate; /* I of the shared expert (number of shared experts times I), 0 =
                                   none */
    float norm_epsilon, rope_theta, initializer_range, aux_coefficient;
    bool tied_embeddings, qk_norm, attention_bias;
    moert_rope_scheme rope;      /* width and theta follow from other fields */
    bool rope_scaled;            /* a rope_type other than "default" */
    size_t sliding_window;       /* 0 = none: full causal attention */
    size_t dense_layers;         /* length of mlp_only_layers */
    size_t sparse_step;          /* decoder_sparse_step; 0 and 1 = every layer is MoE */
    moert_router_options router; /* experts E, topk K, ... */
    bool router_bias;            /* the router's linear layer has a bias (gpt-oss) */
    bool correction_bias;        /* e_score_correction_bias (DeepSeek-V3) */
    bool expert_biases;          /* biases of both expert projections (gpt-oss) */
    moert_glu_form glu;
    const char *quant_method; /* format of the weights on disk (weights.h): "fp8", "mxfp4", or NULL
                                 = plain */
    /* settings of the computation, not part of config.json; F32 after reading */
    moert_precision precision; /* precision of the experts' GEMMs */
    moert_precision dense;     /* precision of all GEMMs except the experts' and the router's: F32
                                  or BF16 */
    moert_dispatch dispatch;
    moert_combine combine;
    char *text; /* config.json as read, without quantization_config, since a trained model is
                   saved as plain weights */
} moert_model_config;

/*
 * Reads DIR/config.json, or the file `path`. Accepts the key names of all families and versions:
 * num_local_experts, num_experts or n_routed_experts; moe_intermediate_size, else
 * intermediate_size; rope_parameters.rope_theta or rope_theta. A head_dim of null is hidden /
 * heads. Absent keys get the defaults of their family. Errors: ERROR_IO, ERROR_FORMAT (JSON, types,
 * values: key, value, limit), ERROR_UNSUPPORTED (model_type, an unknown hidden_act, scores other
 * than the family's, a quant_method that weights.h does not read), ERROR_MEMORY.
 * moert_model_config_check_model checks the values that only attention needs, so that the MoE
 * layers of any release can be used.
 */
moert_status moert_model_config_read(const char *path, moert_model_config *config);
void moert_model_config_free(moert_model_config *config);

/*
 * Checks that moert can train the whole language model. ERROR_UNSUPPORTED for families other than
 * Mixtral and Qwen3-MoE, a sliding window, rope scaling, attention biases, dense layers
 * (mlp_only_layers, decoder_sparse_step > 1); ERROR_FORMAT for inconsistent sizes.
 */
moert_status moert_model_config_check_model(const moert_model_config *config);
/* ERROR_USAGE for sequences longer than max_positions. */
moert_status moert_model_config_check_length(const moert_model_config *config, size_t length);

/*
 * The projections of an expert, for the names of tensors. Most families have one [out, in] tensor
 * per expert and projection. gpt-oss fuses the experts: gate and up are both in
 * ".experts.gate_up_proj" [E, in, out], with alternating gate and up columns; down is
 * ".experts.down_proj". With fused experts `expert` is ignored.
 */
typedef enum moert_expert_part {
    MOERT_EXPERT_GATE,
    MOERT_EXPERT_UP,
    MOERT_EXPERT_DOWN
} moert_expert_part;
enum { MOERT_TENSOR_NAME_BYTES = 160 }; /* enough for all names that the functions below write */
/* Writes "model.layers.3.mlp.experts.5.gate_proj.weight" to name[bytes]. expert SIZE_MAX = the
 * shared expert. */
void moert_expert_tensor_name(const moert_model_config *config, size_t layer, size_t expert,
                              moert_expert_part part, char *name, size_t bytes);
/* Writes "model.layers.3.mlp." + suffix or "model.layers.3.block_sparse_moe." + suffix, for
 * gate.weight (gpt-oss: router.weight, router.bias, experts.gate_up_proj_bias) and the like. */
void moert_moe_tensor_name(const moert_model_config *config, size_t layer, const char *suffix,
                           char *name, size_t bytes);
bool moert_experts_are_fused(const moert_model_config *config);

/* *text = config.json of a new model (Mixtral or Qwen3-MoE, else ERROR_UNSUPPORTED) as transformers
 * 5 reads it; the caller frees it. Equal configs give equal bytes, and reading the text gives the
 * config back. */
moert_status moert_model_config_text(const moert_model_config *config, char **text);
