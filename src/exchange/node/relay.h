/*
 * The routes of rows between nodes, for the node engine: tables of integers on the host, with
 * copies on the device.
 *
 * If a token has experts on another node, the token's row goes to that node once, to one rank of
 * that node, the *relay*. The relay stores the row into the windows of its node. In a node of S
 * ranks, the rank with number i mod S is the relay of the ranks with number i on other nodes. Rows
 * travel sorted by (relay, token), and so do sums of results on the way back. Single results come
 * from the experts' owners, without a relay.
 */
#pragma once

#include <stdbool.h>

#include "exchange/exchange.h"

/* The nodes of a communicator, as one rank sees them. */
typedef struct moert_relay_map {
    size_t ranks, nodes;
    size_t node;        /* of this rank */
    size_t local_ranks; /* number of ranks on this rank's node */
    size_t *node_of;    /* [ranks] */
    size_t *local_rank; /* [ranks] number of a rank on its node */
    size_t *relay;      /* [nodes] the relay of this rank's rows; for its own node this rank */
    bool *serves;       /* [ranks] whether this rank is the relay of that rank's rows */
    bool presum;        /* relays send one sum of all results of a token on their node
                           (MOERT_NODE_SUM=presum) */
} moert_relay_map;
moert_status moert_relay_map_create(const moert_comm *comm, bool presum,
                                    moert_relay_map **relay_map);
void moert_relay_map_destroy(moert_relay_map *relay_map); /* NULL is legal. */

/* Pairs (rank or local rank, row), as in the tables of kernels/exchange/exchange.cl. */
typedef struct moert_pairs {
    uint32_t (*data)[2];
    size_t count;
    moert_buffer *buffer; /* a copy on the device, or NULL */
} moert_pairs;

/* Sums of results that relays send back. */
typedef struct moert_sums {
    size_t *send, *receive;   /* [ranks] number of sums sent to each rank whose relay is this rank,
                                 and received from each relay */
    size_t rows_out, rows_in; /* of all ranks */
    moert_pairs from;         /* [rows_out,K] rows in this node's windows that make up each sum */
    moert_pairs to; /* [T,K] where the row of a slot on this node is, or (local_ranks, number of
                       the sum among rows_in) for a slot on another node. DROPPED also if the sum
                       of an earlier slot includes this slot */
} moert_sums;

/* The routes of one plan. Pairs that name a row of a window have a local rank, 0..local_ranks-1. */
typedef struct moert_relay {
    size_t *send_rows, *receive_rows; /* [ranks] number of rows sent to each relay, and received
                                         from each rank whose relay is this rank */
    size_t rows_out, rows_in;         /* of all ranks */
    size_t slots_here, slots_relayed; /* slots that this rank stores for itself, and slots that it
                                         stores as a relay */
    moert_pairs source;               /* [rows_out] (0, token) */
    moert_pairs near;                 /* [T,K] where this rank stores the row of a slot on this
                                         node, or DROPPED */
    moert_pairs outgoing;             /* [rows_out,K] where the relay stores the row, or DROPPED */
    moert_pairs each; /* [T,K] for single results: where the row of a slot on this node is, or
                         (local_ranks, slot_position of the plan) for a slot on another node */
    moert_sums sums;
    bool known; /* all relays of the plan have the tables sums.from, sums.send, sums.rows_out and
                   incoming */
    moert_pairs incoming; /* [rows_in,K] the `outgoing` tables of the ranks whose relay is
                             this rank, one after the other */
    /* plans for kernels: the slots that this rank stores for itself, the slots that it relays, and
     * the sums of results that it computes as a relay */
    moert_plan direct_slots, relayed_slots, summed_slots;
    moert_exchange_plan direct, relayed, summed;
} moert_relay;

/* rows[n] = the number of tokens of index, int32 [T,K], with slots on node n. owner[e] is the rank
 * of expert e. If owner is NULL, index holds ranks, not experts. */
moert_status moert_relay_count(const moert_relay_map *relay_map, const int32_t *index,
                               size_t tokens, size_t topk, const uint32_t *owner, uint64_t *rows);
/*
 * Makes the routes of a plan that has its slots on the host. node_rows + r * stride are the
 * rows[nodes] of rank r, by moert_relay_count. With relay_map->presum a sum includes all slots of a
 * token on a node. Otherwise a sum includes only the slots with which the token's sum, in order of
 * k, begins. Without weights such sums give the same bits as single results.
 */
moert_status moert_relay_create(moert_device *device, const moert_relay_map *relay_map,
                                const moert_plan *plan, const uint64_t *node_rows, size_t stride,
                                moert_relay **relay);
/* Makes the relay's tables from `incoming`, after that table has arrived. */
moert_status moert_relay_complete(moert_device *device, size_t ranks, moert_relay *relay);
void moert_relay_destroy(moert_relay *relay); /* NULL is legal. */
