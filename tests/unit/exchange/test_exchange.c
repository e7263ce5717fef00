// run: check=2 all=1,3,4,1gpu,2gpu,2san
/*
 * Every engine on hostile shapes, with growing windows, repeated exchanges and errors. Each engine
 * must give the bits of the oracle in round_trip.c, so all engines give the same bits.
 */
#include <unistd.h>

#include "base/config.h"
#include "base/phase.h"
#include "comm/internal.h"
#include "device/device.h"
#include "support/exchange/suite.h"
#include "support/suite.h"

EXCHANGE_TEST(test_exchange_moves_rows_of_float32_and_bf16_exactly, BY_ALL) {
    moert_exchange *exchange = open_exchange(state);
    moert_window *odd = NULL;
    run_shapes(exchange, (trip){.bf16 = false});
    run_shapes(exchange, (trip){.bf16 = true});
    ASSERT_FAILS_ON_ALL(moert_window_create_bf16(exchange, 33, &odd), MOERT_ERROR_UNSUPPORTED,
                        "an even number of columns, not 33");
}

/* Some chunks have no experts or no rows; messages have one or two rows. */
EXCHANGE_TEST(test_exchange_in_chunks_moves_rows_exactly, BY_ENGINES) {
    moert_exchange *exchange = open_exchange(state);
    const size_t piece = moert_mail_piece_bytes;
    for (size_t chunks = 2; chunks <= MOERT_EXCHANGE_MOST_CHUNKS + 1; chunks += 1 + chunks / 3) {
        moert_mail_piece_bytes = 100 * chunks;
        run_shapes(exchange, (trip){.chunks = chunks});
    }
    moert_mail_piece_bytes = piece;
}

/* A rank that fails between two chunks still exchanges the remaining chunks. Then the call fails on
 * all ranks. */
EXCHANGE_TEST(test_exchange_fails_alike_in_the_middle_of_its_chunks, BY_ENGINES) {
    moert_exchange *exchange = open_exchange(state);
    const shape c = {"middle", 8, 2, 24, {11, 5, 9, 2}, RANDOM, 78};
    trip *t = open_windows(exchange, c.width, false);
    t->chunks = 4;
    ASSERT_OK_ON_ALL(trip_run(&c, t));
    const moert_transfer there = trip_there(t, false), back = trip_back(t, false, false);
    ASSERT_OK_ON_ALL(moert_exchange_dispatch_start(exchange, &there, MOERT_OK));
    moert_status local = MOERT_OK;
    for (size_t chunk = 0; chunk < t->plan->chunks; chunk++) {
        if (local == MOERT_OK)
            local = moert_exchange_dispatch_wait(exchange, chunk);
        if (chunk == t->plan->chunks / 2 && test_rank == test_ranks - 1)
            local = MOERT_FAIL(ERROR_DEVICE, "the second chunk's GEMM");
        moert_exchange_combine_send(exchange, &back, chunk);
    }
    ASSERT_FAILS_ON_ALL(moert_exchange_combine_finish(exchange, &back, local), MOERT_ERROR_DEVICE,
                        "the second chunk's GEMM");
    expect_usable(t);
}

/* Resident shared memory of this process, in bytes. */
static size_t shared_bytes(void) {
    char line[128];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "RssShmem: %zu kB", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib * 1024;
}

/* All tokens go to one rank. Every rank reserves a window for that many rows, but uses pages only
 * for the rows that it sends and receives. */
EXCHANGE_TEST(test_windows_use_memory_only_for_rows_that_move, BY_WINDOW) {
    const shape c = {"one page a row", 4, 1, 1024, {256, 256, 256, 256}, ONE_EXPERT, 21};
    const size_t page = c.width * sizeof(float), slack = 64 * page;
    trip *t = open_windows(open_exchange(state), c.width, false);
    const size_t before = shared_bytes();
    ASSERT_OK_ON_ALL(trip_run(&c, t));
    const size_t taken = shared_bytes() - before, rows = c.tokens[0] + t->plan->plan->rows;
    const size_t most = 2 * rows * page + slack, least = 2 * c.tokens[0] * page;
    if (moert_device_describe(test_device)->is_cpu)
        ASSERT_ON_ALL(taken >= least && taken <= most);
    ASSERT_ON_ALL(t->plan->capacity_rows >= test_ranks * c.tokens[0]);
}

/* The windows grow twice, and after each growth hold fewer rows again. */
EXCHANGE_TEST(test_exchange_repeats_with_changing_payload_and_growing_windows, BY_ALL) {
    trip *t = open_windows(open_exchange(state), 20, false);
    for (unsigned i = 0; i < 200; i++) {
        const size_t most = i == 50 ? 40 : i == 100 ? 300 : i % 9;
        const shape c = {"repeated", 6, 2, 20, {most, 7, (i / 3) % 5, 4}, RANDOM, i};
        ASSERT_OK_ON_ALL(trip_run(&c, t));
    }
}

/* Element i of a token's row: bit patterns that arithmetic would change. */
static uint32_t hostile_bits(size_t token, size_t i) {
    static const uint32_t bits[] = {0x7F800001, 0xFFBFFFFF, 0x7FC12345, 0xFF800000,
                                    0x80000000, 0x00000001, 0x807FFFFF, 0xFFFFFFFF};
    return bits[(token * 5 + i) % 8];
}

EXCHANGE_TEST(test_exchange_dispatches_any_bits, BY_ALL) {
    const shape c = {"bits", 1, 1, 21, {3, 5, 0, 4}, ONE_EXPERT, 5};
    const size_t tokens = c.tokens[test_rank];
    size_t wrong = 0;
    trip *t = open_trip(state, &c);
    uint32_t *host = (uint32_t *)t->host;
    for (size_t i = 0; i < tokens * c.width; i++)
        host[i] = hostile_bits(t->first_slot + i / c.width, i % c.width);
    ASSERT_OK_ON_ALL(moert_buffer_write(t->source, 0, host, tokens * c.width * 4));
    ASSERT_OK_ON_ALL(trip_dispatch(t, false, MOERT_OK));
    const size_t rows = t->plan->plan->rows, stride = moert_window_stride(t->x);
    ASSERT_OK_ON_ALL(moert_buffer_read(moert_window_rows(t->x), 0, host, rows * stride * 4));
    for (size_t i = 0; i < rows * c.width; i++)
        wrong += host[i / c.width * stride + i % c.width] != hostile_bits(i / c.width, i % c.width);
    ASSERT_ON_ALL(wrong == 0 && (rows > 0) == (test_rank == 0));
}

/* ---- plans ---- */

EXCHANGE_TEST(test_the_device_places_the_slots_of_many_experts, BY_ENGINES) {
    static const shape many[] = {
        {"one block of slots", 8, 2, 1, {31, 62, 93, 124}, SOME_DROPPED, 40},
        {"blocks without a rest", 5, 2, 1, {32, 64, 96, 128}, SOME_DROPPED, 41},
        {"17 experts", 17, 8, 1, {33, 66, 99, 132}, SOME_DROPPED, 42},
        {"64 experts", 64, 3, 1, {700, 1400, 2100, 2800}, SOME_DROPPED, 43},
        {"1000 experts", 1000, 8, 1, {1100, 2200, 3300, 4400}, SOME_DROPPED, 44},
        {"9000 experts", 9000, 3, 1, {40, 80, 120, 160}, SOME_DROPPED, 45},
    };
    moert_exchange *exchange = open_exchange(state);
    for (size_t i = 0; i < MOERT_COUNT(many); i++)
        run_shape(exchange, many[i], (trip){.chunks = 0});
}

/* If one rank fails between the two calls that make a plan, the plan fails on all ranks. The next
 * plan reuses the memory of a freed plan and is correct. */
EXCHANGE_TEST(test_a_plan_is_made_in_two_calls, BY_ENGINES) {
    const shape c = {"two calls", 8, 2, 16, {70, 70, 70, 70}, SOME_DROPPED, 5};
    trip *t = open_windows(open_exchange(state), c.width, false);
    trip_make_buffers(&c, t);
    const moert_exchange_slots slots = {t->index, c.tokens[0], c.topk, c.experts, NULL},
                               one = {t->index, 1, c.topk, c.experts, NULL};
    uint32_t place[140][2];
    for (int round = 0; round < 2; round++) {
        moert_exchange_plan *made = NULL, *next = NULL;
        moert_status status = moert_exchange_begin_plan(t->exchange, &slots, MOERT_OK);
        if (status == MOERT_OK && test_rank == test_ranks - 1)
            status = MOERT_FAIL(ERROR_MEMORY, "no room for the work in between");
        ASSERT_FAILS_ON_ALL(moert_exchange_end_plan(t->exchange, status, &made), MOERT_ERROR_MEMORY,
                            "no room for the work in between");
        assert_null(made);
        status = moert_exchange_begin_plan(t->exchange, &slots, MOERT_OK);
        ASSERT_OK_ON_ALL(moert_exchange_end_plan(t->exchange, status, &made));
        ASSERT_OK_ON_ALL(moert_buffer_read(made->destination, 0, place, sizeof place));
        ASSERT_ON_ALL(memcmp(place, t->routing.place + t->first_slot, sizeof place) == 0);
        const moert_buffer *memory = made->destination;
        moert_exchange_free_plan(made);
        ASSERT_OK_ON_ALL(moert_exchange_make_plan(t->exchange, &one, MOERT_OK, &next));
        ASSERT_ON_ALL(next->destination == memory);
        moert_exchange_free_plan(next);
    }
}

/* ---- errors ---- */

EXCHANGE_TEST(test_exchange_fails_alike_on_all_ranks_and_stays_usable, BY_ALL) {
    moert_exchange *exchange = open_exchange(state);
    const shape c = {"after errors", 8, 2, 24, {11, 5, 9, 2}, RANDOM, 77};
    const int32_t bad = 8, last = test_rank == test_ranks - 1;
    moert_exchange_plan *plan = NULL;
    moert_buffer *small = test_buffer(4);
    trip *t = open_windows(exchange, c.width, false);
    trip_make_buffers(&c, t);
    ASSERT_OK_ON_ALL(last ? moert_buffer_write(t->index, 4, &bad, sizeof bad) : MOERT_OK);
    ASSERT_REFUSED(trip_plan(t, &plan), "token 0, slot 1: expert index 8 is outside -1..7");
    moert_exchange_slots none = {.index = t->index, .tokens = 0, .topk = 2, .experts = 8};
    moert_status local = test_rank == 0 ? MOERT_FAIL(ERROR_IO, "the data ended early") : MOERT_OK;
    ASSERT_FAILS_ON_ALL(moert_exchange_make_plan(exchange, &none, local, &plan), MOERT_ERROR_IO,
                        "the data ended early");
    none.topk += last ? 1 : 0;
    if (test_ranks > 1)
        ASSERT_FAILS_ON_ALL(moert_exchange_make_plan(exchange, &none, MOERT_OK, &plan),
                            MOERT_ERROR_MISMATCH, "experts per token");
    assert_null(plan);
    ASSERT_OK_ON_ALL(trip_run(&c, t));
    moert_transfer there = trip_there(t, false), back = trip_back(t, true, false);
    there.source = last ? small : t->source;
    back.weight = last ? small : t->weight;
    ASSERT_REFUSED(moert_exchange_dispatch(exchange, &there, MOERT_OK),
                   "the source of a dispatch holds 4 bytes");
    ASSERT_REFUSED(moert_exchange_combine(exchange, &back, MOERT_OK),
                   "the weights of a combine holds 4 bytes");
    local = last ? MOERT_FAIL(ERROR_MEMORY, "no room for the busy rank") : MOERT_OK;
    ASSERT_FAILS_ON_ALL(trip_dispatch(t, false, local), MOERT_ERROR_MEMORY,
                        "no room for the busy rank");
    local = last ? MOERT_FAIL(ERROR_MEMORY, "no room for the busy rank") : MOERT_OK;
    ASSERT_FAILS_ON_ALL(trip_combine(t, false, false, local), MOERT_ERROR_MEMORY,
                        "no room for the busy rank");
    ASSERT_OK_ON_ALL(trip_run(&c, t));
}

/* The last rank's device is busy for 2.5 s, in a barrier that no other rank enters. The other ranks
 * wait 2 s for the late device's rows. */
EXCHANGE_TEST(test_exchange_names_a_late_device_and_stays_usable, BY_IMPATIENT) {
    const shape c = {"late", 8, 4, 24, {25, 17, 40, 3}, RANDOM, 34};
    moert_flags *busy;
    moert_exchange_plan *plan = NULL;
    if (test_ranks == 1 || suite_skips(test_ranks != 2))
        return;
    trip *t = open_trip(state, &c);
    const bool pushes = moert_exchange_pushes(t->exchange, false);
    ASSERT_OK_ON_ALL(moert_flags_create(test_device, test_comm, moert_memory_of(test_device),
                                        2500000000, &busy));
    if (pushes)
        ASSERT_OK_ON_ALL(trip_dispatch(t, true, MOERT_OK));
    ASSERT_OK_ON_ALL(test_rank == test_ranks - 1 ? moert_flags_barrier(busy) : MOERT_OK);
    if (!pushes)
        ASSERT_OK_ON_ALL(trip_dispatch(t, true, MOERT_OK));
    moert_transfer back = pushes ? trip_push(t, false, false) : trip_back(t, false, false);
    ASSERT_OK_ON_ALL(moert_exchange_combine(
        t->exchange, &back,
        pushes ? moert_exchange_push_rows(t->exchange, &back, moert_window_rows(t->x)) : MOERT_OK));
    ASSERT_FAILS_ON_ALL(trip_plan(t, &plan), MOERT_ERROR_COMM,
                        titled("the device of rank %zu (", test_ranks - 1));
    assert_non_null(
        strstr(moert_last_error(), pushes ? "in phase 'combine'" : "in phase 'dispatch'"));
    expect_usable(t);
    moert_flags_destroy(busy);
}

static void add_wait(void *sum, moert_phase phase, uint64_t ns) {
    (void)phase;
    *(uint64_t *)sum += ns;
}

/* The last rank enters a combine 50 ms late. The other ranks wait, and the watchdog and a profile
 * must record the wait. */
EXCHANGE_TEST(test_waits_for_a_late_rank_count, BY_STAGED | BY_NODES) {
    const shape c = {"late", 8, 4, 24, {25, 17, 40, 30}, RANDOM, 35};
    const bool late = test_rank == test_ranks - 1;
    uint64_t waited_ns = 0;
    trip *t = open_trip(state, &c);
    ASSERT_OK_ON_ALL(trip_dispatch(t, true, MOERT_OK));
    moert_phase_listen(add_wait, &waited_ns);
    if (late)
        usleep(50000);
    const moert_status status = trip_combine(t, false, false, MOERT_OK);
    moert_phase_listen(NULL, NULL);
    ASSERT_OK_ON_ALL(status);
    ASSERT_ON_ALL(late || waited_ns > 30000000);
    ASSERT_ON_ALL(moert_phase_waiting() == 0);
}

EXCHANGE_TEST(test_exchange_chooses_the_best_engine, 0) {
    moert_exchange *exchange;
    assert_string_equal(automatic_engine(test_comm), test_ranks == 1 ? "local"
                                                     : has_windows() ? "window"
                                                                     : "staged");
    if (test_ranks > 1)
        ASSERT_FAILS_ON_ALL(
            moert_exchange_create(test_device, test_comm, MOERT_EXCHANGE_LOCAL, &exchange),
            MOERT_ERROR_UNSUPPORTED, "it serves one rank");
    moert_exchange_destroy(NULL);
    moert_window_destroy(NULL);
    moert_exchange_free_plan(NULL);
}

/* Simulates ranks of one host in separate containers: the last rank reads another directory than
 * /proc. */
EXCHANGE_TEST(test_exchange_is_staged_where_ranks_cannot_share_memory, 0) {
    moert_exchange *exchange;
    if (test_ranks == 1 || !moert_device_describe(test_device)->is_cpu)
        return;
    moert_memory_processes = test_rank == test_ranks - 1 ? "/nowhere" : "/proc";
    const char *engine = automatic_engine(test_comm);
    const moert_status status =
        moert_exchange_create(test_device, test_comm, MOERT_EXCHANGE_WINDOW, &exchange);
    moert_memory_processes = "/proc";
    ASSERT_FAILS_ON_ALL(status, MOERT_ERROR_UNSUPPORTED, "is out of reach");
    assert_string_equal(engine, "staged");
}

EXCHANGE_TESTS
