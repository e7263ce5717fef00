/* The router for tests: random inputs, runs on the device with guards behind every output, and an
 * oracle in float64: simple code, one token at a time. */
#pragma once

#include <stdint.h>

#include "router/router.h"

/* The results, copied to the host. */
typedef struct router_run {
    float *scores;  /* [T,E] */
    int32_t *index; /* [T,K] */
    float *weight;  /* [T,K] */
    float *lse;     /* [T] */
    float *dlogits; /* [T,E], or NULL */
} router_run;

/* The inputs of a run, on the host. */
typedef struct router_input {
    moert_router_options options;
    size_t tokens;
    const float *logits, *bias; /* bias may be NULL */
    const float *dweight;       /* NULL: forward only */
    const float *aux;           /* may be NULL */
    float z_factor;
    /* unless NULL, experts that replace the chosen ones before the backward */
    const int32_t *index;
    /* [sequences] ends of the sequences; if it is not NULL, aux is [sequences,E] */
    const uint32_t *ends;
    size_t sequences;
} router_input;

/* Return options with defaults for all other fields. router_groups() adds groups of experts: a
 * token keeps the `kept` groups with the largest sums over their `best` best experts. */
moert_router_options router_options(size_t experts, size_t topk, moert_score score);
moert_router_options router_groups(moert_router_options options, size_t groups, size_t kept,
                                   size_t best);

/* Draws logits with this standard deviation until every choice has a margin of 1e-5, and a bias
 * with the standard deviation `bias` (0: no bias). router_draw_gradients() adds dweight and aux. */
router_input router_draw(moert_router_options options, size_t tokens, double deviation,
                         double bias);
void router_draw_gradients(router_input *input);
/* Replaces the logits by a copy, which the test may change. */
float *router_own_logits(router_input *input);

/* ---- on the device ---- */

/* Runs forward, and also backward if the input has a dweight. Fails the test if a call fails or
 * writes outside of its buffers. */
router_run router_do(const router_input *input);

/* What the device computes from scores[T,E]: the sums of r over the tokens [ends[s-1], ends[s]) of
 * each sequence s; the entropy of each token; for each sequence and expert, the number of tokens
 * whose K largest scores include the expert. */
typedef struct router_sums {
    float *mass;      /* [S,E] */
    float *entropy;   /* [T] */
    uint32_t *counts; /* [S,E] */
} router_sums;
router_sums router_sum(const moert_router_options *options, size_t tokens, const float *scores,
                       const uint32_t *ends, size_t sequences);

/* ---- the oracle ---- */

/* Copies the logits[E] of token t. */
void oracle_row(const router_input *input, size_t t, double *logits);

/* Computes p[E] = softmax(logits) and returns the log-sum-exp of the logits. */
double oracle_softmax(const double *logits, size_t experts, double *p);

/* Computes r[E], the scores in the load-balancing losses, which sum to 1. */
void oracle_normalised_scores(const moert_router_options *options, const double *logits, double *r);

/* Computes scores[E], which moert_routing describes. */
void oracle_scores(const moert_router_options *options, const double *logits, double *scores);

/* Computes weight[K] of the experts index[K]. */
void oracle_weights(const moert_router_options *options, const double *logits, const int32_t *index,
                    double *weight);

/*
 * d(loss)/d(logits[t,e]) by central differences, with the token's choice index[K] held fixed.
 * loss = sum(dweight * weight) + sum(aux * r) + z_factor / 2 * lse^2, as in the backward.
 */
double oracle_gradient(const router_input *input, const int32_t *index, size_t t, size_t e);

/*
 * Chooses index[K]; returns the smallest difference of two selection (or group) scores whose order
 * decides the choice. If this difference is tiny, float32 may choose differently.
 */
double oracle_choose(const moert_router_options *options, const double *logits, const float *bias,
                     int32_t *index);

/* ---- comparisons ---- */

/* Compares the choice, weights, scores and lse of a token. */
void router_check_token(const router_input *input, const router_run *run, size_t t);
/* Compares the gradients of a run with oracle_gradient(): all gradients of a small run; otherwise
 * the gradients of some tokens, for the chosen experts and some other experts. */
void router_check_gradient(const router_input *input, double tolerance);
