/* Implements reduce-scatter and all-gather between the devices of one host (exchange/peers.h). */
#include "exchange/peers.h"

#include <stdlib.h>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "exchange/internal.h"
#include "exchange/window/flags.h"

/* Floats of a half of the window. A round moves so many floats that the time of its launches is
 * negligible: on an H200 a barrier takes about 10 us, and 32 MiB from another GPU take 100 us. */
enum { HALVES = 2, HALF_FLOATS = 1 << 18, GPU_HALF_FLOATS = 1 << 23 };
/* A round's columns of a shard are a multiple of STEP, so that staged rows are aligned. */
enum { STEP = 128 };

struct moert_peers {
    moert_device *device;
    moert_comm *comm;
    moert_flags *flags;
    moert_storage window; /* f32 [HALVES][half_floats] */
    size_t counted_bytes; /* moert_device_count */
    uint64_t rounds;      /* number of rounds so far; round i uses half i % HALVES */
};

static size_t half_floats(const moert_device *device) {
    return moert_by_form(device, HALF_FLOATS, GPU_HALF_FLOATS);
}

size_t moert_peers_bytes(const moert_device *device) {
    return HALVES * half_floats(device) * sizeof(float);
}

/* ---- rounds ---- */

/* The columns of a round: at most `columns` columns of every shard, from column `at` of the shard
 * on. */
typedef struct peers_round {
    const size_t *border;
    size_t at, columns;
    size_t half; /* offset in floats of this round's half in the window */
} peers_round;

/* The number of columns of a rank's shard in a round; *start = the first of them. */
static size_t width_of(const peers_round *round, size_t owner, size_t *start) {
    const size_t length = round->border[owner + 1] - round->border[owner];
    *start = round->border[owner] + round->at;
    return moert_min(round->columns, length - moert_min(round->at, length));
}

static size_t widest_shard(const moert_peers *peers, const size_t *border) {
    size_t widest = 0;
    for (size_t r = 0; r < moert_comm_size(peers->comm); r++)
        widest = moert_max(widest, border[r + 1] - border[r]);
    return widest;
}

/* The offset of the half of the window that the next round uses. */
static size_t next_half(moert_peers *peers) {
    return peers->rounds++ % HALVES * half_floats(peers->device);
}

/* The grid of a kernel that works on n columns. */
static moert_grid grid_of(const moert_peers *peers, size_t n) {
    const size_t columns = moert_by_form(peers->device, MOERT_PEERS_COLUMNS,
                                         MOERT_PEERS_GPU_COLUMNS * MOERT_EXCHANGE_GPU_ROW_GROUPS);
    return (moert_grid){moert_ceil_div(n, columns), 1, 1};
}

/* window[to, to + count) = source[from, from + count), in floats. */
static moert_status stage(const moert_peers *peers, const moert_buffer *source, size_t from,
                          size_t to, size_t count) {
    const moert_stage_args args = {.from = from, .to = to, .n = count};
    if (count == 0)
        return MOERT_OK;
    moert_profile_work(peers->device, "exchange/peers", 0.0, 2 * sizeof(float) * (double)count);
    return MOERT_RUN(peers->device,
                     MOERT_PROGRAM(peers->device, "exchange/peers", from | to | count), "stage",
                     grid_of(peers, count), MOERT_ARG(source), MOERT_ARG(peers->window.rows),
                     MOERT_STRUCT(args));
}

/* Whether the tree over the rows joins neighbours, then neighbouring pairs, and so on. */
static bool in_pairs(const moert_peers_args *args) {
    if (args->nodes > MOERT_PEERS_FEW)
        return false;
    for (uint32_t i = 0; i + 1 < args->nodes; i++) {
        uint32_t ones = 0;
        while (i >> ones & 1)
            ones++;
        if (args->node[i].joins != ones)
            return false;
    }
    return true; /* the last row completes all sums, so its `joins` needs no check */
}

/* Sums args->n columns of all rows. */
static moert_status fetch(const moert_peers *peers, const moert_peers_args *args,
                          moert_buffer *target) {
    const char *kernel = in_pairs(args) ? "sum_pairs" : "sum_tree";
    const size_t sizes = args->n | args->target;
    if (args->n == 0)
        return MOERT_OK;
    moert_profile_work(peers->device, "exchange/peers", 0.0,
                       sizeof(float) * (double)((args->nodes + 1) * args->n));
    return MOERT_RUN(peers->device, MOERT_PROGRAM(peers->device, "exchange/peers", sizes), kernel,
                     grid_of(peers, args->n), MOERT_ARG(peers->window.addresses), MOERT_ARG(target),
                     MOERT_STRUCT(*args));
}

/* ---- sums ---- */

/* The number of nodes of all ranks; *most = the largest number of nodes of one rank. */
static size_t count_nodes(const moert_peers *peers, const moert_span *spans, size_t *most) {
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    size_t sum = 0;
    *most = 0;
    for (size_t r = 0; r < moert_comm_size(peers->comm); r++) {
        const size_t count = moert_tree_nodes(spans[r], nodes);
        sum += count;
        *most = moert_max(*most, count);
    }
    return sum;
}

bool moert_peers_can_sum(const moert_peers *peers, const moert_span *spans) {
    size_t most;
    return count_nodes(peers, spans, &most) <= MOERT_PEERS_NODES;
}

/* Lists the nodes of this rank's shard in all windows. A window holds [owner][node][columns]. */
static void list_nodes(const moert_peers *peers, const moert_peers_sum *sum,
                       const peers_round *round, moert_peers_args *args) {
    moert_tree_node nodes[MOERT_TREE_MAX_NODES], path[MOERT_TREE_MAX_NODES];
    size_t joined = 0;
    for (size_t r = 0; r < moert_comm_size(peers->comm); r++) {
        const size_t count = moert_tree_nodes(sum->spans[r], nodes);
        for (size_t i = 0; i < count; i++) {
            const size_t row = moert_comm_rank(peers->comm) * count + i, before = joined;
            moert_tree_append(path, &joined, nodes[i], sum->spans[r].total);
            args->node[args->nodes++] =
                (moert_peers_node){.rank = (uint32_t)r,
                                   .at = (uint32_t)(round->half + row * round->columns),
                                   .joins = (uint32_t)(before + 1 - joined)};
        }
    }
}

static moert_status sum_round(const moert_peers *peers, const moert_peers_sum *sum,
                              const peers_round *round) {
    const size_t ranks = moert_comm_size(peers->comm), me = moert_comm_rank(peers->comm);
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    const size_t count = moert_tree_nodes(sum->spans[me], nodes);
    size_t start;
    for (size_t r = 0; r < ranks; r++) {
        const size_t width = width_of(round, r, &start);
        for (size_t i = 0; i < count; i++)
            MOERT_TRY(stage(peers, sum->node_rows, i * round->border[ranks] + start,
                            round->half + (r * count + i) * round->columns, width));
    }
    MOERT_TRY(moert_flags_barrier(peers->flags));
    moert_peers_args args = {.n = width_of(round, me, &start), .accumulate = sum->accumulate};
    args.target = start;
    list_nodes(peers, sum, round, &args);
    return fetch(peers, &args, sum->sum);
}

moert_status moert_peers_reduce_scatter(moert_peers *peers, const moert_peers_sum *sum) {
    const size_t widest = widest_shard(peers, sum->border);
    size_t most;
    (void)count_nodes(peers, sum->spans, &most);
    const size_t rows = moert_comm_size(peers->comm) * moert_max(most, 1);
    peers_round round = {.border = sum->border,
                         .columns = half_floats(peers->device) / rows / STEP * STEP};
    for (; round.at < widest; round.at += round.columns) {
        round.half = next_half(peers);
        MOERT_TRY(sum_round(peers, sum, &round));
    }
    return MOERT_OK;
}

/* ---- gathers ---- */

static moert_status gather_round(const moert_peers *peers, const peers_round *round,
                                 moert_buffer *values) {
    const size_t me = moert_comm_rank(peers->comm);
    size_t start;
    const size_t width = width_of(round, me, &start);
    MOERT_TRY(stage(peers, values, start, round->half, width));
    MOERT_TRY(moert_flags_barrier(peers->flags));
    for (size_t r = 0; r < moert_comm_size(peers->comm); r++) {
        moert_peers_args args = {.n = width_of(round, r, &start), .nodes = 1};
        args.target = start;
        args.node[0] = (moert_peers_node){.rank = (uint32_t)r, .at = (uint32_t)round->half};
        if (r != me)
            MOERT_TRY(fetch(peers, &args, values));
    }
    return MOERT_OK;
}

moert_status moert_peers_all_gather(moert_peers *peers, const size_t *border,
                                    moert_buffer *values) {
    const size_t widest = widest_shard(peers, border);
    peers_round round = {.border = border, .columns = half_floats(peers->device)};
    for (; round.at < widest; round.at += round.columns) {
        round.half = next_half(peers);
        MOERT_TRY(gather_round(peers, &round, values));
    }
    return MOERT_OK;
}

moert_status moert_peers_settle(moert_peers *peers) {
    if (peers == NULL)
        return MOERT_OK;
    MOERT_TRY(moert_flags_fetch_verdict(peers->flags));
    MOERT_TRY(moert_device_finish(peers->device));
    return moert_flags_check_verdict(peers->flags);
}

/* ---- creation ---- */

enum { PROBE_ROUNDS = 2 * HALVES + 1 };

static float probe_value(size_t rank, size_t round) {
    return (float)(rank * PROBE_ROUNDS + round);
}

/* The memory of the start-up test. */
typedef struct peers_probe {
    moert_buffer *values; /* f32 [ranks, STEP] */
    float *host;          /* [ranks, STEP] `values` on the host */
    size_t *border;       /* [ranks + 1] */
} peers_probe;

static moert_status open_probe(const moert_peers *peers, peers_probe *p) {
    const size_t ranks = moert_comm_size(peers->comm);
    MOERT_TRY(moert_buffer_create(peers->device, ranks * STEP * sizeof *p->host, &p->values));
    MOERT_TRY(moert_alloc(&p->host, ranks * STEP, sizeof *p->host));
    MOERT_TRY(MOERT_NEW_ARRAY(&p->border, ranks + 1));
    for (size_t r = 0; r <= ranks; r++)
        p->border[r] = r * STEP;
    return MOERT_OK;
}

/* Gathers known numbers from all ranks, and checks the result. */
static moert_status probe_round(moert_peers *peers, const peers_probe *p, size_t round) {
    const size_t ranks = moert_comm_size(peers->comm);
    const size_t first = moert_comm_rank(peers->comm) * STEP;
    for (size_t i = first; i < first + STEP; i++)
        p->host[i] = probe_value(i / STEP, round);
    MOERT_TRY(moert_buffer_write(p->values, first * sizeof *p->host, p->host + first,
                                 STEP * sizeof *p->host));
    MOERT_TRY(moert_peers_all_gather(peers, p->border, p->values));
    MOERT_TRY(moert_buffer_read(p->values, 0, p->host, ranks * STEP * sizeof *p->host));
    for (size_t i = 0; i < ranks * STEP; i++)
        if (p->host[i] != probe_value(i / STEP, round))
            return MOERT_FAIL(ERROR_UNSUPPORTED,
                              "kernels read wrong values from the memory of rank %zu", i / STEP);
    return moert_peers_settle(peers);
}

/* Several rounds detect a device that reads a stale copy. All ranks return the same failure. */
static moert_status probe(moert_peers *peers) {
    peers_probe p = {.values = NULL};
    moert_status status = moert_comm_agree(peers->comm, open_probe(peers, &p));
    for (size_t round = 0; round < PROBE_ROUNDS && status == MOERT_OK; round++)
        status = moert_comm_agree(peers->comm, probe_round(peers, &p, round));
    moert_buffer_destroy(p.values);
    MOERT_FREE(p.border, p.host);
    return status;
}

/* Creates flags and windows, and tests them. All ranks return the same failure. */
static moert_status open_peers(moert_peers *peers) {
    const moert_exchange_memory *memory = moert_memory_of(peers->device);
    const size_t bytes = moert_peers_bytes(peers->device);
    moert_comm *comm = peers->comm;
    MOERT_TRY(
        moert_flags_create(peers->device, comm, memory, moert_flags_patience_ns(), &peers->flags));
    moert_status status = memory->create(peers->device, comm, bytes, &peers->window);
    if (status == MOERT_OK)
        moert_device_count(peers->device, peers->counted_bytes = bytes, 0);
    MOERT_TRY(moert_comm_agree(comm, status));
    return probe(peers);
}

moert_status moert_peers_create(moert_device *device, moert_comm *comm, moert_peers **peers) {
    char reason[MOERT_EXCHANGE_REASON_BYTES];
    moert_peers *made = NULL;
    bool wanted;
    *peers = NULL;
    if (moert_comm_size(comm) == 1 ||
        !moert_exchange_goes_on(comm, moert_memory_look(moert_memory_of(device), device, comm),
                                reason))
        return MOERT_OK;
    MOERT_TRY(moert_flags_wanted(device, comm, &wanted));
    if (!wanted)
        return MOERT_OK;
    moert_status status = MOERT_NEW(&made);
    if (status == MOERT_OK)
        *made = (moert_peers){.device = device, .comm = comm};
    status = moert_comm_agree(comm, status);
    if (status == MOERT_OK)
        status = open_peers(made);
    if (status == MOERT_OK) {
        MOERT_INFO("the devices sum gradients and gather weights without the hosts");
        *peers = made;
        return MOERT_OK;
    }
    moert_peers_destroy(made);
    if (moert_config_get()->sync == MOERT_SYNC_DEVICE)
        return status;
    MOERT_INFO("gradients and weights pass through host memory: %s", moert_last_error());
    return MOERT_OK;
}

void moert_peers_destroy(moert_peers *peers) {
    if (peers == NULL)
        return;
    moert_device_finish(peers->device);
    moert_flags_destroy(peers->flags);
    moert_storage_release(&peers->window);
    moert_device_count(peers->device, 0, peers->counted_bytes);
    free(peers);
}
