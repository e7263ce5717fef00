/* Plans on the device side: counts of all ranks in one all-gather, which carries each rank's
 * status. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/phase.h"
#include "exchange/internal.h"

/* What a rank tells the others: the header, then counts[E], as words of 64 bits. */
enum { STATUS, TOKENS, TOPK, HEADER_WORDS };

/* The host memory of one make_plan. */
typedef struct moert_draft {
    uint64_t *mine;   /* [HEADER_WORDS + E] */
    uint64_t *all;    /* [ranks, HEADER_WORDS + E] */
    uint64_t *counts; /* [ranks,E] */
    int32_t *index;   /* [T,K] */
    uint32_t *pairs;  /* [T,K,2] */
} moert_draft;

static void free_draft(moert_draft *draft) {
    free(draft->index);
    free(draft->mine);
    free(draft->all);
    free(draft->counts);
    free(draft->pairs);
}

/* What the all-gather needs; without it a rank cannot even tell the others. */
static moert_status allocate_message(moert_draft *draft, size_t experts, size_t ranks) {
    size_t words = HEADER_WORDS + experts;
    MOERT_TRY(moert_alloc(&draft->mine, words, sizeof(uint64_t)));
    MOERT_TRY(moert_alloc(&draft->all, ranks * words, sizeof(uint64_t)));
    return moert_alloc(&draft->counts, ranks * experts, sizeof(uint64_t));
}

void moert_exchange_free_plan(moert_exchange_plan *plan) {
    if (plan == NULL)
        return;
    moert_plan_destroy(plan->plan);
    moert_buffer_destroy(plan->ends);
    moert_buffer_destroy(plan->destination);
    moert_buffer_destroy(plan->packed);
    free(plan);
}

/* All that needs no other rank: the device's memory, the index, its counts. */
static moert_status prepare(moert_exchange *exchange, const moert_buffer *index, size_t tokens,
                            size_t topk, size_t experts, moert_draft *draft,
                            moert_exchange_plan *plan) {
    size_t slots = tokens * topk, first, count;
    moert_device *device = exchange->device;
    moert_plan_experts(experts, moert_comm_size(exchange->comm), moert_comm_rank(exchange->comm),
                       &first, &count);
    MOERT_TRY(moert_device_finish(device));
    MOERT_TRY(moert_alloc(&draft->index, slots, sizeof(int32_t)));
    MOERT_TRY(moert_alloc(&draft->pairs, 2 * slots, sizeof(uint32_t)));
    MOERT_TRY(moert_buffer_create(device, count * sizeof(uint32_t), &plan->ends));
    MOERT_TRY(moert_buffer_create(device, 2 * slots * sizeof(uint32_t), &plan->destination));
    if (exchange->engine->packs)
        MOERT_TRY(moert_buffer_create(device, 2 * slots * sizeof(uint32_t), &plan->packed));
    if (slots > 0)
        MOERT_TRY(moert_buffer_read(index, 0, draft->index, slots * sizeof(int32_t)));
    return moert_plan_count(draft->index, tokens, topk, experts, draft->mine + HEADER_WORDS);
}

/*
 * Reads what all ranks told: the counts, and the bound of rows that any one rank can receive from
 * as many tokens: each token sends it at most min(K, experts there) rows.
 */
static moert_status read_counts(const moert_draft *draft, size_t experts, size_t ranks, size_t topk,
                                size_t *capacity_rows) {
    size_t words = HEADER_WORDS + experts, tokens = 0, first, largest;
    for (size_t r = 0; r < ranks; r++) {
        const uint64_t *row = draft->all + r * words;
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

static moert_status upload_pairs(moert_draft *draft, const moert_plan *plan, const uint32_t *rank,
                                 const uint32_t *row, moert_buffer *buffer) {
    size_t slots = plan->tokens * plan->topk;
    for (size_t s = 0; s < slots; s++) {
        bool dropped = plan->slot_rank[s] == MOERT_PLAN_DROPPED;
        draft->pairs[2 * s] = dropped ? MOERT_PLAN_DROPPED : rank != NULL ? rank[s] : 0;
        draft->pairs[2 * s + 1] = row[s];
    }
    return moert_buffer_write(buffer, 0, draft->pairs, 2 * slots * sizeof *draft->pairs);
}

static moert_status upload(moert_draft *draft, const moert_exchange_plan *made) {
    const moert_plan *plan = made->plan;
    MOERT_TRY(
        moert_buffer_write(made->ends, 0, plan->ends, plan->local_experts * sizeof *plan->ends));
    MOERT_TRY(upload_pairs(draft, plan, plan->slot_rank, plan->slot_row, made->destination));
    if (made->packed != NULL)
        MOERT_TRY(upload_pairs(draft, plan, NULL, plan->slot_position, made->packed));
    return MOERT_OK;
}

/* Tells this rank's status, tokens and counts, and learns the others'. All ranks fail alike. */
static moert_status share_counts(moert_comm *comm, moert_status local, size_t tokens, size_t topk,
                                 size_t experts, const moert_draft *draft) {
    size_t words = HEADER_WORDS + experts;
    bool failed = false;
    draft->mine[STATUS] = local;
    draft->mine[TOKENS] = tokens;
    draft->mine[TOPK] = topk;
    MOERT_TRY(moert_comm_allgather(comm, draft->mine, words * sizeof(uint64_t), draft->all));
    for (size_t r = 0; r < moert_comm_size(comm); r++)
        failed = failed || draft->all[r * words + STATUS] != MOERT_OK;
    return failed ? moert_comm_agree(comm, local) : MOERT_OK;
}

moert_status moert_exchange_make_plan(moert_exchange *exchange, moert_status local,
                                      const moert_buffer *index, size_t tokens, size_t topk,
                                      size_t experts, moert_exchange_plan **plan) {
    size_t ranks = moert_comm_size(exchange->comm), rank = moert_comm_rank(exchange->comm);
    moert_draft draft = {.index = NULL};
    moert_exchange_plan *made = NULL;
    moert_status status;
    moert_phase_set("plan");
    MOERT_TRY_OR(free_all, allocate_message(&draft, experts, ranks));
    MOERT_TRY_OR(free_all, MOERT_NEW(&made));
    if (local == MOERT_OK)
        local = prepare(exchange, index, tokens, topk, experts, &draft, made);
    MOERT_TRY_OR(free_all, share_counts(exchange->comm, local, tokens, topk, experts, &draft));
    MOERT_TRY_OR(free_all, read_counts(&draft, experts, ranks, topk, &made->capacity_rows));
    MOERT_TRY_OR(free_all, moert_plan_create(draft.index, tokens, topk, experts, ranks, rank,
                                             draft.counts, &made->plan));
    MOERT_TRY_OR(free_all, upload(&draft, made));
    exchange->capacity_rows = moert_max(exchange->capacity_rows, made->capacity_rows);
    *plan = made;
    made = NULL;
free_all:
    moert_exchange_free_plan(made);
    free_draft(&draft);
    return status;
}
