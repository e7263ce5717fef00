/* What the launcher of this process (mpirun, srun) says in the environment, without MPI. */
#pragma once

#include <stddef.h>

/* Reads the environment. Call it before MPI_Init, which changes the environment, and before other
 * threads start. */
void moert_launcher_read(void);
/* Rank of this process and number of processes in its job; 0 and 1 without a launcher. */
size_t moert_launcher_rank(void);
size_t moert_launcher_count(void);
