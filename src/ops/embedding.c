/* Token embedding: gathers rows, and scatters gradients into one partial table per sequence. */
#include "base/memory.h"
#include "device/profile.h"
#include "ops/dense.h"

/* Of a team, as in kernels/embedding.cl. */
enum { TOKENS = 16, GPU_TOKENS = 1, COLUMNS = 256, GPU_COLUMNS = 512, GPU_ROWS = 32 };

moert_status moert_embedding_forward(size_t tokens, size_t hidden, const moert_buffer *table,
                                     const moert_buffer *token, moert_buffer *x) {
    moert_device *device = moert_buffer_device(x);
    const moert_grid grid = {moert_ceil_div(tokens, moert_share(device, TOKENS, GPU_TOKENS)), 1, 1};
    moert_profile_work(device, "embedding", 0.0, 2 * sizeof(float) * (double)(tokens * hidden));
    return MOERT_RUN(device, MOERT_PROGRAM(device, "embedding", hidden), "embedding_forward", grid,
                     MOERT_ARG(table), MOERT_ARG(token), MOERT_ARG(x), MOERT_ARG(tokens),
                     MOERT_ARG(hidden));
}

moert_status moert_embedding_backward(size_t sequences, size_t length, size_t hidden,
                                      const moert_buffer *token, const moert_buffer *dx,
                                      size_t first_row, size_t rows, moert_buffer *partial) {
    moert_device *device = moert_buffer_device(partial);
    const size_t share = moert_share(device, rows, GPU_ROWS);
    const moert_grid grid = {moert_ceil_div(hidden, moert_share(device, COLUMNS, GPU_COLUMNS)),
                             sequences, rows > 0 ? moert_ceil_div(rows, share) : 0};
    moert_profile_work(device, "embedding", 0.0,
                       sizeof(float) * (double)(sequences * (length + rows) * hidden));
    return MOERT_RUN(device, MOERT_PROGRAM(device, "embedding", hidden), "embedding_backward", grid,
                     MOERT_ARG(token), MOERT_ARG(dx), MOERT_ARG(partial), MOERT_ARG(length),
                     MOERT_ARG(hidden), MOERT_ARG(first_row), MOERT_ARG(rows), MOERT_ARG(share));
}
