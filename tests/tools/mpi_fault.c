/*
 * A library for LD_PRELOAD that lets one call of MPI fail on one rank.
 *   MPI_FAULT_RANK=R MPI_FAULT_CALL=N   call N of rank R only returns MPI_ERR_OTHER
 *   MPI_FAULT_RANK=R MPI_FAULT_LIST=1   rank R lists its calls on stderr: "mpi_fault N NAME"
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/mpi_calls.h"

static int calls, failing = -1;
static int lists;

static void read_settings(void) {
    const char *own = getenv("OMPI_COMM_WORLD_RANK"), *rank = getenv("MPI_FAULT_RANK");
    const char *call = getenv("MPI_FAULT_CALL");
    const int here = own != NULL && rank != NULL && strcmp(own, rank) == 0;
    failing = here && call != NULL ? atoi(call) : 0;
    lists = here && getenv("MPI_FAULT_LIST") != NULL;
}

static int fails(const char *name) {
    if (failing < 0)
        read_settings();
    calls++;
    if (lists || calls == failing)
        fprintf(stderr, "mpi_fault %d %s\n", calls, name);
    return calls == failing;
}

#define CALL(name, parameters, arguments)                                                          \
    int MPI_##name parameters {                                                                    \
        return fails("MPI_" #name) ? MPI_ERR_OTHER : PMPI_##name arguments;                        \
    }
MPI_CALL_TABLE(CALL)
