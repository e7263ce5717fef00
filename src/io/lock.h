/*
 * A directory that one job at a time may write to.
 *
 * The lock is an flock of DIRECTORY/.lock, which holds "HOST PID" for messages. The kernel releases it
 * when its holder ends, however that happens, so a file that was left behind never blocks.
 */
#pragma once

#include "base/error.h"

typedef struct moert_lock moert_lock;

/*
 * Takes the lock, and makes the directory if it is missing. Where the file system has no locks, warns
 * and goes on. Not collective. Errors: ERROR_USAGE (another job has it), ERROR_IO, ERROR_MEMORY.
 */
moert_status moert_lock_take(const char *directory, moert_lock **lock);
/* Removes the file, and the directory if moert_lock_take made it and it is empty. NULL is legal. */
void moert_lock_release(moert_lock *lock);
