/* Detects whether the files of a model have a separate head although its config ties the
 * embeddings. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/json.h"
#include "io/model_config.h"
#include "io/safetensors.h"

/* *text = config.json with tie_word_embeddings false. */
static moert_status untie(const char *path, char **text) {
    json_t *root;
    char *changed = NULL;
    MOERT_TRY(moert_json_parse(path, "the model config", *text, strlen(*text), &root));
    const bool whole = json_object_set_new(root, "tie_word_embeddings", json_false()) == 0;
    const moert_status status = moert_json_text(path, whole ? root : NULL,
                                                JSON_INDENT(2) | JSON_REAL_PRECISION(15), &changed);
    json_decref(root);
    MOERT_TRY(status);
    free(*text);
    *text = changed;
    return MOERT_OK;
}

moert_status moert_model_config_check_tied(const char *path, moert_model_config *config,
                                           bool *untied) {
    moert_tensors *files;
    *untied = false;
    if (!config->tied_embeddings)
        return MOERT_OK;
    MOERT_TRY(moert_tensors_open(path, &files));
    const moert_tensor *head = moert_tensors_find(files, "lm_head.weight"),
                       *embedding = moert_tensors_find(files, "model.embed_tokens.weight");
    const bool differ = head != NULL && embedding != NULL &&
                        (head->type != embedding->type || head->bytes != embedding->bytes ||
                         memcmp(head->data, embedding->data, head->bytes) != 0);
    moert_tensors_close(files);
    if (!differ)
        return MOERT_OK;
    *untied = true;
    config->tied_embeddings = false;
    return untie(path, &config->text);
}
