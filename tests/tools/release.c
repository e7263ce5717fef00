/*
 * release: writes a model's weights in the low-precision forms in which large models are published,
 * for the end-to-end tests.
 *
 *   release fp8|mxfp4 MODEL.safetensors LOW.safetensors PLAIN.safetensors
 *
 * Draws random payloads and scales for the matrices that the form quantizes (experts, attention).
 * Writes the model twice. LOW has payloads and scales under the names that released files use.
 * PLAIN has the products of payload and scale as float32. The tool decodes by the formats'
 * definitions, independently of the library.
 */
#include <math.h>

#include "base/rng.h"
#include "base/text.h"
#include "io/safetensors.h"
#include "tools/check.h"

enum { NAME_BYTES = 200 };

static bool
    /* the form: MXFP4 has matrices [E,K,N] in blocks of 1 x 32, FP8 has matrices [N,K] in blocks of
     * 128 x 128 */
    mxfp4;

/* A tensor of the model, and its blocks. */
typedef struct entry {
    const moert_tensor *tensor;
    bool quantized;
    size_t matrices, n, k;
    size_t high, wide; /* number of blocks in a column and in a row of a matrix */
    /* names of the two tensors in the low-precision file */
    char payload[NAME_BYTES], scales[NAME_BYTES];
} entry;

static entry entry_of(const moert_tensor *t) {
    entry e = {.tensor = t,
               .quantized = t->rank == (mxfp4 ? 3 : 2) &&
                            moert_text_ends_with(t->name, mxfp4 ? "_proj" : "_proj.weight")};
    if (!e.quantized)
        return e;
    e.matrices = mxfp4 ? t->shape[0] : 1;
    e.n = mxfp4 ? t->shape[2] : t->shape[0];
    e.k = t->shape[1];
    e.high = mxfp4 ? e.n : moert_ceil_div(e.n, 128);
    e.wide = moert_ceil_div(e.k, mxfp4 ? 32 : 128);
    snprintf(e.payload, NAME_BYTES, "%s%s", t->name, mxfp4 ? "_blocks" : "");
    snprintf(e.scales, NAME_BYTES, "%s%s", t->name, mxfp4 ? "_scales" : "_scale_inv");
    return e;
}

static moert_tensor_spec spec_of(const moert_tensor *t) {
    moert_tensor_spec spec = {t->name, t->type, t->rank, {0}};
    memcpy(spec.shape, t->shape, sizeof spec.shape);
    return spec;
}

/* Describes the tensors of an entry in the low-precision file; returns the number of these
 * tensors. */
static size_t low_specs(const entry *e, moert_tensor_spec *specs) {
    if (!e->quantized) {
        specs[0] = spec_of(e->tensor);
        return 1;
    }
    if (mxfp4) {
        specs[0] =
            (moert_tensor_spec){e->payload, MOERT_FILE_U8, 4, {e->matrices, e->n, e->wide, 16}};
        specs[1] = (moert_tensor_spec){e->scales, MOERT_FILE_U8, 3, {e->matrices, e->n, e->wide}};
    } else {
        specs[0] = (moert_tensor_spec){e->payload, MOERT_FILE_F8_E4M3, 2, {e->n, e->k}};
        specs[1] = (moert_tensor_spec){e->scales, MOERT_FILE_F32, 2, {e->high, e->wide}};
    }
    return 2;
}

/* Returns the value of E2M1 or E4M3 bits. */
static float decoded(unsigned code) {
    const unsigned digits = mxfp4 ? 1 : 3, bits = mxfp4 ? 4 : 8;
    const int bias = mxfp4 ? 1 : 7, exponent = (int)(code >> digits) & (mxfp4 ? 3 : 15);
    const unsigned fraction = (code & ((1u << digits) - 1)) + (exponent > 0 ? 1u << digits : 0);
    const double value = ldexp(fraction, (exponent > 0 ? exponent : 1) - bias - (int)digits);
    return (float)(code >> (bits - 1) ? -value : value);
}

/* Draws the payload and scales of a matrix and writes both; values = the products of payload and
 * scale. */
static void draw(const entry *e, float *values, moert_tensor_writer *low) {
    const size_t block_rows = mxfp4 ? 1 : 128, block_columns = mxfp4 ? 32 : 128;
    const size_t blocks = e->matrices * e->high * e->wide, elements = e->tensor->elements;
    uint8_t *payload, *exponents;
    float *scales;
    check(MOERT_NEW_ARRAY(&payload, elements));
    check(MOERT_NEW_ARRAY(&exponents, blocks));
    check(MOERT_NEW_ARRAY(&scales, blocks));
    for (size_t i = 0; i < elements; i++) {
        const size_t k = i % e->k, n = i / e->k % e->n, matrix = i / e->k / e->n;
        const size_t b = (matrix * e->high + n / block_rows) * e->wide + k / block_columns;
        unsigned code = (unsigned)(moert_rng_uniform(1, 0, i) * (mxfp4 ? 16.0 : 254.0));
        code += !mxfp4 && code > 126; /* leaves out 127 and 255, which are NaN in E4M3 */
        exponents[b] = (uint8_t)(mxfp4 ? 121 + b % 4 : 0);
        scales[b] = mxfp4 ? ldexpf(1.0f, exponents[b] - 127) : 0.0003f * (float)(1 + b % 5);
        values[mxfp4 ? (matrix * e->k + k) * e->n + n : i] = decoded(code) * scales[b];
        payload[mxfp4 ? i / 2 : i] |= (uint8_t)(mxfp4 ? code << i % 2 * 4 : code);
    }
    check(moert_writer_put(low, e->payload, 0, mxfp4 ? elements / 2 : elements, payload));
    check(moert_writer_put(low, e->scales, 0, blocks, mxfp4 ? (void *)exponents : scales));
    free(scales);
    free(exponents);
    free(payload);
}

int main(int argc, char **argv) {
    moert_tensors *model;
    moert_tensor_writer *low, *plain;
    moert_tensor_spec *low_spec, *plain_spec;
    entry *entries;
    size_t lows = 0;
    if (argc != 5)
        return fputs("usage: release fp8|mxfp4 MODEL LOW PLAIN\n", stderr), 2;
    mxfp4 = strcmp(argv[1], "mxfp4") == 0;
    check(moert_tensors_open(argv[2], &model));
    const size_t count = moert_tensors_count(model);
    check(MOERT_NEW_ARRAY(&entries, count));
    check(MOERT_NEW_ARRAY(&low_spec, 2 * count));
    check(MOERT_NEW_ARRAY(&plain_spec, count));
    for (size_t i = 0; i < count; i++) {
        entries[i] = entry_of(moert_tensors_at(model, i));
        lows += low_specs(&entries[i], &low_spec[lows]);
        plain_spec[i] = spec_of(entries[i].tensor);
    }
    check(moert_writer_open(argv[3], low_spec, lows, NULL, true, &low));
    check(moert_writer_open(argv[4], plain_spec, count, NULL, true, &plain));
    for (const entry *e = entries; e < entries + count; e++) {
        const moert_tensor *t = e->tensor;
        float *values;
        check(MOERT_NEW_ARRAY(&values, t->elements));
        if (e->quantized)
            draw(e, values, low);
        else
            check(moert_writer_put(low, t->name, 0, t->elements, t->data));
        check(moert_writer_put(plain, t->name, 0, t->elements, e->quantized ? values : t->data));
        free(values);
    }
    check(moert_writer_close(low));
    check(moert_writer_close(plain));
    free(plain_spec);
    free(low_spec);
    free(entries);
    moert_tensors_close(model);
    return 0;
}
