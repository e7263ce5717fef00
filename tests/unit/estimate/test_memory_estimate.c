// run: check=2 all=1,3,4,2san
/* Compares the memory estimate, for the rows that a step had, with what a real model, optimizer and
 * exchange allocate. */
#include "base/config.h"
#include "base/memory.h"
#include "estimate/memory.h"
#include "exchange/internal.h"
#include "layer/clones.h"
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
        found.moments += SUM(moments->first, moments->second, moments->keys);
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

static size_t activations_of(const moert_model *model) {
    size_t bytes = SUM(model->loss_inputs);
    for (size_t i = 0; i < model->config.layers; i++) {
        const moert_model_layer *l = &model->layer[i];
        bytes += SUM(l->aux_gradient, l->out) + (l->pass == NULL ? 0 : pass_activations(l->pass));
    }
    for (size_t i = 0; i < model->activation_count; i++) {
        const moert_model_activations *a = &model->activations[i];
        bytes +=
            sum_bytes(a->kept, MOERT_ATTENTION_MOST) +
            SUM(a->normed, a->rstd, a->middle, a->post_normed, a->post_rstd, a->mlp_v, a->mlp_h);
    }
    return bytes;
}

static void measure_window(const moert_window *window, size_t rows, moert_memory *found) {
    found->windows += rows * window->stride * sizeof(float);
    found->reserved += window->capacity_rows * window->stride * sizeof(float);
}

static moert_memory measure(moert_model *model, const moert_optimizer *optimizer) {
    const moert_mesh *mesh = model->mesh;
    moert_memory found = measure_blocks(model, optimizer);
    size_t most = 0; /* rows of a layer */
    found.activations = SUM(model->rope, model->ends, model->tokens, model->targets, model->links,
                            model->embedded, model->final_normed, model->final_rstd, model->logits,
                            model->token_loss, model->head.x, model->head.dx, model->head.target,
                            model->head.loss, model->head.end[0], model->head.end[1]);
    found.activations += sum_bytes(model->head.sum, MOERT_COUNT(model->head.sum));
    found.activations += activations_of(model);
    found.scratch = SUM(model->bf16, model->spare_bf16, model->d, model->dn);
    found.scratch += sum_bytes(model->scratch, MOERT_ATTENTION_MOST);
    found.scratch += sum_bytes(mesh->scratch, MOERT_SCRATCHES);
    for (size_t i = 0; i < model->config.layers; i++) {
        const moert_pass *moe = model->layer[i].pass;
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
        MOERT_TRY(moert_model_forward(
            model, &(moert_model_batch){batch, LENGTH, tokens, tokens, false, NULL, 0, i > 0}));
        MOERT_TRY(
            moert_model_loss(model, &(moert_model_losses){aux_form, 0.01, 0.0}, 1.0, &result));
        MOERT_TRY(moert_model_backward(model, i + 1 == micro_batches));
    }
    if (audit != NULL) {
        MOERT_TRY(moert_audit_repeat(audit, 1));
        moert_audit_end(audit);
    }
    /* after a backward that has computed layers again, no pass is left to be measured */
    if (audit == NULL && !moert_model_recomputes(model))
        return MOERT_OK;
    moert_model_weights_changed(model); /* as an optimizer's step between them does */
    return moert_model_forward(
        model, &(moert_model_batch){batch, LENGTH, tokens, tokens, false, NULL, 0, true});
}

/* What an audit holds, but the digests: 8 bytes for each row and each 4 KiB. */
static size_t audit_bytes(const moert_audit *audit) {
    const moert_model_layer *again = &audit->again;
    const moert_block *blocks[] = {again->attention, again->mlp, moert_layer_block(again->moe, 0),
                                   moert_layer_block(again->moe, 1),
                                   moert_layer_block(again->moe, 2)};
    size_t bytes = rounded_bytes(again->moe) + SUM(again->out, audit->middle, audit->d[0],
                                                   audit->d[1], audit->before[0], audit->before[1],
                                                   audit->x, audit->received);
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

typedef struct recipe {
    moert_precision precision, dense;
    moert_dispatch dispatch;
    size_t micro_batches, hidden; /* hidden size; 0: the model's hidden size */
    moert_combine combine;
    /* the rest is 0 but for some tests */
    bool sequences;            /* the auxiliary loss is that of each sequence */
    moert_latent_sizes latent; /* kv_rank 0: grouped-query attention */
    size_t head_size;          /* 0: the model's */
    size_t loss_chunk;
    bool tied;
    moert_recompute recompute;
    bool verifies;
    moert_state_type moments, gradients;
    bool exact; /* replicas */
} recipe;

#define RECIPE(precision, dense, dispatch, micro_batches, hidden, result)                          \
    {                                                                                              \
        MOERT_PRECISION_##precision, MOERT_PRECISION_##dense, MOERT_DISPATCH_##dispatch,           \
            micro_batches, hidden, .combine = MOERT_COMBINE_##result                               \
    }
static const recipe plain = RECIPE(F32, F32, F32, 1, 0, F32);

/* Compares the estimate with a run. */
static void run_model(const char *name, const recipe *how, size_t ep, size_t batch, size_t hosts) {
    moert_model_config config = golden_config(name);
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
    config.memory.gradients = how->gradients;
    config.hidden = how->hidden > 0 ? how->hidden : config.hidden;
    deal_ranks(hosts);
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
        ASSERT_OK_ON_ALL(moert_audit_create(model, &audit));
    ASSERT_OK_ON_ALL(train(model, batch, how->micro_batches, aux_form, audit));
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
        .micro_batches = how->micro_batches,
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
    got.moves = moert_clones_bytes(mesh->handover);
    got.checks = audit != NULL ? audit_bytes(audit) : 0;
    got.staging = want.staging; /* not measured */
    got.total = want.total;
#define EXPECT(field, title, help) expect_equal(title, want.field, got.field);
    MOERT_MEMORY_TABLE(EXPECT)
#undef EXPECT
    moert_audit_destroy(audit);
    release_owned();
}

/* A batch that the ranks cannot divide evenly. */
static size_t uneven_batch(void) {
    return test_ranks > 1 ? 2 * test_ranks - 1 : 1;
}

/* Runs recipes on both models in turn. */
static void run_recipes(const recipe *recipes, size_t count) {
    for (size_t i = 0; i < count; i++)
        run_model(models[i % 2], &recipes[i], 1, uneven_batch(), 1);
}

TEST(test_estimate_equals_what_a_step_allocates) {
    for (size_t m = 0; m < MOERT_COUNT(models); m++)
        run_model(models[m], &plain, test_ranks, 5, 1);
}

TEST(test_estimate_holds_for_replicas_and_a_rank_without_sequences) {
    for (size_t m = 0; m < MOERT_COUNT(models); m++)
        run_model(models[m], &plain, 1, test_ranks > 1 ? test_ranks - 1 : 1, 1);
}

TEST(test_estimate_knows_exact_replicas) {
    recipe how = RECIPE(BF16, F32, F32, 2, 0, F32);
    how.exact = true;
    for (size_t ep = 1; ep <= test_ranks; ep++)
        if (test_ranks % ep == 0)
            run_model(models[ep % 2], &how, ep, 2 * test_ranks - 1, 1);
}

TEST(test_estimate_knows_the_groups_of_ranks_on_two_hosts) {
    if (test_ranks != 4)
        SKIP("only for 4 ranks");
    run_model(models[0], &plain, 2, 5, 2);
}

TEST(test_estimate_counts_what_low_precision_and_micro_batches_add) {
    static const recipe recipes[] = {
        RECIPE(F32, F32, F32, 2, 0, F32),    RECIPE(F32, F32, MXFP8, 1, 0, F32),
        RECIPE(BF16, F32, F32, 1, 72, F32),  RECIPE(BF16, F32, F32, 3, 0, F32),
        RECIPE(MXFP8, F32, F32, 1, 72, F32), RECIPE(MXFP8, F32, MXFP8, 2, 0, F32),
        RECIPE(NVFP4, F32, F32, 2, 0, F32),  RECIPE(NVFP4, F32, MXFP8, 1, 72, F32),
        RECIPE(F32, BF16, F32, 1, 0, F32),   RECIPE(F32, BF16, F32, 2, 72, F32),
        RECIPE(BF16, BF16, F32, 2, 0, F32),  RECIPE(NVFP4, BF16, MXFP8, 1, 0, F32),
        RECIPE(BF16, BF16, BF16, 1, 0, F32), RECIPE(BF16, F32, BF16, 2, 72, F32),
        RECIPE(F32, F32, BF16, 1, 72, F32),  RECIPE(MXFP8, F32, BF16, 1, 0, F32),
        RECIPE(F32, F32, F32, 2, 0, BF16),   RECIPE(BF16, F32, BF16, 1, 72, BF16),
    };
    run_recipes(recipes, MOERT_COUNT(recipes));
}

TEST(test_estimate_knows_the_loss_of_each_sequence) {
    recipe how = plain;
    how.sequences = true;
    run_model(models[0], &how, 1, test_ranks > 1 ? uneven_batch() : 5, 1);
}

TEST(test_estimate_knows_latent_attention) {
    static const moert_latent_sizes latent[] = {{24, 16, 12, 8, 20}, {0, 40, 6, 2, 4}};
    recipe recipes[] = {RECIPE(F32, F32, F32, 1, 0, F32), RECIPE(F32, BF16, F32, 2, 0, F32)};
    for (size_t i = 0; i < 4; i++) {
        recipes[i / 2].latent = latent[i % 2];
        run_model(models[0], &recipes[i / 2], 1, uneven_batch(), 1);
    }
}

TEST(test_estimate_knows_heads_that_tensor_cores_take) {
    recipe grouped = RECIPE(F32, BF16, F32, 2, 0, F32), latent = grouped;
    grouped.head_size = 64;
    latent.latent = (moert_latent_sizes){24, 16, 128, 64, 128};
    const size_t batch = test_ranks > 1 ? uneven_batch() : 3;
    run_model(models[0], &latent, 1, batch, 1);
    for (size_t m = 0; m < MOERT_COUNT(models); m++)
        run_model(models[m], &grouped, 1, batch, 1);
}

TEST(test_estimate_knows_layers_that_are_computed_again) {
    static const recipe recipes[] = {
        RECIPE(F32, F32, F32, 1, 0, F32), RECIPE(F32, BF16, F32, 2, 72, F32),
        RECIPE(BF16, BF16, BF16, 1, 0, F32), RECIPE(MXFP8, F32, MXFP8, 2, 0, F32),
        RECIPE(NVFP4, F32, F32, 1, 0, F32)};
    for (size_t i = 0; i < MOERT_COUNT(recipes); i++) {
        recipe how = recipes[i];
        for (how.recompute = MOERT_RECOMPUTE_EXPERTS; how.recompute <= MOERT_RECOMPUTE_LAYER;
             how.recompute++)
            run_model(models[i % 2], &how, 1, uneven_batch(), 1);
    }
}

TEST(test_estimate_knows_bf16_states) {
    recipe recipes[] = {RECIPE(F32, F32, F32, 1, 0, F32), RECIPE(BF16, BF16, BF16, 2, 0, F32),
                        RECIPE(MXFP8, F32, F32, 2, 72, F32)};
    for (size_t i = 0; i < 2 * MOERT_COUNT(recipes); i++) {
        recipe *how = &recipes[i / 2];
        how->moments = MOERT_STATE_BF16;
        how->gradients = MOERT_STATE_BF16;
        run_model(models[i % 2], how, 1, uneven_batch(), 1);
    }
}

TEST(test_estimate_knows_what_repeats_other_ranks_work) {
    static const recipe recipes[] = {
        RECIPE(F32, F32, F32, 1, 0, F32), RECIPE(F32, BF16, F32, 2, 0, F32),
        RECIPE(BF16, BF16, BF16, 2, 0, F32), RECIPE(MXFP8, F32, MXFP8, 1, 0, F32)};
    for (size_t i = 0; i < MOERT_COUNT(recipes); i++) {
        recipe how = recipes[i];
        how.verifies = true;
        how.recompute = i % 2 == 0 ? MOERT_RECOMPUTE_NONE : MOERT_RECOMPUTE_LAYER;
        how.gradients = i < 2 ? MOERT_STATE_F32 : MOERT_STATE_BF16;
        run_model(models[i % 2], &how, 1, 2 * test_ranks, 1);
    }
}

TEST(test_estimate_knows_logits_in_chunks) {
    static const size_t batches[] = {1, 2, 5, 11};
    for (size_t i = 0; i < 16; i++) {
        recipe how = plain;
        how.dense = i % 4 == 1 ? MOERT_PRECISION_BF16 : MOERT_PRECISION_F32;
        how.tied = i % 4 == 2;
        how.micro_batches = i % 4 == 3 ? 2 : 1;
        how.loss_chunk = 64;
        run_model(models[0], &how, 1, batches[i / 4], 1);
    }
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
