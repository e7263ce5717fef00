/* The two sublayers of a block, with their norms and residuals. */
#include "base/phase.h"
#include "model/audit_points.h"
#include "model/sublayer.h"

const moert_attention_variant *moert_model_attention_of(const moert_model_config *config) {
    return config->latent.kv_rank > 0 ? &moert_model_mla : &moert_model_gqa;
}

moert_attention_shape moert_attention_shape_of(const moert_model_config *config,
                                               const moert_device *device) {
    moert_attention_shape shape = {.parameters = 0};
    moert_model_attention_of(config)->describe(config, device, &shape);
    return shape;
}

const moert_mlp_variant *moert_model_mlp_of(const moert_model_layer *layer) {
    return layer->is_dense ? &moert_model_dense : &moert_model_moe;
}

/* ---- norms and residuals ---- */

static bool has_norm(const moert_run *run, const moert_run_layer *layer, moert_norm_place place) {
    return moert_norm_name(run->config, layer->of->index, place) != NULL;
}

static size_t floats_of(const moert_run *run) {
    return run->batch.tokens * run->config->hidden;
}

/* Adds the residual x to the scaled result of a sublayer, in `y`. If the result has a norm,
 * `result` holds it, and `y` gets the norm first. */
static moert_status join(moert_run *run, moert_run_layer *layer, moert_norm_place place,
                         moert_buffer *const result[2], const moert_buffer *x, moert_buffer *y) {
    const moert_model_config *c = run->config;
    const moert_block *block = layer->of->attention;
    const float scale = moert_or_one(c->residual_scale);
    if (has_norm(run, layer, place))
        MOERT_TRY(moert_norm_run(
            &(moert_norm){.rows = run->batch.tokens,
                          .width = c->hidden,
                          .epsilon = c->norm_epsilon,
                          .x = result[0],
                          .weight = block->tensor[moert_model_norm_at(block, place)].weight,
                          .y = y,
                          .rstd = result[1]}));
    return scale == 1.0f ? moert_add(floats_of(run), x, y)
                         : moert_add_scaled(floats_of(run), scale, x, y);
}

/* *dy = the gradient of a sublayer's result, from run->d. */
static moert_status part(moert_run *run, moert_run_layer *layer, moert_norm_place place,
                         moert_buffer *const result[2], moert_model_gradient *dy) {
    const moert_model_config *c = run->config;
    const float scale = moert_or_one(c->residual_scale);
    moert_block *block = layer->of->attention;
    *dy = (moert_model_gradient){run->d, moert_run_d_bf16(run)};
    if (scale == 1.0f && !has_norm(run, layer, place))
        return MOERT_OK;
    *dy = (moert_model_gradient){run->branch, run->branch_bf16};
    MOERT_TRY(moert_buffer_copy(run->d, 0, dy->d, 0, floats_of(run) * sizeof(float)));
    if (scale != 1.0f)
        MOERT_TRY(moert_scale(floats_of(run), scale, dy->d));
    if (!has_norm(run, layer, place))
        return dy->bf16 != NULL ? moert_model_round(run, c->hidden, dy->d, dy->bf16) : MOERT_OK;
    return moert_model_norm_backward(run, block, moert_model_norm_at(block, place),
                                     &(moert_norm_gradient){.rows = run->batch.tokens,
                                                            .width = c->hidden,
                                                            .x = result[0],
                                                            .rstd = result[1],
                                                            .dy = dy->d,
                                                            .dx = dy->d,
                                                            .bf16 = dy->bf16});
}

/* Adds to run->d the gradient of the residual through a sublayer's input, from run->dn. */
static moert_status add_input(moert_run *run, moert_run_layer *layer, moert_norm_place place,
                              const moert_buffer *x, const moert_buffer *rstd) {
    moert_block *block = layer->of->attention;
    moert_buffer *const bf16 = moert_run_d_bf16(run);
    if (has_norm(run, layer, place))
        return moert_model_normalise_backward(run, block, moert_model_norm_at(block, place), x,
                                              rstd, true);
    MOERT_TRY(moert_add(floats_of(run), run->dn, run->d));
    return bf16 != NULL ? moert_model_round(run, run->config->hidden, run->d, bf16) : MOERT_OK;
}

/* ---- attention ---- */

static moert_status attention_input(moert_run *run, moert_run_layer *layer, const moert_buffer *x) {
    const moert_model_activations *a = layer->activations;
    if (has_norm(run, layer, MOERT_NORM_ATTENTION))
        return moert_model_normalise(run, layer->of->attention, MOERT_ATTENTION_NORM, x, a->normed,
                                     a->rstd);
    return moert_model_type(run->model) == MOERT_DTYPE_F32
               ? moert_buffer_copy(x, 0, a->normed, 0, floats_of(run) * sizeof(float))
               : moert_model_round(run, run->config->hidden, x, a->normed);
}

moert_status moert_model_attention_forward(moert_run *run, moert_run_layer *layer,
                                           const moert_buffer *x) {
    const moert_model_activations *a = layer->activations;
    moert_buffer *const result[] = {a->attended, a->attended_rstd};
    const bool normed = has_norm(run, layer, MOERT_NORM_ATTENTION_RESULT);
    moert_phase_set(MOERT_PHASE_ATTENTION);
    MOERT_TRY(attention_input(run, layer, x));
    MOERT_TRY(moert_model_attention_of(run->config)
                  ->forward(run, layer, normed ? a->attended : a->middle));
    MOERT_TRY(join(run, layer, MOERT_NORM_ATTENTION_RESULT, result, x, a->middle));
    return moert_audit_at(run, layer, MOERT_AUDIT_ATTENDED);
}

moert_status moert_model_attention_backward(moert_run *run, moert_run_layer *layer,
                                            const moert_buffer *x) {
    const moert_model_activations *a = layer->activations;
    moert_buffer *const result[] = {a->attended, a->attended_rstd};
    moert_model_gradient dy;
    moert_phase_set(MOERT_PHASE_ATTENTION_BACKWARD);
    MOERT_TRY(part(run, layer, MOERT_NORM_ATTENTION_RESULT, result, &dy));
    MOERT_TRY(moert_model_attention_of(run->config)
                  ->backward(run, layer, dy.bf16 != NULL ? dy.bf16 : dy.d, run->dn));
    MOERT_TRY(add_input(run, layer, MOERT_NORM_ATTENTION, x, a->rstd));
    return moert_audit_at(run, layer, MOERT_AUDIT_DIFFERENTIATED);
}

/* ---- MLP ---- */

static moert_status mlp_input(moert_run *run, moert_run_layer *layer) {
    const moert_model_config *c = run->config;
    const moert_model_activations *a = layer->activations;
    const moert_block *block = layer->of->attention;
    if (has_norm(run, layer, MOERT_NORM_MLP))
        return moert_norm_run(&(moert_norm){
            .rows = run->batch.tokens,
            .width = c->hidden,
            .epsilon = c->norm_epsilon,
            .x = a->middle,
            .weight = block->tensor[moert_model_norm_at(block, MOERT_NORM_MLP)].weight,
            .y = a->post_normed,
            .bf16 = run->bf16,
            .rstd = a->post_rstd});
    MOERT_TRY(moert_buffer_copy(a->middle, 0, a->post_normed, 0, floats_of(run) * sizeof(float)));
    return run->bf16 != NULL ? moert_model_round(run, c->hidden, a->middle, run->bf16) : MOERT_OK;
}

moert_status moert_model_mlp_forward(moert_run *run, moert_run_layer *layer) {
    const moert_model_activations *a = layer->activations;
    moert_buffer *const result[] = {a->mlp_out, a->mlp_out_rstd};
    const bool normed = has_norm(run, layer, MOERT_NORM_MLP_RESULT);
    MOERT_TRY(mlp_input(run, layer));
    MOERT_TRY(moert_model_mlp_of(layer->of)->forward(run, layer, normed ? a->mlp_out : layer->out));
    MOERT_TRY(join(run, layer, MOERT_NORM_MLP_RESULT, result, a->middle, layer->out));
    return moert_audit_at(run, layer, MOERT_AUDIT_FORWARDED);
}

moert_status moert_model_mlp_backward(moert_run *run, moert_run_layer *layer, bool accumulate) {
    const moert_model_activations *a = layer->activations;
    moert_buffer *const result[] = {a->mlp_out, a->mlp_out_rstd};
    moert_model_gradient dy;
    MOERT_TRY(moert_audit_at(run, layer, MOERT_AUDIT_BACKWARD));
    MOERT_TRY(part(run, layer, MOERT_NORM_MLP_RESULT, result, &dy));
    MOERT_TRY(moert_model_mlp_of(layer->of)->backward(run, layer, &dy, accumulate));
    MOERT_TRY(add_input(run, layer, MOERT_NORM_MLP, a->middle, a->post_rstd));
    return moert_audit_at(run, layer, MOERT_AUDIT_MLP_DONE);
}
