/* Launches kernels/nn/bias.cl. */
#include "args/forms.h"
#include "args/nn.h"
#include "nn/bias.h"

#include "base/memory.h"
#include "device/device.h"
#include "device/launch.h"

enum {
    COLUMNS = 256,                 /* columns of a work-group of bias_gradient */
    GPU_COLUMNS = MOERT_SUM_LANES, /* columns of a work-group of bias_gradient on GPUs */
    GPU_ROW_GROUPS = 16384,        /* on GPUs, the approximate maximum of row groups in a launch */
};

static const char *program_of(const moert_scaled_bias *bias) {
    return MOERT_PROGRAM(moert_buffer_device(bias->y), "nn/bias", bias->n | bias->ldy);
}

/* The grid: groups times row groups. Each group gets the same number of row groups, since the host
 * does not know the groups' sizes. */
static moert_grid rows_grid(const moert_scaled_bias *bias) {
    const moert_row_groups part = moert_groups_filled(bias->groups);
    const size_t groups = part.end - part.first;
    const size_t row_groups = moert_min(GPU_ROW_GROUPS, part.end_row - part.first_row);
    return (moert_grid){
        groups,
        moert_by_form(moert_buffer_device(bias->y), 1,
                      moert_ceil_div(moert_max(row_groups, 1), moert_max(groups, 1))),
        1};
}

moert_status moert_scaled_bias_forward(const moert_scaled_bias *bias) {
    return MOERT_RUN(moert_buffer_device(bias->y), program_of(bias), "bias_forward",
                     rows_grid(bias), MOERT_ARG(bias->groups.ends), MOERT_ARG(bias->prob),
                     MOERT_ARG(bias->bias), MOERT_ARG(bias->y),
                     MOERT_ARGS(moert_bias_args, .skip = (unsigned)bias->groups.first,
                                .n = (unsigned)bias->n, .ldy = bias->ldy,
                                .prob_stride = bias->prob_stride,
                                .bias_stride = bias->groups.shared ? 0 : (unsigned)bias->n));
}

moert_status moert_scaled_bias_dprob(const moert_scaled_bias *bias) {
    return MOERT_RUN(moert_buffer_device(bias->y), program_of(bias), "bias_dprob", rows_grid(bias),
                     MOERT_ARG(bias->groups.ends), MOERT_ARG(bias->bias), MOERT_ARG(bias->y),
                     MOERT_ARG(bias->dprob),
                     MOERT_ARGS(moert_bias_args, .skip = (unsigned)bias->groups.first,
                                .n = (unsigned)bias->n, .ldy = bias->ldy,
                                .prob_stride = bias->prob_stride,
                                .bias_stride = bias->groups.shared ? 0 : (unsigned)bias->n));
}

moert_status moert_scaled_bias_gradient(const moert_scaled_bias *bias) {
    moert_device *device = moert_buffer_device(bias->y);
    const size_t columns = moert_by_form(device, COLUMNS, GPU_COLUMNS);
    const moert_row_groups part = moert_groups_filled(bias->groups);
    return MOERT_RUN(device, program_of(bias), "bias_gradient",
                     ((moert_grid){part.end - part.first, moert_ceil_div(bias->n, columns), 1}),
                     MOERT_ARG(bias->groups.ends), MOERT_ARG(bias->prob), MOERT_ARG(bias->y),
                     MOERT_ARG(bias->dbias),
                     MOERT_ARGS(moert_bias_args, .skip = (unsigned)part.first,
                                .n = (unsigned)bias->n, .ldy = bias->ldy,
                                .prob_stride = bias->prob_stride,
                                .accumulate = (int)bias->accumulate, .columns = (unsigned)columns));
}
