// run: check=2 all=1,3,4,2san
/* Compares the memory estimate, for the rows that a step had, with what a real model, optimizer and
 * exchange allocate. */
#include "base/config.h"
#include "estimate/memory.h"
#include "exchange/internal.h"
#include "layer/handover.h"
#include "layer/internal.h"
#include "model/audit_internal.h"
#include "support/mpi.h"
#include "train/save.h"

enum { LENGTH = 88, MOST_LAYERS = 8 };

static const char *const models[] = {"mixtral-tiny", "qwen3-tiny"};

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

static size_t prepacked_bytes(const moert_block *block) {
    size_t bytes = 0;
    for (size_t i = 0; i < block->count; i++)
        bytes += moert_prepacks_bytes(&block->tensor[i].prepacks);
    return bytes;
}

static size_t rounded_bytes(const moert_layer *layer) {
    size_t bytes = 0;
    for (size_t i = 0; i < BLOCKS; i++)
        for (size_t use = 0; use < MOERT_PREPACKED_USES; use++)
            bytes += moert_prepacked_bytes(layer->rounded[i].prepacked[use]) +
                     SUM(layer->rounded[i].weight[use]);
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
        bytes +=
            sum_bytes(a->kept, MOERT_ATTENTION_MOST) +
            SUM(a->normed, a->rstd, a->middle, a->post_normed, a->post_rstd, a->mlp_v, a->mlp_h);
    }
    return bytes;
}

static size_t scratch_of(const moert_run *run) {
    return SUM(run->bf16, run->d_bf16, run->d, run->dn) +
           sum_bytes(run->scratch, MOERT_ATTENTION_MOST);
}

static void measure_window(const moert_window *window, size_t rows, moert_memory *found) {
    found->windows += rows * window->stride * sizeof(float);
    found->reserved += window->capacity_rows * window->stride * sizeof(float);
}

static moert_memory measure(moert_model *model, const moert_optimizer *optimizer) {
    const moert_mesh *mesh = model->mesh;
    const moert_run *run = run_of(model);
    moert_memory found = measure_blocks(model, optimizer);
    size_t most = 0; /* rows of a layer */
    found.activations =
        SUM(model->rope, run->ends, run->tokens, run->targets, run->links, run->embedded,
            run->final_normed, run->final_rstd, run->logits, run->token_loss, run->head.x,
            run->head.dx, run->head.target, run->head.loss, run->head.end[0], run->head.end[1]);
    found.activations += sum_bytes(run->head.sum, MOERT_COUNT(run->head.sum));
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

/* `audit`, unless NULL, audits layer 0 of the last micro-batch. */
static moert_status train(moert_model *model, size_t batch, size_t micro_batches,
                          moert_aux_form aux_form, moert_audit *audit) {
    size_t ranks = test_ranks, first, count;
    moert_model_partition(batch, test_rank, ranks, &first, &count);
    moert_model_result result;
    int32_t *tokens = test_alloc(count * LENGTH * sizeof *tokens);
    for (size_t i = 0; i < count * LENGTH; i++)
        tokens[i] = (int32_t)((first * LENGTH + i) * 7 % 251);
    MOERT_TRY(moert_model_initialize(model, 1));
    for (size_t i = 0; i < micro_batches; i++) {
        if (audit != NULL)
            moert_audit_begin(audit, i + 1 == micro_batches ? 0 : MOERT_AUDIT_NO_LAYER, NULL);
        MOERT_TRY(
            moert_run_forward(run_of(model), &(moert_model_batch){batch, LENGTH, tokens, tokens,
                                                                  false, NULL, 0, i > 0}));
        MOERT_TRY(moert_run_loss(run_of(model), &(moert_model_losses){aux_form, 0.01, 0.0}, 1.0,
                                 &result));
        MOERT_TRY(moert_run_backward(run_of(model), i + 1 == micro_batches));
    }
    if (audit != NULL) {
        MOERT_TRY(moert_audit_repeat(audit, 1));
        moert_audit_end(audit);
    }
    /* after a backward that has computed layers again, no pass is left to be measured */
    if (audit == NULL && !moert_model_recomputes(model))
        return MOERT_OK;
    moert_model_weights_changed(model); /* as an optimizer's step between them does */
    return moert_run_forward(
        run_of(model), &(moert_model_batch){batch, LENGTH, tokens, tokens, false, NULL, 0, true});
}

/* What an audit holds, but the digests: 8 bytes for each row and each 4 KiB. */
static size_t audit_bytes(const moert_audit *audit) {
    const moert_model_layer *again = &audit->again;
    const moert_block *blocks[] = {again->attention, again->mlp, moert_layer_block(again->moe, 0),
                                   moert_layer_block(again->moe, 1),
                                   moert_layer_block(again->moe, 2)};
    const moert_run *run = audit->repeat;
    size_t bytes = rounded_bytes(again->moe) + activations_of(run) + scratch_of(run) +
                   SUM(run->ends, audit->middle, audit->d[0], audit->d[1], audit->before[0],
                       audit->before[1], audit->x, audit->received);
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

/* A run of a model. The members that a row leaves out are those of a plain run. */
typedef struct recipe {
    size_t model; /* index of its name */
    moert_precision precision, dense;
    moert_dispatch dispatch;
    moert_combine combine;
    size_t micro_batches;      /* 0: one */
    size_t batch;              /* 0: one that the ranks cannot divide evenly */
    size_t ep, hosts;          /* 0: 1 */
    size_t hidden, head_size;  /* 0: the model's */
    moert_latent_sizes latent; /* kv_rank 0: grouped-query attention */
    size_t loss_chunk;
    moert_recompute recompute;
    moert_state_type moments, gradients;
    moert_optimizer_kind optimizer;
    bool sequences; /* the auxiliary loss is that of each sequence */
    bool tied, verifies, exact;
} recipe;

static size_t or_one(size_t n) {
    return n > 0 ? n : 1;
}

/* Compares the estimate with a run. */
static void run_model(const recipe *how) {
    const size_t ep = or_one(how->ep), micro_batches = or_one(how->micro_batches);
    const size_t batch = how->batch > 0 ? how->batch : test_ranks > 1 ? 2 * test_ranks - 1 : 1;
    moert_model_config config = golden_config(models[how->model]);
    moert_memory want;
    moert_row_peak peaks[MOST_LAYERS];
    config.precision = how->precision;
    config.dense = how->dense;
    config.dispatch = how->dispatch;
    config.combine = how->combine;
    config.latent = how->latent;
    config.rope.interleaved = how->latent.kv_rank > 0;
    if (how->head_size > 0)
        config.head_size = config.rope.width = how->head_size;
    if (how->latent.kv_rank > 0)
        config.rope.width = how->latent.rope;
    config.memory.loss_chunk = how->loss_chunk;
    config.tied_embeddings = how->tied;
    config.memory.recompute = how->recompute;
    config.memory.moments = how->moments;
    config.memory.optimizer = how->optimizer;
    config.memory.gradients = how->gradients;
    config.hidden = how->hidden > 0 ? how->hidden : config.hidden;
    deal_ranks(or_one(how->hosts));
    moert_mesh *mesh = how->exact ? open_exact_mesh(ep) : open_mesh(ep);
    moert_mesh_place places[4];
    moert_mesh_places(mesh->world, ep, places);
    deal_ranks(1);
    const moert_aux_form aux_form = how->sequences ? MOERT_AUX_SEQUENCE : MOERT_AUX_MEGATRON;
    moert_model *model = open_model(mesh, &config);
    const moert_optimizer *optimizer =
        open_optimizer(model, &(moert_optimizer_options){.beta1 = 0.9});
    moert_audit *audit = NULL;
    if (how->verifies)
        ASSERT_OK_ON_ALL(moert_audit_create(run_of(model), &audit));
    ASSERT_OK_ON_ALL(train(model, batch, micro_batches, aux_form, audit));
    const moert_memory_setting setting = {
        .config = &config,
        .batch = batch,
        .length = LENGTH,
        .ranks = test_ranks,
        .ep = ep,
        .exact = mesh->exact > 1,
        .places = places,
        .engine = engine_of(mesh),
        .largest_bytes = moert_device_describe(moert_context_device(test_context))->largest_bytes,
        .micro_batches = micro_batches,
        .saves_beside = true,
        .verifies = how->verifies,
        .device = moert_context_device(test_context),
        .aux_form = aux_form,
        .peaks = peaks,
    };
    moert_model_row_peaks(model, peaks);
    ASSERT_OK_ON_ALL(moert_memory_estimate(&setting, test_rank, &want));
    moert_memory got = measure(model, optimizer);
    got.saves = moert_saver_floats(model) * sizeof(float);
    got.moves = moert_handover_bytes(mesh->handover);
    got.checks = audit != NULL ? audit_bytes(audit) : 0;
    got.staging = want.staging; /* not measured */
    got.total = want.total;
#define EXPECT(field, title, help) expect_equal(title, want.field, got.field);
    MOERT_MEMORY_TABLE(EXPECT)
#undef EXPECT
    moert_audit_destroy(audit);
    release_owned();
}

static void run_both_models(recipe how) {
    for (how.model = 0; how.model < MOERT_COUNT(models); how.model++)
        run_model(&how);
}

TEST(test_estimate_equals_what_a_step_allocates) {
    run_both_models((recipe){.ep = test_ranks, .batch = 5});
    run_both_models((recipe){.batch = test_ranks > 1 ? test_ranks - 1 : 1});
    run_model(&(recipe){.sequences = true, .batch = test_ranks > 1 ? 0 : 5});
    if (test_ranks == 4)
        run_model(&(recipe){.ep = 2, .batch = 5, .hosts = 2});
}

TEST(test_estimate_knows_exact_replicas) {
    for (size_t ep = 1; ep <= test_ranks; ep++)
        if (test_ranks % ep == 0)
            run_model(&(recipe){.model = ep % 2,
                                .ep = ep,
                                .precision = MOERT_PRECISION_BF16,
                                .micro_batches = 2,
                                .batch = 2 * test_ranks - 1,
                                .exact = true});
}

/* X(model, precision, dense, dispatch, combine, micro-batches, hidden) */
#define RECIPE(at, p, d, sent, back, micro, size)                                                  \
    {                                                                                              \
        .model = at, .precision = MOERT_PRECISION_##p, .dense = MOERT_PRECISION_##d,               \
        .dispatch = MOERT_DISPATCH_##sent, .combine = MOERT_COMBINE_##back,                        \
        .micro_batches = micro, .hidden = size                                                     \
    }
static const recipe recipes[] = {
    RECIPE(0, F32, F32, F32, F32, 2, 0),    RECIPE(1, F32, F32, MXFP8, F32, 1, 0),
    RECIPE(0, BF16, F32, F32, F32, 1, 72),  RECIPE(1, BF16, F32, F32, F32, 3, 0),
    RECIPE(0, MXFP8, F32, F32, F32, 1, 72), RECIPE(1, MXFP8, F32, MXFP8, F32, 2, 0),
    RECIPE(0, NVFP4, F32, F32, F32, 2, 0),  RECIPE(1, NVFP4, F32, MXFP8, F32, 1, 72),
    RECIPE(0, F32, BF16, F32, F32, 1, 0),   RECIPE(1, F32, BF16, F32, F32, 2, 72),
    RECIPE(0, BF16, BF16, F32, F32, 2, 0),  RECIPE(1, NVFP4, BF16, MXFP8, F32, 1, 0),
    RECIPE(0, BF16, BF16, BF16, F32, 1, 0), RECIPE(1, BF16, F32, BF16, F32, 2, 72),
    RECIPE(0, F32, F32, BF16, F32, 1, 72),  RECIPE(1, MXFP8, F32, BF16, F32, 1, 0),
    RECIPE(0, F32, F32, F32, BF16, 2, 0),   RECIPE(1, BF16, F32, BF16, BF16, 1, 72),
};

TEST(test_estimate_counts_what_low_precision_and_micro_batches_add) {
    for (size_t i = 0; i < MOERT_COUNT(recipes); i++)
        run_model(&recipes[i]);
}

TEST(test_estimate_knows_what_is_computed_again_rounded_or_repeated) {
    static const recipe rows[] = {
        RECIPE(0, F32, F32, F32, F32, 1, 0), RECIPE(1, F32, BF16, F32, F32, 2, 72),
        RECIPE(0, BF16, BF16, BF16, F32, 2, 0), RECIPE(1, MXFP8, F32, MXFP8, F32, 2, 0),
        RECIPE(0, NVFP4, F32, F32, F32, 1, 0)};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        recipe how = rows[i];
        for (how.recompute = MOERT_RECOMPUTE_EXPERTS; how.recompute <= MOERT_RECOMPUTE_LAYER;
             how.recompute++)
            run_model(&how);
        how.recompute = i % 2 == 0 ? MOERT_RECOMPUTE_NONE : MOERT_RECOMPUTE_LAYER;
        how.gradients = i < 2 ? MOERT_STATE_F32 : MOERT_STATE_BF16;
        how.verifies = true;
        how.batch = 2 * test_ranks;
        run_model(&how);
        how = rows[i];
        how.moments = how.gradients = MOERT_STATE_BF16;
        how.optimizer = i % 2 == 0 ? MOERT_OPTIMIZER_SGD : MOERT_OPTIMIZER_ADAMW;
        run_both_models(how);
    }
}

TEST(test_estimate_knows_every_form_of_attention) {
    static const moert_latent_sizes latent[] = {{24, 16, 12, 8, 20}, {0, 40, 6, 2, 4}};
    for (size_t i = 0; i < 4; i++)
        run_model(&(recipe){.latent = latent[i % 2],
                            .dense = i < 2 ? MOERT_PRECISION_F32 : MOERT_PRECISION_BF16,
                            .micro_batches = 1 + i / 2});
    /* heads that tensor cores take */
    recipe heads = {.dense = MOERT_PRECISION_BF16, .micro_batches = 2};
    heads.batch = test_ranks > 1 ? 0 : 3;
    heads.latent = (moert_latent_sizes){24, 16, 128, 64, 128};
    run_model(&heads);
    heads.latent = (moert_latent_sizes){0};
    heads.head_size = 64;
    run_both_models(heads);
}

TEST(test_estimate_knows_logits_in_chunks) {
    static const size_t batches[] = {1, 2, 5, 11};
    for (size_t i = 0; i < 16; i++)
        run_model(&(recipe){.dense = i % 4 == 1 ? MOERT_PRECISION_BF16 : MOERT_PRECISION_F32,
                            .tied = i % 4 == 2,
                            .micro_batches = i % 4 == 3 ? 2 : 1,
                            .batch = batches[i / 4],
                            .loss_chunk = 64});
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
