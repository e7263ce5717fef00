/* Whole models for tests on several ranks: batches, steps, gradients. All functions that take a
 * model are collective. */
#pragma once

#include "model/internal.h"
#include "support/mpi.h"

/* The sequences of all ranks. */
typedef struct model_data {
    size_t sequences, length;
    int32_t *input, *target; /* [B,S] */
} model_data;

/* Allocates sequences; the test fills in their tokens. */
model_data alloc_data(size_t sequences, size_t length);
/* The first batch of a golden model, "mixtral-tiny" for example. */
model_data golden_data(const char *name);
/* The sequences of a rank. */
moert_model_batch model_batch(const moert_model *model, const model_data *data);
/* Returns the number of tokens of this rank's sequences; *first = the index of the first of them
 * among all ranks' tokens. */
size_t model_tokens(const moert_model *model, const model_data *data, size_t *first);

/* Loads a golden model with its weights; with tied embeddings, the head's weights are not read. */
moert_model *load_golden(moert_mesh *mesh, const char *name, bool tied);

/* Runs forward, loss and backward of micro-batch `index` of `count`. */
moert_model_result model_step(moert_model *model, moert_model_batch batch,
                              moert_model_losses losses, size_t index, size_t count);

/* The logits [T,V] of this rank's tokens of the last forward. Not collective. */
float *model_logits(moert_model *model);

/* Gathers the gradients of a block on this rank. */
float *model_gradients(const moert_model *model, size_t block, size_t *floats);
/* Compare the gathered gradients of two models: model_same_gradients() all bits, model_difference()
 * the largest difference of any block's gradient, relative to its
 * norm. */
bool model_same_gradients(const moert_model *a, const moert_model *b);
double model_difference(const moert_model *a, const moert_model *b);

/* Find a tensor by its name, and return its weights or gradient on this rank. Not collective. */
const moert_model_tensor *find_tensor(const moert_model *model, const char *name);
float *read_tensor(const moert_model_tensor *tensor, bool gradient);
void write_tensor(const moert_model_tensor *tensor, const float *values);
