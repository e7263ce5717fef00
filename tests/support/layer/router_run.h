/* Runs the router on the device for tests, with guards behind every output. */
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
    const int32_t *index; /* unless NULL, replaces the chosen experts before the backward */
    const uint32_t *ends; /* unless NULL, [sequences], and aux is [sequences,E] */
    size_t sequences;
} router_input;

/* Return options with defaults for all other fields; the second function adds groups of experts, of
 * which a token keeps `kept`. */
moert_router_options router_options(size_t experts, size_t topk, moert_score score);
moert_router_options router_groups(moert_router_options options, size_t groups, size_t kept);

/* Runs forward, and backward if there is a dweight. Fails the test if a call fails or writes
 * outside of its buffers. */
router_run router_do(const router_input *input);

/* The device's mass[S,E]: sums of r over the tokens [ends[s-1], ends[s]) of each sequence. */
float *router_mass(const moert_router_options *options, size_t tokens, const float *scores,
                   const uint32_t *ends, size_t sequences);

/* The device's entropy[T]. */
float *router_entropy(const moert_router_options *options, size_t tokens, const float *scores);

/* The device's counts[S,E] of each sequence's tokens whose K largest scores include the expert. */
uint32_t *router_counts(const moert_router_options *options, size_t tokens, const float *scores,
                        const uint32_t *ends, size_t sequences);
