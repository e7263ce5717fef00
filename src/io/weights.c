/* Finds and dequantizes the weights of released files, one value at a time. */
#include "io/weights.h"

#include <math.h>
#include <stdio.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "base/phase.h"
#include "io/internal.h"

enum {
    FP8_BLOCK = 128,  /* an FP8 scale covers FP8_BLOCK x FP8_BLOCK values */
    MXFP4_BLOCK = 32, /* an MXFP4 scale covers this many columns of a row */
    NAME_BYTES = 256,
};

/* ---- finding ---- */

static void join(char name[NAME_BYTES], const char *stem, const char *suffix) {
    snprintf(name, NAME_BYTES, "%s%s", stem, suffix);
}

static bool has(const moert_tensors *files, const char *stem, const char *suffix) {
    char name[NAME_BYTES];
    join(name, stem, suffix);
    return moert_tensors_find(files, name) != NULL;
}

/* The dtypes that a tensor of a role (values or scales) may have in files. */
typedef struct readable {
    const char *role, *list;
    unsigned types; /* bit mask */
} readable;

#define TYPE(name) (1U << MOERT_FILE_##name)
static const readable packed_values = {"packed values", "U8", TYPE(U8)},
                      mxfp4_scales = {"scales of MXFP4", "U8 and F8_E8M0",
                                      TYPE(U8) | TYPE(F8_E8M0)},
                      fp8_scales = {"scales of FP8", "F32, BF16 and F8_E8M0",
                                    TYPE(F32) | TYPE(BF16) | TYPE(F8_E8M0)};

static moert_status check_type(const moert_tensor *tensor, const readable *as) {
    if (as->types >> tensor->type & 1)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: tensor '%.200s' is %s; %s are read from %s",
                      tensor->file, tensor->name, moert_file_type_text(tensor->type), as->role,
                      as->list);
}

static moert_status find_mxfp4(const moert_tensors *files, const char *name, const size_t *shape,
                               moert_weight *weight) {
    const size_t n = shape[2], k = shape[1], across = k / MXFP4_BLOCK;
    const size_t packed[] = {shape[0], n, across, MXFP4_BLOCK / 2};
    char part[NAME_BYTES];
    if (k % MXFP4_BLOCK != 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "tensor '%.200s' has rows of %zu values, not a multiple of its blocks of "
                          "%d values",
                          name, k, MXFP4_BLOCK);
    *weight = (moert_weight){.rows = n, .columns = k, .transposed = true};
    join(part, name, "_blocks");
    MOERT_TRY(moert_tensors_get(files, part, 4, packed, &weight->values));
    MOERT_TRY(check_type(weight->values, &packed_values));
    join(part, name, "_scales");
    MOERT_TRY(moert_tensors_get(files, part, 3, packed, &weight->scales));
    return check_type(weight->scales, &mxfp4_scales);
}

static moert_status find_fp8(const moert_tensors *files, const char *name, size_t rank,
                             const size_t *shape, moert_weight *weight) {
    char part[NAME_BYTES];
    if (rank != 2 || weight->values->type != MOERT_FILE_F8_E4M3)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s: tensor '%.200s' has scales, '_scale_inv', but is %s of %zu "
                          "dimensions; only matrices of F8_E4M3 are read with scales",
                          weight->values->file, name, moert_file_type_text(weight->values->type),
                          rank);
    weight->rows = shape[0];
    weight->columns = shape[1];
    const size_t blocks[] = {moert_ceil_div(shape[0], FP8_BLOCK),
                             moert_ceil_div(shape[1], FP8_BLOCK)};
    join(part, name, "_scale_inv");
    MOERT_TRY(moert_tensors_get(files, part, 2, blocks, &weight->scales));
    return check_type(weight->scales, &fp8_scales);
}

moert_status moert_weight_find(const moert_tensors *files, const char *name, size_t rank,
                               const size_t *shape, moert_weight *weight) {
    moert_weight found = {.values = moert_tensors_find(files, name)};
    if (found.values == NULL && rank == 3 &&
        (has(files, name, "_blocks") || has(files, name, "_scales"))) {
        MOERT_TRY(find_mxfp4(files, name, shape, &found));
    } else {
        MOERT_TRY(moert_tensors_get(files, name, rank, shape, &found.values));
        if (has(files, name, "_scale_inv"))
            MOERT_TRY(find_fp8(files, name, rank, shape, &found));
        else if (found.values->type == MOERT_FILE_F8_E4M3)
            return MOERT_FAIL(ERROR_MISMATCH,
                              "%s: tensor '%.200s' is F8_E4M3 without its scales: there is no "
                              "tensor '%.200s_scale_inv'",
                              found.values->file, name, name);
    }
    *weight = found;
    return MOERT_OK;
}

/* ---- reading ---- */

/* *scale = the scale of element `at`. Returns for how many elements from `at` on this scale is
 * valid. */
static size_t read_scale(const moert_weight *w, size_t at, float *scale) {
    const size_t row = at / w->columns, column = at % w->columns;
    if (w->transposed) {
        *scale = moert_e8m0_decode(((const uint8_t *)w->scales->data)[at / MXFP4_BLOCK]);
        return MXFP4_BLOCK - at % MXFP4_BLOCK;
    }
    const size_t across = moert_ceil_div(w->columns, FP8_BLOCK),
                 block = row / FP8_BLOCK * across + column / FP8_BLOCK;
    if (w->scales->type == MOERT_FILE_F8_E8M0)
        *scale = moert_e8m0_decode(((const uint8_t *)w->scales->data)[block]);
    else
        moert_tensor_read_f32(w->scales, block, 1, scale);
    return moert_min(FP8_BLOCK - column % FP8_BLOCK, w->columns - column);
}

static uint8_t read_payload(const moert_weight *w, size_t at) {
    const uint8_t *payload = w->values->data;
    if (!w->transposed)
        return payload[at];
    return at % 2 != 0 ? payload[at / 2] >> 4 : payload[at / 2] & 15;
}

/* Reads a plain weight. */
static moert_status read_plain(const moert_weight *w, size_t first, size_t count, float *out) {
    MOERT_TRY(moert_tensor_read_f32(w->values, first, count, out));
    for (size_t i = 0; i < count; i++)
        if (!isfinite(out[i]))
            return MOERT_FAIL(
                ERROR_FORMAT, "%s: element %zu of tensor '%.200s' is %g; values must be finite",
                w->values->file, first + i, w->values->name, (double)moert_float_quiet(out[i]));
    return MOERT_OK;
}

static moert_status refuse(const moert_weight *w, size_t at, float value, float scale) {
    const size_t matrix = w->rows * w->columns;
    size_t index[] = {at / matrix, at % matrix / w->columns, at % w->columns};
    char text[MOERT_SHAPE_TEXT_BYTES];
    return MOERT_FAIL(
        ERROR_FORMAT,
        "%s: tensor '%.200s' is %g at %s, by payload 0x%02x and scale %g; weights must "
        "be finite",
        w->values->file, w->values->name, (double)moert_float_quiet(value),
        moert_shape_text(w->transposed ? 3 : 2, w->transposed ? index : index + 1, text),
        read_payload(w, at), (double)moert_float_quiet(scale));
}

moert_status moert_weight_read(const moert_weight *w, size_t first, size_t count, float *out) {
    const moert_dtype type = w->transposed ? MOERT_DTYPE_E2M1 : MOERT_DTYPE_E4M3;
    float value_of[256], scale;
    if (w->scales == NULL)
        return read_plain(w, first, count, out);
    const size_t elements = w->transposed ? 2 * w->values->elements : w->values->elements;
    MOERT_TRY(moert_check_elements(w->values->file, w->values->name, elements, first, count));
    for (uint32_t bits = 0; bits < 1u << moert_dtype_bits(type); bits++)
        value_of[bits] = moert_dtype_decode(type, bits);
    moert_phase_tick();
    for (size_t i = 0; i < count;) {
        const size_t end = i + moert_min(read_scale(w, first + i, &scale), count - i);
        for (; i < end; i++) {
            out[i] = value_of[read_payload(w, first + i)] * scale;
            if (!isfinite(out[i]))
                return refuse(w, first + i, out[i], scale);
        }
    }
    return MOERT_OK;
}
