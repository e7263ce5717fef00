/* The layers of released models, by name. */
#pragma once

#include <stddef.h>

/* The words of --model. The chosen word's index is 0 for "none", otherwise the index in
 * bench_models plus 1. */
#define BENCH_MODEL_WORDS "none|qwen3-30b|olmoe|deepseek-v3|mixtral-8x7b"

typedef struct bench_model {
    const char *name;
    size_t hidden, intermediate, experts, topk, layers, heads, kv_heads, head, vocabulary;
} bench_model;

/* `layers` counts the layers with experts. heads = 0: the model has another kind of attention,
 * which bench_model does not predict. */
static const bench_model bench_models[] = {
    {"qwen3-30b", 2048, 768, 128, 8, 48, 32, 4, 128, 151936},
    {"olmoe", 2048, 1024, 64, 8, 16, 16, 16, 128, 50304},
    {"deepseek-v3", 7168, 2048, 256, 8, 58, 0, 0, 0, 0},
    {"mixtral-8x7b", 4096, 14336, 8, 2, 32, 32, 8, 128, 32000},
};

/* Stores the four sizes of the chosen model and returns it; for "none", changes nothing and returns
 * NULL. */
static inline const bench_model *bench_model_take(size_t choice, size_t *hidden,
                                                  size_t *intermediate, size_t *experts,
                                                  size_t *topk) {
    if (choice == 0)
        return NULL;
    const bench_model *m = &bench_models[choice - 1];
    *hidden = m->hidden;
    *intermediate = m->intermediate;
    *experts = m->experts;
    *topk = m->topk;
    return m;
}
