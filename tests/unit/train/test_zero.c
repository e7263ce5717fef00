// run: check=1,2 all=3,4,2san
/* Gradients and optimizer, sharded over the ranks. Norm and steps have the bits of unsharded
 * tensors, for any EP x EDP. They read only the rank's shard of a gradient. */
#include "base/memory.h"
#include "base/rng.h"
#include "layer/internal.h"
#include "support/mpi.h"
#include "train/optimizer.h"

enum { STEPS = 3 };

static const moert_optimizer_options settings = {
    .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decay = 0.1, .clip = 1.0};
static const double rate = 1e-2;
static size_t ep; /* ranks per set of experts in the mesh */

/* Returns the gradient of a tensor in a step, which is the same on any rank. */
static float *gradient_of(const moert_model_tensor *tensor, size_t step) {
    return random_floats(tensor->elements, 1.0f, moert_rng_stream(tensor->name) + step);
}

/* Writes the gradient of a step into this rank's shard of each block, and NaN elsewhere. */
static moert_status set_gradients(moert_model *model, size_t step) {
    const moert_model_tensor *tensor = moert_model_tensors(model);
    for (size_t t = 0; t < moert_model_tensor_count(model); t++) {
        const moert_model_range shard = moert_model_shard(&tensor[t]);
        float *values = gradient_of(&tensor[t], step);
        for (size_t i = 0; i < tensor[t].elements; i++)
            if (i < shard.first || i >= shard.first + shard.count)
                values[i] = NAN;
        const moert_status status =
            tensor[t].block == NULL
                ? MOERT_OK
                : moert_buffer_write(tensor[t].block->gradient, tensor[t].offset * sizeof *values,
                                     values, tensor[t].elements * sizeof *values);
        MOERT_TRY(status);
    }
    return MOERT_OK;
}

/* ---- the oracle, without shards ---- */

static double whole_norm(const moert_model *model, size_t step) {
    const moert_model_tensor *tensor = moert_model_tensors(model);
    double sum = 0.0;
    for (size_t t = 0; t < moert_model_tensor_count(model); t++) {
        float *values = gradient_of(&tensor[t], step);
        moert_buffer *buffer = upload(values, tensor[t].elements * sizeof *values);
        const moert_square_span span = {{buffer, MOERT_DTYPE_F32, 0}, tensor[t].elements};
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
        float *values = gradient_of(tensor, step);
        moert_buffer *gradient = upload(values, bytes);
        const moert_adamw adamw = {.rate = rate,
                                   .beta1 = settings.beta1,
                                   .beta2 = settings.beta2,
                                   .epsilon = settings.epsilon,
                                   .decay = tensor->is_matrix ? settings.decay : 0.0,
                                   .scale = settings.clip / (norm[step] + 1e-6),
                                   .step = step + 1};
        ASSERT_OK(moert_adamw_step(
            &adamw, tensor->elements, p, &(moert_elements){gradient, MOERT_DTYPE_F32, 0},
            &(moert_elements){m, MOERT_DTYPE_F32, 0}, &(moert_elements){v, MOERT_DTYPE_F32, 0}));
    }
    download_into(p, weight, bytes);
}

/* ---- shards ---- */

/* Makes a model in which a shard of an expert is a whole chunk and a partial chunk, at offsets at
 * which a buffer view cannot begin. */
static moert_model *new_model(void) {
    moert_model_config config = golden_config("qwen3-tiny");
    config.hidden = 72;
    config.intermediate = 65;
    config.router.experts = 5;
    config.router.topk = 2;
    moert_model *model = open_model(open_mesh(ep), &config);
    ASSERT_OK_ON_ALL(moert_model_initialize(model, 3));
    return model;
}

static float *weight_of(const moert_model_tensor *tensor) {
    float *values = test_alloc(tensor->elements * sizeof *values);
    ASSERT_OK(moert_buffer_read(tensor->block->weight, tensor->offset * sizeof *values, values,
                                tensor->elements * sizeof *values));
    return values;
}

/* Takes all steps. Returns true if norm[STEPS] and this rank's weights have the bits of unsharded
 * tensors. */
static bool steps_are_right(moert_model *model, moert_optimizer *optimizer) {
    const size_t count = moert_model_tensor_count(model);
    const moert_model_tensor *tensor = moert_model_tensors(model);
    float **want = test_alloc(count * sizeof *want);
    double norm[STEPS];
    bool right = true;
    for (size_t t = 0; t < count; t++)
        want[t] = tensor[t].block != NULL ? weight_of(&tensor[t]) : NULL;
    for (size_t step = 0; step < STEPS; step++) {
        ASSERT_OK_ON_ALL(set_gradients(model, step));
        ASSERT_OK(moert_gradient_norm_take(optimizer->norm, &norm[step]));
        ASSERT_OK(moert_optimizer_step(optimizer, rate, norm[step], step + 1));
        right = right && norm[step] > settings.clip && norm[step] == whole_norm(model, step);
    }
    for (size_t t = 0; t < count; t++) {
        if (want[t] == NULL)
            continue;
        float *got = weight_of(&tensor[t]);
        update_whole(&tensor[t], norm, want[t]);
        right = right && memcmp(got, want[t], tensor[t].elements * sizeof *got) == 0;
    }
    return right;
}

/* Checks that the ranks that hold a block divide the moments of the block evenly. */
static bool moments_are_sharded(moert_model *model, moert_optimizer *optimizer) {
    bool right = true;
    for (size_t b = 0; b < moert_model_block_count(model); b++) {
        const moert_block *block = moert_model_block(model, b);
        const size_t holders = moert_comm_size(block->comm);
        size_t bytes[4], sum = 0, mine = moert_buffer_bytes(optimizer->moments[b].first);
        right = right && holders == (block->replicated ? test_ranks : test_ranks / ep) &&
                moert_buffer_bytes(optimizer->moments[b].second) == mine;
        ASSERT_OK(moert_comm_allgather(block->comm, &mine, sizeof mine, bytes));
        for (size_t r = 0; r < holders; r++)
            sum += bytes[r];
        const size_t even = moert_ceil_div(block->chunks, holders) * MOERT_SQUARES_CHUNK;
        right = right && sum == block->floats * sizeof(float) &&
                mine <= (even + 128) * sizeof(float); /* 128: padding of the buffer */
    }
    return right;
}

/* Runs a check for every EP x EDP. */
static void check_meshes(bool (*is_right)(moert_model *model, moert_optimizer *optimizer)) {
    for (ep = 1; ep <= test_ranks; ep++) {
        moert_optimizer *optimizer;
        if (test_ranks % ep != 0)
            continue;
        moert_model *model = new_model();
        ASSERT_OK_ON_ALL(moert_optimizer_create(model, &settings, &optimizer));
        ASSERT_ON_ALL(is_right(model, optimizer));
        moert_optimizer_destroy(optimizer);
    }
}

TEST(test_norm_and_steps_have_the_bits_of_unsharded_tensors) {
    check_meshes(steps_are_right);
}

TEST(test_moments_are_sharded_over_the_ranks_that_hold_a_block) {
    check_meshes(moments_are_sharded);
}

MPI_TESTS(open_test_context, close_test_context)
