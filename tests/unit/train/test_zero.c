// run: check=1,2 all=3,4,2san
/* Gradients and optimizer, sharded over the ranks. The norm and the optimizer's steps have the bits
 * of unsharded tensors, for any EP x EDP, and read only the rank's shard of a gradient. Experts
 * that move between ranks keep their weights and moments, and train with the bits of experts that
 * do not move. */
#include "base/checksum.h"
#include "base/rng.h"
#include "context/internal.h"
#include "device/device.h"
#include "device/elements.h"
#include "layer/internal.h"
#include "support/model/model_run.h"
#include "support/suite.h"
#include "train/move.h"

/* With LENGTH, an expert gets about 150 rows, enough for three clones. */
enum { STEPS = 4, EXPERTS = 5, SEQUENCES = 5, LENGTH = 75 };

static const moert_optimizer_options settings = {
    .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decay = 0.1, .clip = 1.0};
static const double rate = 1e-2;

/* A model with an optimizer, in groups of `ep` ranks. */
typedef struct run {
    moert_model *model;
    moert_optimizer *optimizer;
    size_t ep, tensors;
    const moert_model_tensor *tensor;
    double norm[STEPS], loss[STEPS];
} run;

/* Makes a model with sizes such that a shard of an expert has one whole and one partial chunk. The
 * shard's offsets are not aligned as the start of a buffer view must be. */
static run open_run(size_t ep, size_t slots, moert_precision precision) {
    moert_model_config config = golden_config("qwen3-tiny");
    config.precision = precision;
    config.hidden = 72;
    config.intermediate = 65;
    config.router.experts = EXPERTS;
    config.router.topk = 2;
    config.expert_slots = slots;
    run r = {.model = open_model(open_mesh(ep), &config), .ep = ep};
    ASSERT_OK_ON_ALL(moert_model_initialize(r.model, 3));
    r.optimizer = open_optimizer(r.model, &settings);
    r.tensors = moert_model_tensor_count(r.model);
    r.tensor = moert_model_tensors(r.model);
    return r;
}

/* Returns the gradient of a tensor in a step, which is the same on any rank. */
static float *gradient_of(const moert_model_tensor *tensor, size_t step) {
    return random_floats(tensor->elements, 1.0f,
                         moert_rng_stream(tensor->name) + step + 100 * tensor->file_first);
}

/* Writes the gradients of a step; NaN outside of this rank's shards. */
static void set_gradients(const run *r, size_t step) {
    for (const moert_model_tensor *t = r->tensor; t < r->tensor + r->tensors; t++) {
        const moert_model_range shard = moert_model_shard(t);
        float *values = gradient_of(t, step);
        for (size_t i = 0; i < t->elements; i++)
            if (i < shard.first || i >= shard.first + shard.count)
                values[i] = NAN;
        if (t->block != NULL)
            ASSERT_OK(moert_buffer_write(t->block->gradient, t->offset * sizeof *values, values,
                                         t->elements * sizeof *values));
    }
}

static void take_step(run *r, size_t step) {
    ASSERT_OK(moert_gradient_norm_take(r->optimizer->norm, &r->norm[step]));
    ASSERT_OK(moert_optimizer_step(r->optimizer, rate, r->norm[step], step + 1));
}

/* ---- the oracle, without shards ---- */

static double whole_norm(const run *r, size_t step) {
    double sum = 0.0;
    for (const moert_model_tensor *t = r->tensor; t < r->tensor + r->tensors; t++) {
        moert_buffer *buffer = upload_floats(gradient_of(t, step), t->elements);
        const moert_square_span span = {{buffer, MOERT_DTYPE_F32, 0}, t->elements};
        moert_squares *squares;
        double square;
        ASSERT_OK(moert_squares_create(test_device, &span, 1, &squares));
        ASSERT_OK(moert_squares_sum(squares, &square));
        sum += square;
        moert_squares_destroy(squares);
    }
    return sqrt(sum);
}

/* Applies all steps to weight[elements], in place. */
static void update_whole(const moert_model_tensor *tensor, const double *norm, float *weight) {
    const size_t bytes = tensor->elements * sizeof *weight;
    float *zero = test_alloc(bytes);
    moert_buffer *p = upload(weight, bytes), *m = upload(zero, bytes), *v = upload(zero, bytes);
    for (size_t step = 0; step < STEPS; step++) {
        moert_buffer *gradient = upload_floats(gradient_of(tensor, step), tensor->elements);
        const moert_update adamw = {.rate = rate,
                                    .beta1 = settings.beta1,
                                    .beta2 = settings.beta2,
                                    .epsilon = settings.epsilon,
                                    .decay = tensor->is_matrix ? settings.decay : 0.0,
                                    .scale = settings.clip / (norm[step] + 1e-6),
                                    .step = step + 1};
        const moert_elements g = {gradient, MOERT_DTYPE_F32, 0},
                             moments[] = {{m, MOERT_DTYPE_F32, 0}, {v, MOERT_DTYPE_F32, 0}};
        ASSERT_OK(moert_update_weights(&adamw, tensor->elements, p, &g, moments));
    }
    download_into(p, weight, bytes);
}

/* ---- shards ---- */

/* Takes all steps. Returns true if all norms and this rank's weights have the bits of unsharded
 * tensors. */
static bool steps_are_right(run *r) {
    float **want = test_alloc(r->tensors * sizeof *want);
    bool right = true;
    for (size_t t = 0; t < r->tensors; t++)
        want[t] = r->tensor[t].block != NULL ? read_tensor(&r->tensor[t], false) : NULL;
    for (size_t step = 0; step < STEPS; step++) {
        set_gradients(r, step);
        take_step(r, step);
        right = right && r->norm[step] > settings.clip && r->norm[step] == whole_norm(r, step);
    }
    for (size_t t = 0; t < r->tensors; t++) {
        const moert_model_tensor *tensor = &r->tensor[t];
        if (want[t] == NULL)
            continue;
        update_whole(tensor, r->norm, want[t]);
        right = right &&
                memcmp(read_tensor(tensor, false), want[t], tensor->elements * sizeof(float)) == 0;
    }
    return right;
}

/* Checks that the ranks that hold a block divide the moments of the block evenly. */
static bool moments_are_sharded(run *r) {
    bool right = true;
    for (size_t b = 0; b < moert_model_block_count(r->model); b++) {
        const moert_block *block = moert_model_block(r->model, b);
        const size_t holders = moert_comm_size(block->comm);
        size_t bytes[4], sum = 0, mine = moert_buffer_bytes(r->optimizer->moments[b].moment[0]);
        right = right && holders == (block->replicated ? test_ranks : test_ranks / r->ep) &&
                moert_buffer_bytes(r->optimizer->moments[b].moment[1]) == mine;
        ASSERT_OK(moert_comm_allgather(block->comm, &mine, sizeof mine, bytes));
        for (size_t h = 0; h < holders; h++)
            sum += bytes[h];
        const size_t even = moert_ceil_div(block->chunks, holders) * MOERT_SQUARES_CHUNK;
        right = right && sum == block->floats * sizeof(float) &&
                /* up to 128 elements of padding in a buffer */
                mine <= (even + 128) * sizeof(float);
    }
    return right;
}

TEST(test_shards_of_every_mesh_have_even_moments_and_the_bits_of_whole_tensors) {
    for (size_t ep = 1; ep <= test_ranks; ep++)
        if (test_ranks % ep == 0) {
            run r = open_run(ep, 0, MOERT_PRECISION_F32);
            ASSERT_ON_ALL(moments_are_sharded(&r));
            ASSERT_ON_ALL(steps_are_right(&r));
        }
}

/* ---- experts that move ---- */

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

/* Shuffles the slots of all ranks in each layer, and puts clones into most of the empty slots. */
static void move_at_random(const run *r, size_t seed, bool clones) {
    moert_run_end(run_of(r->model));
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

/* Returns the checksums of all tensors' weights. */
static moert_checksum *sums_of(const run *r) {
    moert_comm *experts = moert_model_mesh(r->model)->experts;
    moert_checksum *mine = test_alloc(r->tensors * sizeof *mine);
    moert_checksum *all = test_alloc(test_ranks * r->tensors * sizeof *all);
    for (size_t t = 0; t < r->tensors; t++)
        if (r->tensor[t].block != NULL)
            mine[t] = moert_checksum_of(read_tensor(&r->tensor[t], false),
                                        r->tensor[t].elements * sizeof(float));
    ASSERT_OK(moert_comm_allgather(experts, mine, r->tensors * sizeof *mine, all));
    for (size_t t = 0; t < r->tensors; t++) {
        const bool replicated = r->tensor[t].replicated;
        const size_t owner = replicated ? moert_comm_rank(experts) : r->tensor[t].owner;
        mine[t] = all[owner * r->tensors + t];
    }
    return mine;
}

/* Trains a model. Before random steps, experts move and get clones, except with schedule 0. The
 * number of slots depends on the schedule. On GPUs only float32 runs get clones, because other
 * precisions would change bits. */
static run train(size_t ep, moert_precision precision, size_t schedule) {
    const size_t share = moert_ceil_div(EXPERTS, ep), spare = 1 + schedule % 3;
    const bool clones =
        moert_device_describe(test_device)->is_cpu || precision == MOERT_PRECISION_F32;
    run r = open_run(ep, schedule > 0 ? moert_min(share + spare, EXPERTS) : 0, precision);
    const moert_model_losses losses = {MOERT_AUX_HUGGING_FACE, 0.02, 0.001};
    const double vocabulary = (double)moert_model_describe(r.model)->vocabulary;
    const model_data data = alloc_data(SEQUENCES, LENGTH);
    for (size_t step = 0; step < STEPS; step++) {
        const size_t seed = schedule * STEPS + step;
        if (schedule > 0 && moert_rng_uniform(1, 0, seed) < 0.7)
            move_at_random(&r, seed, clones && schedule % 4 > 0);
        for (size_t i = 0; i < SEQUENCES * LENGTH; i++) {
            data.input[i] = (int32_t)(moert_rng_uniform(step, 9, i) * vocabulary);
            data.target[i] = (int32_t)(moert_rng_uniform(step, 9, i + 1) * vocabulary);
        }
        for (size_t i = 0; i < 2; i++) /* both micro-batches have the same data */
            r.loss[step] =
                model_step(r.model, model_batch(r.model, &data), losses, i, 2).cross_entropy;
        take_step(&r, step);
    }
    return r;
}

/* Compares trainings with random schedules with a training without moves. */
static void check_moves(size_t ep, moert_precision precision, size_t seed) {
    const size_t before = owned_count(), schedules = suite_skips(true) ? 1 : 8;
    const run stays = train(ep, precision, 0);
    for (size_t i = 1; i <= schedules; i++) {
        const run moves = train(ep, precision, seed * schedules + i);
        ASSERT_ON_ALL(memcmp(moves.norm, stays.norm, sizeof stays.norm) == 0);
        ASSERT_ON_ALL(memcmp(moves.loss, stays.loss, sizeof stays.loss) == 0);
        ASSERT_ON_ALL(
            memcmp(sums_of(&moves), sums_of(&stays), stays.tensors * sizeof(moert_checksum)) == 0);
    }
    release_since(before);
}

TEST(test_moves_leave_the_bits_of_training_with_replicas) {
    for (size_t ep = 1; ep < test_ranks; ep++)
        if (test_ranks % ep == 0)
            check_moves(ep, MOERT_PRECISION_F32, 16 + ep);
}

/* Trains in every precision, with every engine between ranks (node only on CPUs). The tier check
 * runs one schedule of each kind, other tiers all eight. These are 216 trainings over all numbers
 * of ranks, engines, and the precisions float32, bf16 and mxfp8. */
TEST(test_moves_leave_the_bits_of_training) {
    static const moert_precision precisions[] = {MOERT_PRECISION_F32, MOERT_PRECISION_BF16,
                                                 MOERT_PRECISION_MXFP8, MOERT_PRECISION_NVFP4};
    static const char *const engines[] = {"window", "staged", "node"};
    const size_t count = moert_device_describe(test_device)->is_cpu ? 3 : 2;
    for (size_t p = 0; p < MOERT_COUNT(precisions); p++)
        for (size_t e = 0; e < (test_ranks > 1 ? count : 1); e++) {
            test_context->options.engine = test_ranks > 1 ? engines[e] : "local";
            deal_ranks(e == 2 ? 2 : 1);
            check_moves(test_ranks, precisions[p], 4 * e + precisions[p]);
        }
    test_context->options.engine = NULL;
    deal_ranks(1);
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
