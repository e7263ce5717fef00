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

/* Sequences whose tokens the test fills in. */
model_data alloc_data(size_t sequences, size_t length);
/* The first batch of a golden model, "mixtral-tiny" for example. */
model_data golden_data(const char *name);
/* The sequences of a rank. */
moert_model_batch model_batch(const moert_model *model, const model_data *data);
/* Their number of tokens, and the index of the first among all tokens. */
size_t model_tokens(const moert_model *model, const model_data *data, size_t *first);

/* A golden model with its weights; with tied embeddings, the head's are not read. */
moert_model *load_golden(moert_mesh *mesh, const char *name, bool tied);

/* Forward, loss and backward of micro-batch `index` of `count`. */
moert_model_result model_step(moert_model *model, moert_model_batch batch,
                              moert_model_losses losses, size_t index, size_t count);

/* The logits [T,V] of this rank's tokens of the last forward. Not collective. */
float *model_logits(moert_model *model);

/* Gathers the gradients of a block on this rank. */
float *model_gradients(const moert_model *model, size_t block, size_t *floats);
/* Compares gathered gradients of this rank: all their bits, or the largest difference of a block's,
 * relative to the norm. */
bool model_same_gradients(const moert_model *a, const moert_model *b);
double model_difference(const moert_model *a, const moert_model *b);

/* A tensor by its name, and its weights or gradient on this rank. Not collective. */
const moert_model_tensor *find_tensor(const moert_model *model, const char *name);
float *read_tensor(const moert_model_tensor *tensor, bool gradient);
void write_tensor(const moert_model_tensor *tensor, const float *values);
