/* Text from a trained byte-level model: each byte by a whole forward pass over what stands before
 * it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "train/trainer.h"

/* A byte drawn from softmax(logits / temperature), with a uniform number in [0, 1). */
static int draw(const float *logits, size_t count, double temperature, double uniform) {
    double largest = -INFINITY, sum = 0.0, at = 0.0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, (double)logits[i]);
    for (size_t i = 0; i < count; i++)
        sum += exp(((double)logits[i] - largest) / temperature);
    for (size_t i = 0; i + 1 < count; i++) {
        at += exp(((double)logits[i] - largest) / temperature) / sum;
        if (uniform < at)
            return (int)i;
    }
    return (int)count - 1;
}

/* The byte that follows text[used], on all ranks. Collective. */
static moert_status next_byte(moert_model *model, const char *text, size_t used, size_t length,
                              double temperature, uint64_t seed, float *logits, int32_t *input,
                              char *byte) {
    moert_comm *world = moert_model_mesh(model)->world;
    size_t first, count, window = moert_min(used, length),
                         vocabulary = moert_model_describe(model)->vocabulary;
    moert_model_share(1, moert_comm_rank(world), moert_comm_size(world), &first, &count);
    for (size_t i = 0; i < window; i++)
        input[i] = (unsigned char)text[used - window + i];
    const moert_model_batch batch = {1, window, input, NULL, true};
    MOERT_TRY(moert_model_forward(model, &batch));
    if (count == 1) { /* the one sequence is here */
        MOERT_TRY(moert_model_logits(model, window - 1, logits));
        *byte = (char)draw(logits, moert_min(vocabulary, 256), temperature,
                           moert_rng_uniform(seed, 0x53414D50u, used));
    }
    return moert_comm_broadcast(world, moert_comm_size(world) - 1, byte, 1);
}

moert_status moert_sample_text(moert_model *model, const char *prompt, size_t count,
                               double temperature, uint64_t seed, size_t length, char *text) {
    size_t start = strlen(prompt);
    char *all = NULL;
    float *logits = NULL;
    int32_t *input = NULL;
    moert_status status;
    if (start == 0)
        return MOERT_FAIL(ERROR_USAGE, "a text sample needs a prompt of at least one byte");
    MOERT_TRY_OR(done, moert_alloc(&all, start + count + 1, 1));
    MOERT_TRY_OR(done,
                 moert_alloc(&logits, moert_model_describe(model)->vocabulary, sizeof *logits));
    MOERT_TRY_OR(done, moert_alloc(&input, length, sizeof *input));
    memcpy(all, prompt, start + 1);
    for (size_t i = 0; i < count; i++)
        MOERT_TRY_OR(done, next_byte(model, all, start + i, length, temperature, seed, logits,
                                     input, &all[start + i]));
    memcpy(text, all + start, count);
    text[count] = '\0';
done:
    free(input);
    free(logits);
    free(all);
    return status;
}
