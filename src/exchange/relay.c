/* Routes between nodes: see relay.h. No messages here. */
#include "exchange/relay.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* ---- nodes ---- */

/* place[], and the sizes of the nodes. */
static void number_ranks(moert_rails *rails, size_t *sizes) {
    for (size_t r = 0; r < rails->ranks; r++)
        rails->place[r] = sizes[rails->node_of[r]]++;
}

/* The rank of a node at some place. */
static size_t rank_at(const moert_rails *rails, size_t node, size_t place) {
    size_t r = 0;
    while (rails->node_of[r] != node || rails->place[r] != place)
        r++;
    return r;
}

moert_status moert_rails_create(const moert_comm *comm, moert_rails **rails) {
    const size_t me = moert_comm_rank(comm);
    moert_rails *made = NULL;
    size_t *sizes = NULL;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    made->ranks = moert_comm_size(comm);
    made->nodes = moert_comm_node_count(comm);
    made->node = moert_comm_node(comm, me);
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&sizes, made->nodes));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->node_of, made->ranks));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->place, made->ranks));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->relay, made->nodes));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->serves, made->ranks));
    for (size_t r = 0; r < made->ranks; r++)
        made->node_of[r] = moert_comm_node(comm, r);
    number_ranks(made, sizes);
    made->here = sizes[made->node];
    for (size_t n = 0; n < made->nodes; n++)
        made->relay[n] = n == made->node ? me : rank_at(made, n, made->place[me] % sizes[n]);
    for (size_t r = 0; r < made->ranks; r++)
        made->serves[r] =
            made->node_of[r] != made->node && made->place[r] % made->here == made->place[me];
    *rails = made;
    free(sizes);
    return MOERT_OK;
fail:
    moert_rails_destroy(made);
    free(sizes);
    return status;
}

void moert_rails_destroy(moert_rails *rails) {
    if (rails == NULL)
        return;
    free(rails->node_of);
    free(rails->place);
    free(rails->relay);
    free(rails->serves);
    free(rails);
}

moert_status moert_relay_count(const moert_rails *rails, const int32_t *index, size_t tokens,
                               size_t topk, size_t experts, uint64_t *rows) {
    size_t *last; /* [nodes] 1 + the last token that has been counted */
    MOERT_TRY(MOERT_NEW_ARRAY(&last, rails->nodes));
    memset(rows, 0, rails->nodes * sizeof *rows);
    for (size_t s = 0; s < tokens * topk; s++) {
        if (index[s] < 0)
            continue;
        const size_t owner = moert_plan_owner(experts, rails->ranks, (size_t)index[s]);
        const size_t node = rails->node_of[owner], token = s / topk;
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

/* Copies them to the device. */
static moert_status show_pairs(moert_device *device, moert_pairs *pairs) {
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

/* What goes to another node: where its next row and slot lie among what this rank sends. */
typedef struct lane {
    size_t row, slot;       /* next */
    size_t token, last_row; /* 1 + the token whose row was last, and its place */
} lane;

/* Slots of rank r for the experts of this rank's node. */
static size_t slots_for_node(const moert_rails *rails, const moert_plan *plan, size_t r) {
    size_t slots = 0;
    for (size_t e = 0; e < plan->experts; e++)
        if (rails->node_of[moert_plan_owner(plan->experts, plan->ranks, e)] == rails->node)
            slots += plan->counts[r * plan->experts + e];
    return slots;
}

/* How much travels between which ranks, and where each lane begins. */
static void size_up(const moert_rails *rails, const moert_plan *plan, const uint64_t *told,
                    size_t stride, lane *lanes, moert_relay *relay) {
    for (size_t r = 0; r < plan->ranks; r++) {
        const size_t node = rails->node_of[r];
        relay->send_slots[rails->relay[node]] += node != rails->node ? plan->send_rows[r] : 0;
        relay->slots_here += node == rails->node ? plan->send_rows[r] : 0;
        if (node != rails->node && rails->relay[node] == r)
            relay->send_rows[r] = told[plan->rank * stride + node];
        if (rails->serves[r]) {
            relay->receive_rows[r] = told[r * stride + rails->node];
            relay->receive_slots[r] = slots_for_node(rails, plan, r);
        }
        relay->rows_in += relay->receive_rows[r];
        relay->slots_in += relay->receive_slots[r];
    }
    for (size_t r = 0; r < plan->ranks; r++) {
        if (relay->send_rows[r] > 0)
            lanes[rails->node_of[r]] = (lane){.row = relay->rows_out, .slot = relay->slots_out};
        relay->rows_out += relay->send_rows[r];
        relay->slots_out += relay->send_slots[r];
    }
}

/* Gives a slot of another node its place: with the row of its token, the first there or not. */
static void route_away(lane *to, size_t slot, size_t topk, size_t place, size_t row, size_t here,
                       moert_relay *relay) {
    const size_t token = slot / topk;
    if (to->token != token + 1) {
        to->token = token + 1;
        to->last_row = to->row++;
        set_pair(&relay->source, to->last_row, 0, token);
        set_pair(&relay->sums, slot, here, to->last_row);
    }
    set_pair(&relay->outgoing, to->last_row * topk + slot % topk, place, row);
    set_pair(&relay->back, slot, here, to->slot++);
}

static void route(const moert_rails *rails, const moert_plan *plan, lane *lanes,
                  moert_relay *relay) {
    for (size_t s = 0; s < plan->tokens * plan->topk; s++) {
        const size_t rank = plan->slot_rank[s], row = plan->slot_row[s];
        if (rank == MOERT_PLAN_DROPPED)
            continue;
        const size_t node = rails->node_of[rank], place = rails->place[rank];
        if (node != rails->node) {
            route_away(&lanes[node], s, plan->topk, place, row, rails->here, relay);
            continue;
        }
        set_pair(&relay->near, s, place, row);
        set_pair(&relay->back, s, place, row);
        set_pair(&relay->sums, s, place, row);
    }
}

static moert_status allocate(const moert_plan *plan, moert_relay *relay) {
    const size_t slots = plan->tokens * plan->topk;
    MOERT_TRY(make_pairs(relay->rows_out, &relay->source));
    MOERT_TRY(make_pairs(relay->rows_out * plan->topk, &relay->outgoing));
    MOERT_TRY(make_pairs(relay->rows_in * plan->topk, &relay->incoming));
    MOERT_TRY(make_pairs(relay->slots_in, &relay->results));
    MOERT_TRY(make_pairs(slots, &relay->near));
    MOERT_TRY(make_pairs(slots, &relay->back));
    return make_pairs(slots, &relay->sums);
}

static moert_status allocate_sizes(const moert_rails *rails, moert_relay *relay, lane **lanes) {
    MOERT_TRY(MOERT_NEW_ARRAY(lanes, rails->nodes));
    MOERT_TRY(MOERT_NEW_ARRAY(&relay->send_rows, rails->ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&relay->receive_rows, rails->ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&relay->send_slots, rails->ranks));
    return MOERT_NEW_ARRAY(&relay->receive_slots, rails->ranks);
}

static moert_status show(moert_device *device, const moert_plan *plan, moert_relay *relay) {
    MOERT_TRY(show_pairs(device, &relay->source));
    MOERT_TRY(show_pairs(device, &relay->near));
    MOERT_TRY(show_pairs(device, &relay->back));
    MOERT_TRY(show_pairs(device, &relay->sums));
    relay->direct_slots = (moert_plan){
        .tokens = plan->tokens, .topk = plan->topk, .ranks = 1, .send_rows = &relay->slots_here};
    relay->direct =
        (moert_exchange_plan){.plan = &relay->direct_slots, .destination = relay->near.buffer};
    relay->relayed_slots = (moert_plan){
        .tokens = relay->rows_in, .topk = plan->topk, .ranks = 1, .send_rows = &relay->slots_in};
    return MOERT_OK;
}

moert_status moert_relay_create(moert_device *device, const moert_rails *rails,
                                const moert_plan *plan, const uint64_t *told, size_t stride,
                                moert_relay **relay) {
    moert_relay *made = NULL;
    lane *lanes = NULL;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    MOERT_TRY_OR(fail, allocate_sizes(rails, made, &lanes));
    size_up(rails, plan, told, stride, lanes, made);
    MOERT_TRY_OR(fail, allocate(plan, made));
    route(rails, plan, lanes, made);
    MOERT_TRY_OR(fail, show(device, plan, made));
    *relay = made;
    made = NULL;
fail:
    moert_relay_destroy(made);
    free(lanes);
    return status;
}

moert_status moert_relay_learn(moert_device *device, moert_relay *relay) {
    size_t results = 0;
    for (size_t s = 0; s < relay->incoming.count; s++) {
        const uint32_t *to = relay->incoming.data[s];
        if (to[0] != MOERT_PLAN_DROPPED && results < relay->slots_in)
            set_pair(&relay->results, results++, to[0], to[1]);
    }
    if (results != relay->slots_in)
        return MOERT_FAIL(ERROR_INTERNAL, "rows for %zu slots have come, counts told of %zu",
                          results, relay->slots_in);
    MOERT_TRY(show_pairs(device, &relay->incoming));
    MOERT_TRY(show_pairs(device, &relay->results));
    relay->relayed =
        (moert_exchange_plan){.plan = &relay->relayed_slots, .destination = relay->incoming.buffer};
    return MOERT_OK;
}

void moert_relay_destroy(moert_relay *relay) {
    if (relay == NULL)
        return;
    moert_pairs *const tables[] = {&relay->source, &relay->outgoing, &relay->near,   &relay->back,
                                   &relay->sums,   &relay->incoming, &relay->results};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        free_pairs(tables[i]);
    free(relay->send_rows);
    free(relay->receive_rows);
    free(relay->send_slots);
    free(relay->receive_slots);
    free(relay);
}
