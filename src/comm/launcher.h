/* What the launcher of this process (mpirun, srun) says in the environment, without MPI. */
#pragma once

#include <stddef.h>

/* Reads the environment. Called before MPI_Init, which changes it, and before another thread reads
 * it. */
void moert_launcher_read(void);
/* Rank of this process and number of processes in its job; 0 and 1 without a launcher. */
size_t moert_launcher_rank(void);
size_t moert_launcher_count(void);
