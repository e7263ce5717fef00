// run: check=1,2 all=3,2san
/* Logits in chunks of tokens: losses, logits and gradients have the bits that they have without
 * chunks, with one or several sequences a rank and micro-batches. */
#include <string.h>

#include "model/internal.h"
#include "support/files.h"
#include "support/mpi.h"

enum { LENGTH = 136, SEQUENCES = 5, MICRO_BATCHES = 2, VOCABULARY = 256 };

typedef struct setting {
    moert_precision dense;
    bool tied;
    size_t sequences;
} setting;

/* The values of one step: losses, and the gradients of all blocks. */
typedef struct outcome {
    double loss[MICRO_BATCHES];
    float *logits, *gradient;
    size_t logit_floats, gradient_floats;
} outcome;

static moert_model *make_model(const setting *how, size_t chunk) {
    moert_model_config config = golden_config("qwen3-tiny");
    config.dense = how->dense;
    config.tied_embeddings = how->tied;
    config.memory.loss_chunk = chunk;
    moert_model *model = open_model(test_mesh, &config);
    ASSERT_OK(moert_model_initialize(model, 3));
    return model;
}

/* This rank's sequences; every fifth target does not count. */
static moert_model_batch take_batch(size_t sequences, size_t index) {
    size_t first, count;
    moert_model_partition(sequences, test_rank, test_ranks, &first, &count);
    int32_t *input = test_alloc(count * LENGTH * sizeof *input),
            *target = test_alloc(count * LENGTH * sizeof *target);
    for (size_t i = 0; i < count * LENGTH; i++) {
        const size_t t = (index * sequences + first) * LENGTH + i;
        input[i] = (int32_t)(t * t % 251 % VOCABULARY);
        target[i] = t % 5 == 0 ? -1 : (int32_t)(t * 7 % VOCABULARY);
    }
    return (moert_model_batch){.total_sequences = sequences,
                               .length = LENGTH,
                               .input = input,
                               .target = target,
                               .accumulate = index > 0};
}

static float *gather_gradients(moert_model *model, size_t *floats) {
    *floats = 0;
    for (size_t b = 0; b < moert_model_block_count(model); b++)
        *floats += moert_model_block(model, b)->floats;
    float *all = test_alloc(*floats * sizeof *all), *at = all;
    for (size_t b = 0; b < moert_model_block_count(model); b++) {
        const moert_block *block = moert_model_block(model, b);
        ASSERT_OK(moert_block_gather(block, block->gradient));
        ASSERT_OK(moert_buffer_read(block->gradient, 0, at, block->floats * sizeof *at));
        at += block->floats;
    }
    return all;
}

static outcome run_step(moert_model *model, size_t sequences) {
    const moert_model_losses losses = {MOERT_AUX_HUGGING_FACE, 0.02, 1e-3};
    outcome o = {.logits = NULL};
    for (size_t i = 0; i < MICRO_BATCHES; i++) {
        moert_model_result result;
        const moert_model_batch batch = take_batch(sequences, i);
        ASSERT_OK_ON_ALL(moert_model_forward(model, &batch));
        const size_t tokens = model->batch.tokens;
        o.logit_floats = tokens * VOCABULARY;
        o.logits = test_alloc(o.logit_floats * sizeof *o.logits);
        for (size_t t = 0; t < tokens; t++)
            ASSERT_OK(moert_model_logits(model, t, o.logits + t * VOCABULARY));
        ASSERT_OK_ON_ALL(moert_model_loss(model, &losses, 1.0 / MICRO_BATCHES, &result));
        ASSERT_OK_ON_ALL(moert_model_backward(model, i + 1 == MICRO_BATCHES));
        o.loss[i] = result.cross_entropy;
    }
    o.gradient = gather_gradients(model, &o.gradient_floats);
    return o;
}

static bool same_floats(const float *a, const float *b, size_t n) {
    return n == 0 || memcmp(a, b, n * sizeof *a) == 0;
}

/* Whether gradients have the same bits. Chunks change the order in which tensor cores sum that of
 * the head's weight, so there it may differ by their rounding. */
static bool same_gradients(const moert_model *model, const setting *how, const outcome *a,
                           const outcome *b) {
    const bool tensor_cores = how->dense == MOERT_PRECISION_BF16 &&
                              moert_device_describe(model->mesh->device)->nvidia >= 80;
    const moert_block_tensor *head = &model->outer->tensor[moert_model_head(model)];
    const size_t first = tensor_cores ? head->offset : 0, /* `outer` is the first block */
        end = tensor_cores ? first + head->elements : 0;
    double difference = 0.0, sum = 0.0;
    for (size_t i = first; i < end; i++) {
        difference += ((double)a->gradient[i] - b->gradient[i]) * (a->gradient[i] - b->gradient[i]);
        sum += (double)a->gradient[i] * a->gradient[i];
    }
    return model->block[0] == model->outer && difference <= 1e-8 * sum &&
           same_floats(a->gradient, b->gradient, first) &&
           same_floats(a->gradient + end, b->gradient + end, a->gradient_floats - end);
}

static void check_chunks(const setting *how) {
    const outcome whole = run_step(make_model(how, 0), how->sequences);
    const size_t chunks[] = {64, 192};
    for (size_t i = 0; i < MOERT_COUNT(chunks); i++) {
        moert_model *model = make_model(how, chunks[i]);
        const outcome parts = run_step(model, how->sequences);
        const size_t most = moert_min(chunks[i], LENGTH) * VOCABULARY * sizeof(float);
        ASSERT_ON_ALL(moert_buffer_bytes(model->logits) <= most);
        ASSERT_ON_ALL(memcmp(whole.loss, parts.loss, sizeof whole.loss) == 0);
        ASSERT_ON_ALL(same_floats(whole.logits, parts.logits, parts.logit_floats));
        ASSERT_ON_ALL(same_gradients(model, how, &whole, &parts));
    }
}

TEST(test_an_untied_head_has_the_same_bits_in_chunks) {
    check_chunks(&(setting){MOERT_PRECISION_F32, false, SEQUENCES});
    check_chunks(&(setting){MOERT_PRECISION_F32, false, 1});
}

TEST(test_a_head_in_bf16_has_the_same_bits_in_chunks) {
    check_chunks(&(setting){MOERT_PRECISION_BF16, false, SEQUENCES});
}

TEST(test_a_tied_head_has_the_same_bits_in_chunks) {
    check_chunks(&(setting){MOERT_PRECISION_F32, true, SEQUENCES});
    check_chunks(&(setting){MOERT_PRECISION_BF16, true, 2});
}

MPI_TESTS(open_test_mesh, close_test_mesh)
