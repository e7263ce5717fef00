/* Counts the multiply-adds of a forward from the shapes of the weights. */
#include "model/flops.h"

#include "base/memory.h"
#include "model/internal.h"

enum { GLU_MATRICES = 3 }; /* gate, up, down */

/* The number of pairs of a token and a token that it attends to: sum_t min(t + 1, window). */
static double count_pairs(const moert_model_config *c, size_t layer, size_t length) {
    const bool windowed = moert_layer_set_has(&c->windowed, layer) && c->sliding_window > 0;
    const double n = (double)length,
                 window = (double)moert_min(windowed ? c->sliding_window : length, length);
    return window * (window + 1.0) / 2.0 + (n - window) * window;
}

/* Multiply-adds of attention for one pair of tokens: the product q k, and the probability times
 * v. */
static double count_pair(const moert_model_config *c) {
    const moert_latent_sizes *s = &c->latent;
    const size_t both = s->kv_rank > 0 ? s->nope + s->rope + s->value : 2 * c->head_size;
    return (double)(c->heads * both);
}

/* Multiply-adds of attention's projections for one token. */
static double count_projections(const moert_model_config *c) {
    const moert_attention_shape shape = moert_attention_shape_of(c, NULL);
    double sum = 0.0;
    for (size_t i = 0; i < shape.parameters; i++)
        sum += (double)shape.parameter[i].rows * (double)shape.parameter[i].columns;
    return sum;
}

/* Multiply-adds of a layer's MLP for one token. */
static double count_mlp(const moert_model_config *c, size_t layer) {
    const double h = (double)c->hidden;
    if (!moert_layer_is_moe(c, layer))
        return GLU_MATRICES * h * (double)c->dense_intermediate;
    return h * (double)c->router.experts +
           GLU_MATRICES * h * (double)(c->router.topk * c->intermediate + c->shared_intermediate) +
           (c->shared_gate ? h : 0.0);
}

double moert_model_flops(const moert_model_config *config, size_t length) {
    const moert_model_config *c = config;
    const double tokens = (double)length;
    double sum = tokens * (double)c->hidden * (double)c->vocabulary;
    for (size_t i = 0; i < c->layers; i++)
        sum += tokens * (count_projections(c) + count_mlp(c, i)) +
               count_pairs(c, i, length) * count_pair(c);
    return 2.0 * 3.0 * sum;
}
