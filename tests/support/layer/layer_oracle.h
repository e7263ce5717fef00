/* A MoE layer in float64, for tests: simple code, one token at a time, all experts on one rank. */
#pragma once

#include "moert/layer.h"

typedef struct oracle_layer {
    moert_layer_options options;
    size_t tokens;
    double *x, *dy;           /* [T,H] */
    double *sent_x, *sent_dy; /* x and dy as the dispatch rounds them */
    /* a tensor of all experts; NULL if the layer has no such tensor */
    double *tensor[MOERT_LAYER_TENSORS];
    size_t elements[MOERT_LAYER_TENSORS];
    /* [T,K], each token's experts, chosen only once, because finite differences must not change the
     * choice */
    int32_t *index;
    float *correction; /* [E] or NULL */
    double *aux;       /* [E] gradient of the loss with respect to each routing score r */
    double z_factor;
    /* smallest difference of two scores whose order decides the choice of an expert */
    double margin;
} oracle_layer;

/* Options with 5 experts, of which 2 are chosen; 2 to 4 ranks do not divide 5. */
moert_layer_options layer_form(size_t hidden, size_t intermediate);
/* Options of a small layer with a gated shared expert, every bias, sigmoid scores with a correction
 * bias, and an interleaved GLU that clamps. */
moert_layer_options layer_full_form(void);

/* Creates a layer whose values are exact in float32 and depend only on the options and on
 * `tokens`. */
oracle_layer oracle_layer_create(const moert_layer_options *options, size_t tokens);

/* True for tensors [E,...], of which a rank holds only the part of its experts. */
bool oracle_layer_of_experts(moert_layer_tensor which);

/* Returns sum(y * dy) + sum(aux * r) + z_factor / 2 * sum(lse^2), with sent_dy instead of dy for
 * the routed experts' part of y. Writes y[T,H] unless NULL. */
double oracle_layer_loss(const oracle_layer *layer, double *y);

/* gradient[n]: central differences of the loss with respect to value[n], an array of `layer`. */
void oracle_layer_differentiate(const oracle_layer *layer, double *value, size_t n,
                                double *gradient);
