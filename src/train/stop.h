/* Signals that end a training run early but orderly. */
#pragma once

#include <signal.h>

#include "comm/comm.h"

/* SIGTERM and SIGUSR1. Schedulers send one of these signals some time before they kill the job
 * (Slurm: --signal=USR1@120). */
enum { MOERT_STOP_SIGNALS = 2 };

/* From now on, catches each signal once. A second signal of the same kind ends the process.
 * before[] = the earlier signal actions, for restoring them. */
void moert_stop_catch(struct sigaction before[MOERT_STOP_SIGNALS]);
void moert_stop_restore(const struct sigaction before[MOERT_STOP_SIGNALS]);

/* *any = whether a rank has caught a signal. Collective. */
moert_status moert_stop_asked(moert_comm *world, bool *any);
