/*
 * Code that bench_gemm and bench_op share: dividing rows among the experts, and checking a result
 * against float64 sums of the operands' values.
 */
#pragma once

#include "op/fields.h"

/* Sets ends[experts]. If `ragged`, an expert has 0.25 to 1.75 times the average number of rows, and
 * the third of every five experts has none. The size of each group is a multiple of `multiple`,
 * except that of the last group. */
void bench_divide_rows(size_t rows, size_t experts, bool ragged, size_t multiple, size_t seed,
                       uint32_t *ends);

/* A GEMM or a GLU with its operands. */
typedef struct bench_check {
    /* only kind, groups, rows, n, k, the type of the result, and the fields and form of a GLU are
     * used */
    moert_op_options op;
    const uint32_t *ends; /* [groups] */
    /* Returns element (line, column) of group g in a buffer: in the group's rows, weight [N,K] or
     * bias [1,N]. For the buffer of the result, returns the old value. */
    double (*value)(const void *of, moert_op_buffer which, size_t g, size_t line, size_t column);
    const void *of;
    double slack; /* error that a sum may have, relative to the sum of its summands' magnitudes */
    size_t seed;
} bench_check;

/*
 * Compares sampled elements of the result (in `buffer` or, if that is NULL, in `memory`, float32)
 * with the expected ones. *wrong = the number of elements whose error exceeds the slack plus, for a
 * 16-bit result, the rounding error. For a GLU the slack is propagated through its derivatives.
 */
moert_status bench_count_wrong(const bench_check *check, const moert_buffer *buffer,
                               const float *memory, size_t *wrong);
