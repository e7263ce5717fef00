/* Runs a MoE layer over all ranks for tests, and brings its results to every rank. */
#pragma once

#include "comm/comm.h"
#include "moert/layer.h"
#include "support/layer/layer_oracle.h"

enum { LAYER_TOKENS = 13 }; /* the oracle's tokens are a multiple; in pieces of unequal lengths */

/* One rank's part: its pieces of the tokens, its experts. */
typedef struct layer_run {
    moert_comm *world;
    moert_layer *layer;
    const oracle_layer *oracle;
    bool deferred;
    size_t first_token;
    moert_batch batch;
    moert_buffer *ends, *x, *y, *dy, *dx, *aux;
} layer_run;

/* Results of all ranks, on every rank. */
typedef struct layer_results {
    float *y, *dx;                        /* [T,H] */
    float *gradient[MOERT_LAYER_TENSORS]; /* of all experts; NULL when there is none */
} layer_results;

/* Splits the oracle's tokens over the ranks, of which one gets none, and loads its weights.
 * Collective, as all here. */
moert_status layer_run_create(moert_context *context, moert_mesh *mesh, const oracle_layer *oracle,
                              bool deferred, layer_run *run);
void layer_run_destroy(layer_run *run);

/* Forward, backward, wgrad when deferred, and reduction of micro-batch `index` of `count`, all with
 * the same tokens. */
moert_status layer_run_step(layer_run *run, size_t index, size_t count);

/* ERROR_MISMATCH if replicas of an expert hold different bits. */
moert_status layer_run_collect(const layer_run *run, layer_results *results);
