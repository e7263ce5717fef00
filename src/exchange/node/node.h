/* The node engine's memory, messages and combine. */
#pragma once

#include "comm/mail.h"
#include "device/staging.h"
#include "exchange/internal.h"
#include "exchange/routes.h"

/* Tags of messages. */
enum { MOERT_NODE_TABLES = 1, MOERT_NODE_ROWS, MOERT_NODE_SLOTS, MOERT_NODE_WEIGHTS };

/* Rows to send and rows received, which kernels write and read in place. */
typedef struct moert_node_message {
    moert_staging *out, *in;
    moert_buffer *addresses; /* combine: uint64 [local_ranks + 1]: the addresses of the node's
                                segments and of `in` */
} moert_node_message;

typedef struct moert_node {
    moert_exchange inside; /* an exchange among this node's ranks, used only for windows */
    moert_mail *mail;
    moert_node_message rows, slots, weights;
    moert_routes routes; /* runs of results that owners send without a relay */
    moert_buffer *mixed; /* with MOERT_NODE_SUM=presum: [T,K] the weight of a slot on this node,
                            or 1 for a sum from another node */
} moert_node;

/* ---- messages (message.c) ---- */

size_t moert_node_packed_bytes(const moert_packed_sizes *sizes); /* the entry packed_bytes of
                                                                    moert_engine */
moert_status moert_node_message_reserve(moert_device *device, size_t rows_out, size_t rows_in,
                                        size_t width, moert_node_message *message);
void moert_node_message_free(moert_node_message *message);
/* Packs the rows of source[T,width] that go to other nodes into message->out. */
moert_status moert_node_message_pack(moert_exchange *exchange, const moert_relay *relay,
                                     const moert_buffer *source, size_t width,
                                     moert_node_message *message);
/* Posts rows of `row_bytes`, or of `width` floats, to and from all ranks. Rows to send and rows
 * received are sorted by rank. */
typedef struct moert_node_rows {
    void *out, *in;
    const size_t *send, *receive; /* [ranks] rows */
} moert_node_rows;
moert_status moert_node_post(moert_exchange *exchange, int tag, const moert_node_rows *rows,
                             size_t row_bytes);
moert_status moert_node_message_post(moert_exchange *exchange, int tag,
                                     const moert_node_message *message, const size_t *send_rows,
                                     const size_t *receive_rows, size_t width);
/* Waits until all posted messages are done. */
moert_status moert_node_await(moert_exchange *exchange);

/* A barrier of the ranks' host processes in `comm`. If a rank's status is a failure, all ranks
 * return this failure. Stores to shared memory before the barrier are visible to all ranks after
 * the barrier. */
moert_status moert_node_barrier(moert_comm *comm, moert_status status);

/* ---- combine (combine.c) ---- */

/* An entry of moert_engine. */
moert_status moert_node_combine(moert_exchange *exchange, const moert_transfer *t,
                                moert_status status);
