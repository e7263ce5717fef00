/* Reads the variables that the mpirun of Open MPI, MPICH and Intel MPI, and Slurm's srun set. */
#include "comm/launcher.h"

#include <stdlib.h>

#include "base/memory.h"

static size_t rank, count = 1;

bool moert_launcher_read(void) {
    static const struct {
        const char *rank, *count;
    } names[] = {
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
        {"PMI_RANK", "PMI_SIZE"},
        {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
        {"PMIX_RANK", ""},
    };
    for (size_t i = 0; i < MOERT_COUNT(names); i++) {
        const char *rank_text = getenv(names[i].rank), *count_text = getenv(names[i].count);
        if (rank_text == NULL)
            continue;
        rank = strtoul(rank_text, NULL, 10);
        if (count_text != NULL)
            count = strtoul(count_text, NULL, 10);
        return true;
    }
    return false;
}

bool moert_launcher_local(size_t *local_rank, size_t *local_count) {
    static const char *const names[][2] = {
        {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    };
    for (size_t i = 0; i < MOERT_COUNT(names); i++) {
        const char *first = getenv(names[i][0]), *second = getenv(names[i][1]);
        if (first == NULL || second == NULL)
            continue;
        *local_rank = strtoul(first, NULL, 10);
        *local_count = strtoul(second, NULL, 10);
        return *local_rank < *local_count;
    }
    return false;
}

size_t moert_launcher_rank(void) {
    return rank;
}

size_t moert_launcher_count(void) {
    return count;
}
