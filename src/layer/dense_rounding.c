/* Rounds the operands of dense GEMMs. */
#include "layer/dense_rounding.h"

#include "base/rng.h"
#include "quant/fake_quantize.h"

enum { STREAMS = 2 /* of a sequence: along rows, down columns */ };

uint64_t moert_dense_seed(const moert_batch *batch, const char *name, size_t index) {
    return moert_rng_key(batch->draws, moert_rng_stream(name), index);
}

/* The rounding of operand x or y of a GEMM. */
static uint32_t rounding_of(const moert_recipe *r, moert_gemm_kind kind, bool y) {
    if (r == NULL)
        return MOERT_ROUND_BF16;
    if (kind == MOERT_GEMM_WGRAD)
        return y ? r->wgrad_dy : r->wgrad_x;
    return y ? r->dy : r->x;
}

moert_status moert_dense_round(const moert_dense_rounding *how, moert_gemm *gemm, bool y,
                               moert_scratch which) {
    const moert_batch *batch = how->batch;
    const uint32_t rounding = rounding_of(how->recipe, gemm->kind, y);
    const bool down = gemm->kind == MOERT_GEMM_WGRAD;
    const size_t columns = y ? gemm->n : gemm->k, n = batch->tokens * columns;
    moert_matrix *rows = y ? &gemm->y : &gemm->x;
    const moert_matrix from = *rows;
    if (rounding == MOERT_ROUND_BF16 && from.type == how->type)
        return MOERT_OK;
    rows->type = how->type;
    MOERT_TRY(
        moert_mesh_scratch(how->mesh, which, moert_operand_floats(how->type, n), &rows->buffer));
    if (rounding == MOERT_ROUND_BF16)
        return moert_cast_run(
            &(moert_cast){sizeof(moert_cast), from.type, how->type, n, from.buffer, rows->buffer});
    return moert_fake_quantize_run(
        &(moert_fake_quantize){.how = moert_rounded_quantizer(rounding, how->seed),
                               .groups = {batch->ends, batch->sequences, batch->tokens},
                               .columns = columns,
                               .x = from.buffer,
                               .x_type = from.type,
                               .stream = (uint32_t)(STREAMS * batch->first_sequence),
                               .along = down ? NULL : rows->buffer,
                               .down = down ? rows->buffer : NULL});
}

moert_status moert_dense_gemm(const moert_dense_rounding *how, moert_block *block, size_t tensor,
                              moert_panels_use use, const moert_gemm *gemm) {
    moert_block_tensor *of = &block->tensor[tensor];
    moert_gemm by_weight = *gemm;
    if (how->recipe == NULL || how->recipe->weight == MOERT_ROUND_BF16 || gemm->groups.rows == 0) {
        moert_rounded_free(&of->rounded); /* the copies of earlier batches */
        of->is_rounded = false;
        return moert_block_gemm(block, tensor, gemm);
    }
    if (!of->is_rounded)
        MOERT_TRY(moert_rounded_fill(
            &of->rounded,
            &(moert_rounded_source){.device = block->device,
                                    .shape = {1, gemm->n, gemm->k, use, MOERT_DTYPE_BF16},
                                    .rounding = how->recipe->weight,
                                    .weight = of->weight,
                                    .scratch = &how->mesh->scratch[MOERT_SCRATCH_WIRE]}));
    of->is_rounded = true;
    by_weight.weight.buffer = of->weight;
    moert_rounded_take(&of->rounded, &by_weight);
    return moert_gemm_run(&by_weight);
}

void moert_dense_weight_scratch(const moert_device *device, size_t n, size_t k,
                                moert_panels_use use, size_t floats[MOERT_SCRATCHES]) {
    const moert_panels_shape forward = {1, n, k, use, MOERT_DTYPE_BF16},
                             dgrad = {1, n, k, MOERT_PANELS_DGRAD, MOERT_DTYPE_BF16};
    const bool in_order = device != NULL && moert_panels_in_order(device, &forward) &&
                          moert_panels_in_order(device, &dgrad);
    if (!in_order)
        moert_scratch_need(floats, MOERT_SCRATCH_WIRE,
                           moert_operand_floats(MOERT_DTYPE_BF16, n * k));
}
