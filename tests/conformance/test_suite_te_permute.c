// run: check=1 night=1
/*
 * TransformerEngine's tables of token permutations. Dispatch on one rank is its permute, combine is
 * its unpermute (with or without probabilities), and each is the other's backward. Rows are
 * float32, which holds every narrower dtype, and are compared exactly. TransformerEngine's
 * num_out_tokens, a limit on the rows, becomes a choice of -1 for the slots past it.
 */
#include "base/config.h"
#include "base/memory.h"
#include "exchange/exchange.h"
#include "support/mpi.h"
#include "support/suite.h"

enum { MOST_EXPERTS = 512 };

typedef struct row {
    size_t tokens, experts, width, topk, limit;
    bool slow;
} row;

static const row rows[] = {
    {4096, 7, 1280, 1, 0, false},   {4096, 7, 1280, 2, 2039, false},
    {4096, 16, 80, 5, 0, false},    {4096, 16, 128, 8, 2039, false},
    {4096, 8, 256, 6, 0, false},    {4096, 64, 256, 2, 0, false},
    {4096, 256, 64, 8, 0, false},   {4096, 512, 64, 8, 2039, false},
    {0, 7, 1280, 2, 0, false},      {1, 512, 9216, 8, 0, false},
    {4096, 7, 4096, 2, 0, true},    {4096, 16, 4096, 5, 2039, true},
    {4096, 7, 9216, 1, 2039, true}, {4096, 64, 7168, 6, 0, true},
    {4096, 256, 7168, 8, 0, true},  {4096, 512, 9216, 8, 0, true},
};

/* A row of the table: its routing on the host and its buffers on the device. */
typedef struct trip {
    const row *r;
    const char *title;
    /* used: number of slots with an expert; stride: floats per row of a window */
    size_t slots, used, stride;
    int32_t *index;
    uint32_t *gather, ends[MOST_EXPERTS];
    float *weight;
    moert_exchange *exchange;
    moert_window *window, *slot_window;
    moert_exchange_plan *plan;
    moert_buffer *source, *weights, *target, *slot_target;
} trip;

static float token_value(size_t token, size_t column) {
    return suite_uniform(1, token * 16384 + column) - 0.5f;
}

/* Returns the expert's result for a slot. */
static float slot_value(size_t slot, size_t column) {
    return suite_uniform(2, slot * 16384 + column) - 0.5f;
}

static void route(trip *t) {
    const row *r = t->r;
    suite_route(r->experts, r->tokens, r->topk, r->experts, t->index);
    t->used = suite_sort(t->index, t->slots, r->experts, t->gather, t->ends);
    if (r->limit == 0)
        return;
    for (size_t i = r->limit; i < t->used; i++)
        t->index[t->gather[i]] = -1;
    t->used = suite_sort(t->index, t->slots, r->experts, t->gather, t->ends);
    assert_int_equal(t->used, r->limit < t->slots ? r->limit : t->slots);
}

static void open_trip(const row *r, moert_exchange *exchange, trip *t) {
    *t = (trip){.r = r, .slots = r->tokens * r->topk, .exchange = exchange};
    t->title = titled("%zu tokens of %zu, top %zu of %zu, at most %zu rows", r->tokens, r->width,
                      r->topk, r->experts, r->limit);
    t->index = test_alloc(t->slots * sizeof *t->index);
    t->gather = test_alloc(t->slots * sizeof *t->gather);
    t->weight = test_alloc(t->slots * sizeof *t->weight);
    route(t);
    float *values = test_alloc(r->tokens * r->width * sizeof *values);
    for (size_t i = 0; i < r->tokens * r->width; i++)
        values[i] = token_value(i / r->width, i % r->width);
    for (size_t s = 0; s < t->slots; s++)
        t->weight[s] = suite_uniform(3, s);
    t->source = upload(values, r->tokens * r->width * sizeof *values);
    t->weights = upload(t->weight, t->slots * sizeof *t->weight);
    t->target = unset_floats(r->tokens * r->width);
    t->slot_target = unset_floats(t->slots);
    moert_buffer *index = upload(t->index, t->slots * sizeof *t->index);
    ASSERT_OK(moert_window_create(exchange, r->width, &t->window));
    ASSERT_OK(moert_window_create(exchange, 1, &t->slot_window));
    ASSERT_OK(moert_exchange_make_plan(
        exchange,
        &(moert_exchange_slots){
            .index = index, .tokens = r->tokens, .topk = r->topk, .experts = r->experts},
        MOERT_OK, &t->plan));
    t->stride = moert_window_stride(t->window);
    assert_int_equal(t->plan->plan->rows, t->used);
    assert_memory_equal(t->plan->plan->ends, t->ends, r->experts * sizeof *t->ends);
}

static void close_trip(trip *t) {
    moert_exchange_free_plan(t->plan);
    moert_window_destroy(t->window);
    moert_window_destroy(t->slot_window);
}

/* Dispatches and checks that the rows are those of the tokens in the order of the experts, with the
 * weights of their slots. */
static void check_permute(trip *t) {
    const size_t width = t->r->width, slot_stride = moert_window_stride(t->slot_window);
    float *got = test_alloc(t->used * t->stride * sizeof *got);
    const moert_transfer there = {.plan = t->plan,
                                  .window = t->window,
                                  .slots = t->slot_window,
                                  .source = t->source,
                                  .slot_source = t->weights};
    ASSERT_OK(moert_exchange_dispatch(t->exchange, &there, MOERT_OK));
    ASSERT_OK(
        moert_buffer_read(moert_window_rows(t->window), 0, got, t->used * t->stride * sizeof *got));
    for (size_t i = 0; i < t->used * width; i++) {
        const size_t r = i / width, token = t->gather[r] / t->r->topk;
        if (got[r * t->stride + i % width] != token_value(token, i % width))
            fail_msg("%s: row %zu is not token %zu", t->title, r, token);
    }
    ASSERT_OK(moert_buffer_read(moert_window_rows(t->slot_window), 0, got,
                                t->used * slot_stride * sizeof *got));
    for (size_t r = 0; r < t->used; r++)
        if (got[r * slot_stride] != t->weight[t->gather[r]])
            fail_msg("%s: row %zu has not the weight of slot %u", t->title, r, t->gather[r]);
}

static void write_results(const trip *t) {
    const size_t width = t->r->width, slot_stride = moert_window_stride(t->slot_window);
    float *values = test_alloc(t->used * t->stride * sizeof *values);
    for (size_t i = 0; i < t->used * width; i++)
        values[i / width * t->stride + i % width] = slot_value(t->gather[i / width], i % width);
    ASSERT_OK(moert_buffer_write(moert_window_rows(t->window), 0, values,
                                 t->used * t->stride * sizeof *values));
    for (size_t r = 0; r < t->used; r++)
        values[r * slot_stride] = (float)t->gather[r] + 0.5f;
    ASSERT_OK(moert_buffer_write(moert_window_rows(t->slot_window), 0, values,
                                 t->used * slot_stride * sizeof *values));
}

/* Combines. Checks the sum over each token's slots, exactly against float32 and within a tolerance
 * against float64, and the value that each slot sends back. */
static void check_unpermute(trip *t, bool weighted) {
    const size_t width = t->r->width, topk = t->r->topk;
    moert_transfer back = {.plan = t->plan,
                           .window = t->window,
                           .slots = t->slot_window,
                           .weight = weighted ? t->weights : NULL,
                           .target = t->target,
                           .slot_target = t->slot_target};
    ASSERT_OK(moert_exchange_combine(t->exchange, &back, MOERT_OK));
    float *got = download(t->target, t->r->tokens * width * sizeof *got);
    for (size_t i = 0; i < t->r->tokens * width; i++) {
        float sum = 0.0f;
        double exact = 0.0;
        for (size_t s = i / width * topk; s < (i / width + 1) * topk; s++)
            if (t->index[s] >= 0) {
                const float w = weighted ? t->weight[s] : 1.0f, y = slot_value(s, i % width);
                sum = fmaf(w, y, sum);
                exact += (double)w * (double)y;
            }
        if (got[i] != sum || !(fabs((double)got[i] - exact) <= 1e-6))
            fail_msg("%s: token %zu, %zu is %.9g, not %.9g", t->title, i / width, i % width,
                     (double)got[i], exact);
    }
    got = download(t->slot_target, t->slots * sizeof *got);
    for (size_t s = 0; s < t->slots; s++)
        assert_true(got[s] == (t->index[s] >= 0 ? (float)s + 0.5f : 0.0f));
}

TEST(test_tokens_go_to_their_experts_and_back) {
    moert_exchange *exchange;
    ASSERT_OK(moert_exchange_create(test_device, test_comm, MOERT_EXCHANGE_LOCAL, &exchange));
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        trip t;
        if (suite_skips(rows[i].slow))
            continue;
        open_trip(&rows[i], exchange, &t);
        check_permute(&t);
        write_results(&t);
        check_unpermute(&t, true);
        check_unpermute(&t, false);
        close_trip(&t);
    }
    moert_exchange_destroy(exchange);
}

MPI_TESTS(open_test_device, close_test_device)
