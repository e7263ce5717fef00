/* The shapes and goals of bench_gemm. */
#include "suite.h"

#include <string.h>

#include "base/memory.h"

enum { REAL_ROWS = 128, REAL_WEIGHTS = 32 << 20 };
enum { RAGGED_EXPERTS = 5, RAGGED_WEIGHTS = 160 << 20 };

static const bench_shape cpu[] = {
    {8, 32, 1408, 512, NULL},   {8, 32, 1408, 1024, NULL},  {8, 32, 512, 1024, NULL},
    {4, 32, 2816, 2048, NULL},  {8, 128, 512, 512, NULL},   {4, 128, 1408, 1024, NULL},
    {2, 128, 2816, 2048, NULL}, {2, 512, 1408, 1024, NULL}, {2, 512, 2816, 2048, NULL},
};
static const bench_shape small[] = {
    {4, 16, 64, 64, NULL},
    {4, 32, 256, 128, NULL},
    {8, 24, 176, 72, NULL},
    {3, 33, 130, 67, NULL},
};

/* Of their config.json: hidden and intermediate size of an expert, experts of a layer. */
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

/* The GEMM of gate and up together, and that back down. */
static size_t real_shapes(bench_shape *shapes) {
    size_t count = 0;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        for (int down = 0; down < 2; down++) {
            const size_t n = down ? models[i].hidden : 2 * models[i].intermediate;
            const size_t k = down ? models[i].intermediate : models[i].hidden;
            const size_t fit = moert_max(1, REAL_WEIGHTS / (n * k));
            shapes[count++] =
                (bench_shape){moert_min(fit, models[i].experts), REAL_ROWS, n, k, models[i].name};
        }
    return count;
}

size_t bench_suite_shapes(bench_suite suite, bench_shape shapes[BENCH_MOST_SHAPES]) {
    if (suite == BENCH_SUITE_REAL)
        return real_shapes(shapes);
    if (suite == BENCH_SUITE_SMALL) {
        memcpy(shapes, small, sizeof small);
        return sizeof small / sizeof small[0];
    }
    memcpy(shapes, cpu, sizeof cpu);
    return sizeof cpu / sizeof cpu[0];
}

size_t bench_suite_experts(const bench_shape *shape, bool ragged) {
    if (!ragged || shape->experts >= RAGGED_EXPERTS)
        return shape->experts;
    return RAGGED_EXPERTS * shape->n * shape->k <= RAGGED_WEIGHTS ? RAGGED_EXPERTS : 0;
}

double bench_suite_goal(bench_op op, moert_number type, bool ragged, size_t rows) {
    static const size_t at[] = {32, 128, 512};
    static const struct {
        bench_op op;
        moert_number type;
        double ratio[3];
    } balanced[] = {
        {BENCH_FPROP, MOERT_NUMBER_F32, {1.5, 1.15, 1.03}},
        {BENCH_DGRAD, MOERT_NUMBER_F32, {1.5, 1.15, 1.03}},
        {BENCH_WGRAD, MOERT_NUMBER_F32, {1.2, 1.0, 0.95}},
        {BENCH_FPROP, MOERT_NUMBER_BF16, {3.0, 2.2, 2.0}},
        {BENCH_DGRAD, MOERT_NUMBER_BF16, {1.8, 1.8, 1.8}},
        {BENCH_WGRAD, MOERT_NUMBER_BF16, {1.6, 1.6, 1.6}},
    };
    if (ragged)
        return 1.1;
    for (size_t i = 0; i < sizeof balanced / sizeof balanced[0]; i++)
        for (size_t j = 0; j < 3; j++)
            if (balanced[i].op == op && balanced[i].type == type && at[j] == rows)
                return balanced[i].ratio[j];
    return 0.0;
}
