/*
 * Hugging Face config.json: the properties of a model, and the names of its tensors in files.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/rope.h"
#include "moert/formats.h"
#include "moert/glu.h"
#include "moert/recipe.h"
#include "moert/router.h"

typedef size_t moert_family; /* index of a row of the table in families.c */

/* Sizes of multi-head latent attention: q and k have nope + rope elements per head, of which the
 * last `rope` rotate; v has `value` elements per head. */
typedef struct moert_latent_sizes {
    size_t q_rank, kv_rank; /* q_rank 0: one projection computes q. kv_rank 0: no latent
                               attention */
    size_t nope, rope, value;
} moert_latent_sizes;

/* Sizes of a sparse indexer, which chooses `topk` keys for each query; topk 0: no indexer. */
typedef struct moert_indexer_sizes {
    size_t heads, head_size, topk;
} moert_indexer_sizes;

/* A set of layers of a model of at most MOERT_LAYERS_MOST layers. */
enum { MOERT_LAYERS_MOST = 1024 };
typedef struct moert_layer_set {
    uint64_t bits[MOERT_LAYERS_MOST / 64];
} moert_layer_set;

static inline bool moert_layer_set_has(const moert_layer_set *set, size_t layer) {
    return layer < MOERT_LAYERS_MOST && (set->bits[layer / 64] >> layer % 64 & 1) != 0;
}
static inline bool moert_layer_set_any(const moert_layer_set *set) {
    uint64_t any = 0;
    for (size_t i = 0; i < MOERT_LAYERS_MOST / 64; i++)
        any |= set->bits[i];
    return any != 0;
}
static inline void moert_layer_set_add(moert_layer_set *set, size_t layer) {
    set->bits[layer / 64] |= (uint64_t)1 << layer % 64;
}

/* How training trades time for memory. On CPUs, only `optimizer`, `moments` and `gradients` change
 * the bits of the results. */
enum { MOERT_LOSS_CHUNK_MULTIPLE = 64 }; /* GEMMs sum over tokens in blocks of up to 64 tokens */
/* What the backward computes again, instead of keeping it from the forward. */
typedef enum moert_recompute {
    MOERT_RECOMPUTE_NONE,
    MOERT_RECOMPUTE_EXPERTS, /* the experts' first projections and GLUs (moert_layer_options) */
    MOERT_RECOMPUTE_LAYER,   /* whole layers, of which only the inputs are kept */
    MOERT_RECOMPUTE_AUTO     /* the first of NONE, EXPERTS and LAYER that fits into memory; illegal
                                in a model's config */
} moert_recompute;
#define MOERT_RECOMPUTE_WORDS "none|experts|layer|auto"

/* The dtypes of the optimizer's moments and of kept gradients. Weights are always float32. */
typedef enum moert_state_type { MOERT_STATE_F32, MOERT_STATE_BF16 } moert_state_type;
#define MOERT_STATE_WORDS "f32|bf16"

static inline moert_dtype moert_state_dtype(unsigned type) {
    return type == MOERT_STATE_BF16 ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32;
}

typedef struct moert_memory_choice {
    unsigned recompute; /* a moert_recompute */
    size_t loss_chunk;  /* the most tokens whose logits a rank holds, a multiple of
                           MOERT_LOSS_CHUNK_MULTIPLE; 0: all */
    unsigned optimizer; /* a moert_optimizer_kind (nn/optimizer.h), which determines what moments
                           there are */
    unsigned moments;   /* dtype of the optimizer's moments, a moert_state_type */
    unsigned gradients; /* dtype of the layers' gradients between backwards, a moert_state_type */
    double imbalance;   /* rows of a rank that memory estimates assume, relative to balanced
                           routing; values below 1 count as 1 */
} moert_memory_choice;

typedef struct moert_model_config {
    moert_family family;
    size_t vocabulary, hidden, layers, heads, kv_heads, head_size, max_positions;
    int32_t end_token; /* eos_token_id, or the first of a list; -1: none */
    int32_t pad_token; /* pad_token_id, whose row of the embedding gets no gradient; -1: none */
    moert_indexer_sizes indexer;
    moert_latent_sizes latent;  /* sizes that replace kv_heads and head_size in latent attention */
    size_t intermediate;        /* I of one expert */
    size_t shared_intermediate; /* I of the shared expert, 0 = none */
    size_t shared_experts;      /* n_shared_experts; shared_intermediate = n_shared_experts * I */
    size_t dense_intermediate;  /* I of a dense layer's GLU; 0: not given */
    float norm_epsilon, initializer_range, aux_coefficient;
    /* factors, of which 0 stands for 1: of embeddings, of the results of sublayers before the
     * residual is added, and of logits; `logits_divisor` divides logits */
    float embedding_scale, residual_scale, logits_scale, logits_divisor;
    float attention_scale;  /* of attention scores; 0: 1 / sqrt(head size) */
    float clip_qkv;         /* q, k and v are clipped to [-clip_qkv, clip_qkv]; 0 = no clipping */
    float partial_rotary;   /* fraction of a head's elements that rotate */
    moert_rope_scheme rope; /* rope.width: rotated elements of a head */
    moert_rope_scheme window_rope; /* of layers with a window; theta 0: `rope` */
    moert_layer_set unrotated;     /* layers without rotary positions */
    bool tied_embeddings, qk_norm;
    bool qk_norm_last;            /* q and k are normalised after the rotation */
    bool qk_norm_whole;           /* q and k are normalised over all heads together, not over each
                                     head */
    bool attention_bias;          /* q, k and v have biases */
    bool output_bias;             /* o has a bias */
    bool sinks;                   /* attention has a sink for each head */
    bool shared_gate;             /* a gate scales the shared expert's result */
    size_t sliding_window;        /* window of the layers in `windowed`, in tokens; 0: full causal
                                     attention in all layers */
    size_t window_layers;         /* max_window_layers (moert_window_rule) */
    size_t sparse_step;           /* decoder_sparse_step; 0 and 1 = every layer is MoE */
    size_t first_dense;           /* first_k_dense_replace */
    size_t prediction_layers;     /* multi-token-prediction layers in the files, which moert neither
                                     loads nor saves */
    moert_layer_set windowed;     /* layers with a sliding window */
    moert_layer_set dense_layers; /* layers with a dense GLU instead of a MoE layer */
    moert_router_options router;  /* experts E, topk K, ... */
    bool router_bias;             /* the router's linear layer has a bias (gpt-oss) */
    bool correction_bias;         /* e_score_correction_bias (DeepSeek-V3, GLM-4.5) */
    bool expert_biases;           /* biases of both expert projections (gpt-oss) */
    moert_glu_form glu;
    const char *quant_method; /* format of the weights on disk (weights.h): "fp8", "mxfp4", or NULL
                                 = plain */
    bool joined_experts;      /* files of this model have joined experts, as save_pretrained of
                                 transformers can write them for each family */
    /* settings of the computation, which config.json does not hold; reading leaves them 0 (F32) */
    bool balanced_routing;     /* hashes of the routers' logits choose the experts */
    moert_precision precision; /* precision of the experts' GEMMs */
    moert_recipe recipe;       /* the recipe of `precision` */
    moert_precision dense;     /* precision of all GEMMs except the experts' and the router's: F32
                                  or BF16 */
    moert_dispatch dispatch;
    moert_combine combine;
    size_t expert_slots; /* moert_layer_options.slots; 0: each rank holds a contiguous block of
                            experts */
    moert_memory_choice memory;
    char *text; /* config.json of the trained model when saved: as read, without quantization_config
                   and multi-token-prediction layers */
} moert_model_config;

/*
 * Reads DIR/config.json, or the file `path`. The family's row (families.h)
 * lists the keys, with their names in all versions and their defaults; any other key is refused by
 * name. Errors:
 * ERROR_IO, ERROR_FORMAT (JSON, types, values: key, value, limit), ERROR_UNSUPPORTED (model_type,
 * an unknown key, hidden_act or rope_type, a value that is not neutral, scores other than the
 * family's, a quant_method that weights.h does not read), ERROR_MEMORY.
 * moert_model_config_check_model checks the values that only attention needs, so that the MoE
 * layers of any release can be used.
 */
moert_status moert_model_config_read(const char *path, moert_model_config *config);
void moert_model_config_free(moert_model_config *config);

/* *config = the constants and defaults of a family. */
void moert_model_config_start(moert_model_config *config, moert_family family);

/*
 * Unties the embeddings of a config and its text if the weights at `path` have a head that differs
 * from the embedding, as Hugging Face's transformers does. *untied = whether this function untied
 * the embeddings. Errors: those of moert_tensors_open and moert_json_parse.
 */
moert_status moert_model_config_check_tied(const char *path, moert_model_config *config,
                                           bool *untied);
/*
 * Checks that moert can train the whole language model. ERROR_UNSUPPORTED above MOERT_LAYERS_MOST
 * layers; ERROR_FORMAT for inconsistent sizes or rotary positions.
 */
moert_status moert_model_config_check_model(const moert_model_config *config);
/* ERROR_USAGE for sequences longer than max_positions. */
moert_status moert_model_config_check_length(const moert_model_config *config, size_t length);

/*
 * ---- names of tensors ----
 *
 * The functions below write names of tensors in files, such as
 * "model.layers.3.mlp.experts.5.gate_proj.weight".
 */
typedef enum moert_expert_part {
    MOERT_EXPERT_GATE,
    MOERT_EXPERT_UP,
    MOERT_EXPERT_DOWN
} moert_expert_part;
typedef enum moert_router_part {
    MOERT_ROUTER_WEIGHT,
    MOERT_ROUTER_BIAS,
    MOERT_ROUTER_CORRECTION,
    MOERT_ROUTER_PARTS
} moert_router_part;
enum { MOERT_TENSOR_NAME_BYTES = 128 }; /* enough for all names */

/* The norms of a layer: before attention and before the MLP, and of the results of both. */
typedef enum moert_norm_place {
    MOERT_NORM_ATTENTION,
    MOERT_NORM_MLP,
    MOERT_NORM_ATTENTION_RESULT,
    MOERT_NORM_MLP_RESULT,
    MOERT_NORMS
} moert_norm_place;
/* The name of a norm of layer `layer`; NULL if the layer has no such norm. */
const char *moert_norm_name(const moert_model_config *config, size_t layer, moert_norm_place place);
/* The name of the norm of q (k: of k). */
const char *moert_head_norm_name(const moert_model_config *config, bool k);
/* Whether all layers of a config have the same norms. */
bool moert_norms_are_alike(const moert_model_config *config);

/* How the files hold the experts of a layer. */
typedef enum moert_expert_files {
    MOERT_EXPERTS_SEPARATE,  /* [I,H] or [H,I] for each expert and projection */
    MOERT_EXPERTS_JOINED,    /* [E,2I,H], gate before up, and [E,H,I] */
    MOERT_EXPERTS_TRANSPOSED /* [E,H,2I], whose columns are the rows of W1, and [E,I,H]; names of
                                biases end in "_bias" */
} moert_expert_files;
moert_expert_files moert_experts_in_files(const moert_model_config *config);

/* "model.layers.3." + suffix. */
void moert_layer_tensor_name(size_t layer, const char *suffix, char name[MOERT_TENSOR_NAME_BYTES]);
void moert_router_tensor_name(const moert_model_config *config, size_t layer,
                              moert_router_part part, char name[MOERT_TENSOR_NAME_BYTES]);
void moert_shared_gate_name(const moert_model_config *config, size_t layer,
                            char name[MOERT_TENSOR_NAME_BYTES]);
/* A projection of an expert in separate files. */
void moert_expert_tensor_name(const moert_model_config *config, size_t layer, size_t expert,
                              moert_expert_part part, char name[MOERT_TENSOR_NAME_BYTES]);
/* The tensor of a projection of all experts of a layer. shape[3] is that of joined files. */
void moert_joined_tensor(const moert_model_config *config, size_t layer, moert_expert_part part,
                         char name[MOERT_TENSOR_NAME_BYTES], size_t shape[3]);
/* The number of projections before an expert's projection in a joined tensor. */
size_t moert_joined_index(size_t expert, moert_expert_part part);

/* A projection [rows, columns] of a shared expert or dense layer. The file's tensor has
 * `file_rows` rows; the projection starts at its element `file_first`. */
typedef struct moert_mlp_tensor {
    char name[MOERT_TENSOR_NAME_BYTES];
    size_t rows, columns, file_rows, file_first;
} moert_mlp_tensor;
void moert_shared_tensor(const moert_model_config *config, size_t layer, moert_expert_part part,
                         moert_mlp_tensor *tensor);
void moert_dense_tensor(const moert_model_config *config, size_t layer, moert_expert_part part,
                        moert_mlp_tensor *tensor);

/* Whether layer `layer` is a MoE layer; otherwise it is dense. */
static inline bool moert_layer_is_moe(const moert_model_config *config, size_t layer) {
    return !moert_layer_set_has(&config->dense_layers, layer);
}
static inline size_t moert_moe_layers(const moert_model_config *config) {
    size_t count = 0;
    for (size_t l = 0; l < config->layers; l++)
        count += moert_layer_is_moe(config, l);
    return count;
}

/* *text = config.json of a new model, as Hugging Face's transformers 5 reads it; the caller frees
 * it. Equal configs give equal bytes, and reading the text gives the config back. */
moert_status moert_model_config_text(const moert_model_config *config, char **text);
/* *changed = a config.json's text whose dtype is `dtype`, such as "bfloat16"; the caller frees it.
 * Errors: ERROR_FORMAT, ERROR_MEMORY. */
moert_status moert_model_config_retype(const char *text, const char *dtype, char **changed);
