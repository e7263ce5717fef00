/* The router in float64, for tests: simple code, one token at a time. */
#pragma once

#include <stdint.h>

#include "support/layer/router_run.h"

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

/* Checks that dlogits of all tokens are within `tolerance` of oracle_gradient(). */
void oracle_check_gradient(const router_input *input, double tolerance);

/* Computes counts[E], the slots of each expert, and mass[E], the sums of r over all tokens. */
void oracle_load(const router_input *input, const double *logits, const int32_t *index,
                 uint64_t *counts, double *mass);

/*
 * Chooses index[K]; returns the smallest difference of two selection (or group) scores whose order
 * decides the choice. If it is tiny, float32 may choose differently.
 */
double oracle_choose(const moert_router_options *options, const double *logits, const float *bias,
                     int32_t *index);

/* Draws logits[T,E], normal with standard deviation `deviation`, until every choice has a margin of
 * 1e-5. */
void oracle_logits(const moert_router_options *options, size_t tokens, const float *bias,
                   double deviation, uint64_t key, float *logits);
