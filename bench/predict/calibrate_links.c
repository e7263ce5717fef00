/* Measures links between ranks, pair by pair and all at once. */
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "tools/common/rates.h"
#include "bench/predict/calibrate.h"
#include "tools/common/links.h"

enum { SAMPLES = 9 };
#define LINK_SECONDS 3.0

/* ---- links ---- */

/* *line = the mean of the links to all other ranks of the same colour. If there are no such ranks,
 * *line is unchanged. */
static moert_status measure_line(moert_comm *world, size_t color, bench_line *line) {
    moert_comm *group;
    moert_link *links = NULL;
    MOERT_TRY(moert_comm_split(world, color, &group));
    const size_t size = moert_comm_size(group);
    moert_status status = MOERT_NEW_ARRAY(&links, size);
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    MOERT_TRY_OR(done, moert_links_measure(group, LINK_SECONDS, links));
    if (size > 1)
        *line = (bench_line){0.0, 0.0};
    for (size_t r = 0; r < size; r++) {
        line->us += size > 1 ? links[r].us / (double)(size - 1) : 0.0;
        line->gbps += size > 1 ? links[r].gbps / (double)(size - 1) : 0.0;
    }
done:
    free(links);
    moert_comm_destroy(group);
    return status;
}

moert_status bench_calibrate_links(moert_comm *world, bench_machine *m) {
    m->inside = (bench_line){1.0, m->host_gbps / 2.0};
    MOERT_TRY(measure_line(world, moert_comm_node(world, moert_comm_rank(world)), &m->inside));
    m->between = m->inside;
    return measure_line(world, moert_comm_node_rank(world), &m->between);
}

/* ---- crowds ---- */

/* *gbps = the GB/s in each direction on the slowest rank, while every rank sends `bytes` to every
 * other rank; the median of several samples. Collective. */
static moert_status time_crowd(moert_comm *comm, size_t bytes, double *gbps) {
    const size_t ranks = moert_comm_size(comm);
    double samples[SAMPLES];
    unsigned char *send = NULL, *receive = NULL;
    size_t *rows = NULL;
    moert_status status = MOERT_NEW_ARRAY(&rows, ranks);
    if (status == MOERT_OK)
        status = moert_alloc(&send, ranks, bytes);
    if (status == MOERT_OK)
        status = moert_alloc(&receive, ranks, bytes);
    MOERT_TRY_OR(done, moert_comm_agree(comm, status));
    for (size_t r = 0; r < ranks; r++)
        rows[r] = r != moert_comm_rank(comm) ? bytes : 0;
    for (int i = 0; i < SAMPLES; i++) {
        MOERT_TRY_OR(done, moert_comm_barrier(comm));
        const uint64_t start = moert_clock_ns();
        MOERT_TRY_OR(done, moert_comm_alltoallv(comm, send, rows, receive, rows, 1));
        moert_of_ranks ns;
        MOERT_TRY_OR(done, moert_rates_over_ranks(comm, (double)(moert_clock_ns() - start), &ns));
        samples[i] = ns.largest;
    }
    *gbps = (double)((ranks - 1) * bytes) / moert_rates_median(samples, SAMPLES);
done:
    MOERT_FREE(rows, receive, send);
    return status;
}

moert_status bench_calibrate_crowd(moert_context *context, const bench_work *work,
                                   bench_machine *machine) {
    moert_comm *world = moert_context_comm(context), *peers;
    const size_t nodes = moert_comm_node_count(world);
    const size_t bytes = work->tokens * work->topk * work->hidden * sizeof(float);
    double gbps = 0.0;
    if (nodes < 3)
        return moert_comm_agree(world, MOERT_FAIL(ERROR_USAGE,
                                                  "--crowd needs three nodes or more, "
                                                  "not %zu",
                                                  nodes));
    MOERT_TRY(moert_comm_split(world, moert_comm_node_rank(world), &peers));
    moert_status status = time_crowd(peers, bytes / nodes, &gbps);
    moert_comm_destroy(peers);
    MOERT_TRY(moert_comm_agree(world, status));
    machine->crowd = fmin(gbps / machine->between.gbps, 1.0);
    machine->crowd_nodes = (double)nodes;
    return MOERT_OK;
}
