// run: check=1,2 all=3,4,1gpu,2gpu,2san
/* Features of an exchange that depend on its settings: sending a token's row to each rank only
 * once, fusing a transfer into one kernel, pushing or summing rows on the rank that computes them,
 * and the node engine. */
#include "comm/internal.h"
#include "support/exchange/suite.h"

/* ---- rows that go to each rank once ---- */

static const uint32_t POISON = 0xFFC0DEAD;

/* Counts by brute force the rows that this rank's tokens store. The parts of the job are the nodes
 * of `comm`, or the ranks if `comm` is NULL. counts[0]: one row per slot whose expert is in this
 * rank's part. counts[1]: one row per token for each other part with some of the token's
 * experts. */
static void count_stored(const trip *t, const moert_comm *comm, double counts[2]) {
    const size_t mine = comm != NULL ? moert_comm_node(comm, test_rank) : test_rank;
    counts[0] = counts[1] = 0;
    for (size_t token = 0; token < t->tokens; token++)
        for (size_t part = 0; part < test_ranks; part++) {
            size_t slots = 0;
            for (size_t k = 0; k < t->c.topk; k++) {
                const size_t owner = t->routing.place[t->first_slot + token * t->c.topk + k][0];
                if (owner != MOERT_PLAN_DROPPED)
                    slots += (comm != NULL ? moert_comm_node(comm, owner) : owner) == part;
            }
            if (part == mine)
                counts[0] += (double)slots;
            else
                counts[1] += slots > 0;
        }
}

static void poison_rows(const trip *t) {
    const size_t floats = t->plan->plan->rows * moert_window_stride(t->x);
    for (size_t i = 0; i < floats; i++)
        memcpy(&t->host[i], &POISON, sizeof POISON);
    ASSERT_OK_ON_ALL(moert_buffer_write(moert_window_rows(t->x), 0, t->host, floats * 4));
}

/* The number of floats in this rank's rows that no rank has written. */
static size_t count_poison(const trip *t) {
    const size_t floats = t->plan->plan->rows * moert_window_stride(t->x);
    const uint32_t *words = read_bytes(moert_window_rows(t->x), floats * sizeof *words);
    size_t count = 0;
    for (size_t i = 0; i < floats; i++)
        count += words[i] == POISON;
    return count;
}

EXCHANGE_TEST(test_a_row_goes_to_each_rank_once, BY_ONCE) {
    enum { OWN, OTHERS, STORED, ROWS, SUMS };
    const shape c = {"counted", 13, 7, 40, {50, 0, 31, 44}, SOME_DROPPED, 21};
    trip *t = open_trip(state, &c);
    double sums[SUMS];
    const size_t rows = t->plan->plan->rows, stride = moert_window_stride(t->x);
    moert_transfer there = trip_there(t, false);
    there.one_copy_per_rank = true;
    poison_rows(t);
    moert_status status = moert_kernel_dispatch(t->exchange, &there, true);
    ASSERT_OK_ON_ALL(status == MOERT_OK ? moert_device_finish(test_device) : status);
    const size_t missing = count_poison(t);
    ASSERT_ON_ALL(missing % stride == 0);
    count_stored(t, NULL, sums);
    sums[STORED] = (double)(rows - missing / stride);
    sums[ROWS] = (double)rows;
    sum_over_ranks(sums, SUMS);
    ASSERT_ON_ALL(sums[STORED] == sums[OWN] + sums[OTHERS]);
    ASSERT_ON_ALL(test_ranks == 1 || sums[STORED] < sums[ROWS]);
    ASSERT_OK_ON_ALL(moert_kernel_fan_out(t->exchange, &there));
    ASSERT_ON_ALL(count_poison(t) == 0);
}

/* Until a dispatch has arrived, the words that name the source row of each row may hold any value.
 * Whatever these words hold, the kernel must not read outside of the window. */
EXCHANGE_TEST(test_an_invalid_source_of_a_row_is_ignored, BY_ONCE) {
    const shape c = {"late", 4, 2, 24, {9, 4, 7, 3}, RANDOM, 23};
    trip *t = open_trip(state, &c);
    const moert_transfer there = trip_there(t, false);
    const size_t rows = t->plan->plan->rows, stride = moert_window_stride(t->x);
    uint32_t *sources = test_alloc((rows + 1) * sizeof *sources);
    for (size_t r = 0; r < rows; r++)
        sources[r] = r % 2 == 0 ? 0xFFFFFFFF - (uint32_t)r : (uint32_t)t->x->capacity_rows;
    ASSERT_OK_ON_ALL(moert_buffer_write(moert_window_rows(t->x), t->x->capacity_rows * stride * 4,
                                        sources, rows * sizeof *sources));
    poison_rows(t);
    ASSERT_OK_ON_ALL(moert_kernel_fan_out(t->exchange, &there));
    ASSERT_ON_ALL(count_poison(t) == rows * stride);
}

EXCHANGE_TEST(test_a_row_goes_once_where_that_saves_much, 0) {
    static const struct {
        size_t ranks, tokens, topk, row_bytes; /* tokens: per rank */
        bool saves, saves_fused;
    } cases[] = {{4, 8192, 8, 4096, true, true},   {2, 8192, 8, 4096, true, true},
                 {4, 8192, 8, 14336, true, true},  {4, 128, 8, 4096, false, true},
                 {4, 64, 8, 4096, false, false},   {4, 8192, 1, 4096, false, false},
                 {4, 8192, 2, 4096, false, false}, {64, 8192, 8, 4096, false, false},
                 {1, 8192, 8, 4096, false, false}};
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        uint64_t slots = cases[i].ranks * cases[i].tokens * cases[i].topk;
        const moert_plan plan = {
            .ranks = cases[i].ranks, .topk = cases[i].topk, .experts = 1, .expert_counts = &slots};
        assert_int_equal(moert_window_saves(&plan, cases[i].row_bytes, false), cases[i].saves);
        assert_int_equal(moert_window_saves(&plan, cases[i].row_bytes, true), cases[i].saves_fused);
    }
}

/* Each rank chooses independently whether to fuse a transfer into one kernel. */
EXCHANGE_TEST(test_ranks_may_fuse_or_not, BY_FUSED | BY_FUSED_ONCE | BY_PUSHES) {
    const shape c = {"some fuse", 8, 4, 24, {11, 5, 9, 2}, RANDOM, 28};
    setup mixed = *(const setup *)*state;
    void *tested = &mixed;
    mixed.fuse = test_rank % 2 == 0 ? ON : OFF;
    trip *t = open_trip(&tested, &c);
    for (int i = 1; i < 10; i++)
        ASSERT_OK_ON_ALL(trip_run(&c, t));
}

/* ---- rows that are pushed ---- */

/* Opens an exchange that pushes rows, and makes a first round trip of a shape. */
static trip *open_pushing(void **state, const shape *c) {
    trip *t = open_trip(state, c);
    ASSERT_ON_ALL(moert_exchange_pushes(t->exchange, false));
    return t;
}

/* Until a dispatch has arrived, the slot number of a row may hold any value. The kernel must not
 * send a row whose slot number is invalid. */
EXCHANGE_TEST(test_a_row_without_a_valid_slot_is_not_pushed, BY_PUSHES) {
    const shape c = {"late", 4, 2, 24, {9, 4, 7, 3}, RANDOM, 25};
    trip *t = open_pushing(state, &c);
    const size_t rows = t->plan->plan->rows,
                 floats = t->y->capacity_rows * moert_window_stride(t->y);
    uint32_t(*slots)[MOERT_SLOT_STRIDE] = test_alloc((rows + 1) * sizeof *slots);
    const moert_buffer *addresses;
    for (size_t r = 0; r < rows; r++) {
        slots[r][1] = r % 2 == 0 ? 0xFFFFFFFF - (uint32_t)r : (uint32_t)t->y->capacity_rows;
        slots[r][2] = 0;
        if (r % 3 == 0) {
            slots[r][1] = 0;
            slots[r][2] = (uint32_t)test_ranks + (uint32_t)r;
        }
    }
    ASSERT_OK_ON_ALL(
        moert_buffer_write(moert_window_rows(t->slot_x), 0, slots, rows * sizeof *slots));
    const float *before = read_bytes(moert_window_rows(t->y), floats * sizeof *before);
    moert_transfer push = trip_push(t, false, false);
    if (moert_exchange_sums(t->exchange)) {
        ASSERT_REFUSED(moert_exchange_push(t->exchange, &push, &addresses),
                       "have no addresses of their own");
    } else {
        ASSERT_OK_ON_ALL(moert_exchange_push(t->exchange, &push, &addresses));
        const uint64_t *found = read_bytes(addresses, rows * sizeof *found);
        size_t pushed = 0;
        for (size_t r = 0; r < rows; r++)
            pushed += found[r] != 0;
        ASSERT_ON_ALL(pushed == 0);
    }
    push.unsent = moert_window_rows(t->x);
    ASSERT_OK_ON_ALL(moert_kernel_send_rows(t->exchange, &push));
    const float *after = read_bytes(moert_window_rows(t->y), floats * sizeof *after);
    ASSERT_ON_ALL(memcmp(before, after, floats * sizeof *before) == 0);
}

/* Dispatches rows, pushes them back unless `local` is a failure, and combines them, on the second
 * queue if `overlapped`. */
static moert_status combine_pushed(trip *t, bool weighted, bool overlapped, moert_status local) {
    moert_exchange *exchange = t->exchange;
    moert_transfer back = trip_push(t, weighted, false);
    MOERT_TRY(trip_dispatch(t, true, MOERT_OK));
    if (local == MOERT_OK)
        local = moert_exchange_push_rows(exchange, &back, moert_window_rows(t->x));
    if (local == MOERT_OK && overlapped)
        local = moert_exchange_combine_overlapped(exchange, &back);
    MOERT_TRY(moert_exchange_combine(exchange, &back, local));
    return moert_exchange_combine_join(exchange);
}

/* A combine that pushes rows sends them before it continues on the second queue. */
EXCHANGE_TEST(test_a_pushed_combine_may_overlap_other_work, BY_PUSHES) {
    const shape c = {"overlapped", 8, 4, 24, {25, 17, 40, 3}, SOME_DROPPED, 29};
    trip *t = open_pushing(state, &c);
    const size_t bytes = c.tokens[test_rank] * c.width * sizeof(float);
    ASSERT_OK_ON_ALL(combine_pushed(t, false, false, MOERT_OK));
    const float *want = read_bytes(t->target, bytes);
    ASSERT_OK_ON_ALL(moert_buffer_clear(moert_window_rows(t->y), 0,
                                        t->y->capacity_rows * moert_window_stride(t->y) * 4));
    ASSERT_OK_ON_ALL(combine_pushed(t, false, true, MOERT_OK));
    ASSERT_ON_ALL(memcmp(want, read_bytes(t->target, bytes), bytes) == 0);
}

/* If one rank's GEMM fails after others have sent rows, all ranks fail. A window without room for
 * the slots is refused before anything is stored. Weights are per slot, so they cannot be applied
 * to sums over slots. */
EXCHANGE_TEST(test_a_push_fails_alike_on_all_ranks, BY_PUSHES) {
    const shape c = {"fails", 8, 4, 24, {50, 17, 40, 3}, SOME_DROPPED, 26};
    trip *t = open_pushing(state, &c);
    const moert_buffer *addresses, *rows = moert_window_rows(t->x);
    moert_window *small;
    const moert_status local =
        test_rank == test_ranks - 1 ? MOERT_FAIL(ERROR_DEVICE, "the GEMM") : MOERT_OK;
    ASSERT_FAILS_ON_ALL(combine_pushed(t, false, false, local), MOERT_ERROR_DEVICE, "the GEMM");
    expect_usable(t);
    ASSERT_OK_ON_ALL(moert_window_create(t->exchange, c.width, &small));
    moert_transfer push = trip_push(t, false, false);
    push.window = small;
    ASSERT_REFUSED(moert_exchange_push_rows(t->exchange, &push, rows),
                   "the window that receives pushed rows has 0 rows");
    if (moert_exchange_sums(t->exchange))
        ASSERT_REFUSED(combine_pushed(t, true, false, MOERT_OK), "cannot weight rows");
    else
        ASSERT_REFUSED(moert_exchange_push(t->exchange, &push, &addresses),
                       "the window that receives pushed rows has 0 rows");
    moert_window_destroy(small);
    expect_usable(t);
}

/* If MOERT_PUSH forbids pushing on some ranks, no rank pushes. If MOERT_PUSH forbids summing on
 * some ranks, no rank sums rows before it sends them. */
EXCHANGE_TEST(test_ranks_agree_on_whether_they_push_and_sum, BY_PUSHES) {
    static const char *const others[] = {"on", "sum"}, *const lasts[] = {"off", "on"};
    const bool last = test_rank == test_ranks - 1;
    for (size_t i = 0; i < MOERT_COUNT(others); i++) {
        setup mixed = *(const setup *)*state;
        void *tested = &mixed;
        mixed.push = last ? lasts[i] : others[i];
        moert_exchange *exchange = open_exchange(&tested);
        ASSERT_ON_ALL(moert_exchange_pushes(exchange, false) == (i > 0));
        ASSERT_ON_ALL(i > 0 || !moert_exchange_pushes(exchange, true));
        ASSERT_ON_ALL(!moert_exchange_sums(exchange));
    }
}

/* ---- nodes ---- */

EXCHANGE_TEST(test_the_node_exchange_sends_a_row_once_to_a_host, BY_NODES) {
    const shape c = {"counted", 13, 7, 24, {50, 0, 31, 44}, SOME_DROPPED, 21};
    const moert_comm *comm = spread[((const setup *)*state)->together];
    trip *t = open_trip(state, &c);
    double stored[2];
    count_stored(t, comm, stored);
    const uint64_t pairs = (uint64_t)stored[1];
    /* rows that the two dispatches of the first trip sent to other hosts */
    const uint64_t before = t->exchange->far_rows;
    ASSERT_ON_ALL(before == 2 * pairs && (pairs > 0) == (c.tokens[test_rank] > 0));
    ASSERT_OK_ON_ALL(trip_dispatch(t, false, MOERT_OK));
    ASSERT_ON_ALL(t->exchange->far_rows == before + pairs);
}

/* The node engine never sums rows of bf16 before it sends them, because it would have to round the
 * sums. */
EXCHANGE_TEST(test_nodes_may_sum_rows_of_float32_first, BY_NODES) {
    set_variable("MOERT_NODE_SUM", "presum");
    moert_exchange *exchange = open_exchange(state);
    set_variable("MOERT_NODE_SUM", NULL);
    run_shapes(exchange, (trip){.presummed = spread[((const setup *)*state)->together]});
    run_shapes(exchange, (trip){.bf16 = true});
}

EXCHANGE_TEST(test_a_plan_is_dispatched_before_it_is_combined, BY_NODES) {
    const shape c = {"combined first", 8, 2, 16, {5, 6, 0, 3}, RANDOM, 31};
    trip *t = open_windows(open_exchange(state), c.width, false);
    trip_make_buffers(&c, t);
    ASSERT_OK_ON_ALL(trip_plan(t, &t->plan));
    ASSERT_OK_ON_ALL(moert_window_reserve(t->y, t->plan->plan));
    ASSERT_REFUSED(trip_combine(t, false, false, MOERT_OK), "before the first dispatch");
    expect_usable(t);
}

/* Between hosts, `auto` chooses the node engine if the ranks of a host share windows. */
EXCHANGE_TEST(test_hosts_of_several_ranks_take_the_node_exchange, BY_NODES) {
    const size_t together = ((const setup *)*state)->together;
    const bool shared = together > 1;
    moert_exchange_report reports[MOERT_EXCHANGE_ENGINES];
    ASSERT_ON_ALL(strcmp(automatic_engine(spread[together]), shared ? "node" : "staged") == 0);
    moert_exchange_survey(test_device, spread[together], reports);
    const moert_exchange_report *node = &reports[MOERT_EXCHANGE_NODE - MOERT_EXCHANGE_LOCAL];
    ASSERT_ON_ALL(node->automatic == shared && strcmp(node->name, "node") == 0);
    ASSERT_ON_ALL((strstr(node->reason, "alone on its host") == NULL) == shared);
    moert_exchange_survey(test_device, spread[0], reports);
    ASSERT_ON_ALL(strcmp(node->reason,
                         "the ranks are on one host; the node engine is for several hosts") == 0);
}

EXCHANGE_TESTS
