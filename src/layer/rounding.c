/* Rounds the operands of the experts' GEMMs. */
#include "layer/rounding.h"

#include <string.h>

#include "base/memory.h"
#include "device/buffer.h"
#include "layer/fp8.h"
#include "layer/operand.h"
#include "quant/fake_quantize.h"

/* The recipe of a pass: that of the layer, or all operands in bf16 if the batch asks for it. */
static const moert_recipe *recipe_of(const moert_pass *pass) {
    return pass->batch.bf16_operands ? moert_recipe_of(MOERT_PRECISION_BF16)
                                     : &pass->layer->choices.recipe;
}

/* The rounding of operand x or y of a GEMM. */
static uint32_t rounding_of(const moert_recipe *r, moert_gemm_kind kind, bool y) {
    if (kind == MOERT_GEMM_WGRAD)
        return y ? r->wgrad_dy : r->wgrad_x;
    return y ? r->dy : r->x;
}

/* ---- weights ---- */

void moert_round_scratch(const moert_layer_sizes *s, size_t floats[MOERT_SCRATCHES]) {
    const moert_layer_choices *c = s->choices;
    const size_t experts = s->local, h = s->options->hidden, i = s->options->intermediate;
    if (c->recipe.weight == MOERT_ROUND_BF16)
        return;
    moert_scratch_need(floats, MOERT_SCRATCH_ENDS, experts);
    if (!c->copies_in_order)
        moert_scratch_need(floats, MOERT_SCRATCH_WIRE,
                           moert_operand_floats(c->operand, experts * 2 * i * h));
}

static moert_status refresh_weight(moert_layer *layer, int block, size_t n, size_t k) {
    const size_t experts = layer->local_experts;
    const moert_gemm forward = {
        .glu = {.gated = block == BLOCK_EXPERT_IN ? MOERT_GATED : MOERT_UNGATED,
                .form = layer->options.glu}};
    moert_mesh *mesh = layer->mesh;
    moert_buffer *ends;
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_ENDS, experts, &ends));
    MOERT_TRY(moert_buffer_write_ends(experts, n, ends));
    return moert_rounded_fill(
        &layer->rounded[block],
        &(moert_rounded_source){
            .device = mesh->device,
            .shape = {experts, n, k, moert_panels_use_of(&forward), layer->choices.operand},
            .rounding = layer->choices.recipe.weight,
            .weight = layer->block[block]->tensor[EXPERT_WEIGHT].weight,
            .ends = ends,
            .scratch = &mesh->scratch[MOERT_SCRATCH_WIRE]});
}

/* Rounds the weights again if they have changed. */
static moert_status refresh_weights(moert_layer *layer, bool fp8) {
    const size_t hidden = layer->options.hidden, width = layer->options.intermediate;
    moert_status (*refresh)(moert_layer *, int, size_t, size_t) =
        fp8 ? moert_fp8_refresh_weight : refresh_weight;
    if (!layer->weights_changed)
        return MOERT_OK;
    MOERT_TRY(refresh(layer, BLOCK_EXPERT_IN, 2 * width, hidden));
    MOERT_TRY(refresh(layer, BLOCK_EXPERT_OUT, hidden, width));
    layer->weights_changed = false;
    return MOERT_OK;
}

void moert_round_free(moert_layer *layer) {
    for (int i = 0; i < BLOCKS; i++) {
        if (layer->block[i] != NULL)
            moert_block_free_fp8(layer->block[i]);
        moert_rounded_free(&layer->rounded[i]);
    }
    memset(layer->rounded, 0, sizeof layer->rounded);
    layer->weights_changed = true;
}

moert_status moert_round_take_weight(const moert_pass *pass, int block, moert_gemm *gemm) {
    moert_layer *layer = pass->layer;
    if (recipe_of(pass)->weight == MOERT_ROUND_BF16) {
        moert_round_free(layer); /* the copies of earlier batches */
        return moert_block_take_weight(layer->block[block], EXPERT_WEIGHT, gemm);
    }
    MOERT_TRY(refresh_weights(layer, moert_pass_fp8(pass)));
    if (moert_pass_fp8(pass)) {
        moert_fp8_take_weight(layer, block, gemm);
        return MOERT_OK;
    }
    moert_rounded_take(&layer->rounded[block], gemm);
    return MOERT_OK;
}

/* ---- activations ---- */

/* Casts float32 rows to the operands' type. Copies rows of a window that has gaps to scratch
 * first. */
static moert_status cast_rows(const moert_pass *pass, const moert_fake_quantize *rows,
                              moert_buffer *target) {
    const moert_buffer *dense = rows->x;
    const size_t count = rows->groups.rows, columns = rows->columns;
    moert_buffer *gapless;
    if (rows->x_stride > columns) {
        MOERT_TRY(moert_pass_scratch(pass, MOERT_USE_GAPLESS, &gapless));
        MOERT_TRY(moert_buffer_copy_rows(dense, rows->x_stride * sizeof(float), gapless,
                                         columns * sizeof(float), count));
        dense = gapless;
    }
    return moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32,
                                        pass->layer->choices.operand, count * columns, dense,
                                        target});
}

/* Rounds y both ways for a dgrad, or rounds one operand. *rows = the operand in scratch. */
static moert_status quantize_rows(const moert_pass *pass, const moert_gemm *gemm, int block, bool y,
                                  moert_fake_quantize *op, moert_matrix *rows) {
    const bool wgrad = gemm->kind == MOERT_GEMM_WGRAD;
    moert_buffer *down = NULL;
    if (y && pass->layer->choices.keeps_down)
        MOERT_TRY(moert_pass_scratch(
            pass, block == BLOCK_EXPERT_IN ? MOERT_USE_DOWN_IN : MOERT_USE_DOWN_OUT, &down));
    if (wgrad && down != NULL) {
        rows->buffer = down;
        return MOERT_OK;
    }
    op->along = wgrad ? NULL : rows->buffer;
    op->down = wgrad ? rows->buffer : down;
    return moert_fake_quantize_run(op);
}

/* Describes the rounding of operand x or y of a GEMM. If a dgrad also rounds y for a wgrad, the
 * wgrad's rounding, which may rotate blocks of rows, describes both. */
static moert_fake_quantize describe(const moert_pass *pass, const moert_gemm *gemm, int block,
                                    bool y, const moert_matrix *rows) {
    const moert_recipe *recipe = recipe_of(pass);
    const bool both = y && pass->layer->choices.keeps_down;
    const uint32_t rounding = both ? recipe->wgrad_dy : rounding_of(recipe, gemm->kind, y);
    return (moert_fake_quantize){
        .how = moert_rounded_quantizer(rounding, pass->batch.draws),
        .groups = {gemm->groups.ends, gemm->groups.count, gemm->groups.rows},
        .columns = y ? gemm->n : gemm->k,
        .x = rows->buffer,
        .x_type = rows->type,
        .x_stride = rows->stride,
        .draws = gemm->groups.ends,
        .draws_at = gemm->groups.count,
        .stream = block == BLOCK_EXPERT_IN ? 0 : MOERT_STREAMS / 2};
}

moert_status moert_round_rows(moert_pass *pass, const moert_gemm *gemm, int block, bool y,
                              moert_matrix *rows) {
    const moert_dtype operand = pass->layer->choices.operand;
    const moert_layer_use use = block == BLOCK_EXPERT_IN ? (y ? MOERT_USE_Y_IN : MOERT_USE_X_IN)
                                                         : (y ? MOERT_USE_Y_OUT : MOERT_USE_X_OUT);
    const bool bf16 = rounding_of(recipe_of(pass), gemm->kind, y) == MOERT_ROUND_BF16;
    moert_fake_quantize op = describe(pass, gemm, block, y, rows);
    moert_buffer *target;
    if (moert_pass_fp8(pass))
        return moert_fp8_rows(pass, gemm, block, y, rows);
    if (bf16 && rows->type == operand)
        return MOERT_OK;
    MOERT_TRY(moert_pass_scratch(pass, use, &target));
    *rows = (moert_matrix){.buffer = target, .type = operand};
    return bf16 ? cast_rows(pass, &op, target) : quantize_rows(pass, gemm, block, y, &op, rows);
}
