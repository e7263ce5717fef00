/* Observers of the routing: one warns if a layer's routing collapses, and one balances loads by
 * correction biases. */
#include "base/log.h"
#include "train/internal.h"

/* ---- collapse ---- */

typedef struct collapse {
    bool warned;
} collapse;

static bool has_experts(const moert_trainer *t) {
    const moert_model_config *c = moert_model_describe(t->model);
    return c->router.experts >= 2 * c->router.topk;
}

/* The index among all layers of MoE layer `index`. */
static size_t layer_number(const moert_model_config *c, size_t index) {
    size_t layer = 0;
    while (!moert_layer_is_moe(c, layer) || index-- > 0)
        layer++;
    return layer;
}

/* Warns once if all tokens of a layer choose the same expert, which means an expert load of E / K.
 * Requires at least 2 K experts and 4 E tokens, since otherwise this may happen by chance. */
static moert_status look_for_collapse(void *self, moert_trainer *t) {
    const moert_model_config *c = moert_model_describe(t->model);
    const size_t experts = c->router.experts;
    const uint64_t *counts = moert_run_expert_counts(t->run);
    const uint64_t tokens = moert_trainer_batch(t) / t->options->micro_batches * t->options->length;
    collapse *one = self;
    if (one->warned || !t->first || tokens < 4 * experts ||
        t->result.expert_load < 0.999 * (double)experts / (double)c->router.topk)
        return MOERT_OK;
    for (size_t i = 0; i < moert_trainer_experts(t) && !one->warned; i++) {
        if (counts[i] < tokens)
            continue;
        one->warned = true;
        MOERT_WARN(
            "layer %zu has collapsed at step %llu: all %llu tokens choose expert %zu of %zu; "
            "a higher --aux-coef or --bias-rate, or a lower --lr may help",
            layer_number(c, i / experts), (unsigned long long)t->state.step,
            (unsigned long long)tokens, i % experts, experts);
    }
    return MOERT_OK;
}

const moert_observer moert_observer_collapse = {
    has_experts, sizeof(collapse), NULL, NULL, {[MOERT_EVENT_LOSS] = look_for_collapse}};

/* ---- correction biases ---- */

static bool has_rate(const moert_trainer *t) {
    return t->options->bias_rate > 0.0;
}

static moert_status update_bias(void *self, moert_trainer *t) {
    (void)self;
    return moert_model_update_correction(t->model, t->counts, (float)t->options->bias_rate);
}

const moert_observer moert_observer_bias = {
    has_rate, 0, NULL, NULL, {[MOERT_EVENT_UPDATED] = update_bias}};
