/* The operations swizzle and unswizzle of moert-op. */
#include "base/memory.h"
#include "moert/quantize.h"
#include "quant/scales.h"
#include "tools/op/op.h"

static bool transposed;
static size_t lines_given, width_given;

#define TRANSPOSED                                                                                 \
    {                                                                                              \
        "transposed", MOERT_OPTION_FLAG, &transposed, "0", NULL,                                   \
            "lines of `scale` are blocks, its columns are rows of the matrix"                      \
    }

static const moert_option swizzle_options[] = {TRANSPOSED};

static const moert_option unswizzle_options[] = {
    TRANSPOSED,
    {"lines", MOERT_OPTION_UINT, &lines_given, "0", "0..2147483647", "lines of `scale`"},
    {"width", MOERT_OPTION_UINT, &width_given, "0", "0..2147483647", "columns of `scale`"},
};

size_t moert_file_op_count_tiles(moert_scale_tiles *t, const uint32_t *ends) {
    const size_t unit = moert_tile_lines(t->transposed);
    t->tiles = ends != NULL ? moert_row_blocks(ends, t->groups.count, unit)
                            : moert_ceil_div(t->groups.rows, unit);
    return moert_swizzled_bytes(ends, t->groups.count, t->groups.rows, t->width, t->transposed);
}

moert_status moert_file_op_swizzled(moert_file_op_job *job, const char *name, moert_scale_tiles *t,
                                    const uint32_t *ends) {
    const size_t bytes = moert_file_op_count_tiles(t, ends);
    MOERT_TRY(moert_file_op_buffer(job, bytes, &t->swizzled));
    MOERT_TRY(moert_swizzle(t));
    return moert_file_op_result(job, (moert_tensor_spec){name, MOERT_FILE_U8, 1, {bytes}},
                                t->swizzled);
}

static moert_status swizzle(moert_file_op_job *job) {
    moert_scale_tiles op = {.size = sizeof op, .transposed = transposed};
    moert_file_op_rows lines;
    MOERT_TRY(moert_file_op_load_bytes(job, "scale", 1, &lines, &op.linear));
    MOERT_TRY(moert_file_op_groups_of(job, &lines, "ends", &op.groups));
    op.width = lines.columns;
    return moert_file_op_swizzled(job, "swizzled", &op, job->ends);
}

static moert_status unswizzle(moert_file_op_job *job) {
    moert_scale_tiles op = {.size = sizeof op, .transposed = transposed, .width = width_given};
    const moert_tensor *tensor = moert_tensors_find(job->input, "swizzled");
    if (lines_given == 0 || width_given == 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "--lines and --width, the shape of the scales, must be given");
    MOERT_TRY(moert_file_op_load_groups(job, "ends", lines_given, &op.groups));
    const size_t bytes = moert_file_op_count_tiles(&op, job->ends);
    if (tensor == NULL || tensor->bytes != bytes)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "tensor 'swizzled' has %zu bytes; %zu lines of %zu scales need %zu bytes",
                          tensor != NULL ? tensor->bytes : 0, lines_given, width_given, bytes);
    MOERT_TRY(moert_file_op_upload(job, tensor->data, bytes, &op.swizzled));
    MOERT_TRY(moert_file_op_buffer(job, lines_given * width_given, &op.linear));
    MOERT_TRY(moert_unswizzle(&op));
    return moert_file_op_result(
        job, (moert_tensor_spec){"scale", MOERT_FILE_U8, 2, {lines_given, width_given}}, op.linear);
}

MOERT_FILE_OP(
    swizzle, "swizzle",
    "scale[lines,width] u8, ends[G] (optional: groups of lines, each tiled separately), or "
    "scale[G,lines,width] -> swizzled u8, in 128x4 tiles");

MOERT_FILE_OP(unswizzle, "unswizzle", "swizzled u8, ends[G] (optional) -> scale[lines,width] u8");
