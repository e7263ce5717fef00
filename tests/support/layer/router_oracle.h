/* The router in float64, for tests: obvious code, one token at a time. */
#pragma once

#include <stdint.h>

#include "support/layer/router_run.h"

/* The logits[E] of token t. */
void oracle_row(const router_input *input, size_t t, double *logits);

/* softmax(logits) and its log-sum-exp; returns the latter. */
double oracle_softmax(const double *logits, size_t experts, double *p);

/* r[E], what the load-balancing losses see. */
void oracle_share(const moert_router_options *options, const double *logits, double *r);

/* scores[E] as in moert_routing. */
void oracle_scores(const moert_router_options *options, const double *logits, double *scores);

/* weight[K] of the experts index[K]. */
void oracle_weights(const moert_router_options *options, const double *logits, const int32_t *index,
                    double *weight);

/*
 * d(loss)/d(logits[t,e]) by central differences, the choice index[K] of the token held fixed; the
 * loss is the one of the backward: sum of dweight * weight, of aux * r, and z_factor / 2 * lse^2.
 */
double oracle_gradient(const router_input *input, const int32_t *index, size_t t, size_t e);

/* dlogits of all tokens are within `tolerance` of that. */
void oracle_check_gradient(const router_input *input, double tolerance);

/* Slots per expert, counts[E], and the sums of r over all tokens of logits[T,E], mass[E]. */
void oracle_load(const router_input *input, const double *logits, const int32_t *index,
                 uint64_t *counts, double *mass);

/*
 * Chooses index[K]; returns the smallest distance of two selection (or group) scores whose order
 * mattered: float32 need not choose alike when it is tiny.
 */
double oracle_choose(const moert_router_options *options, const double *logits, const float *bias,
                     int32_t *index);

/* logits[T,E], normal with `deviation`, such that every choice has a margin of 1e-5. */
void oracle_logits(const moert_router_options *options, size_t tokens, const float *bias,
                   double deviation, uint64_t key, float *logits);
