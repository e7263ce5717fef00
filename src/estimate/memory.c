/* Adds up the memory that a rank allocates, from the buffer tables of the modules that own it. */
#include "estimate/memory.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/tree.h"
#include "estimate/parts.h"
#include "layer/dense_glu.h"
#include "layer/rounding.h"
#include "model/layer_files.h"
#include "moert/plan.h"
#include "nn/optimizer.h"

/* ---- settings ---- */

/* A number of columns that no projection of attention exceeds. The columns of all projections
 * together are within a factor of four of this number. */
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
        return MOERT_FAIL(
            ERROR_UNSUPPORTED,
            "this model and batch may need %.1e bytes of memory, above the limit of 9.2e18", bytes);
    return MOERT_OK;
}

static moert_mesh_place place_of(const moert_memory_setting *setting, size_t rank) {
    const size_t ep = setting->ep;
    return setting->places != NULL ? setting->places[rank]
                                   : (moert_mesh_place){rank / ep, rank % ep, rank / ep};
}

/* The number of sequences of all ranks of an EP group. */
static size_t count_sequences(const moert_memory_setting *setting, size_t group) {
    size_t first, count, sum = 0;
    for (size_t r = 0; r < setting->ranks; r++) {
        moert_model_partition(setting->batch, r, setting->ranks, &first, &count);
        sum += place_of(setting, r).group == group ? count : 0;
    }
    return sum;
}

/* The largest number of rows M that any routing can give a rank. `tokens`: number of tokens of the
 * rank's EP group. `held`: number of experts of the rank. */
static size_t bound_rows(const moert_memory_setting *setting, size_t tokens, size_t held) {
    const moert_layer_options options = moert_layer_options_of(setting->config);
    size_t most = tokens;
    for (size_t g = 0; setting->exact && g < setting->ranks / setting->ep; g++)
        most = moert_max(most, count_sequences(setting, g) * setting->length);
    return moert_expert_map_bound(setting->config->router.topk, held,
                                  setting->exact ? setting->batch * setting->length : tokens, most,
                                  moert_layer_cut_rows(&options));
}

/* The rows of a rank that holds `held` of the experts: its share of balanced routing, times
 * config->memory.imbalance. */
static size_t expected_rows(const moert_model_config *c, size_t tokens, size_t held) {
    const size_t balanced = moert_ceil_div(tokens * c->router.topk * held, c->router.experts);
    return (size_t)ceil((double)balanced * fmax(c->memory.imbalance, 1.0));
}

static void set_rows(const moert_memory_setting *setting, size_t rank, moert_memory_shape *s) {
    const moert_model_config *c = setting->config;
    const moert_mesh_place place = place_of(setting, rank);
    const size_t tokens = count_sequences(setting, place.group) * setting->length;
    size_t first, own, most;
    moert_plan_experts(c->router.experts, setting->ep, place.member, &first, &own);
    moert_plan_experts(c->router.experts, setting->ep, 0, &first, &most);
    s->layer.local = c->expert_slots > 0 ? c->expert_slots : own;
    s->capacity_rows = bound_rows(setting, tokens, most);
    s->peak.rows =
        moert_min(expected_rows(c, tokens, own), tokens * moert_min(c->router.topk, own));
    s->peak.largest = moert_min(expected_rows(c, tokens, most), s->capacity_rows);
    if (setting->peaks != NULL)
        s->peak = (moert_row_peak){0};
    for (size_t l = 0; setting->peaks != NULL && l < s->moe_layers; l++)
        moert_row_peak_add(&s->peak, setting->peaks[l].rows, setting->peaks[l].largest);
    s->layer.rows = s->peak.rows;
}

static void make_shape(const moert_memory_setting *setting, size_t rank, moert_memory_shape *s) {
    const moert_model_config *c = setting->config;
    *s = (moert_memory_shape){
        .setting = setting,
        .options = moert_layer_options_of(c),
        .attention = moert_attention_shape_of(c, setting->device),
        .chain = setting->exact    ? setting->ranks / setting->ep
                 : setting->clones ? setting->ep
                                   : 1,
        .model = {.config = c,
                  .attention = &s->attention,
                  .device = setting->device,
                  .layers = c->layers,
                  .length = setting->length,
                  .span.total = setting->batch,
                  .aux_form = setting->aux_form},
        .layer = {.options = &s->options, .choices = &s->choices, .device = setting->device}};
    s->moe_layers = moert_moe_layers(c);
    s->dense_layers = c->layers - s->moe_layers;
    moert_span *span = &s->model.span;
    moert_model_partition(setting->batch, rank, setting->ranks, &span->first, &span->count);
    s->model.tokens = s->layer.tokens = span->count * setting->length;
    s->layer.sequences = span->count;
    s->model.chunk = moert_head_rows(c, s->model.tokens, setting->length);
    set_rows(setting, rank, s);
    s->choices = moert_layer_choose(&s->options, setting->device, s->layer.local);
    s->layer.casts = s->choices.casts;
    s->layer.fp8 = s->choices.fp8;
    s->layer.given = c->dense != MOERT_PRECISION_F32;
}

size_t moert_memory_rows(const moert_memory_setting *setting, size_t rank) {
    moert_memory_shape s;
    make_shape(setting, rank, &s);
    return s.peak.rows;
}

/* ---- sums ---- */

#define ADD MOERT_MEMORY_ADD

/* Adds each buffer of a table to the activations, `count` times, with room to grow up to `largest`
 * bytes. */
static void add_growing(moert_memory *memory, moert_buffer_table *table, const void *sizes,
                        size_t count, size_t largest) {
    moert_buffer_row row[MOERT_BUFFER_TABLE_ROWS];
    const size_t rows = table(sizes, row);
    for (size_t i = 0; i < rows; i++)
        if (row[i].bytes != MOERT_NO_BUFFER)
            ADD(memory, activations, row[i].name, count * moert_buffer_room(row[i].bytes, largest));
}

static void add_table(moert_memory *memory, moert_buffer_table *table, const void *sizes,
                      size_t count) {
    add_growing(memory, table, sizes, count, 0);
}

/* ---- blocks ---- */

/* The blocks of one kind. */
typedef struct block_kind {
    const char *name;
    const moert_block_shape *shape;
    size_t count, open;       /* number of blocks; the most blocks that are open at one time
                                 (moert_block_open) */
    size_t holders, position; /* number of ranks that hold shards of a block; this rank's position
                                 among these ranks */
    bool replicated;
} block_kind;

/* The largest number of layers of a kind with open blocks (moert_block_open) at one time. Two
 * neighbouring layers have open blocks together: the backward of a layer begins before the backward
 * of the layer above has ended. */
static size_t open_layers(const moert_model_config *c, bool moe) {
    size_t most = 0;
    for (size_t l = 0; l < c->layers; l++)
        if (moert_layer_is_moe(c, l) == moe)
            most = moert_max(most, l > 0 && moert_layer_is_moe(c, l - 1) == moe ? 2 : 1);
    return most;
}

static block_kind kind_of(const moert_memory_shape *s, size_t rank,
                          const moert_model_shapes *shapes, size_t kind) {
    const moert_memory_setting *setting = s->setting;
    const moert_model_config *c = setting->config;
    const bool owned = kind > MOERT_MODEL_MOE, moe = kind >= MOERT_MODEL_MOE;
    block_kind k = {
        moert_model_block_names[kind], &shapes->of[kind], 1, 0, setting->ranks, rank, !owned};
    if (owned) {
        k.holders = setting->exact ? 1 : setting->ranks / setting->ep;
        k.position = setting->exact ? 0 : place_of(setting, rank).replica;
    }
    if (kind == MOERT_MODEL_OUTER)
        return k;
    if (kind == MOERT_MODEL_ATTENTION || kind == MOERT_MODEL_DENSE_ATTENTION) {
        k.count = moert_model_attention_count(c, kind);
        k.open = moert_norms_are_alike(c) ? moert_min(k.count, 2)
                                          : open_layers(c, kind == MOERT_MODEL_ATTENTION);
        return k;
    }
    k.count = moe ? s->moe_layers : s->dense_layers;
    k.open = open_layers(c, moe);
    return k;
}

static size_t floats_of(const block_kind *kind) {
    return moert_block_border(kind->shape, 1, 1);
}

/* This rank's shard of each block of a kind. */
static size_t shard_of(const block_kind *kind) {
    return moert_block_border(kind->shape, kind->holders, kind->position + 1) -
           moert_block_border(kind->shape, kind->holders, kind->position);
}

/* Adds the weights of a kind of blocks, with their gradients, moments and sums. If gradients are
 * bf16, block_bf16.c keeps the gradients of all blocks of layers. Moments in bf16 also need keys
 * for their random bits. If checkpoints are written while training goes on, there is a host copy of
 * the shards. */
static void add_kind(const moert_memory_shape *s, const block_kind *kind, bool outside,
                     size_t nodes, moert_memory *memory) {
    const moert_memory_choice *choice = &s->setting->config->memory;
    const size_t moments = moert_optimizers[choice->optimizer].moments, n = kind->count,
                 floats = n * floats_of(kind), shards = n * shard_of(kind);
    const bool kept = choice->gradients == MOERT_STATE_BF16 && !outside,
               rounded = choice->moments == MOERT_STATE_BF16;
    size_t parts = 0;
    for (size_t i = 0; i < kind->shape->count; i++)
        parts += n * (kind->shape->parts != NULL ? kind->shape->parts[i] : 1);
    ADD(memory, weights, kind->name, floats * sizeof(float));
    ADD(memory, gradients, kind->name,
        kept ? floats * sizeof(uint16_t) + kind->open * floats_of(kind) * sizeof(float)
             : floats * sizeof(float));
    ADD(memory, moments, kind->name,
        rounded ? moments * shards * sizeof(uint16_t) + parts * sizeof(uint64_t)
                : moments * shards * sizeof(float));
    if (kind->replicated)
        ADD(memory, sums, kind->name, nodes * floats * sizeof(float));
    if (s->setting->saves_beside) /* moert_saver_floats */
        ADD(memory, saves, kind->name, (1 + moments) * shards * sizeof(float));
}

static void add_copies(const moert_memory_shape *s, moert_memory *memory) {
    const size_t times = s->setting->micro_batches;
    const moert_recipe *recipe = &s->setting->config->recipe;
    moert_layer_sizes layer = s->layer;
    for (size_t l = 0; l < s->moe_layers; l++) {
        layer.rows = moert_memory_pass_peak(s, l).rows;
        ADD(memory, copies, "experts", moert_copies_of_experts(&layer, times));
        ADD(memory, copies, "routers and shared experts",
            moert_copies_of_router(&layer, times,
                                   moert_recipe_keeps_bf16(recipe, l, s->moe_layers)));
    }
    for (size_t l = 0; l < s->model.layers; l++)
        ADD(memory, copies, "attention", moert_copies_of_attention(&s->model, l, times));
    ADD(memory, copies, "dense GLUs", s->dense_layers * moert_copies_of_dense(&s->model, times));
    ADD(memory, copies, "head", moert_copies_of_head(&s->model, times));
}

/* ---- activations ---- */

/* The largest number of slots of any rank. With --verify another rank repeats the work of that
 * rank. */
static size_t most_experts(const moert_memory_shape *s) {
    const moert_model_config *c = s->setting->config;
    return moert_max(c->expert_slots, moert_ceil_div(c->router.experts, s->setting->ep));
}

/* The device buffers of a plan, and the activations of a MoE layer with `rows` rows. */
static void add_pass(const moert_memory_shape *s, size_t rows, moert_memory *memory) {
    const moert_plan_sizes plan = {most_experts(s), s->chain * s->options.router.experts,
                                   s->layer.tokens * s->options.router.topk,
                                   moert_exchange_packs(s->setting->engine)};
    const size_t largest = s->setting->largest_bytes;
    moert_layer_sizes sizes = s->layer;
    sizes.rows = rows;
    add_table(memory, moert_exchange_plan_buffers, &plan, 1);
    add_growing(memory, moert_pass_routing_buffers, &sizes, 1, largest);
    add_growing(memory, moert_pass_hidden_buffers, &sizes, 1, largest);
}

/* The buffers of the head; `direct`: see moert_head_sums. */
static void add_head(const moert_memory_shape *s, size_t direct, moert_memory *memory) {
    const moert_model_sizes *m = &s->model;
    const size_t table = m->config->vocabulary * m->config->hidden * sizeof(float);
    add_table(memory, moert_run_head_buffers, m, 1);
    if (m->chunk == m->tokens)
        return;
    add_table(memory, moert_head_chunk_buffers, m, 1);
    ADD(memory, activations, "ends of chunks",
        (m->length % m->chunk == 0 ? 1 : 2) * sizeof(uint32_t));
    ADD(memory, activations, "sums of the head's gradient",
        moert_head_sums(m->span, direct) * table);
}

static void add_activations(const moert_memory_shape *s, size_t direct, moert_memory *memory) {
    const moert_model_sizes *m = &s->model;
    const size_t layers = moert_memory_kept_layers(s, m->config->layers);
    add_table(memory, moert_run_rows_buffers, m, 1);
    add_table(memory, moert_run_batch_buffers, m, 1);
    add_table(memory, moert_run_layer_buffers, m, m->config->layers);
    add_table(memory, moert_run_moe_buffers, m, s->moe_layers);
    add_table(memory, moert_activation_buffers, m, layers);
    add_table(memory, moert_dense_buffers, m, moert_memory_kept_layers(s, s->dense_layers));
    ADD(memory, activations, "rows of attention",
        layers * moert_model_rows_floats(s->attention.kept, m->tokens) * sizeof(float));
    for (size_t i = 0; i < MOERT_ROPES; i++) {
        const moert_rope_scheme rope = moert_model_rope_scheme(m->config, i);
        if (rope.theta > 0.0)
            ADD(memory, activations, "rotations", moert_rope_table_bytes(&rope, m->length));
    }
    for (size_t i = 0; i < moert_memory_kept_layers(s, s->moe_layers); i++)
        add_pass(s, moert_memory_pass_peak(s, i).rows, memory);
    add_head(s, direct, memory);
}

/* Adds the mesh's scratch buffers, and the buffers that the backward of all layers shares. */
static void add_scratch(const moert_memory_shape *s, moert_memory *memory) {
    static const char *const names[] = {
#define NAME(buffer, text) text,
        MOERT_SCRATCH_TABLE(NAME)
#undef NAME
    };
    const moert_glu_sizes shared = moert_layer_shared_sizes(&s->layer),
                          dense = moert_model_glu_sizes(&s->model);
    moert_layer_sizes layer = s->layer;
    size_t floats[MOERT_SCRATCHES] = {0};
    moert_scratch which;
    if (s->setting->verifies)
        layer.local = most_experts(s);
    for (unsigned use = 0; use < MOERT_LAYER_USES && s->moe_layers > 0; use++) {
        const size_t need = moert_layer_use_floats(&layer, use, &which);
        moert_scratch_need(floats, which, need);
    }
    if (s->moe_layers > 0) {
        moert_round_scratch(&layer, floats);
        moert_dense_glu_scratch(&shared, floats);
    }
    if (s->dense_layers > 0)
        moert_dense_glu_scratch(&dense, floats);
    moert_model_scratch(&s->model, floats);
    for (size_t i = 0; i < MOERT_SCRATCHES; i++)
        ADD(memory, scratch, names[i], floats[i] * sizeof(float));
    ADD(memory, scratch, "gradients of the residual and of norms",
        moert_buffer_table_bytes(moert_run_backward_buffers, &s->model));
    ADD(memory, scratch, "gradients of attention",
        moert_model_rows_floats(s->attention.scratch, s->model.tokens) * sizeof(float));
}

/* ---- experts that move, and clones ---- */

/* The largest number of experts of this rank whose chain has members on other ranks. */
static size_t count_links(const moert_memory_shape *s) {
    const moert_memory_setting *setting = s->setting;
    const size_t share = moert_ceil_div(setting->config->router.experts, setting->ep);
    if (setting->exact)
        return s->layer.local;
    return setting->clones ? moert_min(s->layer.local, (s->layer.local - share) * setting->ep) : 0;
}

/* Adds the copies of --verify, without the digests. */
static void add_checks(const moert_memory_shape *s, size_t nodes, moert_memory *memory) {
    const moert_memory_choice *choice = &s->setting->config->memory;
    const size_t moment_bytes = moert_dtype_bits(moert_state_dtype(choice->moments)) / 8;
    ADD(memory, checks, "a second copy of a layer",
        moert_audit_bytes(&s->model, &s->layer, most_experts(s), nodes,
                          s->setting->micro_batches > 1));
    ADD(memory, checks, "values of the updates to repeat",
        MOERT_CHECKED_LOAD * (2 * sizeof(float) /* gradients and weights */ +
                              moert_optimizers[choice->optimizer].moments * moment_bytes));
}

/* Adds two host copies of the weights and moments of a layer's experts: one for experts that leave,
 * and one for experts that arrive (train/move.c). Also adds, for each link of a chain, an expert's
 * weights to send and to receive (layer/clones.c). */
static void add_moves(const moert_memory_shape *s, moert_memory *memory) {
    const moert_layer_shapes layer = moert_layer_shapes_of(&s->options, s->layer.local);
    const size_t values = 1 + moert_optimizers[s->setting->config->memory.optimizer].moments;
    size_t weights = 0;
    for (int b = 1; b < MOERT_LAYER_BLOCKS; b++)
        weights += layer.elements[b][0] + layer.elements[b][1];
    if (s->setting->moves)
        ADD(memory, moves, "experts that move", 2 * values * weights * sizeof(float));
    ADD(memory, moves, "weights and gradients of clones",
        2 * count_links(s) * (weights / moert_max(s->layer.local, 1)) * sizeof(float));
}

moert_status moert_memory_estimate(const moert_memory_setting *setting, size_t rank,
                                   moert_memory *memory) {
    moert_memory_shape s;
    moert_tree_node list[MOERT_TREE_MAX_NODES];
    moert_model_shapes shapes;
    MOERT_TRY(check(setting));
    make_shape(setting, rank, &s);
    *memory = (moert_memory){0};
    /* as in moert_block_begin: a single rank with one node needs no memory for nodes */
    const size_t count = moert_max(moert_tree_nodes(s.model.span, list), 1);
    const size_t nodes = setting->ranks == 1 && count == 1 ? 0 : count;
    const bool adds = nodes == 0 && setting->micro_batches > 1; /* moert_block_nodes */
    moert_model_list_shapes(setting->config, &s.attention, s.layer.local, &shapes);
    for (size_t i = 0; i < MOERT_MODEL_SHAPES; i++) {
        const block_kind kind = kind_of(&s, rank, &shapes, i);
        add_kind(&s, &kind, i == MOERT_MODEL_OUTER, nodes, memory);
    }
    add_copies(&s, memory);
    add_activations(&s, adds ? 0 : count, memory);
    add_scratch(&s, memory);
    if (s.moe_layers > 0)
        add_moves(&s, memory);
    if (setting->verifies)
        add_checks(&s, nodes, memory);
    moert_memory_add_exchange(&s, memory); /* also adds the windows to the total */
    memory->total += memory->weights + memory->gradients + memory->moments + memory->copies +
                     memory->sums + memory->activations + memory->scratch + memory->staging +
                     memory->moves + memory->saves + memory->checks;
    return MOERT_OK;
}
