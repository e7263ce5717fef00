/* Prints the properties of a token source, and writes its documents. */
#include "tools/info/data.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/source.h"
#include "tools/common/table.h"

/* Lengths of the documents, in tokens. */
typedef struct lengths {
    size_t shortest, longest, empty;
} lengths;

static lengths measure(const moert_source *source) {
    lengths all = {SIZE_MAX, 0, 0};
    for (size_t i = 0; i < source->documents; i++) {
        const size_t tokens = moert_source_length(source, i);
        all.shortest = moert_min(all.shortest, tokens);
        all.longest = moert_max(all.longest, tokens);
        all.empty += tokens == 0;
    }
    return all;
}

/* *described = an object whose members are texts and numbers, in the order in which they are
 * printed. */
static moert_status describe(const moert_source *source, json_t **described) {
    static const char *const formats[] = {[MOERT_SOURCE_TEXT] = "text",
                                          [MOERT_SOURCE_RAW] = "raw tokens",
                                          [MOERT_SOURCE_INDEXED] = "Megatron dataset"};
    const lengths all = measure(source);
    const size_t sequences =
        source->kind == MOERT_SOURCE_INDEXED ? source->index.sequences : source->documents;
    *described = json_pack("{ss ss ss sI sI sI sI sI sI sI}", "identity", source->identity,
                           "format", formats[source->kind], "type", source->type, "files",
                           (json_int_t)source->corpus.count, "tokens", (json_int_t)source->tokens,
                           "documents", (json_int_t)source->documents, "sequences",
                           (json_int_t)sequences, "shortest", (json_int_t)all.shortest, "longest",
                           (json_int_t)all.longest, "empty", (json_int_t)all.empty);
    return *described != NULL ? MOERT_OK : MOERT_FAIL(ERROR_MEMORY, "no room to describe the data");
}

static void print_lines(const json_t *described) {
    const char *name;
    const json_t *value;
    json_object_foreach((json_t *)described, name, value) {
        if (json_is_string(value))
            printf("%-10s %s\n", name, json_string_value(value));
        else
            printf("%-10s %lld\n", name, (long long)json_integer_value(value));
    }
}

static moert_status print(const moert_source *source, bool as_json) {
    json_t *described;
    MOERT_TRY(describe(source, &described));
    moert_status status = MOERT_OK;
    if (as_json)
        status = moert_table_json("the description", described);
    else
        print_lines(described);
    json_decref(described);
    return status;
}

/* ---- documents ---- */

static moert_status write_document(const moert_source *source, size_t document, FILE *file) {
    int32_t tokens[4096];
    const size_t start = moert_source_start(source, document),
                 length = moert_source_length(source, document);
    fputc('[', file);
    for (size_t at = 0; at < length; at += MOERT_COUNT(tokens)) {
        const size_t count = moert_min(MOERT_COUNT(tokens), length - at);
        MOERT_TRY(moert_source_read(source, start + at, count, tokens));
        for (size_t i = 0; i < count; i++)
            fprintf(file, "%s%d", at + i > 0 ? ", " : "", (int)tokens[i]);
    }
    fputs("]\n", file);
    return MOERT_OK;
}

static moert_status write_documents(const moert_source *source, const char *path) {
    FILE *file = fopen(path, "w");
    moert_status status = MOERT_OK;
    if (file == NULL)
        return MOERT_FAIL(ERROR_IO, "--documents %s: cannot be written: %s", path, strerror(errno));
    for (size_t i = 0; i < source->documents && status == MOERT_OK && !ferror(file); i++)
        status = write_document(source, i, file);
    const bool failed = ferror(file) != 0;
    if ((fclose(file) != 0 || failed) && status == MOERT_OK)
        status = MOERT_FAIL(ERROR_IO, "--documents %s: cannot be written: %s (is the disk full?)",
                            path, strerror(errno));
    return status;
}

moert_status moert_info_data(const moert_option_list *paths, unsigned bits, const char *documents,
                             bool as_json) {
    moert_source *source;
    MOERT_TRY(moert_source_open(paths->words, paths->count, bits, &source));
    moert_status status = documents != NULL ? write_documents(source, documents) : MOERT_OK;
    if (status == MOERT_OK)
        status = print(source, as_json);
    moert_source_close(source);
    return status;
}
