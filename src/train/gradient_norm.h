/*
 * The norm of a model's gradient. Each rank computes float64 sums of squares of the chunks
 * (MOERT_SQUARES_CHUNK) in its shards (layer/block.h). The sums of the chunks are added in order
 * for each tensor, then for all tensors in the model's order. So the norm has the same bits for any
 * number of ranks.
 */
#pragma once

#include "model/model.h"

typedef struct moert_gradient_norm moert_gradient_norm;

/* The model must outlive *norm. Not collective. */
moert_status moert_gradient_norm_create(moert_model *model, moert_gradient_norm **norm);
void moert_gradient_norm_destroy(moert_gradient_norm *norm);

/* *value = the 2-norm of the gradient of all parameters, in which replicated parameters appear
 * once. Collective. */
moert_status moert_gradient_norm_take(moert_gradient_norm *norm, double *value);
/* layer[layers + 1] = the 2-norms of the gradients of each layer's parameters and, last, of the
 * parameters outside of the layers. Computed from the sums of the last moert_gradient_norm_take.
 * Not collective. */
void moert_gradient_norm_layers(const moert_gradient_norm *norm, double *layer);
/* Hashes of the sums of squares that this rank computed in the last moert_gradient_norm_take:
 * hash[0] of the chunks in its own shards, hash[1] of the tensors, from the chunks of all ranks.
 * Not collective. */
void moert_gradient_norm_own(const moert_gradient_norm *norm, uint64_t hash[2]);
