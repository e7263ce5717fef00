/*
 * The observer that moves experts between the steps of a training, so that the ranks get equal
 * numbers of rows. The observer moves a layer's experts if the move lowers the rows of the busiest
 * rank by more than 1/30, or if it keeps more than 1/30 of the layer's rows from travelling between
 * nodes. With clones, experts with more rows than the mean over the ranks get clones in empty
 * slots. All ranks have the same counts of rows, so they choose the same moves.
 */
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "plan/balance.h"
#include "train/internal.h"
#include "train/move.h"

enum {
    /* the moves of a layer must save more than 1/WORTH of the busiest rank's rows, or keep more
     * than 1/WORTH of the layer's rows from travelling between nodes */
    WORTH = 30,
    MEMORY = 8 /* each step takes 1/MEMORY off the rows of earlier steps */
};

/* The effect of the last moves. `before` and `after` are the rows of the busiest rank divided by
 * the mean, in the layer where this ratio is largest. */
typedef struct moves {
    size_t experts; /* number of experts and clones that have moved, over all layers */
    double before, after;
    double taken_s;
} moves;

typedef struct moert_rebalance {
    moert_optimizer *optimizer;
    moert_run *run;
    size_t layers, experts;
    bool clones;
    uint64_t *rows;      /* [layers,E] rows of each expert, smoothed over earlier steps */
    uint32_t *expert;    /* [slots of all ranks] the expert in each slot */
    size_t nodes;        /* number of nodes; 0: traffic between nodes is ignored */
    uint32_t *node;      /* [ranks] */
    uint64_t *node_rows; /* [layers,nodes,E] `rows` split by the node of the tokens */
    moves last;          /* moves since the last row of metrics */
} moert_rebalance;

static bool wanted(const moert_trainer *t) {
    return t->options->rebalance_every > 0 &&
           moert_comm_size(moert_model_mesh(t->model)->experts) > 1;
}

static void close(void *self) {
    moert_rebalance *r = self;
    MOERT_FREE(r->node_rows, r->node, r->expert, r->rows);
}

static moert_status create(moert_rebalance *made, const moert_trainer *t) {
    const moert_model *model = t->model;
    made->optimizer = t->optimizer;
    made->run = t->run;
    made->clones = t->options->clones;
    made->layers = moert_model_moe_layers(model);
    made->experts = moert_model_describe(model)->router.experts;
    const moert_mesh *mesh = moert_model_mesh(model);
    const size_t ranks = moert_comm_size(mesh->experts),
                 nodes = moert_comm_node_count(mesh->experts);
    /* With replicas, all EP groups share one placement, but they are on different nodes. So nodes
     * are ignored. */
    made->nodes = nodes > 1 && moert_comm_size(mesh->replicas) == 1 ? nodes : 0;
    const size_t slots =
        made->layers > 0 ? moert_expert_map_slots(moert_model_placement(model, 0)) : 0;
    MOERT_TRY(MOERT_NEW_ARRAY(&made->rows, made->layers * made->experts));
    MOERT_TRY(MOERT_NEW_ARRAY(&made->expert, slots));
    MOERT_TRY(MOERT_NEW_ARRAY(&made->node, ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&made->node_rows, made->layers * made->nodes * made->experts));
    for (size_t r = 0; r < ranks; r++)
        made->node[r] = (uint32_t)moert_comm_node(mesh->experts, r);
    return MOERT_OK;
}

static moert_status open(void *self, moert_trainer *t) {
    return moert_comm_agree(t->world, create(self, t));
}

/* Adds counts[n] to smoothed sums. With `first`, first reduces the sums by 1/MEMORY. */
static void add(uint64_t *sums, const uint64_t *counts, size_t n, bool first) {
    for (size_t i = 0; i < n; i++)
        sums[i] += counts[i] - (first ? sums[i] / MEMORY : 0);
}

/* Adds the rows of the last loss's batch. In the first micro-batch of a step, first reduces the
 * rows of earlier steps by 1/MEMORY. */
static moert_status count(void *self, moert_trainer *t) {
    moert_rebalance *rebalance = self;
    const bool first = t->micro_batch == 0;
    const size_t n = rebalance->layers * rebalance->experts;
    add(rebalance->rows, moert_run_expert_counts(rebalance->run), n, first);
    if (rebalance->nodes > 0)
        add(rebalance->node_rows, moert_run_node_counts(rebalance->run), rebalance->nodes * n,
            first);
    return MOERT_OK;
}

/* The rows of the busiest rank divided by the mean, in the layer where this ratio is largest.
 * counts [layers,E]. */
static double load_of(const moert_rebalance *rebalance, const uint64_t *counts) {
    double worst = 1.0;
    for (size_t l = 0; l < rebalance->layers; l++) {
        const moert_expert_map *map = moert_model_placement(rebalance->optimizer->model, l);
        worst = fmax(worst, moert_expert_map_load(map, map->expert, counts + l * map->experts));
    }
    return worst;
}

/* The number of clones, over all layers. */
static size_t count_clones(const moert_rebalance *rebalance) {
    size_t clones = 0;
    for (size_t l = 0; l < rebalance->layers; l++) {
        const moert_expert_map *map = moert_model_placement(rebalance->optimizer->model, l);
        for (size_t e = 0; e < map->experts; e++)
            clones += map->chain[e] - 1;
    }
    return clones;
}

static size_t count_moved(const moert_expert_map *map, const uint32_t *expert) {
    size_t moved = 0;
    for (size_t s = 0; s < moert_expert_map_slots(map); s++)
        moved += expert[s] != MOERT_NO_EXPERT && expert[s] != map->expert[s];
    return moved;
}

/* Finds a better placement of a layer's experts. *saved = the fraction of the layer's rows that the
 * new placement keeps from travelling between nodes. */
static moert_status find_placement(moert_rebalance *rebalance, size_t layer, double *saved) {
    const moert_expert_map *map = moert_model_placement(rebalance->optimizer->model, layer);
    const size_t experts = rebalance->experts;
    const uint64_t *rows = rebalance->rows + layer * experts;
    uint32_t *expert = rebalance->expert;
    const moert_row_sources from = {rebalance->nodes, rebalance->node,
                                    rebalance->node_rows + layer * rebalance->nodes * experts};
    *saved = 0.0;
    MOERT_TRY(moert_expert_map_balance(map, rows, rebalance->clones, expert));
    if (rebalance->nodes == 0)
        return MOERT_OK;
    MOERT_TRY(moert_expert_map_gather(map, rows, &from, expert));
    *saved = moert_expert_map_crossing(map, map->expert, &from) -
             moert_expert_map_crossing(map, expert, &from);
    return MOERT_OK;
}

static moert_status run_layer(moert_rebalance *rebalance, size_t layer, moves *done) {
    const moert_expert_map *map = moert_model_placement(rebalance->optimizer->model, layer);
    const uint64_t *rows = rebalance->rows + layer * rebalance->experts;
    double saved;
    MOERT_TRY(find_placement(rebalance, layer, &saved));
    const double before = moert_expert_map_load(map, map->expert, rows);
    double after = moert_expert_map_load(map, rebalance->expert, rows);
    const bool pays = before - after > before / WORTH || saved > 1.0 / WORTH;
    after = pays ? after : before;
    done->before = fmax(done->before, before);
    done->after = fmax(done->after, after);
    if (!pays)
        return MOERT_OK;
    done->experts += count_moved(map, rebalance->expert);
    return moert_move_experts(rebalance->optimizer, layer, rebalance->expert, NULL);
}

/* Moves experts if a move is due. First waits for a save in progress, which saves experts by their
 * old slots. */
static moert_status run(void *self, moert_trainer *t) {
    moert_rebalance *rebalance = self;
    moves *done = &rebalance->last;
    const uint64_t start = moert_clock_ns();
    if (!moert_trainer_due(t->options->rebalance_every, t->state.step, t->options->steps))
        return MOERT_OK;
    moert_trainer_end_save(t);
    *done = (moves){.before = 1.0, .after = 1.0};
    moert_run_end(rebalance->run);
    for (size_t l = 0; l < rebalance->layers; l++)
        MOERT_TRY(run_layer(rebalance, l, done));
    done->taken_s = (double)(moert_clock_ns() - start) * 1e-9;
    if (done->experts > 0)
        MOERT_INFO("%zu experts and clones have moved in %.3f s; there are %zu clones now; the "
                   "busiest rank has %.3f times the mean rows, and had %.3f times before",
                   done->experts, done->taken_s, count_clones(rebalance), done->after,
                   done->before);
    return MOERT_OK;
}

static moert_status report(void *self, moert_trainer *t) {
    moert_rebalance *rebalance = self;
    t->row.rank_load = load_of(rebalance, t->counts);
    t->row.clones = (double)count_clones(rebalance);
    t->row.moved_experts = (double)rebalance->last.experts;
    t->row.move_s = rebalance->last.taken_s;
    rebalance->last = (moves){0};
    return MOERT_OK;
}

const moert_observer moert_observer_rebalance = {
    wanted,
    sizeof(moert_rebalance),
    open,
    close,
    {[MOERT_EVENT_LOSS] = count, [MOERT_EVENT_ROW] = report, [MOERT_EVENT_BETWEEN] = run}};
