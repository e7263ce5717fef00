/*
 * The sum of all ranks' leaves by the fixed tree of base/tree.h, with the same bits for any number
 * of ranks and any slices.
 *
 * Every rank owns a slice of the columns, receives that slice of all ranks' nodes and joins them: a
 * reduce-scatter without floating-point reductions by MPI. Columns pass in rounds, so that scratch
 * does not grow with their number.
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
    size_t columns;                   /* of a slice in one round, at most */
    size_t widest;                    /* slice */
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
    const size_t held = moert_max(s->node_count, 1);
    s->columns = moert_max(ROUND_FLOATS / held, LEAST_COLUMNS);
    s->columns = moert_max(moert_min(s->columns, s->widest), 1);
    MOERT_TRY(MOERT_NEW_ARRAY(&s->send, comm->size * s->nodes_of[comm->rank] * s->columns));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->receive, held * s->columns));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->rows, held));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->send_rows, comm->size));
    return MOERT_NEW_ARRAY(&s->receive_rows, comm->size);
}

/* The columns of a slice that pass in the round which begins `at` columns after its start. */
static size_t width_of(const summation *s, const size_t *border, size_t owner, size_t at) {
    const size_t length = border[owner + 1] - border[owner];
    return moert_min(s->columns, length - moert_min(at, length));
}

static moert_status sum_round(moert_comm *comm, summation *s, const float *node_rows,
                              const size_t *border, size_t at, float *sum) {
    const size_t n = border[comm->size], mine = s->nodes_of[comm->rank];
    const size_t width = width_of(s, border, comm->rank, at);
    float *packed = s->send;
    for (size_t owner = 0; owner < comm->size; owner++) {
        const size_t start = border[owner] + at, owned = width_of(s, border, owner, at);
        for (size_t i = 0; i < mine && owned > 0; i++, packed += owned)
            memcpy(packed, node_rows + i * n + start, owned * sizeof *packed);
        s->send_rows[owner] = mine * owned;
        s->receive_rows[owner] = s->nodes_of[owner] * width;
    }
    MOERT_TRY(moert_comm_alltoallv(comm, s->send, s->send_rows, s->receive, s->receive_rows,
                                   sizeof(float)));
    for (size_t i = 0; i < s->node_count; i++)
        s->rows[i] = s->receive + i * width;
    if (width > 0)
        moert_tree_join(s->shares[0].span.total, s->nodes, s->rows, s->node_count, sum + at, width);
    return MOERT_OK;
}

moert_status moert_comm_tree_scatter(moert_comm *comm, moert_span span, const float *node_rows,
                                     const size_t *border, float *sum) {
    summation s = {0};
    share mine = {span, border[comm->size]};
    moert_status status = MOERT_NEW_ARRAY(&s.shares, comm->size);
    MOERT_TRY_OR(done, moert_comm_agree(comm, status));
    MOERT_TRY_OR(done, moert_comm_allgather(comm, &mine, sizeof mine, s.shares));
    for (size_t r = 0; r < comm->size; r++)
        s.widest = moert_max(s.widest, border[r + 1] - border[r]);
    status = check(s.shares, comm->size);
    if (status == MOERT_OK)
        status = allocate(comm, &s);
    MOERT_TRY_OR(done, moert_comm_agree(comm, status));
    for (size_t at = 0; at < s.widest; at += s.columns)
        MOERT_TRY_OR(done, sum_round(comm, &s, node_rows, border, at, sum));
done:
    release(&s);
    return status;
}

moert_status moert_comm_gather_slices(moert_comm *comm, const size_t *border, float *values) {
    size_t *bytes = comm->send_start;
    if (comm->size == 1)
        return MOERT_OK;
    for (size_t r = 0; r < comm->size; r++)
        bytes[r] = (border[r + 1] - border[r]) * sizeof *values;
    return moert_comm_allgatherv(comm, values + border[comm->rank], bytes, values);
}
