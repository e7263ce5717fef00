/* Cross-entropy and its gradient in place of the logits. */
#include "device/profile.h"
#include "ops/dense.h"

moert_status moert_cross_entropy(size_t tokens, size_t vocabulary, const moert_buffer *target,
                                 float factor, moert_buffer *logits, moert_buffer *loss) {
    moert_device *device = moert_buffer_device(logits);
    moert_profile_work(device, "loss", 0.0, 2 * sizeof(float) * (double)(tokens * vocabulary));
    return MOERT_RUN(device, MOERT_PROGRAM(device, "loss", vocabulary), "cross_entropy",
                     ((moert_grid){tokens, 1, 1}), MOERT_ARG(target), MOERT_ARG(logits),
                     MOERT_ARG(loss), MOERT_ARG(vocabulary), MOERT_ARG(factor));
}
