/*
 * The products of the portable backend over a part of the groups: those from number `start` on,
 * gemm->groups.count of them, whose weights begin the buffer gemm->weight. `ends` and `bias` are of
 * all groups, `accumulate` is as in ops/grouped.h. The arguments have been checked.
 */
#ifndef MOERT_OPS_PORTABLE_H
#define MOERT_OPS_PORTABLE_H

#include "base/memory.h"
#include "ops/grouped.h"

moert_status moert_portable_forward_from(const moert_gemm *gemm, size_t start);
moert_status moert_portable_dgrad_from(const moert_gemm *gemm, size_t start);
moert_status moert_portable_wgrad_from(const moert_gemm *gemm, size_t start);

/* The program of the products of a type, by packed weights or native ones. */
const char *moert_gemm_program(const moert_device *device, moert_number type, bool packed);

enum { MOERT_PANEL_COLUMNS = 32 }; /* COLUMNS in kernels/gemm.h */

/* Numbers of a term in kernels/gemm.h. */
static inline size_t moert_per_term(moert_number type) {
    return type == MOERT_NUMBER_BF16 ? 2 : 1;
}

/* Rows of a packed panel. */
static inline size_t moert_panel_height(moert_number type, size_t reduction) {
    return moert_round_up(reduction, 16) / moert_per_term(type);
}

/* Columns of the panels for a GLU of a width: a panel has 16 gates and their 16 ups. */
static inline size_t moert_gated_columns(size_t width) {
    return moert_ceil_div(width, MOERT_PANEL_COLUMNS / 2) * MOERT_PANEL_COLUMNS;
}

#endif
