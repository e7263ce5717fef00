/* Launches of kernels/bias.cl. */
#include "ops/bias.h"

#include "base/memory.h"

enum { COLUMNS = 256 }; /* per work-item of the gradient */

moert_status moert_scaled_bias_forward(const moert_scaled_bias *bias) {
    return MOERT_RUN(moert_buffer_device(bias->y), "bias", "bias_forward",
                     ((moert_grid){bias->groups.count, 1, 1}), MOERT_ARG(bias->groups.ends),
                     MOERT_ARG((unsigned)bias->n), MOERT_ARG(bias->ldy), MOERT_ARG(bias->prob),
                     MOERT_ARG(bias->prob_stride), MOERT_ARG(bias->bias), MOERT_ARG(bias->y));
}

moert_status moert_scaled_bias_dprob(const moert_scaled_bias *bias) {
    return MOERT_RUN(moert_buffer_device(bias->y), "bias", "bias_dprob",
                     ((moert_grid){bias->groups.count, 1, 1}), MOERT_ARG(bias->groups.ends),
                     MOERT_ARG((unsigned)bias->n), MOERT_ARG(bias->ldy),
                     MOERT_ARG(bias->prob_stride), MOERT_ARG(bias->bias), MOERT_ARG(bias->y),
                     MOERT_ARG(bias->dprob));
}

moert_status moert_scaled_bias_gradient(const moert_scaled_bias *bias) {
    return MOERT_RUN(moert_buffer_device(bias->y), "bias", "bias_gradient",
                     ((moert_grid){bias->groups.count, moert_ceil_div(bias->n, COLUMNS), 1}),
                     MOERT_ARG(bias->groups.ends), MOERT_ARG((unsigned)bias->n),
                     MOERT_ARG(bias->ldy), MOERT_ARG(bias->prob), MOERT_ARG(bias->prob_stride),
                     MOERT_ARG(bias->y), MOERT_ARG(bias->dbias), MOERT_ARG((int)bias->accumulate),
                     MOERT_ARG((unsigned)COLUMNS));
}
