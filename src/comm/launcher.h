/* What the launcher of this process (mpirun, srun) says in the environment, without MPI. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Reads the environment; false if there is no launcher. Call it before MPI_Init, which changes the
 * environment, and before other threads start. */
bool moert_launcher_read(void);
/* Rank of this process and number of processes in its job; 0 and 1 without a launcher. */
size_t moert_launcher_rank(void);
size_t moert_launcher_count(void);
/* Rank of this process among those of its job on its host, and their number, from the environment
 * at the time of the call; false if the launcher does not say. */
bool moert_launcher_local(size_t *local_rank, size_t *local_count);
