/*
 * The norm of a model's gradient. Each rank computes float64 sums of squares of the chunks
 * (MOERT_SQUARES_CHUNK) in its shards (layer/block.h). These sums are added chunk by chunk, then in
 * the order of the model's tensors, so the norm has the same bits for any number of ranks.
 */
#pragma once

#include "model/model.h"

typedef struct moert_gradient_norm moert_gradient_norm;

/* Not collective. The model must outlive the object. */
moert_status moert_gradient_norm_create(moert_model *model, moert_gradient_norm **norm);
void moert_gradient_norm_destroy(moert_gradient_norm *norm);

/* *value = the 2-norm over all parameters, each counted once. Collective. */
moert_status moert_gradient_norm_take(moert_gradient_norm *norm, double *value);
/* layer[layers + 1] = the 2-norms over each layer's parameters, and over those outside of the
 * layers, as of the last moert_gradient_norm_take. Not collective. */
void moert_gradient_norm_layers(const moert_gradient_norm *norm, double *layer);
/* A hash of the sums of squares that this rank has computed for the last take. Not collective. */
uint64_t moert_gradient_norm_own(const moert_gradient_norm *norm);
