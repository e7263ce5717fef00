/*
 * The norm of a model's gradient: float64 sums of squares by chunks (MOERT_SQUARES_CHUNK), each
 * taken by the rank in whose slice it is (layer/block.h), added chunk by chunk, then in the order
 * of the model's tensors: the same bits for any number of ranks.
 */
#pragma once

#include "model/model.h"

typedef struct moert_gradient_norm moert_gradient_norm;

/* Not collective. The model must outlive it. */
moert_status moert_gradient_norm_create(moert_model *model, moert_gradient_norm **norm);
void moert_gradient_norm_destroy(moert_gradient_norm *norm);

/* *value = the 2-norm over all parameters, each counted once. Collective. */
moert_status moert_gradient_norm_take(moert_gradient_norm *norm, double *value);
