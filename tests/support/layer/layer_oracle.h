/* A MoE layer in float64, for tests: obvious code, one token at a time, all experts at once. */
#pragma once

#include "moert/layer.h"

typedef struct oracle_layer {
    moert_layer_options options;
    size_t tokens;
    double *x, *dy;                      /* [T,H] */
    double *sent_x, *sent_dy;            /* the same, as the routed experts get them */
    double *tensor[MOERT_LAYER_TENSORS]; /* of all experts; NULL when the layer has no such */
    size_t elements[MOERT_LAYER_TENSORS];
    int32_t *index;    /* [T,K], chosen once: differences must not change the choice */
    float *correction; /* [E] or NULL */
    double *aux;       /* [E] gradient by each routing score */
    double z_factor;
    double margin; /* the smallest distance of two scores whose order mattered */
} oracle_layer;

/* 5 experts, of which 2 are chosen; no number of ranks divides them. */
moert_layer_options layer_form(size_t hidden, size_t intermediate);

/* A layer with values, exact in float32, that depend on the options alone. */
oracle_layer oracle_layer_create(const moert_layer_options *options, size_t tokens);

/* True for tensors [E,...], of which a rank holds its experts' part. */
bool oracle_layer_of_experts(moert_layer_tensor which);

/* sum(y * dy) + sum(aux * r) + z_factor / 2 * sum(lse^2), where the routed experts' part of y has
 * sent_dy for dy; also y[T,H] unless NULL. */
double oracle_layer_loss(const oracle_layer *layer, double *y);

/* gradient[n] of the loss by value[n], a part of `layer`, by central differences. */
void oracle_layer_differentiate(const oracle_layer *layer, double *value, size_t n,
                                double *gradient);
