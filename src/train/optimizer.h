/*
 * The optimizer of a model, of the kind that its config names: the moments, the global gradient
 * norm, clipping and the step. Each rank holds the moments of its shards of the blocks
 * (layer/block.h) and updates their weights. Then the ranks gather all weights. The bits do not
 * depend on the shards.
 */
#pragma once

#include "device/elements.h"
#include "model/model.h"
#include "nn/optimizer.h"
#include "train/gradient_norm.h"

typedef struct moert_optimizer_options {
    double beta1, beta2, epsilon; /* of AdamW */
    double momentum;              /* of SGD */
    double decay;
    bool decay_all; /* weight decay on norms and matrices, not only on matrices */
    double clip;    /* largest gradient norm, 0 = no clipping */
} moert_optimizer_options;

/* The moments of this rank's shard of a block. */
typedef struct moert_moments {
    /* [elements of the shard] in the dtype config.memory.moments; NULL: the optimizer has fewer
     * moments */
    moert_buffer *moment[MOERT_MOMENTS_MOST];
    moert_buffer *keys; /* [parts of the block's tensors] keys for rounding bf16 moments
                           (moert_optimizer_key), or NULL */
} moert_moments;

typedef struct moert_optimizer {
    moert_model *model;
    moert_optimizer_options options;
    moert_moments *moments;    /* [blocks of the model] */
    moert_gradient_norm *norm; /* norm of the model's gradient; the caller may use it as well */
} moert_optimizer;

/* The moments start as zero. Not collective. */
moert_status moert_optimizer_create(moert_model *model, const moert_optimizer_options *options,
                                    moert_optimizer **optimizer);
/* Lists the model's tensors anew after experts have moved. Not collective. */
moert_status moert_optimizer_renew(moert_optimizer *optimizer);
void moert_optimizer_destroy(moert_optimizer *optimizer);

/* The coefficients of a step, for tensors with weight decay. Not collective. */
moert_update moert_optimizer_coefficients(const moert_optimizer *optimizer, double rate,
                                          double norm, uint64_t step);
/* Whether a tensor has weight decay. Matrices have it; with decay_all, all tensors do. Not
 * collective. */
bool moert_optimizer_decays(const moert_optimizer *optimizer, const moert_model_tensor *tensor);
/* One step with this learning rate. `norm` is the gradient's norm; `step` counts from 1.
 * Collective. */
moert_status moert_optimizer_step(moert_optimizer *optimizer, double rate, double norm,
                                  uint64_t step);

/* The key of the random numbers that round bf16 moments of a tensor. Not collective. */
uint64_t moert_optimizer_key(const moert_model_tensor *tensor);
/* The row of a model's optimizer. Not collective. */
const moert_optimizer_row *moert_optimizer_of(const moert_model *model);
/* Moment number `which` of a block's elements from `at` on, which are in this rank's shard. Not
 * collective. */
moert_elements moert_optimizer_moment(const moert_optimizer *optimizer, const moert_block *block,
                                      size_t which, size_t at);
