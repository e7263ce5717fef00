/* Cross-entropy and its gradient in place of the logits. */
#include "device/profile.h"
#include "ops/dense.h"

moert_status moert_cross_entropy(size_t tokens, size_t vocabulary, const moert_buffer *target,
                                 float factor, moert_buffer *logits, moert_buffer *loss) {
    moert_grid grid = {tokens, 1, 1};
    moert_profile_work(moert_buffer_device(logits), "loss", 0.0,
                       2 * sizeof(float) * (double)(tokens * vocabulary));
    MOERT_TRY(MOERT_RUN(moert_buffer_device(logits), "loss", "cross_entropy", grid,
                        MOERT_ARG(target), MOERT_ARG(logits), MOERT_ARG(loss),
                        MOERT_ARG(vocabulary), MOERT_ARG(factor)));
    return MOERT_OK;
}
