/* The times of entering and leaving calls, and whom they charge. */
#include "comm/arrivals.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/internal.h"

enum { CLOCK_TRIES = 15 };

/* One call: in ns of rank 0's clock. */
typedef struct moert_arrival {
    int64_t entered, left;
} moert_arrival;

static bool noting;
static int64_t ahead_ns;  /* of this host's clock rank 0's is */
static moert_comm *first; /* of all communicators, in the order in which they were made */

static int64_t now(void) {
    return (int64_t)moert_clock_ns() + ahead_ns;
}

/* ---- all communicators; ranks that share some have made these in the same order ---- */

void moert_arrivals_join(moert_comm *comm) {
    moert_comm **end = &first;
    while (*end != NULL)
        end = &(*end)->next;
    *end = comm;
}

void moert_arrivals_leave(const moert_comm *comm) {
    moert_comm **at = &first;
    while (*at != NULL && *at != comm)
        at = &(*at)->next;
    if (*at != NULL)
        *at = comm->next;
}

/* ---- calls ---- */

/* Without memory this and later calls are missing here, and so count on no rank. */
static moert_arrival *add_arrival(moert_comm *comm) {
    if (comm->arrival_count == comm->arrival_room) {
        const size_t room = 2 * comm->arrival_room + 64;
        moert_arrival *grown = realloc(comm->arrivals, room * sizeof *grown);
        if (grown == NULL)
            return NULL;
        comm->arrivals = grown;
        comm->arrival_room = room;
    }
    return &comm->arrivals[comm->arrival_count++];
}

void moert_comm_wait_begin(moert_comm *comm) {
    moert_arrival *call = noting && comm != NULL && comm->size > 1 ? add_arrival(comm) : NULL;
    if (call != NULL)
        *call = (moert_arrival){now(), INT64_MAX};
    moert_phase_wait_begin();
}

void moert_comm_wait_end(moert_comm *comm) {
    moert_phase_wait_end();
    if (noting && comm != NULL && comm->arrival_count > 0)
        comm->arrivals[comm->arrival_count - 1].left = now();
}

/* ---- the comparison ---- */

static int ascending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The median of some tries; all ranks of a host take their first one's, whose clock they share. */
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
    ahead_ns = moert_comm_node(world, world->rank) == 0 ? 0 : difference[CLOCK_TRIES / 2];
    MOERT_MPI_WAIT(world, MPI_Bcast(&ahead_ns, 1, MPI_INT64_T, 0, world->node));
    return MOERT_OK;
}

/* entered[size][calls] of all ranks: charges this rank's waits. */
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
    MOERT_MPI_WAIT(comm,
                   MPI_Allreduce(MPI_IN_PLACE, bounds, 2, MPI_UINT64_T, MPI_MAX, comm->handle));
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
    MOERT_TRY(moert_comm_agree(comm, moert_alloc(&entered, comm->size * calls, sizeof *entered)));
    for (size_t i = 0; i < calls; i++)
        entered[comm->rank * calls + i] = comm->arrivals[i].entered;
    const size_t bytes = calls * sizeof *entered;
    const moert_status status =
        moert_comm_allgather(comm, entered + comm->rank * calls, bytes, entered);
    if (status == MOERT_OK)
        charge(comm, entered, waited_ns);
    free(entered);
    return status;
}

void moert_arrivals_begin(void) {
    for (moert_comm *comm = first; comm != NULL; comm = comm->next)
        comm->arrival_count = 0;
    noting = true;
}

moert_status moert_arrivals_end(double *waited_ns) {
    noting = false;
    for (moert_comm *comm = first; comm != NULL; comm = comm->next)
        if (comm->size > 1)
            MOERT_TRY(compare(comm, waited_ns));
    return MOERT_OK;
}
