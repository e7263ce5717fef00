/* The table of keys of config.json, and the code that checks, reads and writes the keys of a
 * family. */
#include "io/model_fields.h"

#include <float.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/families.h"

typedef enum field_kind {
    FIELD_SIZE,   /* size_t, smallest..MOERT_FIELD_SIZE_LIMIT */
    FIELD_FLOAT,  /* float, at least 0; above 0 if `smallest` is 1 */
    FIELD_DOUBLE, /* like FIELD_FLOAT, but stored as double */
    FIELD_BOOL,
    FIELD_OTHER /* read and written by model_config.c and config_*.c */
} field_kind;

typedef struct config_field {
    const char *key;
    field_kind kind;
    size_t offset;
    int smallest;
    bool required;
} config_field;

#define FIELD(field) offsetof(moert_model_config, field)
#define KEY(kind, field, smallest, key)                                                            \
    { key, FIELD_##kind, FIELD(field), smallest, false }
#define REQUIRED(field, key)                                                                       \
    { key, FIELD_SIZE, FIELD(field), 1, true }
#define OTHER(key)                                                                                 \
    { key, FIELD_OTHER, 0, 0, false }

/* clang-format off */
static const config_field fields[] = {
    REQUIRED(vocabulary, "vocab_size"),
    REQUIRED(hidden, "hidden_size"),
    REQUIRED(layers, "num_hidden_layers"),
    REQUIRED(heads, "num_attention_heads"),
    KEY(SIZE, kv_heads, 1, "num_key_value_heads"),
    KEY(SIZE, head_size, 1, "head_dim"),
    KEY(SIZE, max_positions, 1, "max_position_embeddings"),
    REQUIRED(intermediate, "moe_intermediate_size"),
    KEY(SIZE, dense_intermediate, 1, "intermediate_size"),
    KEY(SIZE, shared_experts, 0, "n_shared_experts"),
    KEY(SIZE, shared_intermediate, 0, "shared_expert_intermediate_size"),
    REQUIRED(router.experts, "num_experts"),
    REQUIRED(router.topk, "num_experts_per_tok"),
    KEY(BOOL, router.renormalise, 0, "norm_topk_prob"),
    KEY(FLOAT, router.scale, 1, "routed_scaling_factor"),
    KEY(SIZE, router.groups, 1, "n_group"),
    KEY(SIZE, router.kept_groups, 1, "topk_group"),
    KEY(FLOAT, glu.limit, 1, "swiglu_limit"),
    KEY(FLOAT, glu.alpha, 1, "swiglu_alpha"),
    KEY(FLOAT, norm_epsilon, 1, "rms_norm_eps"),
    KEY(DOUBLE, rope.theta, 1, "rope_theta"),
    KEY(FLOAT, partial_rotary, 1, "partial_rotary_factor"),
    KEY(BOOL, rope.interleaved, 0, "rope_interleave"),
    KEY(FLOAT, initializer_range, 0, "initializer_range"),
    KEY(FLOAT, aux_coefficient, 0, "router_aux_loss_coef"),
    KEY(BOOL, tied_embeddings, 0, "tie_word_embeddings"),
    KEY(BOOL, attention_bias, 0, "attention_bias"),
    KEY(BOOL, qk_norm, 0, "use_qk_norm"),
    KEY(SIZE, latent.q_rank, 1, "q_lora_rank"),
    KEY(SIZE, latent.kv_rank, 1, "kv_lora_rank"),
    KEY(SIZE, latent.nope, 1, "qk_nope_head_dim"),
    KEY(SIZE, latent.rope, 1, "qk_rope_head_dim"),
    KEY(SIZE, latent.value, 1, "v_head_dim"),
    KEY(SIZE, indexer.heads, 1, "index_n_heads"),
    KEY(SIZE, indexer.head_size, 1, "index_head_dim"),
    KEY(SIZE, indexer.topk, 1, "index_topk"),
    KEY(FLOAT, clip_qkv, 1, "clip_qkv"),
    KEY(FLOAT, embedding_scale, 1, "embedding_multiplier"),
    KEY(FLOAT, residual_scale, 1, "residual_multiplier"),
    KEY(FLOAT, attention_scale, 1, "attention_multiplier"),
    KEY(FLOAT, logits_divisor, 1, "logits_scaling"),
    KEY(FLOAT, logits_scale, 1, "logit_scale"),
    KEY(SIZE, sliding_window, 0, "sliding_window"),
    KEY(SIZE, window_layers, 0, "max_window_layers"),
    KEY(SIZE, sparse_step, 1, "decoder_sparse_step"),
    KEY(SIZE, prediction_layers, 0, "num_nextn_predict_layers"),
    KEY(SIZE, first_dense, 0, "first_k_dense_replace"),
    OTHER("model_type"), OTHER("bos_token_id"), OTHER("eos_token_id"), OTHER("pad_token_id"),
    OTHER("hidden_act"), OTHER("rope_parameters"), OTHER("rope_scaling"),
    OTHER("quantization_config"), OTHER("layer_types"), OTHER("mlp_layer_types"),
    OTHER("mlp_only_layers"), OTHER("use_sliding_window"), OTHER("topk_method"),
    OTHER("indexer_types"), OTHER("layer_rope_theta"),
    OTHER("sliding_window_pattern"),
};

/* The keys of all families (moert_family_row.keys). */
static const char common_keys[] =
    "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "max_position_embeddings num_experts_per_tok|experts_per_token=num_experts_per_tok? "
    "initializer_range:0.02 tie_word_embeddings:false rms_norm_eps rope_theta? model_type "
    "bos_token_id? eos_token_id? pad_token_id? hidden_act rope_parameters? rope_scaling? "
    "quantization_config? layer_types? "
    /* legal at a value that changes nothing */
    "add_cross_attention!0 attention_dropout!0 attn_pdrop!0 chunk_size_feed_forward!0 dropout!0 "
    "embd_pdrop!0 hidden_dropout!0 hidden_dropout_prob!0 is_decoder!0 is_encoder_decoder!0 "
    "mlp_bias!0 norm_topk_prob!0 resid_pdrop!0 router_jitter_noise!0 tie_encoder_decoder!0 "
    "torchscript!0 moe_layer_freq!1 pretraining_tp!1 "
    /* change nothing that moert computes */
    "_attn_implementation* _name_or_path* architectures* attn_implementation* auto_map* "
    "aux_loss_alpha* dtype* ep_size* id2label* initial_context_length* label2id* "
    "output_attentions* output_hidden_states* output_router_logits* problem_type* qk_head_dim* "
    "return_dict* seq_aux* tokenizer_class* torch_dtype* transformers.js_config* "
    "transformers_version* unsloth_fixed* unsloth_version* use_cache*";
/* clang-format on */

/* ---- words of moert_family_row.keys ---- */

enum { NAME_BYTES = 64 };

typedef struct key_word {
    char text[160];
    const char *names; /* one or more, separated by | or / */
    const config_field *field;
    char null;         /* '?' or '~'; 0: null is refused */
    bool listed;       /* the value may be a list of equal numbers */
    char rule;         /* ':', '!' or '*', or 0 */
    const char *value; /* after the rule */
} key_word;

/* Cuts `text` at the first of `marks`. Returns the mark, and in *rest the text after it. */
static char cut(char *text, const char *marks, const char **rest) {
    char *at = strpbrk(text, marks);
    const char mark = at != NULL ? *at : '\0';
    *rest = at != NULL ? at + 1 : "";
    if (at != NULL)
        *at = '\0';
    return mark;
}

static const config_field *find_field(const char *key) {
    for (size_t i = 0; i < MOERT_COUNT(fields); i++)
        if (strcmp(fields[i].key, key) == 0)
            return &fields[i];
    return NULL;
}

/* Reads the next word; false at the end. */
static bool next_word(const char **at, key_word *word) {
    const char *unused, *key;
    *at += strspn(*at, " ");
    const size_t length = strcspn(*at, " ");
    snprintf(word->text, sizeof word->text, "%.*s", (int)length, *at);
    *at += length;
    word->rule = cut(word->text, ":!*", &word->value);
    word->null = cut(word->text, "?~", &unused);
    word->listed = cut(word->text, "+", &unused) == '+';
    word->names = word->text;
    const bool renamed = cut(word->text, "=", &key) == '=';
    word->field = find_field(renamed ? key : word->names);
    return length > 0;
}

/* The next of a word's names; false at the end. *agrees: its value must agree with that of
 * the names before it. */
static bool next_name(const char **at, char name[NAME_BYTES], bool *agrees) {
    *agrees = **at == '|';
    *at += strspn(*at, "|/");
    const size_t length = strcspn(*at, "|/");
    snprintf(name, NAME_BYTES, "%.*s", (int)length, *at);
    *at += length;
    return length > 0;
}

static bool names_key(const key_word *word, const char *key) {
    const char *at = word->names;
    char name[NAME_BYTES];
    bool agrees;
    while (next_name(&at, name, &agrees))
        if (strcmp(name, key) == 0)
            return true;
    return false;
}

/* The lists of words: those of all families, then the family's own. */
enum { COMMON, OWN, LISTS };

static const char *list_of(moert_family family, size_t list) {
    return list == COMMON ? common_keys : moert_family_of(family)->keys;
}

/* Whether a word of the list names the field. */
static bool names_field(const char *list, const config_field *field) {
    key_word word;
    while (next_word(&list, &word))
        if (word.field == field)
            return true;
    return false;
}

/* The next word of a list; false at its end. Skips words whose field a later word names. */
static bool next_of(moert_family family, size_t list, const char **at, key_word *word) {
    while (next_word(at, word)) {
        const char *later = list == COMMON ? list_of(family, OWN) : *at;
        if (word->field == NULL || !names_field(later, word->field))
            return true;
    }
    return false;
}

/* Finds the word of a key. */
static bool find_word(moert_family family, const char *key, key_word *found) {
    bool exists = false;
    key_word word;
    for (size_t i = COMMON; i < LISTS; i++)
        for (const char *at = list_of(family, i), *start = at; next_of(family, i, &at, &word);
             start = at)
            if (names_key(&word, key)) {
                const char *again = start;
                exists = next_of(family, i, &again, found);
            }
    return exists;
}

json_t *moert_field_value(const json_t *root, const char *key) {
    json_t *value = json_object_get(root, key);
    return json_is_null(value) ? NULL : value;
}

moert_status moert_field_size(const char *path, const char *key, const json_t *value, int smallest,
                              size_t *out) {
    if (!json_is_integer(value))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is not an integer", path, key);
    json_int_t number = json_integer_value(value);
    if (number < smallest || number > MOERT_FIELD_SIZE_LIMIT)
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is %lld, not within %d..%d", path, key,
                          (long long)number, smallest, MOERT_FIELD_SIZE_LIMIT);
    *out = (size_t)number;
    return MOERT_OK;
}

moert_status moert_field_double(const char *path, const char *key, const json_t *value,
                                bool positive, double *out) {
    if (!json_is_number(value))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is not a number", path, key);
    double number = json_number_value(value);
    if (!(number >= 0.0 && number <= FLT_MAX) || (positive && (float)number == 0.0f))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is %g, but must be %s and a finite float32", path,
                          key, number, positive ? "positive" : "at least 0");
    *out = number;
    return MOERT_OK;
}

moert_status moert_field_float(const char *path, const char *key, const json_t *value,
                               bool positive, float *out) {
    double number;
    MOERT_TRY(moert_field_double(path, key, value, positive, &number));
    *out = (float)number;
    return MOERT_OK;
}

moert_status moert_field_bool(const char *path, const char *key, const json_t *value, bool *out) {
    if (!json_is_boolean(value))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is neither true nor false", path, key);
    *out = json_is_true(value);
    return MOERT_OK;
}

moert_status moert_field_layers(const char *path, const char *key, const json_t *value,
                                size_t layers) {
    return json_is_array(value) && json_array_size(value) == layers
               ? MOERT_OK
               : MOERT_FAIL(ERROR_FORMAT, "%s: %s is not a list of %zu layers (num_hidden_layers)",
                            path, key, layers);
}

/* ---- reading ---- */

static moert_status read_value(const char *path, const char *key, const json_t *value,
                               const config_field *field, moert_model_config *config) {
    void *target = (char *)config + field->offset;
    switch (field->kind) {
    case FIELD_SIZE:
        return moert_field_size(path, key, value, field->smallest, target);
    case FIELD_FLOAT:
        return moert_field_float(path, key, value, field->smallest > 0, target);
    case FIELD_DOUBLE:
        return moert_field_double(path, key, value, field->smallest > 0, target);
    case FIELD_BOOL:
        return moert_field_bool(path, key, value, target);
    default:
        return MOERT_OK;
    }
}

/* *value = the value of a word's key under one of its names, or NULL; *key = that name, or the
 * first. */
static moert_status find_value(const char *path, const json_t *root, const key_word *word,
                               char key[NAME_BYTES], json_t **value) {
    const char *at = word->names;
    char name[NAME_BYTES];
    bool agrees;
    *value = NULL;
    for (bool first = true; next_name(&at, name, &agrees); first = false) {
        json_t *other = moert_field_value(root, name);
        if (*value != NULL && other != NULL && agrees && !json_equal(*value, other))
            return MOERT_FAIL(ERROR_FORMAT, "%s: %s and %s are given and differ", path, key, name);
        if (first || (*value == NULL && other != NULL))
            snprintf(key, NAME_BYTES, "%s", name);
        if (*value == NULL)
            *value = other;
    }
    return MOERT_OK;
}

/* *value = the number of a list with one number for each layer, which are all equal. */
static moert_status take_first(const char *path, const char *key, size_t layers, json_t **value) {
    json_t *list = *value, *other;
    size_t i;
    *value = json_array_get(list, 0);
    MOERT_TRY(moert_field_layers(path, key, list, layers));
    json_array_foreach(list, i, other) {
        if (!json_equal(*value, other))
            return MOERT_FAIL(ERROR_UNSUPPORTED,
                              "%s: %s of layer %zu differs from that of layer 0; moert needs one "
                              "value for all layers",
                              path, key, i);
    }
    return MOERT_OK;
}

static void read_default(const key_word *word, moert_model_config *config) {
    json_t *value = json_loads(word->value, JSON_DECODE_ANY, NULL);
    read_value("defaults", word->names, value, word->field, config);
    json_decref(value);
}

static moert_status read_word(const char *path, const json_t *root, const key_word *word,
                              moert_model_config *config) {
    char key[NAME_BYTES];
    json_t *value;
    MOERT_TRY(find_value(path, root, word, key, &value));
    if (word->listed && json_is_array(value))
        MOERT_TRY(take_first(path, key, config->layers, &value));
    if (value != NULL)
        return read_value(path, key, value, word->field, config);
    if (word->null == '~' && json_is_null(json_object_get(root, key)))
        *(size_t *)((char *)config + word->field->offset) = 0;
    else if (word->rule == ':')
        read_default(word, config);
    else if (word->field->required)
        return MOERT_FAIL(ERROR_FORMAT, "%s: the key %s is missing", path, key);
    return MOERT_OK;
}

/* Whether moert reads the value of a word's key. */
static bool is_read(const key_word *word) {
    return word->rule != '!' && word->rule != '*';
}

moert_status moert_fields_read(const char *path, const json_t *root, moert_model_config *config) {
    key_word word;
    for (size_t i = COMMON; i < LISTS; i++)
        for (const char *at = list_of(config->family, i); next_of(config->family, i, &at, &word);)
            if (is_read(&word) && word.field->kind != FIELD_OTHER)
                MOERT_TRY(read_word(path, root, &word, config));
    return MOERT_OK;
}

void moert_fields_default(moert_model_config *config) {
    const char *at = moert_family_of(config->family)->keys;
    key_word word;
    while (next_word(&at, &word))
        if (word.rule == ':' && word.field->kind != FIELD_OTHER)
            read_default(&word, config);
}

json_t *moert_field_default(moert_family family, const char *key) {
    key_word word;
    return find_word(family, key, &word) && word.rule == ':'
               ? json_loads(word.value, JSON_DECODE_ANY, NULL)
               : NULL;
}

/* ---- check that every key is known ---- */

static bool is_text(const char *expected) {
    return expected[0] < '0' || expected[0] > '9';
}

static bool equals(const json_t *value, const char *expected) {
    if (is_text(expected))
        return json_is_string(value) && strcmp(json_string_value(value), expected) == 0;
    if (json_is_boolean(value))
        return json_is_true(value) == (strcmp(expected, "1") == 0);
    return json_is_number(value) && json_number_value(value) == strtod(expected, NULL);
}

static moert_status check_key(const char *path, const char *key, const json_t *value,
                              moert_family family) {
    key_word word;
    const bool known = find_word(family, key, &word);
    if (json_is_null(value) && known && word.rule != '*' && word.null == '\0')
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is null; remove the key to get the default value",
                          path, key);
    if (json_is_null(value) || (known && (word.rule != '!' || equals(value, word.value))))
        return MOERT_OK;
    if (known && is_text(word.value))
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: %s is '%.64s'; only '%s' is supported", path, key,
                          json_is_string(value) ? json_string_value(value) : "(not a string)",
                          word.value);
    if (known)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s: %s has a value other than %s, the only one that is supported", path,
                          key, word.value);
    return MOERT_FAIL(
        ERROR_UNSUPPORTED,
        "%s: moert does not know the key %.64s of a %s config; remove it if the model "
        "does not depend on it",
        path, key, moert_family_of(family)->model_type);
}

moert_status moert_fields_check(const char *path, json_t *root, moert_family family) {
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        MOERT_TRY(check_key(path, key, value, family));
    }
    return MOERT_OK;
}

bool moert_fields_have(moert_family family, const char *key) {
    const char *at = moert_family_of(family)->keys;
    key_word word;
    while (next_word(&at, &word))
        if (word.rule != '*' && names_key(&word, key))
            return true;
    return false;
}

/* ---- writing ---- */

json_t *moert_field_number(double value) {
    char text[32];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if ((double)strtof(text, NULL) == value || strtod(text, NULL) == value)
            break;
    }
    return json_real(strtod(text, NULL));
}

static json_t *field_json(const config_field *field, const moert_model_config *config) {
    const void *value = (const char *)config + field->offset;
    size_t size;
    switch (field->kind) {
    case FIELD_SIZE:
        size = *(const size_t *)value;
        /* unknown sizes are written as null */
        if (size == 0 && (field->smallest > 0 || field->offset == FIELD(sliding_window)))
            return json_null();
        return json_integer((json_int_t)size);
    case FIELD_FLOAT:
        if (*(const float *)value == 0.0f && field->smallest > 0)
            return json_null();
        return moert_field_number((double)*(const float *)value);
    case FIELD_DOUBLE:
        return moert_field_number(*(const double *)value);
    default:
        return json_boolean(*(const bool *)value);
    }
}

/* Whether moert_fields_write writes a word's key. model_text.c writes the rotary keys. Models
 * without dense layers omit the dense size, since Hugging Face's transformers refuses null as its
 * value. */
static bool is_written(const key_word *word, const moert_model_config *config) {
    return is_read(word) && word->field->kind != FIELD_OTHER &&
           word->field->offset != FIELD(rope.theta) &&
           word->field->offset != FIELD(partial_rotary) &&
           (word->field->offset != FIELD(dense_intermediate) || config->dense_intermediate > 0);
}

bool moert_fields_write(const moert_model_config *config, json_t *root) {
    bool whole = true, agrees;
    key_word word;
    for (size_t i = COMMON; i < LISTS; i++)
        for (const char *at = list_of(config->family, i); next_of(config->family, i, &at, &word);) {
            const char *names = word.names;
            char name[NAME_BYTES];
            if (is_written(&word, config) && next_name(&names, name, &agrees))
                whole &= json_object_set_new(root, name, field_json(word.field, config)) == 0;
        }
    return whole;
}
