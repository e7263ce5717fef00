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
    const oracle_layer *oracle;
    float *y, *dx;                        /* [T,H] */
    float *gradient[MOERT_LAYER_TENSORS]; /* gradient of all experts; NULL if the tensor has none */
} layer_results;

/* How a layer runs; all zero: on test_context, with one set of experts. */
typedef struct layer_setup {
    moert_context *context; /* NULL: test_context */
    size_t ep;              /* ranks per set of experts; 0: all */
    bool exact;             /* sets of experts are exact replicas */
    bool deferred;          /* wgrad is deferred */
} layer_setup;

/* Creates a layer, loads its weights, and splits the oracle's tokens over the ranks. If there are
 * several ranks, one gets no tokens. The running test owns the layer. All functions of this file
 * are collective. */
layer_run layer_run_open(const oracle_layer *oracle, layer_setup how);
/* The same for the LAYER_TOKENS tokens of an oracle with these options. */
layer_run layer_run_of(moert_layer_options options);
/* Another layer on a mesh. The running test owns it. */
moert_layer *open_layer(moert_mesh *mesh, const moert_layer_options *options);

/* Ends the pass of the last forward first. */
moert_status layer_run_forward(layer_run *run);
/* Runs forward, backward, wgrad if it is deferred, and reduction of micro-batch `index` of `count`.
 * Every micro-batch has the same tokens. */
moert_status layer_run_step(layer_run *run, size_t index, size_t count);

/* Rank 0's first token becomes NaN, the forward fails on all ranks, and the token gets its value
 * back. */
void layer_run_fail_by_nan(layer_run *run);

/* Gathers the results; fails if replicas of an expert have different bits. */
layer_results layer_run_collect(const layer_run *run);

/* Runs a step of `batches` micro-batches and returns its results. Frees everything else. */
layer_results layer_compute(const oracle_layer *oracle, layer_setup how, size_t batches);

/* Whether y and dx, or all gradients, have the same bits. */
bool layer_same_rows(const layer_results *a, const layer_results *b);
bool layer_same_gradients(const layer_results *a, const layer_results *b);

/* The first n floats of a buffer, with or without a guard, and whether they equal those of
 * another. */
float *read_floats(const moert_buffer *buffer, size_t n);
bool same_floats(const moert_buffer *a, const moert_buffer *b, size_t n);
/* Copies all weights that both layers have. */
void copy_weights(moert_layer *from, moert_layer *to);
