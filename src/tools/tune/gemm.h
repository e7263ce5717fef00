/* A grouped GEMM with random data, on which tuning measures its candidates. */
#pragma once

#include "gemm/gemm.h"
#include "gemm/tuning/search.h"
#include "tools/common/gemm_shapes.h"

typedef struct moert_tune_gemm {
    moert_tuning_key key;
    moert_gemm gemm;
    moert_buffer *ends, *result;
    moert_panels *panels; /* the weight, prepacked for `tile`; NULL for plain weights */
    moert_choices tile;
} moert_tune_gemm;

/* Creates a GEMM with groups of equal size. *possible = whether the device has the operation, and
 * can prepack if the operation reads prepacked weights. */
moert_status moert_tune_gemm_create(moert_device *device, moert_tuned operation, moert_dtype type,
                                    const moert_gemm_shape *shape, moert_tune_gemm *gemm,
                                    bool *possible);
void moert_tune_gemm_destroy(moert_tune_gemm *gemm);

/* The trial that a search runs; it prepacks the weight again when the tile changes. */
moert_trial moert_tune_gemm_trial(moert_tune_gemm *gemm);

/* Runs the GEMM with both choices; ERROR_NUMERIC if the results differ in any bit. */
moert_status moert_tune_gemm_compare(moert_tune_gemm *gemm, const moert_choices *a,
                                     const moert_choices *b);
