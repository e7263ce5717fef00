/* Token embedding: gathers rows, and scatters gradients into one partial table per sequence. */
#include "base/memory.h"
#include "device/profile.h"
#include "ops/dense.h"

enum { TOKENS = 16, COLUMNS = 256 }; /* of a work-item, as in kernels/embedding.cl */

moert_status moert_embedding_forward(size_t tokens, size_t hidden, const moert_buffer *table,
                                     const moert_buffer *token, moert_buffer *x) {
    moert_grid grid = {moert_ceil_div(tokens, TOKENS), 1, 1};
    moert_profile_work(moert_buffer_device(x), "embedding", 0.0,
                       2 * sizeof(float) * (double)(tokens * hidden));
    MOERT_TRY(MOERT_RUN(moert_buffer_device(x), "embedding", "embedding_forward", grid,
                        MOERT_ARG(table), MOERT_ARG(token), MOERT_ARG(x), MOERT_ARG(tokens),
                        MOERT_ARG(hidden)));
    return MOERT_OK;
}

moert_status moert_embedding_backward(size_t sequences, size_t length, size_t hidden,
                                      const moert_buffer *token, const moert_buffer *dx,
                                      size_t first_row, size_t rows, moert_buffer *partial) {
    moert_grid grid = {moert_ceil_div(hidden, COLUMNS), sequences, 1};
    moert_profile_work(moert_buffer_device(partial), "embedding", 0.0,
                       sizeof(float) * (double)(sequences * (length + rows) * hidden));
    MOERT_TRY(MOERT_RUN(moert_buffer_device(partial), "embedding", "embedding_backward", grid,
                        MOERT_ARG(token), MOERT_ARG(dx), MOERT_ARG(partial), MOERT_ARG(length),
                        MOERT_ARG(hidden), MOERT_ARG(first_row), MOERT_ARG(rows)));
    return MOERT_OK;
}
