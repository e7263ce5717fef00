/* AdamW: the host computes the coefficients in float64, the device updates in float32. */
#include <math.h>
#include <stdio.h>

#include "args/nn.h"
#include "base/elementary.h"
#include "base/memory.h"
#include "base/rng.h"
#include "device/profile/profile.h"
#include "nn/nn.h"

enum { BLOCK = 4096, GPU_BLOCK = 1024 }; /* floats of a row group, as in kernels/nn/optimizer.cl */

moert_status moert_adamw_step(const moert_adamw *adamw, size_t n, moert_buffer *parameter,
                              const moert_elements *gradient, const moert_elements *first_moment,
                              const moert_elements *second_moment) {
    if (adamw->step == 0)
        return MOERT_FAIL(ERROR_USAGE, "AdamW step 0: steps count from 1");
    double t = (double)adamw->step;
    float keep = (float)(1.0 - adamw->rate * adamw->decay);
    float rest1 = (float)(1.0 - adamw->beta1), rest2 = (float)(1.0 - adamw->beta2);
    float step = (float)(adamw->rate / (1.0 - moert_pow(adamw->beta1, t)));
    float root = (float)sqrt(1.0 - moert_pow(adamw->beta2, t));
    moert_device *device = moert_buffer_device(parameter);
    const size_t block = moert_by_form(device, BLOCK, GPU_BLOCK);
    const bool rounded = adamw->rounded != NULL, bf16 = first_moment->type == MOERT_DTYPE_BF16,
               bf16_gradient = gradient->type == MOERT_DTYPE_BF16;
    const size_t part = bf16 ? adamw->part : n, first = bf16 ? adamw->first : 0;
    const size_t first_part = first / moert_max(part, 1),
                 parts = n > 0 ? (first + n - 1) / part + 1 - first_part : 0;
    const moert_random random = moert_rng_block(adamw->step, 0, 0);
    char program[80];
    snprintf(program, sizeof program, "%s -DROUNDED=%d -DBF16_MOMENTS=%d -DBF16_GRADIENT=%d",
             MOERT_PROGRAM(device, "nn/optimizer",
                           part | first | adamw->at | gradient->at | first_moment->at),
             rounded, bf16, bf16_gradient);
    const size_t bytes = 2 * sizeof(float) + 4 * (bf16 ? sizeof(uint16_t) : sizeof(float)) +
                         (bf16_gradient ? sizeof(uint16_t) : sizeof(float)) +
                         (rounded ? sizeof(uint16_t) : 0);
    moert_profile_work(device, "nn/optimizer", 0.0, (double)n * (double)bytes);
    return MOERT_RUN(
        device, program, "adamw", ((moert_grid){moert_ceil_div(part, block), parts, 1}),
        MOERT_ARG(parameter), MOERT_ARG(gradient->buffer), MOERT_ARG(first_moment->buffer),
        MOERT_ARG(second_moment->buffer), MOERT_ARG(adamw->rounded), MOERT_ARG(adamw->keys),
        MOERT_ARGS(moert_adamw_args, .at = adamw->at, .gradient_at = gradient->at,
                   .state_at = first_moment->at, .n = n, .part = part, .first = first,
                   .first_part = first_part, .keys_at = adamw->keys_at,
                   .scale = (float)adamw->scale, .keep = keep, .beta1 = (float)adamw->beta1,
                   .rest1 = rest1, .beta2 = (float)adamw->beta2, .rest2 = rest2, .step = step,
                   .root = root, .epsilon = (float)adamw->epsilon, .random_low = random.word[0],
                   .random_high = random.word[1]));
}
