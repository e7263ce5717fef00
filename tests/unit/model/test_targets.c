// run: check=1,2 all=3,2san
/* Padding and targets that do not count: padding changes neither losses nor gradients, and parts of
 * the targets add up to all. Some cases have a rank without sequences. */
#include <math.h>

#include "context/context.h"
#include "model/model.h"
#include "support/files.h"
#include "support/mpi.h"

#define MODEL "tests/golden/model/mixtral-tiny-aux"

enum { PADDED = 5 };

/* The first batch of the golden model: B sequences of S + 1 tokens. */
typedef struct golden {
    size_t sequences, length;
    int32_t *tokens; /* [sequences,length + 1] */
} golden;

static golden open_golden(void) {
    const moert_tensors *files = open_tensors(MODEL "/expected.safetensors");
    const moert_tensor *tokens = moert_tensors_find(files, "tokens");
    golden g = {.sequences = tokens->shape[1], .length = tokens->shape[2] - 1};
    const size_t count = g.sequences * (g.length + 1);
    g.tokens = test_alloc(count * sizeof *g.tokens);
    ASSERT_OK(moert_tensor_read_i32(tokens, 0, count, g.tokens));
    return g;
}

/* This rank's sequences: their first `used` tokens, then padding up to `length`. */
static moert_model_batch take(const golden *g, size_t used, size_t length) {
    size_t first, count;
    moert_model_partition(g->sequences, test_rank, test_ranks, &first, &count);
    int32_t *input = test_alloc(count * length * sizeof *input),
            *target = test_alloc(count * length * sizeof *target);
    for (size_t i = 0; i < count * length; i++) {
        const int32_t *row = g->tokens + (first + i / length) * (g->length + 1);
        const bool real = i % length < used;
        input[i] = real ? row[i % length] : -1;
        target[i] = real ? row[i % length + 1] : -1;
    }
    return (moert_model_batch){.total_sequences = g->sequences,
                               .length = length,
                               .input = input,
                               .target = target,
                               .targets = g->sequences * used};
}

static moert_model *load_model(void) {
    const moert_model_config config = golden_config("mixtral-tiny-aux");
    moert_model *model = open_model(test_mesh, &config);
    ASSERT_OK(moert_model_load(model, MODEL, NULL));
    return model;
}

static moert_model_result step(moert_model *model, const moert_model_batch *given,
                               moert_aux_form form, double aux, size_t index, size_t count) {
    moert_model_batch batch = *given;
    batch.accumulate = index > 0;
    const moert_model_losses losses = {form, aux, aux};
    moert_model_result result;
    ASSERT_OK(moert_model_forward(model, &batch));
    ASSERT_OK(moert_model_loss(model, &losses, 1.0 / (double)count, &result));
    ASSERT_OK(moert_model_backward(model, index + 1 == count));
    return result;
}

/* The largest relative difference of the gradients of a block of this rank. */
static double compare_gradients(moert_model *a, moert_model *b) {
    double worst = 0.0;
    for (size_t i = 0; i < moert_model_block_count(a); i++) {
        moert_buffer *one = moert_model_block(a, i)->gradient,
                     *other = moert_model_block(b, i)->gradient;
        if (one == NULL)
            continue;
        const size_t bytes = moert_buffer_bytes(one), n = bytes / sizeof(float);
        float *x = test_alloc(bytes), *y = test_alloc(bytes);
        double difference = 0.0, norm = 0.0;
        ASSERT_OK(moert_block_gather(moert_model_block(a, i), one));
        ASSERT_OK(moert_block_gather(moert_model_block(b, i), other));
        ASSERT_OK(moert_buffer_read(one, 0, x, bytes));
        ASSERT_OK(moert_buffer_read(other, 0, y, bytes));
        for (size_t k = 0; k < n; k++) {
            difference += ((double)x[k] - (double)y[k]) * ((double)x[k] - (double)y[k]);
            norm += (double)x[k] * (double)x[k];
        }
        worst = fmax(worst, norm > 0.0 ? sqrt(difference / norm) : difference);
    }
    return worst;
}

static void check_padding(moert_aux_form form) {
    const golden g = open_golden();
    const size_t used = g.length - PADDED;
    moert_model *plain = load_model(), *padded = load_model();
    const moert_model_batch shorter = take(&g, used, used), longer = take(&g, used, g.length);
    const moert_model_result a = step(plain, &shorter, form, 0.02, 0, 1),
                             b = step(padded, &longer, form, 0.02, 0, 1);
    const size_t slots = moert_model_describe(plain)->layers *
                         moert_model_describe(plain)->router.experts * sizeof(uint64_t);
    const bool same_counts =
        memcmp(moert_model_expert_counts(plain), moert_model_expert_counts(padded), slots) == 0;
    ASSERT_ON_ALL(same_counts && a.cross_entropy == b.cross_entropy && a.aux == b.aux &&
                  a.z == b.z && a.expert_load == b.expert_load);
    ASSERT_ON_ALL(a.cross_entropy > 1.0 && a.aux > 0.5 && compare_gradients(plain, padded) < 1e-6);
}

TEST(test_padding_routes_nowhere_and_counts_nowhere) {
    check_padding(MOERT_AUX_HUGGING_FACE);
    check_padding(MOERT_AUX_MEGATRON);
    check_padding(MOERT_AUX_SEQUENCE);
}

TEST(test_parts_of_the_targets_add_up) {
    const golden g = open_golden();
    moert_model *whole = load_model(), *parts = load_model();
    const moert_model_batch all = take(&g, g.length, g.length);
    size_t first, count;
    double sum = 0.0;
    moert_model_partition(g.sequences, test_rank, test_ranks, &first, &count);
    const moert_model_result expected = step(whole, &all, MOERT_AUX_HUGGING_FACE, 0.0, 0, 1);
    for (size_t part = 0; part < 2; part++) { /* every third target, then the others */
        moert_model_batch batch = all;
        int32_t *target = test_alloc(count * g.length * sizeof *target);
        for (size_t i = 0; i < count * g.length; i++)
            target[i] = (i % 3 == 0) == (part == 0) ? all.target[i] : -1;
        batch.target = target;
        sum += step(parts, &batch, MOERT_AUX_HUGGING_FACE, 0.0, part, 2).cross_entropy;
    }
    ASSERT_ON_ALL(fabs(sum - expected.cross_entropy) < 1e-12 * sum);
    ASSERT_ON_ALL(compare_gradients(whole, parts) < 2e-6);
}

MPI_TESTS(open_test_mesh, close_test_mesh)
