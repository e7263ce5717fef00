// run: check=2 all=1,3,4,2san
/* Compares the memory estimate with the bytes that a real model, optimizer and exchange allocate in
 * a step. The estimate gets the numbers of rows of that step. */
#include "base/config.h"
#include "base/rng.h"
#include "device/device.h"
#include "device/staging.h"
#include "estimate/memory.h"
#include "exchange/staged/inflight.h"
#include "layer/handover.h"
#include "layer/internal.h"
#include "model/audit_internal.h"
#include "support/mpi.h"
#include "train/save.h"

enum { LENGTH = 88, MOST_LAYERS = 8 };

static void expect_equal(const char *what, size_t estimated, size_t allocated) {
    ASSERT_OK_ON_ALL(estimated == allocated
                         ? MOERT_OK
                         : MOERT_FAIL(ERROR_INTERNAL, "%s: %zu bytes estimated, %zu allocated",
                                      what, estimated, allocated));
}

static size_t sum_bytes(moert_buffer *const *buffers, size_t count) {
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += buffers[i] != NULL ? moert_buffer_bytes(buffers[i]) : 0;
    return bytes;
}
#define SUM(...)                                                                                   \
    sum_bytes((moert_buffer *const[]){__VA_ARGS__},                                                \
              sizeof((moert_buffer *const[]){__VA_ARGS__}) / sizeof(moert_buffer *))

/* ---- allocated bytes ---- */

static size_t copies_bytes(const moert_rounded *rounded) {
    size_t bytes = 0;
    for (size_t use = 0; use < MOERT_PANELS_USES; use++)
        bytes += moert_panels_bytes(rounded->panels[use]) + SUM(rounded->weight[use]);
    return bytes;
}

static size_t prepacked_bytes(const moert_block *block) {
    size_t bytes = 0;
    for (size_t i = 0; i < block->count; i++) {
        bytes += copies_bytes(&block->tensor[i].rounded);
        for (size_t use = 0; use < MOERT_PANELS_USES; use++)
            bytes += moert_panels_bytes(block->tensor[i].cache.panels[use]);
    }
    return bytes;
}

static size_t rounded_bytes(const moert_layer *layer) {
    size_t bytes = 0;
    for (size_t i = 0; i < BLOCKS; i++)
        bytes += copies_bytes(&layer->rounded[i]);
    return bytes;
}

static moert_memory measure_blocks(moert_model *model, const moert_optimizer *optimizer) {
    moert_memory found = {0};
    for (size_t i = 0; i < moert_model_block_count(model); i++) {
        const moert_block *block = moert_model_block(model, i);
        const moert_moments *moments = &optimizer->moments[i];
        found.weights += SUM(block->weight);
        found.gradients += SUM(block->gradient, block->kept);
        found.moments += SUM(moments->moment[0], moments->moment[1], moments->keys);
        found.sums += SUM(block->nodes);
        found.copies += prepacked_bytes(block);
    }
    const moert_gradient_pool *pool = model->gradient_pool;
    for (size_t i = 0; pool != NULL && i < MOERT_COUNT(pool->free); i++)
        found.gradients += SUM(pool->free[i].buffer);
    return found;
}

static size_t pass_activations(const moert_pass *moe) {
    const size_t hidden = moe->layer->options.recompute_experts
                              ? 0 /* in scratch */
                              : SUM(moe->v, moe->h, moe->shared_v, moe->shared_h);
    return hidden + SUM(moe->logits, moe->routing.scores, moe->routing.index, moe->routing.weight,
                        moe->routing.lse, moe->gate_logits, moe->gate.scores, moe->gate.index,
                        moe->gate.weight, moe->gate.lse, moe->plan->ends, moe->plan->destination,
                        moe->plan->packed);
}

static size_t activations_of(const moert_run *run) {
    size_t bytes = SUM(run->loss_inputs);
    for (size_t i = 0; i < run->layers; i++) {
        const moert_run_layer *l = &run->layer[i];
        bytes += SUM(l->aux_gradient, l->out) + (l->pass == NULL ? 0 : pass_activations(l->pass));
    }
    for (size_t i = 0; i < run->activation_count; i++) {
        const moert_model_activations *a = &run->activations[i];
        bytes += sum_bytes(a->kept, MOERT_ATTENTION_MOST) +
                 SUM(a->normed, a->rstd, a->middle, a->post_normed, a->post_rstd, a->mlp_v,
                     a->mlp_h, a->attended, a->attended_rstd, a->mlp_out, a->mlp_out_rstd);
    }
    return bytes;
}

/* Bytes of a run outside of the layers. */
static size_t head_of(const moert_run *run) {
    const moert_head_buffers *head = &run->head;
    return SUM(run->tokens, run->targets, run->links, run->embedded, run->final_normed,
               run->final_rstd, run->logits, run->token_loss, head->x, head->dx, head->target,
               head->loss, head->end[0], head->end[1]) +
           sum_bytes(head->sum, MOERT_COUNT(head->sum));
}

static size_t scratch_of(const moert_run *run) {
    return SUM(run->d_bf16, run->d, run->dn, run->branch, run->branch_bf16) +
           sum_bytes(run->scratch, MOERT_ATTENTION_MOST);
}

static void measure_window(const moert_window *window, size_t rows, moert_memory *found) {
    const size_t bytes = window->storage.segments != NULL
                             ? window->capacity_rows * moert_row_bytes(window)
                             : SUM(window->storage.rows);
    found->windows += rows * (bytes / moert_max(window->capacity_rows, 1));
    found->reserved += bytes;
}

static moert_memory measure(moert_model *model, const moert_optimizer *optimizer) {
    const moert_mesh *mesh = model->mesh;
    const moert_run *run = run_of(model);
    moert_memory found = measure_blocks(model, optimizer);
    size_t most = 0; /* the most rows of any layer */
    found.activations = SUM(model->rope[0], model->rope[1], run->bf16, run->ends) + head_of(run);
    found.activations += activations_of(run);
    found.scratch = scratch_of(run);
    found.scratch += sum_bytes(mesh->scratch, MOERT_SCRATCHES);
    for (size_t i = 0; i < model->config.layers; i++) {
        const moert_pass *moe = run->layer[i].pass;
        if (model->layer[i].moe != NULL)
            found.copies += rounded_bytes(model->layer[i].moe);
        if (moe == NULL)
            continue;
        measure_window(moe->x, moe->peak.rows, &found);
        measure_window(moe->prob, moe->peak.rows, &found);
        most = moert_max(most, moe->peak.rows);
    }
    for (size_t i = 0; i < MOERT_SHARED_WINDOWS; i++)
        if (mesh->windows[i] != NULL)
            measure_window(mesh->windows[i], most, &found);
    return found;
}

/* ---- a step ---- */

static moert_status repeat(void *audit, moert_audit_stage stage) {
    return stage == MOERT_AUDIT_COMPUTED ? moert_audit_repeat(audit, 1) : MOERT_OK;
}

/* Runs forward and backward of a step. Unless `audit` is NULL, audits the last micro-batch. */
static moert_status step(moert_model *model, const moert_model_batch *batch, size_t micro_batches,
                         moert_aux_form aux_form, moert_audit *audit) {
    moert_model_result result;
    moert_model_batch part = *batch;
    for (size_t i = 0; i < micro_batches; i++) {
        const bool last = i + 1 == micro_batches;
        part.accumulate = i > 0;
        if (audit != NULL)
            moert_audit_begin(audit, last ? repeat : NULL, audit, NULL);
        MOERT_TRY(moert_run_forward(run_of(model), &part));
        MOERT_TRY(moert_run_loss(run_of(model), &(moert_model_losses){aux_form, 0.01, 0.0}, 1.0,
                                 &result));
        MOERT_TRY(moert_run_backward(run_of(model), last));
        if (audit != NULL)
            moert_audit_end(audit);
    }
    return MOERT_OK;
}

static moert_status train(moert_model *model, size_t batch, size_t micro_batches,
                          moert_aux_form aux_form, moert_audit *audit) {
    size_t ranks = test_ranks, first, count;
    moert_model_partition(batch, test_rank, ranks, &first, &count);
    int32_t *tokens = test_alloc(count * LENGTH * sizeof *tokens);
    for (size_t i = 0; i < count * LENGTH; i++)
        tokens[i] = (int32_t)((first * LENGTH + i) * 7 % model->config.vocabulary);
    const moert_model_batch all = {.total_sequences = batch,
                                   .length = LENGTH,
                                   .input = tokens,
                                   .target = tokens,
                                   .accumulate = true};
    MOERT_TRY(moert_model_initialize(model, 1));
    /* first a step without an audit, in which each layer's sums end before those of the next layer
     * begin */
    if (audit != NULL) {
        MOERT_TRY(step(model, &all, micro_batches, aux_form, NULL));
        moert_model_weights_changed(model);
    }
    MOERT_TRY(step(model, &all, micro_batches, aux_form, audit));
    /* with recomputation or an audit no pass is left to be measured, so run another forward */
    if (audit == NULL && !moert_model_recomputes(model))
        return MOERT_OK;
    moert_model_weights_changed(model);
    return moert_run_forward(run_of(model), &all);
}

/* Bytes of an audit, except its digests, which have 8 bytes for each row and each 4 KiB. */
static size_t audit_bytes(const moert_audit *audit) {
    const moert_model_layer *again = &audit->copy;
    const moert_block *blocks[] = {audit->outer,
                                   again->attention,
                                   again->mlp,
                                   moert_layer_block(again->moe, 0),
                                   moert_layer_block(again->moe, 1),
                                   moert_layer_block(again->moe, 2)};
    const moert_run *run = audit->repeat;
    size_t bytes = rounded_bytes(again->moe) + activations_of(run) + scratch_of(run) +
                   head_of(run) +
                   SUM(run->bf16, run->ends, audit->d[0], audit->d[1], audit->before[0],
                       audit->before[1], audit->before_outer, audit->x, audit->received);
    for (size_t i = 0; i < MOERT_COUNT(blocks); i++)
        if (blocks[i] != NULL)
            bytes += SUM(blocks[i]->weight, blocks[i]->gradient, blocks[i]->nodes) +
                     prepacked_bytes(blocks[i]);
    return bytes;
}

static unsigned engine_of(const moert_mesh *mesh) {
    unsigned engine = MOERT_EXCHANGE_LOCAL;
    while (strcmp(moert_config_choice("MOERT_EXCHANGE", engine), moert_mesh_engine(mesh)) != 0)
        engine++;
    return engine;
}

/* Bytes of the buffers in which the staged engine packs rows and slots. */
static size_t staged_bytes(const moert_exchange *exchange) {
    const moert_staged *stage = exchange->state;
    size_t bytes = 0;
    for (int kind = 0; kind < MOERT_INFLIGHT_KINDS; kind++)
        bytes += SUM(moert_staging_buffer(stage->out.packed[kind]),
                     moert_staging_buffer(stage->back.packed[kind]));
    return bytes;
}

/* Bytes of host memory for the values that clones pass to the next slot of their chain. */
static size_t handed_bytes(const moert_handover *handover) {
    return handover != NULL ? 2 * handover->room * sizeof *handover->in : 0;
}

/* ---- random runs ---- */

enum { CASES = 60, SOME = 15 /* on 2 ranks, in check */, MOST_RANKS = 4 };

/* The random choices of a run, except its config. */
typedef struct draw {
    const char *model, *engine;
    size_t batch, micro_batches, ep;
    bool exact, clones, verifies;
    moert_aux_form aux_form;
} draw;

static size_t below(size_t n) {
    static uint64_t draws;
    return (size_t)(moert_rng_uniform(test_ranks, 0, draws++) * (double)n);
}
#define DRAW(...)                                                                                  \
    ((const size_t[]){__VA_ARGS__})[below(sizeof((const size_t[]){__VA_ARGS__}) / sizeof(size_t))]

static void draw_precisions(moert_model_config *c) {
    c->precision = (moert_precision)DRAW(0, 1, 2, 3);
    c->recipe = *moert_recipe_of(c->precision);
    c->recipe.attention = c->precision > MOERT_PRECISION_BF16 && DRAW(0, 1) != 0;
    c->dense = DRAW(0, 1) == 0 ? MOERT_PRECISION_F32 : MOERT_PRECISION_BF16;
    c->dispatch = (moert_dispatch)DRAW(0, 1, 2);
    c->combine = (moert_combine)DRAW(0, 1);
    c->memory.recompute = (moert_recompute)DRAW(0, 1, 2);
    c->memory.moments = (moert_state_type)DRAW(0, 1);
    c->memory.gradients = (moert_state_type)DRAW(0, 1);
    c->memory.optimizer = (moert_optimizer_kind)DRAW(0, 1);
    c->memory.loss_chunk = DRAW(0, 0, 64);
}

/* Replaces the attention and the widths of a model of this kind by random choices. No weights are
 * read, so any sizes are possible. */
static void draw_attention(moert_model_config *c) {
    static const moert_latent_sizes latent[] = {
        {24, 16, 12, 8, 20}, {0, 40, 6, 2, 4}, {24, 16, 128, 64, 128}};
    const size_t form = DRAW(0, 0, 1, 2);
    c->hidden = DRAW(c->hidden, 72);
    c->tied_embeddings = DRAW(0, 0, 1) != 0;
    if (form == 1) {
        c->latent = latent[DRAW(0, 1, 2)];
        c->rope.interleaved = true;
        c->rope.width = c->latent.rope;
    } else if (form == 2) {
        c->head_size = c->rope.width = 64; /* a head size that tensor cores support */
    }
}

static draw draw_run(moert_model_config *config) {
    static const char *const models[] = {"mixtral-tiny",
                                         "qwen3-tiny",
                                         "../family/deepseek-v2-yarn",
                                         "../family/glm4-moe",
                                         "../family/gpt-oss",
                                         "../family/olmoe-clip-llama3",
                                         "../family/qwen2-moe-step2",
                                         "../family/qwen3-dense-bias-yarn",
                                         "../family/axk1",
                                         "../family/granitemoe-swa",
                                         "../family/mellum"};
    static const char *const engines[] = {NULL, NULL, "staged"};
    const size_t model = DRAW(0, 0, 1, 1, 2, 3, 4, 5, 6, 7);
    draw d = {.model = models[model], .engine = engines[DRAW(0, 1, 2)], .ep = 1};
    d.batch = 1 + below(2 * test_ranks + 1);
    d.micro_batches = DRAW(1, 1, 2, 3);
    d.aux_form = (moert_aux_form)DRAW(MOERT_AUX_MEGATRON, MOERT_AUX_SEQUENCE);
    d.ep = DRAW(1, test_ranks);
    d.exact = DRAW(0, 0, 1) != 0;
    d.verifies = !d.exact && DRAW(0, 1) != 0;
    d.clones = !d.exact && !d.verifies && d.ep > 1 && DRAW(0, 1) != 0;
    *config = golden_config(d.model);
    draw_precisions(config);
    if (model < 2)
        draw_attention(config);
    /* ranks repeat each other's work, so all ranks need the same number of tokens */
    if (d.verifies)
        d.batch = test_ranks * DRAW(1, 2);
    /* a dense layer, which no recipe rounds, frees the rounded copies in the audit's layer */
    config->recipe.attention &= !d.verifies || moert_moe_layers(config) == config->layers;
    if (!moert_layer_is_moe(config, config->layers - 1) &&
        config->memory.recompute == MOERT_RECOMPUTE_LAYER)
        /* with MOERT_RECOMPUTE_LAYER, no pass would be left to measure */
        config->memory.recompute = MOERT_RECOMPUTE_EXPERTS;
    if (d.clones)
        config->expert_slots = moert_ceil_div(config->router.experts, d.ep) + 1;
    return d;
}

static void open_context(const char *engine) {
    moert_context_options options = MOERT_CONTEXT_OPTIONS_INIT;
    options.engine = test_ranks > 1 ? engine : NULL;
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_WORLD, &options, &test_context));
    test_device = moert_context_device(test_context);
}

/* Gives each rank but the first a clone of expert 0. */
static void place_clones(moert_model *model, size_t ep) {
    const size_t slots = model->config.expert_slots;
    uint32_t *expert = test_alloc(ep * slots * sizeof *expert);
    for (size_t m = 0; m < ep; m++) {
        size_t first, own;
        moert_plan_experts(model->config.router.experts, ep, m, &first, &own);
        for (size_t i = 0; i < slots; i++)
            expert[m * slots + i] = i < own             ? (uint32_t)(first + i)
                                    : m > 0 && i == own ? MOERT_LAYER_CLONE
                                                        : MOERT_LAYER_NO_EXPERT;
    }
    for (size_t l = 0; l < model->moe_layers; l++)
        ASSERT_OK_ON_ALL(moert_model_place(model, l, expert));
}

/* Whether some layers, but not all, had no rows. Layers that are recomputed share their passes, so
 * their common peak does not show which layers had rows. */
static bool has_idle_layer(const moert_model *model) {
    size_t idle = 0;
    for (size_t l = 0; l < model->moe_layers; l++)
        idle += prepacked_bytes(moert_layer_block(model->moe[l]->moe, 1)) == 0;
    return moert_model_recomputes(model) && idle > 0 && idle < model->moe_layers;
}

/* What moert_check_update_create allocates: gradients, weights and moments of a load. */
static size_t load_bytes(const moert_model_config *config) {
    const size_t moments = moert_optimizers[config->memory.optimizer].moments;
    const bool rounded = config->memory.moments == MOERT_STATE_BF16;
    return (size_t)MOERT_CHECKED_LOAD * (2 * sizeof(float) + moments * (rounded ? 2 : 4));
}

/* Trains, and compares the estimate with what was allocated. */
static void compare(const draw *d, const moert_model_config *config) {
    moert_row_peak peaks[MOST_LAYERS];
    moert_mesh_place places[MOST_RANKS];
    moert_mesh *mesh = d->exact ? open_exact_mesh(d->ep) : open_mesh(d->ep);
    moert_model *model = open_model(mesh, config);
    const moert_optimizer *optimizer =
        open_optimizer(model, &(moert_optimizer_options){.beta1 = 0.9});
    moert_audit *audit = NULL;
    moert_memory want;
    moert_mesh_places(mesh->world, d->ep, places);
    if (d->clones)
        place_clones(model, d->ep);
    if (d->verifies)
        ASSERT_OK_ON_ALL(moert_audit_create(run_of(model), &audit));
    ASSERT_OK_ON_ALL(train(model, d->batch, d->micro_batches, d->aux_form, audit));
    moert_model_row_peaks(model, peaks);
    const moert_memory_setting setting = {
        .config = config,
        .batch = d->batch,
        .length = LENGTH,
        .ranks = test_ranks,
        .ep = d->ep,
        .exact = mesh->exact > 1,
        .clones = d->clones,
        .places = places,
        .engine = engine_of(mesh),
        .largest_bytes = moert_device_describe(test_device)->largest_bytes,
        .micro_batches = d->micro_batches,
        .saves_beside = true,
        .verifies = d->verifies,
        .device = test_device,
        .aux_form = d->aux_form,
        .peaks = peaks,
    };
    ASSERT_OK_ON_ALL(moert_memory_estimate(&setting, test_rank, &want));
    moert_memory got = measure(model, optimizer);
    got.saves = moert_saver_floats(model) * sizeof(float);
    got.moves = d->clones ? want.moves : handed_bytes(mesh->handover);
    got.checks = audit != NULL ? audit_bytes(audit) + load_bytes(config) : 0;
    got.staging =
        setting.engine == MOERT_EXCHANGE_STAGED ? staged_bytes(mesh->exchange) : want.staging;
    got.total = want.total;
    ASSERT_OK_ON_ALL(handed_bytes(mesh->handover) <= want.moves ? MOERT_OK : MOERT_ERROR_INTERNAL);
    const bool idle = has_idle_layer(model);
    ASSERT_OK_ON_ALL(!idle || got.copies <= want.copies ? MOERT_OK : MOERT_ERROR_INTERNAL);
    got.copies = idle ? want.copies : got.copies;
    size_t parts = 0, fields = 0;
    for (size_t i = 0; i < want.parts; i++)
        parts += i > 0 && want.part[i].bytes > want.part[i - 1].bytes ? 0 : want.part[i].bytes;
#define EXPECT(field, title, help)                                                                 \
    fields += want.field;                                                                          \
    expect_equal(title, want.field, got.field);
    MOERT_MEMORY_TABLE(EXPECT)
#undef EXPECT
    expect_equal("sorted parts", parts, fields - want.reserved - want.total);
    moert_audit_destroy(audit);
}

TEST(test_estimate_equals_what_random_runs_allocate) {
    moert_context *const usual = test_context;
    for (size_t i = 0; i < (test_ranks == 2 ? SOME : CASES); i++) {
        moert_model_config config;
        const draw d = draw_run(&config);
        print_message("# case %zu: %s\n", i, d.model);
        open_context(d.engine);
        compare(&d, &config);
        release_owned();
        moert_context_destroy(test_context);
    }
    test_context = usual;
    test_device = moert_context_device(usual);
}

TEST(test_estimate_knows_groups_on_two_hosts) {
    const moert_model_config config = golden_config("mixtral-tiny");
    if (test_ranks % 2 != 0)
        skip();
    deal_ranks(2);
    compare(&(draw){.batch = 5, .micro_batches = 1, .ep = 2}, &config);
    deal_ranks(1);
}

/* ---- estimates without a run ---- */

TEST(test_balanced_rows_of_all_ranks_cover_all_slots) {
    const moert_model_config config = golden_config("qwen3-tiny");
    moert_memory_setting setting = {
        .config = &config, .batch = 12, .length = 32, .ep = 1, .largest_bytes = 1u << 30};
    setting.engine = MOERT_EXCHANGE_STAGED;
    for (setting.ranks = 1; setting.ranks <= 12; setting.ranks++) {
        const size_t row = ((config.layers + 2) * 64 + (config.layers + 1) * 16) * sizeof(float);
        size_t rows = 0;
        setting.ep = setting.ranks;
        for (size_t r = 0; r < setting.ranks; r++) {
            moert_memory memory;
            ASSERT_OK(moert_memory_estimate(&setting, r, &memory));
            assert_int_equal(memory.windows % row, 0);
            assert_true(memory.reserved >= memory.windows);
            rows += memory.windows / row;
        }
        const size_t slots = setting.batch * setting.length * config.router.topk;
        assert_true(rows >= slots && rows < slots + setting.ranks);
    }
}

TEST(test_estimate_refuses_what_a_run_would_refuse) {
    moert_model_config config = golden_config("qwen3-tiny");
    moert_memory memory;
    moert_memory_setting setting = {.config = &config,
                                    .batch = 1,
                                    .length = 32,
                                    .ranks = 17,
                                    .ep = 17,
                                    .engine = MOERT_EXCHANGE_STAGED};
    assert_int_equal(moert_memory_estimate(&setting, 0, &memory), MOERT_ERROR_USAGE);
    setting.ranks = setting.ep = 1;
    setting.length = config.max_positions + 1;
    assert_int_equal(moert_memory_estimate(&setting, 0, &memory), MOERT_ERROR_USAGE);
    setting.length = 32;
    config.rope.width = 15;
    assert_int_equal(moert_memory_estimate(&setting, 0, &memory), MOERT_ERROR_FORMAT);
}

MPI_TESTS(open_test_context, close_test_context)
