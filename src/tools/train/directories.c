/* Checks, locks and empties the directories that a run writes to. */
#include "tools/train/directories.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"

moert_status moert_train_check_out(const moert_train_options *o) {
    mode_t there;
    if (o->trainer.out == NULL || o->replays || o->computes_only)
        return MOERT_OK;
    char *path;
    MOERT_TRY(moert_text_path(&path, "%s/model", o->trainer.out));
    const bool same = o->model_path != NULL && moert_same_file(o->model_path, path);
    const moert_status status = moert_file_mode(path, true, &there);
    free(path);
    MOERT_TRY(status);
    if (there != 0 && !S_ISDIR(there))
        return MOERT_FAIL(ERROR_USAGE,
                          "--out %s: the directory has a file 'model', but the trained model is "
                          "saved in a directory of this name",
                          o->trainer.out);
    if (there != 0 && !same && o->resume == NULL && !o->overwrites)
        return MOERT_FAIL(ERROR_USAGE,
                          "--out %s has the model of an older run, which would be lost; give "
                          "another directory, --overwrite to replace it, or --resume auto to go on",
                          o->trainer.out);
    return same ? MOERT_FAIL(ERROR_USAGE,
                             "--model %s is where --out %s has its result, which would replace "
                             "it; give another --out",
                             o->model_path, o->trainer.out)
                : MOERT_OK;
}

/* Removes the checkpoints of an older run. */
static moert_status remove_checkpoints(const char *directory) {
    uint64_t *steps;
    size_t count;
    moert_status status = moert_checkpoint_list(directory, &steps, &count);
    for (size_t i = 0; status == MOERT_OK && i < count; i++) {
        char *path;
        status = moert_checkpoint_path(directory, steps[i], &path);
        if (status == MOERT_OK)
            status = moert_remove_tree(path);
        free(path);
    }
    free(steps);
    return status;
}

moert_status moert_train_lock(const moert_train_options *o, moert_lock *locks[2]) {
    const char *out = o->trainer.out, *save_dir = o->trainer.save_dir;
    if (out == NULL || o->replays || o->computes_only)
        return MOERT_OK;
    MOERT_TRY(moert_lock_take(out, &locks[0]));
    if (save_dir != NULL && moert_same_file(save_dir, out))
        return MOERT_FAIL(ERROR_USAGE, "--save-dir %s is --out itself; give another directory",
                          save_dir);
    char *saves;
    MOERT_TRY(save_dir != NULL ? moert_text_path(&saves, "%s", save_dir)
                               : moert_text_path(&saves, "%s/checkpoints", out));
    moert_status status = moert_lock_take(saves, &locks[1]);
    if (status == MOERT_OK && o->overwrites)
        status = remove_checkpoints(saves);
    free(saves);
    return status;
}
