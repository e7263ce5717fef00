/*
 * AdamW over a model: the state, the global gradient norm, clipping and the step.
 */
#ifndef MOERT_TRAIN_OPTIMIZER_H
#define MOERT_TRAIN_OPTIMIZER_H

#include "model/model.h"
#include "ops/dense.h"

typedef struct moert_optimizer_options {
    double beta1, beta2, epsilon, decay;
    bool decay_all; /* weight decay on norms too, not on matrices only */
    double clip;    /* largest gradient norm, 0 = no clipping */
} moert_optimizer_options;

typedef struct moert_optimizer {
    moert_model *model;
    moert_optimizer_options options;
    moert_block **moments; /* one per block of the model: the first moment as its weight, the second
                              as its gradient */
    moert_squares *squares;
    size_t *squared; /* [held] tensors of the model that this rank holds, block after block */
    size_t held;
} moert_optimizer;

/* The moments start as zero. Not collective. */
moert_status moert_optimizer_create(moert_model *model, const moert_optimizer_options *options,
                                    moert_optimizer **optimizer);
void moert_optimizer_destroy(moert_optimizer *optimizer);

/*
 * 2-norm of the gradient over all parameters, each counted once: float64 sums of squares per
 * tensor, added in the order of the model's tensors. Collective.
 */
moert_status moert_optimizer_norm(moert_optimizer *optimizer, double *norm);

/* One step with this rate; `norm` is the gradient's norm, `step` counts from 1. Not collective. */
moert_status moert_optimizer_step(moert_optimizer *optimizer, double rate, double norm,
                                  uint64_t step);

/* The moments' block that belongs to a tensor this rank holds. */
moert_block *moert_optimizer_moments(const moert_optimizer *optimizer,
                                     const moert_model_tensor *tensor);

#endif
