/* A grouped GEMM of random data, for which tuning measures candidates of choices. */
#pragma once

#include "gemm/gemm.h"
#include "gemm/tuning/search.h"
#include "tools/common/gemm_shapes.h"

typedef struct moert_tune_gemm {
    moert_tuning_key key;
    moert_gemm gemm;
    moert_buffer *ends, *result;
    /* the weight, prepacked for `tile`; NULL if the operation reads weights that are not
     * prepacked */
    moert_panels *panels;
    moert_choices tile;
} moert_tune_gemm;

/* Creates a GEMM whose groups have equal size. *possible is set if the device has the operation
 * and, for an operation that reads prepacked weights, can prepack them. */
moert_status moert_tune_gemm_create(moert_device *device, moert_tuned operation, moert_dtype type,
                                    const moert_gemm_shape *shape, moert_tune_gemm *gemm,
                                    bool *possible);
void moert_tune_gemm_destroy(moert_tune_gemm *gemm);

/* Returns the trial that a search runs. The trial prepacks the weight again when the tile
 * changes. */
moert_trial moert_tune_gemm_trial(moert_tune_gemm *gemm);

/* Runs the GEMM with both sets of choices. ERROR_NUMERIC if the results differ in any bit. */
moert_status moert_tune_gemm_compare(moert_tune_gemm *gemm, const moert_choices *a,
                                     const moert_choices *b);
