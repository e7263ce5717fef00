/*
 * Optimizers: the moments that each optimizer keeps for a weight, and the update of weights in
 * place.
 *
 * Sources: AdamW: Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019; SGD with
 * momentum: Sutskever et al., "On the importance of initialization and momentum in deep learning",
 * ICML 2013, in the form of torch.optim.SGD. Both optimizers compute as in PyTorch
 * (kernels/nn/optimizer.cl).
 */
#pragma once

#include "device/elements.h"
#include "moert/device.h"
#include "moert/formats.h"
#include "quant/fp8_operands.h"

typedef enum moert_optimizer_kind {
    MOERT_OPTIMIZER_ADAMW,
    MOERT_OPTIMIZER_SGD,
    MOERT_OPTIMIZERS
} moert_optimizer_kind;
#define MOERT_OPTIMIZER_WORDS "adamw|sgd"

enum { MOERT_MOMENTS_MOST = 2 };

/* The parameters whose updates a rank repeats at a time with --verify (train/cross_check.h). */
enum { MOERT_CHECKED_LOAD = 262144 };

/* A step of an optimizer. The host computes coefficients in float64, the device updates in
 * float32. */
typedef struct moert_update {
    moert_optimizer_kind optimizer;
    double rate, decay;
    double beta1, beta2, epsilon; /* of AdamW */
    double momentum;              /* of SGD */
    double scale;                 /* factor of the gradient, for clipping */
    uint64_t step;                /* counts from 1 */
    moert_buffer *rounded;        /* receives the new parameters rounded to bf16 (nearest even), or
                                     NULL */
    /* receives the new parameters as FP8 operands in tiles (quant/fp8_operands.h), or NULL; the
     * update is then one of whole tensors, whose parts have whole tiles of rows */
    const moert_fp8_operands *fp8;
    size_t at; /* offset of the first element in parameter and `rounded` */
    /* BF16 moments are rounded stochastically, so their expected values are right. The elements
     * belong to parts of equal size. A random number depends on `step`, the part's key, and the
     * element's index in the part. */
    size_t part, first;       /* elements of a part; index of the first updated element, counted
                                 from the start of the first part */
    const moert_buffer *keys; /* uint64, one key for each part, from element `keys_at` on */
    size_t keys_at;
} moert_update;

struct moert_update_args;

/* A kind of moment: one more value that an optimizer keeps for each weight. */
typedef struct moert_moment_kind {
    const char *prefix; /* prefix of the names of the moment's tensors in checkpoints */
    bool is_square;     /* the moment is a mean of squares, so never below 0 */
} moert_moment_kind;

typedef struct moert_optimizer_row {
    const char *name; /* name of the kernel, also used in messages */
    size_t moments;
    moert_moment_kind moment[MOERT_MOMENTS_MOST];
    /* Sets the kernel arguments that only this optimizer defines. */
    void (*coefficients)(const moert_update *update, struct moert_update_args *args);
} moert_optimizer_row;
extern const moert_optimizer_row moert_optimizers[MOERT_OPTIMIZERS];

/*
 * Updates n elements of `parameter` (float32), and of the optimizer's `moments`, by their gradient.
 * All moments have the same type and offset. Padding must be zero and stays zero. Errors:
 * ERROR_USAGE (step 0), ERROR_UNSUPPORTED (FP8 operands of other shapes), ERROR_DEVICE. Not
 * collective.
 */
moert_status moert_update_weights(const moert_update *update, size_t n, moert_buffer *parameter,
                                  const moert_elements *gradient, const moert_elements *moments);
