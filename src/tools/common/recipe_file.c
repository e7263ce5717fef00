/* Reads the value of --precision. */
#include "tools/common/recipe_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"
#include "base/memory.h"
#include "io/json.h"
#include "moert/quantize.h"

enum { LIMIT_BYTES = 1 << 16, WORD_BYTES = 64, TEXT_BYTES = 512 };

/* X(field): the roundings and the shares of moert_recipe. */
#define ROUNDINGS(X) X(x) X(weight) X(dy) X(wgrad_x) X(wgrad_dy)
#define SHARES(X)    X(bf16_first) X(bf16_last) X(bf16_finish)

static const struct {
    const char *word;
    uint32_t flag;
} flags[] = {{"tiles", MOERT_ROUND_TILES},
             {"stochastic", MOERT_ROUND_STOCHASTIC},
             {"hadamard", MOERT_ROUND_HADAMARD}};

/* The bits of one word of a rounding; 0 for "bf16", UINT32_MAX if there is no such word. */
static uint32_t bits_of(const char *word, bool first) {
    const char *name;
    if (first && strcmp(word, "bf16") == 0)
        return MOERT_ROUND_BF16;
    for (unsigned f = 0; first && (name = moert_format_name((moert_format)f)) != NULL; f++)
        if (strcmp(word, name) == 0)
            return MOERT_ROUND_TO(f);
    for (size_t i = 0; !first && i < MOERT_COUNT(flags); i++)
        if (strcmp(word, flags[i].word) == 0)
            return flags[i].flag;
    return UINT32_MAX;
}

static moert_status read_rounding(const char *path, const char *field, const json_t *value,
                                  uint32_t *rounding) {
    const char *text = json_string_value(value);
    char words[WORD_BYTES], *rest = words;
    *rounding = 0;
    if (value == NULL)
        return MOERT_OK;
    snprintf(words, sizeof words, "%s", text != NULL ? text : "");
    bool first = true;
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL; first = false) {
        const uint32_t bits = bits_of(word, first);
        if (bits == UINT32_MAX)
            return MOERT_FAIL(ERROR_FORMAT,
                              "%s: %s of a recipe has the word \"%s\"; expected bf16, mxfp8-e4m3, "
                              "mxfp8-e5m2, mxfp4, nvfp4 or fp8-block, then any of tiles, "
                              "stochastic, hadamard",
                              path, field, word);
        *rounding |= bits;
    }
    return !first ? MOERT_OK
                  : MOERT_FAIL(ERROR_FORMAT, "%s: %s of a recipe is not a text such as \"nvfp4\"",
                               path, field);
}

static moert_status read_share(const char *path, const char *field, const json_t *value,
                               double *share) {
    *share = json_number_value(value);
    return value == NULL || json_is_number(value)
               ? MOERT_OK
               : MOERT_FAIL(ERROR_FORMAT, "%s: %s of a recipe is not a number", path, field);
}

static moert_status check_fields(const char *path, json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        bool known = strcmp(key, "attention") == 0;
#define IS_KNOWN(field) known |= strcmp(key, #field) == 0;
        ROUNDINGS(IS_KNOWN)
        SHARES(IS_KNOWN)
#undef IS_KNOWN
        if (!known)
            return MOERT_FAIL(ERROR_FORMAT,
                              "%s: a recipe has no field %s; expected x, weight, dy, wgrad_x, "
                              "wgrad_dy, attention, bf16_first, bf16_last or bf16_finish",
                              path, key);
    }
    return MOERT_OK;
}

static moert_status read_object(const char *path, json_t *object, moert_recipe *recipe) {
    *recipe = (moert_recipe){0};
    const json_t *attention = json_object_get(object, "attention");
    MOERT_TRY(check_fields(path, object));
    if (attention != NULL && !json_is_boolean(attention))
        return MOERT_FAIL(ERROR_FORMAT, "%s: attention of a recipe is not true or false", path);
    recipe->attention = json_is_true(attention);
#define READ_ROUNDING(field)                                                                       \
    MOERT_TRY(read_rounding(path, #field, json_object_get(object, #field), &recipe->field));
#define READ_SHARE(field)                                                                          \
    MOERT_TRY(read_share(path, #field, json_object_get(object, #field), &recipe->field));
    ROUNDINGS(READ_ROUNDING)
    SHARES(READ_SHARE)
#undef READ_ROUNDING
#undef READ_SHARE
    return moert_recipe_check(recipe);
}

static moert_status read_json(const char **text, moert_recipe *recipe) {
    static char kept[TEXT_BYTES];
    const bool direct = **text == '{';
    char *canonical = NULL;
    json_t *object;
    moert_status status;
    const char *path = direct ? "--precision" : *text;
    MOERT_TRY(direct ? moert_json_parse(path, "recipe", *text, strlen(*text), &object)
                     : moert_json_read(path, "recipe", LIMIT_BYTES, &object));
    MOERT_TRY_OR(done, read_object(path, object, recipe));
    MOERT_TRY_OR(done, moert_json_text(path, object, JSON_COMPACT | JSON_SORT_KEYS, &canonical));
    if (strlen(canonical) >= sizeof kept)
        status =
            MOERT_FAIL(ERROR_FORMAT, "%s: the recipe has more than %d bytes", path, TEXT_BYTES - 1);
    else if (!direct)
        *text = strcpy(kept, canonical);
done:
    json_decref(object);
    free(canonical);
    return status;
}

moert_status moert_recipe_read(const char **text, moert_precision *precision,
                               moert_recipe *recipe) {
    const char *word;
    for (unsigned p = 0; p < MOERT_PRECISION_RECIPE; p++) {
        word = moert_choice_word(MOERT_PRECISION_WORDS, p);
        if (strcmp(*text, word) != 0)
            continue;
        *precision = (moert_precision)p;
        *recipe = *moert_recipe_of(*precision);
        return MOERT_OK;
    }
    if (**text != '{' && access(*text, R_OK) != 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "--precision is %s; expected one of %s, or a file with a recipe (%s: %s)",
                          *text, MOERT_PRECISION_WORDS, *text, strerror(errno));
    *precision = MOERT_PRECISION_RECIPE;
    return read_json(text, recipe);
}
