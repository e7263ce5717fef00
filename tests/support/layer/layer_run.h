/* Runs a MoE layer over all ranks for tests, and gathers its results on every rank. */
#pragma once

#include "comm/comm.h"
#include "moert/layer.h"
#include "support/layer/layer_oracle.h"

enum { LAYER_TOKENS = 13 }; /* the oracle's tokens are a multiple, cut into unequal pieces */

/* One rank's part: its pieces of the tokens, its experts. */
typedef struct layer_run {
    moert_comm *world;
    moert_mesh *mesh;
    moert_layer *layer;
    const oracle_layer *oracle;
    bool deferred;
    size_t first_token;
    moert_batch batch;
    moert_buffer *x, *y, *dy, *dx, *aux;
} layer_run;

/* The results of all ranks, on every rank. */
typedef struct layer_results {
    float *y, *dx;                        /* [T,H] */
    float *gradient[MOERT_LAYER_TENSORS]; /* of all experts; NULL if the tensor has none */
} layer_results;

/* Creates a layer with `ep` ranks per set of experts (0: all), loads its weights, and splits the
 * oracle's tokens over the ranks; one of several ranks gets none. All functions here are
 * collective. */
layer_run layer_run_open(moert_context *context, size_t ep, const oracle_layer *oracle,
                         bool deferred);
void layer_run_close(const layer_run *run);

moert_status layer_run_forward(const layer_run *run);
/* Forward, backward, wgrad if deferred, and reduction of micro-batch `index` of `count`. Every
 * micro-batch has the same tokens. */
moert_status layer_run_step(layer_run *run, size_t index, size_t count);

/* Gathers the results; fails if replicas of an expert have different bits. */
layer_results layer_run_collect(const layer_run *run);

/* Opens a layer, makes one step, collects the results and closes it. */
layer_results layer_compute(moert_context *context, size_t ep, const oracle_layer *oracle);
