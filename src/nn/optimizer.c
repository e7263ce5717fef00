/* AdamW: the host computes the coefficients in float64, the device updates in float32. */
#include <math.h>

#include "args/nn.h"
#include "base/elementary.h"
#include "base/memory.h"
#include "device/profile/profile.h"
#include "nn/nn.h"

enum { BLOCK = 4096, GPU_BLOCK = 1024 }; /* floats of a row group, as in kernels/nn/optimizer.cl */

moert_status moert_adamw_step(const moert_adamw *adamw, size_t n, moert_buffer *parameter,
                              const moert_buffer *gradient, moert_buffer *first_moment,
                              moert_buffer *second_moment) {
    if (adamw->step == 0)
        return MOERT_FAIL(ERROR_USAGE, "AdamW step 0: steps count from 1");
    double t = (double)adamw->step;
    float keep = (float)(1.0 - adamw->rate * adamw->decay);
    float rest1 = (float)(1.0 - adamw->beta1), rest2 = (float)(1.0 - adamw->beta2);
    float step = (float)(adamw->rate / (1.0 - moert_pow(adamw->beta1, t)));
    float root = (float)sqrt(1.0 - moert_pow(adamw->beta2, t));
    moert_device *device = moert_buffer_device(parameter);
    const size_t block = moert_by_form(device, BLOCK, GPU_BLOCK);
    const size_t sizes = n | adamw->at | adamw->state_at;
    moert_profile_work(device, "nn/optimizer", 0.0,
                       (7 * sizeof(float) + (adamw->rounded != NULL ? sizeof(uint16_t) : 0)) *
                           (double)n);
    return MOERT_RUN(device,
                     adamw->rounded != NULL ? MOERT_PROGRAM(device, "nn/optimizer -DROUNDED", sizes)
                                            : MOERT_PROGRAM(device, "nn/optimizer", sizes),
                     "adamw", ((moert_grid){moert_ceil_div(n, block), 1, 1}), MOERT_ARG(parameter),
                     MOERT_ARG(gradient), MOERT_ARG(first_moment), MOERT_ARG(second_moment),
                     MOERT_ARG(adamw->rounded),
                     MOERT_ARGS(moert_adamw_args, .at = adamw->at, .state_at = adamw->state_at,
                                .n = n, .scale = (float)adamw->scale, .keep = keep,
                                .beta1 = (float)adamw->beta1, .rest1 = rest1,
                                .beta2 = (float)adamw->beta2, .rest2 = rest2, .step = step,
                                .root = root, .epsilon = (float)adamw->epsilon));
}
