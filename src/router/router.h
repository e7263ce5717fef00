/*
 * The router. Forward, backward and sums of scores run on the device; load-balancing losses are
 * computed on the host.
 *
 * All buffers are dense row-major float32 unless their comment says otherwise; T may be 0. None of
 * these calls is collective.
 */
#pragma once

#include <stdint.h>

#include "moert/router.h"

#include "moert/device.h"

/* ERROR_USAGE if the options are illegal: a wrong size, no experts, K outside 1..E, an unknown
 * score, a scale that is not positive and finite, E not a multiple of groups, groups smaller than
 * group_best, or K experts that do not fit in the kept groups. ERROR_UNSUPPORTED above 1024
 * experts. */
moert_status moert_router_check(const moert_router_options *options);

typedef struct moert_routing {
    moert_buffer *scores; /* [T,E] softmax over all experts, or a score per logit (sigmoid ...) */
    moert_buffer *index;  /* int32 [T,K], largest selection score first */
    moert_buffer *weight; /* [T,K] */
    moert_buffer *lse;    /* [T] log-sum-exp of the logits (z-loss) */
} moert_routing;

/*
 * Chooses experts from logits[T,E]. `bias` [E] is added for selection only; it may be NULL. If a
 * token has a non-finite logit, or the bias has a NaN, the token gets index -2 in its first slot
 * and -1 in its other slots. The token's weights, scores and lse are zero. moert_plan_count then
 * reports the token. A bias of -infinity puts an expert last. Errors: ERROR_USAGE (a buffer is
 * missing or too small).
 */
moert_status moert_router_forward(moert_device *device, const moert_router_options *options,
                                  size_t tokens, const moert_buffer *logits,
                                  const moert_buffer *bias, const moert_routing *routing);

/* Replaces logits[T,E] by hashes of the logits, uniform in [-1, 1), so that speeds can be compared
 * with nearly equal numbers of rows per expert. A hash depends on the logit's bits and its expert
 * only. Non-finite logits are not replaced. Errors: ERROR_USAGE. */
moert_status moert_router_balance(moert_device *device, const moert_router_options *options,
                                  size_t tokens, moert_buffer *logits);

/* Clears the results for padding, which is the tokens t with a negative token[t] (int32 [T]): index
 * -1 in all slots, weights, scores and lse 0. Call it after moert_router_forward. Errors:
 * ERROR_USAGE. */
moert_status moert_router_skip(moert_device *device, const moert_router_options *options,
                               size_t tokens, const moert_buffer *token,
                               const moert_routing *routing);

/*
 * dlogits[T,E] from dweight[T,K], plus the gradients of the losses. aux_gradient[E] (device, or
 * NULL) is d(loss)/d(r[t,e]), the same for every token t. With sequence_ends (uint32 [sequences]),
 * aux_gradient is [sequences,E], the same for every token of a sequence. r is softmax over all
 * experts, or the scores divided by their sum + 1e-20. The z-loss adds z_factor * lse[t] *
 * softmax(logits)[t], where z_factor is 2 * coefficient / (number of tokens). `logits` are the
 * logits that moert_router_forward read.
 */
typedef struct moert_router_gradient {
    size_t tokens;
    const moert_buffer *logits;
    const moert_routing *routing;
    const moert_buffer *dweight, *aux_gradient;
    float z_factor;
    moert_buffer *dlogits;
    const moert_buffer *sequence_ends;
    size_t sequences;
} moert_router_gradient;
moert_status moert_router_backward(moert_device *device, const moert_router_options *options,
                                   const moert_router_gradient *gradient);

/* mass[S,E] = sum of r[t,e] over the tokens of each of S sequences, in a fixed order. sequence_ends
 * is uint32 [S]. */
moert_status moert_router_mass(const moert_router_options *options, size_t tokens,
                               const moert_buffer *scores, const moert_buffer *sequence_ends,
                               size_t sequences, moert_buffer *mass);

/* counts[S,E] (uint32) = the tokens of each of S sequences whose K largest scores include the
 * expert: the choice without correction bias and without groups. */
moert_status moert_router_counts(const moert_router_options *options, size_t tokens,
                                 const moert_buffer *scores, const moert_buffer *sequence_ends,
                                 size_t sequences, moert_buffer *counts);

/* entropy[T] = -sum_e r log r of each token, in nats: 0 if one expert has all probability, log E if
 * all experts have the same. 0 for padding. */
moert_status moert_router_entropy(const moert_router_options *options, size_t tokens,
                                  const moert_buffer *scores, moert_buffer *entropy);

/*
 * Load-balancing losses, on the host, from sums over tokens. All forms return the loss without
 * coefficient, and gradient[E] = coefficient * d(value)/d(r[t,e]):
 *
 *   Hugging Face          E * sum_e counts_e/rows * mass_e/rows, rows and sums over all layers
 *   Megatron, per layer   E / (K * rows^2) * sum_e counts_e * mass_e
 *   sequence              Megatron's, for each layer and sequence; the counts are those of
 *                         moert_router_counts, and the loss of a layer is the mean over the
 *                         sequences
 */
typedef enum moert_aux_form {
    MOERT_AUX_HUGGING_FACE,
    MOERT_AUX_MEGATRON,
    MOERT_AUX_SEQUENCE
} moert_aux_form;
typedef struct moert_router_load {
    const uint64_t *counts; /* [E] slots per expert */
    const double *mass;     /* [E] sums of r[t,e] over the tokens */
    double rows;            /* number of tokens */
} moert_router_load;
double moert_router_aux_loss(moert_aux_form form, const moert_router_options *options,
                             const moert_router_load *load, double coefficient, float *gradient);
