// run: check=1,2 all=3,2san
/* Logits in chunks of tokens: losses, logits and gradients have the bits that they have without
 * chunks, with one or several sequences a rank and micro-batches. */
#include "device/device.h"
#include "support/model/model_run.h"

enum { LENGTH = 136, MICRO_BATCHES = 2, VOCABULARY = 256 };

typedef struct setting {
    moert_precision dense;
    bool tied;
    size_t sequences;
} setting;

/* A model after a step, the step's losses, and the logits of the last micro-batch. */
typedef struct outcome {
    moert_model *model;
    double loss[MICRO_BATCHES];
    float *logits;
} outcome;

/* Every fifth target is masked. */
static outcome run_step(const setting *how, size_t chunk) {
    const moert_model_losses losses = {MOERT_AUX_HUGGING_FACE, 0.02, 1e-3};
    moert_model_config config = golden_config("qwen3-tiny");
    config.dense = how->dense;
    config.tied_embeddings = how->tied;
    config.pad_token = 4; /* some tokens of the batch are 4, so they are padding */
    config.memory.loss_chunk = chunk;
    outcome o = {.model = open_model(test_mesh, &config)};
    ASSERT_OK(moert_model_initialize(o.model, 3));
    for (size_t m = 0; m < MICRO_BATCHES; m++) {
        model_data data = alloc_data(how->sequences, LENGTH);
        for (size_t i = 0; i < how->sequences * LENGTH; i++) {
            const size_t t = m * how->sequences * LENGTH + i;
            data.input[i] = (int32_t)(t * t % 251 % VOCABULARY);
            data.target[i] = t % 5 == 0 ? -1 : (int32_t)(t * 7 % VOCABULARY);
        }
        moert_model_batch batch = model_batch(o.model, &data);
        moert_model_result result;
        batch.accumulate = m > 0;
        ASSERT_OK_ON_ALL(moert_run_forward(run_of(o.model), &batch));
        o.logits = model_logits(o.model);
        ASSERT_OK_ON_ALL(moert_run_loss(run_of(o.model), &losses, 1.0 / MICRO_BATCHES, &result));
        ASSERT_OK_ON_ALL(moert_run_backward(run_of(o.model), m + 1 == MICRO_BATCHES));
        o.loss[m] = result.cross_entropy;
    }
    return o;
}

static bool same_values(const float *a, const float *b, size_t n) {
    return n == 0 || memcmp(a, b, n * sizeof *a) == 0;
}

/* Whether gradients have the same bits. Chunks change the order in which tensor cores sum the
 * gradient of the head's weight, so this gradient may differ by rounding. */
static bool same_gradients(const setting *how, const outcome *a, const outcome *b) {
    const moert_model *model = a->model;
    const bool tensor_cores = how->dense == MOERT_PRECISION_BF16 &&
                              moert_device_describe(model->mesh->device)->nvidia >= 80;
    const moert_block_tensor *head = &model->outer->tensor[moert_model_head(model)];
    bool same = model->block[0] == model->outer;
    for (size_t i = 0; i < moert_model_block_count(model); i++) {
        size_t n;
        const float *x = model_gradients(model, i, &n), *y = model_gradients(b->model, i, &n);
        const size_t first = i == 0 && tensor_cores ? head->offset : n,
                     end = i == 0 && tensor_cores ? first + head->elements : n;
        same &= same_values(x, y, first) && same_values(x + end, y + end, n - end);
        same &= first == end || relative_difference(x + first, y + first, end - first) <= 1e-4;
    }
    return same;
}

static void check_chunks(const setting *how) {
    static const size_t chunks[] = {64, 192};
    const outcome whole = run_step(how, 0);
    for (size_t i = 0; i < MOERT_COUNT(chunks); i++) {
        const outcome parts = run_step(how, chunks[i]);
        const size_t most = moert_min(chunks[i], LENGTH) * VOCABULARY * sizeof(float);
        ASSERT_ON_ALL(moert_buffer_bytes(run_of(parts.model)->logits) <= most);
        ASSERT_ON_ALL(memcmp(whole.loss, parts.loss, sizeof whole.loss) == 0);
        ASSERT_ON_ALL(same_values(whole.logits, parts.logits,
                                  run_of(whole.model)->batch.tokens * VOCABULARY));
        ASSERT_ON_ALL(same_gradients(how, &whole, &parts));
    }
}

/* There are one or several sequences per rank. The gradient of a tied head also contains that of
 * the embedding. */
TEST(test_a_head_has_the_same_bits_in_chunks) {
    static const setting settings[] = {{MOERT_PRECISION_F32, false, 5},
                                       {MOERT_PRECISION_F32, false, 1},
                                       {MOERT_PRECISION_BF16, false, 5},
                                       {MOERT_PRECISION_F32, true, 5},
                                       {MOERT_PRECISION_BF16, true, 2}};
    for (size_t i = 0; i < MOERT_COUNT(settings); i++)
        check_chunks(&settings[i]);
}

MPI_TESTS(open_test_mesh, close_test_mesh)
