/* Forward and backward of projections and norms over the batch, for the sublayers and the variants
 * of attention. */
#include "base/memory.h"
#include "layer/dense_rounding.h"
#include "model/sublayer.h"

static moert_buffer **partial_scratch(moert_model *model) {
    return &model->mesh->scratch[MOERT_SCRATCH_PARTIAL];
}

/* ---- projections ---- */

/* Describes the GEMM of parameter `index`, without the weight's buffer. A dgrad has no bias. */
static moert_gemm gemm_of(const moert_run *run, const moert_run_layer *layer, moert_gemm_kind kind,
                          size_t index, const moert_buffer *x, const moert_buffer *y) {
    const moert_model_parameter *parameter = &run->model->attention.parameter[index];
    moert_gemm gemm = moert_model_gemm(run, kind, parameter->rows, parameter->columns, x, y);
    if (kind != MOERT_GEMM_DGRAD && index + 1 < run->model->attention.parameters &&
        parameter[1].is_bias)
        gemm.bias = layer->of->attention->tensor[MOERT_ATTENTION_FIRST + index + 1].weight;
    return gemm;
}

bool moert_model_rounds_attention(const moert_model_config *c, size_t layer) {
    size_t before = 0;
    for (size_t l = 0; l < layer; l++)
        before += moert_layer_is_moe(c, l);
    return c->recipe.attention && moert_layer_is_moe(c, layer) &&
           !moert_recipe_keeps_bf16(&c->recipe, before, moert_moe_layers(c));
}

/* The rounding of the operands of the GEMM of parameter `index`. */
static moert_dense_rounding rounding_of(const moert_run *run, const moert_run_layer *layer,
                                        size_t index) {
    const size_t number = layer->of->index;
    const bool rounds =
        !run->batch.bf16_operands && moert_model_rounds_attention(run->config, number);
    return (moert_dense_rounding){
        .mesh = run->mesh,
        .batch = &run->batch,
        .type = rounds ? MOERT_DTYPE_BF16 : moert_model_type(run->model),
        .recipe = rounds ? &run->config->recipe : NULL,
        .seed = moert_dense_seed(&run->batch, "attention", number * MOERT_ATTENTION_MOST + index)};
}

/* Runs the forward or dgrad of parameter `index`. */
static moert_status run_gemm(const moert_run *run, const moert_run_layer *layer, size_t index,
                             const moert_gemm *gemm) {
    const moert_dense_rounding how = rounding_of(run, layer, index);
    const bool y = gemm->kind == MOERT_GEMM_DGRAD;
    moert_gemm rounded = *gemm;
    MOERT_TRY(moert_dense_round(&how, &rounded, y,
                                y ? MOERT_SCRATCH_ATTENTION_Y : MOERT_SCRATCH_ATTENTION_X));
    return moert_dense_gemm(&how, layer->of->attention, MOERT_ATTENTION_FIRST + index,
                            MOERT_PANELS_FORWARD, &rounded);
}

moert_status moert_model_project(moert_run *run, moert_run_layer *layer, size_t index,
                                 const moert_buffer *x, moert_buffer *y) {
    const moert_gemm gemm = gemm_of(run, layer, MOERT_GEMM_FORWARD, index, x, y);
    return run_gemm(run, layer, index, &gemm);
}

moert_status moert_model_input_backward(moert_run *run, moert_run_layer *layer, size_t index,
                                        const moert_buffer *dy, moert_buffer *dx, bool accumulate) {
    moert_gemm gemm = gemm_of(run, layer, MOERT_GEMM_DGRAD, index, dx, dy);
    gemm.epilogue.addend = moert_accumulate(accumulate);
    return run_gemm(run, layer, index, &gemm);
}

/* Runs a GEMM with a result (y or x) of `columns` columns and of dtype to->type. */
static moert_status run_to(moert_run *run, moert_run_layer *layer, size_t index, moert_gemm *gemm,
                           size_t columns, const moert_model_target *to) {
    moert_matrix *result = gemm->kind == MOERT_GEMM_FORWARD ? &gemm->y : &gemm->x;
    const bool cast = to->type == MOERT_DTYPE_BF16 && !moert_gemm_rounds(run->device, gemm);
    *result = (moert_matrix){.buffer = cast ? to->floats : to->rows,
                             .type = cast ? MOERT_DTYPE_F32 : to->type};
    MOERT_TRY(run_gemm(run, layer, index, gemm));
    return cast ? moert_model_round(run, columns, to->floats, to->rows) : MOERT_OK;
}

moert_status moert_model_project_to(moert_run *run, moert_run_layer *layer, size_t index,
                                    const moert_buffer *x, const moert_model_target *y) {
    moert_gemm gemm = gemm_of(run, layer, MOERT_GEMM_FORWARD, index, x, NULL);
    return run_to(run, layer, index, &gemm, gemm.n, y);
}

moert_status moert_model_input_backward_to(moert_run *run, moert_run_layer *layer, size_t index,
                                           const moert_buffer *dy, const moert_model_target *dx) {
    moert_gemm gemm = gemm_of(run, layer, MOERT_GEMM_DGRAD, index, NULL, dy);
    return run_to(run, layer, index, &gemm, gemm.k, dx);
}

moert_status moert_model_weight_backward(moert_run *run, moert_run_layer *layer, size_t index,
                                         const moert_buffer *x, const moert_buffer *dy) {
    const moert_gemm gemm = gemm_of(run, layer, MOERT_GEMM_WGRAD, index, x, dy);
    const moert_dense_rounding how = rounding_of(run, layer, index);
    const size_t tensor = MOERT_ATTENTION_FIRST + index;
    moert_buffer **const partial = partial_scratch(run->model);
    moert_gemm rounded = gemm;
    rounded.bias = NULL; /* the gradient of a bias reads dy, which may be rotated in `rounded` */
    MOERT_TRY(moert_dense_round(&how, &rounded, false, MOERT_SCRATCH_ATTENTION_X));
    MOERT_TRY(moert_dense_round(&how, &rounded, true, MOERT_SCRATCH_ATTENTION_Y));
    MOERT_TRY(
        moert_block_dense_gradient(layer->of->attention, tensor, &run->batch, &rounded, partial));
    return gemm.bias != NULL ? moert_block_bias_gradient(layer->of->attention, tensor + 1,
                                                         &run->batch, &gemm, partial)
                             : MOERT_OK;
}

moert_status moert_model_attention_operand(moert_run *run, moert_attention *attention,
                                           moert_buffer **operand) {
    const size_t value = attention->value_size > 0 ? attention->value_size : attention->head_size,
                 n = run->batch.tokens * attention->heads * value;
    MOERT_TRY(moert_operand_buffer(run->mesh, moert_model_type(run->model), n,
                                   MOERT_SCRATCH_ROUNDED_X, attention->out, operand));
    attention->bf16 = *operand != attention->out ? *operand : NULL;
    return MOERT_OK;
}

/* ---- norms ---- */

moert_status moert_model_normalise(moert_run *run, const moert_block *block, size_t index,
                                   const moert_buffer *x, moert_buffer *normed,
                                   moert_buffer *rstd) {
    const moert_model_config *c = run->config;
    const moert_dtype type = moert_model_type(run->model);
    return moert_norm_run(&(moert_norm){.rows = run->batch.tokens,
                                        .width = c->hidden,
                                        .epsilon = c->norm_epsilon,
                                        .x = x,
                                        .weight = block->tensor[index].weight,
                                        .y = type == MOERT_DTYPE_F32 ? normed : NULL,
                                        .bf16 = type == MOERT_DTYPE_F32 ? NULL : normed,
                                        .rstd = rstd});
}

moert_status moert_model_norm_backward(moert_run *run, moert_block *block, size_t index,
                                       const moert_norm_gradient *own) {
    moert_norm_gradient norm = *own;
    norm.sequences = run->batch.sequences;
    norm.weight = block->tensor[index].weight;
    /* apart from norms, only the forward uses this scratch buffer */
    norm.scratch = &run->mesh->scratch[MOERT_SCRATCH_TOKENS];
    MOERT_TRY(
        moert_model_reserve(run->model, norm.sequences * norm.width, partial_scratch(run->model)));
    norm.partial = *partial_scratch(run->model);
    MOERT_TRY(moert_norm_backward(&norm));
    return moert_block_collect(block, index, &run->batch, 0, norm.width, norm.partial);
}

moert_status moert_model_normalise_backward(moert_run *run, moert_block *block, size_t index,
                                            const moert_buffer *x, const moert_buffer *rstd,
                                            bool accumulate) {
    return moert_model_norm_backward(run, block, index,
                                     &(moert_norm_gradient){.rows = run->batch.tokens,
                                                            .width = run->config->hidden,
                                                            .x = x,
                                                            .rstd = rstd,
                                                            .dy = run->dn,
                                                            .dx = run->d,
                                                            .bf16 = moert_run_d_bf16(run),
                                                            .accumulate = accumulate});
}
