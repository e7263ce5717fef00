/* The memory of a rank for low precision and prepacked weights. */
#include "base/dtype.h"
#include "base/memory.h"
#include "estimate/parts.h"
#include "layer/operand.h"
#include "moert/quantize.h"

/* ---- copies of weights ---- */

/* The prepacked weights that moert_prepacks makes in a step, with one forward and one dgrad per
 * micro-batch. shape->use is the use for the forward. */
static size_t prepacks_bytes(const moert_memory_setting *setting,
                             const moert_prepacked_shape *shape) {
    return setting->device != NULL
               ? moert_prepacks_need(setting->device, shape, setting->micro_batches)
               : 0;
}

/* The quantized copies of a weight for forward and dgrad: prepacked or, where that gains nothing,
 * float32 (refresh_use of layer/rounding.c). */
static size_t rounded_bytes(const moert_memory_setting *setting, moert_prepacked_shape shape) {
    const moert_prepacked_use uses[] = {shape.use, MOERT_PREPACKED_DGRAD};
    size_t bytes = 0;
    for (size_t i = 0; i < MOERT_COUNT(uses); i++) {
        shape.use = uses[i];
        const size_t prepacked =
            setting->device != NULL ? moert_prepacked_need(setting->device, &shape) : 0;
        bytes += prepacked > 0 ? prepacked : shape.groups * shape.n * shape.k * sizeof(float);
    }
    return bytes;
}

enum { PROJECTIONS = 2 };

/* The shapes of the weights of a layer's experts. */
static void expert_projections(const moert_memory_shape *s,
                               moert_prepacked_shape experts[PROJECTIONS]) {
    const moert_model_config *c = s->config;
    const moert_dtype type = s->choices.operand;
    experts[0] = (moert_prepacked_shape){
        s->experts, 2 * c->intermediate, c->hidden,
        s->options.glu.interleaved ? MOERT_PREPACKED_FORWARD : MOERT_PREPACKED_GATED, type};
    experts[1] = (moert_prepacked_shape){s->experts, c->hidden, c->intermediate,
                                         MOERT_PREPACKED_FORWARD, type};
}

/* Copies of the experts' weights of one layer. */
static size_t expert_copies(const moert_memory_setting *setting, const moert_memory_shape *s) {
    const bool blocks = s->choices.quantizes;
    moert_prepacked_shape experts[PROJECTIONS];
    size_t bytes = 0;
    if (!blocks && s->peak.rows == 0)
        return 0;
    expert_projections(s, experts);
    for (size_t i = 0; i < PROJECTIONS; i++)
        bytes += blocks ? rounded_bytes(setting, experts[i]) : prepacks_bytes(setting, &experts[i]);
    return bytes;
}

/* Prepacked weights of the replicated projections of one MoE layer, and of one dense GLU. */
static size_t moe_dense_copies(const moert_memory_setting *setting, const moert_memory_shape *s) {
    const moert_model_config *c = s->config;
    const size_t h = c->hidden, shared = c->shared_intermediate;
    const moert_dtype type = moert_operand_type(c->dense);
    const moert_prepacked_shape dense[] = {
        {1, c->router.experts, h, MOERT_PREPACKED_FORWARD, MOERT_DTYPE_F32},
        {shared > 0, 2 * shared, h, MOERT_PREPACKED_GATED, type},
        {shared > 0, h, shared, MOERT_PREPACKED_FORWARD, type},
        {c->shared_gate, 1, h, MOERT_PREPACKED_FORWARD, MOERT_DTYPE_F32}};
    size_t bytes = 0;
    for (size_t i = 0; i < MOERT_COUNT(dense); i++)
        bytes += prepacks_bytes(setting, &dense[i]);
    return bytes;
}

static size_t glu_copies(const moert_memory_setting *setting, const moert_memory_shape *s) {
    const size_t h = s->config->hidden;
    const moert_dtype type = moert_operand_type(s->config->dense);
    const moert_prepacked_shape glu[] = {
        {s->dense > 0, 2 * s->dense, h, MOERT_PREPACKED_GATED, type},
        {s->dense > 0, h, s->dense, MOERT_PREPACKED_FORWARD, type}};
    return prepacks_bytes(setting, &glu[0]) + prepacks_bytes(setting, &glu[1]);
}

/* Those of one layer's attention. */
static size_t attention_copies(const moert_memory_setting *setting, const moert_memory_shape *s) {
    const moert_dtype type = moert_operand_type(s->config->dense);
    size_t bytes = 0;
    for (size_t i = 0; i < s->attention.parameters; i++) {
        const moert_model_parameter *p = &s->attention.parameter[i];
        const moert_prepacked_shape shape = {1, p->rows, p->columns, MOERT_PREPACKED_FORWARD, type};
        if (p->rows > 0 && p->columns > 0)
            bytes += prepacks_bytes(setting, &shape);
    }
    return bytes;
}

size_t moert_memory_layer_copies(const moert_memory_setting *setting, const moert_memory_shape *s,
                                 size_t moe_layers, size_t dense_layers) {
    const size_t layers = moe_layers + dense_layers;
    size_t bytes = moe_layers * expert_copies(setting, s);
    if (s->tokens > 0)
        bytes += moe_layers * moe_dense_copies(setting, s) + dense_layers * glu_copies(setting, s) +
                 layers * attention_copies(setting, s);
    return bytes;
}

size_t moert_memory_copies(const moert_memory_setting *setting, const moert_memory_shape *s) {
    const moert_prepacked_shape head = {1, s->config->vocabulary, s->config->hidden,
                                        MOERT_PREPACKED_FORWARD,
                                        moert_operand_type(s->config->dense)};
    return moert_memory_layer_copies(setting, s, s->moe_layers, s->dense_layers) +
           (s->tokens > 0 ? prepacks_bytes(setting, &head) : 0);
}

/* ---- scratch ---- */

/* The largest payload and scales that layer/rounding.c quantizes: rows of a GEMM's operands, in
 * the layouts of forward and dgrad and of wgrad, and the weights. */
static void largest_quantized(const moert_memory_shape *s, size_t *payload, size_t *scales) {
    const moert_model_config *c = s->config;
    const size_t l = s->experts, widest = moert_max(c->hidden, 2 * c->intermediate);
    const size_t matrices[][2] = {{s->peak.rows, widest},
                                  {l * 2 * c->intermediate, c->hidden},
                                  {l * c->hidden, c->intermediate}};
    moert_quantizer how = MOERT_QUANTIZER_INIT;
    how.format = s->choices.format;
    for (size_t i = 0; i < MOERT_COUNT(matrices); i++)
        for (how.axis = MOERT_AXIS_ROW; how.axis <= MOERT_AXIS_COLUMN; how.axis++) {
            const size_t rows = matrices[i][0];
            const moert_quantized_shape q = moert_quantized_shape_of(
                &how, rows, matrices[i][1],
                moert_row_blocks_most(rows, l, moert_format_block(how.format)));
            *payload = moert_max(*payload, moert_ceil_div(q.q_lines * q.q_bytes, sizeof(float)));
            *scales = moert_max(*scales, moert_ceil_div(q.scale_lines * q.scales, sizeof(float)));
        }
}

/* The largest rounded operands x and y of the dense layers' GEMMs. */
static void largest_operands(const moert_memory_shape *s, size_t *x, size_t *y) {
    const moert_model_config *c = s->config;
    const size_t h = c->hidden, shared = moert_max(c->shared_intermediate, s->dense);
    const moert_dtype type = moert_operand_type(c->dense);
    /* 0: dv replaces v */
    const size_t dv = moert_max(s->shared_v_type == type ? 0 : 2 * c->shared_intermediate,
                                s->dense_v_type == type ? 0 : 2 * s->dense);
    const size_t widest_x = moert_max(s->attention.rounded_x, shared > 0 ? h : 0);
    const size_t widest_y = moert_max(shared > 0 ? moert_max(h, dv) : 0, s->attention.rounded_y);
    *x = moert_max(*x, moert_operand_floats(type, s->tokens * widest_x));
    *y = moert_max(*y, moert_operand_floats(type, s->tokens * widest_y));
}

size_t moert_memory_rounding(const moert_memory_setting *setting, const moert_memory_shape *s) {
    const moert_model_config *c = s->config;
    const moert_layer_choices *choices = &s->choices;
    const bool rounds = choices->quantizes || choices->operand != MOERT_DTYPE_F32,
               ready = choices->received == MOERT_DTYPE_BF16;
    const bool travels = choices->forth.form != MOERT_DISPATCH_F32,
               bf16 = choices->forth.form == MOERT_DISPATCH_BF16;
    const size_t h = c->hidden, i = c->intermediate;
    const size_t operand_bytes = moert_dtype_bits(choices->operand) / 8;
    const bool given = bf16 && c->dense != MOERT_PRECISION_F32;
    size_t x = 0, y = 0, floats = 0, scales = 0,
           payload = travels && !given ? s->tokens * choices->forth.width : 0;
    if (!ready && (travels || (rounds && h % MOERT_WINDOW_ROW_FLOATS != 0)))
        floats += s->peak.rows * h; /* copies of windows' rows without gaps */
    if (choices->back.form == MOERT_DISPATCH_BF16 && !choices->y.rounds)
        floats = moert_max(floats, s->peak.rows * moert_round_up(h, 2 * MOERT_WINDOW_ROW_FLOATS));
    if (!ready && bf16 && h / 2 % MOERT_WINDOW_ROW_FLOATS != 0)
        payload = moert_max(payload, s->peak.rows * h / 2);
    if (rounds) {
        /* in the recipe bf16 the GEMMs write h in bf16, so h needs no rounded copy */
        const size_t width = choices->h == MOERT_DTYPE_BF16 ? 0 : i;
        const size_t dv = choices->v == MOERT_DTYPE_BF16 ? 0 : 2 * i; /* 0: dv replaces v */
        x = moert_ceil_div(s->peak.rows * moert_max(ready ? 0 : h, width) * operand_bytes,
                           sizeof(float));
        /* the router's split operands share the scratch buffer of x */
        const moert_gemm router = {.groups = {NULL, s->sequences, s->tokens, .shared = true},
                                   .n = c->router.experts,
                                   .k = h};
        if (setting->device != NULL)
            x = moert_max(x, moert_gemm_split_bytes(setting->device, &router) / sizeof(float));
        y = moert_ceil_div(s->peak.rows * moert_max(ready ? 0 : h, dv) * operand_bytes,
                           sizeof(float));
    }
    if (c->dense != MOERT_PRECISION_F32) {
        largest_operands(s, &x, &y);
        const bool again = c->memory.recompute == MOERT_RECOMPUTE_LAYER && c->layers > 1;
        floats += (again ? 2 : 1) *
                  moert_operand_floats(moert_operand_type(c->dense),
                                       s->tokens * h); /* bf16 and d_bf16 of moert_run */
    }
    if (choices->quantizes) {
        largest_quantized(s, &payload, &scales);
        floats += 2 * s->experts; /* ends, global scales */
    }
    if (choices->global_scales)
        floats += s->experts; /* amax */
    return floats + x + y + payload + scales;
}
