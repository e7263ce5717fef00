/*
 * What bench_gemm and bench_op share: the rows of the experts, and the check of a result against
 * float64 sums of the operands' values.
 */
#pragma once

#include "op/fields.h"

/* Sets ends[experts]. Ragged: an expert has 0.25 to 1.75 times the average rows, the third of every
 * five has none. Groups are multiples of `multiple`, except the last one. */
void bench_divide_rows(size_t rows, size_t experts, bool ragged, size_t multiple, size_t seed,
                       uint32_t *ends);

/* A GEMM or a GLU with its operands. */
typedef struct bench_check {
    moert_op_options
        op; /* kind, groups, rows, n, k, type of the result; fields and form of a GLU */
    const uint32_t *ends; /* [groups] */
    /* Element (line, column) of the part of a buffer that belongs to group g: of its rows, its
     * weight [N,K] or its bias [1,N]. The buffer of the result holds its old values. */
    double (*value)(const void *of, moert_op_buffer which, size_t g, size_t line, size_t column);
    const void *of;
    double slack; /* error that a sum may have, relative to the sum of its summands' magnitudes */
    size_t seed;
} bench_check;

/*
 * Compares sampled elements of the result (in `buffer` or, if that is NULL, in `memory`, float32)
 * with the expected ones. *wrong = number of elements that are off by more than the slack and, if
 * the result has 16 bits, the rounding. For a GLU the slack is propagated through its derivatives.
 */
moert_status bench_count_wrong(const bench_check *check, const moert_buffer *buffer,
                               const float *memory, size_t *wrong);
