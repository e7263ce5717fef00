/*
 * The parts of the node engine (engine.c): its memory, its messages and its combine.
 */
#pragma once

#include "comm/mail.h"
#include "exchange/internal.h"
#include "exchange/routes.h"

/* Kinds of messages, which are their tags. */
enum { MOERT_NODE_TABLES = 1, MOERT_NODE_ROWS, MOERT_NODE_SLOTS, MOERT_NODE_WEIGHTS };

/* What goes out and what comes in; kernels fill and read it where it lies. */
typedef struct moert_node_message {
    moert_staging *out, *in;
    moert_buffer *reach; /* combine: uint64 [here + 1], this node's segments and then `in` */
} moert_node_message;

typedef struct moert_node {
    moert_exchange inside; /* of this node's ranks, for its windows alone */
    moert_mail *mail;
    moert_node_message rows, slots, weights;
    moert_routes routes; /* of results that come one by one */
    moert_buffer *mixed; /* presum: [T,K] weights of near slots, 1 of sums */
} moert_node;

/* ---- messages (cargo.c) ---- */

moert_status moert_node_message_reserve(moert_device *device, size_t rows_out, size_t rows_in,
                                        size_t width, moert_node_message *cargo);
void moert_node_message_free(moert_node_message *cargo);
/* Packs the rows of source[T,width] that leave the node. */
moert_status moert_node_message_pack(moert_exchange *exchange, const moert_relay *relay,
                                     const moert_buffer *source, size_t width,
                                     moert_node_message *cargo);
/* Posts rows of `row_bytes` to and from all ranks, sorted by rank; of a cargo: `width` floats. */
typedef struct moert_node_rows {
    void *out, *in;
    const size_t *send, *receive; /* [ranks] rows */
} moert_node_rows;
moert_status moert_node_post(moert_exchange *exchange, int tag, const moert_node_rows *rows,
                             size_t row_bytes);
moert_status moert_node_message_post(moert_exchange *exchange, int tag,
                                     const moert_node_message *cargo, const size_t *send_rows,
                                     const size_t *receive_rows, size_t width);
/* Until all that is posted has come and gone. */
moert_status moert_node_await(moert_exchange *exchange);

/* All ranks of `comm` wait for each other, and fail alike if one has failed. What they wrote before
 * into memory that they share is there for all after. */
moert_status moert_node_barrier(moert_comm *comm, moert_status status);

/* ---- combine (combine.c), as of moert_engine ---- */

moert_status moert_node_combine(moert_exchange *exchange, const moert_transfer *t,
                                moert_status status);
