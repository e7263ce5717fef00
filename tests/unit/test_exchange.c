// run: np=1,2,3,4 gpu=1,2 sanitize=2
/*
 * Every engine over hostile shapes, growth, repetition and errors. An engine that equals the oracle
 * of round_trip.h bit for bit equals every other engine too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/memory.h"
#include "base/rng.h"
#include "comm/internal.h"
#include "exchange/flags.h"
#include "support/mpi.h"
#include "support/round_trip.h"
#include "support/suite.h"

static const shape shapes[] = {
    {"even", 8, 2, 64, {16, 16, 16, 16}, RANDOM, 0},
    {"uneven tokens", 8, 2, 64, {33, 1, 70, 5}, RANDOM, 1},
    {"rank 0 empty", 8, 2, 32, {0, 9, 0, 3}, RANDOM, 2},
    {"other ranks empty", 8, 2, 32, {13, 0, 0, 0}, RANDOM, 3},
    {"no tokens at all", 8, 2, 32, {0, 0, 0, 0}, RANDOM, 4},
    {"one token", 4, 2, 16, {1, 0, 0, 0}, RANDOM, 5},
    {"all to one expert", 8, 1, 48, {20, 30, 10, 7}, ONE_EXPERT, 6},
    {"every expert chosen", 7, 7, 40, {9, 5, 6, 7}, RANDOM, 7},
    {"many experts per token", 16, 11, 64, {9, 5, 0, 7}, SOME_DROPPED, 8},
    {"uneven experts", 13, 3, 64, {21, 20, 19, 18}, RANDOM, 9},
    {"fewer experts than ranks", 2, 1, 16, {5, 6, 7, 8}, RANDOM, 10},
    {"some slots dropped", 8, 4, 64, {25, 17, 40, 3}, SOME_DROPPED, 11},
    {"all slots dropped", 8, 2, 64, {5, 4, 3, 2}, ALL_DROPPED, 12},
    {"by Zipf's law", 16, 4, 48, {120, 64, 90, 77}, ZIPF, 17},
    {"one takes 30 %", 16, 2, 48, {120, 64, 90, 77}, HOT, 18},
    {"one of many takes all", 16, 1, 48, {300, 1, 200, 90}, ONE_EXPERT, 19},
    {"width 1", 8, 2, 1, {19, 17, 3, 20}, RANDOM, 13},
    {"width 15", 8, 2, 15, {19, 17, 3, 20}, RANDOM, 14},
    {"width 17", 8, 2, 17, {19, 17, 3, 20}, RANDOM, 15},
    {"width 100", 8, 3, 100, {19, 17, 3, 20}, SOME_DROPPED, 16},
};

/* What is tested: an engine, who waits for the other ranks, (node) how many ranks count as a host,
 * and (window) whether rows go to each rank once, combines run beside other work, results are
 * pushed, and moves of few rows are one kernel. */
typedef struct setup {
    unsigned engine;
    const char *sync, *timeout_s;
    size_t together;
    const char *once, *overlap, *push, *fuse;
} setup;

/* The ranks of the job on so many hosts as MOERT_NODE_RANKS makes; [0] has one. */
static moert_comm *spread[MAX_RANKS];

static moert_status make_spread(void) {
    for (size_t together = 0; together < test_ranks; together++) {
        const char *const counts[MAX_RANKS] = {NULL, "1", "2", "3"};
        set_variable("MOERT_NODE_RANKS", counts[together]);
        MOERT_TRY(moert_comm_split(test_comm, 0, &spread[together]));
    }
    set_variable("MOERT_NODE_RANKS", NULL);
    return MOERT_OK;
}

static void free_spread(void) {
    for (size_t together = 0; together < test_ranks; together++)
        moert_comm_destroy(spread[together]);
}

static bool has_windows(void) {
    const moert_device_info *info = moert_device_describe(test_device);
    return info->is_cpu || info->nvidia > 0;
}

/* The exchange under test. */
static moert_exchange *open_exchange(void **state) {
    const setup *tested = *state;
    moert_exchange *exchange;
    set_variable("MOERT_SYNC", tested->sync);
    set_variable("MOERT_TIMEOUT_S", tested->timeout_s);
    set_variable("MOERT_ONCE", tested->once);
    set_variable("MOERT_OVERLAP", tested->overlap);
    set_variable("MOERT_PUSH", tested->push);
    set_variable("MOERT_FUSE", tested->fuse);
    ASSERT_OK_ON_ALL(
        moert_exchange_create(test_device, spread[tested->together], tested->engine, &exchange));
    set_variable("MOERT_SYNC", NULL);
    set_variable("MOERT_TIMEOUT_S", NULL);
    set_variable("MOERT_ONCE", NULL);
    set_variable("MOERT_PUSH", NULL);
    set_variable("MOERT_FUSE", NULL);
    assert_string_equal(moert_exchange_engine(exchange),
                        moert_config_choice("MOERT_EXCHANGE", tested->engine));
    return exchange;
}

static void test_exchange_moves_rows_exactly(void **state) {
    moert_exchange *exchange = open_exchange(state);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        trip t;
        ASSERT_OK_ON_ALL(
            trip_make_windows(test_device, test_comm, exchange, shapes[i].width, false, &t));
        ASSERT_OK_ON_ALL(trip_run(&shapes[i], &t));
        trip_free_buffers(&t);
        trip_free_windows(&t);
    }
    moert_exchange_destroy(exchange);
}

/* Waves of no expert, of no row, and messages of a row or two. */
static void test_exchange_in_waves_moves_rows_exactly(void **state) {
    moert_exchange *exchange = open_exchange(state);
    const size_t piece = moert_mail_piece_bytes;
    for (size_t waves = 2; waves <= MOERT_EXCHANGE_MOST_WAVES + 1; waves += 1 + waves / 3) {
        moert_mail_piece_bytes = 100 * waves;
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            trip t;
            ASSERT_OK_ON_ALL(
                trip_make_windows(test_device, test_comm, exchange, shapes[i].width, false, &t));
            t.waves = waves;
            ASSERT_OK_ON_ALL(trip_run(&shapes[i], &t));
            trip_free_buffers(&t);
            trip_free_windows(&t);
        }
    }
    moert_mail_piece_bytes = piece;
    moert_exchange_destroy(exchange);
}

/* A rank on which something fails between two waves goes through all of them; then all fail. */
static void test_exchange_fails_alike_in_the_middle_of_its_waves(void **state) {
    moert_exchange *exchange = open_exchange(state);
    const shape c = {"middle", 8, 2, 24, {11, 5, 9, 2}, RANDOM, 78};
    trip t;
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c.width, false, &t));
    t.waves = 4;
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    ASSERT_OK_ON_ALL(
        moert_exchange_dispatch_start(exchange, t.plan, MOERT_OK, t.source, t.x, NULL, NULL));
    moert_status local = MOERT_OK;
    for (size_t w = 0; w < t.plan->waves; w++) {
        if (local == MOERT_OK)
            local = moert_exchange_dispatch_wait(exchange, w);
        if (w == t.plan->waves / 2 && test_rank == test_ranks - 1)
            local = MOERT_FAIL(ERROR_DEVICE, "the second wave's product");
        moert_exchange_combine_send(exchange, t.plan, t.y, NULL, w);
    }
    ASSERT_FAILS_ON_ALL(
        moert_exchange_combine_finish(exchange, t.plan, local, t.y, NULL, t.target, NULL, NULL),
        MOERT_ERROR_DEVICE, "the second wave's product");
    trip_free_buffers(&t);
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

static void test_exchange_sums_rows_of_codes_exactly(void **state) {
    moert_exchange *exchange = open_exchange(state);
    moert_window *odd = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        shape c = shapes[i];
        trip t;
        c.width += c.width % 2;
        ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c.width, true, &t));
        ASSERT_OK_ON_ALL(trip_run(&c, &t));
        trip_free_buffers(&t);
        trip_free_windows(&t);
    }
    ASSERT_FAILS_ON_ALL(moert_window_create_codes(exchange, 33, &odd), MOERT_ERROR_UNSUPPORTED,
                        "pairs of bf16 codes, not 33");
    moert_exchange_destroy(exchange);
}

/* Resident pages of memory shared with others, in bytes. */
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

/* All tokens go to the last rank: windows reserve that everywhere, but take pages where rows lie.
 */
static void test_windows_take_memory_by_the_rows_that_come(void **state) {
    moert_exchange *exchange = open_exchange(state);
    const shape c = {"one page a row", 4, 1, 1024, {256, 256, 256, 256}, ONE_EXPERT, 21};
    const size_t page = c.width * sizeof(float), slack = 64 * page;
    trip t;
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c.width, false, &t));
    const size_t before = shared_bytes();
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    const size_t taken = shared_bytes() - before, rows = c.tokens[0] + t.plan->plan->rows;
    const size_t most = 2 * rows * page + slack, least = 2 * c.tokens[0] * page;
    if (moert_device_describe(test_device)->is_cpu)
        ASSERT_ON_ALL(taken >= least && taken <= most);
    ASSERT_ON_ALL(t.plan->capacity_rows >= test_ranks * c.tokens[0]);
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

static void test_exchange_grows_its_windows(void **state) {
    moert_exchange *exchange = open_exchange(state);
    static const size_t tokens[] = {3, 40, 7, 300};
    trip t;
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, 24, false, &t));
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        shape c = {"growing", 8, 3, 24, {tokens[i], 0, tokens[i], 2}, RANDOM, (unsigned)i};
        ASSERT_OK_ON_ALL(trip_run(&c, &t));
        trip_free_buffers(&t);
    }
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

static void test_exchange_repeats_with_changing_payload(void **state) {
    moert_exchange *exchange = open_exchange(state);
    trip t;
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, 20, false, &t));
    for (unsigned i = 0; i < 200; i++) {
        shape c = {"repeated", 6, 2, 20, {i % 9, 7, (i / 3) % 5, 4}, RANDOM, i};
        ASSERT_OK_ON_ALL(trip_run(&c, &t));
        trip_free_buffers(&t);
    }
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

/* Element i of a token's row: bits that arithmetic would change. */
static uint32_t hostile_bits(size_t token, size_t i) {
    static const uint32_t bits[] = {0x7F800001, 0xFFBFFFFF, 0x7FC12345, 0xFF800000,
                                    0x80000000, 0x00000001, 0x807FFFFF, 0xFFFFFFFF};
    return bits[(token * 5 + i) % 8];
}

static void test_exchange_dispatches_any_bits(void **state) {
    moert_exchange *exchange = open_exchange(state);
    const shape c = {"bits", 1, 1, 21, {3, 5, 0, 4}, ONE_EXPERT, 5};
    const size_t tokens = c.tokens[test_rank];
    size_t before = 0, wrong = 0;
    trip t;
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c.width, false, &t));
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    uint32_t *host = (uint32_t *)t.host;
    for (size_t r = 0; r < test_rank; r++)
        before += c.tokens[r];
    for (size_t i = 0; i < tokens * c.width; i++)
        host[i] = hostile_bits(before + i / c.width, i % c.width);
    ASSERT_OK_ON_ALL(moert_buffer_write(t.source, 0, host, tokens * c.width * 4));
    ASSERT_OK_ON_ALL(
        moert_exchange_dispatch(exchange, t.plan, MOERT_OK, t.source, t.x, NULL, NULL));
    const size_t rows = t.plan->plan->rows, stride = moert_window_stride(t.x);
    ASSERT_OK_ON_ALL(moert_buffer_read(moert_window_rows(t.x), 0, host, rows * stride * 4));
    for (size_t i = 0; i < rows * c.width; i++)
        wrong += host[i / c.width * stride + i % c.width] != hostile_bits(i / c.width, i % c.width);
    ASSERT_ON_ALL(wrong == 0 && (rows > 0) == (test_rank == 0));
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

/* ---- rows that go to each rank once ---- */

static const uint32_t POISON = 0xFFC0DEAD;

/* Slots of this rank's tokens that get a row of their own, by brute force: all of its own experts,
 * one of each other rank's. */
static size_t count_stored(const int32_t *index, size_t tokens, size_t topk, size_t experts) {
    size_t stored = 0;
    for (size_t t = 0; t < tokens; t++)
        for (size_t owner = 0; owner < test_ranks; owner++) {
            size_t slots = 0;
            for (size_t k = 0; k < topk; k++) {
                const int32_t e = index[t * topk + k];
                slots += e >= 0 && moert_plan_owner(experts, test_ranks, (size_t)e) == owner;
            }
            stored += owner == test_rank || slots == 0 ? slots : 1;
        }
    return stored;
}

static size_t sum_over_ranks(size_t mine) {
    size_t all[MAX_RANKS], sum = 0;
    ASSERT_OK_ON_ALL(moert_comm_allgather(test_comm, &mine, sizeof mine, all));
    for (size_t r = 0; r < test_ranks; r++)
        sum += all[r];
    return sum;
}

/* Floats of this rank's rows that nobody has written. */
static size_t count_poison(const trip *t) {
    const size_t floats = t->plan->plan->rows * moert_window_stride(t->x);
    size_t count = 0;
    ASSERT_OK_ON_ALL(moert_buffer_read(moert_window_rows(t->x), 0, t->host, floats * 4));
    for (size_t i = 0; i < floats; i++)
        count += ((const uint32_t *)(const void *)t->host)[i] == POISON;
    return count;
}

static void test_a_row_goes_to_each_rank_once(void **state) {
    const shape c = {"counted", 13, 7, 40, {50, 0, 31, 44}, SOME_DROPPED, 21};
    moert_exchange *exchange = open_exchange(state);
    const size_t tokens = c.tokens[test_rank], slots = tokens * c.topk;
    int32_t *index = test_alloc((slots + 1) * sizeof *index);
    trip t;
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c.width, false, &t));
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    ASSERT_OK_ON_ALL(moert_buffer_read(t.index, 0, index, slots * sizeof *index));
    const size_t rows = t.plan->plan->rows, stride = moert_window_stride(t.x);
    for (size_t i = 0; i < rows * stride; i++)
        memcpy(&t.host[i], &POISON, sizeof POISON);
    ASSERT_OK_ON_ALL(moert_buffer_write(moert_window_rows(t.x), 0, t.host, rows * stride * 4));
    const moert_move move = {.plan = t.plan, .window = t.x, .source = t.source};
    moert_status status = moert_kernel_dispatch_once(exchange, &move);
    ASSERT_OK_ON_ALL(status == MOERT_OK ? moert_device_finish(test_device) : status);
    const size_t missing = count_poison(&t);
    ASSERT_ON_ALL(missing % stride == 0);
    const size_t stored = sum_over_ranks(rows - missing / stride);
    ASSERT_ON_ALL(stored == sum_over_ranks(count_stored(index, tokens, c.topk, c.experts)));
    ASSERT_ON_ALL(test_ranks == 1 || stored < sum_over_ranks(rows));
    ASSERT_OK_ON_ALL(moert_kernel_fan_out(exchange, &move));
    ASSERT_ON_ALL(count_poison(&t) == 0);
    free(index);
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

/* Words of a dispatch that has not come: no row is read outside of the window. */
static void test_a_word_that_is_no_row_is_left_alone(void **state) {
    const shape c = {"late", 4, 2, 24, {9, 4, 7, 3}, RANDOM, 23};
    moert_exchange *exchange = open_exchange(state);
    trip t;
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c.width, false, &t));
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    const moert_move move = {.plan = t.plan, .window = t.x, .source = t.source};
    const size_t rows = t.plan->plan->rows, stride = moert_window_stride(t.x);
    uint32_t *words = test_alloc((rows + 1) * sizeof *words);
    for (size_t r = 0; r < rows; r++)
        words[r] = r % 2 == 0 ? 0xFFFFFFFF - (uint32_t)r : (uint32_t)t.x->capacity_rows;
    ASSERT_OK_ON_ALL(moert_buffer_write(moert_window_rows(t.x), t.x->capacity_rows * stride * 4,
                                        words, rows * sizeof *words));
    for (size_t i = 0; i < rows * stride; i++)
        memcpy(&t.host[i], &POISON, sizeof POISON);
    ASSERT_OK_ON_ALL(moert_buffer_write(moert_window_rows(t.x), 0, t.host, rows * stride * 4));
    ASSERT_OK_ON_ALL(moert_kernel_fan_out(exchange, &move));
    ASSERT_ON_ALL(count_poison(&t) == rows * stride);
    free(words);
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

/* Ranks that are told different things still agree. */
static void test_ranks_agree_on_how_often_a_row_goes(void **state) {
    const shape c = {"told otherwise", 8, 4, 24, {11, 5, 9, 2}, RANDOM, 24};
    setup mixed = *(const setup *)*state;
    void *tested = &mixed;
    trip t;
    mixed.once = test_rank == test_ranks - 1 ? "off" : "on";
    moert_exchange *exchange = open_exchange(&tested);
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c.width, false, &t));
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

static void test_a_row_goes_once_where_that_saves_much(void **state) {
    (void)state;
    static const struct {
        size_t ranks, tokens, topk, row_bytes; /* tokens of a rank */
        bool saves, saves_fused;
    } cases[] = {{4, 8192, 8, 4096, true, true},   {2, 8192, 8, 4096, true, true},
                 {4, 8192, 8, 14336, true, true},  {4, 128, 8, 4096, false, true},
                 {4, 64, 8, 4096, false, false},   {4, 8192, 1, 4096, false, false},
                 {4, 8192, 2, 4096, false, false}, {64, 8192, 8, 4096, false, false},
                 {1, 8192, 8, 4096, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t slots = cases[i].ranks * cases[i].tokens * cases[i].topk;
        const moert_plan plan = {
            .ranks = cases[i].ranks, .topk = cases[i].topk, .experts = 1, .expert_counts = &slots};
        assert_int_equal(moert_window_saves(&plan, cases[i].row_bytes, false), cases[i].saves);
        assert_int_equal(moert_window_saves(&plan, cases[i].row_bytes, true), cases[i].saves_fused);
    }
}

/* Each rank chooses for itself whether a move is one kernel. */
static void test_ranks_may_fuse_or_not(void **state) {
    const shape c = {"some fuse", 8, 4, 24, {11, 5, 9, 2}, RANDOM, 28};
    setup mixed = *(const setup *)*state;
    void *tested = &mixed;
    trip t;
    mixed.fuse = test_rank % 2 == 0 ? "on" : "off";
    moert_exchange *exchange = open_exchange(&tested);
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c.width, false, &t));
    for (int i = 0; i < 10; i++) {
        ASSERT_OK_ON_ALL(trip_run(&c, &t));
        trip_free_buffers(&t);
    }
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

/* ---- rows that are pushed ---- */

/* The trip of a shape, up to its slots' windows, on an exchange that pushes. */
static moert_exchange *open_pushing(void **state, const shape *c, trip *t) {
    moert_exchange *exchange = open_exchange(state);
    ASSERT_ON_ALL(moert_exchange_pushes(exchange, false));
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c->width, false, t));
    ASSERT_OK_ON_ALL(trip_run(c, t));
    return exchange;
}

/* A cell of a dispatch that has not come: its row goes nowhere. */
static void test_a_row_of_no_slot_is_pushed_nowhere(void **state) {
    const shape c = {"late", 4, 2, 24, {9, 4, 7, 3}, RANDOM, 25};
    trip t;
    moert_exchange *exchange = open_pushing(state, &c, &t);
    const size_t rows = t.plan->plan->rows, floats = t.y->capacity_rows * moert_window_stride(t.y);
    uint32_t(*cells)[MOERT_SLOT_STRIDE] = test_alloc((rows + 1) * sizeof *cells);
    uint64_t *found = test_alloc((rows + 1) * sizeof *found);
    float *before = test_alloc(floats * sizeof *before),
          *after = test_alloc(floats * sizeof *after);
    const moert_buffer *places;
    size_t somewhere = 0;
    for (size_t r = 0; r < rows; r++) {
        cells[r][1] = r % 2 == 0 ? 0xFFFFFFFF - (uint32_t)r : (uint32_t)t.y->capacity_rows;
        cells[r][2] = 0;
        if (r % 3 == 0) {
            cells[r][1] = 0;
            cells[r][2] = (uint32_t)test_ranks + (uint32_t)r;
        }
    }
    ASSERT_OK_ON_ALL(
        moert_buffer_write(moert_window_rows(t.slot_x), 0, cells, rows * sizeof *cells));
    ASSERT_OK_ON_ALL(moert_buffer_read(moert_window_rows(t.y), 0, before, floats * sizeof *before));
    ASSERT_OK_ON_ALL(moert_exchange_push(exchange, t.plan, t.y, t.slot_x, &places));
    const moert_move move = {
        .plan = t.plan, .window = t.y, .slots = t.slot_x, .source = moert_window_rows(t.x)};
    ASSERT_OK_ON_ALL(moert_kernel_send_rows(exchange, &move));
    ASSERT_OK_ON_ALL(moert_buffer_read(places, 0, found, rows * sizeof *found));
    for (size_t r = 0; r < rows; r++)
        somewhere += found[r] != 0;
    ASSERT_ON_ALL(somewhere == 0);
    ASSERT_OK_ON_ALL(moert_buffer_read(moert_window_rows(t.y), 0, after, floats * sizeof *after));
    ASSERT_ON_ALL(memcmp(before, after, floats * sizeof *before) == 0);
    free(cells);
    free(found);
    free(before);
    free(after);
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

/* This rank's sums of the rows of a dispatch, which are pushed, `beside` other work or not. */
static moert_status combine_pushed(trip *t, bool beside) {
    moert_exchange *exchange = t->exchange;
    MOERT_TRY(moert_exchange_dispatch(exchange, t->plan, MOERT_OK, t->source, t->x, t->weight,
                                      t->slot_x));
    moert_status local =
        moert_exchange_push_rows(exchange, t->plan, t->y, t->slot_x, moert_window_rows(t->x));
    if (local == MOERT_OK && beside)
        local = moert_exchange_combine_beside(exchange);
    MOERT_TRY(moert_exchange_combine(exchange, t->plan, local, t->y, NULL, t->target, NULL, NULL));
    return moert_exchange_combine_join(exchange);
}

/* Rows that a combine would send itself are sent before it runs beside other work. */
static void test_a_pushed_combine_may_run_beside_other_work(void **state) {
    const shape c = {"beside", 8, 4, 24, {25, 17, 40, 3}, SOME_DROPPED, 29};
    trip t;
    moert_exchange *exchange = open_pushing(state, &c, &t);
    const size_t bytes = c.tokens[test_rank] * c.width * sizeof(float);
    float *want = test_alloc(bytes + 1), *got = test_alloc(bytes + 1);
    ASSERT_OK_ON_ALL(combine_pushed(&t, false));
    ASSERT_OK_ON_ALL(moert_buffer_read(t.target, 0, want, bytes));
    ASSERT_OK_ON_ALL(moert_buffer_clear(moert_window_rows(t.y), 0,
                                        t.y->capacity_rows * moert_window_stride(t.y) * 4));
    ASSERT_OK_ON_ALL(combine_pushed(&t, true));
    ASSERT_OK_ON_ALL(moert_buffer_read(t.target, 0, got, bytes));
    ASSERT_ON_ALL(memcmp(want, got, bytes) == 0);
    free(want);
    free(got);
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

/* One rank's product fails after others have sent rows: all fail, and the next combine is one of
 * rows that are fetched, until they are pushed again. */
static void test_a_push_fails_alike_on_all_ranks(void **state) {
    const shape c = {"fails", 8, 4, 24, {25, 17, 40, 3}, SOME_DROPPED, 26};
    trip t;
    moert_exchange *exchange = open_pushing(state, &c, &t);
    const bool last = test_rank == test_ranks - 1;
    ASSERT_OK_ON_ALL(
        moert_exchange_dispatch(exchange, t.plan, MOERT_OK, t.source, t.x, t.weight, t.slot_x));
    const moert_status local =
        last ? MOERT_FAIL(ERROR_DEVICE, "the product")
             : moert_exchange_push_rows(exchange, t.plan, t.y, t.slot_x, moert_window_rows(t.x));
    ASSERT_FAILS_ON_ALL(
        moert_exchange_combine(exchange, t.plan, local, t.y, NULL, t.target, NULL, NULL),
        MOERT_ERROR_DEVICE, "the product");
    trip_free_buffers(&t);
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

/* A window without room for the slots is refused before anything is stored. */
static void test_a_push_wants_room_for_slots(void **state) {
    const shape c = {"small", 8, 2, 24, {50, 3, 3, 3}, RANDOM, 27};
    trip t;
    moert_exchange *exchange = open_pushing(state, &c, &t);
    const moert_buffer *places, *rows = moert_window_rows(t.x);
    moert_window *small;
    ASSERT_OK_ON_ALL(moert_window_create(exchange, c.width, &small));
    ASSERT_FAILS_ON_ALL(moert_exchange_push(exchange, t.plan, small, t.slot_x, &places),
                        MOERT_ERROR_USAGE, "a window to push to has 0 rows");
    ASSERT_FAILS_ON_ALL(moert_exchange_push_rows(exchange, t.plan, small, t.slot_x, rows),
                        MOERT_ERROR_USAGE, "a window to push to has 0 rows");
    moert_window_destroy(small);
    trip_free_buffers(&t);
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

static void test_ranks_agree_on_whether_they_push(void **state) {
    setup mixed = *(const setup *)*state;
    void *tested = &mixed;
    mixed.push = test_rank == test_ranks - 1 ? "off" : "on";
    moert_exchange *exchange = open_exchange(&tested);
    ASSERT_ON_ALL(!moert_exchange_pushes(exchange, false) &&
                  !moert_exchange_pushes(exchange, true));
    moert_exchange_destroy(exchange);
}

/* Some may copy and others sum: then nobody sums. */
static void test_ranks_agree_on_whether_they_sum(void **state) {
    setup mixed = *(const setup *)*state;
    void *tested = &mixed;
    mixed.push = test_rank == test_ranks - 1 ? "sum" : "on";
    moert_exchange *exchange = open_exchange(&tested);
    ASSERT_ON_ALL(moert_exchange_pushes(exchange, false));
    ASSERT_ON_ALL(moert_exchange_sums(exchange) == (test_ranks == 1));
    moert_exchange_destroy(exchange);
}

/* A weight of each slot comes too late for a sum of some. */
static void test_summed_rows_take_no_weights(void **state) {
    const shape c = {"weights", 8, 4, 24, {5, 6, 0, 3}, RANDOM, 28};
    trip t;
    moert_exchange *exchange = open_pushing(state, &c, &t);
    ASSERT_OK_ON_ALL(
        moert_exchange_dispatch(exchange, t.plan, MOERT_OK, t.source, t.x, t.weight, t.slot_x));
    const moert_status local =
        moert_exchange_push_rows(exchange, t.plan, t.y, t.slot_x, moert_window_rows(t.x));
    ASSERT_FAILS_ON_ALL(
        moert_exchange_combine(exchange, t.plan, local, t.y, t.weight, t.target, NULL, NULL),
        MOERT_ERROR_USAGE, "cannot be weighted");
    trip_free_buffers(&t);
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

/* ---- plans ---- */

/* K different experts for each token, or none for a slot. */
static int32_t *random_index(size_t tokens, size_t topk, size_t experts, uint64_t key) {
    int32_t *index = test_alloc(tokens * topk * sizeof *index);
    for (size_t t = 0; t < tokens; t++) {
        const size_t first = (size_t)(moert_rng_uniform(key, 1, t) * (double)experts);
        for (size_t k = 0; k < topk; k++) {
            const bool none = moert_rng_uniform(key, 2, t * topk + k) < 0.1;
            index[t * topk + k] = none ? -1 : (int32_t)((first + k * (1 + t % 2)) % experts);
        }
    }
    return index;
}

static void test_the_device_places_slots_as_the_host_does(void **state) {
    moert_exchange *exchange = open_exchange(state);
    static const size_t sizes[][3] = {/* T, K, E */
                                      {0, 2, 8},   {1, 1, 4},    {31, 2, 8},      {32, 2, 5},
                                      {33, 8, 17}, {700, 3, 64}, {1100, 8, 1000}, {40, 3, 9000}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const size_t topk = sizes[i][1], experts = sizes[i][2];
        const size_t tokens = sizes[i][0] * (test_rank + 1), slots = tokens * topk;
        int32_t *index = random_index(tokens, topk, experts, 10 * i + test_rank);
        moert_buffer *buffer = upload(index, slots * sizeof *index);
        moert_exchange_plan *made = NULL;
        moert_plan *want;
        ASSERT_OK_ON_ALL(
            moert_exchange_make_plan(exchange, MOERT_OK, buffer, tokens, topk, experts, &made));
        ASSERT_OK_ON_ALL(moert_plan_create(index, tokens, topk, experts, test_ranks, test_rank,
                                           made->plan->counts, &want));
        uint32_t(*pairs)[2] = test_alloc((slots + 1) * sizeof *pairs);
        moert_status status = moert_buffer_read(made->destination, 0, pairs, slots * sizeof *pairs);
        size_t wrong = 0;
        for (size_t s = 0; s < slots; s++)
            wrong += pairs[s][0] != want->slot_rank[s] || pairs[s][1] != want->slot_row[s];
        ASSERT_ON_ALL(status == MOERT_OK && wrong == 0);
        moert_plan_destroy(want);
        moert_exchange_free_plan(made);
        moert_buffer_destroy(buffer);
        free(pairs);
        free(index);
    }
    moert_exchange_destroy(exchange);
}

/* Work that fails between the two calls fails the plan on all ranks; the next one takes the memory
 * of a freed one and is right. */
static void test_a_plan_is_made_in_two_calls(void **state) {
    enum { T = 70, K = 2, E = 8 };
    moert_exchange *exchange = open_exchange(state);
    int32_t *index = random_index(T, K, E, 5 + test_rank);
    moert_buffer *buffer = upload(index, T * K * sizeof *index);
    moert_exchange_plan *made = NULL;
    uint32_t first[T * K][2], second[T * K][2];
    for (int turn = 0; turn < 2; turn++) {
        uint32_t(*pairs)[2] = turn == 0 ? first : second;
        moert_status status = moert_exchange_begin_plan(exchange, MOERT_OK, buffer, T, K, E);
        if (status == MOERT_OK && test_rank == test_ranks - 1)
            status = MOERT_FAIL(ERROR_MEMORY, "no room for what goes on meanwhile");
        ASSERT_FAILS_ON_ALL(moert_exchange_end_plan(exchange, status, &made), MOERT_ERROR_MEMORY,
                            "no room for what goes on meanwhile");
        assert_null(made);
        status = moert_exchange_begin_plan(exchange, MOERT_OK, buffer, T, K, E);
        ASSERT_OK_ON_ALL(moert_exchange_end_plan(exchange, status, &made));
        ASSERT_OK_ON_ALL(moert_buffer_read(made->destination, 0, pairs, sizeof first));
        const moert_buffer *memory = made->destination;
        moert_exchange_free_plan(made);
        made = NULL;
        ASSERT_OK_ON_ALL(moert_exchange_make_plan(exchange, MOERT_OK, buffer, 1, K, E, &made));
        ASSERT_ON_ALL(made->destination == memory);
        moert_exchange_free_plan(made);
        made = NULL;
    }
    ASSERT_ON_ALL(memcmp(first, second, sizeof first) == 0);
    moert_buffer_destroy(buffer);
    free(index);
    moert_exchange_destroy(exchange);
}

/* ---- errors ---- */

static void test_exchange_fails_alike_on_all_ranks_and_stays_usable(void **state) {
    moert_exchange *exchange = open_exchange(state);
    const shape c = {"after errors", 8, 2, 24, {11, 5, 9, 2}, RANDOM, 77};
    const int32_t bad = 8, last = test_rank == test_ranks - 1;
    moert_exchange_plan *plan = NULL;
    moert_buffer *small;
    trip t;
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c.width, false, &t));
    ASSERT_OK_ON_ALL(trip_make_buffers(&c, &t));
    ASSERT_OK_ON_ALL(moert_buffer_create(test_device, 4, &small));
    ASSERT_OK_ON_ALL(last ? moert_buffer_write(t.index, 4, &bad, sizeof bad) : MOERT_OK);
    ASSERT_FAILS_ON_ALL(
        moert_exchange_make_plan(exchange, MOERT_OK, t.index, c.tokens[test_rank], 2, 8, &plan),
        MOERT_ERROR_USAGE, "token 0, slot 1: expert index 8 is outside -1..7");
    moert_status local = test_rank == 0 ? MOERT_FAIL(ERROR_IO, "the data ended early") : MOERT_OK;
    ASSERT_FAILS_ON_ALL(moert_exchange_make_plan(exchange, local, t.index, 0, 2, 8, &plan),
                        MOERT_ERROR_IO, "the data ended early");
    if (test_ranks > 1)
        ASSERT_FAILS_ON_ALL(
            moert_exchange_make_plan(exchange, MOERT_OK, t.index, 0, 2 + (size_t)last, 8, &plan),
            MOERT_ERROR_MISMATCH, "experts per token");
    assert_null(plan);
    trip_free_buffers(&t);
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    ASSERT_FAILS_ON_ALL(moert_exchange_dispatch(exchange, t.plan, MOERT_OK, last ? small : t.source,
                                                t.x, NULL, NULL),
                        MOERT_ERROR_USAGE, "the source of a dispatch holds 4 bytes");
    ASSERT_FAILS_ON_ALL(moert_exchange_combine(exchange, t.plan, MOERT_OK, t.y,
                                               last ? small : t.weight, t.target, NULL, NULL),
                        MOERT_ERROR_USAGE, "the weights of a combine holds 4 bytes");
    local = last ? MOERT_FAIL(ERROR_MEMORY, "no room for the busy rank") : MOERT_OK;
    ASSERT_FAILS_ON_ALL(moert_exchange_dispatch(exchange, t.plan, local, t.source, t.x, NULL, NULL),
                        MOERT_ERROR_MEMORY, "no room for the busy rank");
    local = last ? MOERT_FAIL(ERROR_MEMORY, "no room for the busy rank") : MOERT_OK;
    ASSERT_FAILS_ON_ALL(
        moert_exchange_combine(exchange, t.plan, local, t.y, NULL, t.target, NULL, NULL),
        MOERT_ERROR_MEMORY, "no room for the busy rank");
    trip_free_buffers(&t);
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    trip_free_buffers(&t);
    moert_buffer_destroy(small);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

/* The last rank's device is busy for longer than the others' wait for it. */
static void test_exchange_names_a_late_device_and_stays_usable(void **state) {
    const shape c = {"after a late device", 8, 2, 24, {11, 5, 9, 2}, RANDOM, 78};
    const uint64_t busy_ns = 2500000000;
    if (test_ranks == 1 || suite_skips(test_ranks != 2))
        return;
    moert_exchange *exchange = open_exchange(state);
    moert_exchange_plan *plan = NULL;
    moert_flags *busy;
    trip t;
    char text[64];
    snprintf(text, sizeof text, "the device of rank %zu (", test_ranks - 1);
    ASSERT_OK_ON_ALL(
        moert_flags_create(test_device, test_comm, moert_memory_of(test_device), busy_ns, &busy));
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c.width, false, &t));
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    ASSERT_OK_ON_ALL(test_rank == test_ranks - 1 ? moert_flags_meet(busy) : MOERT_OK);
    ASSERT_OK_ON_ALL(
        moert_exchange_dispatch(exchange, t.plan, MOERT_OK, t.source, t.x, NULL, NULL));
    ASSERT_OK_ON_ALL(
        moert_exchange_combine(exchange, t.plan, MOERT_OK, t.y, NULL, t.target, NULL, NULL));
    ASSERT_FAILS_ON_ALL(
        moert_exchange_make_plan(exchange, MOERT_OK, t.index, c.tokens[test_rank], 2, 8, &plan),
        MOERT_ERROR_COMM, text);
    assert_non_null(strstr(moert_last_error(), "in phase 'dispatch'"));
    trip_free_buffers(&t);
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    ASSERT_OK_ON_ALL(moert_exchange_settle(exchange));
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_flags_destroy(busy);
    moert_exchange_destroy(exchange);
}

static void test_exchange_chooses_the_best_engine(void **state) {
    (void)state;
    moert_exchange *exchange;
    ASSERT_OK_ON_ALL(moert_exchange_create(test_device, test_comm, MOERT_EXCHANGE_AUTO, &exchange));
    const char *engine = moert_exchange_engine(exchange);
    assert_string_equal(engine, test_ranks == 1 ? "local" : has_windows() ? "window" : "staged");
    moert_exchange_destroy(exchange);
    if (test_ranks > 1)
        ASSERT_FAILS_ON_ALL(
            moert_exchange_create(test_device, test_comm, MOERT_EXCHANGE_LOCAL, &exchange),
            MOERT_ERROR_UNSUPPORTED, "it serves one rank");
    moert_exchange_destroy(NULL);
    moert_window_destroy(NULL);
    moert_exchange_free_plan(NULL);
}

/* Ranks of one host in containers of their own. */
static void test_exchange_is_staged_where_ranks_cannot_share_memory(void **state) {
    (void)state;
    moert_exchange *exchange;
    if (test_ranks == 1 || !moert_device_describe(test_device)->is_cpu)
        return;
    moert_memory_processes = test_rank == test_ranks - 1 ? "/nowhere" : "/proc";
    moert_status status =
        moert_exchange_create(test_device, test_comm, MOERT_EXCHANGE_AUTO, &exchange);
    ASSERT_ON_ALL(status == MOERT_OK && strcmp(moert_exchange_engine(exchange), "staged") == 0);
    moert_exchange_destroy(exchange);
    status = moert_exchange_create(test_device, test_comm, MOERT_EXCHANGE_WINDOW, &exchange);
    moert_memory_processes = "/proc";
    ASSERT_FAILS_ON_ALL(status, MOERT_ERROR_UNSUPPORTED, "is out of reach");
}

/* ---- nodes ---- */

/* Pairs of a token of this rank and another node where it has an expert, by brute force. */
static size_t count_far_pairs(const moert_comm *comm, const int32_t *index, size_t tokens,
                              size_t topk, size_t experts) {
    const size_t mine = moert_comm_node(comm, test_rank);
    size_t pairs = 0;
    for (size_t t = 0; t < tokens; t++)
        for (size_t node = 0; node < moert_comm_node_count(comm); node++) {
            bool goes = false;
            for (size_t k = 0; k < topk && node != mine; k++) {
                const int32_t e = index[t * topk + k];
                goes |= e >= 0 && moert_comm_node(comm, moert_plan_owner(experts, test_ranks,
                                                                         (size_t)e)) == node;
            }
            pairs += goes;
        }
    return pairs;
}

static void test_the_node_exchange_sends_a_row_once_to_a_host(void **state) {
    const shape c = {"counted", 13, 7, 24, {50, 0, 31, 44}, SOME_DROPPED, 21};
    const moert_comm *comm = spread[((const setup *)*state)->together];
    moert_exchange *exchange = open_exchange(state);
    const size_t tokens = c.tokens[test_rank], slots = tokens * c.topk;
    int32_t *index = test_alloc((slots + 1) * sizeof *index);
    trip t;
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c.width, false, &t));
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    ASSERT_OK_ON_ALL(moert_buffer_read(t.index, 0, index, slots * sizeof *index));
    const size_t pairs = count_far_pairs(comm, index, tokens, c.topk, c.experts);
    const uint64_t before = moert_exchange_far_rows(exchange); /* of the trip's two dispatches */
    ASSERT_ON_ALL(before == 2 * pairs && (pairs > 0) == (tokens > 0));
    ASSERT_OK_ON_ALL(
        moert_exchange_dispatch(exchange, t.plan, MOERT_OK, t.source, t.x, NULL, NULL));
    ASSERT_ON_ALL(moert_exchange_far_rows(exchange) == before + pairs);
    free(index);
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

static void test_nodes_send_messages_of_few_rows(void **state) {
    moert_exchange *exchange = open_exchange(state);
    const size_t piece = moert_mail_piece_bytes;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        trip t;
        moert_mail_piece_bytes = 100 + 700 * (i % 3);
        ASSERT_OK_ON_ALL(
            trip_make_windows(test_device, test_comm, exchange, shapes[i].width, false, &t));
        ASSERT_OK_ON_ALL(trip_run(&shapes[i], &t));
        trip_free_buffers(&t);
        trip_free_windows(&t);
    }
    moert_mail_piece_bytes = piece;
    moert_exchange_destroy(exchange);
}

static void test_nodes_may_sum_first(void **state) {
    set_variable("MOERT_NODE_SUM", "presum");
    moert_exchange *exchange = open_exchange(state);
    set_variable("MOERT_NODE_SUM", NULL);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        trip t;
        ASSERT_OK_ON_ALL(
            trip_make_windows(test_device, test_comm, exchange, shapes[i].width, false, &t));
        t.presummed = spread[((const setup *)*state)->together];
        ASSERT_OK_ON_ALL(trip_run(&shapes[i], &t));
        trip_free_buffers(&t);
        trip_free_windows(&t);
    }
    moert_exchange_destroy(exchange);
}

/* A sum of codes would have to be rounded. */
static void test_nodes_never_sum_codes_first(void **state) {
    const shape c = {"codes", 13, 7, 40, {9, 5, 0, 7}, SOME_DROPPED, 22};
    trip t;
    set_variable("MOERT_NODE_SUM", "presum");
    moert_exchange *exchange = open_exchange(state);
    set_variable("MOERT_NODE_SUM", NULL);
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c.width, true, &t));
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

static void test_ranks_must_agree_on_how_nodes_sum(void **state) {
    const setup *tested = *state;
    moert_exchange *exchange;
    set_variable("MOERT_NODE_SUM", test_rank == test_ranks - 1 ? "presum" : NULL);
    const moert_status status = moert_exchange_create(test_device, spread[tested->together],
                                                      MOERT_EXCHANGE_NODE, &exchange);
    set_variable("MOERT_NODE_SUM", NULL);
    ASSERT_FAILS_ON_ALL(status, MOERT_ERROR_UNSUPPORTED, "MOERT_NODE_SUM is presum on rank");
}

static void test_a_plan_is_dispatched_before_it_is_combined(void **state) {
    moert_exchange *exchange = open_exchange(state);
    const shape c = {"combined first", 8, 2, 16, {5, 6, 0, 3}, RANDOM, 31};
    trip t;
    ASSERT_OK_ON_ALL(trip_make_windows(test_device, test_comm, exchange, c.width, false, &t));
    moert_status status = trip_make_buffers(&c, &t);
    ASSERT_OK_ON_ALL(moert_exchange_make_plan(exchange, status, t.index, c.tokens[test_rank],
                                              c.topk, c.experts, &t.plan));
    ASSERT_OK_ON_ALL(moert_window_reserve(t.y, t.plan->plan));
    ASSERT_FAILS_ON_ALL(
        moert_exchange_combine(exchange, t.plan, MOERT_OK, t.y, NULL, t.target, NULL, NULL),
        MOERT_ERROR_USAGE, "before the first dispatch");
    trip_free_buffers(&t);
    ASSERT_OK_ON_ALL(trip_run(&c, &t));
    trip_free_buffers(&t);
    trip_free_windows(&t);
    moert_exchange_destroy(exchange);
}

/* auto: between hosts the node exchange, if there are windows for it to use. */
static void test_hosts_of_several_ranks_take_the_node_exchange(void **state) {
    const size_t together = ((const setup *)*state)->together;
    moert_exchange *exchange;
    moert_exchange_report reports[MOERT_EXCHANGE_ENGINES];
    ASSERT_OK_ON_ALL(
        moert_exchange_create(test_device, spread[together], MOERT_EXCHANGE_AUTO, &exchange));
    ASSERT_ON_ALL(strcmp(moert_exchange_engine(exchange), together > 1 ? "node" : "staged") == 0);
    moert_exchange_destroy(exchange);
    moert_exchange_survey(test_device, spread[together], reports);
    const moert_exchange_report *node = &reports[MOERT_EXCHANGE_NODE - MOERT_EXCHANGE_LOCAL];
    ASSERT_ON_ALL(node->automatic == (together > 1) && strcmp(node->name, "node") == 0);
    ASSERT_ON_ALL((strstr(node->reason, "alone on its host") == NULL) == (together > 1));
    moert_exchange_survey(test_device, spread[0], reports);
    ASSERT_ON_ALL(strcmp(node->reason, "the ranks are on one host") == 0);
}

/* X(name): the tests that every engine passes, those of how rows come first. */
#define ROW_TESTS(X)                                                                               \
    X(test_exchange_moves_rows_exactly)                                                            \
    X(test_exchange_sums_rows_of_codes_exactly)                                                    \
    X(test_exchange_grows_its_windows)                                                             \
    X(test_exchange_repeats_with_changing_payload)                                                 \
    X(test_exchange_dispatches_any_bits)
#define ENGINE_TESTS(X)                                                                            \
    ROW_TESTS(X)                                                                                   \
    X(test_the_device_places_slots_as_the_host_does)                                               \
    X(test_a_plan_is_made_in_two_calls)                                                            \
    X(test_exchange_in_waves_moves_rows_exactly)                                                   \
    X(test_exchange_fails_alike_in_the_middle_of_its_waves)                                        \
    X(test_exchange_fails_alike_on_all_ranks_and_stays_usable)

/* And those of windows to whose ranks rows go once. */
#define ONCE_TESTS(X)                                                                              \
    ROW_TESTS(X)                                                                                   \
    X(test_exchange_fails_alike_on_all_ranks_and_stays_usable)                                     \
    X(test_a_row_goes_to_each_rank_once)                                                           \
    X(test_a_word_that_is_no_row_is_left_alone)                                                    \
    X(test_ranks_agree_on_how_often_a_row_goes)

/* And those of moves that are one kernel. */
#define FUSED_TESTS(X)                                                                             \
    ROW_TESTS(X)                                                                                   \
    X(test_exchange_fails_alike_on_all_ranks_and_stays_usable)                                     \
    X(test_ranks_may_fuse_or_not)

/* And those of windows to which rows are pushed. */
#define PUSH_TESTS(X)                                                                              \
    ROW_TESTS(X)                                                                                   \
    X(test_exchange_fails_alike_on_all_ranks_and_stays_usable)                                     \
    X(test_a_row_of_no_slot_is_pushed_nowhere)                                                     \
    X(test_a_pushed_combine_may_run_beside_other_work)                                             \
    X(test_ranks_may_fuse_or_not)                                                                  \
    X(test_a_push_fails_alike_on_all_ranks)                                                        \
    X(test_a_push_wants_room_for_slots)                                                            \
    X(test_ranks_agree_on_whether_they_push)

/* And those of ranks that sum them. */
#define SUM_TESTS(X)                                                                               \
    PUSH_TESTS(X)                                                                                  \
    X(test_ranks_agree_on_whether_they_sum)                                                        \
    X(test_summed_rows_take_no_weights)

/* And those of the node exchange. */
#define NODE_TESTS(X)                                                                              \
    ENGINE_TESTS(X)                                                                                \
    X(test_the_node_exchange_sends_a_row_once_to_a_host)                                           \
    X(test_nodes_send_messages_of_few_rows)                                                        \
    X(test_nodes_may_sum_first)                                                                    \
    X(test_nodes_never_sum_codes_first)                                                            \
    X(test_ranks_must_agree_on_how_nodes_sum)                                                      \
    X(test_a_plan_is_dispatched_before_it_is_combined)                                             \
    X(test_hosts_of_several_ranks_take_the_node_exchange)

static setup
    local = {.engine = MOERT_EXCHANGE_LOCAL},
    window = {.engine = MOERT_EXCHANGE_WINDOW, .sync = "host"},
    devices = {.engine = MOERT_EXCHANGE_WINDOW, .sync = "device", .overlap = "on", .fuse = "off"},
    once = {.engine = MOERT_EXCHANGE_WINDOW, .sync = "device", .once = "on", .fuse = "off"},
    fused = {.engine = MOERT_EXCHANGE_WINDOW, .sync = "device", .once = "off", .fuse = "on"},
    fused_once = {.engine = MOERT_EXCHANGE_WINDOW, .sync = "device", .once = "on", .fuse = "on"},
    pushed = {.engine = MOERT_EXCHANGE_WINDOW, .sync = "host", .push = "on"},
    pushed_once = {.engine = MOERT_EXCHANGE_WINDOW,
                   .sync = "device",
                   .once = "on",
                   .overlap = "on",
                   .push = "on",
                   .fuse = "on"},
    summed = {.engine = MOERT_EXCHANGE_WINDOW, .push = "sum", .fuse = "off"},
    summed_fused = {.engine = MOERT_EXCHANGE_WINDOW,
                    .sync = "device",
                    .overlap = "on",
                    .push = "sum",
                    .fuse = "on"},
    impatient = {.engine = MOERT_EXCHANGE_WINDOW,
                 .sync = "device",
                 .timeout_s = "2",
                 .fuse = "off"},
    impatient_fused = {.engine = MOERT_EXCHANGE_WINDOW,
                       .sync = "device",
                       .timeout_s = "2",
                       .once = "on",
                       .fuse = "on"},
    staged = {.engine = MOERT_EXCHANGE_STAGED},
    nodes_of_1 = {.engine = MOERT_EXCHANGE_NODE, .together = 1},
    nodes_of_2 = {.engine = MOERT_EXCHANGE_NODE, .together = 2},
    nodes_of_3 = {.engine = MOERT_EXCHANGE_NODE, .together = 3};

#define LOCAL_ROW(test)      {#test "[local]", test, NULL, NULL, &local},
#define WINDOW_ROW(test)     {#test "[window]", test, NULL, NULL, &window},
#define DEVICES_ROW(test)    {#test "[window, devices wait]", test, NULL, NULL, &devices},
#define ONCE_ROW(test)       {#test "[window, rows once]", test, NULL, NULL, &once},
#define FUSED_ROW(test)      {#test "[window, fused]", test, NULL, NULL, &fused},
#define FUSED_ONCE_ROW(test) {#test "[window, fused, rows once]", test, NULL, NULL, &fused_once},
#define PUSH_ROW(test)       {#test "[window, pushed]", test, NULL, NULL, &pushed},
#define PUSH_ONCE_ROW(test)                                                                        \
    {#test "[window, pushed, devices wait, rows once]", test, NULL, NULL, &pushed_once},
#define SUM_ROW(test)       {#test "[window, summed]", test, NULL, NULL, &summed},
#define SUM_FUSED_ROW(test) {#test "[window, summed, fused]", test, NULL, NULL, &summed_fused},
#define STAGED_ROW(test)    {#test "[staged]", test, NULL, NULL, &staged},
#define NODE_1_ROW(test)    {#test "[nodes of 1]", test, NULL, NULL, &nodes_of_1},
#define NODE_2_ROW(test)    {#test "[nodes of 2]", test, NULL, NULL, &nodes_of_2},
#define NODE_3_ROW(test)    {#test "[nodes of 3]", test, NULL, NULL, &nodes_of_3},

static const struct CMUnitTest tests[] = {
    ENGINE_TESTS(LOCAL_ROW) ENGINE_TESTS(WINDOW_ROW) ENGINE_TESTS(DEVICES_ROW) ONCE_TESTS(ONCE_ROW)
        FUSED_TESTS(FUSED_ROW) FUSED_TESTS(FUSED_ONCE_ROW) PUSH_TESTS(PUSH_ROW)
            PUSH_TESTS(PUSH_ONCE_ROW) SUM_TESTS(SUM_ROW) SUM_TESTS(SUM_FUSED_ROW)
                ENGINE_TESTS(STAGED_ROW) NODE_TESTS(NODE_1_ROW) NODE_TESTS(NODE_2_ROW)
                    NODE_TESTS(NODE_3_ROW){"test_exchange_names_a_late_device_and_stays_usable",
                                           test_exchange_names_a_late_device_and_stays_usable, NULL,
                                           NULL, &impatient},
    {"test_exchange_names_a_late_device_and_stays_usable[fused]",
     test_exchange_names_a_late_device_and_stays_usable, NULL, NULL, &impatient_fused},
    WINDOW_ROW(test_windows_take_memory_by_the_rows_that_come)
        cmocka_unit_test(test_exchange_chooses_the_best_engine),
    cmocka_unit_test(test_a_row_goes_once_where_that_saves_much),
    cmocka_unit_test(test_exchange_is_staged_where_ranks_cannot_share_memory),
};
enum { TESTS = sizeof tests / sizeof tests[0] };

/* To this device and number of ranks. */
static bool applies(const setup *tested) {
    const bool cpu = moert_device_describe(test_device)->is_cpu;
    switch (tested->engine) {
    case MOERT_EXCHANGE_LOCAL:
        return test_ranks == 1;
    case MOERT_EXCHANGE_WINDOW:
        return has_windows();
    case MOERT_EXCHANGE_NODE:
        return cpu && tested->together < test_ranks;
    default:
        return true;
    }
}

/* Runs what applies. */
static int run_applicable(void) {
    struct CMUnitTest chosen[TESTS];
    size_t count = 0;
    for (size_t i = 0; i < TESTS; i++)
        if (tests[i].initial_state == NULL || applies(tests[i].initial_state))
            chosen[count++] = tests[i];
    return _cmocka_run_group_tests("exchange", chosen, count, NULL, NULL);
}

int main(int count, char **arguments) {
    if (!mpi_tests_begin(count, arguments))
        return 1;
    if (open_test_device(NULL) != 0)
        moert_comm_abort(test_comm, 1);
    if (make_spread() != MOERT_OK)
        moert_comm_abort(test_comm, 1);
    int failed = run_applicable();
    free_spread();
    close_test_device(NULL);
    return mpi_tests_end(failed);
}
