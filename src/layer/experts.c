/* Descriptors of the experts' GEMMs. */
#include "layer/experts.h"

#include "base/memory.h"
#include "layer/rounding.h"
#include "layer/wire.h"

/* Makes the row matrix that is operand x or y of a GEMM by `block`. */
static moert_status take_rows(moert_pass *pass, int block, bool y, moert_rows *rows) {
    const moert_layer_choices *c = &pass->layer->choices;
    if (block == (y ? BLOCK_EXPERT_OUT : BLOCK_EXPERT_IN))
        return moert_wire_unpack(pass, y ? pass->dy : pass->x, rows);
    *rows = y ? (moert_rows){pass->dv, 0, c->dv} : (moert_rows){pass->h, 0, c->h};
    return MOERT_OK;
}

/* Makes the operands that a GEMM reads. */
static moert_status take_operands(moert_pass *pass, int block, moert_expert_gemm *planned) {
    moert_gemm *gemm = &planned->gemm;
    const bool reads_x = gemm->kind != MOERT_GEMM_DGRAD, reads_y = gemm->kind != MOERT_GEMM_FORWARD;
    if (reads_x)
        MOERT_TRY(take_rows(pass, block, false, &planned->x));
    if (reads_y)
        MOERT_TRY(take_rows(pass, block, true, &planned->y));
    moert_rows x = planned->x, y = planned->y;
    if (reads_x)
        MOERT_TRY(moert_round_rows(pass, gemm, block, false, &x));
    if (reads_y)
        MOERT_TRY(moert_round_rows(pass, gemm, block, true, &y));
    gemm->x = x.buffer;
    gemm->ldx = x.stride;
    gemm->y = y.buffer;
    gemm->ldy = y.stride;
    return MOERT_OK;
}

/* Adds the GLU to the forward of the first projection. */
static void add_glu(const moert_pass *pass, moert_gemm *gemm) {
    gemm->gated = true;
    gemm->glu = (moert_glu){.form = pass->layer->options.glu,
                            .prob = moert_window_rows(pass->prob),
                            .prob_stride = moert_window_stride(pass->prob),
                            .type = pass->layer->choices.h,
                            .h = pass->h};
    gemm->drop_v = moert_pass_drops_v(pass);
}

moert_status moert_experts_gemm(moert_pass *pass, moert_gemm_kind kind, int block,
                                const moert_part *part, const moert_result *result,
                                moert_expert_gemm *planned) {
    moert_layer *layer = pass->layer;
    const moert_layer_options *o = &layer->options;
    const moert_block_tensor *weights = layer->block[block]->tensor;
    const bool in = block == BLOCK_EXPERT_IN, wgrad = kind == MOERT_GEMM_WGRAD;
    *planned = (moert_expert_gemm){
        .gemm = {.kind = kind,
                 .groups = {pass->plan->ends, layer->local_experts, pass->plan->plan->rows},
                 .part = part != NULL ? *part : (moert_part){.first = 0},
                 .n = in ? 2 * o->intermediate : o->hidden,
                 .k = in ? o->hidden : o->intermediate,
                 .type = layer->choices.operand,
                 .accumulate = wgrad && pass->losses.accumulate,
                 .rounded = !wgrad ? NULL
                            : in   ? pass->losses.w1_gradient
                                   : pass->losses.w2_gradient,
                 .weight =
                     wgrad ? weights[EXPERT_WEIGHT].gradient : weights[EXPERT_WEIGHT].weight}};
    moert_gemm *gemm = &planned->gemm;
    if (wgrad)
        return pass->status != MOERT_OK ? pass->status : take_operands(pass, block, planned);
    *(kind == MOERT_GEMM_FORWARD ? &planned->y : &planned->x) = result->rows;
    gemm->result = result->rows.dtype;
    gemm->scatter = result->scatter;
    if (in && kind == MOERT_GEMM_FORWARD) {
        gemm->bias = weights[EXPERT_BIAS].weight;
        add_glu(pass, gemm);
    }
    MOERT_TRY(take_operands(pass, block, planned));
    return moert_round_take_weight(layer, block, gemm);
}

moert_gemm moert_experts_bias_gradient(const moert_pass *pass) {
    const moert_layer *layer = pass->layer;
    return (moert_gemm){.kind = MOERT_GEMM_BIAS_GRAD,
                        .groups = {pass->plan->ends, layer->local_experts, pass->plan->plan->rows},
                        .n = 2 * layer->options.intermediate,
                        .k = layer->options.hidden,
                        .accumulate = pass->losses.accumulate,
                        .bias = layer->block[BLOCK_EXPERT_IN]->tensor[EXPERT_BIAS].gradient,
                        .y = pass->dv};
}

moert_scaled_bias moert_experts_biases(const moert_pass *pass, const moert_part *part,
                                       const moert_rows *rows) {
    const moert_layer *layer = pass->layer;
    const moert_block_tensor *biases = &layer->block[BLOCK_EXPERT_OUT]->tensor[EXPERT_BIAS];
    return (moert_scaled_bias){
        .groups = {pass->plan->ends, layer->local_experts, pass->plan->plan->rows},
        .part = part != NULL ? *part : (moert_part){.first = 0},
        .n = layer->options.hidden,
        .ldy = rows->stride,
        .prob = moert_window_rows(pass->prob),
        .prob_stride = moert_window_stride(pass->prob),
        .bias = biases->weight,
        .y = rows->buffer,
        .dbias = biases->gradient,
        .accumulate = pass->losses.accumulate};
}
