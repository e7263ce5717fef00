/*
 * pack: makes a safetensors file for the end-to-end tests.
 *
 *   pack OUT NAME:TYPE[D,D,...]:VALUES ... NAME=FILE#TENSOR ...
 *
 * VALUES: numbers separated by commas, which are repeated if there are more elements than numbers;
 * ~SEED, uniform random values in [-1, 1), or 0 to 255 for integers; or @FILE#TENSOR, the bytes of
 * that tensor. NAME=FILE#TENSOR copies a tensor with its dtype and shape.
 */
#include "base/dtype.h"
#include "base/rng.h"
#include "io/safetensors.h"
#include "tools/check.h"

enum { MOST_TENSORS = 24 };

typedef struct source {
    char name[64];
    const char *values;
    moert_tensor_spec spec;
    size_t elements;
    moert_tensors *file; /* the file that holds tensor `from`, or NULL */
    const moert_tensor *from;
} source;

/* Finds the tensor that the text FILE#TENSOR names. */
static moert_status find(const char *text, source *s) {
    const char *hash = strrchr(text, '#');
    char path[512];
    if (hash == NULL)
        return MOERT_FAIL(ERROR_USAGE, "%s is not FILE#TENSOR", text);
    snprintf(path, sizeof path, "%.*s", (int)(hash - text), text);
    MOERT_TRY(moert_tensors_open(path, &s->file));
    s->from = moert_tensors_find(s->file, hash + 1);
    return s->from != NULL ? MOERT_OK : MOERT_FAIL(ERROR_MISMATCH, "there is no %s", text);
}

/* Parses TYPE[D,...] and advances *at to its last bracket. */
static moert_status parse_shape(char **at, source *s) {
    char type[16];
    int begin = 0;
    if (sscanf(*at, "%15[A-Z0-9_][%n", type, &begin) != 1 || begin == 0)
        return MOERT_FAIL(ERROR_USAGE, "%s is not TYPE[D,...]:VALUES", *at);
    while (strcmp(moert_file_type_text(s->spec.type), type) != 0)
        if (s->spec.type++ == MOERT_FILE_BOOL)
            return MOERT_FAIL(ERROR_USAGE, "there is no type %s", type);
    s->elements = 1;
    for (*at += begin; **at != ']'; *at += **at == ',') {
        char *start = *at;
        s->spec.shape[s->spec.rank] = strtoul(start, at, 10);
        s->elements *= s->spec.shape[s->spec.rank++];
        if (*at == start || s->spec.rank == MOERT_FILE_MAX_RANK)
            return MOERT_FAIL(ERROR_USAGE, "%s is not D,...]:VALUES", start);
    }
    return MOERT_OK;
}

static moert_status parse(char *text, source *s) {
    const size_t length = strcspn(text, ":=");
    char *at = text + length + 1;
    snprintf(s->name, sizeof s->name, "%.*s", (int)length, text);
    s->spec = (moert_tensor_spec){.name = s->name};
    if (text[length] == '=') {
        MOERT_TRY(find(at, s));
        s->spec.type = s->from->type;
        s->spec.rank = s->from->rank;
        s->elements = s->from->elements;
        memcpy(s->spec.shape, s->from->shape, sizeof s->spec.shape);
        return MOERT_OK;
    }
    MOERT_TRY(parse_shape(&at, s));
    s->values = at + 2;
    if (at[1] != ':')
        return MOERT_FAIL(ERROR_USAGE, "%s has no values", text);
    if (s->values[0] != '@')
        return MOERT_OK;
    MOERT_TRY(find(s->values + 1, s));
    if (s->from->bytes != s->elements * moert_file_type_bytes(s->spec.type))
        return MOERT_FAIL(ERROR_MISMATCH, "%s: there are %zu bytes", text, s->from->bytes);
    return MOERT_OK;
}

static void store(moert_file_type type, void *values, size_t i, double value) {
    static const struct {
        moert_file_type type;
        moert_dtype dtype;
    } floats[] = {{MOERT_FILE_F32, MOERT_DTYPE_F32},
                  {MOERT_FILE_F16, MOERT_DTYPE_F16},
                  {MOERT_FILE_BF16, MOERT_DTYPE_BF16},
                  {MOERT_FILE_F8_E4M3, MOERT_DTYPE_E4M3},
                  {MOERT_FILE_F8_E5M2, MOERT_DTYPE_E5M2}};
    const size_t bytes = moert_file_type_bytes(type);
    uint32_t bits = (uint32_t)(int32_t)value; /* the bits of an integer dtype */
    for (size_t f = 0; f < MOERT_COUNT(floats); f++)
        if (floats[f].type == type)
            bits = moert_dtype_encode(floats[f].dtype, (float)value);
    memcpy((char *)values + i * bytes, &bits, bytes); /* the file is little-endian */
}

static void fill(const source *s, void *values) {
    const bool random = s->values[0] == '~';
    const bool integers = s->spec.type > MOERT_FILE_F8_E5M2;
    const char *at = s->values;
    for (size_t i = 0; i < s->elements; i++) {
        char *end = NULL;
        double value;
        if (random) {
            const double u = moert_rng_uniform(strtoul(s->values + 1, NULL, 10), 0, i);
            value = integers ? 256.0 * u : 2.0 * u - 1.0;
        } else {
            value = strtod(at, &end);
            at = *end == ',' ? end + 1 : s->values;
        }
        store(s->spec.type, values, i, value);
    }
}

static void put(moert_tensor_writer *writer, const source *s) {
    void *values;
    if (s->from != NULL) {
        check(moert_writer_put(writer, s->name, 0, s->elements, s->from->data));
        return;
    }
    check(moert_alloc(&values, s->elements, moert_file_type_bytes(s->spec.type)));
    fill(s, values);
    check(moert_writer_put(writer, s->name, 0, s->elements, values));
    free(values);
}

int main(int argc, char **argv) {
    static source sources[MOST_TENSORS];
    static moert_tensor_spec specs[MOST_TENSORS];
    moert_tensor_writer *writer;
    const size_t count = (size_t)argc - 2;
    if (argc < 3 || argc > 2 + MOST_TENSORS) {
        fputs("usage: pack OUT NAME:TYPE[D,...]:VALUES ...\n", stderr);
        return 2;
    }
    for (size_t i = 0; i < count; i++) {
        check(parse(argv[2 + i], &sources[i]));
        specs[i] = sources[i].spec;
    }
    check(moert_writer_open(argv[1], specs, count, NULL, true, &writer));
    for (size_t i = 0; i < count; i++)
        put(writer, &sources[i]);
    for (size_t i = 0; i < count; i++)
        moert_tensors_close(sources[i].file);
    check(moert_writer_close(writer));
    return 0;
}
