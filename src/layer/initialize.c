/* Fresh weights of a layer. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/rng.h"
#include "layer/internal.h"

enum { PIECE = 1 << 22 }; /* floats that are made at once */

/* One expert's part of a tensor, or the whole of a replicated one. */
static moert_status fill(moert_buffer *weight, size_t offset, size_t elements, uint64_t seed,
                         uint64_t stream, double deviation) {
    float *values;
    moert_status status = MOERT_OK;
    MOERT_TRY(moert_alloc(&values, moert_min(elements, PIECE), sizeof *values));
    for (size_t first = 0; status == MOERT_OK && first < elements; first += PIECE) {
        const size_t count = moert_min(elements - first, PIECE);
        moert_rng_normals(seed, stream, first, deviation, values, count);
        status = moert_buffer_write(weight, (offset + first) * sizeof *values, values,
                                    count * sizeof *values);
    }
    free(values);
    return status;
}

moert_status moert_layer_initialize(moert_layer *layer, uint64_t seed, double deviation) {
    static const moert_layer_tensor matrices[] = {MOERT_LAYER_ROUTER, MOERT_LAYER_SHARED_W1,
                                                  MOERT_LAYER_SHARED_W2, MOERT_LAYER_W1,
                                                  MOERT_LAYER_W2};
    moert_layer_weights_changed(layer);
    for (size_t m = 0; m < MOERT_COUNT(matrices); m++) {
        moert_layer_tensor which = matrices[m];
        moert_buffer *weight = moert_layer_weight(layer, which);
        bool of_expert = which == MOERT_LAYER_W1 || which == MOERT_LAYER_W2;
        size_t pieces = of_expert ? layer->local_experts : 1,
               first = of_expert ? layer->first_expert : 0;
        size_t elements = weight != NULL ? moert_buffer_bytes(weight) / sizeof(float) / pieces : 0;
        for (size_t i = 0; i < pieces && elements > 0; i++) {
            uint64_t stream = (uint64_t)which << 32 | (first + i);
            MOERT_TRY(fill(weight, i * elements, elements, seed, stream, deviation));
        }
    }
    return MOERT_OK;
}
