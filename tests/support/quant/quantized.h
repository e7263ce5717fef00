/* Quantizes and dequantizes on the device for tests, with a guard after every output. */
#pragma once

#include "moert/quantize.h"
#include "support/test.h"

/* A matrix on the host. If `groups` is 0, `ends` is unused. */
typedef struct matrix {
    const float *x; /* [rows, columns] */
    size_t rows, columns;
    const uint32_t *ends;
    size_t groups;
} matrix;

enum { QUANTIZED_UNSET = 0xCD }; /* the value of bytes that no kernel has written */
/* The results of a quantizer, copied to the host. */
typedef struct quantized {
    moert_quantized_shape shape;
    size_t q_bytes, scale_bytes, globals, elements;
    unsigned char *q, *scale;
    float *global, *amax;
    float *back; /* dequantized values */
} quantized;

/* Quantizes and dequantizes. Fails the test if a call fails or writes outside of its buffers. */
quantized quantize(const char *backend, const moert_quantizer *how, const matrix *m);
/* Quantizes without amax and dequantizes: with a norm, or with a global scale of 1 if `norm` is
 * NULL. `back` approximates x * norm. */
quantized quantize_by(const float *norm, const char *backend, const moert_quantizer *how,
                      const matrix *m);
/* Quantizes in another form. The dtype `source` must represent x exactly; the device casts it to
 * float32. If x_runs of moert_quantize is set, x has 2 * columns columns; if row_bytes is set, q
 * also holds the scales. `back` is the dtype of the dequantized values. */
typedef struct quantized_form {
    moert_dtype source, back;
    size_t x_runs, row_bytes;
} quantized_form;
quantized quantize_as(quantized_form form, const char *backend, const moert_quantizer *how,
                      const matrix *m);

/* Describes a matrix without groups; the caller fills in the buffers. */
moert_quantize quantize_op(const moert_quantizer *how, size_t rows, size_t columns);

/* Checks that all bytes are the same. */
void assert_same_quantized(const char *what, const quantized *got, const quantized *want);
void assert_same_bytes(const char *what, const char *part, const void *got, const void *want,
                       size_t bytes);

/* A guarded buffer whose bytes are QUANTIZED_UNSET. */
moert_buffer *unset_bytes(size_t bytes);
/* HOW(.member = value, ...): a quantizer. */
#define HOW(...) ((moert_quantizer){.size = sizeof(moert_quantizer), __VA_ARGS__})

/* Rows of values of all sizes, some of tiny ones; zeros, NaN, infinities, `largest`, and tiny,
 * large and equal values in places. Values are exact in `type`, F32 or BF16. */
float *hostile_rows(size_t rows, size_t stride, moert_dtype type, float largest);
