/* Quantised matrices of tests. */
#include "support/quantized.h"

#include <stdlib.h>
#include <string.h>

static moert_buffer *unset(size_t bytes) {
    unsigned char *memory = test_alloc(bytes);
    memset(memory, QUANTIZED_UNSET, bytes);
    moert_buffer *buffer = upload(memory, bytes);
    free(memory);
    return buffer;
}

static quantized run(const char *backend, const moert_quantizer *how, const matrix *m,
                     const float *norm) {
    const uint32_t whole = (uint32_t)m->rows;
    const size_t groups = m->groups > 0 ? m->groups : 1;
    const size_t blocks =
        moert_row_blocks(m->groups > 0 ? m->ends : &whole, groups, moert_format_block(how->format));
    quantized z = {.elements = m->rows * m->columns, .globals = how->group_scales ? groups : 1};
    z.shape = moert_quantized_shape_of(how, m->rows, m->columns, blocks);
    z.q_bytes = z.shape.q_lines * z.shape.q_bytes;
    z.scale_bytes = z.shape.scale_lines * z.shape.scales * moert_format_scale_bytes(how->format);
    set_variable("MOERT_BACKEND", backend);
    moert_buffer *ends = m->groups > 0 ? upload(m->ends, groups * sizeof *m->ends) : NULL;
    moert_buffer *x = upload(m->x, z.elements * sizeof(float));
    moert_buffer *back = unset(z.elements * sizeof(float));
    moert_quantize op = {.how = *how,
                         .groups = {.ends = ends, .count = m->groups, .rows = m->rows},
                         .columns = m->columns,
                         .x = x,
                         .q = unset(z.q_bytes),
                         .scale = unset(z.scale_bytes),
                         .global = unset(z.globals * sizeof(float)),
                         .amax = unset(z.globals * sizeof(float)),
                         .blocks = blocks};
    moert_quantize by = op;
    ASSERT_OK(moert_quantize_amax(&op));
    if (norm != NULL) {
        const float one = 1.0f;
        by.amax = by.global = NULL;
        by.norm = upload(norm, sizeof *norm);
        ASSERT_OK(moert_buffer_write(op.global, 0, &one, sizeof one));
    }
    ASSERT_OK(moert_quantize_run(&by));
    op.x = back;
    ASSERT_OK(moert_dequantize_run(&op));
    z.q = download(op.q, z.q_bytes);
    z.scale = download(op.scale, z.scale_bytes);
    z.global = download(op.global, z.globals * sizeof(float));
    z.amax = download(op.amax, z.globals * sizeof(float));
    z.back = download(back, z.elements * sizeof(float));
    moert_buffer *const buffers[] = {ends, x, back, op.q, op.scale, op.global, op.amax, by.norm};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        moert_buffer_destroy(buffers[i]);
    return z;
}

quantized quantize(const char *backend, const moert_quantizer *how, const matrix *m) {
    return run(backend, how, m, NULL);
}

quantized quantize_normed(const char *backend, const moert_quantizer *how, const matrix *m,
                          float norm) {
    return run(backend, how, m, &norm);
}

void free_quantized(quantized *z) {
    free(z->q);
    free(z->scale);
    free(z->global);
    free(z->amax);
    free(z->back);
}

static void assert_same_bytes(const char *what, const char *part, const void *got, const void *want,
                              size_t bytes) {
    const unsigned char *a = got, *b = want;
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            fail_msg("%s: byte %zu of %zu of %s is %02x, not %02x", what, i, bytes, part, a[i],
                     b[i]);
}

void assert_same_quantized(const char *what, const quantized *got, const quantized *want) {
    assert_same_bytes(what, "amax", got->amax, want->amax, want->globals * sizeof(float));
    assert_same_bytes(what, "global", got->global, want->global, want->globals * sizeof(float));
    assert_same_bytes(what, "scale", got->scale, want->scale, want->scale_bytes);
    assert_same_bytes(what, "q", got->q, want->q, want->q_bytes);
    assert_same_bytes(what, "back", got->back, want->back, want->elements * sizeof(float));
}
