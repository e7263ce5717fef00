/*
 * The engine for ranks of several hosts on CPU devices. The ranks of a node share windows, as in
 * exchange/window/engine.c. Messages connect the nodes; a row travels to each other node at most
 * once (relay.h).
 *
 *   dispatch  A row for an expert on this node is stored into its owner's window. A row for another
 *             node goes to this rank's relay there, which stores it into the windows of its node by
 *             the same kernel.
 *   combine   (combine.c) With weights, or bf16 rows, the experts' owners send single results
 *             back. Otherwise relays sum results where that gives the same bits, and send the sums.
 *             The token's rank sums all its rows in slot order, with the same bits as other
 *             engines. With MOERT_NODE_SUM=presum a relay sends one weighted sum per row: fewer
 *             bytes, but other bits. Relays never sum bf16 rows.
 *
 * The first dispatch of a plan also sends each relay the table of its rows' destinations.
 */
#include "base/config.h"
#include "base/memory.h"
#include "device/device.h"
#include "exchange/node/node.h"

/* ---- dispatch ---- */

/* Stores the rows that have arrived for this relay into its node's windows. */
static moert_status pass_on(moert_exchange *exchange, const moert_transfer *t) {
    moert_node *node = exchange->state;
    moert_relay *relay = t->plan->relay;
    if (!relay->known)
        MOERT_TRY(moert_relay_complete(exchange->device, exchange->relay_map->ranks, relay));
    const moert_transfer relayed = {
        .plan = &relay->relayed,
        .window = t->window,
        .slots = t->slots,
        .source = moert_staging_buffer(node->rows.in),
        .slot_source = t->slots != NULL ? moert_staging_buffer(node->slots.in) : NULL};
    return moert_kernel_dispatch(exchange, &relayed, true);
}

static moert_status dispatch_node(moert_exchange *exchange, const moert_transfer *t,
                                  moert_status status) {
    moert_node *node = exchange->state;
    moert_relay *relay = t->plan->relay;
    const size_t topk = t->plan->plan->topk, width = t->window->width;
    const bool slots = t->slots != NULL;
    if (status == MOERT_OK)
        status = moert_node_message_pack(exchange, relay, t->source, width, &node->rows);
    if (status == MOERT_OK && slots)
        status = moert_node_message_pack(exchange, relay, t->slot_source, topk, &node->slots);
    status = moert_first(status, moert_device_finish(exchange->device));
    moert_transfer direct = *t;
    direct.plan = &relay->direct;
    if (status == MOERT_OK) /* the kernel runs while messages travel */
        status = moert_kernel_dispatch(exchange, &direct, true);
    MOERT_TRY(moert_node_barrier(exchange->comm, status));
    const moert_node_rows tables = {relay->outgoing.data, relay->incoming.data, relay->send_rows,
                                    relay->receive_rows};
    if (!relay->known) /* once per plan, send the relays the destinations of their rows */
        MOERT_TRY(moert_node_post(exchange, MOERT_NODE_TABLES, &tables,
                                  topk * sizeof *relay->incoming.data));
    if (slots)
        MOERT_TRY(moert_node_message_post(exchange, MOERT_NODE_SLOTS, &node->slots,
                                          relay->send_rows, relay->receive_rows, topk));
    MOERT_TRY(moert_node_message_post(exchange, MOERT_NODE_ROWS, &node->rows, relay->send_rows,
                                      relay->receive_rows, width));
    MOERT_TRY(moert_node_await(exchange));
    status = pass_on(exchange, t);
    status = moert_first(status, moert_device_finish(exchange->device));
    MOERT_TRY(moert_node_barrier(exchange->comm, status));
    relay->known = true;
    return MOERT_OK;
}

/* ---- the engine ---- */

/* Checks, before any allocation, every condition that excludes the engine. */
static moert_status look(const moert_exchange *exchange) {
    moert_comm *comm = exchange->comm;
    const moert_device_info *info = moert_device_describe(exchange->device);
    const size_t nodes = moert_comm_node_count(comm);
    if (exchange->automatic && nodes == 1)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "the ranks are on one host; the node engine is for several hosts");
    if (exchange->automatic && nodes == moert_comm_size(comm))
        return MOERT_FAIL(
            ERROR_UNSUPPORTED,
            "every rank is alone on its host; the node engine is for several ranks on a host");
    if (!info->is_cpu)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "rank %zu uses %.96s; the node engine is for CPU devices",
                          moert_comm_rank(comm), info->name);
    return MOERT_OK;
}

static void close_node(moert_exchange *exchange) {
    moert_node *node = exchange->state;
    if (node->inside.engine != NULL)
        node->inside.engine->close(&node->inside);
    moert_comm_destroy(node->inside.comm);
    moert_mail_destroy(node->mail);
    moert_node_message_free(&node->rows);
    moert_node_message_free(&node->slots);
    moert_node_message_free(&node->weights);
    moert_buffer_destroy(node->mixed);
    moert_relay_map_destroy(exchange->relay_map);
    MOERT_FREE(node->routes.packed, node);
    exchange->state = exchange->relay_map = NULL;
}

/* Allocates the engine's state. */
static moert_status make_node(moert_exchange *exchange) {
    moert_node *node;
    MOERT_TRY(look(exchange));
    MOERT_TRY(MOERT_NEW(&node));
    exchange->state = node;
    node->inside.device = exchange->device;
    MOERT_TRY(moert_mail_create(exchange->comm, &node->mail));
    return moert_relay_map_create(exchange->comm,
                                  moert_config_get()->node_sum == MOERT_NODE_SUM_PRESUM,
                                  &exchange->relay_map);
}

static moert_status open_windows(moert_exchange *exchange,
                                 char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    moert_node *node = exchange->state;
    MOERT_TRY(moert_comm_split(exchange->comm, exchange->relay_map->node, &node->inside.comm));
    moert_engine_window.open(&node->inside, reason);
    if (reason[0] != '\0')
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s", reason);
    node->inside.engine = &moert_engine_window;
    exchange->reserves_worst_case = node->inside.reserves_worst_case;
    return MOERT_OK;
}

/* The ranks agree on the status of each step before the next collective step. */
static void open_node(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    moert_comm *comm = exchange->comm;
    const bool works = moert_exchange_goes_on(comm, make_node(exchange), reason) &&
                       moert_exchange_goes_on(comm, open_windows(exchange, reason), reason);
    if (!works && exchange->state != NULL)
        close_node(exchange);
}

static moert_status allocate_node(const moert_window *window, size_t rows, moert_storage *storage) {
    moert_node *node = window->exchange->state;
    moert_window inside = *window;
    inside.exchange = &node->inside;
    return node->inside.engine->allocate(&inside, rows, storage);
}

const moert_engine moert_engine_node = {
    .name = "node",
    .open = open_node,
    .close = close_node,
    .allocate = allocate_node,
    .dispatch = dispatch_node,
    .combine = moert_node_combine,
    .packed_bytes = moert_node_packed_bytes,
};
