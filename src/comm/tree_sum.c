/*
 * The sum of all ranks' leaves by the fixed tree of base/tree.h, with the same bits for any number
 * of ranks.
 *
 * Every rank owns a slice of the columns, receives that slice of all ranks' nodes, joins them, and
 * spreads the result: a reduce-scatter and an all-gather without floating-point reductions by MPI.
 * Columns pass in rounds, so that scratch does not grow with n.
 */
#include "comm/internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { ROUND_FLOATS = 1 << 18, LEAST_COLUMNS = 64 };

/* What the ranks tell each other. */
typedef struct share {
    moert_span span;
    size_t n;
} share;

typedef struct summation {
    share *shares;          /* [R] */
    moert_tree_node *nodes; /* [node_count] of all ranks, ascending */
    size_t *nodes_of;       /* [R] number of each rank's nodes */
    size_t node_count;
    size_t columns;                   /* columns that a rank owns in one round, at most */
    float *send;                      /* [R][nodes_of[rank]][columns] */
    float *receive;                   /* [node_count][columns] */
    float **rows;                     /* [node_count] into receive */
    size_t *send_rows, *receive_rows; /* [R] */
} summation;

static void release(summation *s) {
    free(s->receive_rows);
    free(s->send_rows);
    free(s->rows);
    free(s->receive);
    free(s->send);
    free(s->nodes_of);
    free(s->nodes);
    free(s->shares);
}

static moert_status check(const share *shares, size_t ranks) {
    size_t next = 0, total = shares[0].span.total;
    for (size_t r = 0; r < ranks; r++) {
        const share *at = &shares[r];
        if (at->n != shares[0].n || at->span.total != total)
            return MOERT_FAIL(ERROR_MISMATCH,
                              "tree sum of %zu values over %zu leaves on rank 0, but of %zu over "
                              "%zu on rank %zu",
                              shares[0].n, total, at->n, at->span.total, r);
        if (at->span.count > total - next || (at->span.count > 0 && at->span.first != next))
            return MOERT_FAIL(ERROR_MISMATCH,
                              "tree sum: rank %zu brings leaves %zu + %zu of %zu where leaf %zu is "
                              "next",
                              r, at->span.first, at->span.count, total, next);
        next += at->span.count;
    }
    if (next != total)
        return MOERT_FAIL(ERROR_MISMATCH, "tree sum: the ranks bring %zu of %zu leaves", next,
                          total);
    return MOERT_OK;
}

static moert_status allocate(const moert_comm *comm, summation *s) {
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    MOERT_TRY(MOERT_NEW_ARRAY(&s->nodes_of, comm->size));
    for (size_t r = 0; r < comm->size; r++) {
        s->nodes_of[r] = moert_tree_nodes(s->shares[r].span, nodes);
        s->node_count += s->nodes_of[r];
    }
    MOERT_TRY(MOERT_NEW_ARRAY(&s->nodes, s->node_count));
    for (size_t r = 0, at = 0; r < comm->size; r++) {
        size_t count = moert_tree_nodes(s->shares[r].span, nodes);
        memcpy(s->nodes + at, nodes, count * sizeof *nodes);
        at += count;
    }
    size_t held = moert_max(s->node_count, 1), n = s->shares[0].n;
    s->columns = moert_max(ROUND_FLOATS / held, LEAST_COLUMNS);
    s->columns = moert_max(moert_min(s->columns, moert_ceil_div(n, comm->size)), 1);
    MOERT_TRY(MOERT_NEW_ARRAY(&s->send, comm->size * s->nodes_of[comm->rank] * s->columns));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->receive, held * s->columns));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->rows, held));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->send_rows, comm->size));
    return MOERT_NEW_ARRAY(&s->receive_rows, comm->size);
}

/* Sums `columns` columns, of which `rows` and `sum` point at the first. */
static moert_status sum_round(moert_comm *comm, summation *s, const float *node_rows,
                              size_t columns, float *sum) {
    size_t n = s->shares[0].n, per_rank = moert_ceil_div(columns, comm->size);
    size_t mine = s->nodes_of[comm->rank], total = s->shares[0].span.total, width = 0;
    float *packed = s->send;
    for (size_t owner = 0; owner < comm->size; owner++) {
        size_t start = moert_min(owner * per_rank, columns);
        size_t owned = moert_min(per_rank, columns - start);
        for (size_t i = 0; i < mine; i++, packed += owned)
            memcpy(packed, node_rows + i * n + start, owned * sizeof *packed);
        s->send_rows[owner] = mine * owned;
        if (owner == comm->rank)
            width = owned;
    }
    for (size_t r = 0; r < comm->size; r++)
        s->receive_rows[r] = s->nodes_of[r] * width;
    MOERT_TRY(moert_comm_alltoallv(comm, s->send, s->send_rows, s->receive, s->receive_rows,
                                   sizeof(float)));
    for (size_t i = 0; i < s->node_count; i++)
        s->rows[i] = s->receive + i * width;
    moert_tree_join(total, s->nodes, s->rows, s->node_count, s->receive, width);

    size_t *bytes = s->send_rows;
    for (size_t owner = 0; owner < comm->size; owner++) {
        size_t start = moert_min(owner * per_rank, columns);
        bytes[owner] = moert_min(per_rank, columns - start) * sizeof(float);
    }
    return moert_comm_allgatherv(comm, s->receive, bytes, sum);
}

moert_status moert_comm_tree_sum(moert_comm *comm, moert_span span, float *node_rows, size_t n,
                                 float *sum) {
    summation s = {0};
    share mine = {span, n};
    moert_status status = MOERT_NEW_ARRAY(&s.shares, comm->size);
    MOERT_TRY_OR(done, moert_comm_agree(comm, status));
    MOERT_TRY_OR(done, moert_comm_allgather(comm, &mine, sizeof mine, s.shares));
    status = check(s.shares, comm->size);
    if (status == MOERT_OK)
        status = allocate(comm, &s);
    MOERT_TRY_OR(done, moert_comm_agree(comm, status));
    size_t round = s.columns * comm->size;
    for (size_t at = 0; at < n; at += round)
        MOERT_TRY_OR(done, sum_round(comm, &s, node_rows + at, moert_min(round, n - at), sum + at));
done:
    release(&s);
    return status;
}
