/* Attention with grouped-query heads: projections, a norm over each head of q and k, rotation. */
#include <math.h>

#include "base/memory.h"
#include "model/sublayer.h"

enum { Q, K, V, O, Q_NORM, K_NORM, PARAMETERS };
enum {
    KEPT_Q_RAW,
    KEPT_K_RAW,
    KEPT_Q_RSTD,
    KEPT_K_RSTD,
    KEPT_Q,
    KEPT_K,
    KEPT_V,
    KEPT_OUT,
    KEPT_LSE
};
enum { D_OUT, D_Q, D_K, D_V };

static void describe(const moert_model_config *c, moert_attention_shape *shape) {
    const size_t h = c->hidden, q = c->heads * c->head_size, kv = c->kv_heads * c->head_size,
                 head_norm = c->qk_norm ? c->head_size : 0;
    const bool norm = c->qk_norm;
    moert_model_parameter *p = shape->parameter;
    shape->parameters = PARAMETERS;
    p[Q] = (moert_model_parameter){"self_attn.q_proj.weight", q, h, .is_bias = false};
    p[K] = (moert_model_parameter){"self_attn.k_proj.weight", kv, h, .is_bias = false};
    p[V] = (moert_model_parameter){"self_attn.v_proj.weight", kv, h, .is_bias = false};
    p[O] = (moert_model_parameter){"self_attn.o_proj.weight", h, q, .is_bias = false};
    p[Q_NORM] = (moert_model_parameter){"self_attn.q_norm.weight", head_norm, 0,
                                        .initial = MOERT_INITIAL_ONES};
    p[K_NORM] = (moert_model_parameter){"self_attn.k_norm.weight", head_norm, 0,
                                        .initial = MOERT_INITIAL_ONES};
    shape->kept[KEPT_Q_RAW].width = norm ? q : 0;
    shape->kept[KEPT_K_RAW].width = norm ? kv : 0;
    shape->kept[KEPT_Q_RSTD].width = norm ? c->heads : 0;
    shape->kept[KEPT_K_RSTD].width = norm ? c->kv_heads : 0;
    shape->kept[KEPT_Q].width = shape->kept[KEPT_OUT].width = q;
    shape->kept[KEPT_K].width = shape->kept[KEPT_V].width = kv;
    shape->kept[KEPT_LSE].width = c->heads;
    shape->scratch[D_OUT].width = shape->scratch[D_Q].width = q;
    shape->scratch[D_K].width = shape->scratch[D_V].width = kv;
    shape->norm[0].rows = norm ? c->heads : 0;
    shape->norm[1].rows = norm ? c->kv_heads : 0;
    shape->norm[0].width = shape->norm[1].width = c->head_size;
    shape->rounded_x = q;
    shape->rounded_y = moert_max(q, kv);
}

/* The heads of q or k: tensors of the layer's block, and activations of the last forward. */
typedef struct head_group {
    size_t weight, norm, count;
    moert_buffer *raw, *rstd, *rotated;
} head_group;

/* [0]: q, [1]: k */
enum { ROTATED = 2 };

static void list_heads(const moert_model *model, const moert_model_layer *l,
                       head_group heads[ROTATED]) {
    const moert_model_config *c = &model->config;
    moert_buffer *const *kept = l->kept;
    heads[0] = (head_group){Q, Q_NORM, c->heads, kept[KEPT_Q_RAW], kept[KEPT_Q_RSTD], kept[KEPT_Q]};
    heads[1] =
        (head_group){K, K_NORM, c->kv_heads, kept[KEPT_K_RAW], kept[KEPT_K_RSTD], kept[KEPT_K]};
}

static moert_rotation rotation_of(const moert_model *model, const head_group *h) {
    return (moert_rotation){.table = model->rope,
                            .positions = moert_model_positions(model),
                            .heads = h->count,
                            .length = model->length};
}

static moert_attention attention_of(const moert_model *model, const moert_model_layer *layer) {
    const moert_model_config *c = &model->config;
    return (moert_attention){.sequences = model->batch.sequences,
                             .length = model->length,
                             .heads = c->heads,
                             .kv_heads = c->kv_heads,
                             .head_size = c->head_size,
                             .documents = moert_model_documents(model),
                             .scale = 1.0f / sqrtf((float)c->head_size),
                             .q = layer->kept[KEPT_Q],
                             .k = layer->kept[KEPT_K],
                             .v = layer->kept[KEPT_V],
                             .out = layer->kept[KEPT_OUT],
                             .lse = layer->kept[KEPT_LSE],
                             .type = moert_model_type(model),
                             .scratch = &model->mesh->scratch[MOERT_SCRATCH_PARTIAL]};
}

/* Computes q or k: projection, then a norm over each head if the model has one, then rotation. */
static moert_status project_heads(moert_model *model, moert_model_layer *layer,
                                  const head_group *h) {
    const moert_model_config *c = &model->config;
    const size_t tokens = model->batch.tokens;
    const moert_rotation rotation = rotation_of(model, h);
    MOERT_TRY(moert_model_project(model, layer, h->weight, layer->normed,
                                  c->qk_norm ? h->raw : h->rotated));
    if (!c->qk_norm)
        return moert_rope(&rotation, tokens, c->head_size, false, h->rotated);
    return moert_norm_run(
        &(moert_norm){.rows = tokens * h->count,
                      .width = c->head_size,
                      .epsilon = c->norm_epsilon,
                      .x = h->raw,
                      .weight = layer->attention->tensor[MOERT_ATTENTION_FIRST + h->norm].weight,
                      .y = h->rotated,
                      .rstd = h->rstd,
                      .rotation = rotation});
}

static moert_status forward(moert_model *model, moert_model_layer *layer, moert_buffer *y) {
    head_group heads[ROTATED];
    moert_buffer *result;
    list_heads(model, layer, heads);
    for (size_t i = 0; i < ROTATED; i++)
        MOERT_TRY(project_heads(model, layer, &heads[i]));
    MOERT_TRY(moert_model_project(model, layer, V, layer->normed, layer->kept[KEPT_V]));
    moert_attention attention = attention_of(model, layer);
    MOERT_TRY(moert_model_attended(model, &attention, &result));
    MOERT_TRY(moert_attention_forward(&attention));
    return moert_model_project(model, layer, O, result, y);
}

/* Backward of the projection of q, k or v. */
static moert_status differentiate_projection(moert_model *model, moert_model_layer *layer,
                                             size_t weight, const moert_buffer *dy,
                                             moert_buffer *dx, bool accumulate) {
    MOERT_TRY(moert_model_differentiate_weight(model, layer, weight, layer->normed, dy));
    return moert_model_differentiate_input(model, layer, weight, dy, dx, accumulate);
}

/* Backward of q or k, from `d`: rotation, norm, then the projection. */
static moert_status differentiate_heads(moert_model *model, moert_model_layer *layer,
                                        const head_group *h, moert_buffer *d, moert_buffer *dx,
                                        bool accumulate) {
    const moert_model_config *c = &model->config;
    const moert_dtype type = moert_model_type(model);
    const size_t tokens = model->batch.tokens, width = h->count * c->head_size;
    const moert_rotation rotation = rotation_of(model, h);
    moert_buffer *operand;
    if (c->qk_norm) {
        MOERT_TRY(moert_operand_buffer(model->mesh, type, tokens * width, MOERT_SCRATCH_ROUNDED_Y,
                                       d, &operand));
        const moert_norm_gradient own = {.rows = tokens * h->count,
                                         .width = c->head_size,
                                         .x = h->raw,
                                         .rstd = h->rstd,
                                         .dy = d,
                                         .dx = type == MOERT_DTYPE_F32 ? d : NULL,
                                         .bf16 = type == MOERT_DTYPE_F32 ? NULL : operand,
                                         .rotation = rotation};
        MOERT_TRY(moert_model_differentiate_norm(model, layer->attention,
                                                 MOERT_ATTENTION_FIRST + h->norm, &own));
    } else {
        MOERT_TRY(moert_rope(&rotation, tokens, c->head_size, true, d));
        MOERT_TRY(moert_model_operand(model, width, d, MOERT_SCRATCH_ROUNDED_Y, &operand));
    }
    return differentiate_projection(model, layer, h->weight, operand, dx, accumulate);
}

static moert_status backward(moert_model *model, moert_model_layer *layer, moert_buffer *dy,
                             moert_buffer *dx) {
    const size_t kv = model->config.kv_heads * model->config.head_size;
    moert_buffer **const scratch = model->scratch, *operand;
    head_group heads[ROTATED];
    moert_attention attention = attention_of(model, layer);
    MOERT_TRY(moert_model_differentiate_input(model, layer, O, dy, scratch[D_OUT], false));
    MOERT_TRY(moert_model_attended(model, &attention, &operand));
    attention.dout = scratch[D_OUT];
    attention.dq = scratch[D_Q];
    attention.dk = scratch[D_K];
    attention.dv = scratch[D_V];
    MOERT_TRY(moert_attention_backward(&attention));
    MOERT_TRY(moert_model_differentiate_weight(model, layer, O, operand, dy));
    list_heads(model, layer, heads);
    MOERT_TRY(differentiate_heads(model, layer, &heads[0], scratch[D_Q], dx, false));
    MOERT_TRY(differentiate_heads(model, layer, &heads[1], scratch[D_K], dx, true));
    MOERT_TRY(moert_model_operand(model, kv, scratch[D_V], MOERT_SCRATCH_ROUNDED_Y, &operand));
    return differentiate_projection(model, layer, V, operand, dx, true);
}

const moert_attention_variant moert_model_gqa = {describe, forward, backward};
