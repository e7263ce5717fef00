/* Compares the files of a run or a model with their checksums. */
#include "tools/info/check.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/manifest.h"
#include "train/checkpoint.h"

typedef struct tally {
    size_t checked, damaged;
} tally;

/* Compares the files of one directory, DIRECTORY + name, with their checksums. */
static moert_status check_one(const char *directory, const char *name, tally *t) {
    size_t bytes;
    char *path;
    MOERT_TRY(moert_text_path(&path, "%s%s", directory, name));
    const moert_status status = moert_manifest_check(path, &bytes);
    if (status != MOERT_OK)
        printf("damaged  %s\n", moert_last_error());
    else if (bytes == 0)
        printf("unknown  %s: has no manifest.json\n", path);
    else
        printf("good     %s: %zu bytes are as they were written\n", path, bytes);
    free(path);
    t->checked++;
    t->damaged += status != MOERT_OK;
    return status == MOERT_ERROR_MEMORY ? status : MOERT_OK;
}

/* Checks the checkpoints in a directory, oldest first. */
static moert_status check_list(const char *checkpoints, tally *t) {
    uint64_t *steps;
    size_t count;
    moert_status status = moert_checkpoint_list(checkpoints, &steps, &count);
    for (; status == MOERT_OK && count > 0; count--) {
        char *path;
        status = moert_checkpoint_path(checkpoints, steps[count - 1], &path);
        if (status == MOERT_OK) {
            status = check_one(path, "", t);
            free(path);
        }
    }
    free(steps);
    return status;
}

/* Checks the checkpoints of a run directory or of a --save-dir, and the trained model of a run
 * directory. */
static moert_status check_run(const char *directory, tally *t) {
    char *path;
    bool has_model = false;
    MOERT_TRY(check_list(directory, t));
    MOERT_TRY(moert_text_path(&path, "%s/checkpoints", directory));
    moert_status status = check_list(path, t);
    free(path);
    if (status == MOERT_OK)
        status = moert_file_exists(&has_model, "%s/model", directory);
    return has_model ? check_one(directory, "/model", t) : status;
}

moert_status moert_info_check(const char *directory) {
    tally t = {0, 0};
    bool is_one;
    MOERT_TRY(moert_file_exists(&is_one, "%s/manifest.json", directory));
    MOERT_TRY(is_one ? check_one(directory, "", &t) : check_run(directory, &t));
    if (t.checked == 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "--check %s: holds no manifest.json, no checkpoints and no model/",
                          directory);
    return t.damaged == 0
               ? MOERT_OK
               : MOERT_FAIL(ERROR_FORMAT, "--check %s: %zu of %zu directories are damaged",
                            directory, t.damaged, t.checked);
}
