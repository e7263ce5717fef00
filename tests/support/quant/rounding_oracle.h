/*
 * The rounding of GEMM operands by a recipe (moert/recipe.h) in plain float64 arithmetic, one block
 * at a time. It shares no quantization code with the library, except for random numbers.
 */
#pragma once

#include "moert/recipe.h"

typedef struct rounding_oracle {
    uint32_t rounding;            /* as in moert_recipe, not 0 */
    uint64_t seed;                /* the numbers by which stochastic rounding draws, as in */
    uint32_t stream;              /* quant/fake_quantize.h */
    const uint32_t (*draws)[2];   /* [groups] */
    const uint32_t *ends;         /* [groups] */
    size_t groups, rows, columns; /* the groups' rows may be fewer than `rows` */
    size_t stride;                /* of x, in elements */
} rounding_oracle;

/* to[rows,columns] = x rounded in blocks along rows or, with `down`, down columns. Rows past the
 * last group are not written. */
void oracle_round(const rounding_oracle *how, const double *x, bool down, double *to);
