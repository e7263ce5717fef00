/* Generates text with a byte-level model. Each byte needs a full forward pass over the bytes before
 * it. */
#include <math.h>
#include <string.h>

#include "base/elementary.h"
#include "base/memory.h"
#include "base/rng.h"
#include "train/trainer.h"

/* Draws a byte from softmax(logits / temperature); `uniform` is a random number in [0, 1). */
static int draw(const float *logits, size_t count, double temperature, double uniform) {
    double largest = -INFINITY, sum = 0.0, at = 0.0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, (double)logits[i]);
    for (size_t i = 0; i < count; i++)
        sum += moert_exp(((double)logits[i] - largest) / temperature);
    for (size_t i = 0; i + 1 < count; i++) {
        at += moert_exp(((double)logits[i] - largest) / temperature) / sum;
        if (uniform < at)
            return (int)i;
    }
    return (int)count - 1;
}

/* An unfinished text and the buffers of a forward pass. */
typedef struct sample {
    moert_run *run;
    const moert_sampling *how;
    char *text;
    float *logits;  /* [vocabulary] */
    int32_t *input; /* [how->length] */
} sample;

/* Draws text[used] and broadcasts it. Collective. */
static moert_status next_byte(const sample *s, size_t used) {
    const moert_model *model = moert_run_model(s->run);
    moert_comm *world = moert_model_mesh(model)->world;
    size_t first, count, window = moert_min(used, s->how->length),
                         vocabulary = moert_model_describe(model)->vocabulary;
    moert_model_partition(1, moert_comm_rank(world), moert_comm_size(world), &first, &count);
    for (size_t i = 0; i < window; i++)
        s->input[i] = (unsigned char)s->text[used - window + i];
    const moert_model_batch batch = {
        .total_sequences = 1, .length = window, .input = s->input, .forward_only = true};
    MOERT_TRY(moert_run_forward(s->run, &batch));
    if (count == 1) { /* this rank has the sequence */
        MOERT_TRY(moert_run_logits(s->run, window - 1, s->logits));
        s->text[used] = (char)draw(s->logits, moert_min(vocabulary, 256), s->how->temperature,
                                   moert_rng_uniform(s->how->seed, 0x53414D50u, used));
    }
    return moert_comm_broadcast(world, moert_comm_size(world) - 1, &s->text[used], 1);
}

moert_status moert_sample_text(moert_model *model, const moert_sampling *how, const char *prompt,
                               char *text) {
    const size_t start = strlen(prompt), count = how->count;
    sample s = {.how = how};
    moert_status status;
    if (start == 0)
        return MOERT_FAIL(ERROR_USAGE, "a text sample needs a prompt of at least one byte");
    MOERT_TRY_OR(done, moert_run_create(model, &s.run));
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&s.text, start + count + 1));
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&s.logits, moert_model_describe(model)->vocabulary));
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&s.input, how->length));
    memcpy(s.text, prompt, start + 1);
    for (size_t i = 0; i < count; i++)
        MOERT_TRY_OR(done, next_byte(&s, start + i));
    memcpy(text, s.text + start, count);
    text[count] = '\0';
done:
    moert_run_destroy(s.run);
    MOERT_FREE(s.input, s.logits, s.text);
    return status;
}
