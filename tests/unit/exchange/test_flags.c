// run: check=2 all=4,2gpu,2san
/* Barriers between devices: they order memory accesses over many rounds, however the hosts are
 * delayed, and name a rank that does not arrive. */
#include <unistd.h>

#include "base/phase.h"
#include "base/rng.h"
#include "device/launch.h"
#include "exchange/window/flags.h"
#include "support/mpi.h"

static const uint64_t PATIENCE_NS = 60000000000;

static void sleep_now_and_then(uint64_t round) {
    const double u = moert_rng_uniform(17, test_rank, round);
    if (u > 0.7)
        usleep((useconds_t)((u - 0.7) * 1e4));
}

/* Waits for the device; returns the failure of the barriers so far, if one has failed. */
static moert_status settle(moert_flags *flags) {
    MOERT_TRY(moert_flags_fetch_verdict(flags));
    MOERT_TRY(moert_device_finish(test_device));
    return moert_flags_check_verdict(flags);
}

/* Enqueues a round: every rank writes a row into every segment, and after a barrier counts in
 * *wrong the rows from another round. No host waits between the kernels. */
static moert_status enqueue_round(const moert_storage *rows, moert_flags *flags, unsigned round,
                                  moert_buffer *wrong) {
    const moert_exchange_args args = {
        .ranks = (uint32_t)test_ranks, .rank = (uint32_t)test_rank, .round = round};
    sleep_now_and_then(2 * round);
    MOERT_TRY(MOERT_RUN(test_device, "exchange/exchange -DREMOTE=1", "probe_write",
                        ((moert_grid){1, 1, 1}), MOERT_ARG(rows->addresses), MOERT_STRUCT(args)));
    MOERT_TRY(moert_flags_barrier(flags));
    sleep_now_and_then(2 * round + 1);
    MOERT_TRY(MOERT_RUN(test_device, "exchange/exchange -DREMOTE=1", "probe_read",
                        ((moert_grid){1, 1, 1}), MOERT_ARG(rows->addresses), MOERT_ARG(wrong),
                        MOERT_STRUCT(args)));
    return moert_flags_barrier(flags);
}

TEST(test_devices_see_what_others_wrote_before_a_barrier) {
    enum { ROUNDS = 300 };
    moert_buffer *wrong[ROUNDS];
    moert_storage rows = {.rows = NULL};
    moert_flags *flags;
    uint32_t all = 0;
    const moert_exchange_memory *memory = moert_memory_of(test_device);
    ASSERT_OK_ON_ALL(memory->create(test_device, test_comm, test_ranks * 64, &rows));
    ASSERT_OK_ON_ALL(moert_flags_create(test_device, test_comm, memory, PATIENCE_NS, &flags));
    moert_status status = MOERT_OK;
    for (unsigned round = 0; round < ROUNDS; round++) {
        wrong[round] = test_buffer(sizeof(uint32_t));
        const moert_status enqueued = enqueue_round(&rows, flags, round, wrong[round]);
        status = status != MOERT_OK ? status : enqueued;
    }
    ASSERT_OK_ON_ALL(status);
    ASSERT_OK_ON_ALL(settle(flags));
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t count = 1;
        status = moert_buffer_read(wrong[round], 0, &count, sizeof count);
        all += status == MOERT_OK ? count : 1;
    }
    ASSERT_ON_ALL(all == 0);
    moert_flags_destroy(flags);
    moert_storage_release(&rows);
}

/* Rank `late` does not enter the first barrier. The other ranks time out, continue, and do not wait
 * in later barriers. */
TEST(test_a_rank_that_does_not_arrive_is_named) {
    const uint64_t patience_ns = 1000000000;
    const size_t late = test_ranks / 2;
    moert_flags *flags;
    if (test_ranks == 1)
        return;
    ASSERT_OK_ON_ALL(moert_flags_create(test_device, test_comm, moert_memory_of(test_device),
                                        patience_ns, &flags));
    moert_phase_set(MOERT_PHASE_LOSS);
    moert_status enqueued = test_rank != late ? moert_flags_barrier(flags) : MOERT_OK;
    moert_phase_set(MOERT_PHASE_SAVE);
    for (unsigned i = 0; i < 20 && enqueued == MOERT_OK && test_rank != late; i++)
        enqueued = moert_flags_barrier(flags);
    const moert_status found = test_rank != late ? settle(flags) : MOERT_ERROR_COMM;
    bool right = enqueued == MOERT_OK && found == MOERT_ERROR_COMM;
    if (test_rank != late)
        right = right &&
                strstr(moert_last_error(), titled("the device of rank %zu (", late)) != NULL &&
                strstr(moert_last_error(), "barrier 1, in phase 'loss', within 1 s") != NULL;
    right = on_all(right); /* the late rank waits here until the other ranks have timed out */
    for (unsigned i = 0; i < 21 && enqueued == MOERT_OK && test_rank == late; i++)
        enqueued = moert_flags_barrier(flags);
    right = settle(flags) == MOERT_OK && enqueued == MOERT_OK && right;
    ASSERT_ON_ALL(right);
    ASSERT_OK_ON_ALL(moert_flags_barrier(flags));
    ASSERT_OK_ON_ALL(settle(flags));
    moert_flags_destroy(flags);
    moert_flags_destroy(NULL);
}

MPI_TESTS(open_test_device, close_test_device)
