/*
 * A directory that one job at a time may write to.
 *
 * The lock is an flock of DIRECTORY/.lock, which holds "HOST PID" for messages. The kernel releases
 * it when its holder ends for any reason, so a file that remains never blocks.
 */
#pragma once

#include "base/error.h"

typedef struct moert_lock moert_lock;

/*
 * Takes the lock, and creates the directory if it is missing. Where the file system has no locks,
 * it warns and succeeds without one. Not collective. Errors: ERROR_USAGE (another job has it),
 * ERROR_IO, ERROR_MEMORY.
 */
moert_status moert_lock_take(const char *directory, moert_lock **lock);
/* Removes the file, and the directory if moert_lock_take made it and it is empty. NULL is legal. */
void moert_lock_release(moert_lock *lock);
