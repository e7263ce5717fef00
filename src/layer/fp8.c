/* The FP8 operands of the experts' GEMMs. */
#include "layer/fp8.h"

#include "device/buffer.h"

enum { FOR_FORWARD, FOR_DGRAD, BLOCK = MOERT_FP8_BLOCK };

/* ---- weights ---- */

static moert_status reserve_result(moert_device *device, size_t bytes, moert_fp8_operand *to) {
    MOERT_TRY(moert_buffer_reserve(device, bytes, &to->q));
    return moert_buffer_reserve(device, bytes / (BLOCK * BLOCK) * sizeof(float), &to->scale);
}

static moert_quantized describe(const moert_fp8_operand *weight, bool transposed) {
    return (moert_quantized){.format = MOERT_FORMAT_FP8_BLOCK,
                             .axis = MOERT_AXIS_TILE,
                             .transposed = transposed,
                             .q = weight->q,
                             .scale = weight->scale};
}

moert_status moert_fp8_refresh_weight(moert_layer *layer, int block, size_t n, size_t k) {
    moert_block_tensor *tensor = &layer->block[block]->tensor[EXPERT_WEIGHT];
    moert_fp8_operands *fp8 = &tensor->fp8;
    moert_rounded *rounded = &layer->rounded[block];
    const size_t experts = layer->local_experts;
    if (tensor->fp8_current)
        return MOERT_OK;
    *fp8 = (moert_fp8_operands){.groups = {NULL, experts, experts * n},
                                .columns = k,
                                .tiles = true,
                                .x = tensor->weight,
                                .along = fp8->along,
                                .down = fp8->down};
    MOERT_TRY(reserve_result(layer->mesh->device, experts * n * k, &fp8->along));
    MOERT_TRY(reserve_result(layer->mesh->device, experts * n * k, &fp8->down));
    rounded->quantized[FOR_FORWARD] = describe(&fp8->along, false);
    rounded->quantized[FOR_DGRAD] = describe(&fp8->down, true);
    return moert_fp8_operands_run(fp8);
}

void moert_fp8_take_weight(const moert_layer *layer, int block, moert_gemm *gemm) {
    const bool dgrad = gemm->kind == MOERT_GEMM_DGRAD;
    gemm->weight.quantized = &layer->rounded[block].quantized[dgrad ? FOR_DGRAD : FOR_FORWARD];
}

/* ---- rows ---- */

/* Takes the scratch buffers of an operand: those of `use`, and of its scales, the next use. */
static moert_status take_scratch(const moert_pass *pass, moert_layer_use use,
                                 moert_fp8_operand *to) {
    MOERT_TRY(moert_pass_scratch(pass, use, &to->q));
    return moert_pass_scratch(pass, (moert_layer_use)(use + 1), &to->scale);
}

/* Makes `rows` the operand x or y that has been quantized. */
static void point_to(moert_pass *pass, const moert_gemm *gemm, bool y, const moert_fp8_operand *to,
                     moert_matrix *rows) {
    const moert_row_groups *g = &gemm->groups;
    const bool wgrad = gemm->kind == MOERT_GEMM_WGRAD;
    pass->fp8[y] = (moert_quantized){.format = MOERT_FORMAT_FP8_BLOCK,
                                     .axis = wgrad ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW,
                                     .transposed = wgrad,
                                     .scale_rows = wgrad,
                                     .q = to->q,
                                     .scale = to->scale,
                                     .blocks = moert_row_blocks_most(g->rows, g->count, BLOCK)};
    *rows = (moert_matrix){.type = MOERT_DTYPE_BF16, .quantized = &pass->fp8[y]};
}

moert_status moert_fp8_rows(moert_pass *pass, const moert_gemm *gemm, int block, bool y,
                            moert_matrix *rows) {
    const bool in = block == BLOCK_EXPERT_IN, wgrad = gemm->kind == MOERT_GEMM_WGRAD;
    moert_fp8_operand own, down = {NULL, NULL};
    if (y)
        MOERT_TRY(take_scratch(pass, in ? MOERT_USE_DOWN_IN : MOERT_USE_DOWN_OUT, &down));
    if (wgrad && y) {
        point_to(pass, gemm, y, &down, rows);
        return MOERT_OK;
    }
    MOERT_TRY(take_scratch(
        pass, in ? (y ? MOERT_USE_Y_IN : MOERT_USE_X_IN) : (y ? MOERT_USE_Y_OUT : MOERT_USE_X_OUT),
        &own));
    moert_fp8_operands op = {.groups = {gemm->groups.ends, gemm->groups.count, gemm->groups.rows},
                             .columns = y ? gemm->n : gemm->k,
                             .x = rows->buffer,
                             .x_type = rows->type,
                             .x_stride = rows->stride,
                             .along = wgrad ? down : own,
                             .down = wgrad ? own : down};
    MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_PADDED_ENDS, &op.padded_ends));
    point_to(pass, gemm, y, &own, rows);
    return moert_fp8_operands_run(&op);
}

moert_status moert_fp8_pad_groups(const moert_pass *pass, moert_expert_gemm *planned) {
    moert_row_groups *groups = &planned->gemm.groups;
    moert_buffer *ends;
    MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_PADDED_ENDS, &ends));
    *groups = (moert_row_groups){.ends = ends,
                                 .count = groups->count,
                                 .rows = moert_fp8_padded_rows(groups->rows, groups->count)};
    planned->more.row_multiple = MOERT_FP8_ROW_MULTIPLE;
    return MOERT_OK;
}
