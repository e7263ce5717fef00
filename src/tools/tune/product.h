/* A grouped product with random data, to be measured by candidates of tuning. */
#pragma once

#include "gemm/gemm.h"
#include "gemm/tuning/search.h"
#include "tools/common/gemm_shapes.h"

typedef struct moert_tune_product {
    moert_tuning_key key;
    moert_gemm gemm;
    moert_buffer *ends, *result;
    moert_packed *packed; /* of the tile */
    moert_choices tile;
} moert_tune_product;

/* Balanced groups. *possible = the device has such a product (packed weights). */
moert_status moert_tune_product_create(moert_device *device, moert_tuned operation,
                                       moert_number type, const moert_gemm_shape *shape,
                                       moert_tune_product *product, bool *possible);
void moert_tune_product_destroy(moert_tune_product *product);

/* How a search runs it; a packed weight is packed again when its tile changes. */
moert_trial moert_tune_product_trial(moert_tune_product *product);

/* Runs it by both; ERROR_NUMERIC if the results differ in any bit. */
moert_status moert_tune_product_compare(moert_tune_product *product, const moert_choices *a,
                                        const moert_choices *b);
