/* Runs a MoE layer over all ranks for tests, and gathers its results on every rank. */
#pragma once

#include "comm/comm.h"
#include "moert/layer.h"
#include "support/layer/layer_oracle.h"

/* the oracle's tokens are a multiple of this, and are cut into pieces of unequal sizes */
enum { LAYER_TOKENS = 13 };

/* One rank's part: its pieces of the tokens, its experts. */
typedef struct layer_run {
    moert_comm *world;
    moert_mesh *mesh;
    moert_layer *layer;
    moert_pass *pass; /* of the last forward, or NULL */
    const oracle_layer *oracle;
    bool deferred;
    size_t first_token;
    moert_batch batch;
    moert_buffer *x, *y, *dy, *dx, *aux;
} layer_run;

/* The results of all ranks, on every rank. */
typedef struct layer_results {
    float *y, *dx;                        /* [T,H] */
    float *gradient[MOERT_LAYER_TENSORS]; /* gradient of all experts; NULL if the tensor has none */
} layer_results;

/* Creates a layer with `ep` ranks per set of experts (0: all), loads its weights, and splits the
 * oracle's tokens over the ranks. If there are several ranks, one gets no tokens. All functions of
 * this file are collective. */
layer_run layer_run_open(moert_context *context, size_t ep, const oracle_layer *oracle,
                         bool deferred);
/* The same on a mesh, which layer_run_close destroys. */
layer_run layer_run_open_on(moert_context *context, moert_mesh *mesh, const oracle_layer *oracle,
                            bool deferred);
void layer_run_close(const layer_run *run);

/* Ends the pass of the last forward first. */
moert_status layer_run_forward(layer_run *run);
/* Runs forward, backward, wgrad if it is deferred, and reduction of micro-batch `index` of `count`.
 * Every micro-batch has the same tokens. */
moert_status layer_run_step(layer_run *run, size_t index, size_t count);

/* Gathers the results; fails if replicas of an expert have different bits. */
layer_results layer_run_collect(const layer_run *run);

/* Opens a layer, makes one step, collects the results and closes it. */
layer_results layer_compute(moert_context *context, size_t ep, const oracle_layer *oracle);
