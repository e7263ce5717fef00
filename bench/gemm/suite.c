/* The goals of bench_gemm. */
#include "bench/gemm/suite.h"
#include "base/memory.h"

enum { RAGGED_EXPERTS = 5, RAGGED_WEIGHTS = 160 << 20 };

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
    for (size_t i = 0; i < MOERT_COUNT(balanced); i++)
        for (size_t j = 0; j < 3; j++)
            if (balanced[i].op == op && balanced[i].type == type && at[j] == rows)
                return balanced[i].ratio[j];
    return 0.0;
}
