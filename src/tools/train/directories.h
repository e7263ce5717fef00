/* The directories that a run of moert-train writes to. */
#pragma once

#include "io/lock.h"
#include "tools/train/options.h"

/* The run replaces OUT/model at the end. Refuses an OUT/model that is the --model of this run, that
 * is not a directory, or that is of an older run, unless this one goes on with it or may overwrite
 * it. */
moert_status moert_train_check_out(const moert_train_options *options);

/* Locks the directories, and empties them if the run may overwrite them; call it on rank 0. That of
 * the checkpoints has a lock of its own: it may be the --save-dir of another job. Release the locks
 * also after an error. */
moert_status moert_train_lock(const moert_train_options *options, moert_lock *locks[2]);
