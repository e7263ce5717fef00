/* Round trips and their oracle. */
#include "base/dtype.h"
#include "base/rng.h"
#include "support/exchange/suite.h"

/* ---- values, computed from the global slot ---- */

static float payload(const trip *t, size_t slot, size_t column) {
    const size_t token = slot / t->c.topk;
    return (float)(token * 1009 + column * 7 + t->c.salt % 1000 + 1);
}

static float weight(const trip *t, size_t slot) {
    return (float)moert_rng_normal(t->c.salt + 1000u, slot / t->c.topk, slot % t->c.topk);
}

/* An expert's result in one column of a slot's row. If results are bf16, the value is truncated to
 * bf16. */
static float result(const trip *t, size_t slot, size_t column) {
    const float y = payload(t, slot, column) * 0.37f - (float)t->routing.index[slot] * 1.3f;
    return t->bf16 ? moert_float_from_bits(moert_float_bits(y) & 0xFFFF0000) : y;
}

static float result_of_slot(const trip *t, size_t slot) {
    const size_t token = slot / t->c.topk, k = slot % t->c.topk;
    return (float)(token * 100 + k * 10) + (float)t->routing.index[slot] * 0.5f;
}

/* Returns element i of a slot's row in a window: a column, or padding after the columns. The
 * padding of results is NaN, so that a test fails if the exchange uses it. */
typedef float element(const trip *t, size_t slot, size_t i);

static float element_sent(const trip *t, size_t slot, size_t i) {
    return i < t->c.width ? payload(t, slot, i) : 0.0f;
}
static float element_made(const trip *t, size_t slot, size_t i) {
    return i < t->c.width ? result(t, slot, i) : NAN;
}
static float slot_sent(const trip *t, size_t slot, size_t i) {
    return i == 0 ? weight(t, slot) : NAN;
}
static float slot_made(const trip *t, size_t slot, size_t i) {
    return i == 0 ? result_of_slot(t, slot) : NAN;
}

/* ---- one round trip ---- */

static void free_trip(trip *t) {
    moert_exchange_free_plan(t->plan);
    moert_window_destroy(t->x);
    moert_window_destroy(t->y);
    moert_window_destroy(t->slot_x);
    moert_window_destroy(t->slot_y);
}

static moert_status make_windows(size_t width, trip *t) {
    MOERT_TRY(t->bf16 ? moert_window_create_bf16(t->exchange, 2 * width, &t->x)
                      : moert_window_create(t->exchange, width, &t->x));
    MOERT_TRY(
        (t->bf16 ? moert_window_create_bf16 : moert_window_create)(t->exchange, width, &t->y));
    MOERT_TRY(moert_window_create(t->exchange, 1, &t->slot_x));
    return moert_window_create(t->exchange, 1, &t->slot_y);
}

trip *open_windows(moert_exchange *exchange, size_t width, bool bf16) {
    trip *t = owned(test_alloc(sizeof *t), free_trip);
    t->exchange = exchange;
    t->bf16 = bf16;
    ASSERT_OK_ON_ALL(make_windows(width, t));
    return t;
}

void trip_make_buffers(const shape *c, trip *t) {
    t->c = *c;
    t->routing = route_shape(c, test_ranks);
    t->tokens = c->tokens[test_rank];
    t->first_slot = t->routing.first_token[test_rank] * c->topk;
    const size_t slots = t->tokens * c->topk, n = t->tokens * c->width,
                 all_tokens = t->routing.first_token[test_ranks];
    float *host = test_alloc((all_tokens + 1) * (c->topk + 1) * moert_window_stride(t->x) * 4);
    t->host = host;
    t->index = upload(t->routing.index + t->first_slot, slots * 4);
    for (size_t i = 0; i < n; i++)
        host[i] = payload(t, t->first_slot + i / c->width * c->topk, i % c->width);
    t->source = upload(host, n * 4);
    t->slot_weight = test_alloc(slots * 4);
    for (size_t s = 0; s < slots; s++)
        t->slot_weight[s] = weight(t, t->first_slot + s);
    t->weight = upload(t->slot_weight, slots * 4);
    t->target = unset_floats(n);
    t->slot_target = unset_floats(slots);
}

/* Points at this rank's first row in the routing's list of slots. */
static const uint32_t *own_rows(const trip *t) {
    return t->routing.slot + t->routing.first_row[test_rank];
}

/* Compares the first n elements of each row of a window with the expected elements. */
static moert_status check_rows(trip *t, const moert_window *window, size_t n, element *wanted) {
    const size_t rows = t->plan->plan->rows, stride = moert_window_stride(window);
    MOERT_TRY(moert_buffer_read(moert_window_rows(window), 0, t->host, rows * stride * 4));
    for (size_t i = 0; i < rows * n; i++)
        t->wrong += t->host[i / n * stride + i % n] != wanted(t, own_rows(t)[i / n], i % n);
    return MOERT_OK;
}

/* Makes the rows of y or slot_y in t->host. Returns their bytes. */
static size_t make_rows(trip *t, const moert_window *window, element *made) {
    const size_t rows = t->plan->plan->rows, stride = moert_window_stride(window);
    const bool bf16 = t->bf16 && window == t->y;
    const size_t n = bf16 ? 2 * stride : stride;
    for (size_t i = 0; i < rows * n; i++) {
        const float y = made(t, own_rows(t)[i / n], i % n);
        if (bf16)
            ((uint16_t *)t->host)[i] = (uint16_t)(moert_float_bits(y) >> 16);
        else
            t->host[i] = y;
    }
    return rows * stride * sizeof *t->host;
}

static moert_status write_rows(trip *t, moert_window *window, element *made) {
    MOERT_TRY(moert_window_reserve(window, t->plan->plan));
    const size_t bytes = make_rows(t, window, made);
    return moert_buffer_write(moert_window_rows(window), 0, t->host, bytes);
}

/* The addends of one element of a token's sum. */
typedef struct addends {
    size_t count;
    float weight[MOST_TOPK], value[MOST_TOPK];
    size_t node[MOST_TOPK]; /* the node that adds this addend to a partial sum */
    /* addends of this node are added to the final sum one by one, without a partial sum */
    size_t home;
    bool rounds; /* partial sums are rounded to bf16 */
} addends;

/* The sum of addend k and of all later addends that have the same node as addend k. */
static float sum_node(const addends *a, size_t k) {
    const size_t node = a->node[k];
    float sum = 0.0f;
    for (; k < a->count; k++)
        if (a->node[k] == node)
            sum = fmaf(a->weight[k], a->value[k], sum);
    return a->rounds ? round_to(MOERT_DTYPE_BF16, sum) : sum;
}

static float sum_all(const addends *a) {
    float sum = 0.0f;
    for (size_t k = 0; k < a->count; k++) {
        size_t first = 0; /* of its node */
        while (a->node[first] != a->node[k])
            first++;
        if (a->node[k] == a->home)
            sum = fmaf(a->weight[k], a->value[k], sum);
        else if (first == k)
            sum += sum_node(a, k);
    }
    return sum;
}

/* Returns the rank or node that sums an expert's results before it sends them; 0 if there is no
 * such sum. */
static size_t node_of(const trip *t, int32_t expert) {
    if (!t->summed && t->presummed == NULL)
        return 0;
    const size_t rank = moert_plan_owner(t->c.experts, test_ranks, (size_t)expert);
    return t->summed ? rank : moert_comm_node(t->presummed, rank);
}

/* Compares `target` bit for bit with sums by fmaf in the order of the slots, weighted or not. */
static moert_status check_target(trip *t, bool weighted) {
    const size_t topk = t->c.topk, width = t->c.width;
    addends a = {.rounds = t->summed && t->bf16, .home = t->summed ? SIZE_MAX : 0};
    if (t->presummed != NULL && !t->summed)
        a.home = moert_comm_node(t->presummed, test_rank);
    MOERT_TRY(moert_buffer_read(t->target, 0, t->host, t->tokens * width * 4));
    for (size_t i = 0; i < t->tokens * width; i++) {
        a.count = 0;
        for (size_t s = i / width * topk; s < (i / width + 1) * topk; s++) {
            const int32_t expert = t->routing.index[t->first_slot + s];
            if (expert < 0)
                continue;
            a.weight[a.count] = weighted ? t->slot_weight[s] : 1.0f;
            a.value[a.count] = result(t, t->first_slot + s, i % width);
            a.node[a.count++] = node_of(t, expert);
        }
        const float sum = sum_all(&a);
        t->wrong += memcmp(&sum, &t->host[i], sizeof sum) != 0;
    }
    return MOERT_OK;
}

static moert_status check_slot_target(trip *t) {
    const size_t slots = t->tokens * t->c.topk;
    MOERT_TRY(moert_buffer_read(t->slot_target, 0, t->host, slots * 4));
    for (size_t s = t->first_slot; s < t->first_slot + slots; s++)
        t->wrong +=
            t->host[s - t->first_slot] != (t->routing.index[s] < 0 ? 0.0f : result_of_slot(t, s));
    return MOERT_OK;
}

/* Returns a failure on all ranks if any rank has counted wrong values. */
static moert_status verdict(const trip *t, const char *what) {
    moert_status local = MOERT_OK;
    if (t->wrong > 0)
        local = MOERT_FAIL(ERROR_INTERNAL, "%s, %s: %zu wrong values", t->c.name, what, t->wrong);
    return moert_comm_agree(test_comm, local);
}

/* Fills rows with NaN, so that a comparison finds elements that are never written. Waits until the
 * NaN are in memory, because other ranks write to the rows next. moert_buffer_write alone does not
 * wait. */
static moert_status write_nan(trip *t, moert_window *window, size_t rows) {
    const size_t floats = rows * moert_window_stride(window);
    for (size_t i = 0; i < floats; i++)
        t->host[i] = NAN;
    MOERT_TRY(moert_buffer_write(moert_window_rows(window), 0, t->host, floats * sizeof(float)));
    return moert_device_finish(test_device);
}

moert_status trip_plan(const trip *t, moert_exchange_plan **plan) {
    const moert_exchange_slots slots = {
        .index = t->index, .tokens = t->tokens, .topk = t->c.topk, .experts = t->c.experts};
    return moert_exchange_make_plan(t->exchange, &slots, MOERT_OK, plan);
}

moert_transfer trip_there(const trip *t, bool slots) {
    return (moert_transfer){.plan = t->plan,
                            .window = t->x,
                            .slots = slots ? t->slot_x : NULL,
                            .source = t->source,
                            .slot_source = slots ? t->weight : NULL};
}

moert_transfer trip_back(const trip *t, bool weighted, bool slots) {
    return (moert_transfer){.plan = t->plan,
                            .window = t->y,
                            .slots = slots ? t->slot_y : NULL,
                            .weight = weighted ? t->weight : NULL,
                            .target = t->target,
                            .slot_target = slots ? t->slot_target : NULL};
}

moert_transfer trip_push(const trip *t, bool weighted, bool slots) {
    moert_transfer back = trip_back(t, weighted, slots);
    back.slot_window = t->slot_x;
    return back;
}

moert_status trip_dispatch(const trip *t, bool slots, moert_status local) {
    const moert_transfer there = trip_there(t, slots);
    return moert_exchange_dispatch(t->exchange, &there, local);
}

moert_status trip_combine(const trip *t, bool weighted, bool slots, moert_status local) {
    moert_transfer back = trip_back(t, weighted, slots);
    return moert_exchange_combine(t->exchange, &back, local);
}

/* Checks that the device's plan has the routing's places of slots and ends of experts' rows. Checks
 * that the chunks cover this rank's experts and rows in order, without gaps. */
static moert_status check_plan(trip *t) {
    const moert_plan *plan = t->plan->plan;
    const size_t slots = t->tokens * t->c.topk,
                 rows = t->routing.first_row[test_rank + 1] - t->routing.first_row[test_rank];
    uint32_t(*place)[2] = test_alloc(slots * sizeof *place);
    size_t expert = 0, row = 0;
    MOERT_TRY(moert_buffer_read(t->plan->destination, 0, place, slots * sizeof *place));
    t->wrong += memcmp(place, t->routing.place + t->first_slot, slots * sizeof *place) != 0;
    t->wrong += plan->rows != rows || rows > t->plan->capacity_rows;
    for (size_t e = 0, end = 0; e < plan->local_experts; e++) {
        while (end < rows && (size_t)t->routing.index[own_rows(t)[end]] == plan->first_expert + e)
            end++;
        t->wrong += plan->ends[e] != end;
    }
    for (size_t w = 0; w < t->plan->chunks; w++) {
        const moert_chunk chunk = moert_exchange_chunk(t->plan, w);
        t->wrong += chunk.first != expert || chunk.first_row != row || chunk.end < expert ||
                    chunk.end_row < row;
        expert = chunk.end;
        row = chunk.end_row;
    }
    t->wrong += expert != plan->local_experts || row != plan->rows;
    return verdict(t, "plan");
}

/* Finishes a combine while other kernels run. Slots are complete after combine_finish(), rows only
 * after combine_join(). */
static moert_status combine_beside(trip *t, moert_transfer *back) {
    const size_t x_bytes = t->plan->plan->rows * moert_window_stride(t->x) * sizeof(float);
    MOERT_TRY(moert_buffer_clear(t->slot_target, 0, moert_buffer_bytes(t->slot_target)));
    MOERT_TRY(moert_exchange_combine_overlapped(t->exchange, back));
    for (int i = 0; i < 3; i++)
        MOERT_TRY(moert_buffer_clear(moert_window_rows(t->x), 0, x_bytes));
    MOERT_TRY(moert_exchange_combine_finish(t->exchange, back, MOERT_OK));
    MOERT_TRY(check_slot_target(t));
    MOERT_TRY(moert_exchange_combine_join(t->exchange));
    MOERT_TRY(check_target(t, false));
    return verdict(t, "chunks");
}

/* Computes the unweighted sums in chunks, with dispatch and combine in flight together. When a
 * chunk has arrived, this rank writes and sends the chunk's results before it waits for the next
 * chunk. */
static moert_status run_chunks(trip *t) {
    const size_t bytes = moert_window_stride(t->y) * sizeof(float);
    const moert_transfer there = trip_there(t, true);
    moert_transfer back = trip_back(t, false, true);
    moert_buffer *x = moert_window_rows(t->x), *y = moert_window_rows(t->y);
    MOERT_TRY(moert_exchange_dispatch_start(t->exchange, &there, MOERT_OK));
    make_rows(t, t->y, element_made);
    for (size_t w = 0; w < t->plan->chunks; w++) {
        const moert_chunk chunk = moert_exchange_chunk(t->plan, w);
        const size_t first = chunk.first_row * bytes, size = chunk.end_row * bytes - first;
        MOERT_TRY(moert_exchange_dispatch_wait(t->exchange, w));
        MOERT_TRY(moert_buffer_copy(x, first, y, first, size));
        MOERT_TRY(moert_buffer_write(y, first, t->host + first / sizeof *t->host, size));
        MOERT_TRY(moert_exchange_combine_send(t->exchange, &back, w));
    }
    return combine_beside(t, &back);
}

/* Runs a combine in which the experts' ranks push the result rows; otherwise the tokens' ranks read
 * them. On all ranks, the row of every slot is NaN until an expert's rank writes it. */
static moert_status run_pushed(trip *t) {
    const size_t bytes = t->plan->plan->rows * moert_window_stride(t->y) * sizeof(float);
    const bool sums = moert_exchange_sums(t->exchange);
    moert_transfer back = trip_push(t, !sums, true);
    moert_buffer *rows = test_buffer(bytes);
    MOERT_TRY(moert_window_reserve_slots(t->y, t->plan));
    MOERT_TRY(write_nan(t, t->y, t->tokens * t->c.topk));
    MOERT_TRY(verdict(t, "poison"));
    MOERT_TRY(trip_dispatch(t, true, MOERT_OK));
    make_rows(t, t->y, element_made);
    MOERT_TRY(moert_buffer_write(rows, 0, t->host, bytes));
    MOERT_TRY(moert_exchange_push_rows(t->exchange, &back, rows));
    MOERT_TRY(moert_exchange_combine(t->exchange, &back, MOERT_OK));
    t->summed = sums;
    MOERT_TRY(check_target(t, !sums));
    t->summed = false;
    MOERT_TRY(check_slot_target(t));
    return verdict(t, "pushed combine");
}

moert_status trip_run(const shape *c, trip *t) {
    moert_exchange_free_plan(t->plan);
    t->plan = NULL;
    trip_make_buffers(c, t);
    MOERT_TRY(trip_plan(t, &t->plan));
    moert_exchange_cut(t->exchange, t->plan, t->chunks);
    t->wrong = 0;
    MOERT_TRY(check_plan(t));
    moert_window *const poisoned[] = {t->x, t->slot_x};
    for (size_t i = 0; i < 2; i++) {
        MOERT_TRY(moert_window_reserve(poisoned[i], t->plan->plan));
        MOERT_TRY(write_nan(t, poisoned[i], t->plan->plan->rows));
    }
    MOERT_TRY(verdict(t, "poison")); /* every rank has written NaN before any rank dispatches */
    MOERT_TRY(trip_dispatch(t, true, MOERT_OK));
    MOERT_TRY(check_rows(t, t->x, moert_window_stride(t->x), element_sent));
    MOERT_TRY(check_rows(t, t->slot_x, 1, slot_sent));
    MOERT_TRY(verdict(t, "dispatch"));
    MOERT_TRY(write_rows(t, t->y, element_made));
    MOERT_TRY(write_rows(t, t->slot_y, slot_made));
    MOERT_TRY(trip_combine(t, true, true, MOERT_OK));
    MOERT_TRY(check_target(t, true));
    MOERT_TRY(check_slot_target(t));
    MOERT_TRY(verdict(t, "combine"));
    MOERT_TRY(trip_combine(t, false, false, MOERT_OK));
    MOERT_TRY(check_target(t, false));
    MOERT_TRY(verdict(t, "plain combine"));
    if (moert_exchange_pushes(t->exchange, false))
        MOERT_TRY(run_pushed(t));
    return run_chunks(t);
}
