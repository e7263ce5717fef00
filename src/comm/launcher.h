/* Reads rank and job size from the environment variables of the launcher (mpirun, srun), without
 * MPI. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Reads the environment; false if there is no launcher. Call it before MPI_Init, which changes the
 * environment, and before other threads start. */
bool moert_launcher_read(void);
/* Rank of this process and number of processes in its job; 0 and 1 without a launcher. */
size_t moert_launcher_rank(void);
size_t moert_launcher_count(void);
/* Rank of this process among the job's processes on this host, and the number of these
 * processes, from the environment at the time of the call. False if the launcher does not set
 * these variables. */
bool moert_launcher_local(size_t *local_rank, size_t *local_count);
