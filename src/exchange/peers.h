/*
 * Reduce-scatter and all-gather between the devices of one host. The devices wait for each other
 * (exchange/window/flags.h), and their kernels read each other's memory; the host processes only
 * enqueue commands. So nothing passes through host memory.
 *
 * Rank r owns a shard of the n columns: [border[r], border[r + 1]), as in comm/tree_sum.h. Both
 * operations go through a window of each rank in rounds:
 *
 *   stage     copy this rank's columns of the round to one half of its window
 *   barrier   of all devices
 *   fetch     sum, or copy, the columns in that half of all windows
 *
 * The next round uses the other half of the window. So one barrier per round is enough: between two
 * rounds that use the same half lies the barrier of another round. All ranks reach that barrier
 * only after they have read the half.
 */
#pragma once

#include "base/tree.h"
#include "comm/comm.h"
#include "moert/device.h"

typedef struct moert_peers moert_peers;

/*
 * *peers = NULL where the devices of the ranks do not wait for each other: on several hosts, with
 * MOERT_SYNC=host, or with auto if a test of the windows fails. All ranks return the same status.
 * Collective. `device` and `comm` must outlive the peers.
 */
moert_status moert_peers_create(moert_device *device, moert_comm *comm, moert_peers **peers);
void moert_peers_destroy(moert_peers *peers); /* Waits for the device. NULL is legal. */
/* Device memory that moert_peers_create allocates. */
size_t moert_peers_bytes(const moert_device *device);

/* The nodes of a sum by the tree of base/tree.h. Each rank has the nodes of its span. */
typedef struct moert_peers_sum {
    const moert_span *spans; /* [size] the range of leaves that each rank has; the ranges ascend
                                with the rank (moert_comm_gather_spans) */
    const moert_buffer *node_rows; /* f32 [nodes of this rank, n] */
    const size_t *border;          /* [size + 1] */
    moert_buffer *sum;             /* f32 [n]; may be `node_rows` */
    bool accumulate;               /* add to the shard of `sum` instead of replacing it */
} moert_peers_sum;

/* Whether the ranks have few enough nodes for moert_peers_reduce_scatter. */
bool moert_peers_can_sum(const moert_peers *peers, const moert_span *spans);
/*
 * Writes the root of the tree over all ranks' leaves to this rank's shard of `sum`. All ranks call
 * the operations of the peers, and those of exchanges, in the same order. Not blocking: the buffers
 * must not change before the device has done the commands. An error is local to this rank.
 */
moert_status moert_peers_reduce_scatter(moert_peers *peers, const moert_peers_sum *sum);
/* values[n], f32 = the shards of all ranks; this rank provides its own. Otherwise like
 * moert_peers_reduce_scatter. */
moert_status moert_peers_all_gather(moert_peers *peers, const size_t *border, moert_buffer *values);

/* Waits for the device. ERROR_COMM if a rank's device was late in an operation since the last call;
 * the results since then are invalid. An error is local to this rank. NULL is legal. */
moert_status moert_peers_settle(moert_peers *peers);
