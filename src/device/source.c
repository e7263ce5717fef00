/* Assembles the source of programs from kernel files (built in or from MOERT_KERNEL_DIR) and their
 * includes. */
#include "device/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"
#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"

extern const char *const moert_embedded_names[];
extern const char *const moert_embedded_texts[];

static moert_status read_file(const char *path, char **text) {
    size_t bytes;
    int file;
    if (moert_file_open(path, &file, &bytes) != MOERT_OK)
        return MOERT_FAIL(ERROR_IO, "MOERT_KERNEL_DIR: %s", moert_last_error());
    moert_status status = moert_alloc(text, bytes + 1, 1);
    if (status == MOERT_OK && read(file, *text, bytes) != (ssize_t)bytes) {
        free(*text);
        status = MOERT_FAIL(ERROR_IO, "%s: the file cannot be read completely", path);
    }
    close(file);
    return status;
}

moert_status moert_kernel_source(const char *file, char **text) {
    const char *directory = moert_config_get()->kernel_dir;
    if (directory[0] != '\0') {
        char *path = moert_text_format("%s/%s", directory, file);
        moert_status status =
            path != NULL ? read_file(path, text) : MOERT_FAIL(ERROR_MEMORY, "no room for a path");
        free(path);
        return status;
    }
    for (size_t i = 0; moert_embedded_names[i] != NULL; i++) {
        if (strcmp(moert_embedded_names[i], file) != 0)
            continue;
        *text = strdup(moert_embedded_texts[i]);
        return *text != NULL ? MOERT_OK
                             : MOERT_FAIL(ERROR_MEMORY, "no room for the kernel file %s", file);
    }
    return MOERT_FAIL(ERROR_INTERNAL, "no kernel file %s is built in", file);
}

/* Replaces each line `#include "FILE"` of a kernel file by that file. */
static moert_status insert_includes(const char *file, char **text) {
    static const char start[] = "\n#include \"";
    size_t done = 0;
    int number = 1; /* number of the line at `done` */
    for (char *line; (line = strstr(*text + done, start)) != NULL;) {
        const char *word = line + sizeof start - 1, *rest = word + strcspn(word, "\n");
        char name[96], *included = NULL, *whole = NULL;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "\"\n"), word);
        for (const char *at = *text + done; at <= line; at++)
            number += *at == '\n';
        *line = '\0';
        MOERT_TRY(moert_kernel_source(name, &included));
        const moert_status status = insert_includes(name, &included);
        if (status == MOERT_OK)
            whole = moert_text_format("%s\n#line 1 \"%s\"\n%s\n#line %d \"%s\"%s", *text, name,
                                      included, number + 1, file, rest);
        free(included);
        MOERT_TRY(status);
        if (whole == NULL)
            return MOERT_FAIL(ERROR_MEMORY, "no room for the kernel file %s", name);
        done = strlen(whole) - strlen(rest);
        free(*text);
        *text = whole;
    }
    return MOERT_OK;
}

/* *text = a kernel file with its includes. */
static moert_status source_of(const char *file, char **text) {
    MOERT_TRY(moert_kernel_source(file, text));
    return insert_includes(file, text);
}

moert_status moert_program_source(const char *spec, char **source) {
    char *common = NULL, *family = NULL;
    char file[96];
    snprintf(file, sizeof file, "%.*s.cl", (int)strcspn(spec, " "), spec);
    moert_status status = source_of("lib/common.h", &common);
    if (status == MOERT_OK)
        status = source_of(file, &family);
    if (status == MOERT_OK) {
        *source = moert_text_format("%s\n#line 1 \"%s\"\n%s", common, file, family);
        if (*source == NULL)
            status = MOERT_FAIL(ERROR_MEMORY, "no room for the source of %s", file);
    }
    MOERT_FREE(common, family);
    return status;
}
