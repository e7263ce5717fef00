/*
 * The sum of all ranks' leaves by the fixed tree of base/tree.h: every rank receives its shard of
 * all ranks' nodes and sums them.
 */
#include "comm/tree_sum.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/internal.h"

enum { LEAST_COLUMNS = 64, ROUNDS = 2, FIRST_TAG = 1, TAGS = 16384 };

size_t moert_tree_round_floats = (size_t)1 << 20;

/* The messages of a round: the columns [at, at + columns) of every shard. */
typedef struct sum_round {
    MPI_Request *requests; /* [room] */
    int count;
    float *received; /* nodes of the other ranks, at most [nodes][columns] */
} sum_round;

struct moert_tree_sum {
    moert_comm *comm;
    int tag;      /* only the messages of this sum use this tag, so rounds of several sums may be
                     posted in any order */
    size_t total; /* leaves */
    moert_tree_node *nodes; /* [node_count] the nodes of all ranks, ascending */
    size_t *first_node;     /* [R + 1] index of each rank's first node */
    size_t node_count;
    float **rows; /* [node_count] the nodes' values in a round */
    float *node_rows;
    const size_t *border;
    size_t shift;           /* a rank sums the shard of the rank `shift` positions before it */
    size_t columns, widest; /* number of columns of a round, and of the widest shard */
    size_t posted, summed;  /* number of columns of every shard that have been posted, and
                               summed, so far */
    sum_round round[ROUNDS];
};

moert_status moert_comm_gather_spans(moert_comm *comm, moert_span span, moert_span *spans) {
    size_t next = 0;
    MOERT_TRY(moert_comm_allgather(comm, &span, sizeof span, spans));
    const size_t total = spans[0].total;
    for (size_t r = 0; r < comm->size; r++) {
        const moert_span *at = &spans[r];
        if (at->total != total)
            return MOERT_FAIL(
                ERROR_MISMATCH,
                "tree sum: rank 0 expects %zu leaves in all, but rank %zu expects %zu leaves",
                total, r, at->total);
        if (at->count > total - next || (at->count > 0 && at->first != next))
            return MOERT_FAIL(
                ERROR_MISMATCH,
                "tree sum: rank %zu gives leaves [%zu, +%zu) of %zu, but leaf %zu is the next one",
                r, at->first, at->count, total, next);
        next += at->count;
    }
    if (next != total)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "tree sum: all ranks together have only %zu of %zu leaves", next, total);
    return MOERT_OK;
}

static void release(moert_tree_sum *sum) {
    for (size_t i = 0; i < ROUNDS; i++) {
        free(sum->round[i].requests);
        free(sum->round[i].received);
    }
    MOERT_FREE(sum->rows, sum->first_node, sum->nodes, sum);
}

static moert_status list_nodes(moert_tree_sum *sum, const moert_span *spans) {
    const size_t ranks = sum->comm->size;
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    MOERT_TRY(MOERT_NEW_ARRAY(&sum->first_node, ranks + 1));
    for (size_t r = 0; r < ranks; r++)
        sum->first_node[r + 1] = sum->first_node[r] + moert_tree_nodes(spans[r], nodes);
    sum->node_count = sum->first_node[ranks];
    MOERT_TRY(MOERT_NEW_ARRAY(&sum->rows, sum->node_count));
    MOERT_TRY(MOERT_NEW_ARRAY(&sum->nodes, sum->node_count));
    for (size_t r = 0; r < ranks; r++) {
        const size_t count = moert_tree_nodes(spans[r], nodes);
        memcpy(sum->nodes + sum->first_node[r], nodes, count * sizeof *nodes);
    }
    return MOERT_OK;
}

static size_t own_nodes(const moert_tree_sum *sum) {
    const size_t *first = sum->first_node + sum->comm->rank;
    return first[1] - first[0];
}

/* Allocates the rounds, at most as many as the columns need. */
static moert_status make_rounds(moert_tree_sum *sum) {
    const size_t ranks = sum->comm->size, mine = own_nodes(sum);
    for (size_t r = 0; r < ranks; r++)
        sum->widest = moert_max(sum->widest, sum->border[r + 1] - sum->border[r]);
    sum->columns =
        moert_max(moert_tree_round_floats / moert_max(sum->node_count, 1), LEAST_COLUMNS);
    sum->columns = moert_min(sum->columns, sum->widest);
    for (size_t i = 0; i < ROUNDS && i * sum->columns < sum->widest; i++) {
        const size_t room = (ranks - 1) * mine + sum->node_count - mine;
        MOERT_TRY(MOERT_NEW_ARRAY(&sum->round[i].requests, room));
        MOERT_TRY(
            moert_alloc(&sum->round[i].received, sum->node_count, sum->columns * sizeof(float)));
    }
    return MOERT_OK;
}

/* The number of columns of the shard that a rank sums in the round that begins at column `at` of
 * every shard; *start = the first of them. */
static size_t width_of(const moert_tree_sum *sum, size_t rank, size_t at, size_t *start) {
    const size_t ranks = sum->comm->size, owner = (rank + ranks - sum->shift) % ranks;
    const size_t length = sum->border[owner + 1] - sum->border[owner];
    *start = sum->border[owner] + at;
    return moert_min(sum->columns, length - moert_min(at, length));
}

static sum_round *round_at(moert_tree_sum *sum, size_t at) {
    return &sum->round[at / sum->columns % ROUNDS];
}

/* Posts a round's messages between this rank and every other rank, neighbouring ranks first. */
static moert_status post_round(moert_tree_sum *sum) {
    const moert_comm *comm = sum->comm;
    const size_t n = sum->border[comm->size];
    sum_round *round = round_at(sum, sum->posted);
    size_t start;
    const size_t width = width_of(sum, comm->rank, sum->posted, &start);
    round->count = 0;
    for (size_t apart = 1; apart < comm->size; apart++) {
        const size_t to = (comm->rank + apart) % comm->size;
        const size_t from = (comm->rank + comm->size - apart) % comm->size;
        for (size_t i = sum->first_node[from]; i < sum->first_node[from + 1] && width > 0; i++)
            MOERT_MPI(comm, MPI_Irecv(round->received + i * width, (int)width, MPI_FLOAT, (int)from,
                                      sum->tag, comm->handle, &round->requests[round->count++]));
        const size_t owned = width_of(sum, to, sum->posted, &start);
        for (size_t i = 0; i < own_nodes(sum) && owned > 0; i++)
            MOERT_MPI(comm,
                      MPI_Isend(sum->node_rows + i * n + start, (int)owned, MPI_FLOAT, (int)to,
                                sum->tag, comm->handle, &round->requests[round->count++]));
    }
    sum->posted += sum->columns;
    return MOERT_OK;
}

/* Sums the oldest posted round, whose messages are complete, and posts the next round. */
static moert_status finish_round(moert_tree_sum *sum) {
    const size_t rank = sum->comm->rank, n = sum->border[sum->comm->size];
    const sum_round *round = round_at(sum, sum->summed);
    size_t start;
    const size_t width = width_of(sum, rank, sum->summed, &start);
    for (size_t i = 0; i < sum->node_count; i++)
        sum->rows[i] = round->received + i * width;
    for (size_t i = 0; i < own_nodes(sum); i++)
        sum->rows[sum->first_node[rank] + i] = sum->node_rows + i * n + start;
    if (width > 0)
        moert_tree_sum_nodes(sum->total, sum->nodes, sum->rows, sum->node_count,
                             sum->node_rows + start, width);
    sum->summed += sum->columns;
    return sum->posted < sum->widest ? post_round(sum) : MOERT_OK;
}

moert_status moert_tree_sum_start(moert_comm *comm, const moert_span *spans, float *node_rows,
                                  const size_t *border, moert_tree_sum **sum) {
    return moert_tree_sum_start_shifted(comm, spans, node_rows, border, 0, sum);
}

moert_status moert_tree_sum_start_shifted(moert_comm *comm, const moert_span *spans,
                                          float *node_rows, const size_t *border, size_t shift,
                                          moert_tree_sum **sum) {
    moert_tree_sum *made;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    made->comm = comm;
    made->tag = FIRST_TAG + comm->sums;
    comm->sums = (comm->sums + 1) % TAGS;
    made->total = spans[0].total;
    made->node_rows = node_rows;
    made->border = border;
    made->shift = shift % comm->size;
    MOERT_TRY_OR(fail, list_nodes(made, spans));
    MOERT_TRY_OR(fail, make_rounds(made));
    for (size_t i = 0; i < ROUNDS && made->posted < made->widest; i++)
        MOERT_TRY(
            post_round(made)); /* after a failure, do not free `made`: messages in flight still use
                                  it and node_rows */
    *sum = made;
    return MOERT_OK;
fail:
    release(made);
    return status;
}

moert_status moert_tree_sum_progress(moert_tree_sum *sum) {
    for (int done = 1; done != 0 && sum->summed < sum->widest;) {
        sum_round *round = round_at(sum, sum->summed);
        MOERT_MPI(sum->comm,
                  MPI_Testall(round->count, round->requests, &done, moert_statuses_ignore));
        if (done != 0)
            MOERT_TRY(finish_round(sum));
    }
    return MOERT_OK;
}

moert_status moert_tree_sum_wait(moert_tree_sum *sum) {
    if (sum == NULL)
        return MOERT_OK;
    while (sum->summed < sum->widest) {
        sum_round *round = round_at(sum, sum->summed);
        MOERT_TRY(moert_comm_check());
        MOERT_TRY(moert_mpi_wait(sum->comm, round->count, round->requests));
        MOERT_TRY(finish_round(sum));
    }
    release(sum);
    return MOERT_OK;
}

moert_status moert_comm_gather_shards(moert_comm *comm, const size_t *border, float *values) {
    size_t *bytes = comm->send_start;
    if (comm->size == 1)
        return MOERT_OK;
    for (size_t r = 0; r < comm->size; r++)
        bytes[r] = (border[r + 1] - border[r]) * sizeof *values;
    return moert_comm_allgatherv(comm, values + border[comm->rank], bytes, values);
}
