// run: check=1,2 all=3,4,2san
/* Experts that move between ranks keep their weights and moments: norms and steps have the bits of
 * a model whose experts stay, for any EP x EDP. */
#include "base/checksum.h"
#include "base/memory.h"
#include "base/rng.h"
#include "context/internal.h"
#include "support/mpi.h"
#include "support/suite.h"
#include "train/move.h"

/* LENGTH gives an expert about 150 rows, which is room for three clones. */
enum { STEPS = 4, EXPERTS = 5, SEQUENCES = 5, LENGTH = 75 };

static const moert_optimizer_options settings = {
    .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decay = 0.1, .clip = 1.0};

/* A model with an optimizer. Its tensors are no multiples of a chunk. */
typedef struct run {
    moert_model *model;
    moert_optimizer *optimizer;
    double norm[STEPS], loss[STEPS];
} run;

static void destroy_optimizer(void *optimizer) {
    moert_optimizer_destroy(optimizer);
}

static run open_run(size_t ep, size_t slots, moert_precision precision) {
    moert_model_config config = golden_config("qwen3-tiny");
    run r = {NULL};
    config.precision = precision;
    config.hidden = 72;
    config.intermediate = 65;
    config.router.experts = EXPERTS;
    config.router.topk = 2;
    config.expert_slots = slots;
    r.model = open_model(open_mesh(ep), &config);
    ASSERT_OK_ON_ALL(moert_model_initialize(r.model, 3));
    ASSERT_OK_ON_ALL(moert_optimizer_create(r.model, &settings, &r.optimizer));
    owned(r.optimizer, destroy_optimizer);
    return r;
}

/* Writes the gradients of a step, which depend on the tensor alone. */
static moert_status set_gradients(const moert_model *model, size_t step) {
    const moert_model_tensor *tensor = moert_model_tensors(model);
    for (size_t t = 0; t < moert_model_tensor_count(model); t++) {
        const uint64_t stream =
            moert_rng_stream(tensor[t].name) + step + 100 * tensor[t].file_first;
        if (tensor[t].block != NULL)
            MOERT_TRY(moert_buffer_write(tensor[t].block->gradient,
                                         tensor[t].offset * sizeof(float),
                                         random_floats(tensor[t].elements, 1.0f, stream),
                                         tensor[t].elements * sizeof(float)));
    }
    return MOERT_OK;
}

/* Computes the gradients of a batch, whose second micro-batch is as the first. */
static void compute_gradients(run *r, size_t step) {
    const moert_model_losses losses = {MOERT_AUX_HUGGING_FACE, 0.02, 0.001};
    const size_t vocabulary = moert_model_describe(r->model)->vocabulary;
    moert_model_result result;
    size_t first, count;
    moert_model_partition(SEQUENCES, test_rank, test_ranks, &first, &count);
    int32_t *token = test_alloc((count * LENGTH + 1) * sizeof *token);
    for (size_t i = 0; i <= count * LENGTH; i++)
        token[i] = (int32_t)(moert_rng_uniform(step, 9, first * LENGTH + i) * (double)vocabulary);
    for (size_t i = 0; i < 2; i++) {
        const moert_model_batch batch = {.total_sequences = SEQUENCES,
                                         .length = LENGTH,
                                         .input = token,
                                         .target = token + 1,
                                         .accumulate = i > 0};
        ASSERT_OK(moert_model_forward(r->model, &batch));
        ASSERT_OK(moert_model_loss(r->model, &losses, 0.5, &result));
        ASSERT_OK(moert_model_backward(r->model, i == 1));
        r->loss[step] = result.cross_entropy;
    }
}

static void take_step(run *r, size_t step) {
    ASSERT_OK(moert_gradient_norm_take(r->optimizer->norm, &r->norm[step]));
    ASSERT_OK(moert_optimizer_step(r->optimizer, 1e-2, r->norm[step], step + 1));
}

static size_t random_below(size_t end, size_t seed, size_t layer, size_t i) {
    return (size_t)(moert_rng_uniform(seed, layer, i) * (double)end);
}

static bool has_expert(const moert_expert_map *map, const uint32_t *expert, size_t rank,
                       uint32_t e) {
    for (size_t s = map->first[rank]; s < map->first[rank + 1]; s++)
        if (moert_expert_of(expert[s]) == e)
            return true;
    return false;
}

/* Shuffles the slots of all ranks in each layer, and puts clones into most of the empty ones. */
static void move_at_random(const run *r, size_t seed, bool clones) {
    for (size_t layer = 0; layer < moert_model_moe_layers(r->model); layer++) {
        const moert_expert_map *map = moert_model_placement(r->model, layer);
        const size_t slots = moert_expert_map_slots(map);
        uint32_t expert[64];
        assert_in_range(slots, 1, MOERT_COUNT(expert));
        for (size_t i = 0; i < slots; i++)
            expert[i] =
                moert_expert_map_at(map, i) == map->expert[i] ? map->expert[i] : MOERT_NO_EXPERT;
        for (size_t i = slots; i-- > 1;) {
            const size_t other = random_below(i + 1, seed, layer, i);
            const uint32_t kept = expert[i];
            expert[i] = expert[other];
            expert[other] = kept;
        }
        for (size_t i = 0; clones && i < slots; i++) {
            const uint32_t e = (uint32_t)random_below(EXPERTS + 1, seed, layer, slots + i);
            if (expert[i] == MOERT_NO_EXPERT && e < EXPERTS &&
                !has_expert(map, expert, moert_expert_map_rank(map, i), e))
                expert[i] = MOERT_EXPERT_CLONE | e;
        }
        ASSERT_OK(moert_move_experts(r->optimizer, layer, expert, NULL));
    }
}

/* sums[tensors] = the checksums of all weights. */
static moert_checksum *sums_of(const run *r) {
    const size_t count = moert_model_tensor_count(r->model);
    const moert_model_tensor *tensor = moert_model_tensors(r->model);
    moert_checksum *mine = test_alloc(count * sizeof *mine);
    moert_checksum *all = test_alloc(test_ranks * count * sizeof *all);
    for (size_t t = 0; t < count; t++) {
        const size_t bytes = tensor[t].elements * sizeof(float);
        float *values = test_alloc(bytes);
        if (tensor[t].block == NULL)
            continue;
        ASSERT_OK(moert_buffer_read(tensor[t].block->weight, tensor[t].offset * sizeof *values,
                                    values, bytes));
        mine[t] = moert_checksum_of(values, bytes);
    }
    const moert_comm *experts = moert_model_mesh(r->model)->experts;
    ASSERT_OK(
        moert_comm_allgather(moert_model_mesh(r->model)->experts, mine, count * sizeof *mine, all));
    for (size_t t = 0; t < count; t++)
        mine[t] =
            all[(tensor[t].replicated ? moert_comm_rank(experts) : tensor[t].owner) * count + t];
    return mine;
}

TEST(test_moved_experts_have_the_bits_of_those_that_stay) {
    for (size_t ep = 1; ep <= test_ranks; ep++) {
        if (test_ranks % ep != 0)
            continue;
        run stays = open_run(ep, 0, MOERT_PRECISION_F32);
        run moves =
            open_run(ep, moert_min(moert_ceil_div(EXPERTS, ep) + 1, EXPERTS), MOERT_PRECISION_F32);
        for (size_t step = 0; step < STEPS; step++) {
            move_at_random(&moves, ep * STEPS + step, false);
            ASSERT_OK_ON_ALL(set_gradients(stays.model, step));
            ASSERT_OK_ON_ALL(set_gradients(moves.model, step));
            take_step(&stays, step);
            take_step(&moves, step);
            ASSERT_ON_ALL(moves.norm[step] == stays.norm[step]);
        }
        const moert_checksum *want = sums_of(&stays), *got = sums_of(&moves);
        ASSERT_ON_ALL(memcmp(got, want, moert_model_tensor_count(stays.model) * sizeof *got) == 0);
    }
}

/* Trains a model whose experts move, and are cloned, before random steps; none do with schedule 0.
 * Each schedule has its own number of slots. On GPUs clones keep the bits of float32 only. */
static run train(moert_precision precision, size_t schedule) {
    const size_t share = moert_ceil_div(EXPERTS, test_ranks), spare = 1 + schedule % 3;
    const bool clones =
        moert_device_describe(test_device)->is_cpu || precision == MOERT_PRECISION_F32;
    run r = open_run(0, schedule > 0 ? moert_min(share + spare, EXPERTS) : 0, precision);
    for (size_t step = 0; step < STEPS; step++) {
        const size_t seed = schedule * STEPS + step;
        if (schedule > 0 && moert_rng_uniform(1, 0, seed) < 0.7)
            move_at_random(&r, seed, clones && schedule % 4 > 0);
        compute_gradients(&r, step);
        take_step(&r, step);
    }
    return r;
}

/* Compares trainings by random schedules with one without moves: by default one schedule, with
 * TEST_ALL eight, which are 216 for all ranks, engines and float32, bf16 and mxfp8. */
static void check_training(moert_precision precision, size_t seed) {
    const size_t schedules = suite_skips(true) ? 1 : 8;
    const run stays = train(precision, 0);
    const moert_checksum *want = sums_of(&stays);
    for (size_t i = 1; i <= schedules; i++) {
        const run moves = train(precision, seed * schedules + i);
        ASSERT_ON_ALL(memcmp(moves.norm, stays.norm, sizeof stays.norm) == 0);
        ASSERT_ON_ALL(memcmp(moves.loss, stays.loss, sizeof stays.loss) == 0);
        const moert_checksum *got = sums_of(&moves);
        ASSERT_ON_ALL(memcmp(got, want, moert_model_tensor_count(stays.model) * sizeof *got) == 0);
    }
}

/* With every engine between ranks; node is for CPUs. */
static void check_engines(moert_precision precision) {
    static const char *const engines[] = {"window", "staged", "node"};
    const size_t count = moert_device_describe(test_device)->is_cpu ? 3 : 2;
    for (size_t i = 0; i < (test_ranks > 1 ? count : 1); i++) {
        test_context->options.engine = test_ranks > 1 ? engines[i] : "local";
        deal_ranks(strcmp(test_context->options.engine, "node") == 0 ? 2 : 1);
        check_training(precision, 4 * i + precision);
    }
    test_context->options.engine = NULL;
    deal_ranks(1);
}

TEST(test_moves_leave_the_bits_of_training) {
    check_engines(MOERT_PRECISION_F32);
}

TEST(test_moves_leave_the_bits_of_training_in_low_precision) {
    check_engines(MOERT_PRECISION_BF16);
    check_engines(MOERT_PRECISION_MXFP8);
    check_engines(MOERT_PRECISION_NVFP4);
}

TEST(test_wrong_placements_are_refused) {
    run r = open_run(0, EXPERTS, MOERT_PRECISION_F32);
    uint32_t twice[4 * EXPERTS];
    const moert_expert_map *map = moert_model_placement(r.model, 0);
    memcpy(twice, map->expert, moert_expert_map_slots(map) * sizeof *twice);
    twice[1] = twice[0];
    ASSERT_FAILS_ON_ALL(moert_move_experts(r.optimizer, 0, twice, NULL), MOERT_ERROR_USAGE,
                        "each has one slot");
}

MPI_TESTS(open_test_context, close_test_context)
