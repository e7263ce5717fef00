/* The directory of a run's checkpoints: names of checkpoints, search for the newest one, removal of
 * old ones. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"
#include "train/checkpoint.h"

#define NAME_FORMAT "step-%08llu"

moert_status moert_checkpoint_path(const char *directory, uint64_t step, char **path) {
    return moert_text_path(path, "%s/" NAME_FORMAT, directory, (unsigned long long)step);
}

/* Parses the step in a checkpoint's name. Returns false for other names, and for a step that needs
 * more than 64 bits. */
static bool parse_name(const char *name, uint64_t *step) {
    char again[32];
    *step = strncmp(name, "step-", 5) == 0 ? strtoull(name + 5, NULL, 10) : 0;
    snprintf(again, sizeof again, NAME_FORMAT, (unsigned long long)*step);
    return strcmp(name, again) == 0;
}

/* Appends the step in a directory's name to the list, if the directory is a checkpoint. */
static moert_status add(const char *directory, const char *name, uint64_t *steps, size_t *count) {
    char *path;
    mode_t mode;
    MOERT_TRY(moert_text_path(&path, "%s/%s", directory, name));
    const moert_status status = moert_file_mode(path, true, &mode);
    if (status == MOERT_OK && S_ISDIR(mode))
        parse_name(name, &steps[(*count)++]);
    free(path);
    return status;
}

static int is_checkpoint(const struct dirent *entry) {
    uint64_t step;
    return parse_name(entry->d_name, &step);
}

static int descending(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

moert_status moert_checkpoint_list(const char *directory, uint64_t **steps, size_t *count) {
    struct dirent **entries;
    const int found = scandir(directory, &entries, is_checkpoint, NULL);
    *steps = NULL;
    *count = 0;
    if (found < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? MOERT_OK
                   : MOERT_FAIL(ERROR_IO, "cannot list %s: %s", directory, strerror(errno));
    moert_status status = MOERT_NEW_ARRAY(steps, (size_t)found);
    for (int i = 0; i < found; i++) {
        if (status == MOERT_OK)
            status = add(directory, entries[i]->d_name, *steps, count);
        free(entries[i]);
    }
    free(entries);
    if (status == MOERT_OK) {
        qsort(*steps, *count, sizeof **steps, descending);
    } else {
        free(*steps);
        *steps = NULL;
        *count = 0;
    }
    return status;
}

/* Removes the checkpoints whose names end with `ending`. */
static moert_status remove_ending(const char *directory, const char *ending) {
    DIR *listing = opendir(directory);
    moert_status status = MOERT_OK;
    if (listing == NULL)
        return errno == ENOENT
                   ? MOERT_OK
                   : MOERT_FAIL(ERROR_IO, "cannot list %s: %s", directory, strerror(errno));
    for (struct dirent *entry; status == MOERT_OK && (entry = readdir(listing)) != NULL;)
        if (strncmp(entry->d_name, "step-", 5) == 0 && moert_text_ends_with(entry->d_name, ending))
            status = moert_remove_in(directory, entry->d_name);
    closedir(listing);
    return status;
}

moert_status moert_checkpoint_sweep(const char *directory) {
    return remove_ending(directory, ".tmp");
}

moert_status moert_checkpoint_prune(const char *directory, uint64_t newest, moert_keep keep) {
    uint64_t *steps;
    size_t count;
    MOERT_TRY(moert_checkpoint_sweep(directory));
    MOERT_TRY(remove_ending(directory, ".old"));
    MOERT_TRY(moert_checkpoint_list(directory, &steps, &count));
    moert_status status = MOERT_OK;
    for (size_t i = 0, kept = 0; i < count && status == MOERT_OK; i++) {
        const bool chosen = (keep.every > 0 && steps[i] % keep.every == 0) || steps[i] == keep.step;
        if (steps[i] <= newest && (kept++ < keep.last || chosen))
            continue;
        char name[32];
        snprintf(name, sizeof name, NAME_FORMAT, (unsigned long long)steps[i]);
        status = moert_remove_in(directory, name);
    }
    free(steps);
    return status;
}
