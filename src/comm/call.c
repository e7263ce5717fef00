/* Code around every MPI call: it reports waits to the watchdog, the profile and comm/arrivals.h,
 * and records failures. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "comm/internal.h"

moert_arrivals_state moert_arrivals;

MPI_Status *const moert_statuses_ignore = MPI_STATUSES_IGNORE;

/* The message of the first failed call of MPI, or "". */
char moert_comm_failure[512];

static atomic_bool given_up;
static char given_up_text[1024];

void moert_comm_give_up(const char *message) {
    if (message != NULL)
        snprintf(given_up_text, sizeof given_up_text, "%s", message);
    atomic_store(&given_up, message != NULL);
}

moert_status moert_comm_check(void) {
    if (atomic_load(&given_up)) {
        moert_error_set(given_up_text);
        return MOERT_ERROR_TIMEOUT;
    }
    if (moert_comm_failure[0] == '\0')
        return MOERT_OK;
    moert_error_set(moert_comm_failure);
    return MOERT_ERROR_COMM;
}

static moert_status keep(moert_status status) {
    if (moert_comm_failure[0] == '\0')
        snprintf(moert_comm_failure, sizeof moert_comm_failure, "%s", moert_last_error());
    return status;
}

moert_status moert_mpi_fail(const moert_comm *comm, int code, const char *call,
                            const char *function, int line) {
    char text[MPI_MAX_ERROR_STRING] = "MPI cannot be initialized or finalized";
    int length = 0, begun = 0, ended = 1;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    if (begun && !ended) /* before MPI_Init and after MPI_Finalize, MPI_Error_string would abort */
        MPI_Error_string(code, text, &length);
    if (comm == NULL || comm->size == 1)
        return keep(moert_error_record(MOERT_ERROR_COMM, function, line, "%.100s: %s", call, text));
    return keep(moert_error_record(MOERT_ERROR_COMM, function, line, "%.100s: %s (rank %zu of %zu)",
                                   call, text, comm->rank, comm->size));
}

static int64_t now(void) {
    return (int64_t)moert_clock_ns() + moert_arrivals.ahead_ns;
}

/* ---- the list of all communicators in the order of creation, the same order on all ranks ---- */

void moert_arrivals_join(moert_comm *comm) {
    moert_comm **end = &moert_arrivals.first;
    while (*end != NULL)
        end = &(*end)->next;
    *end = comm;
}

void moert_arrivals_leave(const moert_comm *comm) {
    moert_comm **at = &moert_arrivals.first;
    while (*at != NULL && *at != comm)
        at = &(*at)->next;
    if (*at != NULL)
        *at = comm->next;
}

/* ---- calls ---- */

/* If memory runs out, this call and later ones are counted but not recorded; moert_arrivals_end
 * then fails. */
void moert_comm_wait_begin(moert_comm *comm) {
    const bool records = moert_arrivals.recording && comm != NULL && comm->size > 1;
    if (records && comm->arrival_count == comm->arrival_room) {
        const size_t room = 2 * comm->arrival_room + 64;
        moert_arrival *grown = realloc(comm->arrivals, room * sizeof *grown);
        if (grown != NULL) {
            comm->arrivals = grown;
            comm->arrival_room = room;
        }
    }
    if (records && comm->arrival_count < comm->arrival_room)
        comm->arrivals[comm->arrival_count] = (moert_arrival){now(), INT64_MAX};
    if (records)
        comm->arrival_count++;
    moert_phase_wait_begin();
}

void moert_comm_wait_end(moert_comm *comm) {
    moert_phase_wait_end();
    if (moert_arrivals.recording && comm != NULL && comm->arrival_count > 0 &&
        comm->arrival_count <= comm->arrival_room)
        comm->arrivals[comm->arrival_count - 1].left = now();
}
