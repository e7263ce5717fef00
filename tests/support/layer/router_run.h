/* Runs the router on the device for tests, with guards behind every output. */
#pragma once

#include <stdint.h>

#include "router/router.h"

/* Results on the host. */
typedef struct router_run {
    float *scores;  /* [T,E] */
    int32_t *index; /* [T,K] */
    float *weight;  /* [T,K] */
    float *lse;     /* [T] */
    float *dlogits; /* [T,E], or NULL */
} router_run;

/* What a run is given, all on the host. */
typedef struct router_input {
    moert_router_options options;
    size_t tokens;
    const float *logits, *bias; /* bias may be NULL */
    const float *dweight;       /* NULL: forward only */
    const float *aux;           /* may be NULL */
    float z_factor;
    const int32_t *index; /* replaces the choice before the backward, or NULL */
} router_input;

/* Options with the defaults for the rest, and groups of experts of which some are kept. */
moert_router_options router_options(size_t experts, size_t topk, moert_score score);
moert_router_options router_groups(moert_router_options options, size_t groups, size_t kept);

/* Fails the test unless every call succeeds and stays within its buffers. */
router_run router_do(const router_input *input);

/* mass[S,E] of the sequences [ends[s-1], ends[s]) from the device. */
float *router_mass(const moert_router_options *options, size_t tokens, const float *scores,
                   const uint32_t *ends, size_t sequences);
