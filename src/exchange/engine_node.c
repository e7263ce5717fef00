/*
 * Ranks of several hosts on CPU devices: windows among the ranks of a node (engine_window.c), and
 * messages between nodes, in which a row travels to each other node at most once (relay.h).
 *
 *   dispatch  rows for this node go into its windows; a row for another node goes to this rank's
 *             relay there, which stores it into the windows of its neighbours by the same kernel
 *   combine   a relay gathers the results of the slots that it has stored, and sends them back
 *             one by one, or summed where that has the same bits; the source sums its slots, near
 *             and far, in slot order: the bits of all engines. With MOERT_NODE_SUM=presum a relay
 *             sends one sum a row: fewer bytes, other bits; rows of codes are never summed there
 *
 * Each synchronises twice. What a relay must know of a plan's rows comes before its first dispatch.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/config.h"
#include "base/memory.h"
#include "base/phase.h"
#include "comm/mail.h"
#include "device/staging.h"
#include "exchange/internal.h"
#include "exchange/routes.h"

/* Kinds of messages, which are their tags. */
enum { TABLES = 1, ROWS, SLOTS, WEIGHTS };

/* What goes out and what comes in; kernels fill and read it where it lies. */
typedef struct moert_cargo {
    moert_staging *out, *in;
    moert_buffer *reach; /* combine: uint64 [here + 1], this node's segments and then `in` */
} moert_cargo;

typedef struct moert_node {
    moert_exchange inside; /* of this node's ranks, for its windows alone */
    moert_mail *mail;
    moert_cargo rows, slots, weights;
    moert_routes routes; /* of results that come one by one */
    moert_buffer *mixed; /* presum: [T,K] weights of near slots, 1 of sums */
} moert_node;

/* ---- messages ---- */

static moert_status reserve_cargo(moert_device *device, size_t rows_out, size_t rows_in,
                                  size_t width, moert_cargo *cargo) {
    MOERT_TRY(moert_staging_reserve(device, rows_out * width * sizeof(float), &cargo->out));
    return moert_staging_reserve(device, rows_in * width * sizeof(float), &cargo->in);
}

static void free_cargo(moert_cargo *cargo) {
    moert_staging_destroy(cargo->out);
    moert_staging_destroy(cargo->in);
    moert_buffer_destroy(cargo->reach);
}

/* Posts rows to and from all ranks, sorted by rank. */
static moert_status post(moert_exchange *exchange, int tag, void *out, const size_t *send_rows,
                         void *in, const size_t *receive_rows, size_t row_bytes) {
    const moert_node *node = exchange->state;
    const moert_mail_rows from = {out, row_bytes, row_bytes}, to = {in, row_bytes, row_bytes};
    moert_mail_run sent = {0, 0}, received = {0, 0};
    for (size_t r = 0; r < exchange->rails->ranks; r++) {
        received = (moert_mail_run){received.first + received.count, receive_rows[r]};
        sent = (moert_mail_run){sent.first + sent.count, send_rows[r]};
        MOERT_TRY(
            moert_mail_post(node->mail, (moert_mail_address){false, r, tag, 0}, &to, &received, 1));
        MOERT_TRY(
            moert_mail_post(node->mail, (moert_mail_address){true, r, tag, 0}, &from, &sent, 1));
    }
    return MOERT_OK;
}

static moert_status post_cargo(moert_exchange *exchange, int tag, const moert_cargo *cargo,
                               const size_t *send_rows, const size_t *receive_rows, size_t width) {
    return post(exchange, tag, moert_staging_host(cargo->out), send_rows,
                moert_staging_host(cargo->in), receive_rows, width * sizeof(float));
}

/* Until all that is posted has come and gone. */
static moert_status await_mail(moert_exchange *exchange) {
    const moert_node *node = exchange->state;
    moert_status status = MOERT_OK;
    moert_phase_wait_begin();
    while (status == MOERT_OK && moert_mail_left_of_all(node->mail) > 0)
        status = moert_mail_progress(node->mail, true);
    moert_phase_wait_end();
    return status;
}

/*
 * All ranks of `comm` wait for each other, and fail alike if one has failed. What they wrote before
 * into memory that they share is there for all after.
 */
static moert_status meet(moert_comm *comm, moert_status status) {
    atomic_thread_fence(memory_order_seq_cst);
    MOERT_TRY(moert_comm_agree(comm, status));
    atomic_thread_fence(memory_order_seq_cst);
    return MOERT_OK;
}

/* What the device has done, after a status so far. */
static moert_status finish(moert_exchange *exchange, moert_status status) {
    const moert_status finished = moert_device_finish(exchange->device);
    return status != MOERT_OK ? status : finished;
}

/* ---- dispatch ---- */

/* Packs the rows of source[T,width] that leave the node. */
static moert_status pack(moert_exchange *exchange, const moert_relay *relay,
                         const moert_buffer *source, size_t width, moert_cargo *cargo) {
    MOERT_TRY(reserve_cargo(exchange->device, relay->rows_out, relay->rows_in, width, cargo));
    return moert_kernel_gather(exchange->device,
                               &(moert_gather){.reach = source,
                                               .from = relay->source.buffer,
                                               .rows = relay->rows_out,
                                               .width = width,
                                               .stride = width,
                                               .packed = moert_staging_buffer(cargo->out)});
}

/* Tells the relays where their rows belong, once per plan. */
static moert_status introduce(moert_exchange *exchange, const moert_relay *relay, size_t topk) {
    if (relay->known)
        return MOERT_OK;
    return post(exchange, TABLES, relay->outgoing.data, relay->send_rows, relay->incoming.data,
                relay->receive_rows, topk * sizeof *relay->incoming.data);
}

/* Stores the rows that have arrived into this node's windows. */
static moert_status pass_on(moert_exchange *exchange, const moert_move *move) {
    moert_node *node = exchange->state;
    moert_relay *relay = move->plan->relay;
    if (!relay->known)
        MOERT_TRY(moert_relay_learn(exchange->device, exchange->rails->ranks, relay));
    const moert_move relayed = {
        .plan = &relay->relayed,
        .window = move->window,
        .slots = move->slots,
        .source = moert_staging_buffer(node->rows.in),
        .slot_source = move->slots != NULL ? moert_staging_buffer(node->slots.in) : NULL};
    return moert_kernel_dispatch(exchange, &relayed, true);
}

static moert_status dispatch_node(moert_exchange *exchange, const moert_move *move,
                                  moert_status status) {
    moert_node *node = exchange->state;
    moert_relay *relay = move->plan->relay;
    const size_t topk = move->plan->plan->topk, width = move->window->width;
    const bool slots = move->slots != NULL;
    if (status == MOERT_OK)
        status = pack(exchange, relay, move->source, width, &node->rows);
    if (status == MOERT_OK && slots)
        status = pack(exchange, relay, move->slot_source, topk, &node->slots);
    status = finish(exchange, status);
    moert_move direct = *move;
    direct.plan = &relay->direct;
    if (status == MOERT_OK) /* goes on while messages travel */
        status = moert_kernel_dispatch(exchange, &direct, true);
    MOERT_TRY(meet(exchange->comm, status));
    MOERT_TRY(introduce(exchange, relay, topk));
    if (slots)
        MOERT_TRY(
            post_cargo(exchange, SLOTS, &node->slots, relay->send_rows, relay->receive_rows, topk));
    MOERT_TRY(
        post_cargo(exchange, ROWS, &node->rows, relay->send_rows, relay->receive_rows, width));
    MOERT_TRY(await_mail(exchange));
    status = finish(exchange, pass_on(exchange, move));
    MOERT_TRY(meet(exchange->comm, status));
    relay->known = true;
    return MOERT_OK;
}

/* ---- combine ---- */

/* Brings back a window's results one by one: each owner of an expert sends rows of its window, as
 * they lie there, to each rank of another node, which begins with another owner. */
static moert_status post_results(moert_exchange *exchange, const moert_plan *plan, int tag,
                                 const moert_window *window, const moert_cargo *cargo) {
    const moert_node *node = exchange->state;
    const moert_rails *rails = exchange->rails;
    const size_t row_bytes = window->width * sizeof(float);
    const size_t stride_bytes = window->stride * sizeof(float);
    const moert_mail_rows from = {window->storage.host, row_bytes, stride_bytes};
    const moert_mail_rows to = {moert_staging_host(cargo->in), row_bytes, stride_bytes};
    for (size_t k = 1; k < rails->ranks; k++) {
        const size_t next = (plan->rank + k) % rails->ranks;
        const size_t last = (plan->rank + rails->ranks - k) % rails->ranks;
        if (rails->node_of[last] != rails->node)
            MOERT_TRY(moert_mail_post(node->mail, (moert_mail_address){false, last, tag, 0}, &to,
                                      &node->routes.packed[last], 1));
        if (rails->node_of[next] != rails->node)
            MOERT_TRY(moert_mail_post(node->mail, (moert_mail_address){true, next, tag, 0}, &from,
                                      &node->routes.window[next * plan->local_experts],
                                      plan->local_experts));
    }
    return MOERT_OK;
}

/* Sums those that are to be summed; the padding has a sum, too. */
static moert_status sum_results(moert_exchange *exchange, const moert_relay *relay,
                                const moert_window *window, const moert_buffer *weight,
                                moert_cargo *cargo) {
    const moert_sums *sums = &relay->sums;
    moert_window whole = *window;
    whole.width = whole.columns = window->stride;
    MOERT_TRY(
        reserve_cargo(exchange->device, sums->rows_out, sums->rows_in, window->stride, cargo));
    const moert_move sum = {.plan = &relay->summed,
                            .window = &whole,
                            .weight = weight,
                            .target = moert_staging_buffer(cargo->out)};
    return moert_kernel_combine_rows(exchange, &sum, true, window->storage.addresses,
                                     relay->summed.destination);
}

/* Where slots of this rank find their results: windows of this node, and what has arrived. */
static moert_status make_reach(const moert_exchange *exchange, const moert_window *window,
                               moert_cargo *cargo) {
    const size_t bytes = exchange->rails->here * sizeof(uint64_t);
    const uint64_t arrived = (uintptr_t)moert_staging_host(cargo->in);
    MOERT_TRY(moert_buffer_reserve(exchange->device, bytes + sizeof arrived, &cargo->reach));
    MOERT_TRY(moert_buffer_copy(window->storage.addresses, 0, cargo->reach, 0, bytes));
    return moert_buffer_write(cargo->reach, bytes, &arrived, sizeof arrived);
}

/* Whether results come as sums: not codes, since a sum has more digits. */
static bool are_summed(const moert_exchange *exchange, const moert_move *move) {
    const bool sums = exchange->rails->presum || move->weight == NULL;
    return sums && !moert_window_has_codes(move->window);
}

/* Whether relays weight what they sum. */
static bool weights_sums(const moert_exchange *exchange, const moert_move *move) {
    return move->weight != NULL && are_summed(exchange, move);
}

/* *mixed = the weights of near slots, and 1 for the sums of the others. */
static moert_status mix_weights(moert_exchange *exchange, const moert_move *move,
                                const moert_buffer **mixed) {
    moert_node *node = exchange->state;
    const moert_pairs *sums = &move->plan->relay->sums.to;
    const size_t bytes = sums->count * sizeof(float);
    float *weights;
    moert_status status;
    MOERT_TRY(MOERT_NEW_ARRAY(&weights, sums->count));
    MOERT_TRY_OR(free_weights, moert_buffer_read(move->weight, 0, weights, bytes));
    for (size_t s = 0; s < sums->count; s++)
        if (sums->data[s][0] == exchange->rails->here)
            weights[s] = 1.0f;
    MOERT_TRY_OR(free_weights, moert_buffer_reserve(exchange->device, bytes, &node->mixed));
    MOERT_TRY_OR(free_weights, moert_buffer_write(node->mixed, 0, weights, bytes));
    *mixed = node->mixed;
free_weights:
    free(weights);
    return status;
}

/* The last kernels: sums of near and far rows, and the slots' floats. */
static moert_status sum_all(moert_exchange *exchange, const moert_move *move) {
    moert_node *node = exchange->state;
    const moert_relay *relay = move->plan->relay;
    const moert_pairs *from = are_summed(exchange, move) ? &relay->sums.to : &relay->each;
    moert_move sum = *move;
    MOERT_TRY(make_reach(exchange, move->window, &node->rows));
    if (weights_sums(exchange, move))
        MOERT_TRY(mix_weights(exchange, move, &sum.weight));
    MOERT_TRY(moert_kernel_combine_rows(exchange, &sum, true, node->rows.reach, from->buffer));
    if (move->slots == NULL)
        return MOERT_OK;
    MOERT_TRY(make_reach(exchange, move->slots, &node->slots));
    moert_window slots = *move->slots;
    moert_exchange_plan plan = *move->plan;
    slots.storage.addresses = node->slots.reach;
    plan.destination = relay->each.buffer;
    sum.slots = &slots;
    sum.plan = &plan;
    return moert_kernel_combine_slots(exchange, &sum, true);
}

/* What the relays weight their sums by. */
static moert_status send_weights(moert_exchange *exchange, const moert_move *move,
                                 moert_status status) {
    moert_node *node = exchange->state;
    const moert_relay *relay = move->plan->relay;
    const size_t topk = move->plan->plan->topk;
    if (status == MOERT_OK)
        status = pack(exchange, relay, move->weight, topk, &node->weights);
    MOERT_TRY(meet(exchange->comm, finish(exchange, status)));
    MOERT_TRY(
        post_cargo(exchange, WEIGHTS, &node->weights, relay->send_rows, relay->receive_rows, topk));
    return await_mail(exchange);
}

/* Gets ready what this rank sends and receives, once all of its node have their results. */
static moert_status prepare_results(moert_exchange *exchange, const moert_move *move) {
    moert_node *node = exchange->state;
    const moert_relay *relay = move->plan->relay;
    const size_t slots = moert_routes_packed_rows(move->plan->plan);
    const moert_buffer *weight =
        weights_sums(exchange, move) ? moert_staging_buffer(node->weights.in) : NULL;
    MOERT_TRY(moert_routes_find(&node->routes, move->plan));
    if (move->slots != NULL)
        MOERT_TRY(reserve_cargo(exchange->device, 0, slots, move->slots->stride, &node->slots));
    if (are_summed(exchange, move))
        return sum_results(exchange, relay, move->window, weight, &node->rows);
    return reserve_cargo(exchange->device, 0, slots, move->window->stride, &node->rows);
}

static moert_status combine_node(moert_exchange *exchange, const moert_move *move,
                                 moert_status status) {
    moert_node *node = exchange->state;
    const moert_relay *relay = move->plan->relay;
    const moert_plan *plan = move->plan->plan;
    const bool sums = are_summed(exchange, move);
    if (status == MOERT_OK && !relay->known)
        status = MOERT_FAIL(ERROR_USAGE, "a combine before the first dispatch of its plan");
    status = finish(exchange, status);
    if (sums)
        status = meet(node->inside.comm, status);
    if (weights_sums(exchange, move))
        MOERT_TRY(send_weights(exchange, move, status));
    if (status == MOERT_OK)
        status = prepare_results(exchange, move);
    MOERT_TRY(meet(exchange->comm, finish(exchange, status)));
    if (move->slots != NULL)
        MOERT_TRY(post_results(exchange, plan, SLOTS, move->slots, &node->slots));
    MOERT_TRY(sums ? post_cargo(exchange, ROWS, &node->rows, relay->sums.send, relay->sums.receive,
                                move->window->stride)
                   : post_results(exchange, plan, ROWS, move->window, &node->rows));
    MOERT_TRY(await_mail(exchange));
    return sum_all(exchange, move);
}

/* ---- the engine ---- */

/* What excludes the engine before anything is made. */
static void look(const moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    const moert_device_info *info = moert_device_describe(exchange->device);
    const size_t nodes = moert_comm_node_count(exchange->comm);
    if (exchange->automatic && nodes == 1)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "the ranks are on one host");
    else if (exchange->automatic && nodes == moert_comm_size(exchange->comm))
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "every rank is alone on its host");
    else if (!info->is_cpu)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES,
                 "rank %zu uses %.96s; the node exchange is for CPU devices",
                 moert_comm_rank(exchange->comm), info->name);
}

/* The ranks must agree on how results are summed. Collective. */
static void compare_settings(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    const unsigned mine = moert_config_get()->node_sum;
    unsigned first = mine;
    if (moert_comm_broadcast(exchange->comm, 0, &first, sizeof first) != MOERT_OK)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "%s", moert_last_error());
    else if (mine != first)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "MOERT_NODE_SUM is %s on rank %zu, %s on 0",
                 moert_config_choice("MOERT_NODE_SUM", mine), moert_comm_rank(exchange->comm),
                 moert_config_choice("MOERT_NODE_SUM", first));
}

static void close_node(moert_exchange *exchange) {
    moert_node *node = exchange->state;
    if (node->inside.engine != NULL)
        node->inside.engine->close(&node->inside);
    moert_comm_destroy(node->inside.comm);
    moert_mail_destroy(node->mail);
    free_cargo(&node->rows);
    free_cargo(&node->slots);
    free_cargo(&node->weights);
    moert_routes_free(&node->routes);
    moert_buffer_destroy(node->mixed);
    moert_rails_destroy(exchange->rails);
    free(node);
    exchange->state = exchange->rails = NULL;
}

/* The memory of the engine, and the communicator of the node's ranks. */
static moert_status make_node(moert_exchange *exchange) {
    moert_node *node;
    MOERT_TRY(MOERT_NEW(&node));
    exchange->state = node;
    node->inside.device = exchange->device;
    MOERT_TRY(moert_mail_create(exchange->comm, &node->mail));
    return moert_rails_create(exchange->comm, moert_config_get()->node_sum == MOERT_NODE_SUM_PRESUM,
                              &exchange->rails);
}

static void open_windows(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    moert_node *node = exchange->state;
    if (moert_comm_split(exchange->comm, exchange->rails->node, &node->inside.comm) != MOERT_OK) {
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "%s", moert_last_error());
        return;
    }
    moert_engine_window.open(&node->inside, reason);
    if (reason[0] == '\0')
        node->inside.engine = &moert_engine_window;
    exchange->reserves_worst_case = node->inside.reserves_worst_case;
}

/* Each step is agreed on before the next collective one. */
static void open_node(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    compare_settings(exchange, reason);
    if (reason[0] == '\0')
        look(exchange, reason);
    if (reason[0] == '\0' && make_node(exchange) != MOERT_OK)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "%s", moert_last_error());
    moert_exchange_share_reason(exchange->comm, reason);
    if (reason[0] == '\0') {
        open_windows(exchange, reason);
        moert_exchange_share_reason(exchange->comm, reason);
    }
    if (reason[0] != '\0' && exchange->state != NULL)
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
    .combine = combine_node,
};
