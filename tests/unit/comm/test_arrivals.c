// run: check=1,2 all=3,4,2san device=0
/* Waiting times between ranks: the time that ranks wait in a collective is charged to the late
 * rank. A communicator may have all or some ranks. Only calls that all ranks of the communicator
 * make are charged. */
#include <unistd.h>

#include "comm/arrivals.h"
#include "comm/internal.h"
#include "support/mpi.h"

enum { LATE_US = 60000, MOST_RANKS = 256 };
static const double LATE_NS = LATE_US * 1e3, LEAST_NS = LATE_US * 0.5e3;

static double waited_ns[MOST_RANKS];

/* Records one barrier of `comm`, which rank `late` of the job enters late; sets waited_ns[R]. */
static void wait_for(moert_comm *comm, size_t late) {
    memset(waited_ns, 0, sizeof waited_ns);
    ASSERT_OK_ON_ALL(moert_comm_barrier(test_comm));
    moert_arrivals_begin();
    if (test_rank == late)
        usleep(LATE_US);
    const moert_status status = moert_comm_barrier(comm);
    ASSERT_OK_ON_ALL(status);
    ASSERT_OK_ON_ALL(moert_arrivals_end(waited_ns));
}

/* Checks that this rank waited for the late rank and for no other one, and that the late rank did
 * not wait. */
TEST(test_the_last_rank_is_charged_with_the_others_waiting) {
    for (size_t late = 0; late < test_ranks; late++) {
        wait_for(test_comm, late);
        bool right = test_rank == late || waited_ns[late] > LEAST_NS;
        for (size_t r = 0; r < test_ranks; r++)
            right = right && waited_ns[r] < (r == late && r != test_rank ? 1e12 : LEAST_NS);
        ASSERT_ON_ALL(right);
    }
}

/* Waiting times that are measured in a communicator of only some ranks are indexed by the ranks of
 * the whole job. Here the job is split into rank 0 and all other ranks. */
TEST(test_waiting_in_a_part_is_charged_to_ranks_of_the_whole) {
    moert_comm *half;
    const size_t late = test_ranks - 1;
    ASSERT_OK_ON_ALL(moert_comm_split(test_comm, test_rank == 0, &half));
    wait_for(half, late);
    /* rank 0 is alone in its communicator, so it waits for the late rank only in the checks of
     * wait_for() */
    ASSERT_ON_ALL(test_rank == 0 || test_rank == late || waited_ns[late] > LEAST_NS);
    moert_comm_destroy(half);
}

TEST(test_calls_that_only_some_ranks_make_or_outside_of_a_span_do_not_count) {
    double sum = 0.0;
    memset(waited_ns, 0, sizeof waited_ns);
    for (int outside = 0; outside < 2; outside++) {
        ASSERT_OK_ON_ALL(moert_comm_barrier(test_comm));
        if (!outside)
            moert_arrivals_begin();
        if (test_rank == 0) {
            moert_comm_wait_begin(test_comm);
            usleep(LATE_US);
            moert_comm_wait_end(test_comm);
        }
        ASSERT_OK_ON_ALL(moert_comm_barrier(test_comm));
        if (outside)
            moert_arrivals_begin();
        ASSERT_OK_ON_ALL(moert_arrivals_end(waited_ns));
        for (size_t r = 0; r < test_ranks; r++)
            sum += waited_ns[r];
        ASSERT_ON_ALL(outside ? sum < LATE_NS : sum == 0.0);
    }
}

static int enable(void **state) {
    (void)state;
    return moert_arrivals_enable(test_comm) == MOERT_OK ? 0 : -1;
}

MPI_TESTS(enable, NULL)
