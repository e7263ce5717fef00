/* A grouped product with random data, to be measured by candidates of tuning. */
#pragma once

#include "gemm/gemm.h"
#include "gemm/tuning/search.h"
#include "tools/common/gemm_shapes.h"

typedef struct moert_tune_gemm {
    moert_tuning_key key;
    moert_gemm gemm;
    moert_buffer *ends, *result;
    moert_prepacked *prepacked; /* of the tile */
    moert_choices tile;
} moert_tune_gemm;

/* Balanced groups. *possible = the device has such a product (prepacked weights). */
moert_status moert_tune_gemm_create(moert_device *device, moert_tuned operation, moert_dtype type,
                                    const moert_gemm_shape *shape, moert_tune_gemm *product,
                                    bool *possible);
void moert_tune_gemm_destroy(moert_tune_gemm *product);

/* How a search runs it; a prepacked weight is prepacked again when its tile changes. */
moert_trial moert_tune_gemm_trial(moert_tune_gemm *product);

/* Runs it by both; ERROR_NUMERIC if the results differ in any bit. */
moert_status moert_tune_gemm_compare(moert_tune_gemm *product, const moert_choices *a,
                                     const moert_choices *b);
