/* The tables of gemm_shapes.h. */
#include "tools/common/gemm_shapes.h"

#include <string.h>

#include "base/memory.h"

enum { REAL_ROWS = 128, REAL_WEIGHTS = 32 << 20 };

static const moert_gemm_shape cpu[] = {
    {8, 32, 1408, 512, NULL},   {8, 32, 1408, 1024, NULL},  {8, 32, 512, 1024, NULL},
    {4, 32, 2816, 2048, NULL},  {8, 128, 512, 512, NULL},   {4, 128, 1408, 1024, NULL},
    {2, 128, 2816, 2048, NULL}, {2, 512, 1408, 1024, NULL}, {2, 512, 2816, 2048, NULL},
};
static const moert_gemm_shape small[] = {
    {4, 16, 64, 64, NULL},
    {4, 32, 256, 128, NULL},
    {8, 24, 176, 72, NULL},
    {3, 33, 130, 67, NULL},
};

/* From each model's config.json: hidden and intermediate size of an expert, experts per layer. */
static const struct {
    const char *name;
    size_t hidden, intermediate, experts;
} models[] = {
    {"Mixtral 8x7B", 4096, 14336, 8},      {"Mixtral 8x22B", 6144, 16384, 8},
    {"DeepSeek-V2-Lite", 2048, 1408, 64},  {"DeepSeek-V3", 7168, 2048, 256},
    {"Qwen3-30B-A3B", 2048, 768, 128},     {"Qwen3-235B-A22B", 4096, 1536, 128},
    {"OLMoE-1B-7B", 2048, 1024, 64},       {"gpt-oss", 2880, 2880, 32},
    {"Granite-3 3B-A800M", 1536, 512, 40},
};

void moert_expert_shapes(const char *model, size_t hidden, size_t intermediate, size_t experts,
                         size_t rows, moert_gemm_shape shapes[2]) {
    for (int down = 0; down < 2; down++) {
        const size_t n = down ? hidden : 2 * intermediate, k = down ? intermediate : hidden;
        const size_t fit = moert_max(1, REAL_WEIGHTS / (n * k));
        shapes[down] = (moert_gemm_shape){moert_min(fit, experts), rows, n, k, model};
    }
}

static size_t real_shapes(moert_gemm_shape *shapes) {
    for (size_t i = 0; i < MOERT_COUNT(models); i++)
        moert_expert_shapes(models[i].name, models[i].hidden, models[i].intermediate,
                            models[i].experts, REAL_ROWS, &shapes[2 * i]);
    return 2 * MOERT_COUNT(models);
}

size_t moert_gemm_shapes(moert_gemm_suite suite, moert_gemm_shape shapes[MOERT_MOST_GEMM_SHAPES]) {
    if (suite == MOERT_GEMM_SUITE_REAL)
        return real_shapes(shapes);
    if (suite == MOERT_GEMM_SUITE_SMALL) {
        memcpy(shapes, small, sizeof small);
        return MOERT_COUNT(small);
    }
    memcpy(shapes, cpu, sizeof cpu);
    return MOERT_COUNT(cpu);
}
