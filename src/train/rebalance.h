/* Moves experts between the steps of a training, so that the ranks get equal numbers of rows. */
#pragma once

#include "train/optimizer.h"

typedef struct moert_rebalance moert_rebalance;

/* What a rebalance has done. Loads are the rows of the busiest rank / mean, in the worst layer. */
typedef struct moert_rebalanced {
    size_t experts; /* experts and clones that have moved, in all layers */
    double before, after;
    double taken_s;
} moert_rebalanced;

/* `run` is of the optimizer's model. `clones`: experts with more rows than the ranks' mean get
 * clones in empty slots. Errors: ERROR_MEMORY. Not collective. */
moert_status moert_rebalance_create(moert_optimizer *optimizer, moert_run *run, bool clones,
                                    moert_rebalance **rebalance);
void moert_rebalance_destroy(moert_rebalance *rebalance); /* NULL is legal. */

/* Adds the rows of the run's last loss. At the first micro-batch of a step (`first`), the rows of
 * earlier steps lose an eighth before. NULL is legal. Not collective. */
void moert_rebalance_count(moert_rebalance *rebalance, bool first);

/* The rows of the busiest rank / mean, in the worst layer, of the step so far. Not collective. */
double moert_rebalance_load(const moert_rebalance *rebalance);

/* The clones in all layers. Not collective. */
size_t moert_rebalance_clones(const moert_rebalance *rebalance);

/*
 * Moves the experts of those layers in which the busiest rank's rows fall by at least a thirtieth,
 * or a thirtieth of all rows no longer travels between nodes.
 * Call it between steps, while no save is in progress. It ends the run's passes. Collective.
 * Errors: those of moert_move_experts.
 */
moert_status moert_rebalance_run(moert_rebalance *rebalance, moert_rebalanced *done);
