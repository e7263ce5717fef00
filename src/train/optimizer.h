/*
 * The optimizer that a model's config names: moments, global gradient norm, clipping and update of
 * the weights. Each rank holds the moments of its shards of the blocks (layer/block.h) and updates
 * their weights. Then the ranks gather all weights. The weights have the same bits for any division
 * into shards.
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
    bool decay_all; /* norms also have weight decay, not only matrices */
    double clip;    /* largest gradient norm, 0 = no clipping */
} moert_optimizer_options;

/* The moments of this rank's shard of a block. */
typedef struct moert_moments {
    /* [elements of the shard] in the dtype config.memory.moments; NULL if the optimizer has fewer
     * moments */
    moert_buffer *moment[MOERT_MOMENTS_MOST];
    moert_buffer *keys; /* [parts of the block's tensors] keys for rounding bf16 moments
                           (moert_optimizer_key), or NULL */
} moert_moments;

typedef struct moert_optimizer {
    moert_model *model;
    moert_optimizer_options options;
    moert_moments *moments; /* [blocks of the model] */
    /* computes the norm of the model's gradient; may be used by others */
    moert_gradient_norm *norm;
} moert_optimizer;

/* Creates the optimizer with moments of 0. Not collective. */
moert_status moert_optimizer_create(moert_model *model, const moert_optimizer_options *options,
                                    moert_optimizer **optimizer);
/* Lists the model's tensors again. Call this after experts have moved. Not collective. */
moert_status moert_optimizer_renew(moert_optimizer *optimizer);
void moert_optimizer_destroy(moert_optimizer *optimizer);

/* The coefficients of a step, for tensors with weight decay. Not collective. */
moert_update moert_optimizer_coefficients(const moert_optimizer *optimizer, double rate,
                                          double norm, uint64_t step);
/* Whether a tensor has weight decay. Matrices have weight decay; with decay_all, all tensors have
 * it. Not collective. */
bool moert_optimizer_decays(const moert_optimizer *optimizer, const moert_model_tensor *tensor);
/* Updates the weights once, with learning rate `rate`. `norm` is the gradient's norm. `step` is 1
 * for the first update. Collective. */
moert_status moert_optimizer_step(moert_optimizer *optimizer, double rate, double norm,
                                  uint64_t step);

/* The key of the random numbers that are used to round a tensor's bf16 moments. Not collective. */
uint64_t moert_optimizer_key(const moert_model_tensor *tensor);
/* The row of the model's optimizer in the table of optimizers. Not collective. */
const moert_optimizer_row *moert_optimizer_of(const moert_model *model);
/* The values of moment number `which` for a block's elements from `at` on. These elements must be
 * in this rank's shard. Not collective. */
moert_elements moert_optimizer_moment(const moert_optimizer *optimizer, const moert_block *block,
                                      size_t which, size_t at);
