/* The exchange: choice of the engine, and the calls that check their buffers and hand over to
 * it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"
#include "exchange/internal.h"

/* By MOERT_EXCHANGE_* of base/config.h; AUTO tries the named ones in this order. */
static const moert_engine *const engines[] = {
    [MOERT_EXCHANGE_LOCAL] = &moert_engine_local,
    [MOERT_EXCHANGE_WINDOW] = &moert_engine_window,
    [MOERT_EXCHANGE_NODE] = &moert_engine_node,
    [MOERT_EXCHANGE_STAGED] = &moert_engine_staged,
};
enum { ENGINES = sizeof engines / sizeof engines[0] };
_Static_assert(ENGINES == MOERT_EXCHANGE_LOCAL + MOERT_EXCHANGE_ENGINES,
               "a report for each engine");

/* Opens one engine; `reason` says on all ranks alike why it does not work. */
static void open_engine(moert_exchange *exchange, unsigned which, char *reason) {
    memset(reason, 0, MOERT_EXCHANGE_REASON_BYTES);
    exchange->engine = engines[which];
    exchange->engine->open(exchange, reason);
}

static moert_status choose_engine(moert_exchange *exchange, unsigned which) {
    char reason[MOERT_EXCHANGE_REASON_BYTES];
    if (which >= ENGINES)
        return MOERT_FAIL(ERROR_USAGE, "there is no exchange engine %u", which);
    if (which != MOERT_EXCHANGE_AUTO) {
        open_engine(exchange, which, reason);
        if (reason[0] != '\0')
            return moert_comm_agree(exchange->comm,
                                    MOERT_FAIL(ERROR_UNSUPPORTED,
                                               "the %s exchange cannot work here: %s",
                                               engines[which]->name, reason));
        return MOERT_OK;
    }
    exchange->automatic = true;
    for (unsigned candidate = MOERT_EXCHANGE_LOCAL; candidate < ENGINES; candidate++) {
        open_engine(exchange, candidate, reason);
        if (reason[0] == '\0') {
            MOERT_INFO("%s exchange among %zu ranks", exchange->engine->name,
                       moert_comm_size(exchange->comm));
            return MOERT_OK;
        }
        if (candidate != MOERT_EXCHANGE_LOCAL)
            MOERT_INFO("no %s exchange: %s", exchange->engine->name, reason);
    }
    return MOERT_FAIL(ERROR_UNSUPPORTED, "no exchange engine works here: %s", reason);
}

/* The smallest of all ranks' largest allocations. */
static moert_status agree_on_limit(moert_exchange *exchange) {
    size_t ranks = moert_comm_size(exchange->comm), *limits;
    size_t mine = moert_device_describe(exchange->device)->largest_bytes;
    moert_status status;
    MOERT_TRY(moert_alloc(&limits, ranks, sizeof *limits));
    MOERT_TRY_OR(free_limits, moert_comm_allgather(exchange->comm, &mine, sizeof mine, limits));
    exchange->largest_bytes = mine;
    for (size_t r = 0; r < ranks; r++)
        exchange->largest_bytes = moert_min(exchange->largest_bytes, limits[r]);
free_limits:
    free(limits);
    return status;
}

moert_status moert_exchange_create(moert_device *device, moert_comm *comm, unsigned engine,
                                   moert_exchange **exchange) {
    moert_exchange *made;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    *made = (moert_exchange){.device = device, .comm = comm};
    MOERT_TRY_OR(free_exchange, agree_on_limit(made));
    MOERT_TRY_OR(free_exchange, choose_engine(made, engine));
    *exchange = made;
    return MOERT_OK;
free_exchange:
    free(made);
    return status;
}

void moert_exchange_destroy(moert_exchange *exchange) {
    if (exchange == NULL)
        return;
    exchange->engine->close(exchange);
    moert_exchange_free_planner(exchange->planner);
    moert_buffer_destroy(exchange->places);
    free(exchange);
}

const char *moert_exchange_engine(const moert_exchange *exchange) {
    return exchange->engine->name;
}

uint64_t moert_exchange_dispatched_bytes(const moert_exchange *exchange) {
    return exchange->dispatched_bytes;
}

uint64_t moert_exchange_far_rows(const moert_exchange *exchange) {
    return exchange->far_rows;
}

static void count_far_rows(moert_exchange *exchange, const moert_exchange_plan *plan) {
    const moert_comm *comm = exchange->comm;
    const size_t here = moert_comm_node(comm, moert_comm_rank(comm));
    for (size_t r = 0; r < plan->plan->ranks; r++)
        if (moert_comm_node(comm, r) != here)
            exchange->far_rows +=
                plan->relay != NULL ? plan->relay->send_rows[r] : plan->plan->send_rows[r];
}

/* Waits for the device. */
static moert_status check_moves(moert_exchange *exchange) {
    if (exchange->engine->check == NULL)
        return MOERT_OK;
    MOERT_TRY(exchange->engine->fetch(exchange));
    MOERT_TRY(moert_device_finish(exchange->device));
    return exchange->engine->check(exchange);
}

moert_status moert_exchange_settle(moert_exchange *exchange) {
    return moert_comm_agree(exchange->comm, check_moves(exchange));
}

void moert_exchange_count_into(moert_exchange *exchange, const moert_exchange_tally *tally) {
    exchange->tally = tally;
}

/* Adds a move of rows[ranks] from this rank. */
static void add_move(const moert_move *move, const size_t *rows, uint64_t *bytes) {
    const size_t floats = move->window->width + (move->slots != NULL ? move->slots->width : 0);
    for (size_t r = 0; r < move->plan->plan->ranks; r++)
        bytes[r] += rows[r] * floats * sizeof(float);
}

void moert_exchange_survey(moert_device *device, moert_comm *comm,
                           moert_exchange_report reports[MOERT_EXCHANGE_ENGINES]) {
    bool taken = false;
    for (unsigned i = 0; i < MOERT_EXCHANGE_ENGINES; i++) {
        moert_exchange_report *report = &reports[i];
        moert_exchange exchange = {.device = device, .comm = comm, .automatic = true};
        open_engine(&exchange, MOERT_EXCHANGE_LOCAL + i, report->reason);
        bool works = report->reason[0] == '\0';
        if (works)
            exchange.engine->close(&exchange);
        report->name = exchange.engine->name;
        report->automatic = works && !taken;
        taken = taken || works;
    }
}

static moert_status check_buffer(const moert_buffer *buffer, const char *what, size_t floats) {
    size_t bytes = floats * sizeof(float);
    if (bytes > 0 && (buffer == NULL || moert_buffer_bytes(buffer) < bytes))
        return MOERT_FAIL(ERROR_USAGE, "%s holds %zu bytes; the plan's tokens need %zu", what,
                          buffer != NULL ? moert_buffer_bytes(buffer) : 0, bytes);
    return MOERT_OK;
}

static moert_status check_slots(const moert_move *move, const moert_buffer *values,
                                const char *what) {
    if (move->slots == NULL)
        return MOERT_OK;
    if (move->slots->width != 1)
        return MOERT_FAIL(ERROR_USAGE, "a window of slots has width 1, not %zu",
                          move->slots->width);
    return check_buffer(values, what, move->plan->plan->tokens * move->plan->plan->topk);
}

/* Rows to combine must be there already: growing here would lose them. */
static moert_status check_rows(const moert_move *move) {
    size_t needed = move->plan->plan->largest_rows, there = move->window->capacity_rows;
    if (move->slots != NULL)
        there = moert_min(there, move->slots->capacity_rows);
    if (there < needed)
        return MOERT_FAIL(ERROR_USAGE, "a window to combine from has %zu rows, the plan %zu", there,
                          needed);
    return MOERT_OK;
}

moert_status moert_exchange_dispatch_start(moert_exchange *exchange,
                                           const moert_exchange_plan *plan, moert_status local,
                                           const moert_buffer *source, moert_window *window,
                                           const moert_buffer *slot_source, moert_window *slots) {
    const moert_move move = {
        .plan = plan,
        .window = window,
        .slots = slot_source != NULL ? slots : NULL,
        .source = source,
        .slot_source = slot_source,
    };
    moert_phase_set(MOERT_PHASE_DISPATCH);
    MOERT_TRY(moert_window_reserve(window, plan->plan));
    if (move.slots != NULL)
        MOERT_TRY(moert_window_reserve(move.slots, plan->plan));
    moert_status status = local;
    if (status == MOERT_OK)
        status =
            check_buffer(source, "the source of a dispatch", plan->plan->tokens * window->width);
    if (status == MOERT_OK)
        status = check_slots(&move, slot_source, "the slots of a dispatch");
    MOERT_TRY(exchange->engine->dispatch(exchange, &move, status));
    count_far_rows(exchange, plan);
    if (exchange->tally != NULL)
        add_move(&move, plan->plan->send_rows, exchange->tally->dispatched_bytes);
    return MOERT_OK;
}

moert_status moert_exchange_dispatch_wait(moert_exchange *exchange, size_t wave) {
    moert_phase_set(MOERT_PHASE_DISPATCH);
    return exchange->engine->wait != NULL ? exchange->engine->wait(exchange, wave) : MOERT_OK;
}

moert_status moert_exchange_dispatch(moert_exchange *exchange, const moert_exchange_plan *plan,
                                     moert_status local, const moert_buffer *source,
                                     moert_window *window, const moert_buffer *slot_source,
                                     moert_window *slots) {
    moert_status status = MOERT_OK;
    MOERT_TRY(
        moert_exchange_dispatch_start(exchange, plan, local, source, window, slot_source, slots));
    if (exchange->engine->wait == NULL)
        return MOERT_OK;
    for (size_t w = 0; w < plan->waves; w++) {
        const moert_status waited = moert_exchange_dispatch_wait(exchange, w);
        status = status != MOERT_OK ? status : waited;
    }
    return moert_comm_agree(exchange->comm, status);
}

moert_status moert_exchange_combine_send(moert_exchange *exchange, const moert_exchange_plan *plan,
                                         moert_window *window, moert_window *slots, size_t wave) {
    const moert_move move = {.plan = plan, .window = window, .slots = slots};
    moert_phase_set(MOERT_PHASE_COMBINE);
    MOERT_TRY(check_rows(&move));
    return exchange->engine->send != NULL ? exchange->engine->send(exchange, &move, wave)
                                          : MOERT_OK;
}

/* ---- rows that are sent as they are made ---- */

bool moert_exchange_pushes(const moert_exchange *exchange, bool products) {
    return exchange->engine->pushes != NULL && exchange->engine->pushes(exchange, products);
}

bool moert_exchange_sums(const moert_exchange *exchange) {
    return exchange->sums;
}

/* The next combine is of pushed rows. */
static moert_status begin_push(moert_exchange *exchange, const moert_move *move) {
    const moert_plan *plan = move->plan->plan;
    if (move->window->capacity_rows < move->plan->largest_slots)
        return MOERT_FAIL(ERROR_USAGE, "a window to push to has %zu rows, the plan %zu slots",
                          move->window->capacity_rows, move->plan->largest_slots);
    if (move->slots->capacity_rows < plan->rows)
        return MOERT_FAIL(ERROR_USAGE, "the slots of a push have %zu rows, the plan %zu",
                          move->slots->capacity_rows, plan->rows);
    exchange->pushed = true;
    return MOERT_OK;
}

moert_status moert_exchange_push(moert_exchange *exchange, const moert_exchange_plan *plan,
                                 moert_window *window, moert_window *slots,
                                 const moert_buffer **places) {
    const moert_move move = {.plan = plan, .window = window, .slots = slots};
    const size_t bytes = moert_max(plan->plan->rows, 1) * sizeof(uint64_t);
    if (exchange->sums)
        return MOERT_FAIL(ERROR_USAGE, "rows that ranks sum (MOERT_PUSH=sum) have no places of "
                                       "their own; moert_exchange_push_rows sends them");
    MOERT_TRY(begin_push(exchange, &move));
    MOERT_TRY(moert_buffer_reserve(exchange->device, bytes, &exchange->places));
    *places = exchange->places;
    return moert_kernel_find_places(exchange, &move, exchange->places);
}

moert_status moert_exchange_push_rows(moert_exchange *exchange, const moert_exchange_plan *plan,
                                      moert_window *window, moert_window *slots,
                                      const moert_buffer *rows) {
    const moert_move move = {.plan = plan, .window = window, .slots = slots, .source = rows};
    moert_phase_set(MOERT_PHASE_COMBINE);
    MOERT_TRY(begin_push(exchange, &move));
    if (exchange->engine->sends == NULL || !exchange->engine->sends(exchange, &move))
        return moert_kernel_send_rows(exchange, &move);
    exchange->unsent = move;
    return MOERT_OK;
}

moert_status moert_exchange_combine_beside(moert_exchange *exchange) {
    const moert_move unsent = exchange->unsent;
    exchange->unsent = (moert_move){.source = NULL};
    if (unsent.source != NULL)
        MOERT_TRY(moert_kernel_send_rows(exchange, &unsent));
    return exchange->engine->beside != NULL ? exchange->engine->beside(exchange) : MOERT_OK;
}

moert_status moert_exchange_combine_join(moert_exchange *exchange) {
    return exchange->engine->join != NULL ? exchange->engine->join(exchange) : MOERT_OK;
}

moert_status moert_exchange_combine_finish(moert_exchange *exchange,
                                           const moert_exchange_plan *plan, moert_status local,
                                           moert_window *window, const moert_buffer *weight,
                                           moert_buffer *target, moert_window *slots,
                                           moert_buffer *slot_target) {
    const moert_move move = {
        .plan = plan,
        .window = window,
        .slots = slot_target != NULL ? slots : NULL,
        .source = exchange->unsent.source,
        .cells = exchange->unsent.slots,
        .weight = weight,
        .target = target,
        .slot_target = slot_target,
        .pushed = exchange->pushed,
    };
    const size_t tokens = plan->plan->tokens;
    exchange->pushed = false;
    exchange->unsent = (moert_move){.source = NULL};
    moert_phase_set(MOERT_PHASE_COMBINE);
    moert_status status = local != MOERT_OK ? local : check_rows(&move);
    if (status == MOERT_OK)
        status = check_buffer(target, "the target of a combine", tokens * window->columns);
    if (status == MOERT_OK && weight != NULL && move.pushed && exchange->sums)
        status = MOERT_FAIL(ERROR_USAGE, "rows that ranks have summed cannot be weighted any more "
                                         "(MOERT_PUSH=sum)");
    if (status == MOERT_OK && weight != NULL)
        status = check_buffer(weight, "the weights of a combine", tokens * plan->plan->topk);
    if (status == MOERT_OK)
        status = check_slots(&move, slot_target, "the slots of a combine");
    MOERT_TRY(exchange->engine->combine(exchange, &move, status));
    if (exchange->tally != NULL)
        add_move(&move, plan->plan->receive_rows, exchange->tally->combined_bytes);
    return MOERT_OK;
}

moert_status moert_exchange_combine(moert_exchange *exchange, const moert_exchange_plan *plan,
                                    moert_status local, moert_window *window,
                                    const moert_buffer *weight, moert_buffer *target,
                                    moert_window *slots, moert_buffer *slot_target) {
    moert_status status = local;
    for (size_t w = 0; w < plan->waves; w++) {
        const moert_status sent = moert_exchange_combine_send(
            exchange, plan, window, slot_target != NULL ? slots : NULL, w);
        status = status != MOERT_OK ? status : sent;
    }
    return moert_exchange_combine_finish(exchange, plan, status, window, weight, target, slots,
                                         slot_target);
}

/* ---- waves ---- */

enum { WAVE_BYTES = 256 << 10 }; /* that a rank sends in a wave, at least */

void moert_exchange_cut(const moert_exchange *exchange, moert_exchange_plan *plan, size_t waves) {
    const bool cuts = exchange->engine->wait != NULL;
    plan->waves = cuts ? moert_max(1, moert_min(waves, MOERT_EXCHANGE_MOST_WAVES)) : 1;
}

size_t moert_exchange_good_waves(size_t bytes, size_t experts) {
    return moert_min(moert_min(bytes / WAVE_BYTES, experts), MOERT_EXCHANGE_GOOD_WAVES);
}

size_t moert_exchange_choose_waves(const moert_exchange_plan *plan, size_t row_bytes) {
    const moert_plan *p = plan->plan;
    const unsigned wanted = moert_config_get()->waves;
    size_t rows = 0;
    if (wanted > 0)
        return wanted;
    for (size_t e = 0; e < p->experts; e++)
        rows += p->expert_counts[e];
    return moert_exchange_good_waves(rows / p->ranks * row_bytes, p->experts / p->ranks);
}
