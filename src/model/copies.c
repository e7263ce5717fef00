/* Computes the memory for copies of weights: rounded, or prepacked for the device's GEMMs. */
#include "base/memory.h"
#include "model/sizes.h"
#include "quant/fp8_operands.h"

/* Bytes of the prepacked copy of a weight [n,k] (moert_weight_cache) that `times` micro-batches
 * read, each with one forward and one dgrad. `use` is the forward's use of the panels. */
static size_t prepacked_bytes(const moert_device *device, size_t n, size_t k, moert_panels_use use,
                              moert_dtype type, size_t times) {
    const moert_panels_shape shape = {1, n, k, use, type};
    return device != NULL && n > 0 && k > 0 ? moert_weight_cache_need(device, &shape, times) : 0;
}

/* Bytes of a weight's quantized copies for forward and dgrad. The copies are prepacked or, where
 * prepacking saves no time, float32 (layer/rounded.c). */
static size_t rounded_bytes(const moert_device *device, moert_panels_shape shape) {
    const moert_panels_use uses[] = {shape.use, MOERT_PANELS_DGRAD};
    size_t bytes = 0;
    for (size_t i = 0; i < MOERT_COUNT(uses); i++) {
        shape.use = uses[i];
        const size_t prepacked = device != NULL ? moert_panels_need(device, &shape) : 0;
        bytes += prepacked > 0 ? prepacked : shape.groups * shape.n * shape.k * sizeof(float);
    }
    return bytes;
}

/* Bytes of a weight's FP8 payloads and scales for forward and dgrad (layer/fp8.c). */
static size_t fp8_bytes(const moert_panels_shape *shape) {
    const size_t payload = shape->groups * shape->n * shape->k;
    return 2 * (payload + payload / (MOERT_FP8_BLOCK * MOERT_FP8_BLOCK) * sizeof(float));
}

static size_t glu_bytes(const moert_glu_sizes *s, size_t times) {
    return prepacked_bytes(s->device, 2 * s->width, s->hidden, MOERT_PANELS_GATED, s->type, times) +
           prepacked_bytes(s->device, s->hidden, s->width, MOERT_PANELS_FORWARD, s->type, times);
}

/* Bytes of the copies of a GLU whose weights a recipe rounds. */
static size_t rounded_glu_bytes(const moert_glu_sizes *s) {
    const moert_panels_shape in = {1, 2 * s->width, s->hidden, MOERT_PANELS_GATED, s->type},
                             out = {1, s->hidden, s->width, MOERT_PANELS_FORWARD, s->type};
    return s->width > 0 ? rounded_bytes(s->device, in) + rounded_bytes(s->device, out) : 0;
}

size_t moert_copies_of_experts(const moert_layer_sizes *s, size_t times) {
    const moert_layer_options *o = s->options;
    const moert_panels_use first = o->glu.interleaved ? MOERT_PANELS_FORWARD : MOERT_PANELS_GATED;
    const moert_panels_shape shapes[] = {
        {s->local, 2 * o->intermediate, o->hidden, first, s->choices->operand},
        {s->local, o->hidden, o->intermediate, MOERT_PANELS_FORWARD, s->choices->operand}};
    size_t bytes = 0;
    for (size_t i = 0; i < MOERT_COUNT(shapes); i++)
        if (s->choices->fp8)
            bytes += fp8_bytes(&shapes[i]);
        else if (s->choices->quantizes)
            bytes += rounded_bytes(s->device, shapes[i]);
        else if (s->rows > 0 && s->device != NULL)
            bytes += moert_weight_cache_need(s->device, &shapes[i], times);
    return bytes;
}

size_t moert_copies_of_router(const moert_layer_sizes *s, size_t times, bool keeps_bf16) {
    const moert_layer_options *o = s->options;
    const moert_glu_sizes shared = moert_layer_shared_sizes(s);
    const size_t rows[] = {o->router.experts, o->shared_gate};
    size_t bytes =
        shared.rounds && !keeps_bf16 ? rounded_glu_bytes(&shared) : glu_bytes(&shared, times);
    for (size_t i = 0; i < MOERT_COUNT(rows); i++)
        bytes += prepacked_bytes(s->device, rows[i], o->hidden, MOERT_PANELS_FORWARD,
                                 MOERT_DTYPE_F32, times);
    return s->tokens > 0 ? bytes : 0;
}

size_t moert_copies_of_attention(const moert_model_sizes *s, size_t layer, size_t times) {
    const moert_model_parameter *p = s->attention->parameter;
    const bool rounds = moert_model_rounds_attention(s->config, layer);
    size_t bytes = 0;
    for (size_t i = 0; i < s->attention->parameters && s->tokens > 0; i++) {
        const moert_panels_shape shape = {1, p[i].rows, p[i].columns, MOERT_PANELS_FORWARD,
                                          MOERT_DTYPE_BF16};
        if (p[i].is_fixed)
            continue;
        bytes += !rounds ? prepacked_bytes(s->device, p[i].rows, p[i].columns, shape.use,
                                           moert_operand_type(s->config->dense), times)
                 : shape.n * shape.k > 0 ? rounded_bytes(s->device, shape)
                                         : 0;
    }
    return bytes;
}

size_t moert_copies_of_dense(const moert_model_sizes *s, size_t times) {
    const moert_glu_sizes glu = moert_model_glu_sizes(s);
    return s->tokens > 0 ? glu_bytes(&glu, times) : 0;
}

size_t moert_copies_of_head(const moert_model_sizes *s, size_t times) {
    return s->tokens > 0
               ? prepacked_bytes(s->device, s->config->vocabulary, s->config->hidden,
                                 MOERT_PANELS_FORWARD, moert_operand_type(s->config->dense), times)
               : 0;
}
