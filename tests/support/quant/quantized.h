/* Quantizes and dequantizes on the device for tests, with guards behind every output. */
#pragma once

#include "moert/quantize.h"
#include "support/test.h"

/* A matrix on the host; groups 0: no ends. */
typedef struct matrix {
    const float *x; /* [rows, columns] */
    size_t rows, columns;
    const uint32_t *ends;
    size_t groups;
} matrix;

/* What came of it, on the host. Bytes that nothing wrote are QUANTIZED_UNSET. */
enum { QUANTIZED_UNSET = 0xCD };
typedef struct quantized {
    moert_quantized_shape shape;
    size_t q_bytes, scale_bytes, globals, elements;
    unsigned char *q, *scale;
    float *global, *amax;
    float *back; /* dequantized */
} quantized;

/* Fails the test unless every call succeeds and stays within its buffers. */
quantized quantize(const char *backend, const moert_quantizer *how, const matrix *m);
/* The same without amax and with a global scale of 1; by norm unless NULL: `back` is x * norm. */
quantized quantize_by(const float *norm, const char *backend, const moert_quantizer *how,
                      const matrix *m);
/* The same of a source of another type, in which x is exact, cast on the device. */
quantized quantize_from(moert_dtype type, const char *backend, const moert_quantizer *how,
                        const matrix *m);

/* A description of a matrix without groups, its buffers to be filled in. */
moert_quantize quantize_op(const moert_quantizer *how, size_t rows, size_t columns);

/* All bytes are the same. */
void assert_same_quantized(const char *what, const quantized *got, const quantized *want);
void assert_same_bytes(const char *what, const char *part, const void *got, const void *want,
                       size_t bytes);

/* A guarded buffer of QUANTIZED_UNSET, and HOW(.member = value, ...), a quantizer. */
moert_buffer *unset_bytes(size_t bytes);
#define HOW(...) ((moert_quantizer){.size = sizeof(moert_quantizer), __VA_ARGS__})
