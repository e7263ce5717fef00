/*
 * Optimizers: what each keeps for a weight, and its update of weights in place.
 *
 * Sources: AdamW: Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019; SGD with
 * momentum: Sutskever et al., "On the importance of initialization and momentum in deep learning",
 * ICML 2013, in the form of torch.optim.SGD. Both as in PyTorch (kernels/nn/optimizer.cl).
 */
#pragma once

#include "device/elements.h"
#include "moert/device.h"
#include "moert/formats.h"

typedef enum moert_optimizer_kind {
    MOERT_OPTIMIZER_ADAMW,
    MOERT_OPTIMIZER_SGD,
    MOERT_OPTIMIZERS
} moert_optimizer_kind;
#define MOERT_OPTIMIZER_WORDS "adamw|sgd"

enum { MOERT_MOMENTS_MOST = 2 };

/* A step of an optimizer. The host computes coefficients in float64, the device updates in
 * float32. */
typedef struct moert_update {
    moert_optimizer_kind optimizer;
    double rate, decay;
    double beta1, beta2, epsilon; /* of AdamW */
    double momentum;              /* of SGD */
    double scale;                 /* multiplies the gradient first (clipping) */
    uint64_t step;                /* counts from 1 */
    moert_buffer *rounded;        /* gets the new parameters in bf16, to nearest even; or NULL */
    size_t at;                    /* offset of the first element in parameter and `rounded` */
    /* BF16 moments are rounded up or down at random with the right mean. The random numbers depend
     * on `step`, and on an element's place and key: elements belong to parts of equal size. */
    size_t part, first;       /* elements of a part; the place of the first element, from the start
                                 of the first part on */
    const moert_buffer *keys; /* uint64 of each part, from `keys_at` on */
    size_t keys_at;
} moert_update;

struct moert_update_args;

/* A moment of each weight, beside its value. */
typedef struct moert_moment_kind {
    const char *prefix; /* of its tensors' names in checkpoints */
    bool is_square;     /* a mean of squares, so never below 0 */
} moert_moment_kind;

typedef struct moert_optimizer_row {
    const char *name; /* of the kernel, and in messages */
    size_t moments;
    moert_moment_kind moment[MOERT_MOMENTS_MOST];
    /* Sets those of the kernel's arguments that the optimizer defines. */
    void (*coefficients)(const moert_update *update, struct moert_update_args *args);
} moert_optimizer_row;
extern const moert_optimizer_row moert_optimizers[MOERT_OPTIMIZERS];

/*
 * Updates n elements of parameter [float32] and of moments[the optimizer's], which are alike in
 * type and offset, by their gradient; padding must be zero and stays so. Errors: ERROR_USAGE (step
 * 0), ERROR_DEVICE. Not collective.
 */
moert_status moert_update_weights(const moert_update *update, size_t n, moert_buffer *parameter,
                                  const moert_elements *gradient, const moert_elements *moments);
