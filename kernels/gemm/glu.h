/*
 * The gated linear unit for one vec of gate and up columns at a time. glu.cl and op/glu.cl have the
 * formulas.
 */

#include "args/activations.h"
#include "lib/elementary.h"

/* Columns of gate and up. */
typedef struct pair {
    vec g, u;
} pair;

typedef struct glu_form {
    int interleaved; /* 1: gates and ups alternate; 0: all gates come first */
    float limit, alpha, offset;
    int activation;
} glu_form;

/* The gates and ups in two vectors of columns that are neighbours in v. */
static inline pair gate_and_up(vec a, vec b, int interleaved) {
    return interleaved ? (pair){(vec)(a.even, b.even), (vec)(a.odd, b.odd)} : (pair){a, b};
}

static inline vec sigmoid(vec x) {
    return 1.0f / (1.0f + moert_exp(-x));
}

MOERT_ACTIVATE(vec, sigmoid)

/* Clamps gates and ups by the limit; a NaN stays NaN. */
static inline pair clamp_pair(pair x, vec limit) {
    return (pair){x.g > limit ? limit : x.g, x.u > limit ? limit : (x.u < -limit ? -limit : x.u)};
}

static inline vec glu_of(pair x, vec prob, glu_form form) {
    const pair c = clamp_pair(x, form.limit);
    vec slope;
    return prob * (c.u + form.offset) * activate(c.g, form.alpha, form.activation, 0.0f, &slope);
}

/* The gradients of gate and up for the gradient q of h. dprob is the sum of *pull over a row. */
static inline pair gradient_of(pair x, vec q, vec prob, glu_form form, vec *pull) {
    const pair c = clamp_pair(x, form.limit);
    vec dg, up = c.u + form.offset;
    vec act = activate(c.g, form.alpha, form.activation, q * prob * up, &dg), du = q * prob * act;
    *pull = q * up * act;
    return (pair){x.g > form.limit ? 0.0f : dg, x.u > form.limit || x.u < -form.limit ? 0.0f : du};
}
