/* Computes the routes between nodes (see relay.h). This file sends no messages. */
#include "exchange/node/relay.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/buffer.h"
#include "plan/expert_map.h"

/* ---- nodes ---- */

/* The rank that has number `local_rank` on a node. */
static size_t rank_at(const moert_relay_map *relay_map, size_t node, size_t local_rank) {
    size_t r = 0;
    while (relay_map->node_of[r] != node || relay_map->local_rank[r] != local_rank)
        r++;
    return r;
}

moert_status moert_relay_map_create(const moert_comm *comm, bool presum,
                                    moert_relay_map **relay_map) {
    const size_t me = moert_comm_rank(comm);
    moert_relay_map *made = NULL;
    size_t *sizes = NULL;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    made->ranks = moert_comm_size(comm);
    made->nodes = moert_comm_node_count(comm);
    made->node = moert_comm_node(comm, me);
    made->presum = presum;
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&sizes, made->nodes));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->node_of, made->ranks));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->local_rank, made->ranks));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->relay, made->nodes));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->serves, made->ranks));
    for (size_t r = 0; r < made->ranks; r++) {
        made->node_of[r] = moert_comm_node(comm, r);
        made->local_rank[r] = sizes[made->node_of[r]]++;
    }
    made->local_ranks = sizes[made->node];
    for (size_t n = 0; n < made->nodes; n++)
        made->relay[n] = n == made->node ? me : rank_at(made, n, made->local_rank[me] % sizes[n]);
    for (size_t r = 0; r < made->ranks; r++)
        made->serves[r] = made->node_of[r] != made->node &&
                          made->local_rank[r] % made->local_ranks == made->local_rank[me];
    *relay_map = made;
    free(sizes);
    return MOERT_OK;
fail:
    moert_relay_map_destroy(made);
    free(sizes);
    return status;
}

void moert_relay_map_destroy(moert_relay_map *relay_map) {
    if (relay_map == NULL)
        return;
    MOERT_FREE(relay_map->node_of, relay_map->local_rank, relay_map->relay, relay_map->serves,
               relay_map);
}

moert_status moert_relay_count(const moert_relay_map *relay_map, const int32_t *index,
                               size_t tokens, size_t topk, const uint32_t *owner, uint64_t *rows) {
    size_t *last; /* [nodes] 1 + the last token that has been counted */
    MOERT_TRY(MOERT_NEW_ARRAY(&last, relay_map->nodes));
    memset(rows, 0, relay_map->nodes * sizeof *rows);
    for (size_t s = 0; s < tokens * topk; s++) {
        if (index[s] < 0)
            continue;
        const size_t rank = owner != NULL ? owner[index[s]] : (size_t)index[s];
        const size_t node = relay_map->node_of[rank], token = s / topk;
        rows[node] += last[node] != token + 1;
        last[node] = token + 1;
    }
    free(last);
    return MOERT_OK;
}

/* ---- pairs ---- */

static moert_status make_pairs(size_t count, moert_pairs *pairs) {
    pairs->count = count;
    MOERT_TRY(MOERT_NEW_ARRAY(&pairs->data, count));
    memset(pairs->data, 0xff, count * sizeof *pairs->data);
    return MOERT_OK;
}

/* Copies the pairs to the device. */
static moert_status upload_pairs(moert_device *device, moert_pairs *pairs) {
    const size_t bytes = pairs->count * sizeof *pairs->data;
    MOERT_TRY(moert_buffer_reserve(device, bytes, &pairs->buffer));
    return moert_buffer_write(pairs->buffer, 0, pairs->data, bytes);
}

static void free_pairs(moert_pairs *pairs) {
    moert_buffer_destroy(pairs->buffer);
    free(pairs->data);
}

static void set_pair(moert_pairs *pairs, size_t at, size_t rank, size_t row) {
    pairs->data[at][0] = (uint32_t)rank;
    pairs->data[at][1] = (uint32_t)row;
}

/* ---- the routes of a plan ---- */

/* A bit of the local rank in `outgoing`: the slot belongs to the same sum as the token's previous
 * slot on that node. */
#define JOINS 0x80000000u

/* The state of the rows to another node while route() walks the slots. */
typedef struct cursor {
    size_t row;             /* index of the next row among rows_out */
    size_t first_sum, sums; /* index of the first sum among sums.rows_in, and the number of sums so
                               far */
    size_t token, last_row; /* 1 + the token of the last row, and the index of that row */
} cursor;

/* The number of rows that a rank's tokens have on this node. */
static size_t rows_on_node(const moert_relay_map *relay_map, const moert_plan *plan, size_t rank) {
    const uint32_t *first = plan->placement->first;
    size_t rows = 0;
    for (size_t r = 0; r < plan->ranks; r++)
        for (uint32_t s = first[r]; relay_map->node_of[r] == relay_map->node && s < first[r + 1];
             s++)
            rows += moert_plan_slot_rows(plan, rank, s);
    return rows;
}

/* Counts the rows between ranks, and sets the first row of each cursor. */
static void count_rows(const moert_relay_map *relay_map, const moert_plan *plan,
                       const uint64_t *node_rows, size_t stride, cursor *cursors,
                       moert_relay *relay) {
    for (size_t r = 0; r < plan->ranks; r++) {
        const size_t node = relay_map->node_of[r];
        if (node == relay_map->node)
            relay->slots_here += plan->send_rows[r];
        if (node != relay_map->node && relay_map->relay[node] == r)
            relay->send_rows[r] = node_rows[plan->rank * stride + node];
        if (relay_map->serves[r]) {
            relay->receive_rows[r] = node_rows[r * stride + relay_map->node];
            relay->slots_relayed += rows_on_node(relay_map, plan, r);
        }
        relay->rows_in += relay->receive_rows[r];
    }
    for (size_t r = 0; r < plan->ranks; r++) {
        if (relay->send_rows[r] > 0)
            cursors[relay_map->node_of[r]] = (cursor){.row = relay->rows_out};
        relay->rows_out += relay->send_rows[r];
    }
}

/* Routes a slot on another node. The token's first slot on the other node adds a row; the token's
 * later slots on that node share this row. */
static void route_to_node(const moert_relay_map *relay_map, const moert_plan *plan, size_t slot,
                          bool joins, cursor *to, moert_relay *relay) {
    const size_t local_ranks = relay_map->local_ranks;
    const uint32_t local_rank = (uint32_t)relay_map->local_rank[plan->slot_rank[slot]];
    const size_t token = slot / plan->topk, row = plan->slot_row[slot];
    if (to->token != token + 1) {
        to->token = token + 1;
        to->last_row = to->row++;
        set_pair(&relay->source, to->last_row, 0, token);
        joins = false;
    }
    set_pair(&relay->outgoing, to->last_row * plan->topk + slot % plan->topk,
             joins ? local_rank | JOINS : local_rank, row);
    set_pair(&relay->each, slot, local_ranks, plan->slot_position[slot]);
    if (!joins)
        set_pair(&relay->sums.to, slot, local_ranks, to->sums++);
}

/* `head` in route(): the node of all slots of the token so far; NO_HEAD once they are on several
 * nodes. */
enum { NO_SLOT = -1, NO_HEAD = -2 };

static void route(const moert_relay_map *relay_map, const moert_plan *plan, cursor *cursors,
                  moert_relay *relay) {
    int64_t head = NO_SLOT;
    for (size_t s = 0; s < plan->tokens * plan->topk; s++) {
        const size_t rank = plan->slot_rank[s], row = plan->slot_row[s];
        if (s % plan->topk == 0)
            head = NO_SLOT;
        if (rank == MOERT_PLAN_DROPPED)
            continue;
        const size_t node = relay_map->node_of[rank], local_rank = relay_map->local_rank[rank];
        head = head == NO_SLOT || head == (int64_t)node ? (int64_t)node : NO_HEAD;
        if (node != relay_map->node) {
            route_to_node(relay_map, plan, s, relay_map->presum || head == (int64_t)node,
                          &cursors[node], relay);
            continue;
        }
        set_pair(&relay->near, s, local_rank, row);
        set_pair(&relay->each, s, local_rank, row);
        set_pair(&relay->sums.to, s, local_rank, row);
    }
}

/* Numbers the sums among sums.rows_in, sorted by relay. */
static void number_sums(const moert_relay_map *relay_map, const moert_plan *plan, cursor *cursors,
                        moert_relay *relay) {
    for (size_t r = 0; r < plan->ranks; r++) {
        cursor *from = &cursors[relay_map->node_of[r]];
        if (relay->send_rows[r] == 0)
            continue;
        from->first_sum = relay->sums.rows_in;
        relay->sums.receive[r] = from->sums;
        relay->sums.rows_in += from->sums;
    }
    for (size_t s = 0; s < relay->sums.to.count; s++)
        if (relay->sums.to.data[s][0] == relay_map->local_ranks)
            relay->sums.to.data[s][1] +=
                (uint32_t)cursors[relay_map->node_of[plan->slot_rank[s]]].first_sum;
}

static moert_status make_tables(const moert_plan *plan, moert_relay *relay) {
    const size_t slots = plan->tokens * plan->topk;
    MOERT_TRY(make_pairs(relay->rows_out, &relay->source));
    MOERT_TRY(make_pairs(slots, &relay->near));
    MOERT_TRY(make_pairs(relay->rows_out * plan->topk, &relay->outgoing));
    MOERT_TRY(make_pairs(relay->rows_in * plan->topk, &relay->incoming));
    MOERT_TRY(make_pairs(slots, &relay->each));
    return make_pairs(slots, &relay->sums.to);
}

moert_status moert_relay_create(moert_device *device, const moert_relay_map *relay_map,
                                const moert_plan *plan, const uint64_t *node_rows, size_t stride,
                                moert_relay **relay) {
    moert_relay *made = NULL;
    cursor *cursors = NULL;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&cursors, relay_map->nodes));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->send_rows, relay_map->ranks));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->receive_rows, relay_map->ranks));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->sums.send, relay_map->ranks));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->sums.receive, relay_map->ranks));
    count_rows(relay_map, plan, node_rows, stride, cursors, made);
    MOERT_TRY_OR(fail, make_tables(plan, made));
    route(relay_map, plan, cursors, made);
    number_sums(relay_map, plan, cursors, made);
    moert_pairs *const uploaded[] = {&made->source, &made->near, &made->each, &made->sums.to};
    for (size_t i = 0; i < MOERT_COUNT(uploaded); i++)
        MOERT_TRY_OR(fail, upload_pairs(device, uploaded[i]));
    made->direct_slots = made->relayed_slots = (moert_plan){.topk = plan->topk, .ranks = 1};
    made->direct_slots.tokens = plan->tokens;
    made->direct_slots.send_rows = &made->slots_here;
    made->relayed_slots.tokens = made->rows_in;
    made->relayed_slots.send_rows = &made->slots_relayed;
    made->direct =
        (moert_exchange_plan){.plan = &made->direct_slots, .destination = made->near.buffer};
    *relay = made;
    made = NULL;
fail:
    moert_relay_destroy(made);
    free(cursors);
    return status;
}

/* Finds the slots of each sum from the JOINS bits of `incoming`, and clears these bits. */
static void find_sums(moert_relay *relay, size_t ranks) {
    const size_t topk = relay->relayed_slots.topk;
    size_t row = 0, sums = 0;
    for (size_t r = 0; r < ranks; r++) {
        const size_t before = sums;
        for (const size_t end = row + relay->receive_rows[r]; row < end; row++)
            for (size_t k = 0; k < topk; k++) {
                const uint32_t *slot = relay->incoming.data[row * topk + k];
                if (slot[0] == MOERT_PLAN_DROPPED)
                    continue;
                const uint32_t local_rank = slot[0] & ~JOINS;
                sums += (slot[0] & JOINS) == 0;
                set_pair(&relay->sums.from, (sums - 1) * topk + k, local_rank, slot[1]);
                set_pair(&relay->incoming, row * topk + k, local_rank, slot[1]);
            }
        relay->sums.send[r] = sums - before;
    }
}

moert_status moert_relay_complete(moert_device *device, size_t ranks, moert_relay *relay) {
    const size_t topk = relay->relayed_slots.topk;
    size_t results = 0, sums = 0;
    for (size_t s = 0; s < relay->incoming.count; s++) {
        results += relay->incoming.data[s][0] != MOERT_PLAN_DROPPED;
        sums += (relay->incoming.data[s][0] & JOINS) == 0;
    }
    relay->sums.rows_out = sums;
    if (results != relay->slots_relayed)
        return MOERT_FAIL(ERROR_INTERNAL,
                          "rows for %zu slots have arrived, but the counts announced %zu slots",
                          results, relay->slots_relayed);
    free(relay->sums.from.data);
    relay->sums.from.data = NULL;
    MOERT_TRY(make_pairs(relay->sums.rows_out * topk, &relay->sums.from));
    find_sums(relay, ranks);
    MOERT_TRY(upload_pairs(device, &relay->incoming));
    MOERT_TRY(upload_pairs(device, &relay->sums.from));
    relay->summed_slots = (moert_plan){.tokens = relay->sums.rows_out, .topk = topk};
    relay->relayed =
        (moert_exchange_plan){.plan = &relay->relayed_slots, .destination = relay->incoming.buffer};
    relay->summed =
        (moert_exchange_plan){.plan = &relay->summed_slots, .destination = relay->sums.from.buffer};
    return MOERT_OK;
}

void moert_relay_destroy(moert_relay *relay) {
    if (relay == NULL)
        return;
    free_pairs(&relay->source);
    free_pairs(&relay->near);
    free_pairs(&relay->outgoing);
    free_pairs(&relay->incoming);
    free_pairs(&relay->each);
    free_pairs(&relay->sums.from);
    free_pairs(&relay->sums.to);
    MOERT_FREE(relay->sums.send, relay->sums.receive, relay->send_rows, relay->receive_rows, relay);
}
