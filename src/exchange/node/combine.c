/*
 * The combine of the node engine. Results from other nodes arrive in one of two ways. Single
 * results are sent by the experts' owners directly from their windows, in messages between all
 * pairs of ranks. Sums are sent by relays, which read the windows of their node: fewer bytes, but
 * one more kernel and one more barrier inside the node. The token's rank then sums all its slots by
 * one kernel. In that kernel's table the received rows are the window of one more rank.
 */
#include <stdlib.h>

#include "base/memory.h"
#include "device/buffer.h"
#include "exchange/node/node.h"

/* Posts single results: sends rows of this rank's window to the ranks of other nodes, and receives
 * results from their windows. Each rank begins with a different peer. */
static moert_status post_results(moert_exchange *exchange, const moert_plan *plan, int tag,
                                 const moert_window *window, const moert_node_message *message) {
    const moert_node *node = exchange->state;
    const moert_relay_map *relay_map = exchange->relay_map;
    const size_t row_bytes = window->width * sizeof(float);
    const size_t stride_bytes = window->stride * sizeof(float);
    const moert_mail_rows from = {window->storage.host, row_bytes, stride_bytes};
    const moert_mail_rows to = {moert_staging_host(message->in), row_bytes, stride_bytes};
    for (size_t k = 1; k < relay_map->ranks; k++) {
        const size_t next = (plan->rank + k) % relay_map->ranks;
        const size_t last = (plan->rank + relay_map->ranks - k) % relay_map->ranks;
        if (relay_map->node_of[last] != relay_map->node)
            MOERT_TRY(moert_mail_post(node->mail, (moert_mail_address){false, last, tag, 0}, &to,
                                      &node->routes.packed[last], 1));
        if (relay_map->node_of[next] != relay_map->node)
            MOERT_TRY(moert_mail_post(node->mail, (moert_mail_address){true, next, tag, 0}, &from,
                                      &node->routes.window[next * plan->local_experts],
                                      plan->local_experts));
    }
    return MOERT_OK;
}

/* Makes the table of addresses: the windows of this node, then the received rows. */
static moert_status make_address_table(const moert_exchange *exchange, const moert_window *window,
                                       moert_node_message *message) {
    const size_t bytes = exchange->relay_map->local_ranks * sizeof(uint64_t);
    const uint64_t arrived = (uintptr_t)moert_staging_host(message->in);
    MOERT_TRY(moert_buffer_reserve(exchange->device, bytes + sizeof arrived, &message->addresses));
    MOERT_TRY(moert_buffer_copy(window->storage.addresses, 0, message->addresses, 0, bytes));
    return moert_buffer_write(message->addresses, bytes, &arrived, sizeof arrived);
}

/* Whether results arrive as sums. bf16 results never arrive as sums, since a sum needs more digits
 * than bf16 has. */
static bool are_summed(const moert_exchange *exchange, const moert_transfer *t) {
    return (exchange->relay_map->presum || t->weight == NULL) && !moert_window_is_bf16(t->window);
}

/* Whether relays multiply results by weights before they sum. */
static bool weights_sums(const moert_exchange *exchange, const moert_transfer *t) {
    return t->weight != NULL && are_summed(exchange, t);
}

/* *mixed = the weights for slots on this node, and 1 for the sums from other nodes. */
static moert_status mix_weights(moert_exchange *exchange, const moert_transfer *t,
                                const moert_buffer **mixed) {
    moert_node *node = exchange->state;
    const moert_pairs *sums = &t->plan->relay->sums.to;
    const size_t bytes = sums->count * sizeof(float);
    float *weights;
    moert_status status;
    MOERT_TRY(MOERT_NEW_ARRAY(&weights, sums->count));
    MOERT_TRY_OR(free_weights, moert_buffer_read(t->weight, 0, weights, bytes));
    for (size_t s = 0; s < sums->count; s++)
        if (sums->data[s][0] == exchange->relay_map->local_ranks)
            weights[s] = 1.0f;
    MOERT_TRY_OR(free_weights, moert_buffer_reserve(exchange->device, bytes, &node->mixed));
    MOERT_TRY_OR(free_weights, moert_buffer_write(node->mixed, 0, weights, bytes));
    *mixed = node->mixed;
free_weights:
    free(weights);
    return status;
}

/* Sums all rows of each token, and fetches the slots' floats. */
static moert_status sum_all(moert_exchange *exchange, const moert_transfer *t) {
    moert_node *node = exchange->state;
    const moert_relay *relay = t->plan->relay;
    const moert_pairs *from = are_summed(exchange, t) ? &relay->sums.to : &relay->each;
    moert_transfer sum = *t;
    moert_window rows = *t->window, slots;
    moert_exchange_plan plan = *t->plan;
    MOERT_TRY(make_address_table(exchange, t->window, &node->rows));
    if (weights_sums(exchange, t))
        MOERT_TRY(mix_weights(exchange, t, &sum.weight));
    rows.storage.addresses = node->rows.addresses;
    plan.destination = from->buffer;
    sum.window = &rows;
    sum.plan = &plan;
    MOERT_TRY(moert_kernel_combine_rows(exchange, &sum, true));
    if (t->slots == NULL)
        return MOERT_OK;
    MOERT_TRY(make_address_table(exchange, t->slots, &node->slots));
    slots = *t->slots;
    slots.storage.addresses = node->slots.addresses;
    plan.destination = relay->each.buffer;
    sum.slots = &slots;
    return moert_kernel_combine_slots(exchange, &sum, true);
}

/* Sends the relays the weights by which they multiply results before they sum. */
static moert_status send_weights(moert_exchange *exchange, const moert_transfer *t,
                                 moert_status status) {
    moert_node *node = exchange->state;
    const moert_relay *relay = t->plan->relay;
    const size_t topk = t->plan->plan->topk;
    if (status == MOERT_OK)
        status = moert_node_message_pack(exchange, relay, t->weight, topk, &node->weights);
    status = moert_first(status, moert_device_finish(exchange->device));
    MOERT_TRY(moert_node_barrier(exchange->comm, status));
    MOERT_TRY(moert_node_message_post(exchange, MOERT_NODE_WEIGHTS, &node->weights,
                                      relay->send_rows, relay->receive_rows, topk));
    return moert_node_await(exchange);
}

/* Prepares the messages. If results travel as sums, this rank also computes the sums that it sends
 * as a relay. When this function runs, all ranks of the node have finished their results. */
static moert_status prepare_results(moert_exchange *exchange, const moert_transfer *t) {
    moert_node *node = exchange->state;
    moert_relay *relay = t->plan->relay;
    const size_t slots = moert_routes_packed_rows(t->plan->plan), stride = t->window->stride;
    moert_window whole = *t->window;
    MOERT_TRY(moert_routes_find(&node->routes, t->plan));
    if (t->slots != NULL)
        MOERT_TRY(
            moert_node_message_reserve(exchange->device, 0, slots, t->slots->stride, &node->slots));
    if (!are_summed(exchange, t))
        return moert_node_message_reserve(exchange->device, 0, slots, stride, &node->rows);
    whole.width = whole.columns = stride; /* the rows of sums include their padding */
    MOERT_TRY(moert_node_message_reserve(exchange->device, relay->sums.rows_out,
                                         relay->sums.rows_in, stride, &node->rows));
    const moert_transfer sum = {
        .plan = &relay->summed,
        .window = &whole,
        .weight = weights_sums(exchange, t) ? moert_staging_buffer(node->weights.in) : NULL,
        .target = moert_staging_buffer(node->rows.out)};
    return moert_kernel_combine_rows(exchange, &sum, true);
}

moert_status moert_node_combine(moert_exchange *exchange, const moert_transfer *t,
                                moert_status status) {
    moert_node *node = exchange->state;
    const moert_relay *relay = t->plan->relay;
    const moert_plan *plan = t->plan->plan;
    const bool sums = are_summed(exchange, t);
    if (status == MOERT_OK && !relay->known)
        status =
            MOERT_FAIL(ERROR_USAGE, "a combine was called before the first dispatch of its plan");
    status = moert_first(status, moert_device_finish(exchange->device));
    if (sums)
        status = moert_node_barrier(node->inside.comm, status);
    if (weights_sums(exchange, t))
        MOERT_TRY(send_weights(exchange, t, status));
    if (status == MOERT_OK)
        status = prepare_results(exchange, t);
    status = moert_first(status, moert_device_finish(exchange->device));
    MOERT_TRY(moert_node_barrier(exchange->comm, status));
    if (t->slots != NULL)
        MOERT_TRY(post_results(exchange, plan, MOERT_NODE_SLOTS, t->slots, &node->slots));
    MOERT_TRY(sums ? moert_node_message_post(exchange, MOERT_NODE_ROWS, &node->rows,
                                             relay->sums.send, relay->sums.receive,
                                             t->window->stride)
                   : post_results(exchange, plan, MOERT_NODE_ROWS, t->window, &node->rows));
    MOERT_TRY(moert_node_await(exchange));
    return sum_all(exchange, t);
}
