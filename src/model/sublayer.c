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

/* ---- attention ---- */

/* The index of the second norm, which is the last tensor of the layer's block. */
static size_t post_norm(const moert_model_layer *layer) {
    return layer->attention->count - 1;
}

moert_status moert_model_attention_forward(moert_run *run, moert_run_layer *layer,
                                           const moert_buffer *x) {
    moert_phase_set(MOERT_PHASE_ATTENTION);
    MOERT_TRY(moert_model_normalise(run, layer->of->attention, MOERT_ATTENTION_NORM, x,
                                    layer->activations->normed, layer->activations->rstd));
    MOERT_TRY(
        moert_model_attention_of(run->config)->forward(run, layer, layer->activations->middle));
    MOERT_TRY(moert_add(run->batch.tokens * run->config->hidden, x, layer->activations->middle));
    return moert_audit_at(run, layer, MOERT_AUDIT_ATTENDED);
}

moert_status moert_model_attention_backward(moert_run *run, moert_run_layer *layer,
                                            const moert_buffer *x) {
    moert_buffer *const bf16 = moert_run_d_bf16(run), *dy = bf16 != NULL ? bf16 : run->d;
    moert_phase_set(MOERT_PHASE_ATTENTION_BACKWARD);
    MOERT_TRY(moert_model_attention_of(run->config)->backward(run, layer, dy, run->dn));
    MOERT_TRY(moert_model_normalise_backward(run, layer->of->attention, MOERT_ATTENTION_NORM, x,
                                             layer->activations->rstd, true));
    return moert_audit_at(run, layer, MOERT_AUDIT_DIFFERENTIATED);
}

/* ---- MLP ---- */

moert_status moert_model_mlp_forward(moert_run *run, moert_run_layer *layer) {
    const moert_model_config *c = run->config;
    const size_t tokens = run->batch.tokens;
    MOERT_TRY(moert_norm_run(
        &(moert_norm){.rows = tokens,
                      .width = c->hidden,
                      .epsilon = c->norm_epsilon,
                      .x = layer->activations->middle,
                      .weight = layer->of->attention->tensor[post_norm(layer->of)].weight,
                      .y = layer->activations->post_normed,
                      .bf16 = run->bf16,
                      .rstd = layer->activations->post_rstd}));
    MOERT_TRY(moert_model_mlp_of(layer->of)->forward(run, layer));
    MOERT_TRY(moert_add(tokens * c->hidden, layer->activations->middle, layer->out));
    return moert_audit_at(run, layer, MOERT_AUDIT_FORWARDED);
}

moert_status moert_model_mlp_backward(moert_run *run, moert_run_layer *layer, bool accumulate) {
    MOERT_TRY(moert_audit_at(run, layer, MOERT_AUDIT_BACKWARD));
    MOERT_TRY(moert_model_mlp_of(layer->of)->backward(run, layer, accumulate));
    MOERT_TRY(moert_model_normalise_backward(run, layer->of->attention, post_norm(layer->of),
                                             layer->activations->middle,
                                             layer->activations->post_rstd, true));
    return moert_audit_at(run, layer, MOERT_AUDIT_MLP_DONE);
}
