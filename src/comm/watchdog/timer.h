/*
 * Ends this process if it waits too long for other ranks while no watchdog runs: from before
 * MPI_Init until the watchdog's start, and from the watchdog's stop to the end of the process.
 *
 * A thread of this process measures the process's waits (base/phase.h). The thread has no data
 * about the other ranks, since the ranks may not be connected yet. A process that has waited in one
 * call for longer than the time limit prints a message and ends with status 1; mpirun then ends the
 * job. Higher ranks wait up to 6 seconds longer, so that usually only one rank prints. For programs
 * only: in a library, the caller's program may call MPI_Init itself.
 */
#pragma once

#include "base/error.h"

/* Starts the thread, which runs until the process ends. With timeout_s = 0 the call starts no
 * thread. `where`: see moert_timer_place. ERROR_MEMORY (no thread). */
moert_status moert_timer_start(unsigned timeout_s, const char *where);
/* Sets the words for the message: "rank 3 has waited for 62 s `where`; ending the job". Keeps the
 * pointer, not a copy. */
void moert_timer_place(const char *where);

/* A watchdog calls moert_timer_pause when it starts, and moert_timer_resume when it stops; between
 * the two calls the timer does nothing. */
void moert_timer_pause(void);
void moert_timer_resume(void);
