/* Round trips and their oracle. */
#include "base/dtype.h"
#include "base/rng.h"
#include "support/exchange/suite.h"

/* ---- values, computed from the global token index ---- */

static void choose(const shape *c, size_t token, int32_t *slot) {
    int32_t deck[MAX_EXPERTS];
    for (size_t e = 0; e < c->experts; e++)
        deck[e] = (int32_t)e;
    for (size_t k = 0; k < c->topk; k++) {
        double u = moert_rng_uniform(c->salt, token, k);
        size_t pick = k + (size_t)(u * (double)(c->experts - k));
        if (c->choice == ONE_EXPERT)
            pick = c->experts - 1;
        else if (c->choice == ZIPF)
            pick = k + (size_t)(pow((double)(c->experts - k + 1), u) - 1.0);
        else if (c->choice == HOT && k == 0 && u < 0.3 * (double)c->topk)
            pick = 0;
        int32_t taken = deck[pick];
        deck[pick] = deck[k];
        deck[k] = taken;
        slot[k] = c->choice == ALL_DROPPED || (c->choice == SOME_DROPPED && u < 0.4) ? -1 : taken;
    }
}

static float payload(const shape *c, size_t token, size_t i) {
    return (float)(token * 1009 + i * 7 + c->salt % 1000 + 1);
}

static float weight(const shape *c, size_t token, size_t k) {
    return (float)moert_rng_normal(c->salt + 1000u, token, k);
}

/* The result of an expert for an element x of a row; truncated to bf16 if results are bf16. */
static float result(const trip *t, float x, size_t expert) {
    const float y = x * 0.37f - (float)expert * 1.3f;
    return t->bf16 ? moert_float_from_bits(moert_float_bits(y) & 0xFFFF0000) : y;
}

/* The number of tokens on the ranks below `end`. */
static size_t tokens_below(const shape *c, size_t end) {
    size_t first = 0;
    for (size_t r = 0; r < end; r++)
        first += c->tokens[r];
    return first;
}

/* ---- one round trip ---- */

static void free_trip(void *trip_of_test) {
    trip *t = trip_of_test;
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
    const size_t tokens = c->tokens[test_rank], slots = tokens * c->topk;
    const size_t first = tokens_below(c, test_rank), total = tokens_below(c, test_ranks);
    float *host = test_alloc((total + 1) * (c->topk + 1) * moert_window_stride(t->x) * 4);
    for (size_t i = 0; i < tokens; i++)
        choose(c, first + i, (int32_t *)host + i * c->topk);
    t->index = upload(host, slots * 4);
    for (size_t i = 0; i < tokens * c->width; i++)
        host[i] = payload(c, first + i / c->width, i % c->width);
    t->source = upload(host, tokens * c->width * 4);
    for (size_t s = 0; s < slots; s++)
        host[s] = weight(c, first + s / c->topk, s % c->topk);
    t->weight = upload(host, slots * 4);
    t->target = unset_floats(tokens * c->width);
    t->slot_target = unset_floats(slots);
    t->host = host;
}

/* Visits this rank's rows in the order of the plan: for each expert, a search over all tokens. */
typedef void row_visitor(const shape *c, trip *t, size_t row, size_t token, size_t k, size_t e);

static void visit_rows(const shape *c, trip *t, row_visitor *visit) {
    size_t row = 0, total = tokens_below(c, test_ranks), first, count;
    int32_t slot[MAX_EXPERTS];
    moert_plan_experts(c->experts, test_ranks, test_rank, &first, &count);
    for (size_t e = first; e < first + count; e++) {
        for (size_t token = 0; token < total; token++) {
            choose(c, token, slot);
            for (size_t k = 0; k < c->topk; k++)
                if (slot[k] == (int32_t)e)
                    visit(c, t, row++, token, k, e);
        }
    }
    t->wrong += row != t->plan->plan->rows;
}

static void check_row(const shape *c, trip *t, size_t row, size_t token, size_t k, size_t e) {
    (void)k, (void)e;
    size_t stride = moert_window_stride(t->x);
    for (size_t i = 0; i < stride; i++)
        t->wrong += t->host[row * stride + i] != (i < c->width ? payload(c, token, i) : 0.0f);
}

static void check_slot(const shape *c, trip *t, size_t row, size_t token, size_t k, size_t e) {
    (void)e;
    t->wrong += t->host[row * moert_window_stride(t->slot_x)] != weight(c, token, k);
}

/* The padding of a row is NaN, so that any use of it shows. */
static void make_row(const shape *c, trip *t, size_t row, size_t token, size_t k, size_t e) {
    (void)k;
    const size_t stride = moert_window_stride(t->y), last = t->bf16 ? 2 * stride : stride;
    float *target = t->host + row * stride;
    for (size_t i = 0; i < last; i++) {
        const float y = i < c->width ? result(t, payload(c, token, i), e) : NAN;
        if (t->bf16)
            ((uint16_t *)target)[i] = (uint16_t)(moert_float_bits(y) >> 16);
        else
            target[i] = y;
    }
}

static void make_slot(const shape *c, trip *t, size_t row, size_t token, size_t k, size_t e) {
    (void)c;
    t->host[row * moert_window_stride(t->slot_y)] = (float)(token * 100 + k * 10) + (float)e * .5f;
}

/* Compares the rows of a window with those that `check` expects. */
static moert_status check_rows(const shape *c, const moert_window *window, trip *t,
                               row_visitor *check) {
    MOERT_TRY(moert_buffer_read(moert_window_rows(window), 0, t->host,
                                t->plan->plan->rows * moert_window_stride(window) * 4));
    visit_rows(c, t, check);
    return MOERT_OK;
}

/* Fills the rows of a window with those that `make` writes into t->host. */
static moert_status make_rows(const shape *c, moert_window *window, trip *t, row_visitor *make) {
    MOERT_TRY(moert_window_reserve(window, t->plan->plan));
    visit_rows(c, t, make);
    return moert_buffer_write(moert_window_rows(window), 0, t->host,
                              t->plan->plan->rows * moert_window_stride(window) * 4);
}

/* Returns the rank or node that sums an expert's results before it sends them; 0 if there is no
 * such sum. */
static size_t node_of(const shape *c, const trip *t, int32_t expert) {
    const size_t rank = moert_plan_owner(c->experts, test_ranks, (size_t)expert);
    if (t->summed)
        return rank;
    return t->presummed == NULL ? 0 : moert_comm_node(t->presummed, rank);
}

/* The addends of one element of a token's sum, by slot. */
typedef struct {
    float weight[MAX_EXPERTS], value[MAX_EXPERTS];
    size_t node[MAX_EXPERTS]; /* the node that sums each addend first */
    size_t home;              /* the final sum takes addends of this node one by one */
    bool taken[MAX_EXPERTS];  /* still to be added */
    bool rounds;              /* partial sums are rounded to bf16 */
} addends;

/* Sums the slots from k on whose node is that of slot k, and marks them as added. */
static float sum_node(addends *s, size_t k, size_t topk) {
    const size_t node = s->node[k];
    float sum = 0.0f;
    for (; k < topk; k++)
        if (s->taken[k] && s->node[k] == node) {
            sum = fmaf(s->weight[k], s->value[k], sum);
            s->taken[k] = false;
        }
    return s->rounds ? round_to(MOERT_DTYPE_BF16, sum) : sum;
}

static float sum_all(addends *s, size_t topk) {
    float sum = 0.0f;
    for (size_t k = 0; k < topk; k++) {
        if (s->taken[k] && s->node[k] != s->home)
            sum = fmaf(1.0f, sum_node(s, k, topk), sum);
        else if (s->taken[k])
            sum = fmaf(s->weight[k], s->value[k], sum);
    }
    return sum;
}

static float wanted_sum(const shape *c, const trip *t, size_t token, size_t column,
                        const int32_t *slot, bool weighted) {
    addends s = {.home = t->presummed != NULL ? moert_comm_node(t->presummed, test_rank) : 0,
                 .rounds = t->summed && t->bf16};
    if (t->summed)
        s.home = SIZE_MAX;
    for (size_t k = 0; k < c->topk; k++) {
        s.taken[k] = slot[k] >= 0;
        if (!s.taken[k])
            continue;
        s.weight[k] = weighted ? weight(c, token, k) : 1.0f;
        s.value[k] = result(t, payload(c, token, column), (size_t)slot[k]);
        s.node[k] = node_of(c, t, slot[k]);
    }
    return sum_all(&s, c->topk);
}

/* Compares `target` bit for bit with sums by fmaf in the order of the slots, weighted or not. */
static moert_status check_target(const shape *c, trip *t, bool weighted) {
    const size_t tokens = c->tokens[test_rank];
    int32_t slot[MAX_EXPERTS];
    MOERT_TRY(moert_buffer_read(t->target, 0, t->host, tokens * c->width * 4));
    for (size_t i = 0; i < tokens; i++) {
        const size_t token = tokens_below(c, test_rank) + i;
        choose(c, token, slot);
        for (size_t j = 0; j < c->width; j++) {
            const float sum = wanted_sum(c, t, token, j, slot, weighted);
            t->wrong += memcmp(&sum, &t->host[i * c->width + j], sizeof sum) != 0;
        }
    }
    return MOERT_OK;
}

static moert_status check_slot_target(const shape *c, trip *t) {
    const size_t slots = c->tokens[test_rank] * c->topk;
    int32_t slot[MAX_EXPERTS];
    MOERT_TRY(moert_buffer_read(t->slot_target, 0, t->host, slots * 4));
    for (size_t s = 0; s < slots; s++) {
        const size_t token = tokens_below(c, test_rank) + s / c->topk, k = s % c->topk;
        choose(c, token, slot);
        float wanted = slot[k] < 0 ? 0.0f : (float)(token * 100 + k * 10) + (float)slot[k] * .5f;
        t->wrong += t->host[s] != wanted;
    }
    return MOERT_OK;
}

/* Fails on all ranks if any rank has wrong values. */
static moert_status verdict(const shape *c, trip *t, const char *what) {
    moert_status local = MOERT_OK;
    if (t->wrong > 0)
        local = MOERT_FAIL(ERROR_INTERNAL, "%s, %s: %zu wrong values", c->name, what, t->wrong);
    return moert_comm_agree(test_comm, local);
}

/* Fills rows with NaN, so that an element that is never written shows. Waits until they are in
 * memory, which moert_buffer_write does not promise: other ranks write to these rows next. */
static moert_status write_nan(moert_window *window, size_t rows, trip *t) {
    const size_t floats = rows * moert_window_stride(window);
    for (size_t i = 0; i < floats; i++)
        t->host[i] = NAN;
    MOERT_TRY(moert_buffer_write(moert_window_rows(window), 0, t->host, floats * sizeof(float)));
    return moert_device_finish(test_device);
}

static moert_status poison(moert_window *window, trip *t) {
    MOERT_TRY(moert_window_reserve(window, t->plan->plan));
    return write_nan(window, t->plan->plan->rows, t);
}

moert_status trip_plan(const shape *c, const trip *t, moert_status local,
                       moert_exchange_plan **plan) {
    const moert_exchange_slots slots = {
        .index = t->index, .tokens = c->tokens[test_rank], .topk = c->topk, .experts = c->experts};
    return moert_exchange_make_plan(t->exchange, &slots, local, plan);
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
    back.cells = t->slot_x;
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

/* Checks that the chunks cover this rank's experts and rows in order, without gaps. */
static moert_status check_chunks(trip *t) {
    const moert_plan *plan = t->plan->plan;
    size_t expert = 0, row = 0;
    for (size_t w = 0; w < t->plan->chunks; w++) {
        const moert_chunk chunk = moert_exchange_chunk(t->plan, w);
        if (chunk.first != expert || chunk.first_row != row || chunk.end < expert ||
            chunk.end_row < row)
            return MOERT_FAIL(ERROR_INTERNAL, "chunk %zu begins with expert %zu and row %zu", w,
                              chunk.first, chunk.first_row);
        expert = chunk.end;
        row = chunk.end_row;
    }
    if (expert != plan->local_experts || row != plan->rows)
        return MOERT_FAIL(ERROR_INTERNAL, "chunks end with expert %zu and row %zu", expert, row);
    return MOERT_OK;
}

/* Finishes a combine while other kernels run. Slots are complete after combine_finish(), rows only
 * after combine_join(). */
static moert_status combine_beside(const shape *c, trip *t, moert_transfer *back) {
    const size_t x_bytes = t->plan->plan->rows * moert_window_stride(t->x) * sizeof(float);
    MOERT_TRY(moert_buffer_clear(t->slot_target, 0, moert_buffer_bytes(t->slot_target)));
    MOERT_TRY(moert_exchange_combine_overlapped(t->exchange, back));
    for (int i = 0; i < 3; i++)
        MOERT_TRY(moert_buffer_clear(moert_window_rows(t->x), 0, x_bytes));
    MOERT_TRY(moert_exchange_combine_finish(t->exchange, back, MOERT_OK));
    MOERT_TRY(check_slot_target(c, t));
    MOERT_TRY(moert_exchange_combine_join(t->exchange));
    MOERT_TRY(check_target(c, t, false));
    return verdict(c, t, "chunks");
}

/* Computes the unweighted sums in chunks, with dispatch and combine in flight together. As soon as
 * a chunk has arrived, its results are written and sent, before the wait for the next chunk. */
static moert_status run_chunks(const shape *c, trip *t) {
    const size_t stride = moert_window_stride(t->y), bytes = stride * sizeof(float);
    const moert_transfer there = trip_there(t, true);
    moert_transfer back = trip_back(t, false, true);
    MOERT_TRY(moert_exchange_dispatch_start(t->exchange, &there, MOERT_OK));
    visit_rows(c, t, make_row);
    float *rows = t->host;
    for (size_t w = 0; w < t->plan->chunks; w++) {
        const moert_chunk chunk = moert_exchange_chunk(t->plan, w);
        const size_t first = chunk.first_row * bytes, size = chunk.end_row * bytes - first;
        MOERT_TRY(moert_exchange_dispatch_wait(t->exchange, w));
        MOERT_TRY(moert_buffer_copy(moert_window_rows(t->x), first, moert_window_rows(t->y), first,
                                    size));
        MOERT_TRY(
            moert_buffer_write(moert_window_rows(t->y), first, rows + first / sizeof *rows, size));
        MOERT_TRY(moert_exchange_combine_send(t->exchange, &back, w));
    }
    return combine_beside(c, t, &back);
}

/* Runs a combine in which the experts' ranks push the rows, instead of the tokens' ranks reading
 * them. On all ranks, the row of every slot is NaN until it is pushed. */
static moert_status run_pushed(const shape *c, trip *t) {
    const size_t bytes = t->plan->plan->rows * moert_window_stride(t->y) * sizeof(float);
    const bool sums = moert_exchange_sums(t->exchange);
    moert_transfer back = trip_push(t, !sums, true);
    moert_buffer *rows = test_buffer(bytes);
    MOERT_TRY(moert_window_reserve_slots(t->y, t->plan));
    MOERT_TRY(write_nan(t->y, t->plan->plan->tokens * t->plan->plan->topk, t));
    MOERT_TRY(verdict(c, t, "poison"));
    MOERT_TRY(trip_dispatch(t, true, MOERT_OK));
    visit_rows(c, t, make_row);
    MOERT_TRY(moert_buffer_write(rows, 0, t->host, bytes));
    MOERT_TRY(moert_exchange_push_rows(t->exchange, &back, rows));
    MOERT_TRY(moert_exchange_combine(t->exchange, &back, MOERT_OK));
    t->summed = sums;
    MOERT_TRY(check_target(c, t, !sums));
    t->summed = false;
    MOERT_TRY(check_slot_target(c, t));
    return verdict(c, t, "pushed combine");
}

moert_status trip_run(const shape *c, trip *t) {
    moert_exchange_free_plan(t->plan);
    t->plan = NULL;
    trip_make_buffers(c, t);
    MOERT_TRY(trip_plan(c, t, MOERT_OK, &t->plan));
    moert_exchange_cut(t->exchange, t->plan, t->chunks);
    t->wrong = 0;
    MOERT_TRY(poison(t->x, t));
    MOERT_TRY(poison(t->slot_x, t));
    MOERT_TRY(verdict(c, t, "poison")); /* every rank has written NaN before any rank dispatches */
    MOERT_TRY(trip_dispatch(t, true, MOERT_OK));
    MOERT_TRY(check_chunks(t));
    t->wrong = t->plan->plan->rows > t->plan->capacity_rows;
    MOERT_TRY(check_rows(c, t->x, t, check_row));
    MOERT_TRY(check_rows(c, t->slot_x, t, check_slot));
    MOERT_TRY(verdict(c, t, "dispatch"));
    MOERT_TRY(make_rows(c, t->y, t, make_row));
    MOERT_TRY(make_rows(c, t->slot_y, t, make_slot));
    MOERT_TRY(trip_combine(t, true, true, MOERT_OK));
    MOERT_TRY(check_target(c, t, true));
    MOERT_TRY(check_slot_target(c, t));
    MOERT_TRY(verdict(c, t, "combine"));
    MOERT_TRY(trip_combine(t, false, false, MOERT_OK));
    MOERT_TRY(check_target(c, t, false));
    MOERT_TRY(verdict(c, t, "plain combine"));
    if (moert_exchange_pushes(t->exchange, false))
        MOERT_TRY(run_pushed(c, t));
    return run_chunks(c, t);
}
