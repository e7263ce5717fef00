/*
 * AdamW over a model: the state, the global gradient norm, clipping and the step. Each rank holds
 * the state of its shards of the blocks (layer/block.h) and updates their weights. Then the ranks
 * gather all weights. The bits do not depend on the shards.
 */
#pragma once

#include "model/model.h"
#include "nn/nn.h"
#include "train/gradient_norm.h"

typedef struct moert_optimizer_options {
    double beta1, beta2, epsilon, decay;
    bool decay_all; /* weight decay on norms and matrices, not only on matrices */
    double clip;    /* largest gradient norm, 0 = no clipping */
} moert_optimizer_options;

/* The moments of this rank's shard of a block. */
typedef struct moert_moments {
    moert_buffer *first, *second; /* [floats of the shard] */
} moert_moments;

typedef struct moert_optimizer {
    moert_model *model;
    moert_optimizer_options options;
    moert_moments *moments;    /* [blocks of the model] */
    moert_gradient_norm *norm; /* the gradient's norm, which the caller may use as well */
} moert_optimizer;

/* The moments start as zero. Not collective. */
moert_status moert_optimizer_create(moert_model *model, const moert_optimizer_options *options,
                                    moert_optimizer **optimizer);
void moert_optimizer_destroy(moert_optimizer *optimizer);

/* The coefficients of a step, for tensors with weight decay. Not collective. */
moert_adamw moert_optimizer_coefficients(const moert_optimizer *optimizer, double rate, double norm,
                                         uint64_t step);
/* Whether a tensor of a block has weight decay. Matrices of the model have it; with decay_all, all
 * tensors do. Not collective. */
bool moert_optimizer_decays(const moert_optimizer *optimizer, const moert_block *block,
                            size_t index);
/* One step with this learning rate. `norm` is the gradient's norm; `step` counts from 1.
 * Collective. */
moert_status moert_optimizer_step(moert_optimizer *optimizer, double rate, double norm,
                                  uint64_t step);

/* The moments of this rank's shard of a block of the model. */
const moert_moments *moert_optimizer_moments_of(const moert_optimizer *optimizer,
                                                const moert_block *block);
/* The moments of a tensor's block; *at = the offset, in the moments, of the elements that
 * moert_model_shard gives for the tensor. */
const moert_moments *moert_optimizer_moments(const moert_optimizer *optimizer,
                                             const moert_model_tensor *tensor, size_t *at);
