/*
 * pack: makes a safetensors file for the end-to-end tests.
 *
 *   pack OUT NAME:TYPE[D,D,...]:VALUES ...
 *
 * VALUES: numbers with commas, again from the first when they are fewer than the elements; ~SEED,
 * uniform numbers of [-1, 1), of integers 0 to 255; or @FILE#TENSOR, the bytes of that tensor.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/rng.h"
#include "io/safetensors.h"

enum { MOST_TENSORS = 24 };

typedef struct source {
    char name[64];
    const char *values;
    moert_tensor_spec spec;
    size_t elements;
} source;

static moert_status parse(char *text, source *s) {
    char type[16];
    int at = 0;
    if (sscanf(text, "%63[^:]:%15[A-Z0-9_][%n", s->name, type, &at) != 2 || at == 0)
        return MOERT_FAIL(ERROR_USAGE, "%s is not NAME:TYPE[D,...]:VALUES", text);
    s->spec = (moert_tensor_spec){.name = s->name};
    while (strcmp(moert_file_type_text(s->spec.type), type) != 0)
        if (s->spec.type++ == MOERT_FILE_BOOL)
            return MOERT_FAIL(ERROR_USAGE, "%s: no type %s", text, type);
    s->elements = 1;
    for (char *next = text + at; *next != ']'; next += *next == ',') {
        char *start = next;
        s->spec.shape[s->spec.rank] = strtoul(start, &next, 10);
        s->elements *= s->spec.shape[s->spec.rank++];
        if (next == start || s->spec.rank == MOERT_FILE_MAX_RANK)
            return MOERT_FAIL(ERROR_USAGE, "%s is not NAME:TYPE[D,...]:VALUES", text);
    }
    s->values = strchr(strchr(text + at, ']'), ':');
    if (s->values++ == NULL)
        return MOERT_FAIL(ERROR_USAGE, "%s has no values", text);
    return MOERT_OK;
}

static void store(moert_file_type type, void *values, size_t i, double value) {
    switch (type) {
    case MOERT_FILE_F32:
        ((float *)values)[i] = (float)value;
        break;
    case MOERT_FILE_F16:
    case MOERT_FILE_BF16:
        ((uint16_t *)values)[i] = (uint16_t)moert_number_encode(
            type == MOERT_FILE_F16 ? MOERT_NUMBER_F16 : MOERT_NUMBER_BF16, (float)value);
        break;
    case MOERT_FILE_I32:
        ((int32_t *)values)[i] = (int32_t)value;
        break;
    default:
        ((uint8_t *)values)[i] = (uint8_t)value;
    }
}

static void fill(const source *s, void *values) {
    const bool random = s->values[0] == '~';
    const bool integers = s->spec.type >= MOERT_FILE_F8_E4M3;
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

static moert_status put_from_file(moert_tensor_writer *writer, const source *s) {
    const char *hash = strrchr(s->values, '#');
    char path[512];
    moert_tensors *file;
    if (hash == NULL)
        return MOERT_FAIL(ERROR_USAGE, "%s is not @FILE#TENSOR", s->values);
    snprintf(path, sizeof path, "%.*s", (int)(hash - s->values - 1), s->values + 1);
    MOERT_TRY(moert_tensors_open(path, &file));
    const moert_tensor *tensor = moert_tensors_find(file, hash + 1);
    const size_t bytes = s->elements * moert_file_type_bytes(s->spec.type);
    const moert_status status =
        tensor == NULL || tensor->bytes != bytes
            ? MOERT_FAIL(ERROR_MISMATCH, "%s has %zu bytes, not %zu", s->values,
                         tensor != NULL ? tensor->bytes : 0, bytes)
            : moert_writer_put(writer, s->name, 0, s->elements, tensor->data);
    moert_tensors_close(file);
    return status;
}

static moert_status put(moert_tensor_writer *writer, const source *s) {
    void *values;
    if (s->values[0] == '@')
        return put_from_file(writer, s);
    MOERT_TRY(moert_alloc(&values, s->elements, moert_file_type_bytes(s->spec.type)));
    fill(s, values);
    const moert_status status = moert_writer_put(writer, s->name, 0, s->elements, values);
    free(values);
    return status;
}

static moert_status pack(const char *path, char **texts, size_t count) {
    static source sources[MOST_TENSORS];
    moert_tensor_spec specs[MOST_TENSORS];
    moert_tensor_writer *writer;
    moert_status status = MOERT_OK;
    for (size_t i = 0; i < count; i++) {
        MOERT_TRY(parse(texts[i], &sources[i]));
        specs[i] = sources[i].spec;
    }
    MOERT_TRY(moert_writer_open(path, specs, count, NULL, true, &writer));
    for (size_t i = 0; i < count && status == MOERT_OK; i++)
        status = put(writer, &sources[i]);
    const moert_status closed = moert_writer_close(writer);
    return status != MOERT_OK ? status : closed;
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > 2 + MOST_TENSORS) {
        fputs("usage: pack OUT NAME:TYPE[D,...]:VALUES ...\n", stderr);
        return 2;
    }
    if (pack(argv[1], argv + 2, (size_t)(argc - 2)) == MOERT_OK)
        return 0;
    fprintf(stderr, "pack: %s\n", moert_last_error());
    return 1;
}
