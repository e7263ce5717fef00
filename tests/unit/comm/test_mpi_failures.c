// run: check=1 all=1san device=0
/*
 * Whichever MPI call fails, moert returns the failure, and its message names the call. This program
 * defines MPI's functions itself. Its definitions call MPI by the profiling names (MPI standard,
 * section "Profiling Interface").
 */
#include <mpi.h>

#include "comm/internal.h"
#include "comm/mail.h"
#include "support/mpi.h"

static size_t calls, failing; /* failing: the number of the call that fails; 0: none */
static const char *failed;    /* the name of the call that failed */

static bool fails(const char *name) {
    if (failing == 0 || ++calls != failing)
        return false;
    failed = name;
    return true;
}

/* The calls whose failure is tested. X(name, parameters, arguments) */
#define MPI_CALL_TABLE(X)                                                                          \
    X(Initialized, (int *a), (a))                                                                  \
    X(Comm_dup, (MPI_Comm a, MPI_Comm * b), (a, b))                                                \
    X(Comm_rank, (MPI_Comm a, int *b), (a, b))                                                     \
    X(Comm_size, (MPI_Comm a, int *b), (a, b))                                                     \
    X(Comm_set_errhandler, (MPI_Comm a, MPI_Errhandler b), (a, b))                                 \
    X(Comm_split, (MPI_Comm a, int b, int c, MPI_Comm *d), (a, b, c, d))                           \
    X(Comm_split_type, (MPI_Comm a, int b, int c, MPI_Info d, MPI_Comm *e), (a, b, c, d, e))       \
    X(Ibarrier, (MPI_Comm a, MPI_Request * b), (a, b))                                             \
    X(Ibcast, (void *a, int b, MPI_Datatype c, int d, MPI_Comm e, MPI_Request *f),                 \
      (a, b, c, d, e, f))                                                                          \
    X(Iallreduce,                                                                                  \
      (const void *a, void *b, int c, MPI_Datatype d, MPI_Op e, MPI_Comm f, MPI_Request *g),       \
      (a, b, c, d, e, f, g))                                                                       \
    X(Iallgather,                                                                                  \
      (const void *a, int b, MPI_Datatype c, void *d, int e, MPI_Datatype f, MPI_Comm g,           \
       MPI_Request *h),                                                                            \
      (a, b, c, d, e, f, g, h))                                                                    \
    X(Iallgatherv,                                                                                 \
      (const void *a, int b, MPI_Datatype c, void *d, const int *e, const int *f, MPI_Datatype g,  \
       MPI_Comm h, MPI_Request *i),                                                                \
      (a, b, c, d, e, f, g, h, i))                                                                 \
    X(Isend, (const void *a, int b, MPI_Datatype c, int d, int e, MPI_Comm f, MPI_Request *g),     \
      (a, b, c, d, e, f, g))                                                                       \
    X(Irecv, (void *a, int b, MPI_Datatype c, int d, int e, MPI_Comm f, MPI_Request *g),           \
      (a, b, c, d, e, f, g))                                                                       \
    X(Type_contiguous, (int a, MPI_Datatype b, MPI_Datatype *c), (a, b, c))                        \
    X(Type_create_resized, (MPI_Datatype a, MPI_Aint b, MPI_Aint c, MPI_Datatype * d),             \
      (a, b, c, d))                                                                                \
    X(Type_indexed, (int a, const int *b, const int *c, MPI_Datatype d, MPI_Datatype *e),          \
      (a, b, c, d, e))                                                                             \
    X(Type_commit, (MPI_Datatype * a), (a))                                                        \
    X(Testsome, (int a, MPI_Request *b, int *c, int *d, MPI_Status *e), (a, b, c, d, e))           \
    X(Testall, (int a, MPI_Request *b, int *c, MPI_Status *d), (a, b, c, d))

#define CALL(name, parameters, arguments)                                                          \
    int MPI_##name parameters {                                                                    \
        return fails("MPI_" #name) ? MPI_ERR_OTHER : PMPI_##name arguments;                        \
    }
MPI_CALL_TABLE(CALL)

static float from[8], to[8];

/* Sends rows 2, 3, 0 and 1 of one matrix to rows 2, 3, 0 and 1 of another. */
static moert_status send_to_self(moert_mail *mail) {
    const moert_mail_rows out = {from, sizeof *from, sizeof *from},
                          in = {to, sizeof *to, sizeof *to};
    MOERT_TRY(moert_mail_post_apart(mail, (moert_mail_address){false, 0, 1, 0}, &in,
                                    (moert_mail_run){0, 4}));
    MOERT_TRY(moert_mail_post_apart(mail, (moert_mail_address){true, 0, 1, 0}, &out,
                                    (moert_mail_run){0, 4}));
    MOERT_TRY(moert_mail_progress(mail, false));
    while (moert_mail_left_of_all(mail) > 0)
        MOERT_TRY(moert_mail_progress(mail, true));
    MOERT_TRY(moert_mail_post(mail, (moert_mail_address){false, 0, 2, 0}, &in,
                              &(moert_mail_run){0, 1}, 1));
    MOERT_TRY(moert_mail_post(mail, (moert_mail_address){true, 0, 2, 0}, &out,
                              &(moert_mail_run){0, 1}, 1));
    while (moert_mail_left_of_all(mail) > 0)
        MOERT_TRY(moert_mail_progress(mail, true));
    return MOERT_OK;
}

static moert_status communicate(moert_comm *comm) {
    uint64_t value = 1, all[1];
    const size_t bytes[] = {sizeof value};
    moert_shared *shared;
    moert_mail *mail;
    MOERT_TRY(moert_comm_barrier(comm));
    MOERT_TRY(moert_comm_smallest(comm, &value));
    MOERT_TRY(moert_comm_broadcast(comm, 0, &value, sizeof value));
    MOERT_TRY(moert_comm_allgather(comm, &value, sizeof value, all));
    MOERT_TRY(moert_comm_allgatherv(comm, &value, bytes, all));
    MOERT_TRY(moert_shared_create(comm, 100, &shared));
    moert_shared_destroy(shared);
    MOERT_TRY(moert_mail_create(comm, &mail));
    const moert_status status = send_to_self(mail);
    moert_mail_destroy(mail);
    return status;
}

static moert_status create_and_communicate(void) {
    moert_comm *comm, *part;
    moert_status status;
    MOERT_TRY(moert_comm_create(moert_comm_world(), &comm));
    MOERT_TRY_OR(destroy, moert_comm_split(comm, 0, &part));
    status = communicate(part);
    moert_comm_destroy(part);
destroy:
    moert_comm_destroy(comm);
    return status;
}

/* Checks that MPI calls fail at once after a failure, and then lets calls succeed again. */
static moert_status restart(moert_status status) {
    if (status != MOERT_OK && moert_comm_barrier(test_comm) != MOERT_ERROR_COMM)
        return MOERT_FAIL(ERROR_INTERNAL, "a call succeeds after '%s'", moert_comm_failure);
    moert_comm_failure[0] = '\0';
    return MOERT_OK;
}

TEST(test_the_message_names_the_call_that_failed) {
    enum { MOST = 500 };
    ASSERT_OK(create_and_communicate());
    for (size_t k = 1; k < MOST; k++) {
        calls = 0;
        failing = k;
        failed = NULL;
        const moert_status status = create_and_communicate();
        failing = 0;
        ASSERT_OK(restart(status));
        if (failed == NULL) {
            ASSERT_OK(status);
            return;
        }
        ASSERT_FAILS(status, MOERT_ERROR_COMM, failed);
    }
    fail_msg("makes more than %d calls", MOST);
}

TEST(test_calls_without_a_communicator_return_their_errors) {
    /* PMPI_, because this program's own MPI_Type_commit would end the program */
    MPI_Datatype type = MPI_DATATYPE_NULL;
    assert_int_not_equal(PMPI_Type_commit(&type), MPI_SUCCESS);
}

MPI_TESTS(NULL, NULL)
