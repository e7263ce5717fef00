/*
 * Multi-head latent attention (DeepSeek-AI: "DeepSeek-V2", 2024, section 2.1). Projections are not
 * absorbed: keys and values of all heads are computed from the latent rows.
 *
 *   q[T,n,nope+rope]      = W_q x, or W_qb norm(W_qa x)
 *   [c | r]               = W_kva x              [T,rank] and [T,rope]
 *   [k_nope | v]          = W_kvb norm(c)        [T,n,nope] and [T,n,value]
 *   k[T,n,nope+rope]      = [k_nope | rotated r], r shared by all heads
 *   y                     = W_o attention(q with its last `rope` elements rotated, k, v)
 *
 * The gradients of the heads' rotated keys are summed in the order of the heads. A layer keeps the
 * latent rows, and q, k and v in the dtype and layout that attention reads. All layers share
 * scratch buffers for the other intermediate values.
 */
#include <math.h>

#include "base/memory.h"
#include "model/sublayer.h"

enum {
    Q_A, /* Q_A and Q_A_NORM are absent if q has no latent; then Q_B projects q directly */
    Q_A_BIAS,
    Q_A_NORM,
    Q_B,
    KV_A,
    KV_A_BIAS,
    KV_A_NORM,
    KV_B,
    O,
    O_BIAS,
    INDEX_Q, /* the sparse indexer, which only the files have */
    INDEX_K,
    INDEX_NORM,
    INDEX_NORM_BIAS,
    INDEX_WEIGHTS,
    PARAMETERS
};
enum {
    KEPT_Q_RAW,
    KEPT_Q_RSTD,
    KEPT_Q_NORMED,
    KEPT_KV_RAW,
    KEPT_KV_RSTD,
    KEPT_KV_NORMED,
    KEPT_Q,
    KEPT_K,
    KEPT_V,
    KEPT_OUT,
    KEPT_LSE
};
/* LATENT, SHARED and EXPANDED also hold values of the forward: [c | r], r, and [k_nope | v]. */
enum { D_OUT, D_Q, D_K, D_V, D_LATENT, D_SHARED, D_EXPANDED, D_NORMED };

/* The epsilon of the latent norms, independent of rms_norm_eps. */
static const float latent_epsilon = 1e-6f;

static size_t key_size(const moert_latent_sizes *s) {
    return s->nope + s->rope;
}

static void describe_parameters(const moert_model_config *c, moert_model_parameter *p) {
    const moert_latent_sizes *s = &c->latent;
    const size_t h = c->hidden, n = c->heads, bias = c->attention_bias ? 1 : 0;
    const bool direct = s->q_rank == 0;
    p[Q_A] = (moert_model_parameter){"self_attn.q_a_proj.weight", s->q_rank, h, .is_bias = false};
    p[Q_A_BIAS] = (moert_model_parameter){"self_attn.q_a_proj.bias", bias * s->q_rank, 0,
                                          .initial = MOERT_INITIAL_ZEROS, .is_bias = true};
    p[Q_A_NORM] = (moert_model_parameter){"self_attn.q_a_layernorm.weight", s->q_rank, 0,
                                          .initial = MOERT_INITIAL_ONES};
    p[Q_B] =
        (moert_model_parameter){direct ? "self_attn.q_proj.weight" : "self_attn.q_b_proj.weight",
                                n * key_size(s), direct ? h : s->q_rank, .is_bias = false};
    p[KV_A] = (moert_model_parameter){"self_attn.kv_a_proj_with_mqa.weight", s->kv_rank + s->rope,
                                      h, .is_bias = false};
    p[KV_A_BIAS] =
        (moert_model_parameter){"self_attn.kv_a_proj_with_mqa.bias", bias * (s->kv_rank + s->rope),
                                0, .initial = MOERT_INITIAL_ZEROS, .is_bias = true};
    p[KV_A_NORM] = (moert_model_parameter){"self_attn.kv_a_layernorm.weight", s->kv_rank, 0,
                                           .initial = MOERT_INITIAL_ONES};
    p[KV_B] = (moert_model_parameter){"self_attn.kv_b_proj.weight", n * (s->nope + s->value),
                                      s->kv_rank, .is_bias = false};
    p[O] = (moert_model_parameter){"self_attn.o_proj.weight", h, n * s->value, .is_bias = false};
    p[O_BIAS] = (moert_model_parameter){"self_attn.o_proj.bias", bias * h, 0,
                                        .initial = MOERT_INITIAL_ZEROS, .is_bias = true};
}

static void describe_indexer(const moert_model_config *c, moert_model_parameter *p) {
    const moert_indexer_sizes *s = &c->indexer;
    const size_t heads = s->topk > 0 ? s->heads : 0, size = s->topk > 0 ? s->head_size : 0;
    p[INDEX_Q] = (moert_model_parameter){"self_attn.indexer.wq_b.weight", heads * size,
                                         c->latent.q_rank, .is_fixed = true};
    p[INDEX_K] =
        (moert_model_parameter){"self_attn.indexer.wk.weight", size, c->hidden, .is_fixed = true};
    p[INDEX_NORM] = (moert_model_parameter){"self_attn.indexer.k_norm.weight", size, 0,
                                            .initial = MOERT_INITIAL_ONES, .is_fixed = true};
    p[INDEX_NORM_BIAS] = (moert_model_parameter){"self_attn.indexer.k_norm.bias", size, 0,
                                                 .initial = MOERT_INITIAL_ZEROS, .is_fixed = true};
    p[INDEX_WEIGHTS] = (moert_model_parameter){"self_attn.indexer.weights_proj.weight", heads,
                                               c->hidden, .is_fixed = true};
}

/* The dtype of q, k, v and dout. */
static moert_dtype operands_of(const moert_model_config *c, const moert_device *device) {
    return moert_attention_operands(device,
                                    &(moert_attention){.head_size = key_size(&c->latent),
                                                       .value_size = c->latent.value,
                                                       .type = moert_operand_type(c->dense)});
}

static void describe(const moert_model_config *c, const moert_device *device,
                     moert_attention_shape *shape) {
    const moert_latent_sizes *s = &c->latent;
    const size_t n = c->heads, q = n * key_size(s), v = n * s->value,
                 expanded = n * (s->nope + s->value);
    const moert_dtype type = moert_operand_type(c->dense), operands = operands_of(c, device);
    const bool direct = s->q_rank == 0;
    moert_model_rows *kept = shape->kept, *scratch = shape->scratch;
    shape->parameters = PARAMETERS;
    describe_parameters(c, shape->parameter);
    describe_indexer(c, shape->parameter);
    kept[KEPT_Q_RAW].width = s->q_rank;
    kept[KEPT_Q_RSTD].width = direct ? 0 : 1;
    kept[KEPT_Q_NORMED] = (moert_model_rows){s->q_rank, type};
    kept[KEPT_KV_RAW].width = s->kv_rank;
    kept[KEPT_KV_RSTD].width = 1;
    kept[KEPT_KV_NORMED] = (moert_model_rows){s->kv_rank, type};
    kept[KEPT_Q] = kept[KEPT_K] = (moert_model_rows){q, operands};
    kept[KEPT_V] = scratch[D_OUT] = (moert_model_rows){v, operands};
    kept[KEPT_OUT].width = v;
    kept[KEPT_LSE].width = n;
    scratch[D_Q].width = scratch[D_K].width = q;
    scratch[D_V].width = v;
    scratch[D_LATENT].width = s->kv_rank + s->rope;
    scratch[D_SHARED].width = s->rope;
    scratch[D_EXPANDED].width = expanded;
    scratch[D_NORMED].width = moert_max(s->q_rank, s->kv_rank);
    shape->norm[0].rows = direct ? 0 : 1;
    shape->norm[0].width = s->q_rank;
    shape->norm[1].rows = 1;
    shape->norm[1].width = s->kv_rank;
    shape->rounded_x = v;
    shape->rounded_y =
        moert_max(moert_max(q, expanded), moert_max(s->q_rank, s->kv_rank + s->rope));
}

/* ---- parts ---- */

/* The rotation of the last `rope` elements of each of `heads` heads of `size` elements. */
static moert_rotation rotation_of(const moert_run *run, size_t heads, size_t size) {
    const size_t rope = run->config->latent.rope;
    return (moert_rotation){.table = run->model->rope[0],
                            .positions = moert_model_positions(run),
                            .heads = heads,
                            .length = run->length,
                            .width = rope,
                            .offset = size - rope,
                            .interleaved = run->config->rope.interleaved};
}

/* Rotates heads in place. */
static moert_status rotate(const moert_run *run, size_t heads, size_t size, bool inverse,
                           moert_buffer *x) {
    const moert_rotation rotation = rotation_of(run, heads, size);
    return moert_rope(&rotation, run->batch.tokens, size, inverse, x);
}

/* A latent of q, or of k and v: the parameter index of its norm, and its rows [T,width], raw and
 * normed (a GEMM operand). */
typedef struct latent_rows {
    size_t norm, width;
    moert_buffer *raw, *rstd, *normed;
} latent_rows;

static latent_rows latent_q(const moert_run *run, const moert_run_layer *layer) {
    moert_buffer *const *kept = &layer->activations->kept[KEPT_Q_RAW];
    return (latent_rows){Q_A_NORM, run->config->latent.q_rank, kept[0], kept[1], kept[2]};
}

static latent_rows latent_kv(const moert_run *run, const moert_run_layer *layer) {
    moert_buffer *const *kept = &layer->activations->kept[KEPT_KV_RAW];
    return (latent_rows){KV_A_NORM, run->config->latent.kv_rank, kept[0], kept[1], kept[2]};
}

static moert_status normalise(moert_run *run, const moert_run_layer *layer, const latent_rows *l) {
    const bool floats = moert_model_type(run->model) == MOERT_DTYPE_F32;
    const moert_block *block = layer->of->attention;
    return moert_norm_run(
        &(moert_norm){.rows = run->batch.tokens,
                      .width = l->width,
                      .epsilon = latent_epsilon,
                      .x = l->raw,
                      .weight = block->tensor[MOERT_ATTENTION_FIRST + l->norm].weight,
                      .y = floats ? l->normed : NULL,
                      .bf16 = floats ? NULL : l->normed,
                      .rstd = l->rstd});
}

/* The part of each head in W_kvb's result that belongs to k, or the part that belongs to v. */
typedef struct head_part {
    size_t kept, scratch; /* index of the buffer of k or v; index of the buffer of its gradient */
    /* columns of the part, at the start of a head of k or v; columns of the whole head */
    size_t columns, size;
    size_t column; /* first column of the part in a head of W_kvb's result */
} head_part;
enum { HEAD_PARTS = 2 };

static void list_parts(const moert_model *model, head_part parts[HEAD_PARTS]) {
    const moert_latent_sizes *s = &model->config.latent;
    parts[0] = (head_part){KEPT_K, D_K, s->nope, key_size(s), 0};
    parts[1] = (head_part){KEPT_V, D_V, s->value, s->value, s->nope};
}

static moert_attention attention_of(const moert_run *run, const moert_run_layer *layer) {
    const moert_model_config *c = run->config;
    const moert_rope_scheme *rope = &c->rope;
    const double mscale = rope->type != MOERT_ROPE_DEFAULT && rope->mscale_all_dim != 0.0
                              ? moert_rope_mscale(rope->factor, rope->mscale_all_dim)
                              : 1.0;
    return (moert_attention){.sequences = run->batch.sequences,
                             .length = run->length,
                             .heads = c->heads,
                             .kv_heads = c->heads,
                             .head_size = key_size(&c->latent),
                             .value_size = c->latent.value,
                             .documents = moert_model_documents(run),
                             .scale = (float)(mscale * mscale / sqrt((double)key_size(&c->latent))),
                             .q = layer->activations->kept[KEPT_Q],
                             .k = layer->activations->kept[KEPT_K],
                             .v = layer->activations->kept[KEPT_V],
                             .out = layer->activations->kept[KEPT_OUT],
                             .lse = layer->activations->kept[KEPT_LSE],
                             .type = moert_model_type(run->model),
                             .operands = run->model->attention.kept[KEPT_Q].type,
                             .scratch = &run->mesh->scratch[MOERT_SCRATCH_PARTIAL]};
}

/* ---- forward ---- */

static moert_status project_q(moert_run *run, moert_run_layer *layer) {
    const moert_model_config *c = run->config;
    moert_buffer *const *kept = layer->activations->kept;
    const latent_rows l = latent_q(run, layer);
    const moert_buffer *x = layer->activations->normed;
    if (l.width > 0) {
        MOERT_TRY(moert_model_project(run, layer, Q_A, x, l.raw));
        MOERT_TRY(normalise(run, layer, &l));
        x = l.normed;
    }
    const size_t size = key_size(&c->latent);
    const bool rounds = run->model->attention.kept[KEPT_Q].type == MOERT_DTYPE_BF16;
    moert_buffer *const floats = rounds ? run->scratch[D_Q] : kept[KEPT_Q];
    const moert_rotation rotation = rotation_of(run, c->heads, size);
    MOERT_TRY(moert_model_project(run, layer, Q_B, x, floats));
    return rounds ? moert_rope_bf16(&rotation, run->batch.tokens, size, floats, kept[KEPT_Q])
                  : rotate(run, c->heads, size, false, floats);
}

/* Computes k and v of all heads from their latent row. */
static moert_status expand(moert_run *run, moert_run_layer *layer) {
    const moert_latent_sizes *s = &run->config->latent;
    const size_t tokens = run->batch.tokens, heads = run->config->heads;
    moert_buffer *const *kept = layer->activations->kept, *const expanded =
                                                              run->scratch[D_EXPANDED];
    const latent_rows l = latent_kv(run, layer);
    head_part parts[HEAD_PARTS];
    list_parts(run->model, parts);
    MOERT_TRY(normalise(run, layer, &l));
    MOERT_TRY(moert_model_project(run, layer, KV_B, l.normed, expanded));
    for (size_t i = 0; i < HEAD_PARTS; i++)
        MOERT_TRY(
            moert_columns_copy(&(moert_columns){.rows = tokens * heads,
                                                .columns = parts[i].columns,
                                                .from = expanded,
                                                .from_stride = s->nope + s->value,
                                                .from_column = parts[i].column,
                                                .type = run->model->attention.kept[KEPT_K].type,
                                                .to = kept[parts[i].kept],
                                                .to_stride = parts[i].size}));
    return MOERT_OK;
}

static moert_status project_kv(moert_run *run, moert_run_layer *layer) {
    const moert_latent_sizes *s = &run->config->latent;
    const size_t tokens = run->batch.tokens, heads = run->config->heads;
    moert_buffer *const latent = run->scratch[D_LATENT], *const shared = run->scratch[D_SHARED];
    MOERT_TRY(moert_model_project(run, layer, KV_A, layer->activations->normed, latent));
    moert_columns columns = {.rows = tokens,
                             .columns = s->kv_rank,
                             .from = latent,
                             .from_stride = s->kv_rank + s->rope,
                             .to = layer->activations->kept[KEPT_KV_RAW],
                             .to_stride = s->kv_rank};
    MOERT_TRY(moert_columns_copy(&columns));
    columns.columns = columns.to_stride = s->rope;
    columns.from_column = s->kv_rank;
    columns.to = shared;
    MOERT_TRY(moert_columns_copy(&columns));
    MOERT_TRY(rotate(run, 1, s->rope, false, shared));
    MOERT_TRY(moert_columns_copy(&(moert_columns){.rows = tokens * heads,
                                                  .columns = s->rope,
                                                  .repeat = heads,
                                                  .from = shared,
                                                  .from_stride = s->rope,
                                                  .type = run->model->attention.kept[KEPT_K].type,
                                                  .to = layer->activations->kept[KEPT_K],
                                                  .to_stride = key_size(s),
                                                  .to_column = s->nope}));
    return expand(run, layer);
}

static moert_status forward(moert_run *run, moert_run_layer *layer, moert_buffer *y) {
    moert_buffer *result;
    MOERT_TRY(moert_model_reserve_rows(run, run->model->attention.scratch, run->scratch));
    MOERT_TRY(project_q(run, layer));
    MOERT_TRY(project_kv(run, layer));
    moert_attention attention = attention_of(run, layer);
    MOERT_TRY(moert_model_cache_keys(run, layer, &attention));
    MOERT_TRY(moert_model_attention_operand(run, &attention, &result));
    MOERT_TRY(moert_attention_forward(&attention));
    return moert_model_project(run, layer, O, result, y);
}

/* ---- backward ---- */

/* Backward of a projection of x[T,...], a GEMM operand, from dy[T,...] in float32. KV_A adds to
 * dx, because it is the last projection of layer->activations->normed; other projections
 * overwrite dx. */
static moert_status projection_backward(moert_run *run, moert_run_layer *layer, size_t index,
                                        const moert_buffer *x, const moert_buffer *dy,
                                        moert_buffer *dx) {
    const size_t width = run->model->attention.parameter[index].rows;
    moert_buffer *operand;
    MOERT_TRY(moert_model_operand(run, width, dy, MOERT_SCRATCH_ROUNDED_Y, &operand));
    MOERT_TRY(moert_model_weight_backward(run, layer, index, x, operand));
    return moert_model_input_backward(run, layer, index, operand, dx, index == KV_A);
}

/* Backward of a latent's norm, in place in D_NORMED. */
static moert_status norm_backward(moert_run *run, moert_run_layer *layer, const latent_rows *l) {
    moert_buffer *const d = run->scratch[D_NORMED];
    const moert_norm_gradient own = {.rows = run->batch.tokens,
                                     .width = l->width,
                                     .x = l->raw,
                                     .rstd = l->rstd,
                                     .dy = d,
                                     .dx = d};
    return moert_model_norm_backward(run, layer->of->attention, MOERT_ATTENTION_FIRST + l->norm,
                                     &own);
}

/* dx = gradient of the layer's input, as far as it comes from q. */
static moert_status q_backward(moert_run *run, moert_run_layer *layer, moert_buffer *dx) {
    const moert_model_config *c = run->config;
    const moert_buffer *x = layer->activations->normed;
    moert_buffer *const dq = run->scratch[D_Q], *const d = run->scratch[D_NORMED];
    const latent_rows l = latent_q(run, layer);
    MOERT_TRY(rotate(run, c->heads, key_size(&c->latent), true, dq));
    if (l.width == 0)
        return projection_backward(run, layer, Q_B, x, dq, dx);
    MOERT_TRY(projection_backward(run, layer, Q_B, l.normed, dq, d));
    MOERT_TRY(norm_backward(run, layer, &l));
    return projection_backward(run, layer, Q_A, x, d, dx);
}

/* D_LATENT[:, kv_rank ...] = gradient of the shared key r: the sum over the heads, rotated back. */
static moert_status shared_backward(moert_run *run) {
    const moert_latent_sizes *s = &run->config->latent;
    const size_t tokens = run->batch.tokens;
    moert_buffer *const shared = run->scratch[D_SHARED];
    MOERT_TRY(moert_columns_sum(&(moert_columns){.rows = tokens,
                                                 .columns = s->rope,
                                                 .repeat = run->config->heads,
                                                 .from = run->scratch[D_K],
                                                 .from_stride = key_size(s),
                                                 .from_column = s->nope,
                                                 .to = shared,
                                                 .to_stride = s->rope}));
    MOERT_TRY(rotate(run, 1, s->rope, true, shared));
    return moert_columns_copy(&(moert_columns){.rows = tokens,
                                               .columns = s->rope,
                                               .from = shared,
                                               .from_stride = s->rope,
                                               .to = run->scratch[D_LATENT],
                                               .to_stride = s->kv_rank + s->rope,
                                               .to_column = s->kv_rank});
}

/* D_LATENT[:, ... kv_rank] = gradient of the latent row, from the gradients of k and v. */
static moert_status expanded_backward(moert_run *run, moert_run_layer *layer) {
    const moert_latent_sizes *s = &run->config->latent;
    const size_t tokens = run->batch.tokens, heads = run->config->heads, width = s->nope + s->value;
    moert_buffer *const expanded = run->scratch[D_EXPANDED], *const d = run->scratch[D_NORMED];
    const latent_rows l = latent_kv(run, layer);
    head_part parts[HEAD_PARTS];
    list_parts(run->model, parts);
    for (size_t i = 0; i < HEAD_PARTS; i++)
        MOERT_TRY(moert_columns_copy(&(moert_columns){.rows = tokens * heads,
                                                      .columns = parts[i].columns,
                                                      .from = run->scratch[parts[i].scratch],
                                                      .from_stride = parts[i].size,
                                                      .to = expanded,
                                                      .to_stride = width,
                                                      .to_column = parts[i].column}));
    MOERT_TRY(projection_backward(run, layer, KV_B, l.normed, expanded, d));
    MOERT_TRY(norm_backward(run, layer, &l));
    return moert_columns_copy(&(moert_columns){.rows = tokens,
                                               .columns = s->kv_rank,
                                               .from = d,
                                               .from_stride = s->kv_rank,
                                               .to = run->scratch[D_LATENT],
                                               .to_stride = s->kv_rank + s->rope});
}

static moert_status backward(moert_run *run, moert_run_layer *layer, moert_buffer *dy,
                             moert_buffer *dx) {
    moert_buffer **const scratch = run->scratch, *result;
    moert_attention attention = attention_of(run, layer);
    const moert_model_target dout = {attention.operands, scratch[D_OUT], scratch[D_Q]};
    MOERT_TRY(moert_model_input_backward_to(run, layer, O, dy, &dout));
    MOERT_TRY(moert_model_attention_operand(run, &attention, &result));
    attention.dout = scratch[D_OUT];
    attention.dq = scratch[D_Q];
    attention.dk = scratch[D_K];
    attention.dv = scratch[D_V];
    MOERT_TRY(moert_attention_backward(&attention));
    MOERT_TRY(moert_model_weight_backward(run, layer, O, result, dy));
    MOERT_TRY(q_backward(run, layer, dx));
    MOERT_TRY(shared_backward(run));
    MOERT_TRY(expanded_backward(run, layer));
    return projection_backward(run, layer, KV_A, layer->activations->normed, scratch[D_LATENT], dx);
}

const moert_attention_variant moert_model_mla = {describe, forward, backward};
