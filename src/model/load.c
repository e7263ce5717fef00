/* Loads a model's weights, and finds tensors of its files that the model does not read. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "device/elements.h"
#include "model/layer_files.h"
#include "model/sublayer.h"

static const char head_name[] = "lm_head.weight", embedding_name[] = "model.embed_tokens.weight";

/* Parts of tensor names, each with the key of config.json that a model with such tensors needs. The
 * first part that matches is used. */
static const struct {
    const char *part, *keys;
} needed[] = {
    {"lm_head.bias", NULL},
    {"lm_head.", "tie_word_embeddings false"},
    {"q_norm.", "use_qk_norm, or a family with norms of q and k"},
    {"k_norm.", "use_qk_norm, or a family with norms of q and k"},
    {"o_proj.bias", "attention_bias"},
    {"_proj.bias", "attention_bias or qkv_bias"},
    {"_a_proj.", "q_lora_rank or kv_lora_rank"},
    {"_b_proj.", "q_lora_rank or kv_lora_rank"},
    {"shared_expert", "n_shared_experts or shared_expert_intermediate_size"},
    {"e_score_correction_bias", "topk_method noaux_tc of a family with correction biases"},
    {".experts.", "num_experts, and the layer in mlp_only_layers, decoder_sparse_step or "
                  "first_k_dense_replace"},
    {".gate.", "mlp_only_layers, decoder_sparse_step or first_k_dense_replace"},
    {".mlp.gate_proj.", "mlp_only_layers, decoder_sparse_step or first_k_dense_replace"},
    {".mlp.up_proj.", "mlp_only_layers, decoder_sparse_step or first_k_dense_replace"},
    {".mlp.down_proj.", "mlp_only_layers, decoder_sparse_step or first_k_dense_replace"},
};

static bool begins(const char *name, const char *with) {
    return strncmp(name, with, strlen(with)) == 0;
}

/* The layer number in a tensor's name, or `none`. */
static size_t layer_of(const char *name, size_t none) {
    size_t layer;
    return sscanf(name, "model.layers.%zu.", &layer) == 1 ? layer : none;
}

/* Whether a model may ignore a tensor of its files: the tensor belongs to another model or to
 * multi-token prediction, or is a table of rotary positions. */
static bool may_stay(const moert_model_config *c, const char *name) {
    const size_t layer = layer_of(name, 0);
    return !(begins(name, "model.") || begins(name, "lm_head")) ||
           (layer >= c->layers && layer < c->layers + c->prediction_layers) ||
           strstr(name, "rotary_emb.inv_freq") != NULL;
}

static moert_status refuse(const moert_model_config *c, const moert_tensor *tensor) {
    const char *keys = layer_of(tensor->name, 0) >= c->layers ? "num_hidden_layers" : NULL;
    for (size_t i = 0; i < MOERT_COUNT(needed) && keys == NULL; i++)
        if (strstr(tensor->name, needed[i].part) != NULL) {
            keys = needed[i].keys;
            break;
        }
    return MOERT_FAIL(
        ERROR_MISMATCH,
        "%s: no part of the model reads the tensor '%.200s', so it would be lost; %s%s",
        tensor->file, tensor->name,
        keys != NULL ? "its config.json needs: " : "moert has no part that takes it",
        keys != NULL ? keys : "");
}

static moert_status check_unread(const moert_model *model, const moert_tensors *files) {
    for (size_t i = 0; i < moert_tensors_count(files); i++) {
        const moert_tensor *tensor = moert_tensors_at(files, i);
        if (!moert_tensors_were_found(files, i) && !may_stay(&model->config, tensor->name))
            return refuse(&model->config, tensor);
    }
    return MOERT_OK;
}

/* The name of a tensor in the files. With tied embeddings, the files have the embedding, the head,
 * or both. */
static const char *name_in(const moert_model *model, const moert_tensors *files,
                           const moert_model_tensor *tensor) {
    const bool is_tied = model->config.tied_embeddings && strcmp(tensor->name, embedding_name) == 0;
    const bool has_head = is_tied && moert_tensors_find(files, head_name) != NULL;
    return has_head && moert_tensors_find(files, embedding_name) == NULL ? head_name : tensor->name;
}

static moert_status read_all(moert_model *model, const moert_tensors *files) {
    moert_status status = MOERT_OK;
    for (size_t i = 0; status == MOERT_OK && i < model->tensor_count; i++) {
        const moert_model_tensor *tensor = &model->tensor[i];
        const bool held = tensor->block != NULL;
        const moert_elements target = {held ? tensor->block->weight : NULL, MOERT_DTYPE_F32,
                                       tensor->offset};
        status =
            moert_model_read_values(files, name_in(model, files, tensor), tensor,
                                    (moert_model_range){0, held ? tensor->elements : 0}, &target);
    }
    return status == MOERT_OK ? check_unread(model, files) : status;
}

moert_status moert_model_load(moert_model *model, const char *path, moert_manifest *manifest) {
    moert_tensors *files = NULL;
    moert_model_weights_changed(model);
    moert_status status;
    MOERT_TRY_OR(done, moert_tensors_open(path, &files));
    if (manifest != NULL)
        moert_tensors_watch(files, manifest);
    moert_model_join_experts(model, moert_files_join_experts(&model->config, files));
    status = read_all(model, files);
    moert_model_join_experts(model, false);
done:
    moert_tensors_close(files);
    return moert_comm_agree(model->mesh->world, status);
}
