/*
 * AdamW over a model: the state, the global gradient norm, clipping and the step. Each rank has the
 * state of its slices of the blocks (layer/block.h) and updates these; then all get all weights.
 * The bits do not depend on the slices.
 */
#pragma once

#include "model/model.h"
#include "nn/nn.h"
#include "train/gradient_norm.h"

typedef struct moert_optimizer_options {
    double beta1, beta2, epsilon, decay;
    bool decay_all; /* weight decay on norms too, not on matrices only */
    double clip;    /* largest gradient norm, 0 = no clipping */
} moert_optimizer_options;

/* The moments of this rank's slice of a block. */
typedef struct moert_moments {
    moert_buffer *first, *second; /* [floats of the slice] */
} moert_moments;

typedef struct moert_optimizer {
    moert_model *model;
    moert_optimizer_options options;
    moert_moments *moments;    /* [blocks of the model] */
    moert_gradient_norm *norm; /* for the caller, too */
} moert_optimizer;

/* The moments start as zero. Not collective. */
moert_status moert_optimizer_create(moert_model *model, const moert_optimizer_options *options,
                                    moert_optimizer **optimizer);
void moert_optimizer_destroy(moert_optimizer *optimizer);

/* One step with this rate; `norm` is the gradient's norm, `step` counts from 1. Collective. */
moert_status moert_optimizer_step(moert_optimizer *optimizer, double rate, double norm,
                                  uint64_t step);

/* The moments of the block of a tensor, of which they have moert_model_shard, and where these
 * begin. */
const moert_moments *moert_optimizer_moments(const moert_optimizer *optimizer,
                                             const moert_model_tensor *tensor, size_t *at);
