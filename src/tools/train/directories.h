/* The directories that a run of moert-train writes to. */
#pragma once

#include "io/lock.h"
#include "tools/train/options.h"

/* Checks OUT/model, which the run replaces at its end. Refuses it if it is the --model of this run
 * or no directory. Refuses an older run's, unless this run continues that run or may overwrite
 * it. */
moert_status moert_train_check_out(const moert_train_options *options);

/* Locks the directories, and empties them if the run may overwrite them; call it on rank 0. The
 * directory of the checkpoints has its own lock, since it may be the --save-dir of another job.
 * Release the locks also after an error. */
moert_status moert_train_lock(const moert_train_options *options, moert_lock *locks[2]);
