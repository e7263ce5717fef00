/* The memory that a rank allocates. Each function names the code whose allocations it adds up. Sums
 * are in floats unless their name says bytes. */
#include "estimate/parts.h"

#include <math.h>

#include "attention/attention.h"
#include "base/config.h"
#include "base/dtype.h"
#include "base/memory.h"
#include "base/tree.h"
#include "layer/block.h"
#include "layer/operand.h"
#include "layer/wire.h"
#include "model/model.h"
#include "nn/optimizer.h"
#include "moert/plan.h"

typedef struct parameters {
    size_t floats, shards; /* floats of blocks, and of this rank's shards of them */
    size_t open;  /* floats of those blocks of layers that are open at once (layer/block.h) */
    size_t parts; /* tensors of the model's files in them */
} parameters;

/* At least the columns of any projection of attention, and their sum within a factor of four. */
static double widest_heads(const moert_model_config *c) {
    const moert_latent_sizes *s = &c->latent;
    return (double)(c->heads + c->kv_heads) * (double)c->head_size +
           (double)c->heads * (double)(2 * s->nope + s->rope + 2 * s->value) +
           (double)(s->q_rank + s->kv_rank);
}

static moert_status check(const moert_memory_setting *setting) {
    const moert_model_config *c = setting->config;
    MOERT_TRY(moert_model_config_check_model(c));
    if (c->router.experts < setting->ep)
        return MOERT_FAIL(ERROR_USAGE, "%zu experts cannot be spread over %zu ranks",
                          c->router.experts, setting->ep);
    MOERT_TRY(moert_model_config_check_length(c, setting->length));
    /* all sums of bytes must fit 64 bits */
    const double h = (double)c->hidden, heads = widest_heads(c);
    const double widest =
        2.0 * (double)moert_max(moert_max(c->intermediate, c->shared_intermediate),
                                c->dense_intermediate) +
        h + heads;
    const double tokens = (double)setting->batch * (double)setting->length;
    const double slots = (double)(c->router.topk + 1) + (double)c->router.experts;
    const double layer =
        3.0 * widest * h * (double)(c->router.experts + 1) + tokens * widest * slots;
    const double outer = (2.0 * h + tokens) * (double)c->vocabulary;
    const double bytes = 64.0 * ((double)(c->layers + 1) * layer + outer);
    if (bytes >= 9.2e18)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "such a model and batch may take %.1e bytes; 9.2e18 can be counted",
                          bytes);
    return MOERT_OK;
}

static moert_mesh_place place_of(const moert_memory_setting *setting, size_t rank) {
    const size_t ep = setting->ep;
    return setting->places != NULL ? setting->places[rank]
                                   : (moert_mesh_place){rank / ep, rank % ep, rank / ep};
}

/* The sequences of all ranks of a group. */
static size_t count_sequences(const moert_memory_setting *setting, size_t group) {
    size_t first, count, sum = 0;
    for (size_t r = 0; r < setting->ranks; r++) {
        moert_model_partition(setting->batch, r, setting->ranks, &first, &count);
        sum += place_of(setting, r).group == group ? count : 0;
    }
    return sum;
}

static void set_peaks(moert_memory_shape *s, const moert_row_peak *peaks) {
    s->peaks = peaks;
    s->peak = (moert_row_peak){0};
    for (size_t l = 0; l < s->moe_layers; l++)
        moert_row_peak_add(&s->peak, peaks[l].rows, peaks[l].largest);
}

/* The rows of a rank whose share is config->memory.imbalance times the balanced one. */
static size_t uneven(const moert_model_config *c, size_t balanced_rows) {
    return (size_t)ceil((double)balanced_rows * fmax(c->memory.imbalance, 1.0));
}

/* `tokens` are those of the rank's group, `held` its experts. */
static size_t bound_rows(const moert_memory_setting *setting, size_t tokens, size_t held) {
    size_t most = tokens;
    for (size_t g = 0; setting->exact && g < setting->ranks / setting->ep; g++)
        most = moert_max(most, count_sequences(setting, g) * setting->length);
    return moert_expert_map_bound(setting->config->router.topk, held,
                                  setting->exact ? setting->batch * setting->length : tokens, most);
}

static moert_memory_shape make_shape(const moert_memory_setting *setting, size_t rank) {
    const moert_model_config *c = setting->config;
    const size_t experts = c->router.experts, topk = c->router.topk;
    const moert_mesh_place place = place_of(setting, rank);
    const size_t tokens = count_sequences(setting, place.group) * setting->length;
    moert_memory_shape s = {.config = c,
                            .aux_form = setting->aux_form,
                            .options = moert_layer_options_of(c),
                            .total_sequences = setting->batch,
                            .length = setting->length,
                            .partial_floats =
                                moert_block_partial_bytes(setting->device) / sizeof(float)};
    size_t first, own, most;
    moert_plan_experts(experts, setting->ep, place.member, &first, &own);
    moert_plan_experts(experts, setting->ep, 0, &first, &most);
    moert_model_partition(setting->batch, rank, setting->ranks, &s.first_sequence, &s.sequences);
    s.tokens = s.sequences * setting->length;
    s.experts = c->expert_slots > 0 ? c->expert_slots : own;
    s.chain = setting->exact ? setting->ranks / setting->ep : setting->clones ? setting->ep : 1;
    s.peak = (moert_row_peak){uneven(c, moert_ceil_div(tokens * topk * own, experts)),
                              uneven(c, moert_ceil_div(tokens * topk * most, experts))};
    s.capacity_rows = bound_rows(setting, tokens, most);
    s.peak.rows = moert_min(s.peak.rows, tokens * moert_min(topk, own));
    s.peak.largest = moert_min(s.peak.largest, s.capacity_rows);
    s.attention = moert_attention_shape_of(c, setting->device);
    for (size_t l = 0; l < c->layers; l++)
        s.moe_layers += moert_layer_is_moe(c, l);
    s.dense_layers = c->layers - s.moe_layers;
    if (setting->peaks != NULL)
        set_peaks(&s, setting->peaks);
    s.dense = s.dense_layers > 0 ? c->dense_intermediate : 0;
    s.dense_v_type =
        moert_operand_between(setting->device, moert_operand_type(c->dense), 1, c->hidden, s.dense);
    s.choices = moert_layer_choose(&s.options, setting->device, s.experts);
    s.shared_v_type = moert_operand_between(setting->device, moert_operand_type(c->dense), 1,
                                            c->hidden, c->shared_intermediate);
    return s;
}

/* Adds `count` blocks, of which `open` are open at once, and the shard of rank `rank` of `ranks` in
 * each. */
static void add_blocks(parameters *sum, size_t count, size_t open, const moert_block_shape *shape,
                       size_t ranks, size_t rank) {
    sum->floats += count * moert_block_border(shape, 1, 1);
    sum->shards += count * (moert_block_border(shape, ranks, rank + 1) -
                            moert_block_border(shape, ranks, rank));
    sum->open += open * moert_block_border(shape, 1, 1);
    for (size_t i = 0; i < shape->count; i++)
        sum->parts += count * (shape->parts != NULL ? shape->parts[i] : 1);
}

/* How many layers of a kind have open blocks at once: the backward of a layer begins before that
 * of the layer above it has ended. */
static size_t open_layers(const moert_model_config *c, bool moe) {
    size_t most = 0;
    for (size_t l = 0; l < c->layers; l++)
        if (moert_layer_is_moe(c, l) == moe)
            most = moert_max(most, l > 0 && moert_layer_is_moe(c, l - 1) == moe ? 2 : 1);
    return most;
}

/* The blocks that create_parts and create_attention of model.c, create of mlp_dense.c, and
 * create_parts of layer.c allocate: of the model's outside, the layers and the experts. */
static void count_parameters(const moert_memory_setting *setting, size_t rank,
                             const moert_memory_shape *s, parameters *outside,
                             parameters *replicated, parameters *owned) {
    const moert_model_config *c = s->config;
    const moert_layer_shapes layer = moert_layer_shapes_of(&s->options, s->experts);
    const size_t h = c->hidden;
    const size_t ranks = setting->ranks, replicas = setting->exact ? 1 : ranks / setting->ep,
                 replica = setting->exact ? 0 : place_of(setting, rank).replica;
    const size_t table = c->vocabulary * h;
    const size_t outer[] = {table, h, c->tied_embeddings ? 0 : table};
    const size_t dense[] = {2 * s->dense * h, h * s->dense}, parts[] = {2, 1};
    size_t attention[MOERT_ATTENTION_MOST + 2];
    const size_t count = moert_model_replicated_shape(c, &s->attention, attention);
    *outside = *replicated = *owned = (parameters){.floats = 0};
    add_blocks(outside, 1, 0, &(moert_block_shape){outer, MOERT_COUNT(outer), NULL}, ranks, rank);
    add_blocks(replicated, c->layers, moert_min(c->layers, 2),
               &(moert_block_shape){attention, count, NULL}, ranks, rank);
    add_blocks(replicated, s->dense_layers, open_layers(c, false),
               &(moert_block_shape){dense, MOERT_COUNT(dense), parts}, ranks, rank);
    for (int b = 0; b < MOERT_LAYER_BLOCKS; b++)
        add_blocks(b == 0 ? replicated : owned, s->moe_layers, open_layers(c, true),
                   &(moert_block_shape){layer.elements[b], layer.count[b], layer.parts[b]},
                   b == 0 ? ranks : replicas, b == 0 ? rank : replica);
}

/* Bytes of the gradients; block_bf16.c keeps those of layers in bf16. */
static size_t gradient_bytes(const moert_model_config *c, const parameters *outside,
                             const parameters *replicated, const parameters *owned) {
    const size_t layers = replicated->floats + owned->floats;
    return outside->floats * sizeof(float) +
           (c->memory.gradients == MOERT_STATE_BF16
                ? layers * sizeof(uint16_t) + (replicated->open + owned->open) * sizeof(float)
                : layers * sizeof(float));
}

/* Bytes of the moments, and of the keys of bf16 ones. */
static size_t moment_bytes(const moert_model_config *c, size_t shards, size_t parts) {
    const size_t moments = moert_optimizers[c->memory.optimizer].moments;
    return c->memory.moments == MOERT_STATE_BF16
               ? moments * shards * sizeof(uint16_t) + parts * sizeof(uint64_t)
               : moments * shards * sizeof(float);
}

/* moert_model_reserve_rows */
static size_t count_rows(const moert_model_rows *rows, size_t tokens) {
    size_t floats = 0;
    for (size_t i = 0; i < MOERT_ATTENTION_MOST; i++)
        floats += moert_operand_floats(rows[i].type, tokens * rows[i].width);
    return floats;
}

/* The activations of a layer's attention, without its result: reserve_layer in model/forward.c. */
static size_t attention_bytes(const moert_memory_shape *s) {
    const moert_model_config *c = s->config;
    const size_t t = s->tokens;
    return sizeof(float) * (moert_operand_floats(moert_operand_type(c->dense), t * c->hidden) +
                            t * (2 * c->hidden + 2) + count_rows(s->attention.kept, t));
}

/* The activations of a dense GLU: model/mlp_dense.c. */
static size_t dense_bytes(const moert_memory_shape *s) {
    return sizeof(float) *
           (moert_operand_floats(s->dense_v_type, s->tokens * 2 * s->dense) +
            moert_operand_floats(moert_operand_type(s->config->dense), s->tokens * s->dense));
}

/* v and h of the experts or of the shared expert: moert_pass_hidden. */
typedef struct hidden_floats {
    size_t v, h;
} hidden_floats;

static hidden_floats experts_hidden(const moert_memory_shape *s, size_t rows) {
    const size_t n = rows * s->config->intermediate;
    return (hidden_floats){moert_operand_floats(s->choices.v, 2 * n),
                           moert_operand_floats(s->choices.h, n)};
}

static hidden_floats shared_hidden(const moert_memory_shape *s) {
    const size_t n = s->tokens * s->config->shared_intermediate;
    return (hidden_floats){moert_operand_floats(s->shared_v_type, 2 * n),
                           moert_operand_floats(moert_operand_type(s->config->dense), n)};
}

static bool recomputes_experts(const moert_memory_shape *s) {
    return s->config->memory.recompute == MOERT_RECOMPUTE_EXPERTS;
}

/* The activations of a MoE layer with so many rows: layer/forward.c. */
static size_t moe_bytes(const moert_memory_shape *s, size_t rows, bool staged) {
    const moert_model_config *c = s->config;
    const size_t t = s->tokens, experts = c->router.experts, topk = c->router.topk;
    const bool keeps = !recomputes_experts(s);
    const hidden_floats own = experts_hidden(s, rows), shared = shared_hidden(s);
    /* the plan on the device */
    size_t floats =
        moert_round_up(s->experts, 4) + 4 * s->chain * experts + (staged ? 4 : 2) * t * topk;
    const size_t with_growth[] = {
        t * experts,
        t * experts,
        t * topk,
        t * topk,
        t,
        keeps ? own.v : 0,
        keeps ? own.h : 0,
        keeps ? shared.v : 0,
        keeps ? shared.h : 0,
        c->shared_gate ? t : 0, /* logits, scores, index, weight, lse of the gate */
        c->shared_gate ? t : 0,
        c->shared_gate ? t : 0,
        c->shared_gate ? t : 0,
        c->shared_gate ? t : 0,
    };
    size_t bytes = floats * sizeof(float);
    for (size_t i = 0; i < MOERT_COUNT(with_growth); i++)
        bytes += moert_with_room(with_growth[i] * sizeof(float)); /* moert_layer_activation */
    return bytes;
}

static size_t passes_bytes(const moert_memory_shape *s, bool staged) {
    size_t bytes = 0;
    for (size_t i = 0; i < moert_memory_kept_layers(s, s->moe_layers); i++)
        bytes += moe_bytes(s, moert_memory_pass_peak(s, i).rows, staged);
    return bytes;
}

/* The results of all layers, the inputs of the losses, and the gradients of the auxiliary loss. */
static size_t results_bytes(const moert_memory_shape *s) {
    const size_t t = s->tokens, experts = s->config->router.experts;
    const size_t aux = s->aux_form == MOERT_AUX_SEQUENCE ? moert_max(s->sequences, 1) : 1;
    return sizeof(float) * (s->config->layers * t * s->config->hidden + t +
                            s->moe_layers * (2 * t + (2 * s->sequences + aux) * experts));
}

static size_t head_rows(const moert_memory_shape *s) {
    return moert_head_rows(s->config, s->tokens, s->length);
}

/* Whether logits exist in chunks. */
static bool is_chunked(const moert_memory_shape *s) {
    return head_rows(s) < s->tokens;
}

/* The buffers of model/head.c, but final_normed. `direct`: see moert_head_sums. */
static size_t head_bytes(const moert_memory_shape *s, size_t direct) {
    const moert_model_config *c = s->config;
    const size_t rows = head_rows(s), h = c->hidden;
    const moert_span span = {s->first_sequence, s->sequences, s->total_sequences};
    const size_t results = sizeof(float) * (s->tokens + rows * c->vocabulary);
    if (!is_chunked(s))
        return results;
    const size_t ends = s->length % rows == 0 ? 1 : 2;
    return results + rows * h * moert_dtype_bits(moert_operand_type(c->dense)) / 8 +
           sizeof(float) *
               (rows * (h + 2) + ends + moert_head_sums(span, direct) * c->vocabulary * h);
}

/* The partials [sequences, some of n rows, k] that moert_block_dense_gradient takes at once. */
static size_t dense_partial(const moert_memory_shape *s, size_t n, size_t k) {
    const size_t row = s->sequences * k;
    return row * moert_min(n, moert_max(1, s->partial_floats / moert_max(row, 1)));
}

/* What attention computes for tensor cores: gqa.c, mla.c. */
static size_t attention_scratch(const moert_memory_setting *setting, const moert_memory_shape *s) {
    const moert_model_config *c = s->config;
    const moert_latent_sizes *l = &c->latent;
    const bool latent = l->kv_rank > 0;
    const moert_attention a = {.sequences = s->sequences,
                               .length = s->length,
                               .heads = c->heads,
                               .kv_heads = latent ? c->heads : c->kv_heads,
                               .head_size = latent ? l->nope + l->rope : c->head_size,
                               .value_size = latent ? l->value : c->head_size,
                               .type = moert_operand_type(c->dense)};
    const size_t bytes =
        setting->device != NULL ? moert_attention_scratch_bytes(setting->device, &a) : 0;
    return moert_ceil_div(bytes, sizeof(float));
}

/* The largest MOERT_SCRATCH_PARTIAL that the model and layer/backward.c reserve. */
static size_t largest_partial(const moert_memory_shape *s) {
    const moert_model_config *c = s->config;
    const size_t h = c->hidden, shared = c->shared_intermediate;
    const size_t head = is_chunked(s) ? 0 : c->vocabulary;
    const size_t dense[][2] = {{head, h},         {2 * shared, h},
                               {h, shared},       {c->router.experts, h},
                               {2 * s->dense, h}, {h, s->dense}};
    const size_t row = moert_max(s->sequences, 1) * h; /* partials of a tied embedding's row */
    size_t most = s->sequences * h;                    /* partials of norms */
    if (c->tied_embeddings && !is_chunked(s))
        most = row * moert_min(c->vocabulary, moert_max(1, s->partial_floats / row));
    const size_t sums = s->aux_form == MOERT_AUX_SEQUENCE ? 2 : 1;
    const size_t inputs =
        s->tokens + s->moe_layers * (s->tokens + sums * s->sequences * c->router.experts);
    most = moert_max(most, inputs); /* inputs of the losses: sum_everything of model/losses.c */
    for (size_t i = 0; i < MOERT_COUNT(dense); i++)
        most = moert_max(most, dense_partial(s, dense[i][0], dense[i][1]));
    for (size_t i = 0; i < s->attention.parameters; i++) /* vectors: norms */
        most = moert_max(most, s->attention.parameter[i].columns > 0
                                   ? dense_partial(s, s->attention.parameter[i].rows,
                                                   s->attention.parameter[i].columns)
                                   : s->sequences * s->attention.parameter[i].rows);
    return most;
}

/* The mesh's scratch buffers, and the buffers of moert_model_backward. */
static size_t count_scratch(const moert_memory_setting *setting, const moert_memory_shape *s) {
    const moert_model_config *c = s->config;
    const size_t t = s->tokens;
    const moert_device *device = setting->device;
    /* MOERT_SCRATCH_TOKENS: the shared expert's result, or the norms' partial sums */
    size_t most = c->shared_intermediate > 0 ? t * c->hidden : 0;
    if (device != NULL)
        most = moert_max(most, moert_norm_scratch_floats(device, s->sequences, t, c->hidden));
    for (size_t i = 0; device != NULL && i < MOERT_COUNT(s->attention.norm); i++)
        if (s->attention.norm[i].rows > 0)
            most = moert_max(most, moert_norm_scratch_floats(device, s->sequences,
                                                             t * s->attention.norm[i].rows,
                                                             s->attention.norm[i].width));
    size_t floats = moert_max(largest_partial(s), attention_scratch(setting, s)) + most +
                    t * (c->router.experts + c->router.topk);
    floats +=
        moert_max(moert_operand_floats(s->choices.v, s->peak.rows * c->intermediate),
                  moert_max(moert_operand_floats(s->shared_v_type, t * c->shared_intermediate),
                            moert_operand_floats(s->dense_v_type, t * s->dense)));
    if (recomputes_experts(s)) {
        const hidden_floats own = experts_hidden(s, s->peak.rows), shared = shared_hidden(s);
        floats += moert_max(own.v, shared.v) + moert_max(own.h, shared.h);
    }
    floats += t * 2 * c->hidden + count_rows(s->attention.scratch, t);
    return floats + moert_memory_rounding(setting, s);
}

/* ---- the second copy of a layer for --verify ---- */

/* model/audit.h and train/cross_check.h; `nodes` as in moert_memory_estimate. */
static size_t check_bytes(const moert_memory_setting *setting, const moert_memory_shape *s,
                          size_t nodes) {
    const moert_model_config *c = s->config;
    moert_memory_shape most = *s;
    moert_memory_setting once = *setting; /* each weight serves one forward and one dgrad */
    size_t attention[MOERT_ATTENTION_MOST + 2], floats = 0;
    most.experts = moert_max(c->expert_slots, moert_ceil_div(c->router.experts, setting->ep));
    once.micro_batches = 1;
    const moert_layer_shapes layer = moert_layer_shapes_of(&s->options, most.experts);
    const size_t count = moert_model_replicated_shape(c, &s->attention, attention);
    const size_t dense[] = {2 * s->dense * c->hidden, c->hidden * s->dense}, parts[] = {2, 1};
    parameters replicated = {.floats = 0}, owned = {.floats = 0};
    add_blocks(&replicated, 1, 0, &(moert_block_shape){attention, count, NULL}, 1, 0);
    if (s->dense_layers > 0)
        add_blocks(&replicated, 1, 0, &(moert_block_shape){dense, MOERT_COUNT(dense), parts}, 1, 0);
    for (int b = 0; b < MOERT_LAYER_BLOCKS && s->moe_layers > 0; b++)
        add_blocks(b == 0 ? &replicated : &owned, 1, 0,
                   &(moert_block_shape){layer.elements[b], layer.count[b], layer.parts[b]}, 1, 0);
    floats = (2 + nodes) * replicated.floats + 2 * owned.floats;
    if (setting->micro_batches > 1)
        floats += owned.floats; /* gradients of the experts before a backward */
    /* inputs of both runs, and the second one's result, d and dn */
    floats += 8 * s->tokens * c->hidden + count_rows(s->attention.scratch, s->tokens);
    floats += s->sequences + /* ends, and the gradient of the auxiliary loss */
              (s->aux_form == MOERT_AUX_SEQUENCE ? s->sequences : 1) * c->router.experts;
    if (c->dense != MOERT_PRECISION_F32)
        floats += moert_operand_floats(moert_operand_type(c->dense), s->tokens * c->hidden);
    return floats * sizeof(float) + attention_bytes(s) +
           (s->dense_layers > 0 ? dense_bytes(s) : 0) +
           moert_memory_layer_copies(&once, &most, s->moe_layers > 0, s->dense_layers > 0);
}

/* ---- experts that move, and clones ---- */

/* The most experts of this rank whose chain has other members. */
static size_t count_links(const moert_memory_setting *setting, const moert_memory_shape *s) {
    const size_t share = moert_ceil_div(s->config->router.experts, setting->ep);
    if (setting->exact)
        return s->experts;
    return setting->clones ? moert_min(s->experts, (s->experts - share) * setting->ep) : 0;
}

/* Host copies of the weights and moments of all experts of a layer, for those that leave and for
 * those that arrive (train/move.c). Also, for each link, an expert's weights to send and to receive
 * (layer/clones.c). */
static size_t move_bytes(const moert_memory_setting *setting, const moert_memory_shape *s) {
    const moert_layer_shapes layer = moert_layer_shapes_of(&s->options, s->experts);
    size_t weights = 0;
    for (int b = 1; b < MOERT_LAYER_BLOCKS; b++)
        weights += layer.elements[b][0] + layer.elements[b][1];
    const size_t values = 1 + moert_optimizers[s->config->memory.optimizer].moments;
    const size_t moved = setting->moves ? values * weights : 0,
                 handed = count_links(setting, s) * (weights / moert_max(s->experts, 1));
    return 2 * (moved + handed) * sizeof(float);
}

size_t moert_memory_rows(const moert_memory_setting *setting, size_t rank) {
    return make_shape(setting, rank).peak.rows;
}

moert_status moert_memory_estimate(const moert_memory_setting *setting, size_t rank,
                                   moert_memory *memory) {
    MOERT_TRY(check(setting));
    const moert_memory_shape s = make_shape(setting, rank);
    const bool staged = setting->engine == MOERT_EXCHANGE_STAGED;
    /* moert_block_begin; a single rank needs no nodes */
    const moert_span span = {s.first_sequence, s.sequences, s.total_sequences};
    moert_tree_node list[MOERT_TREE_MAX_NODES];
    const size_t count = moert_max(moert_tree_nodes(span, list), 1);
    const size_t nodes = setting->ranks == 1 && count == 1 ? 0 : count;
    parameters outside, replicated, owned;
    count_parameters(setting, rank, &s, &outside, &replicated, &owned);
    const moert_memory_exchange exchange = moert_memory_exchange_of(setting, &s);
    /* buffers of take_batch and moert_model_forward of model/forward.c */
    const moert_model_config *c = s.config;
    const size_t per_token = 3 + (c->tied_embeddings ? 0 : 2) + c->hidden;
    const bool adds = nodes == 0 && setting->micro_batches > 1; /* moert_block_nodes */
    const moert_rope_scheme rope =
        moert_model_rope_scheme(c); /* columns: moert_rope_table_create */
    const size_t columns = rope.width * (rope.interleaved ? 2 : 1);
    const size_t outer = s.sequences + s.length * columns + s.tokens * per_token +
                         moert_operand_floats(moert_operand_type(c->dense), s.tokens * c->hidden);
    const size_t shards = outside.shards + replicated.shards + owned.shards;
    *memory = (moert_memory){
        .weights = (outside.floats + replicated.floats + owned.floats) * sizeof(float),
        .gradients = gradient_bytes(c, &outside, &replicated, &owned),
        .moments = moment_bytes(c, shards, outside.parts + replicated.parts + owned.parts),
        .copies = moert_memory_copies(setting, &s),
        .sums = nodes * (outside.floats + replicated.floats) * sizeof(float),
        .activations = moert_memory_kept_layers(&s, c->layers) * attention_bytes(&s) +
                       passes_bytes(&s, staged) +
                       moert_memory_kept_layers(&s, s.dense_layers) * dense_bytes(&s) +
                       results_bytes(&s) + outer * sizeof(float) + head_bytes(&s, adds ? 0 : count),
        .scratch = count_scratch(setting, &s) * sizeof(float),
        .staging = exchange.staging * sizeof(float),
        .moves = s.moe_layers > 0 ? move_bytes(setting, &s) : 0,
        .saves = setting->saves_beside /* moert_saver_floats */
                     ? (1 + moert_optimizers[c->memory.optimizer].moments) * shards * sizeof(float)
                     : 0,
        .checks = setting->verifies ? check_bytes(setting, &s, nodes) : 0,
        .windows = exchange.used * sizeof(float),
        .reserved = exchange.reserved * sizeof(float),
    };
    memory->total = memory->weights + memory->gradients + memory->moments + memory->copies +
                    memory->sums + memory->activations + memory->scratch + memory->staging +
                    memory->moves + memory->saves + memory->checks + exchange.taken * sizeof(float);
    return MOERT_OK;
}
