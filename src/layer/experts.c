/* Descriptors of the experts' GEMMs. */
#include "layer/experts.h"

#include "base/memory.h"
#include "layer/fp8.h"
#include "layer/rounding.h"
#include "layer/wire.h"

/* Finds or converts the rows that are operand x or y of a GEMM by the weight of `block`. */
static moert_status take_rows(moert_pass *pass, int block, bool y, moert_matrix *rows) {
    const moert_layer_choices *c = &pass->layer->choices;
    if (block == (y ? BLOCK_EXPERT_OUT : BLOCK_EXPERT_IN))
        return moert_wire_unpack(pass, y ? pass->dy : pass->x, rows);
    *rows = y ? (moert_matrix){.buffer = pass->dv, .type = c->dv}
              : (moert_matrix){.buffer = pass->h, .type = c->h};
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
    gemm->x = planned->x;
    gemm->y = planned->y;
    if (reads_x)
        MOERT_TRY(moert_round_rows(pass, gemm, block, false, &gemm->x));
    if (reads_y)
        MOERT_TRY(moert_round_rows(pass, gemm, block, true, &gemm->y));
    return gemm->kind == MOERT_GEMM_WGRAD && moert_pass_fp8(pass)
               ? moert_fp8_pad_groups(pass, planned)
               : MOERT_OK;
}

moert_glu moert_experts_glu(const moert_pass *pass, const moert_row_groups *groups) {
    return (moert_glu){.gated = moert_pass_fp8(pass) ? MOERT_UNGATED : MOERT_GATED,
                       .drop_v = moert_pass_drops_v(pass),
                       .form = pass->layer->options.glu,
                       .first_row = groups->first_row,
                       .rows = groups->end_row,
                       .width = pass->layer->options.intermediate,
                       .v = pass->v,
                       .prob = moert_window_rows(pass->prob),
                       .prob_stride = moert_window_stride(pass->prob),
                       .from = pass->layer->choices.v,
                       .type = pass->layer->choices.h,
                       .h = pass->h};
}

/* Fills in a GEMM except for its matrices. */
static void describe(const moert_pass *pass, moert_gemm_kind kind, int block,
                     const moert_row_groups *groups, moert_expert_gemm *planned) {
    const moert_layer_options *o = &pass->layer->options;
    const bool in = block == BLOCK_EXPERT_IN;
    *planned = (moert_expert_gemm){.gemm = {.kind = kind,
                                            .groups = *groups,
                                            .n = in ? 2 * o->intermediate : o->hidden,
                                            .k = in ? o->hidden : o->intermediate,
                                            .more = &planned->more}};
}

moert_status moert_experts_gemm(moert_pass *pass, moert_gemm_kind kind, int block,
                                const moert_row_groups *groups, const moert_result *result,
                                moert_expert_gemm *planned) {
    const moert_block_tensor *tensors = pass->layer->block[block]->tensor;
    moert_gemm *gemm = &planned->gemm;
    describe(pass, kind, block, groups, planned);
    *(kind == MOERT_GEMM_FORWARD ? &planned->y : &planned->x) = result->rows;
    gemm->weight.buffer = tensors[EXPERT_WEIGHT].weight;
    planned->more.places = result->places;
    gemm->groups.runs = result->places != NULL ? pass->plan->plan->ranks : 0;
    if (block == BLOCK_EXPERT_IN && kind == MOERT_GEMM_FORWARD) {
        gemm->bias = tensors[EXPERT_BIAS].weight;
        gemm->glu = moert_experts_glu(pass, groups);
    }
    MOERT_TRY(take_operands(pass, block, planned));
    return moert_round_take_weight(pass, block, gemm);
}

void moert_experts_wgrad(moert_pass *pass, int block, moert_expert_gemm *planned) {
    const moert_row_groups all = moert_pass_groups(pass);
    const moert_layer_losses *losses = &pass->losses;
    describe(pass, MOERT_GEMM_WGRAD, block, &all, planned);
    planned->gemm.epilogue.addend = moert_accumulate(losses->accumulate);
    planned->gemm.weight.buffer = pass->layer->block[block]->tensor[EXPERT_WEIGHT].gradient;
    planned->more.rounded = block == BLOCK_EXPERT_IN ? losses->w1_gradient : losses->w2_gradient;
    if (pass->status == MOERT_OK)
        pass->status = take_operands(pass, block, planned);
}

moert_gemm moert_experts_bias_gradient(const moert_pass *pass) {
    const moert_layer *layer = pass->layer;
    return (moert_gemm){.kind = MOERT_GEMM_BIAS_GRAD,
                        .groups = moert_pass_groups(pass),
                        .n = 2 * layer->options.intermediate,
                        .k = layer->options.hidden,
                        .bias = layer->block[BLOCK_EXPERT_IN]->tensor[EXPERT_BIAS].gradient,
                        .y = {.buffer = pass->dv},
                        .epilogue.addend = moert_accumulate(pass->losses.accumulate)};
}

moert_scaled_bias moert_experts_biases(const moert_pass *pass, const moert_row_groups *groups,
                                       const moert_matrix *rows) {
    const moert_block_tensor *biases = &pass->layer->block[BLOCK_EXPERT_OUT]->tensor[EXPERT_BIAS];
    return (moert_scaled_bias){.groups = *groups,
                               .n = pass->layer->options.hidden,
                               .ldy = rows->stride,
                               .prob = moert_window_rows(pass->prob),
                               .prob_stride = moert_window_stride(pass->prob),
                               .bias = biases->weight,
                               .y = rows->buffer,
                               .dbias = biases->gradient,
                               .accumulate = pass->losses.accumulate};
}
