/*
 * Makes plans. The device counts this rank's slots. One all-gather exchanges the counts and the
 * status of all ranks. Then the device computes the rows of the slots. The host waits once, for the
 * counts. Work that the caller enqueues between begin and end runs while the host waits and
 * communicates.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/phase.h"
#include "device/buffer.h"
#include "device/launch.h"
#include "device/queue.h"
#include "exchange/internal.h"

enum { CHUNK = MOERT_PLAN_CHUNK, WORDS = MOERT_PLAN_WORDS };
enum { ENTRY_WORDS = 4 }; /* words of a moert_lane's table entry (kernels/exchange/plan.cl) */

/* A rank's message to the other ranks, in words of 64 bits: this header, counts[E] and, with a
 * relay_map and without clones, the number of the rank's tokens with slots on each node. With
 * clones, these numbers depend on the counts of all ranks; so ranks send them in a second
 * message. */
enum { STATUS, TOKENS, TOPK, HEADER_WORDS };

/* Memory for the plans of an exchange. Allocating this memory takes longer than making a plan, so
 * the exchange keeps the memory, and the next plan reuses the buffers of a freed plan. */
typedef struct moert_planner {
    moert_exchange_slots choice;
    moert_expert_map *contiguous;   /* placement for plans whose caller gives none, or NULL */
    size_t message_words;           /* words of a rank's message */
    size_t room;                    /* message_words for which `mine` is allocated */
    uint64_t *mine;                 /* [message_words] this rank's message; the arrays `all` and
                                       `counts` follow it in the same allocation */
    uint64_t *all;                  /* [ranks,message_words] */
    uint64_t *counts;               /* [ranks,E] */
    size_t entries;                 /* number of entries for which `table` and `lanes` are
                                       allocated */
    uint32_t (*table)[ENTRY_WORDS]; /* [entries] the plan's ends and draws, then an entry for each
                                       lane */
    moert_lane *lanes;              /* [entries] */
    moert_buffer *chunks;           /* uint32 [E + 1,chunks] counts, of kernels/exchange/plan.cl */
    moert_staging *totals;          /* uint32 [E + 1] */
    moert_event *counted;           /* event that completes when the totals are on the host;
                                       NULL: no plan has begun */
    moert_exchange_plan *spare;     /* the memory of the next plan, or NULL */
} moert_planner;

static size_t chunks_of(const moert_exchange_slots *choice) {
    return moert_ceil_div(choice->tokens, CHUNK);
}

/* ---- memory ---- */

static void destroy_plan(moert_exchange_plan *plan) {
    if (plan == NULL)
        return;
    MOERT_DESTROY(plan->ends, plan->destination, plan->packed);
    free(plan);
}

void moert_exchange_free_plan(moert_exchange_plan *plan) {
    if (plan == NULL)
        return;
    moert_plan_destroy(plan->plan);
    moert_relay_destroy(plan->relay);
    plan->plan = NULL;
    plan->relay = NULL;
    if (plan->planner->spare == NULL)
        plan->planner->spare = plan;
    else
        destroy_plan(plan);
}

void moert_exchange_free_planner(moert_planner *planner) {
    if (planner == NULL)
        return;
    moert_event_free(planner->counted);
    moert_staging_destroy(planner->totals);
    moert_buffer_destroy(planner->chunks);
    destroy_plan(planner->spare);
    moert_expert_map_destroy(planner->contiguous);
    MOERT_FREE(planner->lanes, planner->table, planner->mine, planner);
}

/* Index of the first moert_lane's entry in a plan's table. The table begins with the ends of the
 * local slots, and two words for each slot, which choose the random bits of its rows. */
static size_t first_entry(size_t local) {
    return moert_ceil_div(3 * local, ENTRY_WORDS);
}

static size_t entries_of(const moert_plan_sizes *s) {
    return first_entry(s->local) + s->lanes;
}

#define PLAN(X)                                                                                    \
    X(ends, "ends, draws and lanes of plans", entries_of(s) * ENTRY_WORDS * sizeof(uint32_t))      \
    X(destination, "destinations of slots", 2 * s->slots * sizeof(uint32_t))                       \
    X(packed, "slots in packed order", s->packs ? 2 * s->slots * sizeof(uint32_t) : MOERT_NO_BUFFER)
MOERT_BUFFER_TABLE(moert_exchange_plan_buffers, moert_exchange_plan, moert_plan_sizes, PLAN)

static moert_status reserve_entries(moert_planner *planner, size_t entries) {
    if (entries <= planner->entries)
        return MOERT_OK;
    planner->entries = 0;
    MOERT_FREE(planner->lanes, planner->table);
    planner->lanes = NULL;
    planner->table = NULL;
    MOERT_TRY(MOERT_NEW_ARRAY(&planner->table, entries));
    MOERT_TRY(MOERT_NEW_ARRAY(&planner->lanes, entries));
    planner->entries = entries;
    return MOERT_OK;
}

/* The largest number of slots of a rank. */
static size_t most_slots(const moert_expert_map *placement) {
    size_t most = 0;
    for (size_t r = 0; r < placement->ranks; r++)
        most = moert_max(most, moert_expert_map_slots_of(placement, r));
    return most;
}

static moert_status reserve(moert_exchange *exchange, moert_planner *planner) {
    const moert_exchange_slots *choice = &planner->choice;
    const size_t slots = choice->tokens * choice->topk, rows = choice->experts + 1;
    moert_device *device = exchange->device;
    const moert_plan_sizes sizes = {most_slots(choice->placement),
                                    choice->placement->longest * choice->experts, slots,
                                    exchange->engine->packs};
    int narrow;
    MOERT_TRY(moert_to_int(slots, "slots of a plan", &narrow));
    MOERT_TRY(reserve_entries(planner, entries_of(&sizes)));
    if (planner->spare == NULL)
        MOERT_TRY(MOERT_NEW(&planner->spare));
    planner->spare->planner = planner;
    MOERT_TRY(moert_buffer_table_reserve(moert_exchange_plan_buffers, device, &sizes,
                                         planner->spare, false));
    MOERT_TRY(moert_buffer_reserve(device, rows * chunks_of(choice) * sizeof(uint32_t),
                                   &planner->chunks));
    return moert_staging_reserve(device, rows * sizeof(uint32_t), &planner->totals);
}

/* ---- counts ---- */

static moert_plan_args args_of(const moert_exchange_slots *choice) {
    return (moert_plan_args){.tokens = (uint32_t)choice->tokens,
                             .topk = (uint32_t)choice->topk,
                             .experts = (uint32_t)choice->experts,
                             .chunks = (uint32_t)chunks_of(choice)};
}

/* Enqueues the count of the slots, and a copy of the totals to the host. */
static moert_status count(moert_exchange *exchange, moert_planner *planner) {
    const moert_exchange_slots *choice = &planner->choice;
    const size_t experts = choice->experts;
    const moert_plan_args args = args_of(choice);
    const moert_grid grid = {args.chunks, 1, 1}, rows = {experts + 1, 1, 1};
    MOERT_TRY(MOERT_RUN(exchange->device, "exchange/plan", "count_slots", grid,
                        MOERT_ARG(choice->index), MOERT_ARG(planner->chunks), MOERT_STRUCT(args),
                        moert_argument_local((experts + 1) * sizeof(uint32_t))));
    MOERT_TRY(MOERT_RUN(exchange->device, "exchange/plan", "scan_chunks", rows,
                        MOERT_ARG(planner->chunks),
                        MOERT_ARG(moert_staging_buffer(planner->totals)), MOERT_STRUCT(args)));
    MOERT_TRY(moert_staging_copy_to_host(planner->totals, 0, (experts + 1) * sizeof(uint32_t)));
    if (exchange->engine->fetch_verdict != NULL)
        MOERT_TRY(exchange->engine->fetch_verdict(exchange));
    return moert_event_record(exchange->device, &planner->counted);
}

/* Waits for the device's counts, and for its verdict on earlier transfers. */
static moert_status take_counts(moert_exchange *exchange, const moert_planner *planner,
                                int32_t **index) {
    const moert_exchange_slots *choice = &planner->choice;
    const size_t experts = choice->experts, slots = choice->tokens * choice->topk;
    const uint32_t *totals = moert_staging_host(planner->totals);
    uint64_t *counts = planner->mine + HEADER_WORDS;
    MOERT_TRY(moert_event_wait(planner->counted));
    for (size_t e = 0; e < experts; e++)
        counts[e] = totals[e];
    /* the host reads the slots to name a wrong index, or to count rows for relays */
    if (totals[experts] != 0 || exchange->relay_map != NULL) {
        MOERT_TRY(moert_alloc(index, slots, sizeof(int32_t)));
        if (slots > 0)
            MOERT_TRY(moert_buffer_read(choice->index, 0, *index, slots * sizeof(int32_t)));
        MOERT_TRY(moert_plan_count(*index, choice->tokens, choice->topk, experts, counts));
    }
    if (exchange->relay_map != NULL && choice->placement->longest == 1)
        MOERT_TRY(moert_relay_count(exchange->relay_map, *index, choice->tokens, choice->topk,
                                    choice->placement->rank, counts + experts));
    return exchange->engine->check_verdict != NULL ? exchange->engine->check_verdict(exchange)
                                                   : MOERT_OK;
}

/* ---- exchange of counts ---- */

/* Gathers status, tokens and counts of all ranks. All ranks return the same failure. */
static moert_status gather_counts(moert_exchange *exchange, const moert_planner *planner,
                                  moert_status local) {
    moert_comm *comm = exchange->comm;
    const size_t bytes = planner->message_words * sizeof(uint64_t);
    bool failed = false;
    planner->mine[STATUS] = local;
    planner->mine[TOKENS] = planner->choice.tokens;
    planner->mine[TOPK] = planner->choice.topk;
    MOERT_TRY(exchange->engine->gather != NULL
                  ? exchange->engine->gather(exchange, planner->mine, bytes, planner->all)
                  : moert_comm_allgather(comm, planner->mine, bytes, planner->all));
    for (size_t r = 0; r < moert_comm_size(comm); r++)
        failed = failed || planner->all[r * planner->message_words + STATUS] != MOERT_OK;
    return failed ? moert_comm_agree(comm, local) : MOERT_OK;
}

/*
 * An upper bound of the rows of a rank. A token sends a rank at most min(K, experts of that rank)
 * rows. With exact replicas a rank gets the rows of its group's tokens, and for each expert up to
 * placement->cut - 1 rows of other groups' tokens.
 */
static size_t bound_rows(const moert_planner *planner, size_t ranks) {
    const moert_expert_map *placement = planner->choice.placement;
    const size_t groups = placement->groups, held = moert_expert_map_most(placement);
    size_t most = 0, all = 0;
    for (size_t g = 0; g < groups; g++) {
        size_t tokens = 0;
        for (size_t r = g * ranks / groups; r < (g + 1) * ranks / groups; r++)
            tokens += planner->all[r * planner->message_words + TOKENS];
        most = moert_max(most, tokens);
        all += tokens;
    }
    return moert_expert_map_bound(planner->choice.topk, held, all, most, placement->cut);
}

/* Takes from the messages of all ranks the counts, the largest number of slots of a rank, and an
 * upper bound of a rank's rows. */
static moert_status read_counts(const moert_planner *planner, size_t ranks,
                                moert_exchange_plan *made) {
    const size_t experts = planner->choice.experts, topk = planner->choice.topk;
    size_t most = 0;
    for (size_t r = 0; r < ranks; r++) {
        const uint64_t *row = planner->all + r * planner->message_words;
        if (row[TOPK] != planner->all[TOPK])
            return MOERT_FAIL(
                ERROR_MISMATCH,
                "rank %zu plans with %zu experts per token, but rank 0 plans with %zu", r,
                (size_t)row[TOPK], (size_t)planner->all[TOPK]);
        memcpy(planner->counts + r * experts, row + HEADER_WORDS,
               experts * sizeof *planner->counts);
        most = moert_max(most, row[TOKENS]);
    }
    made->capacity_rows = bound_rows(planner, ranks);
    made->largest_slots = most * topk;
    return MOERT_OK;
}

/* ---- rows of the slots ---- */

/* table[first_entry..] of kernels/exchange/plan.cl: the lanes of each expert. */
static void fill_entries(const moert_plan *plan, const moert_lane *lanes,
                         uint32_t (*entry)[ENTRY_WORDS]) {
    for (size_t e = 0; e < plan->experts; e++) {
        const size_t members = plan->placement->chain[e];
        uint64_t before = 0;
        for (size_t member = 0; member < members; member++) {
            const size_t i = member * plan->experts + e;
            entry[i][0] = lanes[i].rank;
            entry[i][1] = (uint32_t)(lanes[i].row - before);
            entry[i][2] = (uint32_t)(lanes[i].position - before);
            before += lanes[i].rows;
            entry[i][3] = member + 1 < members ? (uint32_t)before : UINT32_MAX;
        }
    }
}

/* Writes the table to the device: a short table by kernel arguments, which is faster; a long table
 * by a copy. */
static moert_status write_table(moert_device *device, const uint32_t *words, size_t count,
                                moert_buffer *table) {
    enum { MOST = 11 };
    if (count > (size_t)MOST * WORDS)
        return moert_buffer_write(table, 0, words, count * sizeof *words);
    for (size_t first = 0; first < count; first += WORDS) {
        uint32_t part[WORDS] = {0};
        const size_t length = moert_min(count - first, WORDS);
        memcpy(part, words + first, length * sizeof *words);
        MOERT_TRY(MOERT_RUN(
            device, "exchange/plan", "store_words", ((moert_grid){1, 1, 1}), MOERT_STRUCT(part),
            MOERT_ARG(table),
            MOERT_ARGS(moert_plan_args, .first = (uint32_t)first, .count = (uint32_t)length)));
    }
    return MOERT_OK;
}

/* Fills draws[L,2] of the plan's table (exchange.h). */
static void fill_draws(const moert_plan *plan, uint32_t (*draws)[2]) {
    const moert_expert_map *placement = plan->placement;
    for (size_t s = 0; s < plan->local_experts; s++) {
        const uint32_t expert = moert_expert_map_at(placement, placement->first[plan->rank] + s);
        draws[s][0] = expert * MOERT_STREAMS;
        draws[s][1] = plan->starts[s] - (s > 0 ? plan->ends[s - 1] : 0);
    }
}

static moert_status place_slots(moert_exchange *exchange, const moert_planner *planner,
                                const moert_exchange_plan *made) {
    const moert_exchange_slots *choice = &planner->choice;
    const moert_plan *plan = made->plan;
    const size_t experts = choice->experts, first = first_entry(plan->local_experts);
    const size_t entries = first + plan->placement->longest * experts;
    moert_plan_args args = args_of(choice);
    args.first = (uint32_t)first;
    memcpy(planner->table, plan->ends, plan->local_experts * sizeof *plan->ends);
    fill_draws(plan, (uint32_t(*)[2])(planner->table[0] + plan->local_experts));
    fill_entries(plan, planner->lanes, planner->table + first);
    MOERT_TRY(write_table(exchange->device, planner->table[0], ENTRY_WORDS * entries, made->ends));
    return MOERT_RUN(exchange->device, "exchange/plan", "place_slots",
                     ((moert_grid){args.chunks, 1, 1}), MOERT_ARG(choice->index),
                     MOERT_ARG(planner->chunks), MOERT_ARG(made->ends),
                     MOERT_ARG(made->destination), MOERT_ARG(made->packed), MOERT_STRUCT(args),
                     moert_argument_local((experts + 1) * sizeof(uint32_t)));
}

/* Makes the relays' routes of a plan. With clones the function gathers the numbers of rows first,
 * even if this rank's `status` is a failure, since the gather is collective. */
static moert_status make_relay(moert_exchange *exchange, const moert_planner *planner,
                               moert_status status, moert_exchange_plan *made) {
    const moert_relay_map *map = exchange->relay_map;
    const moert_exchange_slots *choice = &planner->choice;
    const uint64_t *all = planner->all + HEADER_WORDS + choice->experts;
    size_t stride = planner->message_words;
    if (choice->placement->longest > 1) {
        uint64_t *mine = planner->mine + HEADER_WORDS + choice->experts;
        stride = map->nodes;
        all = planner->all;
        if (status == MOERT_OK)
            status = moert_relay_count(map, (const int32_t *)made->plan->slot_rank, choice->tokens,
                                       choice->topk, NULL, mine);
        status = moert_first(status, moert_comm_allgather(exchange->comm, mine,
                                                          stride * sizeof *mine, planner->all));
    }
    MOERT_TRY(status);
    return moert_relay_create(exchange->device, map, made->plan, all, stride, &made->relay);
}

/* Makes the plan from the counts of all ranks. */
static moert_status complete(moert_exchange *exchange, const moert_planner *planner,
                             const int32_t *index, moert_exchange_plan *made) {
    const moert_exchange_slots *choice = &planner->choice;
    const size_t ranks = moert_comm_size(exchange->comm);
    MOERT_TRY(read_counts(planner, ranks, made));
    const moert_plan_shape shape = {.experts = choice->experts,
                                    .ranks = ranks,
                                    .rank = moert_comm_rank(exchange->comm),
                                    .tokens = choice->tokens,
                                    .topk = choice->topk};
    moert_status status = moert_plan_create_placed(&shape, choice->placement, index,
                                                   planner->counts, planner->lanes, &made->plan);
    if (status == MOERT_OK)
        status = place_slots(exchange, planner, made);
    if (exchange->relay_map != NULL)
        status = make_relay(exchange, planner, status, made);
    MOERT_TRY(status);
    made->chunks = 1;
    exchange->capacity_rows = moert_max(exchange->capacity_rows, made->capacity_rows);
    return MOERT_OK;
}

/* Sets the contiguous placement, for a plan whose caller gives none. */
static moert_status place(moert_planner *planner, size_t ranks) {
    const size_t experts = planner->choice.experts;
    if (planner->contiguous != NULL && planner->contiguous->experts != experts) {
        moert_expert_map_destroy(planner->contiguous);
        planner->contiguous = NULL;
    }
    if (planner->contiguous == NULL)
        MOERT_TRY(moert_expert_map_create(experts, ranks, 1, 0, &planner->contiguous));
    planner->choice.placement = planner->contiguous;
    return MOERT_OK;
}

moert_status moert_exchange_begin_plan(moert_exchange *exchange, const moert_exchange_slots *slots,
                                       moert_status local) {
    moert_phase_set(MOERT_PHASE_PLAN);
    if (exchange->planner == NULL)
        MOERT_TRY(MOERT_NEW(&exchange->planner));
    moert_planner *planner = exchange->planner;
    planner->choice = *slots;
    /* Allocate the gather's memory first: without that memory a rank cannot report its failure. */
    const size_t nodes = exchange->relay_map != NULL ? exchange->relay_map->nodes : 0;
    const size_t words = HEADER_WORDS + slots->experts + nodes;
    const size_t ranks = moert_comm_size(exchange->comm);
    planner->message_words = 0;
    if (planner->room < words) {
        planner->room = 0;
        free(planner->mine);
        planner->mine = NULL;
        MOERT_TRY(MOERT_NEW_ARRAY(&planner->mine, (1 + 2 * ranks) * words));
        planner->room = words;
    }
    planner->all = planner->mine + words;
    planner->counts = planner->all + ranks * words;
    planner->message_words = words;
    if (local != MOERT_OK)
        return local;
    if (slots->placement == NULL)
        MOERT_TRY(place(planner, ranks));
    MOERT_TRY(reserve(exchange, planner));
    return count(exchange, planner);
}

moert_status moert_exchange_end_plan(moert_exchange *exchange, moert_status local,
                                     moert_exchange_plan **plan) {
    moert_planner *planner = exchange->planner;
    int32_t *index = NULL;
    moert_status status;
    moert_phase_set(MOERT_PHASE_PLAN);
    if (planner == NULL || planner->message_words == 0)
        return local; /* out of memory */
    if (local == MOERT_OK)
        local = take_counts(exchange, planner, &index);
    moert_event_free(planner->counted);
    planner->counted = NULL;
    MOERT_TRY_OR(release, gather_counts(exchange, planner, local));
    moert_exchange_plan *made = planner->spare;
    planner->spare = NULL;
    status = complete(exchange, planner, index, made);
    if (status == MOERT_OK)
        *plan = made;
    else
        moert_exchange_free_plan(made);
release:
    free(index);
    return status;
}

moert_status moert_exchange_make_plan(moert_exchange *exchange, const moert_exchange_slots *slots,
                                      moert_status local, moert_exchange_plan **plan) {
    local = moert_exchange_begin_plan(exchange, slots, local);
    return moert_exchange_end_plan(exchange, local, plan);
}
