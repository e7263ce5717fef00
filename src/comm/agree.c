/* Agreement of the ranks on a status, and a check that every rank calls it from the same source
 * line. */
#include <stdio.h>
#include <string.h>

#include "comm/internal.h"

enum { REPORT_TEXT_BYTES = 1024 };

/* The last agreement that failed in this process. If a later agreement passes on the message of
 * this agreement, the message must not get a second prefix with a rank. */
static struct {
    bool by_all;   /* the agreement was among all ranks of the program */
    bool prefixed; /* the text names the failing rank */
    char text[REPORT_TEXT_BYTES];
} agreed;

/* ---- call sites ---- */

/* FNV-1a; distinguishes the few hundred call sites of a program. */
static uint64_t hash_of(const char *site) {
    uint64_t hash = 0xcbf29ce484222325;
    for (; *site != '\0'; site++)
        hash = (hash ^ (unsigned char)*site) * 0x100000001b3;
    return hash;
}

/* The call site at which a rank agrees, as a hash and as text. */
typedef struct place {
    uint64_t hash;
    char text[192];
} place;

/* Returns an error that names the call sites of rank 0 and of the first rank at another site.
 * For this error moert_comm_failure_is_shared() is false, since the ranks return it from different
 * sites. */
static moert_status report_sites(moert_comm *comm, const char *site, uint64_t hash) {
    place mine = {.hash = hash}, first, other;
    snprintf(mine.text, sizeof mine.text, "rank %zu (%s) at %s", comm->self.origin, comm->self.host,
             site);
    first = other = mine;
    MOERT_TRY(moert_comm_broadcast(comm, 0, &first, sizeof first));
    uint64_t odd = hash != first.hash ? comm->rank : comm->size;
    MOERT_TRY(moert_comm_smallest(comm, &odd));
    MOERT_TRY(moert_comm_broadcast(comm, (size_t)odd, &other, sizeof other));
    return MOERT_FAIL(ERROR_INTERNAL,
                      "the ranks call different collective functions: %s, %s; a rank has failed "
                      "and skipped calls",
                      first.text, other.text);
}

/* ---- agreements ---- */

/* The message that the lowest failing rank broadcasts to the other ranks. */
typedef struct report {
    int status, prefixed;
    char text[REPORT_TEXT_BYTES];
} report;

static report make_report(const moert_comm *comm, moert_status local) {
    report made = {.status = (int)local, .prefixed = 1};
    const char *text = moert_last_error();
    if (text[0] == '\0')
        text = moert_status_text(local);
    bool named = agreed.prefixed && strcmp(text, agreed.text) == 0;
    if (named || comm->size == 1) {
        made.prefixed = named;
        snprintf(made.text, sizeof made.text, "%s", text);
    } else {
        snprintf(made.text, sizeof made.text, "rank %zu (%s): %s", comm->self.origin,
                 comm->self.host, text);
    }
    return made;
}

moert_status moert_comm_agree_at(moert_comm *comm, moert_status local, const char *site) {
    const uint64_t hash = hash_of(site);
    uint64_t least[3] = {local == MOERT_OK ? comm->size : comm->rank, hash, ~hash};
    MOERT_MPI_COLLECT(comm, MPI_Iallreduce(MPI_IN_PLACE, least, 3, MPI_UINT64_T, MPI_MIN,
                                           comm->handle, &request));
    if (least[1] != ~least[2]) /* the ranks' smallest and largest hash differ */
        return report_sites(comm, site, hash);
    const int lowest = (int)least[0];
    if (least[0] == comm->size)
        return MOERT_OK;
    report shared = {0};
    if (lowest == (int)comm->rank)
        shared = make_report(comm, local);
    MOERT_MPI_COLLECT(comm,
                      MPI_Ibcast(&shared, sizeof shared, MPI_BYTE, lowest, comm->handle, &request));
    moert_error_set(shared.text);
    agreed.by_all = comm->whole;
    agreed.prefixed = shared.prefixed != 0;
    memcpy(agreed.text, shared.text, sizeof agreed.text);
    return moert_error_pass((moert_status)shared.status, __func__, __LINE__);
}

bool moert_comm_failure_is_shared(void) {
    return agreed.by_all && strcmp(moert_last_error(), agreed.text) == 0;
}
