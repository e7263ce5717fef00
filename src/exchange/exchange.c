/* The exchange: chooses the engine, checks buffers, and calls the engine. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"
#include "device/buffer.h"
#include "exchange/internal.h"

/* Indexed by MOERT_EXCHANGE_* of base/config.h; AUTO tries engines in this order. */
#define ENGINE(NAME, name) [MOERT_EXCHANGE_##NAME] = &moert_engine_##name,
static const moert_engine *const engines[] = {MOERT_ENGINE_TABLE(ENGINE)};
enum { ENGINES = MOERT_COUNT(engines) };

/* Opens an engine. `reason` says why the engine does not work, or is "", and is the same on all
 * ranks. */
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
            MOERT_INFO("moert uses the %s exchange among %zu ranks", exchange->engine->name,
                       moert_comm_size(exchange->comm));
            return MOERT_OK;
        }
        if (candidate != MOERT_EXCHANGE_LOCAL)
            MOERT_INFO("cannot use the %s exchange: %s", exchange->engine->name, reason);
    }
    return MOERT_FAIL(ERROR_UNSUPPORTED, "no exchange engine works here: %s", reason);
}

moert_status moert_exchange_create(moert_device *device, moert_comm *comm, unsigned engine,
                                   moert_exchange **exchange) {
    moert_exchange *made = NULL;
    moert_status status = MOERT_NEW(&made);
    MOERT_TRY_OR(free_exchange, moert_comm_agree(comm, status));
    *made = (moert_exchange){.device = device,
                             .comm = comm,
                             .largest_bytes = moert_device_describe(device)->largest_bytes};
    MOERT_TRY_OR(free_exchange, moert_comm_smallest(comm, &made->largest_bytes));
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
    moert_buffer_destroy(exchange->row_addresses);
    free(exchange);
}

const char *moert_exchange_engine(const moert_exchange *exchange) {
    return exchange->engine->name;
}

bool moert_exchange_packs(unsigned engine) {
    return engines[engine]->packs;
}

size_t moert_exchange_packed_bytes(unsigned engine, const moert_packed_sizes *sizes) {
    return engines[engine]->packed_bytes != NULL ? engines[engine]->packed_bytes(sizes) : 0;
}

/* Fails if a device was late in a dispatch or combine so far. Waits for the device. */
static moert_status check_transfers(moert_exchange *exchange) {
    if (exchange->engine->fetch_verdict == NULL)
        return MOERT_OK;
    MOERT_TRY(exchange->engine->fetch_verdict(exchange));
    MOERT_TRY(moert_device_finish(exchange->device));
    return exchange->engine->check_verdict(exchange);
}

moert_status moert_exchange_settle(moert_exchange *exchange) {
    return moert_comm_agree(exchange->comm, check_transfers(exchange));
}

void moert_exchange_count_into(moert_exchange *exchange, const moert_exchange_tally *tally) {
    exchange->tally = tally;
}

/* bytes[r] += the bytes of rows[r] rows, and of one more float for each of these rows if the
 * transfer has slots, for each rank r. */
static void tally(const moert_transfer *t, const size_t *rows, uint64_t *bytes) {
    const size_t floats = t->window->width + (t->slots != NULL ? t->slots->width : 0);
    for (size_t r = 0; r < t->plan->plan->ranks; r++)
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

static moert_status check_slots(const moert_transfer *t, const moert_buffer *values,
                                const char *what) {
    if (t->slots == NULL)
        return MOERT_OK;
    if (t->slots->width != 1)
        return MOERT_FAIL(ERROR_USAGE, "a window for one value per slot must have width 1, not %zu",
                          t->slots->width);
    return check_buffer(values, what, t->plan->plan->tokens * t->plan->plan->topk);
}

/* ---- dispatch ---- */

moert_status moert_exchange_dispatch_start(moert_exchange *exchange, const moert_transfer *t,
                                           moert_status local) {
    const moert_plan *plan = t->plan->plan;
    moert_phase_set(MOERT_PHASE_DISPATCH);
    MOERT_TRY(moert_window_reserve(t->window, plan));
    if (t->slots != NULL)
        MOERT_TRY(moert_window_reserve(t->slots, plan));
    if (local == MOERT_OK)
        local =
            check_buffer(t->source, "the source of a dispatch", plan->tokens * t->window->width);
    if (local == MOERT_OK)
        local = check_slots(t, t->slot_source, "the slots of a dispatch");
    MOERT_TRY(exchange->engine->dispatch(exchange, t, local));
    const size_t here = moert_comm_node(exchange->comm, moert_comm_rank(exchange->comm));
    const size_t *sent = t->plan->relay != NULL ? t->plan->relay->send_rows : plan->send_rows;
    for (size_t r = 0; r < plan->ranks; r++)
        exchange->far_rows += moert_comm_node(exchange->comm, r) != here ? sent[r] : 0;
    if (exchange->tally != NULL)
        tally(t, plan->send_rows, exchange->tally->dispatched_bytes);
    return MOERT_OK;
}

moert_status moert_exchange_dispatch_wait(moert_exchange *exchange, size_t chunk) {
    moert_phase_set(MOERT_PHASE_DISPATCH);
    return exchange->engine->wait != NULL ? exchange->engine->wait(exchange, chunk) : MOERT_OK;
}

moert_status moert_exchange_dispatch(moert_exchange *exchange, const moert_transfer *t,
                                     moert_status local) {
    moert_status status = MOERT_OK;
    MOERT_TRY(moert_exchange_dispatch_start(exchange, t, local));
    if (exchange->engine->wait == NULL)
        return MOERT_OK;
    for (size_t c = 0; c < t->plan->chunks; c++)
        status = moert_first(status, moert_exchange_dispatch_wait(exchange, c));
    return moert_comm_agree(exchange->comm, status);
}

/* ---- push ---- */

bool moert_exchange_pushes(const moert_exchange *exchange, bool gemm_scatters) {
    return exchange->engine->pushes != NULL && exchange->engine->pushes(exchange, gemm_scatters);
}

bool moert_exchange_sums(const moert_exchange *exchange) {
    return exchange->sums;
}

static moert_status check_push(const moert_transfer *t) {
    if (t->window->capacity_rows < t->plan->largest_slots)
        return MOERT_FAIL(
            ERROR_USAGE,
            "the window that receives pushed rows has %zu rows, but the plan needs %zu",
            t->window->capacity_rows, t->plan->largest_slots);
    if (t->slot_window->capacity_rows < t->plan->plan->rows)
        return MOERT_FAIL(ERROR_USAGE,
                          "slot_window of a push has %zu rows, but the plan needs %zu rows",
                          t->slot_window->capacity_rows, t->plan->plan->rows);
    return MOERT_OK;
}

moert_status moert_exchange_push(moert_exchange *exchange, const moert_transfer *t,
                                 const moert_buffer **addresses) {
    const size_t bytes = moert_max(t->plan->plan->rows, 1) * sizeof(uint64_t);
    if (exchange->sums)
        return MOERT_FAIL(ERROR_USAGE, "rows that ranks sum (MOERT_PUSH=sum) have no addresses of "
                                       "their own; send the rows with moert_exchange_push_rows");
    MOERT_TRY(check_push(t));
    MOERT_TRY(moert_buffer_reserve(exchange->device, bytes, &exchange->row_addresses));
    *addresses = exchange->row_addresses;
    return moert_kernel_find_addresses(exchange, t, exchange->row_addresses);
}

static moert_status send_unsent(moert_exchange *exchange, moert_transfer *t) {
    const moert_status status = t->unsent != NULL ? moert_kernel_send_rows(exchange, t) : MOERT_OK;
    t->unsent = NULL;
    return status;
}

moert_status moert_exchange_push_rows(moert_exchange *exchange, moert_transfer *t,
                                      const moert_buffer *rows) {
    moert_phase_set(MOERT_PHASE_COMBINE);
    MOERT_TRY(check_push(t));
    t->unsent = rows;
    return exchange->engine->sends(exchange, t) ? MOERT_OK : send_unsent(exchange, t);
}

/* ---- combine ---- */

/* Checks that the window of a combine already has room: growing the window would lose its rows. */
static moert_status check_rows(const moert_transfer *t) {
    size_t needed = t->plan->plan->largest_rows, available = t->window->capacity_rows;
    if (t->slots != NULL)
        available = moert_min(available, t->slots->capacity_rows);
    if (available < needed)
        return MOERT_FAIL(ERROR_USAGE, "a window of a combine has %zu rows, but the plan needs %zu",
                          available, needed);
    return MOERT_OK;
}

moert_status moert_exchange_combine_send(moert_exchange *exchange, const moert_transfer *t,
                                         size_t chunk) {
    moert_phase_set(MOERT_PHASE_COMBINE);
    MOERT_TRY(check_rows(t));
    return exchange->engine->send != NULL ? exchange->engine->send(exchange, t, chunk) : MOERT_OK;
}

moert_status moert_exchange_combine_overlapped(moert_exchange *exchange, moert_transfer *t) {
    MOERT_TRY(send_unsent(exchange, t));
    return exchange->engine->prepare_overlapped != NULL
               ? exchange->engine->prepare_overlapped(exchange, t)
               : MOERT_OK;
}

moert_status moert_exchange_combine_join(moert_exchange *exchange) {
    return exchange->engine->join != NULL ? exchange->engine->join(exchange) : MOERT_OK;
}

/* Checks the buffers of a combine. */
static moert_status check_combine(const moert_exchange *exchange, const moert_transfer *t) {
    const size_t tokens = t->plan->plan->tokens;
    MOERT_TRY(check_rows(t));
    MOERT_TRY(check_buffer(t->target, "the target of a combine", tokens * t->window->columns));
    if (t->weight != NULL && t->slot_window != NULL && exchange->sums)
        return MOERT_FAIL(ERROR_USAGE, "a combine cannot weight rows that the sending ranks have "
                                       "already summed (MOERT_PUSH=sum)");
    if (t->weight != NULL)
        MOERT_TRY(
            check_buffer(t->weight, "the weights of a combine", tokens * t->plan->plan->topk));
    return check_slots(t, t->slot_target, "the slots of a combine");
}

moert_status moert_exchange_combine_finish(moert_exchange *exchange, const moert_transfer *t,
                                           moert_status local) {
    moert_phase_set(MOERT_PHASE_COMBINE);
    const moert_status status = local != MOERT_OK ? local : check_combine(exchange, t);
    MOERT_TRY(exchange->engine->combine(exchange, t, status));
    if (exchange->tally != NULL)
        tally(t, t->plan->plan->receive_rows, exchange->tally->combined_bytes);
    return MOERT_OK;
}

moert_status moert_exchange_combine(moert_exchange *exchange, moert_transfer *t,
                                    moert_status local) {
    for (size_t c = 0; c < t->plan->chunks; c++)
        local = moert_first(local, moert_exchange_combine_send(exchange, t, c));
    return moert_exchange_combine_finish(exchange, t, local);
}

/* ---- chunks ---- */

/* if moert chooses several chunks, each has on average at least this many bytes */
enum { CHUNK_BYTES = 256 << 10 };

void moert_exchange_cut(const moert_exchange *exchange, moert_exchange_plan *plan, size_t chunks) {
    plan->chunks = exchange->engine->wait != NULL
                       ? moert_max(1, moert_min(chunks, MOERT_EXCHANGE_MOST_CHUNKS))
                       : 1;
}

size_t moert_exchange_good_chunks(size_t bytes, size_t experts) {
    return moert_min(moert_min(bytes / CHUNK_BYTES, experts), MOERT_EXCHANGE_GOOD_CHUNKS);
}

size_t moert_exchange_choose_chunks(const moert_exchange_plan *plan, size_t row_bytes) {
    const moert_plan *p = plan->plan;
    const unsigned wanted = moert_config_get()->chunks;
    size_t rows = 0;
    if (wanted > 0)
        return wanted;
    for (size_t e = 0; e < p->experts; e++)
        rows += p->expert_counts[e];
    return moert_exchange_good_chunks(rows / p->ranks * row_bytes, p->experts / p->ranks);
}
