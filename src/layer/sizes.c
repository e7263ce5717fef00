/* The tables of a layer's buffers. */
#include "layer/sizes.h"

#include "base/memory.h"
#include "layer/internal.h"

moert_glu_sizes moert_layer_shared_sizes(const moert_layer_sizes *s) {
    return (moert_glu_sizes){.device = s->device,
                             .type = s->choices->shared,
                             .rounds = s->choices->quantizes,
                             .tokens = s->tokens,
                             .sequences = s->sequences,
                             .hidden = s->options->hidden,
                             .width = s->options->shared_intermediate};
}

/* ---- buffers that a pass keeps ---- */

/* The size in floats of a matrix [M, width * I] of dtype `type`. */
static size_t hidden(const moert_layer_sizes *s, moert_dtype type, size_t width) {
    return moert_operand_floats(type, s->rows * width * s->options->intermediate);
}

/* The bytes of a float32 matrix [T,width], or MOERT_NO_BUFFER if the pass has no such buffer. */
static size_t rows_if(bool is, const moert_layer_sizes *s, size_t width) {
    return is ? s->tokens * width * sizeof(float) : MOERT_NO_BUFFER;
}

/* The bytes of a matrix [M, width * I] of dtype `type`, or MOERT_NO_BUFFER if the backward computes
 * the matrix again. */
static size_t hidden_bytes(const moert_layer_sizes *s, moert_dtype type, size_t width) {
    return s->options->recompute_experts ? MOERT_NO_BUFFER : hidden(s, type, width) * sizeof(float);
}

static size_t shared_bytes(const moert_layer_sizes *s,
                           size_t (*floats)(const moert_glu_sizes *sizes)) {
    const moert_glu_sizes shared = moert_layer_shared_sizes(s);
    return s->options->shared_intermediate > 0 && !s->options->recompute_experts
               ? floats(&shared) * sizeof(float)
               : MOERT_NO_BUFFER;
}

#define ROUTED  !s->options->external_routing
#define GATED   s->options->shared_gate
#define EXPERTS s->options->router.experts
#define TOPK    s->options->router.topk
#define ROUTING(X)                                                                                 \
    X(logits, "logits of the routers", rows_if(ROUTED, s, EXPERTS))                                \
    X(routing.scores, "scores of the routers", rows_if(ROUTED, s, EXPERTS))                        \
    X(routing.index, "choices of experts", rows_if(ROUTED, s, TOPK))                               \
    X(routing.weight, "routing weights", rows_if(ROUTED, s, TOPK))                                 \
    X(routing.lse, "log-sums of the routers", rows_if(ROUTED, s, 1))                               \
    X(gate_logits, "logits of gates", rows_if(GATED, s, 1))                                        \
    X(gate.scores, "scores of gates", rows_if(GATED, s, 1))                                        \
    X(gate.index, "indices of gates", rows_if(GATED, s, 1))                                        \
    X(gate.weight, "weights of gates", rows_if(GATED, s, 1))                                       \
    X(gate.lse, "log-sums of gates", rows_if(GATED, s, 1))                                         \
    X(shared_v, "v of shared experts", shared_bytes(s, moert_glu_v_floats))                        \
    X(shared_h, "h of shared experts", shared_bytes(s, moert_glu_h_floats))
#define HIDDEN(X)                                                                                  \
    X(v, "v of the experts", hidden_bytes(s, s->choices->v, 2))                                    \
    X(h, "h of the experts", hidden_bytes(s, s->choices->h, 1))
MOERT_BUFFER_TABLE(moert_pass_routing_buffers, moert_pass, moert_layer_sizes, ROUTING)
MOERT_BUFFER_TABLE(moert_pass_hidden_buffers, moert_pass, moert_layer_sizes, HIDDEN)

/* ---- scratch ---- */

static size_t of_tokens(const moert_layer_sizes *s, size_t width) {
    return s->tokens * width;
}
static size_t of_sequences(const moert_layer_sizes *s, size_t width) {
    return s->sequences * width;
}
static size_t of_rows(const moert_layer_sizes *s, size_t width) {
    return s->rows * width;
}

/* Whether received rows are converted to float32. */
static bool unpacks(const moert_layer_sizes *s) {
    return s->choices->received == MOERT_DTYPE_F32 &&
           s->choices->forth.encoding != MOERT_DISPATCH_F32;
}

static bool is_packed(const moert_layer_sizes *s) {
    const moert_dispatch encoding = s->choices->forth.encoding;
    return encoding != MOERT_DISPATCH_F32 && !(encoding == MOERT_DISPATCH_BF16 && s->given);
}

static bool has_bf16_gaps(const moert_layer_sizes *s) {
    return unpacks(s) && s->choices->forth.encoding == MOERT_DISPATCH_BF16 &&
           moert_window_stride_of(s->options->hidden / 2) != s->options->hidden / 2;
}

/* Whether an operand of this dtype is rounded. */
static bool rounds(const moert_layer_sizes *s, moert_dtype type) {
    return s->choices->quantizes || type != s->choices->operand;
}

/* Whether a cast reads a window's rows, which have gaps. */
static bool has_gaps(const moert_layer_sizes *s) {
    return s->choices->forth.encoding == MOERT_DISPATCH_F32 &&
           (s->choices->quantizes ? s->casts : rounds(s, MOERT_DTYPE_F32)) &&
           moert_window_stride_of(s->options->hidden) != s->options->hidden;
}

/* Floats of results [M,H] in the layout of their window. */
static size_t sent_floats(const moert_layer_sizes *s) {
    return s->rows * moert_window_stride_of(s->choices->back.width);
}

/* Floats of results [M,H] of GEMMs that do not round them, with their window's gaps. */
static size_t float_results(const moert_layer_sizes *s) {
    const moert_layer_choices *c = s->choices;
    if (c->back.encoding != MOERT_DISPATCH_BF16)
        return s->sends ? sent_floats(s) : 0;
    return c->y.rounds && c->dx.rounds ? 0 : 2 * sent_floats(s);
}

/* Floats of a rounded copy of rows [M,columns], or of their FP8 payload with padded rows; 0 if the
 * rows need no rounding. */
static size_t rounded(const moert_layer_sizes *s, moert_dtype type, size_t columns) {
    const size_t payload = moert_fp8_padded_rows(s->rows, s->local) * columns / sizeof(float),
                 copy = rounds(s, type)
                            ? moert_operand_floats(s->choices->operand, s->rows * columns)
                            : 0;
    return !s->fp8 ? copy : s->casts ? moert_max(copy, payload) : payload;
}

/* Floats of the scales of FP8 rows [M,columns] in either direction. */
static size_t fp8_scales(const moert_layer_sizes *s, size_t columns) {
    return s->fp8 ? moert_row_blocks_most(s->rows, s->local, MOERT_FP8_BLOCK) * columns : 0;
}

/* Floats of the split operands of the router's GEMM, which moert_gemm reserves. */
static size_t split_floats(const moert_layer_sizes *s) {
    const moert_gemm router = {.groups = {NULL, s->sequences, s->tokens, .shared = true},
                               .n = s->options->router.experts,
                               .k = s->options->hidden};
    return s->choices->splits_router && s->device != NULL
               ? moert_gemm_split_bytes(s->device, &router) / sizeof(float)
               : 0;
}

size_t moert_layer_use_floats(const moert_layer_sizes *s, moert_layer_use use,
                              moert_scratch *which) {
    const moert_layer_options *o = s->options;
    const moert_layer_choices *c = s->choices;
    const moert_glu_sizes shared = moert_layer_shared_sizes(s);
    const size_t experts = o->router.experts;
    switch (use) {
#define CASE(use, buffer, floats)                                                                  \
    case MOERT_USE_##use:                                                                          \
        *which = MOERT_SCRATCH_##buffer;                                                           \
        return floats;
        MOERT_LAYER_SCRATCH_TABLE(CASE)
#undef CASE
    default:
        *which = MOERT_SCRATCHES;
        return 0;
    }
}

/* ---- sizes of a pass ---- */

bool moert_pass_fp8(const moert_pass *pass) {
    const moert_layer *layer = pass->layer;
    return layer->choices.fp8 && !pass->batch.bf16_operands && layer->placement->longest <= 1;
}

moert_layer_sizes moert_pass_sizes(const moert_pass *pass) {
    const moert_layer *layer = pass->layer;
    return (moert_layer_sizes){.options = &layer->options,
                               .choices = &layer->choices,
                               .device = layer->mesh->device,
                               .local = layer->local_experts,
                               .tokens = pass->batch.tokens,
                               .sequences = pass->batch.sequences,
                               .rows = pass->plan != NULL ? pass->plan->plan->rows : 0,
                               .bf16 = pass->batch.type == MOERT_DTYPE_BF16,
                               .sends = pass->back.slot_window != NULL,
                               .casts = pass->batch.bf16_operands || layer->choices.casts,
                               .fp8 = moert_pass_fp8(pass)};
}

moert_status moert_pass_scratch(const moert_pass *pass, moert_layer_use use,
                                moert_buffer **buffer) {
    const moert_layer_sizes sizes = moert_pass_sizes(pass);
    moert_scratch which;
    const size_t floats = moert_layer_use_floats(&sizes, use, &which);
    return moert_mesh_scratch(pass->layer->mesh, which, floats, buffer);
}

moert_status moert_pass_hidden(moert_pass *pass) {
    const moert_layer_sizes sizes = moert_pass_sizes(pass);
    if (!pass->layer->options.recompute_experts)
        return moert_buffer_table_reserve(moert_pass_hidden_buffers, pass->layer->mesh->device,
                                          &sizes, pass, true);
    MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_V, &pass->v));
    return moert_pass_scratch(pass, MOERT_USE_H, &pass->h);
}
