/*
 * Sums by the fixed tree of base/tree.h over all ranks' leaves, in slices, with the same bits for
 * any number of ranks and any slices: the two halves of an all-reduce, without floating-point
 * reductions by MPI.
 *
 * Of n columns every rank owns a slice, [border[r], border[r + 1]) of border[size + 1], which rises
 * from 0 to n and is the same on all ranks.
 */
#pragma once

#include "comm/comm.h"

/*
 * spans[size] = what leaves each rank has. ERROR_MISMATCH on all ranks unless they ascend with the
 * rank and cover 0..total-1. Collective.
 */
moert_status moert_comm_gather_spans(moert_comm *comm, moert_span span, moert_span *spans);

/*
 * A sum under way. `node_rows`[nodes of this rank's span][n], of one row at least, gets the root of
 * the tree over all leaves in this rank's slice of the first row; other rows of the slice are
 * overwritten. Nothing else may touch node_rows, spans and border until the end. Columns travel in
 * rounds of up to 4 MiB of received nodes, two at a time, as messages of their own, which start
 * posts without waiting and progress sends on; ranks start the sums of a communicator in the same
 * order.
 */
typedef struct moert_tree_sum moert_tree_sum;
moert_status moert_tree_sum_start(moert_comm *comm, const moert_span *spans, float *node_rows,
                                  const size_t *border, moert_tree_sum **sum);
moert_status moert_tree_sum_progress(moert_tree_sum *sum);
/* Waits for the other ranks, and frees `sum`, which may be NULL. */
moert_status moert_tree_sum_wait(moert_tree_sum *sum);

/* Completes values[n], of which this rank brings its slice. Collective. */
moert_status moert_comm_gather_shards(moert_comm *comm, const size_t *border, float *values);
