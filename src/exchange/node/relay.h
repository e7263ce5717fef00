/*
 * Who carries which rows between nodes (engine.c): pure integers on the host, and their tables
 * on the device.
 *
 * A token whose experts live on another node sends its row there once, to one rank of that node,
 * its *relay*, which stores it into the windows of its neighbours. Rank number i of a node is
 * served, in a node of S ranks, by number i mod S. Rows travel sorted by (relay, token), and so do
 * sums of their slots' results on the way back; results one by one come from the experts' owners,
 * without a relay.
 */
#pragma once

#include <stdbool.h>

#include "exchange/exchange.h"

/* The nodes of a communicator, as one rank sees them. */
typedef struct moert_relay_map {
    size_t ranks, nodes;
    size_t node, here; /* this rank's node, and how many ranks it has */
    size_t *node_of;   /* [ranks] */
    size_t *place;     /* [ranks] number of a rank on its node */
    size_t *relay; /* [nodes] the rank that takes this rank's rows there; of the own node itself */
    bool *serves;  /* [ranks] whether this rank takes that rank's rows */
    bool presum;   /* a node sums all its results of a token */
} moert_relay_map;
moert_status moert_relay_map_create(const moert_comm *comm, bool presum,
                                    moert_relay_map **relay_map);
void moert_relay_map_destroy(moert_relay_map *relay_map); /* NULL is legal. */

/* Pairs (rank or number, row), as the tables of kernels/exchange/exchange.cl. */
typedef struct moert_pairs {
    uint32_t (*data)[2];
    size_t count;
    moert_buffer *buffer; /* a copy on the device; NULL: none yet */
} moert_pairs;

/* Sums of results on their way back. */
typedef struct moert_sums {
    size_t *send, *receive;   /* [ranks] rows to the ranks served, and from the relays */
    size_t rows_out, rows_in; /* of all of them */
    moert_pairs from;         /* [rows_out,K] the slots' rows in windows */
    moert_pairs to; /* [T,K] of slots on this node their rows, of others (here, place among
                       rows_in); DROPPED: of a slot that is part of a sum before it, too */
} moert_sums;

/* The routes of one plan. Ranks in tables of windows are numbered on this node, 0..here-1. */
typedef struct moert_relay {
    size_t *send_rows, *receive_rows; /* [ranks] rows to the relays, and from the ranks served */
    size_t rows_out, rows_in;
    size_t slots_here, slots_relayed; /* that this rank stores for itself and for others */
    moert_pairs source;               /* [rows_out] (0, token) */
    moert_pairs near;                 /* [T,K] of slots on this node; else DROPPED */
    moert_pairs outgoing; /* [rows_out,K] where the relay stores the row; DROPPED: not there */
    moert_pairs each;     /* [T,K] where results that come one by one are: of slots on this node,
                             their rows; of others (here, slot_position of the plan) */
    moert_sums sums;
    bool known; /* on every rank, what the relay learns: `from`, what it sends of sums, and */
    moert_pairs incoming; /* [rows_in,K] the others' outgoing */
    /* as plans of their own: the slots that this rank stores itself, those that it relays, and the
     * sums of results that it makes */
    moert_plan direct_slots, relayed_slots, summed_slots;
    moert_exchange_plan direct, relayed, summed;
} moert_relay;

/* rows[nodes] = how many of a rank's tokens have slots on each node; index int32 [T,K]. */
moert_status moert_relay_count(const moert_relay_map *relay_map, const int32_t *index,
                               size_t tokens, size_t topk, size_t experts, uint64_t *rows);
/*
 * The routes of a plan that has its slots on the host; rank r told its rows[nodes] at
 * told + r * stride. Sums are of all slots of a token on a node if relay_map->presum; else of those
 * with which the token's sum begins, which has the same bits without weights.
 */
moert_status moert_relay_create(moert_device *device, const moert_relay_map *relay_map,
                                const moert_plan *plan, const uint64_t *told, size_t stride,
                                moert_relay **relay);
/* Once `incoming` has arrived. */
moert_status moert_relay_learn(moert_device *device, size_t ranks, moert_relay *relay);
void moert_relay_destroy(moert_relay *relay); /* NULL is legal. */
