/* Runs a MoE layer over all ranks for tests, and gathers its results on every rank. */
#pragma once

#include "comm/comm.h"
#include "moert/layer.h"
#include "support/layer/layer_oracle.h"

/* the number of the oracle's tokens is a multiple of LAYER_TOKENS; the tokens are cut into pieces
 * of unequal sizes, the sequences of a batch */
enum { LAYER_TOKENS = 13, LAYER_PIECES = 5 };
/* The tokens of the pieces before piece number `piece`. */
size_t layer_tokens_before(const oracle_layer *oracle, size_t piece);

/* One rank's part of a run: the rank's pieces of the tokens, and its experts. */
typedef struct layer_run {
    moert_comm *world;
    moert_mesh *mesh;
    moert_layer *layer;
    moert_pass *pass; /* the pass of the last forward, or NULL */
    const oracle_layer *oracle;
    bool deferred;
    size_t first_token;
    moert_batch batch;
    moert_buffer *x, *y, *dy, *dx, *aux;
} layer_run;

/* The results of all ranks, on every rank: the gradients of all experts, then y and dx [T,H]. NULL
 * if the layer has no such tensor. */
enum { LAYER_Y = MOERT_LAYER_TENSORS, LAYER_DX, LAYER_RESULTS };
typedef struct layer_results {
    float *value[LAYER_RESULTS];
    size_t count[LAYER_RESULTS];
} layer_results;
/* Creates results of zeros, in the shapes of the oracle's layer. */
layer_results layer_results_of(const oracle_layer *oracle);

/* How a layer runs. If all fields are zero, the layer runs on test_context, and all ranks share one
 * set of experts. */
typedef struct layer_setup {
    moert_context *context; /* NULL: test_context */
    size_t ep;              /* ranks per set of experts; 0: all */
    bool exact;             /* the sets of experts are exact replicas of each other */
    bool deferred;          /* wgrad is deferred */
} layer_setup;

/* Creates a layer, loads its weights, and splits the oracle's tokens over the ranks. If there are
 * several ranks, one of them gets no tokens. The running test owns the layer. All functions of this
 * file are collective. */
layer_run layer_run_open(const oracle_layer *oracle, layer_setup how);
/* Calls layer_run_open() for an oracle with these options and LAYER_TOKENS tokens. */
layer_run layer_run_of(moert_layer_options options);
/* Creates another layer on a mesh. The running test owns the layer. */
moert_layer *open_layer(moert_mesh *mesh, const moert_layer_options *options);

/* Ends the pass of the last forward, if any. */
void layer_run_end(layer_run *run);
/* First ends the pass of the last forward, then runs a forward. */
moert_status layer_run_forward(layer_run *run);
/* Runs backward, wgrad (if deferred) and reduction of micro-batch `index` of `count`.
 * layer_run_step() first runs the forward, too. */
moert_status layer_run_backward(layer_run *run, size_t index, size_t count);
moert_status layer_run_step(layer_run *run, size_t index, size_t count);

/* Gathers the results; fails if replicas of an expert have different bits. */
layer_results layer_run_collect(const layer_run *run);

/* Runs a step of `batches` micro-batches of the same tokens, and returns its results. */
layer_results layer_compute(const oracle_layer *oracle, layer_setup how, size_t batches);

/* Whether two results have the same bits: layer_same_rows() compares y and dx,
 * layer_same_gradients() the gradients that both results have, layer_same() all of these. */
bool layer_same_rows(const layer_results *a, const layer_results *b);
bool layer_same_gradients(const layer_results *a, const layer_results *b);
bool layer_same(const layer_results *a, const layer_results *b);
/* Whether all results of two runs on this rank have the same bits. */
bool layer_run_same(const layer_run *a, const layer_run *b);

/* Copies all weights that both layers have. */
void copy_weights(moert_layer *from, moert_layer *to);
