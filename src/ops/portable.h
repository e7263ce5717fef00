/*
 * The products of the portable backend over a part of the groups: those from number `start` on,
 * gemm->groups.count of them, whose weights begin the buffer gemm->weight. `ends` and `bias` are of
 * all groups, `accumulate` is as in ops/grouped.h. The arguments have been checked.
 */
#ifndef MOERT_OPS_PORTABLE_H
#define MOERT_OPS_PORTABLE_H

#include "ops/grouped.h"

moert_status moert_portable_forward_from(const moert_gemm *gemm, size_t start);
moert_status moert_portable_dgrad_from(const moert_gemm *gemm, size_t start);
moert_status moert_portable_wgrad_from(const moert_gemm *gemm, size_t start);

#endif
