/* The choices that follow from a layer's options. */
#include "layer/choices.h"

#include "base/memory.h"
#include "layer/operand.h"
#include "quant/fp8_operands.h"

enum { GRAIN = 8 /* GEMMs that scatter their results need N and K to be multiples of this */ };

moert_status moert_layer_check_choices(const moert_layer_options *o) {
    const struct {
        const char *name;
        unsigned value, most;
    } choices[] = {{"precision", o->precision, MOERT_PRECISION_RECIPE},
                   {"dense", o->dense, MOERT_PRECISION_BF16},
                   {"dispatch", o->dispatch, MOERT_DISPATCH_BF16},
                   {"combine", o->combine, MOERT_COMBINE_BF16}};
    for (size_t i = 0; i < MOERT_COUNT(choices); i++)
        if (choices[i].value > choices[i].most)
            return MOERT_FAIL(ERROR_USAGE, "%s of a layer is %u, above %u", choices[i].name,
                              choices[i].value, choices[i].most);
    if (o->precision == MOERT_PRECISION_RECIPE)
        MOERT_TRY(moert_recipe_check(&o->recipe));
    if (o->dispatch == MOERT_DISPATCH_BF16 && o->hidden % 2 != 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "rows of an odd hidden size, %zu, are not dispatched as bf16", o->hidden);
    if (o->combine == MOERT_COMBINE_BF16 && o->hidden % 2 != 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "results of an odd hidden size, %zu, are not combined as bf16",
                          o->hidden);
    return MOERT_OK;
}

static moert_hop hop_of(moert_dispatch encoding, size_t hidden) {
    const moert_quantizer how = MOERT_QUANTIZER_INIT;
    const moert_quantized_shape mxfp8 = moert_quantized_shape_of(&how, 1, hidden, 0);
    const size_t bytes = encoding == MOERT_DISPATCH_F32    ? hidden * sizeof(float)
                         : encoding == MOERT_DISPATCH_BF16 ? hidden * sizeof(uint16_t)
                                                           : mxfp8.q_bytes + mxfp8.scales;
    return (moert_hop){encoding, bytes, moert_ceil_div(bytes, sizeof(float))};
}

/* Whether a GEMM by `experts` weights [n,k] can round and scatter its results. */
static moert_storing storing_of(const moert_device *device, moert_gemm_kind kind, size_t experts,
                                size_t n, size_t k, moert_dtype type) {
    moert_gemm gemm = {.kind = kind, .groups = {.count = experts}, .n = n, .k = k};
    if (device == NULL)
        return (moert_storing){false, false};
    moert_gemm_set(&gemm, kind, type);
    return (moert_storing){moert_gemm_rounds(device, &gemm), moert_gemm_scatters(device, &gemm)};
}

/* Whether prepacked bf16 copies of the experts' weights have the order of the weights. */
static bool prepacks_in_order(const moert_device *device, size_t experts, size_t h, size_t i) {
    const moert_panels_shape in = {experts, 2 * i, h, MOERT_PANELS_FORWARD, MOERT_DTYPE_BF16},
                             out = {experts, h, i, MOERT_PANELS_FORWARD, MOERT_DTYPE_BF16};
    return device != NULL && moert_panels_in_order(device, &in) &&
           moert_panels_in_order(device, &out);
}

static const moert_recipe *recipe_of(const moert_layer_options *o) {
    const moert_recipe *named = moert_recipe_of(o->precision);
    return named != NULL ? named : &o->recipe;
}

size_t moert_layer_cut_rows(const moert_layer_options *o) {
    const moert_recipe *r = recipe_of(o);
    const uint32_t wgrad[] = {r->wgrad_x & MOERT_ROUND_FORMAT, r->wgrad_dy & MOERT_ROUND_FORMAT};
    size_t rows = MOERT_CUT_ROWS;
    for (size_t i = 0; i < MOERT_COUNT(wgrad); i++)
        if (wgrad[i] != MOERT_ROUND_BF16)
            rows = moert_max(rows, moert_format_block((moert_format)(wgrad[i] - 1)));
    return rows;
}

static bool casts_some(const moert_recipe *r) {
    return r->x == 0 || r->weight == 0 || r->dy == 0 || r->wgrad_x == 0 || r->wgrad_dy == 0 ||
           r->bf16_first > 0.0 || r->bf16_last > 0.0 || r->bf16_finish > 0.0;
}

/* Whether all GEMMs have the operands of the recipe FP8, and tensor cores multiply them. The sizes
 * are multiples of the blocks, so that blocks of weights are whole. */
static bool multiplies_fp8(const moert_recipe *r, const moert_device *device, size_t experts,
                           size_t h, size_t i) {
    const moert_recipe *fp8 = moert_recipe_of(MOERT_PRECISION_FP8);
    return r->x == fp8->x && r->weight == fp8->weight && r->dy == fp8->dy &&
           r->wgrad_x == fp8->wgrad_x && r->wgrad_dy == fp8->wgrad_dy && device != NULL &&
           (h | i) % MOERT_FP8_BLOCK == 0 && moert_gemm_takes_fp8(device, experts, 2 * i, h) &&
           moert_gemm_takes_fp8(device, experts, h, i);
}

/* Whether a recipe rounds dy alike for dgrad and wgrad, so that one pass can make both. */
static bool rounds_dy_alike(const moert_recipe *r) {
    return r->dy != MOERT_ROUND_BF16 && r->dy == (r->wgrad_dy & ~(uint32_t)MOERT_ROUND_HADAMARD);
}

moert_layer_choices moert_layer_choose(const moert_layer_options *o, const moert_device *device,
                                       size_t experts) {
    const bool rounds = o->precision != MOERT_PRECISION_F32,
               bf16 = o->precision == MOERT_PRECISION_BF16, quantizes = rounds && !bf16;
    const moert_recipe *recipe = recipe_of(o);
    const bool back_bf16 = o->combine == MOERT_COMBINE_BF16, biased = o->expert_biases;
    const size_t h = o->hidden, i = o->intermediate;
    const moert_dtype f32 = MOERT_DTYPE_F32, operand = rounds ? MOERT_DTYPE_BF16 : f32;
    moert_layer_choices c = {
        .forth = hop_of(o->dispatch, h),
        .back = hop_of(back_bf16 ? MOERT_DISPATCH_BF16 : MOERT_DISPATCH_F32, h),
        .biases = biased,
        .operand = operand,
        .shared = quantizes ? operand : moert_operand_type(o->dense),
        .received = o->dispatch == MOERT_DISPATCH_BF16 && !biased ? operand : f32,
        .v = moert_operand_between(device, biased ? f32 : operand, experts, h, i),
        .h = operand,
        .quantizes = quantizes,
        .keeps_down = rounds_dy_alike(recipe) && !o->deferred_wgrad,
        .fp8 = !biased && !o->deferred_wgrad && multiplies_fp8(recipe, device, experts, h, i),
        .recipe = *recipe,
        .casts = casts_some(recipe),
        .copies_in_order = prepacks_in_order(device, experts, h, i),
        .splits_router = rounds};
    const bool plain = o->dispatch == MOERT_DISPATCH_F32 && !rounds;
    c.dv = biased ? f32 : o->deferred_wgrad || quantizes ? c.v : c.h;
    c.chunks = !back_bf16 && (plain || (bf16 && c.received == operand));
    c.pushes = back_bf16 && !biased && (h | i) % GRAIN == 0 && rounds;
    if (back_bf16 && !biased) /* biases are added to float32 results */
        c.y = storing_of(device, MOERT_GEMM_FORWARD, experts, h, i, c.operand);
    if (back_bf16)
        c.dx = storing_of(device, MOERT_GEMM_DGRAD, experts, 2 * i, h, c.operand);
    return c;
}

moert_layer_shapes moert_layer_shapes_of(const moert_layer_options *o, size_t local) {
    const size_t experts = o->external_routing ? 0 : o->router.experts, h = o->hidden,
                 i = o->intermediate, shared = o->shared_intermediate;
    const size_t in_parts = o->glu.interleaved ? local : 2 * local;
    return (moert_layer_shapes){
        .elements = {{experts * h, o->router_bias ? experts : 0, o->correction_bias ? experts : 0,
                      2 * shared * h, h * shared, o->shared_gate ? h : 0},
                     {local * 2 * i * h, o->expert_biases ? local * 2 * i : 0},
                     {local * h * i, o->expert_biases ? local * h : 0}},
        .parts = {{1, 1, 1, 2, 1, 1}, {in_parts, local}, {local, local}},
        .count = {6, 2, 2}};
}
