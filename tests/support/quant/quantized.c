/* Runs the quantizers for tests. */
#include "support/quant/quantized.h"

#include "base/dtype.h"

moert_buffer *unset_bytes(size_t bytes) {
    unsigned char *memory = test_alloc(bytes);
    memset(memory, QUANTIZED_UNSET, bytes);
    return upload(memory, bytes);
}

/* Uploads x in the dtype of the source and casts it to float32 on the device. */
static moert_buffer *upload_source(const quantized_form *form, const matrix *m) {
    const size_t n = m->rows * m->columns * (form->x_runs > 0 ? 2 : 1);
    moert_buffer *source = upload_as(m->x, n, form->source);
    if (form->source == MOERT_DTYPE_F32)
        return source;
    moert_buffer *x = unset_floats(n);
    const moert_cast cast = {sizeof cast, form->source, MOERT_DTYPE_F32, n, source, x};
    ASSERT_OK(moert_cast_run(&cast));
    return x;
}

moert_quantize quantize_op(const moert_quantizer *how, size_t rows, size_t columns) {
    moert_quantize op = MOERT_QUANTIZE_INIT;
    op.how = *how;
    op.groups.rows = rows;
    op.columns = columns;
    return op;
}

/* Quantizes with an amax, with a norm, or with a global scale of 1. */
static quantized run(const quantized_form *form, bool has_amax, const float *norm,
                     const char *backend, const moert_quantizer *how, const matrix *m) {
    const float one = 1.0f;
    const uint32_t whole = (uint32_t)m->rows;
    const size_t groups = m->groups > 0 ? m->groups : 1;
    const size_t block = moert_format_block(how->format);
    size_t blocks = moert_row_blocks(m->groups > 0 ? m->ends : &whole, groups, block);
    if (blocks == 0) /* in moert_quantize, 0 means the largest possible number */
        blocks = moert_row_blocks_most(m->rows, groups, block);
    quantized z = {.elements = m->rows * m->columns, .globals = how->group_scales ? groups : 1};
    z.shape = moert_quantized_shape_of(how, m->rows, m->columns, blocks);
    z.q_bytes = z.shape.q_lines * (form->row_bytes > 0 ? form->row_bytes : z.shape.q_bytes);
    z.scale_bytes = z.shape.scale_lines * z.shape.scales * moert_format_scale_bytes(how->format);
    set_variable("MOERT_BACKEND", backend);
    moert_quantize op = quantize_op(how, m->rows, m->columns);
    op.groups.ends = m->groups > 0 ? upload(m->ends, groups * sizeof *m->ends) : NULL;
    op.groups.count = m->groups;
    op.x = upload_source(form, m);
    op.x_runs = form->x_runs;
    op.row_bytes = form->row_bytes;
    op.q = unset_bytes(z.q_bytes);
    op.scale = unset_bytes(z.scale_bytes);
    op.global = unset_bytes(z.globals * sizeof(float));
    op.amax = unset_bytes(z.globals * sizeof(float));
    op.blocks = blocks;
    if (has_amax)
        ASSERT_OK(moert_quantize_amax(&op));
    else
        ASSERT_OK(moert_buffer_write(op.global, 0, &one, sizeof one));
    moert_quantize by = op;
    if (!has_amax)
        by.amax = NULL;
    if (norm != NULL) {
        by.global = NULL;
        by.norm = upload(norm, sizeof *norm);
    }
    ASSERT_OK(moert_quantize_run(&by));
    op.x = unset_bytes(z.elements * moert_dtype_bits(form->back) / 8);
    op.x_type = form->back;
    op.x_runs = 0;
    ASSERT_OK(moert_dequantize_run(&op));
    z.q = download(op.q, z.q_bytes);
    z.scale = download(op.scale, z.scale_bytes);
    z.global = download(op.global, z.globals * sizeof(float));
    z.amax = download(op.amax, z.globals * sizeof(float));
    z.back = test_alloc(z.elements * sizeof(float));
    download_as(op.x, z.back, z.elements, form->back);
    return z;
}

quantized quantize_as(quantized_form form, const char *backend, const moert_quantizer *how,
                      const matrix *m) {
    return run(&form, true, NULL, backend, how, m);
}

quantized quantize(const char *backend, const moert_quantizer *how, const matrix *m) {
    return quantize_as((quantized_form){.row_bytes = 0}, backend, how, m);
}

quantized quantize_by(const float *norm, const char *backend, const moert_quantizer *how,
                      const matrix *m) {
    return run(&(quantized_form){.row_bytes = 0}, false, norm, backend, how, m);
}

void assert_same_bytes(const char *what, const char *part, const void *got, const void *want,
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

float *hostile_rows(size_t rows, size_t stride, moert_dtype type, float largest) {
    const float special[] = {0.0f, NAN, INFINITY, -INFINITY, 1e-38f, -3e38f, 0x1p-140f, largest};
    float *x = random_floats(rows * stride, 2.0f, 3);
    for (size_t i = 0; i < rows * stride; i++) {
        const size_t row = i / stride, column = i % stride;
        x[i] *= ldexpf(1.0f, (int)(row % 7) * 5 - 15);
        if (row % 17 == 5)
            x[i] *= 0x1p-125f;
        if (row % 11 == 3 && column % 37 == 5)
            x[i] = special[(row + column) % MOERT_COUNT(special)];
        if (row % 13 == 7 || column / 16 == 2)
            x[i] = 0.0f;
        if (type == MOERT_DTYPE_BF16)
            x[i] = moert_dtype_decode(MOERT_DTYPE_BF16, moert_dtype_encode(MOERT_DTYPE_BF16, x[i]));
    }
    return x;
}
