/* Plans: the device counts this rank's slots, one all-gather brings the counts of all ranks, which
 * carries each rank's status, and the device places the slots. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/phase.h"
#include "exchange/internal.h"

enum { CHUNK = 32 }; /* tokens, as in kernels/plan.cl */

/* What a rank tells the others: the header, counts[E] and, for engines with rails, its tokens with
 * slots on each node, as words of 64 bits. */
enum { STATUS, TOKENS, TOPK, HEADER_WORDS };

static size_t count_words(const moert_exchange *exchange, size_t experts) {
    return HEADER_WORDS + experts + (exchange->rails != NULL ? exchange->rails->nodes : 0);
}

/* What is planned. */
typedef struct moert_choice {
    const moert_buffer *index; /* int32 [T,K] */
    size_t tokens, topk, experts;
} moert_choice;

/* The host memory of one make_plan. */
typedef struct moert_draft {
    size_t told;      /* words that each rank tells */
    uint64_t *mine;   /* [told] */
    uint64_t *all;    /* [ranks,told] */
    uint64_t *counts; /* [ranks,E] */
    int32_t *index;   /* [T,K], where the host needs it */
    uint32_t *words;  /* [4,E] totals, then lanes */
} moert_draft;

static void free_draft(moert_draft *draft) {
    free(draft->index);
    free(draft->mine);
    free(draft->all);
    free(draft->counts);
    free(draft->words);
}

/* What the all-gather needs; without it a rank cannot even tell the others. */
static moert_status allocate_message(moert_draft *draft, size_t experts, size_t ranks) {
    MOERT_TRY(moert_alloc(&draft->mine, draft->told, sizeof(uint64_t)));
    MOERT_TRY(moert_alloc(&draft->all, ranks * draft->told, sizeof(uint64_t)));
    MOERT_TRY(moert_alloc(&draft->words, 4 * (experts + 1), sizeof(uint32_t)));
    return moert_alloc(&draft->counts, ranks * experts, sizeof(uint64_t));
}

void moert_exchange_free_plan(moert_exchange_plan *plan) {
    if (plan == NULL)
        return;
    moert_plan_destroy(plan->plan);
    moert_buffer_destroy(plan->ends);
    moert_buffer_destroy(plan->destination);
    moert_buffer_destroy(plan->packed);
    moert_relay_destroy(plan->relay);
    free(plan);
}

static size_t chunks_of(const moert_choice *choice) {
    return moert_ceil_div(choice->tokens, CHUNK);
}

static moert_status reserve(moert_exchange *exchange, const moert_choice *choice, size_t local,
                            moert_exchange_plan *plan) {
    const size_t slots = choice->tokens * choice->topk, rows = choice->experts + 1;
    moert_device *device = exchange->device;
    int narrow;
    MOERT_TRY(moert_to_int(slots, "slots of a plan", &narrow));
    MOERT_TRY(moert_buffer_create(device, local * sizeof(uint32_t), &plan->ends));
    MOERT_TRY(moert_buffer_create(device, 2 * slots * sizeof(uint32_t), &plan->destination));
    if (exchange->engine->packs)
        MOERT_TRY(moert_buffer_create(device, 2 * slots * sizeof(uint32_t), &plan->packed));
    MOERT_TRY(moert_buffer_reserve(device, rows * chunks_of(choice) * sizeof(uint32_t),
                                   &exchange->counts));
    return moert_buffer_reserve(device, 4 * rows * sizeof(uint32_t), &exchange->words);
}

/* The device's counts, and whether an index is wrong, which the host then finds. */
static moert_status count(moert_exchange *exchange, const moert_choice *choice,
                          moert_draft *draft) {
    const size_t experts = choice->experts, chunks = chunks_of(choice);
    const size_t slots = choice->tokens * choice->topk;
    const moert_grid grid = {chunks, 1, 1}, rows = {experts + 1, 1, 1};
    MOERT_TRY(MOERT_RUN(exchange->device, "plan", "count_slots", grid, MOERT_ARG(choice->index),
                        MOERT_ARG((unsigned)choice->tokens), MOERT_ARG((unsigned)choice->topk),
                        MOERT_ARG((unsigned)experts), MOERT_ARG((unsigned)chunks),
                        MOERT_ARG(exchange->counts),
                        moert_argument_local((experts + 1) * sizeof(uint32_t))));
    MOERT_TRY(MOERT_RUN(exchange->device, "plan", "scan_chunks", rows, MOERT_ARG(exchange->counts),
                        MOERT_ARG((unsigned)chunks), MOERT_ARG(exchange->words)));
    MOERT_TRY(
        moert_buffer_read(exchange->words, 0, draft->words, (experts + 1) * sizeof *draft->words));
    for (size_t e = 0; e < experts; e++)
        draft->mine[HEADER_WORDS + e] = draft->words[e];
    if (draft->words[experts] == 0 && exchange->rails == NULL)
        return MOERT_OK;
    MOERT_TRY(moert_alloc(&draft->index, slots, sizeof(int32_t)));
    if (slots > 0)
        MOERT_TRY(moert_buffer_read(choice->index, 0, draft->index, slots * sizeof(int32_t)));
    MOERT_TRY(moert_plan_count(draft->index, choice->tokens, choice->topk, experts,
                               draft->mine + HEADER_WORDS));
    if (exchange->rails == NULL)
        return MOERT_OK;
    return moert_relay_count(exchange->rails, draft->index, choice->tokens, choice->topk, experts,
                             draft->mine + HEADER_WORDS + experts);
}

/* All that needs no other rank. */
static moert_status prepare(moert_exchange *exchange, const moert_choice *choice,
                            moert_draft *draft, moert_exchange_plan *plan) {
    size_t first, local;
    moert_plan_experts(choice->experts, moert_comm_size(exchange->comm),
                       moert_comm_rank(exchange->comm), &first, &local);
    MOERT_TRY(reserve(exchange, choice, local, plan));
    return count(exchange, choice, draft);
}

/*
 * Reads what all ranks told: the counts, and the bound of rows that any one rank can receive from
 * as many tokens: each token sends it at most min(K, experts there) rows.
 */
static moert_status read_counts(const moert_draft *draft, size_t experts, size_t ranks, size_t topk,
                                size_t *capacity_rows) {
    size_t tokens = 0, first, largest;
    for (size_t r = 0; r < ranks; r++) {
        const uint64_t *row = draft->all + r * draft->told;
        if (row[TOPK] != draft->all[TOPK])
            return MOERT_FAIL(ERROR_MISMATCH,
                              "rank %zu plans with %zu experts per token, rank 0 "
                              "with %zu",
                              r, (size_t)row[TOPK], (size_t)draft->all[TOPK]);
        memcpy(draft->counts + r * experts, row + HEADER_WORDS, experts * sizeof *draft->counts);
        tokens += row[TOKENS];
    }
    moert_plan_experts(experts, ranks, 0, &first, &largest);
    *capacity_rows = tokens * moert_min(topk, largest);
    return MOERT_OK;
}

/* lane[E] of kernels/plan.cl: where this rank's first slot of each expert goes. */
static void find_lanes(const moert_plan *plan, uint32_t (*lane)[4]) {
    uint64_t position = 0;
    for (size_t owner = 0; owner < plan->ranks; owner++) {
        size_t first, count;
        uint64_t rows = 0;
        moert_plan_experts(plan->experts, plan->ranks, owner, &first, &count);
        for (size_t e = first; e < first + count; e++) {
            uint64_t row = rows;
            for (size_t r = 0; r < plan->rank; r++)
                row += plan->counts[r * plan->experts + e];
            lane[e][0] = (uint32_t)owner;
            lane[e][1] = (uint32_t)row;
            lane[e][2] = (uint32_t)position;
            lane[e][3] = 0;
            rows += plan->expert_counts[e];
            position += plan->counts[plan->rank * plan->experts + e];
        }
    }
}

static moert_status place(moert_exchange *exchange, const moert_choice *choice, moert_draft *draft,
                          const moert_exchange_plan *made) {
    const moert_plan *plan = made->plan;
    const size_t experts = choice->experts, chunks = chunks_of(choice);
    find_lanes(plan, (uint32_t(*)[4])draft->words);
    MOERT_TRY(
        moert_buffer_write(made->ends, 0, plan->ends, plan->local_experts * sizeof *plan->ends));
    MOERT_TRY(
        moert_buffer_write(exchange->words, 0, draft->words, 4 * experts * sizeof *draft->words));
    return MOERT_RUN(exchange->device, "plan", "place_slots", ((moert_grid){chunks, 1, 1}),
                     MOERT_ARG(choice->index), MOERT_ARG((unsigned)choice->tokens),
                     MOERT_ARG((unsigned)choice->topk), MOERT_ARG((unsigned)experts),
                     MOERT_ARG((unsigned)chunks), MOERT_ARG(exchange->counts),
                     MOERT_ARG(exchange->words), MOERT_ARG(made->destination),
                     MOERT_ARG(made->packed),
                     moert_argument_local((experts + 1) * sizeof(uint32_t)));
}

/* Tells this rank's status, tokens and counts, and learns the others'. All ranks fail alike. */
static moert_status share_counts(moert_comm *comm, moert_status local, size_t tokens, size_t topk,
                                 const moert_draft *draft) {
    bool failed = false;
    draft->mine[STATUS] = local;
    draft->mine[TOKENS] = tokens;
    draft->mine[TOPK] = topk;
    MOERT_TRY(moert_comm_allgather(comm, draft->mine, draft->told * sizeof(uint64_t), draft->all));
    for (size_t r = 0; r < moert_comm_size(comm); r++)
        failed = failed || draft->all[r * draft->told + STATUS] != MOERT_OK;
    return failed ? moert_comm_agree(comm, local) : MOERT_OK;
}

moert_status moert_exchange_make_plan(moert_exchange *exchange, moert_status local,
                                      const moert_buffer *index, size_t tokens, size_t topk,
                                      size_t experts, moert_exchange_plan **plan) {
    size_t ranks = moert_comm_size(exchange->comm), rank = moert_comm_rank(exchange->comm);
    const moert_choice choice = {index, tokens, topk, experts};
    moert_draft draft = {.told = count_words(exchange, experts)};
    moert_exchange_plan *made = NULL;
    moert_status status;
    moert_phase_set("plan");
    MOERT_TRY_OR(free_all, allocate_message(&draft, experts, ranks));
    MOERT_TRY_OR(free_all, MOERT_NEW(&made));
    if (local == MOERT_OK)
        local = prepare(exchange, &choice, &draft, made);
    if (local == MOERT_OK)
        local = moert_exchange_check(exchange);
    MOERT_TRY_OR(free_all, share_counts(exchange->comm, local, tokens, topk, &draft));
    MOERT_TRY_OR(free_all, read_counts(&draft, experts, ranks, topk, &made->capacity_rows));
    MOERT_TRY_OR(free_all, moert_plan_create(draft.index, tokens, topk, experts, ranks, rank,
                                             draft.counts, &made->plan));
    MOERT_TRY_OR(free_all, place(exchange, &choice, &draft, made));
    if (exchange->rails != NULL)
        MOERT_TRY_OR(free_all, moert_relay_create(exchange->device, exchange->rails, made->plan,
                                                  draft.all + HEADER_WORDS + experts, draft.told,
                                                  &made->relay));
    made->waves = 1;
    exchange->capacity_rows = moert_max(exchange->capacity_rows, made->capacity_rows);
    *plan = made;
    made = NULL;
free_all:
    moert_exchange_free_plan(made);
    free_draft(&draft);
    return status;
}
