/* Attention with grouped-query heads. Depending on the config, it has norms of q and k (over each
 * head or over all heads), clipping of q, k and v, rotation of a whole head or a part of a head,
 * biases, a sliding window in some layers, and sinks. */
#include <math.h>

#include "base/memory.h"
#include "model/sublayer.h"

enum { Q, Q_BIAS, K, K_BIAS, V, V_BIAS, O, O_BIAS, Q_NORM, K_NORM, SINKS, PARAMETERS };
/* Activations that the backward reads. Three entries each of q, k and v: RAW projected values (if a
 * norm follows), CLIPPED values before the clip, READ values that attention reads. */
enum {
    KEPT_RAW,
    KEPT_CLIPPED = KEPT_RAW + 3,
    KEPT_READ = KEPT_CLIPPED + 3, /* values of the dtype that attention reads */
    KEPT_Q_RSTD = KEPT_READ + 3,
    KEPT_K_RSTD,
    KEPT_OUT,
    KEPT_LSE
};
enum { D_OUT, D_Q, D_K, D_V, D_SINKS };

/* One of q, k and v: the indices of its parameters, and its sizes. */
typedef struct head_group {
    size_t weight, norm; /* norm 0: none */
    size_t count;        /* number of heads */
    bool rotates;
} head_group;

enum { GROUPS = 3 };

static void list_groups(const moert_model_config *c, size_t layer, head_group groups[GROUPS]) {
    const bool rotates = !moert_layer_set_has(&c->unrotated, layer);
    groups[0] = (head_group){Q, c->qk_norm ? Q_NORM : 0, c->heads, rotates};
    groups[1] = (head_group){K, c->qk_norm ? K_NORM : 0, c->kv_heads, rotates};
    groups[2] = (head_group){V, 0, c->kv_heads, false};
}

/* The rows per token, and their width, in the norm of q or k. */
static size_t norm_rows(const moert_model_config *c, const head_group *g) {
    return c->qk_norm_whole ? 1 : g->count;
}
static size_t norm_width(const moert_model_config *c, const head_group *g) {
    return c->qk_norm_whole ? g->count * c->head_size : c->head_size;
}

/* The dtype of q, k, v and dout. */
static moert_dtype operands_of(const moert_model_config *c, const moert_device *device) {
    return moert_attention_operands(
        device,
        &(moert_attention){.head_size = c->head_size, .type = moert_operand_type(c->dense)});
}

static void describe_group(const moert_model_config *c, const moert_device *device, size_t index,
                           const head_group *g, moert_attention_shape *shape) {
    static const char *const names[GROUPS][2] = {
        {"self_attn.q_proj.weight", "self_attn.q_proj.bias"},
        {"self_attn.k_proj.weight", "self_attn.k_proj.bias"},
        {"self_attn.v_proj.weight", "self_attn.v_proj.bias"}};
    const size_t width = g->count * c->head_size;
    moert_model_parameter *p = shape->parameter;
    p[g->weight] = (moert_model_parameter){names[index][0], width, c->hidden, .is_bias = false};
    p[g->weight + 1] = (moert_model_parameter){names[index][1], c->attention_bias ? width : 0, 0,
                                               MOERT_INITIAL_ZEROS, .is_bias = true};
    shape->kept[KEPT_READ + index] = (moert_model_rows){width, operands_of(c, device)};
    shape->scratch[D_Q + index].width = width;
    shape->kept[KEPT_CLIPPED + index].width = c->clip_qkv > 0.0f ? width : 0;
    shape->rounded_y = moert_max(shape->rounded_y, width);
    if (g->norm == 0)
        return;
    p[g->norm] = (moert_model_parameter){moert_head_norm_name(c, index == 1), norm_width(c, g), 0,
                                         .initial = MOERT_INITIAL_ONES};
    shape->kept[KEPT_RAW + index].width = width;
    shape->kept[KEPT_Q_RSTD + index].width = shape->norm[index].rows = norm_rows(c, g);
    shape->norm[index].width = norm_width(c, g);
}

static void describe(const moert_model_config *c, const moert_device *device,
                     moert_attention_shape *shape) {
    const size_t h = c->hidden, q = c->heads * c->head_size;
    moert_model_parameter *p = shape->parameter;
    head_group groups[GROUPS];
    list_groups(c, 0, groups);
    for (size_t i = 0; i < GROUPS; i++)
        describe_group(c, device, i, &groups[i], shape);
    shape->parameters = PARAMETERS;
    p[O] = (moert_model_parameter){"self_attn.o_proj.weight", h, q, .is_bias = false};
    p[O_BIAS] = (moert_model_parameter){"self_attn.o_proj.bias", c->output_bias ? h : 0, 0,
                                        MOERT_INITIAL_ZEROS, .is_bias = true};
    p[SINKS] =
        (moert_model_parameter){"self_attn.sinks", c->sinks ? c->heads : 0, 0, .is_bias = false};
    shape->kept[KEPT_OUT].width = shape->rounded_x = q;
    shape->scratch[D_OUT] = (moert_model_rows){q, operands_of(c, device)};
    shape->kept[KEPT_LSE].width = c->heads;
    shape->scratch[D_SINKS].width = c->sinks ? c->heads : 0;
}

static moert_rotation rotation_of(const moert_run *run, const moert_run_layer *layer,
                                  const head_group *g) {
    const moert_model_config *c = run->config;
    const bool own =
        c->window_rope.theta > 0.0 && moert_layer_set_has(&c->windowed, layer->of->index);
    const moert_rope_scheme *scheme = own ? &c->window_rope : &c->rope;
    return (moert_rotation){.table = run->model->rope[own],
                            .positions = moert_model_positions(run),
                            .heads = g->count,
                            .length = run->length,
                            .width = scheme->width,
                            .interleaved = scheme->interleaved};
}

/* Whether the norm of q or k also rotates. */
static bool norm_rotates(const moert_model_config *c, const head_group *g) {
    return g->norm != 0 && g->rotates && !c->qk_norm_last && !c->qk_norm_whole &&
           !(c->clip_qkv > 0.0f);
}

/* Whether q or k is rotated before its norm. */
static bool rotates_first(const moert_model_config *c, const head_group *g) {
    return g->norm != 0 && g->rotates && c->qk_norm_last;
}

static moert_attention attention_of(const moert_run *run, const moert_run_layer *layer) {
    const moert_model_config *c = run->config;
    const bool windowed = moert_layer_set_has(&c->windowed, layer->of->index);
    return (moert_attention){
        .sequences = run->batch.sequences,
        .length = run->length,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_size = c->head_size,
        .documents = moert_model_documents(run),
        .scale = c->attention_scale > 0.0f ? c->attention_scale : 1.0f / sqrtf((float)c->head_size),
        .q = layer->activations->kept[KEPT_READ],
        .k = layer->activations->kept[KEPT_READ + 1],
        .v = layer->activations->kept[KEPT_READ + 2],
        .sinks = layer->of->attention->tensor[MOERT_ATTENTION_FIRST + SINKS].weight,
        .window = windowed ? c->sliding_window : 0,
        .out = layer->activations->kept[KEPT_OUT],
        .lse = layer->activations->kept[KEPT_LSE],
        .type = moert_model_type(run->model),
        .operands = run->model->attention.kept[KEPT_READ].type,
        .scratch = &run->mesh->scratch[MOERT_SCRATCH_PARTIAL]};
}

/* The rows of q, k or v after each step. If attention reads bf16, the last step rounds to bf16, and
 * `floats` is scratch. Otherwise `floats` and `read` are one buffer. */
typedef struct group_rows {
    moert_buffer *raw;       /* projected values, if a norm follows */
    moert_buffer *unclipped; /* values before the clip; `floats` if nothing is clipped */
    moert_buffer *floats, *read;
    bool rounds, clips, rotates; /* `rotates`: rotation is a separate step, not part of the norm */
} group_rows;

static group_rows list_rows(const moert_run *run, const moert_run_layer *layer, size_t index,
                            const head_group *g) {
    const moert_model_config *c = run->config;
    moert_buffer *const *kept = layer->activations->kept;
    group_rows r = {.raw = kept[KEPT_RAW + index],
                    .read = kept[KEPT_READ + index],
                    .rounds =
                        run->model->attention.kept[KEPT_READ + index].type == MOERT_DTYPE_BF16,
                    .clips = c->clip_qkv > 0.0f,
                    .rotates = g->rotates && !norm_rotates(c, g) && !rotates_first(c, g)};
    r.floats = r.rounds ? run->scratch[D_Q + index] : r.read;
    r.unclipped = r.clips ? kept[KEPT_CLIPPED + index] : r.floats;
    return r;
}

/* Computes the projection and the norm. The result goes to `unclipped` or, if no step follows, to
 * `read`. */
static moert_status begin_group(moert_run *run, moert_run_layer *layer, size_t index,
                                const head_group *g, const group_rows *r) {
    const moert_model_config *c = run->config;
    const bool last = r->rounds && !r->clips && !r->rotates;
    const moert_buffer *x = layer->activations->normed;
    if (g->norm == 0)
        return moert_model_project_to(
            run, layer, g->weight, x,
            &(moert_model_target){.type = last ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32,
                                  .rows = last ? r->read : r->unclipped,
                                  .floats = r->floats});
    MOERT_TRY(moert_model_project(run, layer, g->weight, x, r->raw));
    if (rotates_first(c, g)) {
        const moert_rotation rotation = rotation_of(run, layer, g);
        MOERT_TRY(moert_rope(&rotation, run->batch.tokens, c->head_size, false, r->raw));
    }
    return moert_norm_run(&(moert_norm){
        .rows = run->batch.tokens * norm_rows(c, g),
        .width = norm_width(c, g),
        .epsilon = c->norm_epsilon,
        .x = r->raw,
        .weight = layer->of->attention->tensor[MOERT_ATTENTION_FIRST + g->norm].weight,
        .y = r->unclipped,
        .bf16 = last ? r->read : NULL,
        .rstd = layer->activations->kept[KEPT_Q_RSTD + index],
        .rotation =
            norm_rotates(c, g) ? rotation_of(run, layer, g) : (moert_rotation){.table = NULL}});
}

/* Computes q, k or v: projection, then norm, clip and rotation as far as the model has them. */
static moert_status project_group(moert_run *run, moert_run_layer *layer, size_t index,
                                  const head_group *g) {
    const moert_model_config *c = run->config;
    const size_t tokens = run->batch.tokens, width = g->count * c->head_size;
    const moert_rotation rotation = rotation_of(run, layer, g);
    const group_rows r = list_rows(run, layer, index, g);
    MOERT_TRY(begin_group(run, layer, index, g, &r));
    if (r.clips)
        MOERT_TRY(moert_clip(tokens * width, c->clip_qkv, r.unclipped, r.floats));
    if (r.rotates)
        return r.rounds ? moert_rope_bf16(&rotation, tokens, c->head_size, r.floats, r.read)
                        : moert_rope(&rotation, tokens, c->head_size, false, r.read);
    return r.clips && r.rounds ? moert_model_round(run, width, r.floats, r.read) : MOERT_OK;
}

static moert_status forward(moert_run *run, moert_run_layer *layer, moert_buffer *y) {
    head_group groups[GROUPS];
    moert_buffer *result;
    list_groups(run->config, layer->of->index, groups);
    if (run->model->attention.kept[KEPT_READ].type == MOERT_DTYPE_BF16)
        MOERT_TRY(moert_model_reserve_rows(run, run->model->attention.scratch, run->scratch));
    for (size_t i = 0; i < GROUPS; i++)
        MOERT_TRY(project_group(run, layer, i, &groups[i]));
    moert_attention attention = attention_of(run, layer);
    MOERT_TRY(moert_model_cache_keys(run, layer, &attention));
    MOERT_TRY(moert_model_attention_operand(run, &attention, &result));
    MOERT_TRY(moert_attention_forward(&attention));
    return moert_model_project(run, layer, O, result, y);
}

/* Computes the gradient of the projected q, k or v as a GEMM operand. `d` is the gradient of the
 * rows that attention reads. */
static moert_status norm_backward(moert_run *run, moert_run_layer *layer, size_t index,
                                  const head_group *g, moert_buffer *d, moert_buffer **operand) {
    const moert_model_config *c = run->config;
    const moert_dtype type = moert_model_type(run->model);
    const size_t tokens = run->batch.tokens, width = g->count * c->head_size;
    const moert_rotation rotation = rotation_of(run, layer, g);
    if (g->rotates && !norm_rotates(c, g) && !rotates_first(c, g))
        MOERT_TRY(moert_rope(&rotation, tokens, c->head_size, true, d));
    if (c->clip_qkv > 0.0f)
        MOERT_TRY(moert_clip_backward(tokens * width, c->clip_qkv,
                                      layer->activations->kept[KEPT_CLIPPED + index], d));
    if (g->norm == 0)
        return moert_model_operand(run, width, d, MOERT_SCRATCH_ROUNDED_Y, operand);
    const bool first = rotates_first(c, g), plain = first || type == MOERT_DTYPE_F32;
    if (!first)
        MOERT_TRY(moert_operand_buffer(run->mesh, type, tokens * width, MOERT_SCRATCH_ROUNDED_Y, d,
                                       operand));
    const moert_norm_gradient own = {
        .rows = tokens * norm_rows(c, g),
        .width = norm_width(c, g),
        .x = layer->activations->kept[KEPT_RAW + index],
        .rstd = layer->activations->kept[KEPT_Q_RSTD + index],
        .dy = d,
        .dx = plain ? d : NULL,
        .bf16 = plain ? NULL : *operand,
        .rotation = norm_rotates(c, g) ? rotation : (moert_rotation){.table = NULL}};
    MOERT_TRY(moert_model_norm_backward(run, layer->of->attention, MOERT_ATTENTION_FIRST + g->norm,
                                        &own));
    if (!first)
        return MOERT_OK;
    MOERT_TRY(moert_rope(&rotation, tokens, c->head_size, true, d));
    return moert_model_operand(run, width, d, MOERT_SCRATCH_ROUNDED_Y, operand);
}

/* Backward of q, k or v. The backward of q overwrites dx; the backwards of k and v add to dx. */
static moert_status group_backward(moert_run *run, moert_run_layer *layer, size_t index,
                                   const head_group *g, moert_buffer *dx) {
    moert_buffer *operand;
    MOERT_TRY(norm_backward(run, layer, index, g, run->scratch[D_Q + index], &operand));
    MOERT_TRY(
        moert_model_weight_backward(run, layer, g->weight, layer->activations->normed, operand));
    return moert_model_input_backward(run, layer, g->weight, operand, dx, index > 0);
}

static moert_status backward(moert_run *run, moert_run_layer *layer, moert_buffer *dy,
                             moert_buffer *dx) {
    moert_buffer **const scratch = run->scratch, *operand;
    head_group groups[GROUPS];
    moert_attention attention = attention_of(run, layer);
    const moert_model_target dout = {attention.operands, scratch[D_OUT], scratch[D_Q]};
    MOERT_TRY(moert_model_input_backward_to(run, layer, O, dy, &dout));
    MOERT_TRY(moert_model_attention_operand(run, &attention, &operand));
    attention.dout = scratch[D_OUT];
    attention.dq = scratch[D_Q];
    attention.dk = scratch[D_K];
    attention.dv = scratch[D_V];
    attention.dsinks = scratch[D_SINKS];
    MOERT_TRY(moert_attention_backward(&attention));
    if (attention.sinks != NULL)
        MOERT_TRY(moert_block_collect(layer->of->attention, MOERT_ATTENTION_FIRST + SINKS,
                                      &run->batch, 0, attention.heads, attention.dsinks));
    MOERT_TRY(moert_model_weight_backward(run, layer, O, operand, dy));
    list_groups(run->config, layer->of->index, groups);
    for (size_t i = 0; i < GROUPS; i++)
        MOERT_TRY(group_backward(run, layer, i, &groups[i], dx));
    return MOERT_OK;
}

const moert_attention_variant moert_model_gqa = {describe, forward, backward};
