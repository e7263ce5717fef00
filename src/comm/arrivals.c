/* Compares when ranks entered and left calls, and attributes the waits to ranks. */
#include "comm/arrivals.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/internal.h"

enum { CLOCK_TRIES = 15 };

static int ascending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Sets the clock difference between rank 0's host and this host: the median of several measurements
 * by the host's first rank, since all ranks of a host share a clock. */
moert_status moert_arrivals_enable(moert_comm *world) {
    int64_t difference[CLOCK_TRIES];
    for (int i = 0; i < CLOCK_TRIES; i++) {
        MOERT_TRY(moert_comm_barrier(world));
        const int64_t mine = (int64_t)moert_clock_ns();
        int64_t zero = mine;
        MOERT_TRY(moert_comm_broadcast(world, 0, &zero, sizeof zero));
        difference[i] = zero - mine;
    }
    qsort(difference, CLOCK_TRIES, sizeof *difference, ascending);
    moert_arrivals.ahead_ns =
        moert_comm_node(world, world->rank) == 0 ? 0 : difference[CLOCK_TRIES / 2];
    MOERT_MPI_COLLECT(
        world, MPI_Ibcast(&moert_arrivals.ahead_ns, 1, MPI_INT64_T, 0, world->node, &request));
    return MOERT_OK;
}

/* Adds this rank's waits to waited_ns[r], from entered[size][calls] of all ranks. */
static void charge(const moert_comm *comm, const int64_t *entered, double *waited_ns) {
    const size_t calls = comm->arrival_count;
    for (size_t i = 0; i < calls; i++) {
        const moert_arrival *mine = &comm->arrivals[i];
        int64_t latest = mine->entered;
        size_t last = comm->rank;
        for (size_t r = 0; r < comm->size; r++) {
            const int64_t theirs = entered[r * calls + i];
            if (theirs > latest && theirs <= mine->left) {
                latest = theirs;
                last = r;
            }
        }
        waited_ns[comm->peers[last].origin] += (double)(latest - mine->entered);
    }
}

static moert_status same_calls(moert_comm *comm, bool *same) {
    uint64_t mine = comm->arrival_count, bounds[2] = {mine, ~mine};
    MOERT_MPI_COLLECT(comm, MPI_Iallreduce(MPI_IN_PLACE, bounds, 2, MPI_UINT64_T, MPI_MAX,
                                           comm->handle, &request));
    *same = mine > 0 && bounds[0] == ~bounds[1];
    return MOERT_OK;
}

static moert_status compare(moert_comm *comm, double *waited_ns) {
    const size_t calls = comm->arrival_count;
    int64_t *entered = NULL;
    bool same = false;
    MOERT_TRY(same_calls(comm, &same));
    if (!same)
        return MOERT_OK;
    moert_status status =
        calls > comm->arrival_room
            ? MOERT_FAIL(ERROR_MEMORY,
                         "the arrival times of %zu MPI calls do not fit in host memory", calls)
            : moert_alloc(&entered, comm->size * calls, sizeof *entered);
    MOERT_TRY(moert_comm_agree(comm, status));
    for (size_t i = 0; i < calls; i++)
        entered[comm->rank * calls + i] = comm->arrivals[i].entered;
    status =
        moert_comm_allgather(comm, entered + comm->rank * calls, calls * sizeof *entered, entered);
    if (status == MOERT_OK)
        charge(comm, entered, waited_ns);
    free(entered);
    return status;
}

void moert_arrivals_begin(void) {
    for (moert_comm *comm = moert_arrivals.first; comm != NULL; comm = comm->next)
        comm->arrival_count = 0;
    moert_arrivals.recording = true;
}

moert_status moert_arrivals_end(double *waited_ns) {
    moert_arrivals.recording = false;
    for (moert_comm *comm = moert_arrivals.first; comm != NULL; comm = comm->next)
        if (comm->size > 1)
            MOERT_TRY(compare(comm, waited_ns));
    return MOERT_OK;
}
