/* Quantizers and casts of the portable backend: launches kernels/quant/quantize.cl, dequantize.cl,
 * fake_quantize.cl, fp8_operands.cl, amax.cl and cast.cl. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "args/quant.h"
#include "base/memory.h"
#include "base/dtype.h"
#include "device/device.h"
#include "device/launch.h"
#include "quant/backend.h"

enum {
    STRIP = 1024,     /* columns of a work-group on CPUs, and of fake quantization on all devices; a
                         multiple of the largest block */
    GPU_STRIP = 4096, /* columns of a work-group on GPUs, where starting one takes as long as
                         several steps */
    /* columns that a work-group on GPUs takes in its only step, if blocks span rows */
    GPU_COLUMNS = MOERT_SUM_LANES,
};

/* A dtype as six integers, in the order of kernels/lib/encodings.h. */
enum { SPECIAL_NONE, SPECIAL_NAN, SPECIAL_INFINITY };
static const char *const dtype_text[] = {
#define DTYPE_TEXT(name, text, bits, mantissa, bias, overflow, nan, special)                       \
#bits "," #mantissa "," #bias "," #overflow "," #nan,
    MOERT_DTYPE_TABLE(DTYPE_TEXT)
#undef DTYPE_TEXT
};
static const int dtype_special[] = {
#define DTYPE_SPECIAL(name, text, bits, mantissa, bias, overflow, nan, special) SPECIAL_##special,
    MOERT_DTYPE_TABLE(DTYPE_SPECIAL)
#undef DTYPE_SPECIAL
};

/* The values of the kernels' define SCALE. */
enum { SCALE_E8M0, SCALE_E4M3, SCALE_F32 };
static const int scale_kind[] = {
#define SCALE_KIND(name, text, element, block, scale) SCALE_##scale,
    MOERT_FORMAT_TABLE(SCALE_KIND)
#undef SCALE_KIND
};

static void add_format(const char *family, moert_format format, int scale,
                       char spec[MOERT_SPEC_BYTES]) {
    const moert_dtype element = moert_format_element(format);
    const float largest = moert_dtype_largest(element);
    snprintf(spec, MOERT_SPEC_BYTES,
             "%s -DBLOCK=%zu -DELEMENT=%s,%d -DE4M3=%s,%d -DELEMENT_BITS=%zu -DSCALE=%d "
             "-DLARGEST=%.1ff -DLARGEST_EXPONENT=%d",
             family, moert_format_block(format), dtype_text[element], dtype_special[element],
             dtype_text[MOERT_DTYPE_E4M3], dtype_special[MOERT_DTYPE_E4M3],
             moert_dtype_bits(element), scale, (double)largest, ilogbf(largest));
}

void moert_format_program(const char *family, moert_format format, char spec[MOERT_SPEC_BYTES]) {
    add_format(family, format, scale_kind[format], spec);
}

static size_t strip_of(const moert_device *device, const moert_quantize *op) {
    return moert_by_form(device, STRIP, op->how.axis == MOERT_AXIS_ROW ? GPU_STRIP : GPU_COLUMNS);
}

/* The grid: rows, or the largest possible number of row blocks, by strips of columns. */
static moert_grid tiles_of(const moert_device *device, const moert_quantize *op) {
    const size_t most = moert_row_blocks_most(op->groups.rows, op->groups.count,
                                              moert_format_block(op->how.format));
    const size_t along = op->how.axis == MOERT_AXIS_ROW ? op->groups.rows : most;
    return (moert_grid){along, moert_ceil_div(op->columns, strip_of(device, op)), 1};
}

/* Adds the option of programs whose sizes, which `sizes` joins by |, are multiples of 4. */
static void add_aligned(const moert_device *device, size_t sizes, char spec[MOERT_SPEC_BYTES]) {
    if (moert_by_form(device, 1, sizes % 4) == 0)
        strcat(spec, " -DALIGNED");
}

/* The program of a family for an operation, as MOERT_PROGRAM() forms it. */
static void choose_program(const moert_device *device, const char *family, const moert_quantize *op,
                           char spec[MOERT_SPEC_BYTES]) {
    moert_format_program(family, op->how.format, spec);
    if (op->x_runs > 0)
        strcat(spec, " -DRUNS");
    if (op->how.transposed)
        strcat(spec, " -DTRANSPOSED=1");
    add_aligned(device, op->columns | moert_quantized_layout(op).q_bytes, spec);
}

/* Adds the options that only quantizing needs. */
static void add_choices(const moert_quantizer *how, char spec[MOERT_SPEC_BYTES]) {
    const size_t used = strlen(spec);
    if (moert_format_element_bits(how->format) == 4)
        snprintf(spec + used, MOERT_SPEC_BYTES - used, " -DROUNDING=%d -DRULE=%d",
                 (int)how->rounding, (int)how->nvfp4_rule);
}

/* WIDE of kernels/quant/dequantize.cl: columns that a work-item decodes at a time, or 0. */
static size_t wide_columns(const moert_device *device, const moert_quantize *op) {
    const size_t wide = op->x_type == MOERT_DTYPE_BF16 ? 8 : 4;
    const size_t units =
        moert_quantized_layout(op).q_bytes * 8 / moert_format_element_bits(op->how.format);
    const bool has_type = op->x_type == MOERT_DTYPE_BF16 || op->x_type == MOERT_DTYPE_F32;
    return has_type && op->how.axis == MOERT_AXIS_ROW &&
                   moert_by_form(device, 1, (op->columns | units) % wide) == 0
               ? wide
               : 0;
}

static moert_device *device_of(const moert_quantize *op) {
    const moert_buffer *any = op->x != NULL ? op->x : op->amax != NULL ? op->amax : op->global;
    return any != NULL ? moert_buffer_device(any) : NULL;
}

moert_status moert_portable_quantize_amax(const moert_quantize *op) {
    moert_device *device = moert_buffer_device(op->amax);
    const moert_groups *groups = &op->groups;
    const size_t blocks = moert_row_blocks_most(groups->rows, groups->count, MOERT_AMAX_ROWS);
    const size_t results = op->how.group_scales ? groups->count : 1;
    char spec[MOERT_SPEC_BYTES] = "quant/amax";
    add_aligned(device, op->columns, spec);
    MOERT_TRY(moert_buffer_clear(op->amax, 0, results * sizeof(float)));
    return MOERT_RUN(device, spec, "amax", ((moert_grid){op->columns > 0 ? blocks : 0, 1, 1}),
                     MOERT_ARG(groups->ends), MOERT_ARG(op->x), MOERT_ARG(op->amax),
                     MOERT_ARGS(moert_amax_args, .groups = (unsigned)groups->count,
                                .rows = (unsigned)groups->rows, .columns = (int)op->columns,
                                .hadamard = (int)op->how.hadamard,
                                .group_scales = (int)op->how.group_scales));
}

static moert_quantize_args args_of(const moert_device *device, const moert_quantize *op,
                                   const moert_quantized_shape *shape) {
    const moert_quantizer *how = &op->how;
    return (moert_quantize_args){.q_bytes = shape->q_bytes,
                                 .scales = shape->scales,
                                 .seed = how->seed,
                                 .groups = (unsigned)op->groups.count,
                                 .rows = (unsigned)op->groups.rows,
                                 .columns = (int)op->columns,
                                 .strip = (int)strip_of(device, op),
                                 .x_runs = (int)op->x_runs,
                                 .x_type = (int)op->x_type,
                                 .group_scales = how->group_scales,
                                 .scale_rounding = (int)how->scale_rounding,
                                 .hadamard = how->hadamard,
                                 .blocks = (unsigned)op->blocks};
}

moert_status moert_portable_quantize(const moert_quantize *op) {
    static const char *const kernels[] = {"quantize_row", "quantize_column", "quantize_tile"};
    const moert_quantizer *how = &op->how;
    const moert_groups *groups = &op->groups;
    const moert_quantized_shape shape = moert_quantized_layout(op);
    const size_t scales = how->group_scales ? groups->count : 1;
    char spec[MOERT_SPEC_BYTES];
    moert_device *device = device_of(op);
    if (op->amax != NULL)
        MOERT_TRY(MOERT_RUN(
            device, "quant/amax", "nvfp4_global", ((moert_grid){1, 1, 1}), MOERT_ARG(op->amax),
            MOERT_ARG(op->global),
            MOERT_ARGS(moert_amax_args, .count = (unsigned)scales, .rule = (int)how->nvfp4_rule)));
    if (groups->rows == 0 || op->columns == 0)
        return MOERT_OK;
    choose_program(device, "quant/quantize", op, spec);
    add_choices(how, spec);
    const moert_quantize_args args = args_of(device, op, &shape);
    return MOERT_RUN(device, spec, kernels[how->axis], tiles_of(device, op),
                     MOERT_ARG(groups->ends), MOERT_ARG(op->x), MOERT_ARG(op->q),
                     MOERT_ARG(op->scale), MOERT_ARG(op->amax), MOERT_ARG(op->global),
                     MOERT_ARG(op->norm), MOERT_STRUCT(args));
}

moert_status moert_portable_fake_quantize(const moert_fake_quantize *op) {
    const moert_groups *groups = &op->groups;
    const moert_quantizer *how = &op->how;
    moert_device *device = moert_buffer_device(op->x);
    const size_t blocks =
        moert_row_blocks_most(groups->rows, groups->count, moert_format_block(how->format));
    const bool tiles = how->axis == MOERT_AXIS_TILE, rotates = how->hadamard && op->down != NULL;
    char spec[MOERT_SPEC_BYTES];
    add_format("quant/fake_quantize", how->format,
               how->format == MOERT_FORMAT_NVFP4 ? SCALE_E4M3 : SCALE_E8M0, spec);
    add_choices(how, spec);
    const size_t used = strlen(spec);
    snprintf(spec + used, MOERT_SPEC_BYTES - used, " -DX_BF16=%d -DALONG=%d -DDOWN=%d%s%s",
             op->x_type == MOERT_DTYPE_BF16, op->along != NULL, op->down != NULL,
             tiles ? " -DTILES" : "", rotates ? " -DHADAMARD" : "");
    add_aligned(device, op->columns | op->x_stride, spec);
    const moert_argument args = MOERT_ARGS(
        moert_quantize_args, .seed = how->seed, .x_stride = op->x_stride,
        .groups = (unsigned)groups->count, .rows = (unsigned)groups->rows,
        .columns = (int)op->columns, .strip = STRIP, .scale_rounding = (int)how->scale_rounding,
        .blocks = (unsigned)blocks, .draws_at = (unsigned)op->draws_at, .stream = op->stream);
    return MOERT_RUN(device, spec, "fake_quantize",
                     ((moert_grid){blocks, moert_ceil_div(op->columns, STRIP), 1}),
                     MOERT_ARG(groups->ends), MOERT_ARG(op->x), MOERT_ARG(op->draws),
                     MOERT_ARG(op->along), MOERT_ARG(op->down), args);
}

void moert_fp8_program(const char *family, const moert_fp8_operands *op,
                       char spec[MOERT_SPEC_BYTES]) {
    add_format(family, MOERT_FORMAT_FP8_BLOCK, SCALE_E8M0, spec);
    const size_t used = strlen(spec);
    snprintf(spec + used, MOERT_SPEC_BYTES - used, " -DX_BF16=%d -DALONG=%d -DDOWN=%d%s -DALIGNED",
             op->x_type == MOERT_DTYPE_BF16, op->along.q != NULL, op->down.q != NULL,
             op->tiles ? " -DTILES" : "");
}

moert_status moert_portable_fp8_operands(const moert_fp8_operands *op) {
    const moert_groups *g = &op->groups;
    moert_device *device = moert_buffer_device(op->x);
    const size_t blocks = moert_row_blocks_most(g->rows, g->count, MOERT_FP8_BLOCK),
                 height = g->rows / g->count;
    const moert_quantize_args args = {
        .q_bytes = op->tiles ? height : moert_fp8_padded_rows(g->rows, g->count),
        .scales = height / MOERT_FP8_BLOCK,
        .x_stride = op->x_stride,
        .groups = op->tiles ? 1 : (unsigned)g->count,
        .rows = (unsigned)g->rows,
        .columns = (int)op->columns,
        .strip = STRIP,
        .blocks = (unsigned)blocks};
    const moert_buffer *ends = op->tiles ? NULL : g->ends;
    char spec[MOERT_SPEC_BYTES];
    if (moert_by_form(device, 1, 0) == 1)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "FP8 operands need kernels in GPU form");
    moert_fp8_program("quant/fp8_operands", op, spec);
    if (op->down.q != NULL && !op->tiles)
        MOERT_TRY(MOERT_RUN(device, spec, "pad_ends", ((moert_grid){1, 1, 1}), MOERT_ARG(ends),
                            MOERT_ARG(op->padded_ends), MOERT_STRUCT(args)));
    return MOERT_RUN(device, spec, "fp8_operands",
                     ((moert_grid){blocks, moert_ceil_div(op->columns, STRIP), 1}), MOERT_ARG(ends),
                     MOERT_ARG(op->padded_ends), MOERT_ARG(op->x), MOERT_ARG(op->along.q),
                     MOERT_ARG(op->along.scale), MOERT_ARG(op->down.q), MOERT_ARG(op->down.scale),
                     MOERT_STRUCT(args));
}

moert_status moert_portable_dequantize(const moert_quantize *op) {
    static const char *const kernels[] = {"dequantize_row", "dequantize_column", "dequantize_tile"};
    const moert_quantizer *how = &op->how;
    const moert_groups *groups = &op->groups;
    const moert_quantized_shape shape = moert_quantized_layout(op);
    moert_device *device = moert_buffer_device(op->x);
    char spec[MOERT_SPEC_BYTES];
    choose_program(device, "quant/dequantize", op, spec);
    const size_t wide = wide_columns(device, op), used = strlen(spec);
    if (wide > 0)
        snprintf(spec + used, MOERT_SPEC_BYTES - used, " -DWIDE=%zu", wide);
    const moert_quantize_args args = args_of(device, op, &shape);
    return MOERT_RUN(device, spec, kernels[how->axis], tiles_of(device, op),
                     MOERT_ARG(groups->ends), MOERT_ARG(op->q), MOERT_ARG(op->scale),
                     MOERT_ARG(op->global), MOERT_ARG(op->x), MOERT_STRUCT(args));
}

moert_status moert_portable_cast(const moert_cast *cast) {
    const bool down = cast->from == MOERT_DTYPE_F32;
    const moert_dtype small = down ? cast->to : cast->from;
    char spec[MOERT_SPEC_BYTES];
    moert_device *device = moert_buffer_device(cast->target);
    snprintf(spec, sizeof spec, "quant/cast -DDTYPE=%s,%d -DBITS=%zu%s", dtype_text[small],
             dtype_special[small], moert_dtype_bits(small), MOERT_PROGRAM(device, "", cast->n));
    const size_t block = moert_by_form(device, MOERT_CAST_BLOCK, MOERT_CAST_GPU_BLOCK);
    const moert_grid grid = {moert_ceil_div(cast->n, block), 1, 1};
    return MOERT_RUN(device, spec, down ? "cast_down" : "cast_up", grid, MOERT_ARG(cast->source),
                     MOERT_ARG(cast->target), MOERT_ARG(cast->n));
}
