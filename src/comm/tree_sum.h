/*
 * Sums by the fixed tree of base/tree.h over all ranks' leaves, in shards, with the same bits for
 * any number of ranks and any shards. The two operations are the halves of an all-reduce:
 * reduce-scatter and all-gather. MPI does no floating-point reductions.
 *
 * Rank r owns a shard of the n columns: [border[r], border[r + 1]). The array border[size + 1]
 * rises from 0 to n and is the same on all ranks.
 */
#pragma once

#include "comm/comm.h"

/*
 * spans[size] = the leaves of each rank. ERROR_MISMATCH on all ranks unless the spans ascend with
 * the rank and cover 0..total-1. Collective.
 */
moert_status moert_comm_gather_spans(moert_comm *comm, moert_span span, moert_span *spans);

/*
 * A sum in progress. node_rows has one row [n] for each of this rank's nodes, or one row if the
 * rank has no nodes. In the columns of this rank's shard, the first row gets the root of the tree
 * over all leaves, and the other rows are overwritten. The caller must not access node_rows, and
 * must not change spans and border, until the sum has ended.
 *
 * The ranks exchange columns in rounds. A round receives up to 4 MiB of nodes, and two rounds are
 * in flight at a time. moert_tree_sum_start posts messages without waiting; moert_tree_sum_progress
 * posts further rounds. All ranks start the sums of a communicator in the same order.
 */
typedef struct moert_tree_sum moert_tree_sum;
moert_status moert_tree_sum_start(moert_comm *comm, const moert_span *spans, float *node_rows,
                                  const size_t *border, moert_tree_sum **sum);
/* Like moert_tree_sum_start, but each rank sums the shard of the rank `shift` positions before
 * it. */
moert_status moert_tree_sum_start_shifted(moert_comm *comm, const moert_span *spans,
                                          float *node_rows, const size_t *border, size_t shift,
                                          moert_tree_sum **sum);
moert_status moert_tree_sum_progress(moert_tree_sum *sum);
/* Waits for the other ranks, and frees `sum`, which may be NULL. */
moert_status moert_tree_sum_wait(moert_tree_sum *sum);

/* Gathers values[n]; this rank provides its shard. Collective. */
moert_status moert_comm_gather_shards(moert_comm *comm, const size_t *border, float *values);
