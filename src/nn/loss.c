/* Cross-entropy; the gradient overwrites the logits. */
#include <stdio.h>

#include "args/nn.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "nn/nn.h"

enum { SPEC_BYTES = 48 };

moert_status moert_cross_entropy(const moert_prediction *p) {
    moert_device *device = moert_buffer_device(p->logits);
    const int rounded = p->type == MOERT_DTYPE_BF16;
    const size_t floats = p->tokens * p->vocabulary;
    const double written = rounded ? sizeof(uint16_t) : sizeof(float);
    if (p->type != MOERT_DTYPE_F32 && !rounded)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "gradients of logits are f32 or bf16");
    moert_profile_work(device, "nn/loss", 0.0, (sizeof(float) + written) * (double)floats);
    char spec[SPEC_BYTES];
    snprintf(spec, sizeof spec, "%s -DBF16=%d", MOERT_PROGRAM(device, "nn/loss", p->vocabulary),
             rounded);
    return MOERT_RUN(device, spec, "cross_entropy", ((moert_grid){p->tokens, 1, 1}),
                     MOERT_ARG(p->target), MOERT_ARG(p->logits), MOERT_ARG(p->loss),
                     MOERT_ARGS(moert_loss_args, .vocabulary = p->vocabulary, .factor = p->factor));
}
