/* Rotary positions: creates the table of cosines and sines, and launches kernels/nn/rope.cl. */
#include <math.h>
#include <stdlib.h>

#include "args/nn.h"
#include "base/elementary.h"
#include "base/memory.h"
#include "device/profile/profile.h"
#include "nn/nn.h"

enum { BLOCK_TOKENS = 8, GPU_BLOCK_TOKENS = 1 };

static moert_status check_head_size(size_t head_size) {
    if (head_size == 0 || head_size % 2 != 0)
        return MOERT_FAIL(ERROR_USAGE, "rotary positions need an even head size, not %zu",
                          head_size);
    return MOERT_OK;
}

/*
 * Fills table[length, 2, D/2]. Frequencies, angles and results are rounded to float32 where Hugging
 * Face's transformers rounds them; pow, cos and sin are computed in float64.
 */
static void fill_table(size_t length, size_t head_size, float theta, float *table) {
    const size_t half = head_size / 2;
    for (size_t i = 0; i < half; i++) {
        const float exponent = (float)(2 * i) / (float)head_size;
        const float frequency = 1.0f / (float)moert_pow((double)theta, exponent);
        for (size_t t = 0; t < length; t++) {
            const float angle = (float)t * frequency;
            table[t * head_size + i] = (float)moert_cos((double)angle);
            table[t * head_size + half + i] = (float)moert_sin((double)angle);
        }
    }
}

moert_status moert_rope_table_create(moert_device *device, size_t length, size_t head_size,
                                     float theta, moert_buffer **table) {
    moert_buffer *made = NULL;
    float *values = NULL;
    moert_status status;
    MOERT_TRY(check_head_size(head_size));
    if (!(theta > 0.0f && isfinite(theta)))
        return MOERT_FAIL(ERROR_USAGE, "rotary positions need a positive theta, not %g",
                          (double)theta);
    MOERT_TRY_OR(done, moert_alloc(&values, length, head_size * sizeof *values));
    fill_table(length, head_size, theta, values);
    const size_t bytes = length * head_size * sizeof *values;
    MOERT_TRY_OR(done, moert_buffer_create(device, bytes, &made));
    MOERT_TRY_OR(done, moert_buffer_write(made, 0, values, bytes));
    *table = made;
    made = NULL;
done:
    moert_buffer_destroy(made);
    free(values);
    return status;
}

moert_status moert_rope_check(const moert_rotation *rotation, size_t tokens, size_t head_size) {
    const size_t length = rotation->length;
    int narrow;
    MOERT_TRY(check_head_size(head_size));
    MOERT_TRY(moert_to_int(rotation->heads, "number of heads", &narrow));
    MOERT_TRY(moert_to_int(head_size, "head size", &narrow));
    MOERT_TRY(moert_to_int(length, "length of a sequence", &narrow));
    if (tokens > 0 && length == 0)
        return MOERT_FAIL(ERROR_USAGE, "%zu tokens in sequences of length 0", tokens);
    const size_t positions = moert_buffer_bytes(rotation->table) / (head_size * sizeof(float));
    if (moert_min(length, tokens) > positions)
        return MOERT_FAIL(ERROR_USAGE, "sequences of %zu tokens exceed the rotary table's %zu",
                          length, positions);
    return MOERT_OK;
}

moert_status moert_rope(const moert_rotation *rotation, size_t tokens, size_t head_size,
                        bool inverse, moert_buffer *x) {
    const size_t heads = rotation->heads, length = rotation->length;
    moert_device *device = moert_buffer_device(x);
    const size_t block = moert_by_form(device, BLOCK_TOKENS, GPU_BLOCK_TOKENS);
    MOERT_TRY(moert_rope_check(rotation, tokens, head_size));
    moert_profile_work(device, "nn/rope", 0.0,
                       2 * sizeof(float) * (double)(tokens * heads * head_size));
    return MOERT_RUN(device, MOERT_PROGRAM(device, "nn/rope", head_size / 2), "rope",
                     ((moert_grid){moert_ceil_div(tokens, block), 1, 1}),
                     MOERT_ARG(rotation->table), MOERT_ARG(x),
                     MOERT_ARGS(moert_rope_args, .tokens = tokens, .block = block, .length = length,
                                .heads = (int)heads, .head_size = (int)head_size,
                                .sign = inverse ? -1.0f : 1.0f));
}
