/* Communicators: duplicates that return errors and know the hosts of their ranks. */
#include "comm/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"
#include "base/memory.h"
#include "comm/launcher.h"
#include "comm/watchdog/timer.h"

static bool initialized_here;

moert_status moert_comm_init(int *count, char ***arguments) {
    int done = 0, level = MPI_THREAD_FUNNELED;
    MOERT_MPI(NULL, MPI_Initialized(&done));
    if (!done) {
        /* Without mpirun, MPI_Init loads hwloc's plugins. The OpenCL plugin would start PoCL before
         * moert has set PoCL's number of threads and cache directory. */
        setenv("HWLOC_COMPONENTS", "-opencl", 0);
        if (!moert_launcher_read()) {
            /* Without a launcher, Open MPI 4 would start a daemon, and this process and the daemon
             * would listen on all networks. All processes without a launcher have the same job
             * number, so they would remove each other's session directory. */
            setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
            setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
            setenv("OMPI_MCA_btl", "self", 0);
        }
        MOERT_TRY(moert_timer_start(moert_config_get()->timeout_s,
                                    "in MPI_Init for a rank that is stopped, late or gone"));
        MOERT_MPI_WAIT(NULL, MPI_Init_thread(count, arguments, MPI_THREAD_FUNNELED, &level));
        initialized_here = true;
        moert_timer_place("in a collective call for a rank that is stopped, late or gone");
        /* errors of calls without a communicator, such as MPI_Type_commit, go to the error handler
         * of MPI_COMM_WORLD or of MPI_COMM_SELF */
        MOERT_MPI(NULL, MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
        MOERT_MPI(NULL, MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    }
    if (level < MPI_THREAD_FUNNELED)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "this MPI gives thread level %d; MPI_THREAD_FUNNELED is needed", level);
    return MOERT_OK;
}

moert_status moert_comm_finalize(void) {
    int done = 1;
    MPI_Finalized(&done);
    if (!initialized_here || done)
        return MOERT_OK;
    moert_timer_place("in MPI_Finalize for a rank that is stopped, late or gone");
    moert_phase_wait_begin();
    MOERT_MPI(NULL, MPI_Finalize());
    moert_timer_place("after MPI_Finalize for the end of its process");
    moert_phase_tick();
    return MOERT_OK;
}

const void *moert_comm_world(void) {
    static MPI_Comm world;
    world = MPI_COMM_WORLD;
    return &world;
}

bool moert_comm_is_first(void) {
    int begun = 0, rank = 0;
    MPI_Initialized(&begun);
    if (begun)
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank == 0;
}

void moert_comm_library(char *text, size_t bytes) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(version, &length);
    /* cuts the text before Open MPI's package, date and report address, or MPICH's date and
     * build */
    version[strcspn(version, ",\n")] = '\0';
    char *word = strstr(version, " Version:\t"); /* of MPICH */
    if (word != NULL)
        memmove(word + 1, word + 10, strlen(word + 10) + 1);
    snprintf(text, bytes, "%s", version);
}

static moert_status allocate(moert_comm *comm) {
    MOERT_TRY(MOERT_NEW_ARRAY(&comm->peers, comm->size));
    MOERT_TRY(MOERT_NEW_ARRAY(&comm->counts, comm->size));
    MOERT_TRY(MOERT_NEW_ARRAY(&comm->displacements, comm->size));
    MOERT_TRY(MOERT_NEW_ARRAY(&comm->send_start, comm->size));
    return MOERT_NEW_ARRAY(&comm->receive_start, comm->size);
}

/* MPI_Comm_free may wait for the other ranks. */
static void release(moert_comm *comm) {
    MOERT_FREE(comm->arrivals, comm->receive_start, comm->send_start, comm->displacements,
               comm->counts, comm->peers);
    if (moert_comm_failure[0] != '\0')
        return;
    if (comm->node != MPI_COMM_NULL)
        MPI_Comm_free(&comm->node);
    MPI_Comm_free(&comm->handle);
}

/* Sets comm->node: the ranks of this host, or those that MOERT_NODE_RANKS counts as one host. Every
 * rank makes both MPI calls, even if MOERT_NODE_RANKS is set on some ranks only;
 * moert_context_create later refuses that. */
static moert_status find_node(moert_comm *comm) {
    const size_t together = moert_config_get()->node_ranks;
    const int rank = (int)comm->rank;
    const int color = together > 0 ? (int)(comm->self.origin / together) : 0;
    MPI_Comm part;
    MOERT_MPI_WAIT(comm, MPI_Comm_split_type(comm->handle, MPI_COMM_TYPE_SHARED, rank,
                                             MPI_INFO_NULL, &comm->node));
    MOERT_MPI_WAIT(comm, MPI_Comm_split(comm->node, color, rank, &part));
    MPI_Comm_free(&comm->node);
    comm->node = part;
    return MOERT_OK;
}

/* Finds the ranks that share this host, and gathers the hosts of all ranks. */
static moert_status discover(moert_comm *comm) {
    int leader = (int)comm->rank, node_rank, node_size;
    MOERT_TRY(find_node(comm));
    MOERT_MPI(comm, MPI_Comm_rank(comm->node, &node_rank));
    MOERT_MPI(comm, MPI_Comm_size(comm->node, &node_size));
    MOERT_MPI_COLLECT(comm, MPI_Ibcast(&leader, 1, MPI_INT, 0, comm->node, &request));
    comm->node_rank = (size_t)node_rank;
    comm->node_size = (size_t)node_size;

    comm->self.leader = (size_t)leader;
    MOERT_TRY(moert_comm_allgather(comm, &comm->self, sizeof comm->self, comm->peers));
    for (size_t r = 0; r < comm->size; r++) {
        moert_peer *peer = &comm->peers[r];
        peer->node = peer->leader == r ? comm->node_count++ : comm->peers[peer->leader].node;
    }
    return MOERT_OK;
}

/* Fills in the fields of a communicator that need no data of other ranks. */
static moert_status describe(moert_comm *draft, const moert_comm *parent) {
    int rank, size;
    MOERT_MPI(parent, MPI_Comm_set_errhandler(draft->handle, MPI_ERRORS_RETURN));
    MOERT_MPI(parent, MPI_Comm_rank(draft->handle, &rank));
    MOERT_MPI(parent, MPI_Comm_size(draft->handle, &size));
    draft->rank = (size_t)rank;
    draft->size = (size_t)size;
    draft->whole = parent == NULL || (parent->whole && parent->size == draft->size);
    draft->self.origin = parent == NULL ? draft->rank : parent->self.origin;
    gethostname(draft->self.host, sizeof draft->self.host - 1);
    return MOERT_OK;
}

/* Creates a communicator from `handle` and takes ownership of it. */
static moert_status adopt(MPI_Comm handle, const moert_comm *parent, moert_comm **out) {
    moert_comm draft = {.handle = handle, .node = MPI_COMM_NULL};
    moert_comm *comm = NULL;
    moert_status status;
    MOERT_TRY_OR(undo, describe(&draft, parent));
    status = MOERT_NEW(&comm);
    if (status == MOERT_OK)
        status = allocate(&draft);
    MOERT_TRY_OR(undo, moert_comm_agree(&draft, status));
    MOERT_TRY_OR(undo, discover(&draft));
    *comm = draft;
    moert_arrivals_join(comm);
    *out = comm;
    return MOERT_OK;
undo:
    release(&draft);
    free(comm);
    return status;
}

moert_status moert_comm_create(const void *parent, moert_comm **comm) {
    int ready = 0;
    MOERT_MPI(NULL, MPI_Initialized(&ready));
    if (parent == NULL || !ready)
        return MOERT_FAIL(ERROR_USAGE, "%s",
                          ready ? "no communicator was given" : "MPI is not initialized");
    MPI_Comm given, handle;
    memcpy(&given, parent, sizeof given);
    MOERT_MPI_WAIT(NULL, MPI_Comm_dup(given, &handle));
    return adopt(handle, NULL, comm);
}

moert_status moert_comm_split(moert_comm *comm, size_t color, moert_comm **part) {
    MPI_Comm handle;
    int number = 0;
    MOERT_TRY(moert_comm_agree(comm, moert_to_int(color, "the colour of a split", &number)));
    MOERT_MPI_WAIT(comm, MPI_Comm_split(comm->handle, number, (int)comm->rank, &handle));
    moert_comm *made = NULL;
    const moert_status status = moert_comm_agree(comm, adopt(handle, comm, &made));
    if (status == MOERT_OK)
        *part = made;
    else
        moert_comm_destroy(made);
    return status;
}

void moert_comm_destroy(moert_comm *comm) {
    if (comm == NULL)
        return;
    moert_arrivals_leave(comm);
    moert_phase_wait_begin();
    release(comm);
    moert_phase_wait_end();
    free(comm);
}

size_t moert_comm_rank(const moert_comm *comm) {
    return comm->rank;
}

size_t moert_comm_size(const moert_comm *comm) {
    return comm->size;
}

size_t moert_comm_node_rank(const moert_comm *comm) {
    return comm->node_rank;
}

size_t moert_comm_node_size(const moert_comm *comm) {
    return comm->node_size;
}

size_t moert_comm_node_count(const moert_comm *comm) {
    return comm->node_count;
}

size_t moert_comm_node(const moert_comm *comm, size_t rank) {
    return comm->peers[rank].node;
}

const char *moert_comm_host(const moert_comm *comm, size_t rank) {
    return comm->peers[rank].host;
}

void moert_comm_abort(moert_comm *comm, int code) {
    MPI_Abort(comm->handle, code);
}
