/* The memory of a rank for copies of weights: rounded, or prepacked for the device's GEMMs. */
#include "base/memory.h"
#include "estimate/parts.h"

/* The prepacked weights that moert_prepacks makes in a step, with one forward and one dgrad for
 * each of `times` micro-batches. shape->use is the use for the forward. */
static size_t prepacked_bytes(const moert_device *device, const moert_prepacked_shape *shape,
                              size_t times) {
    return device != NULL && shape->groups > 0 && shape->n > 0 && shape->k > 0
               ? moert_prepacks_need(device, shape, times)
               : 0;
}

/* The quantized copies of a weight for forward and dgrad: prepacked or, where that gains nothing,
 * float32 (refresh_use of layer/rounding.c). */
static size_t rounded_bytes(const moert_device *device, moert_prepacked_shape shape) {
    const moert_prepacked_use uses[] = {shape.use, MOERT_PREPACKED_DGRAD};
    size_t bytes = 0;
    for (size_t i = 0; i < MOERT_COUNT(uses); i++) {
        shape.use = uses[i];
        const size_t prepacked = device != NULL ? moert_prepacked_need(device, &shape) : 0;
        bytes += prepacked > 0 ? prepacked : shape.groups * shape.n * shape.k * sizeof(float);
    }
    return bytes;
}

/* Copies of the weights of one layer's `experts`, if they get rows. */
static size_t expert_bytes(const moert_memory_shape *s, size_t experts, size_t rows, size_t times) {
    const moert_layer_options *o = &s->options;
    const moert_prepacked_use first =
        o->glu.interleaved ? MOERT_PREPACKED_FORWARD : MOERT_PREPACKED_GATED;
    const moert_prepacked_shape in = {experts, 2 * o->intermediate, o->hidden, first,
                                      s->choices.operand},
                                out = {experts, o->hidden, o->intermediate, MOERT_PREPACKED_FORWARD,
                                       s->choices.operand};
    const moert_device *device = s->setting->device;
    if (s->choices.quantizes)
        return rounded_bytes(device, in) + rounded_bytes(device, out);
    return rows == 0 ? 0
                     : prepacked_bytes(device, &in, times) + prepacked_bytes(device, &out, times);
}

/* Copies of W1 and W2 of a GLU that computes all tokens. */
static size_t glu_bytes(const moert_memory_shape *s, size_t width, size_t times) {
    const moert_model_config *c = s->setting->config;
    const moert_dtype type = moert_operand_type(c->dense);
    const moert_prepacked_shape in = {1, 2 * width, c->hidden, MOERT_PREPACKED_GATED, type},
                                out = {1, c->hidden, width, MOERT_PREPACKED_FORWARD, type};
    return prepacked_bytes(s->setting->device, &in, times) +
           prepacked_bytes(s->setting->device, &out, times);
}

static size_t weight_bytes(const moert_memory_shape *s, size_t n, size_t k, moert_dtype type,
                           size_t times) {
    const moert_prepacked_shape shape = {1, n, k, MOERT_PREPACKED_FORWARD, type};
    return prepacked_bytes(s->setting->device, &shape, times);
}

/* Of one layer: its router and shared expert, and its attention. */
static size_t router_bytes(const moert_memory_shape *s, size_t times) {
    const moert_layer_options *o = &s->options;
    return weight_bytes(s, o->router.experts, o->hidden, MOERT_DTYPE_F32, times) +
           weight_bytes(s, o->shared_gate, o->hidden, MOERT_DTYPE_F32, times) +
           glu_bytes(s, o->shared_intermediate, times);
}

static size_t attention_bytes(const moert_memory_shape *s, size_t times) {
    const moert_model_parameter *p = s->attention.parameter;
    const moert_dtype type = moert_operand_type(s->setting->config->dense);
    size_t bytes = 0;
    for (size_t i = 0; i < s->attention.parameters; i++)
        bytes += weight_bytes(s, p[i].rows, p[i].columns, type, times);
    return bytes;
}

void moert_memory_add_copies(const moert_memory_shape *s, moert_memory *memory) {
    const moert_model_config *c = s->setting->config;
    const size_t times = s->setting->micro_batches;
    for (size_t l = 0; l < s->moe_layers; l++)
        MOERT_MEMORY_ADD(memory, copies, "experts",
                         expert_bytes(s, s->layer.local, moert_memory_pass_peak(s, l).rows, times));
    if (s->model.tokens == 0)
        return;
    MOERT_MEMORY_ADD(memory, copies, "routers and shared experts",
                     s->moe_layers * router_bytes(s, times));
    MOERT_MEMORY_ADD(memory, copies, "dense GLUs",
                     s->dense_layers * glu_bytes(s, c->dense_intermediate, times));
    MOERT_MEMORY_ADD(memory, copies, "attention", c->layers * attention_bytes(s, times));
    MOERT_MEMORY_ADD(
        memory, copies, "head",
        weight_bytes(s, c->vocabulary, c->hidden, moert_operand_type(c->dense), times));
}

size_t moert_memory_check_copies(const moert_memory_shape *s, size_t experts) {
    size_t bytes = s->moe_layers > 0 ? expert_bytes(s, experts, s->peak.rows, 1) : 0;
    if (s->model.tokens == 0)
        return bytes;
    bytes += s->moe_layers > 0 ? router_bytes(s, 1) : 0;
    bytes += s->dense_layers > 0 ? glu_bytes(s, s->setting->config->dense_intermediate, 1) : 0;
    return bytes + attention_bytes(s, 1);
}
