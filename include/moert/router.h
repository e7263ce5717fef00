/*
 * The router: the experts of each token, and their weights.
 *
 * Options: softmax, sigmoid or sqrt-softplus scores, grouped selection, correction bias,
 * renormalisation and scaling, as in the released Mixtral, Qwen3-MoE, OLMoE, gpt-oss and DeepSeek
 * models; groups also as in Megatron. Among equal scores, the router chooses the lowest expert
 * index. No capacity limit drops tokens.
 */
#ifndef MOERT_ROUTER_H
#define MOERT_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moert/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum moert_score {
    MOERT_SCORE_SOFTMAX,      /* softmax over all experts, then the K largest (Mixtral, Qwen3-MoE,
                                 OLMoE) */
    MOERT_SCORE_SOFTMAX_TOPK, /* the K largest logits, then softmax over these (gpt-oss) */
    MOERT_SCORE_SIGMOID,      /* sigmoid of each logit (DeepSeek-V3) */
    MOERT_SCORE_SQRT_SOFTPLUS /* sqrt(log(1 + exp(logit))) of each logit (DeepSeek-V4) */
} moert_score;

typedef struct moert_router_options {
    size_t size;    /* sizeof(moert_router_options) */
    size_t experts; /* E */
    size_t topk;    /* K, 1..E */
    moert_score score;
    bool renormalise;   /* divide the K weights by their sum. Sigmoid and sqrt-softplus scores:
                           divide by the sum + 1e-20, and only if K > 1 */
    float scale;        /* factor of the weights, applied last */
    size_t groups;      /* number of equal groups that the experts form; 1 = no grouping */
    size_t kept_groups; /* number of groups whose experts may be chosen */
    size_t group_best;  /* number of best selection scores that are summed for each group; the
                           groups with the largest sums are kept: 2 in Hugging Face's DeepSeek-V3, K
                           / kept_groups in Megatron */
} moert_router_options;

#define MOERT_ROUTER_OPTIONS_INIT                                                                  \
    MOERT_INIT(moert_router_options, router_,                                                      \
               MOERT_SET(router_, renormalise, true) MOERT_SET(router_, scale, 1.0f)               \
                   MOERT_SET(router_, groups, 1) MOERT_SET(router_, kept_groups, 1)                \
                       MOERT_SET(router_, group_best, 2))

/*
 * Balances the experts without an auxiliary loss (DeepSeek-V3): bias[e] += rate * sign(mean(counts)
 * - counts[e]), on host memory. `bias` is a copy of the layer's correction bias; `counts` are
 * moert_pass_expert_counts, summed over all forward passes of the step. Not collective.
 */
MOERT_API void moert_router_update_bias(float *bias, const uint64_t *counts, size_t experts,
                                        float rate);

#ifdef __cplusplus
}
#endif
#endif
