/* The tables of a run's buffers. */
#include "model/sizes.h"

#include "base/dtype.h"
#include "base/memory.h"
#include "layer/dense_glu.h"
#include "layer/dense_rounding.h"

moert_model_sizes moert_run_sizes(const moert_run *run) {
    const moert_batch *b = &run->batch;
    return (moert_model_sizes){.config = run->config,
                               .attention = &run->model->attention,
                               .device = run->device,
                               .layers = run->layers,
                               .tokens = b->tokens,
                               .length = run->length,
                               .span = {b->first_sequence, b->sequences, b->total_sequences},
                               .chunk = moert_head_rows(run->config, b->tokens, run->length),
                               .forward_only = b->forward_only,
                               .aux_form = run->losses.aux_form};
}

/* ---- tables ---- */

static moert_dtype type_of(const moert_model_sizes *s) {
    return moert_operand_type(s->config->dense);
}

/* Bytes of [T,width] floats. */
static size_t of_tokens(const moert_model_sizes *s, size_t width) {
    return s->tokens * width * sizeof(float);
}

/* Bytes of [T,H] operands. */
static size_t operand_bytes(const moert_model_sizes *s) {
    return sizeof(float) * moert_operand_floats(type_of(s), s->tokens * s->config->hidden);
}

/* Bytes of a copy of [T,H] in the dtype of the operands; no buffer if `wanted` is false or the
 * dtype is float32. */
static size_t copy_bytes(const moert_model_sizes *s, bool wanted) {
    return wanted && type_of(s) != MOERT_DTYPE_F32 ? operand_bytes(s) : MOERT_NO_BUFFER;
}

/* Floats of the losses' inputs, followed by the routers' entropies (losses.c). */
static size_t loss_floats(const moert_model_sizes *s) {
    const size_t layers = moert_moe_layers(s->config);
    return moert_loss_inputs_at(s->tokens, s->span.count * s->config->router.experts, layers) +
           layers * s->tokens;
}

static bool links(const moert_model_sizes *s) {
    return !s->config->tied_embeddings && !s->forward_only;
}

static bool repeats_layers(const moert_model_sizes *s) {
    return s->config->memory.recompute == MOERT_RECOMPUTE_LAYER && s->layers > 1;
}

/* Bytes of the auxiliary loss's gradient: [E], or [sequences, E] if each sequence has its own
 * loss. */
static size_t aux_bytes(const moert_model_sizes *s) {
    const size_t sums = s->aux_form == MOERT_AUX_SEQUENCE ? moert_max(s->span.count, 1) : 1;
    return sums * s->config->router.experts * sizeof(float);
}

static size_t glu_bytes(const moert_model_sizes *s, size_t (*floats)(const moert_glu_sizes *)) {
    const moert_glu_sizes glu = moert_model_glu_sizes(s);
    return floats(&glu) * sizeof(float);
}

#define RUN_ROWS(X)                                                                                \
    X(ends, "ends of sequences", s->span.count * sizeof(uint32_t))                                 \
    X(bf16, "rows in bf16", copy_bytes(s, true))
#define RUN_BATCH(X)                                                                               \
    X(tokens, "tokens", of_tokens(s, 1))                                                           \
    X(targets, "targets", of_tokens(s, 1))                                                         \
    X(links, "links between equal tokens", links(s) ? of_tokens(s, 2) : MOERT_NO_BUFFER)           \
    X(embedded, "embeddings of tokens", of_tokens(s, s->config->hidden))                           \
    X(loss_inputs, "inputs of the losses", loss_floats(s) * sizeof(float))                         \
    X(final_normed, "input of the head", operand_bytes(s))                                         \
    X(final_rstd, "scales of the last norm", of_tokens(s, 1))
#define RUN_BACKWARD(X)                                                                            \
    X(d, "gradients of the residual", of_tokens(s, s->config->hidden))                             \
    X(dn, "gradients of norms", of_tokens(s, s->config->hidden))                                   \
    X(d_bf16, "gradients in bf16", copy_bytes(s, repeats_layers(s)))                               \
    X(branch, "gradients of sublayers", branch_bytes(s))                                           \
    X(branch_bf16, "gradients in bf16", copy_bytes(s, moert_model_has_branch(s->config)))
#define RUN_HEAD(X)                                                                                \
    X(token_loss, "losses of tokens", of_tokens(s, 1))                                             \
    X(logits, "logits", s->chunk * s->config->vocabulary * sizeof(float))
#define HEAD_CHUNK(X)                                                                              \
    X(x, "input of a chunk of logits",                                                             \
      s->chunk * s->config->hidden * moert_dtype_bits(type_of(s)) / 8)                             \
    X(dx, "gradients of a chunk", s->chunk * s->config->hidden * sizeof(float))                    \
    X(target, "targets of a chunk", s->chunk * sizeof(int32_t))                                    \
    X(loss, "losses of a chunk", s->chunk * sizeof(float))
#define LAYER(X) X(out, "results of layers", of_tokens(s, s->config->hidden))
#define MOE(X)   X(aux_gradient, "gradients of the auxiliary loss", aux_bytes(s))
/* Bytes of `width` floats a token for a norm of results of sublayers. */
static size_t result_bytes(const moert_model_sizes *s, moert_norm_place place, size_t width) {
    const moert_model_config *c = s->config;
    bool has = false;
    for (size_t l = 0; l < c->layers; l++)
        has |= moert_norm_name(c, l, place) != NULL;
    return has ? of_tokens(s, width) : MOERT_NO_BUFFER;
}

static size_t branch_bytes(const moert_model_sizes *s) {
    return moert_model_has_branch(s->config) ? of_tokens(s, s->config->hidden) : MOERT_NO_BUFFER;
}

#define RESULTS(X, field, place, h)                                                                \
    X(field, "results of sublayers", result_bytes(s, place, h))                                    \
    X(field##_rstd, "scales of norms after sublayers", result_bytes(s, place, 1))
#define ACTIVATIONS(X)                                                                             \
    X(normed, "input of attention", operand_bytes(s))                                              \
    X(rstd, "scales of norms before attention", of_tokens(s, 1))                                   \
    X(middle, "results of attention", of_tokens(s, s->config->hidden))                             \
    RESULTS(X, attended, MOERT_NORM_ATTENTION_RESULT, s->config->hidden)                           \
    RESULTS(X, mlp_out, MOERT_NORM_MLP_RESULT, s->config->hidden)                                  \
    X(post_normed, "input of MLPs", of_tokens(s, s->config->hidden))                               \
    X(post_rstd, "scales of norms before MLPs", of_tokens(s, 1))
#define DENSE(X)                                                                                   \
    X(mlp_v, "v of dense GLUs", glu_bytes(s, moert_glu_v_floats))                                  \
    X(mlp_h, "h of dense GLUs", glu_bytes(s, moert_glu_h_floats))

MOERT_BUFFER_TABLE(moert_run_rows_buffers, moert_run, moert_model_sizes, RUN_ROWS)
MOERT_BUFFER_TABLE(moert_run_batch_buffers, moert_run, moert_model_sizes, RUN_BATCH)
MOERT_BUFFER_TABLE(moert_run_backward_buffers, moert_run, moert_model_sizes, RUN_BACKWARD)
MOERT_BUFFER_TABLE(moert_run_head_buffers, moert_run, moert_model_sizes, RUN_HEAD)
MOERT_BUFFER_TABLE(moert_head_chunk_buffers, moert_head_buffers, moert_model_sizes, HEAD_CHUNK)
MOERT_BUFFER_TABLE(moert_run_layer_buffers, moert_run_layer, moert_model_sizes, LAYER)
MOERT_BUFFER_TABLE(moert_run_moe_buffers, moert_run_layer, moert_model_sizes, MOE)
MOERT_BUFFER_TABLE(moert_activation_buffers, moert_model_activations, moert_model_sizes,
                   ACTIVATIONS)
MOERT_BUFFER_TABLE(moert_dense_buffers, moert_model_activations, moert_model_sizes, DENSE)

size_t moert_model_rows_floats(const moert_model_rows *rows, size_t tokens) {
    size_t floats = 0;
    for (size_t i = 0; i < MOERT_ATTENTION_MOST; i++)
        floats += moert_operand_floats(rows[i].type, tokens * rows[i].width);
    return floats;
}

moert_glu_sizes moert_model_glu_sizes(const moert_model_sizes *s) {
    const moert_model_config *c = s->config;
    return (moert_glu_sizes){.device = s->device,
                             .type = type_of(s),
                             .tokens = s->tokens,
                             .sequences = s->span.count,
                             .hidden = c->hidden,
                             .width = c->dense_intermediate};
}

/* ---- scratch ---- */

/* Floats of scratch that attention needs for tensor cores. */
static size_t attention_floats(const moert_model_sizes *s) {
    const moert_model_config *c = s->config;
    const moert_latent_sizes *l = &c->latent;
    const bool latent = l->kv_rank > 0;
    const moert_attention a = {.sequences = s->span.count,
                               .length = s->length,
                               .heads = c->heads,
                               .kv_heads = latent ? c->heads : c->kv_heads,
                               .head_size = latent ? l->nope + l->rope : c->head_size,
                               .value_size = latent ? l->value : c->head_size,
                               .type = type_of(s)};
    return s->device == NULL
               ? 0
               : moert_ceil_div(moert_attention_scratch_bytes(s->device, &a), sizeof(float));
}

/* Scratch for norms of [rows,width]: the weight's gradient for each sequence, and partial sums. */
static void need_norm(const moert_model_sizes *s, size_t rows, size_t width,
                      size_t floats[MOERT_SCRATCHES]) {
    moert_scratch_need(floats, MOERT_SCRATCH_PARTIAL, s->span.count * width);
    if (s->device != NULL)
        moert_scratch_need(floats, MOERT_SCRATCH_TOKENS,
                           moert_norm_scratch_floats(s->device, s->span.count, rows, width));
}

/* Whether a recipe rounds operands of attention in some layer. */
static bool rounds_attention(const moert_model_sizes *s) {
    bool some = false;
    for (size_t l = 0; l < s->config->layers; l++)
        some |= moert_model_rounds_attention(s->config, l);
    return some && s->tokens > 0;
}

/* Scratch for the operands of a projection that a recipe rounds. */
static void need_rounding(const moert_model_sizes *s, const moert_model_parameter *p,
                          size_t floats[MOERT_SCRATCHES]) {
    const moert_dtype bf16 = MOERT_DTYPE_BF16;
    moert_scratch_need(floats, MOERT_SCRATCH_ATTENTION_X,
                       moert_operand_floats(bf16, s->tokens * p->columns));
    moert_scratch_need(floats, MOERT_SCRATCH_ATTENTION_Y,
                       moert_operand_floats(bf16, s->tokens * p->rows));
    moert_dense_weight_scratch(s->device, p->rows, p->columns, MOERT_PANELS_FORWARD, floats);
}

static void need_attention(const moert_model_sizes *s, size_t floats[MOERT_SCRATCHES]) {
    const moert_attention_shape *a = s->attention;
    moert_scratch_need(floats, MOERT_SCRATCH_PARTIAL, attention_floats(s));
    moert_scratch_need(floats, MOERT_SCRATCH_ROUNDED_X,
                       moert_operand_copy_floats(type_of(s), s->tokens * a->rounded_x));
    moert_scratch_need(floats, MOERT_SCRATCH_ROUNDED_Y,
                       moert_operand_copy_floats(type_of(s), s->tokens * a->rounded_y));
    for (size_t i = 0; i < MOERT_COUNT(a->norm); i++)
        if (a->norm[i].rows > 0)
            need_norm(s, s->tokens * a->norm[i].rows, a->norm[i].width, floats);
    for (size_t i = 0; i < a->parameters; i++) {
        const moert_model_parameter *p = &a->parameter[i];
        if (p->columns > 0)
            moert_scratch_need(
                floats, MOERT_SCRATCH_PARTIAL,
                moert_block_partial_floats(s->device, s->span.count, p->rows, p->columns));
        if (p->rows > 0 && p->columns > 0 && rounds_attention(s))
            need_rounding(s, p, floats);
    }
}

size_t moert_head_rows(const moert_model_config *config, size_t tokens, size_t length) {
    const size_t most = config->memory.loss_chunk;
    return most == 0 || most >= tokens ? tokens : moert_min(most, length);
}

size_t moert_head_sums(moert_span span, size_t direct) {
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    size_t most = 0, depth = 0;
    for (size_t i = 0; i < span.count; i++) {
        most = moert_max(most, depth + 1);
        moert_tree_append(nodes, &depth, (moert_tree_node){span.first + i, 1}, span.total);
    }
    return most - moert_min(most, direct);
}

size_t moert_head_tied_rows(const moert_model_sizes *s) {
    const size_t row_bytes = moert_max(s->span.count, 1) * s->config->hidden * sizeof(float);
    return moert_min(s->config->vocabulary,
                     moert_max(1, moert_block_partial_bytes(s->device) / row_bytes));
}

void moert_model_scratch(const moert_model_sizes *s, size_t floats[MOERT_SCRATCHES]) {
    const moert_model_config *c = s->config;
    need_attention(s, floats);
    need_norm(s, s->tokens, c->hidden, floats);
    /* a loss in chunks (--loss-chunk) sums over sequences with moert_head_sums instead */
    if (s->chunk == s->tokens)
        moert_scratch_need(
            floats, MOERT_SCRATCH_PARTIAL,
            c->tied_embeddings
                ? moert_head_tied_rows(s) * moert_max(s->span.count, 1) * c->hidden
                : moert_block_partial_floats(s->device, s->span.count, c->vocabulary, c->hidden));
    if (moert_moe_layers(c) > 0)
        moert_scratch_need(floats, MOERT_SCRATCH_LOGITS,
                           moert_max(s->span.count * c->router.experts, s->tokens));
}
