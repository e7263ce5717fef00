/* Rotary positions: creates the table of cosines and sines, and launches kernels/nn/rope.cl. */
#include <stdio.h>
#include <stdlib.h>

#include "args/nn.h"
#include "base/elementary.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "nn/nn.h"

enum { BLOCK_TOKENS = 8, GPU_BLOCK_TOKENS = 1, SPEC_BYTES = 48 };

/* Floats of a row of the table: cosines, then sines. */
static size_t table_columns(size_t width, bool interleaved) {
    return interleaved ? 2 * width : width;
}

/* Fills a row of the table. The angle is rounded to float32 first, as transformers does; cos and
 * sin are computed in float64. */
static void fill_row(const moert_rope_scheme *scheme, const float *frequency, size_t position,
                     float *row) {
    const size_t pairs = scheme->width / 2;
    const float factor = (float)moert_rope_attention_factor(scheme);
    for (size_t i = 0; i < pairs; i++) {
        const float angle = (float)position * frequency[i];
        const float cosine = (float)moert_cos((double)angle) * factor;
        const float sine = (float)moert_sin((double)angle) * factor;
        if (scheme->interleaved) {
            row[2 * i] = row[2 * i + 1] = cosine;
            row[scheme->width + 2 * i] = -sine;
            row[scheme->width + 2 * i + 1] = sine;
        } else {
            row[i] = cosine;
            row[pairs + i] = sine;
        }
    }
}

size_t moert_rope_table_bytes(const moert_rope_scheme *scheme, size_t length) {
    return length * table_columns(scheme->width, scheme->interleaved) * sizeof(float);
}

moert_status moert_rope_table_create(moert_device *device, const moert_rope_scheme *scheme,
                                     size_t length, moert_buffer **table) {
    const size_t columns = table_columns(scheme->width, scheme->interleaved);
    moert_buffer *made = NULL;
    float *values = NULL, *frequency = NULL;
    moert_status status;
    MOERT_TRY(moert_rope_scheme_check(scheme));
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&frequency, scheme->width / 2));
    MOERT_TRY_OR(done, moert_alloc(&values, length, columns * sizeof *values));
    moert_rope_frequencies(scheme, frequency);
    for (size_t t = 0; t < length; t++)
        fill_row(scheme, frequency, t, values + t * columns);
    const size_t bytes = moert_rope_table_bytes(scheme, length);
    MOERT_TRY_OR(done, moert_buffer_create(device, bytes, &made));
    MOERT_TRY_OR(done, moert_buffer_write(made, 0, values, bytes));
    *table = made;
    made = NULL;
done:
    moert_buffer_destroy(made);
    MOERT_FREE(values, frequency);
    return status;
}

moert_status moert_rope_check(const moert_rotation *rotation, size_t tokens, size_t head_size) {
    const size_t length = rotation->length, offset = rotation->offset,
                 width = moert_rotation_width(rotation, head_size);
    int narrow;
    if (width == 0 || width % 2 != 0)
        return MOERT_FAIL(ERROR_USAGE, "rotary positions need an even width, not %zu", width);
    if (offset > head_size || width > head_size - offset)
        return MOERT_FAIL(ERROR_USAGE,
                          "heads of %zu elements cannot rotate %zu elements from element %zu on",
                          head_size, width, offset);
    MOERT_TRY(moert_to_int(rotation->heads, "number of heads", &narrow));
    MOERT_TRY(moert_to_int(head_size, "head size", &narrow));
    MOERT_TRY(moert_to_int(length, "length of a sequence", &narrow));
    if (tokens > 0 && length == 0)
        return MOERT_FAIL(ERROR_USAGE, "%zu tokens cannot be in sequences of length 0", tokens);
    const size_t positions = moert_buffer_bytes(rotation->table) /
                             (table_columns(width, rotation->interleaved) * sizeof(float));
    if (moert_min(length, tokens) > positions)
        return MOERT_FAIL(
            ERROR_USAGE, "sequences of %zu tokens exceed the rotary table, which has %zu positions",
            length, positions);
    if (rotation->positions != NULL &&
        moert_buffer_bytes(rotation->positions) < tokens * sizeof(int32_t))
        return MOERT_FAIL(
            ERROR_USAGE,
            "the buffer of positions has room for %zu tokens; %zu tokens need positions",
            moert_buffer_bytes(rotation->positions) / sizeof(int32_t), tokens);
    return MOERT_OK;
}

/* y = x rotated; y is x itself or a bf16 buffer. */
static moert_status run(const moert_rotation *rotation, size_t tokens, size_t head_size,
                        bool inverse, const moert_buffer *x, moert_buffer *y) {
    const size_t heads = rotation->heads, length = rotation->length, offset = rotation->offset,
                 width = moert_rotation_width(rotation, head_size);
    moert_device *device = moert_buffer_device(x);
    const size_t block = moert_by_form(device, BLOCK_TOKENS, GPU_BLOCK_TOKENS);
    const bool rounds = x != y;
    char spec[SPEC_BYTES];
    MOERT_TRY(moert_rope_check(rotation, tokens, head_size));
    snprintf(spec, sizeof spec, "%s -DROUNDED=%d",
             MOERT_PROGRAM(device, "nn/rope", width / 2 | head_size | offset), rounds);
    const size_t bytes = rounds ? (sizeof(float) + sizeof(uint16_t)) * head_size
                                : 2 * sizeof(float) * width; /* bytes of a head */
    moert_profile_work(device, "nn/rope", 0.0, (double)(tokens * heads * bytes));
    return MOERT_RUN(
        device, spec, rotation->interleaved ? "rope_interleaved" : "rope",
        ((moert_grid){moert_ceil_div(tokens, block), 1, 1}), MOERT_ARG(rotation->table),
        MOERT_ARG(rotation->positions), MOERT_ARG(x), MOERT_ARG(y),
        MOERT_ARGS(moert_rope_args, .tokens = tokens, .block = block, .length = length,
                   .heads = (int)heads, .head_size = (int)head_size, .offset = (int)offset,
                   .width = (int)width, .sign = inverse ? -1.0f : 1.0f));
}

moert_status moert_rope(const moert_rotation *rotation, size_t tokens, size_t head_size,
                        bool inverse, moert_buffer *x) {
    return run(rotation, tokens, head_size, inverse, x, x);
}

moert_status moert_rope_bf16(const moert_rotation *rotation, size_t tokens, size_t head_size,
                             const moert_buffer *x, moert_buffer *bf16) {
    return run(rotation, tokens, head_size, false, x, bf16);
}
