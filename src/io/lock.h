/*
 * A directory that one job at a time may write to.
 *
 * The lock is an flock of DIRECTORY/.lock, which holds "HOST PID" for messages. The kernel releases
 * the lock when the holder ends for any reason, so a leftover file never blocks a job.
 */
#pragma once

#include "base/error.h"

typedef struct moert_lock moert_lock;

/*
 * Takes the lock, and creates the directory if it is missing. If the file system has no locks, the
 * call warns and succeeds without a lock. Not collective. Errors: ERROR_USAGE (another job holds
 * the lock), ERROR_IO, ERROR_MEMORY.
 */
moert_status moert_lock_take(const char *directory, moert_lock **lock);
/* Releases the lock and removes its file, and the directories that moert_lock_take has created if
 * they are empty. NULL is legal. */
void moert_lock_release(moert_lock *lock);
