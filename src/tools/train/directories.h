/* The directories that a run of moert-train writes to. */
#pragma once

#include "io/lock.h"
#include "tools/train/options.h"

/* Checks OUT/model, which the run replaces at its end. Fails if OUT/model is the --model of this
 * run or is not a directory. Also fails if OUT/model belongs to an older run, unless this run
 * continues the older run or may overwrite OUT/model. */
moert_status moert_train_check_out(const moert_train_options *options);

/* Locks the directories, and empties them if the run may overwrite them; call it on rank 0. The
 * directory of the checkpoints has its own lock, since another job may use it as --save-dir.
 * Release the locks also after an error. */
moert_status moert_train_lock(const moert_train_options *options, moert_lock *locks[2]);
