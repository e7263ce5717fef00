/* moert-op quantize and dequantize. */
#include "base/memory.h"
#include "moert/quantize.h"
#include "tools/op.h"

/* Words of --format: those of MOERT_FORMAT_TABLE, but that of FP8_BLOCK as files name its axes. */
#define FORMAT_WORDS "mxfp8-e4m3|mxfp8-e5m2|mxfp4|nvfp4|fp8-1x128|fp8-128x128"
enum { FP8_1X128 = MOERT_FORMAT_FP8_BLOCK, FP8_128X128 };

static unsigned format, axis, scale_rounding, nvfp4_rule, rounding, global_from;
static size_t seed, gate_runs, columns_given;
static bool transposed, hadamard, group_scales;

#define FORMAT_OPTIONS                                                                              \
    {"format", MOERT_OPTION_CHOICE, &format, "mxfp8-e4m3", FORMAT_WORDS, "of the payload"},         \
        {"axis",          MOERT_OPTION_CHOICE,                                                      \
         &axis,           "row",                                                                    \
         "row|column|2d", "blocks along rows, along columns, or square; fp8-128x128 is 2d always"}, \
        {"transposed", MOERT_OPTION_FLAG,                                                           \
         &transposed,  "0",                                                                         \
         NULL,         "q and scale of columns are stored as their transposes"},                    \
    {                                                                                               \
        "group-scales", MOERT_OPTION_FLAG, &group_scales, "0", NULL,                                \
            "nvfp4: a global scale for each group of `ends`"                                        \
    }

static const moert_option quantize_options[] = {
    FORMAT_OPTIONS,
    {"scale-rounding", MOERT_OPTION_CHOICE, &scale_rounding, "rceil", "rceil|floor",
     "of power-of-two scales"},
    {"nvfp4-rule", MOERT_OPTION_CHOICE, &nvfp4_rule, "te", "te|torchao|bridge",
     "how nvfp4 scales are made"},
    {"global-scale", MOERT_OPTION_CHOICE, &global_from, "file", "file|amax",
     "of nvfp4: from the file if it has one, or from the largest magnitude always"},
    {"rounding", MOERT_OPTION_CHOICE, &rounding, "auto", "auto|nearest|bridge|stochastic",
     "of 4-bit elements; auto follows the rule"},
    {"seed", MOERT_OPTION_UINT, &seed, "0", NULL, "of stochastic rounding"},
    {"hadamard", MOERT_OPTION_FLAG, &hadamard, "0", NULL,
     "nvfp4 along columns: rotate each block of 16 first"},
    {"gate-runs", MOERT_OPTION_UINT, &gate_runs, "0", NULL,
     "x is [M,2N]: of its runs of so many columns, quantise every second one"},
};

static const moert_option dequantize_options[] = {
    FORMAT_OPTIONS,
    {"columns", MOERT_OPTION_UINT, &columns_given, "0", NULL,
     "N of 4-bit elements along rows, when it is odd"},
};

/* The operation as the options say. */
static void describe(moert_quantize *op) {
    const bool square = format == FP8_128X128;
    op->how = (moert_quantizer){.size = sizeof op->how,
                                .format = square ? MOERT_FORMAT_FP8_BLOCK : (moert_format)format,
                                .axis = square ? MOERT_AXIS_TILE : (moert_axis)axis,
                                .scale_rounding = scale_rounding,
                                .nvfp4_rule = nvfp4_rule,
                                .rounding = rounding,
                                .seed = seed,
                                .transposed = transposed,
                                .hadamard = hadamard,
                                .group_scales = group_scales};
}

/* P of the groups at hand. */
static size_t row_blocks(const moert_file_op_job *job, const moert_groups *groups, size_t block) {
    return job->ends != NULL ? moert_row_blocks(job->ends, groups->count, block)
                             : moert_ceil_div(groups->rows, block);
}

/* ---- quantize ---- */

/* Ends of the groups' row blocks, as groups of the lines of the scales. */
static moert_status block_groups(moert_file_op_job *job, const moert_quantize *op,
                                 moert_groups *groups) {
    moert_buffer *buffer;
    uint32_t *ends = job->ends; /* from here on those of the blocks */
    *groups = (moert_groups){.count = 1, .rows = op->blocks};
    if (ends == NULL)
        return MOERT_OK;
    for (size_t g = 0, start = 0, sum = 0; g < op->groups.count; g++) {
        const size_t end = ends[g];
        sum += moert_ceil_div(end - start, moert_format_block(op->how.format));
        ends[g] = (uint32_t)sum;
        start = end;
    }
    MOERT_TRY(moert_file_op_upload(job, ends, op->groups.count * sizeof *ends, &buffer));
    groups->ends = buffer;
    groups->count = op->groups.count;
    return MOERT_OK;
}

/* The result `swizzled`, of scales of one byte; not of transposed ones of several groups. */
static moert_status swizzle_scales(moert_file_op_job *job, const moert_quantize *op,
                                   moert_quantized_shape shape) {
    const bool column = op->how.axis == MOERT_AXIS_COLUMN;
    moert_scale_tiles tiles = {
        .size = sizeof tiles, .groups = op->groups, .width = shape.scales, .linear = op->scale};
    if (moert_format_scale_bytes(op->how.format) != 1 || (transposed && job->ends != NULL))
        return MOERT_OK;
    if (column && !transposed) {
        tiles.transposed = true;
        MOERT_TRY(block_groups(job, op, &tiles.groups));
    } else if (column) {
        tiles.groups = (moert_groups){.count = 1, .rows = shape.scale_lines};
    }
    const size_t bytes = moert_swizzled_bytes(job->ends, tiles.groups.count, tiles.groups.rows,
                                              tiles.width, tiles.transposed);
    tiles.tiles = row_blocks(job, &tiles.groups, tiles.transposed ? 4 : 128);
    MOERT_TRY(moert_file_op_buffer(job, bytes, &tiles.swizzled));
    MOERT_TRY(moert_swizzle(&tiles));
    return moert_file_op_result(job, (moert_tensor_spec){"swizzled", MOERT_FILE_U8, 1, {bytes}},
                                tiles.swizzled);
}

/* The global scale of the file, or a new one with the amax to make it from. */
static moert_status prepare_global(moert_file_op_job *job, moert_quantize *op) {
    const size_t count = group_scales ? op->groups.count : 1;
    const moert_tensor *given =
        global_from == 0 ? moert_tensors_find(job->input, "global_scale") : NULL;
    MOERT_TRY(moert_file_op_buffer(job, count * sizeof(float), &op->global));
    if (given == NULL) {
        MOERT_TRY(moert_file_op_buffer(job, count * sizeof(float), &op->amax));
        return moert_quantize_amax(op);
    }
    if (given->type != MOERT_FILE_F32 || given->elements != count)
        return MOERT_FAIL(ERROR_MISMATCH, "%s: global_scale is %s [%zu], not F32 [%zu]",
                          given->file, moert_file_type_text(given->type), given->elements, count);
    return moert_buffer_write(op->global, 0, given->data, given->bytes);
}

static moert_status quantize(moert_file_op_job *job) {
    moert_quantize op = {.size = sizeof op, .x_runs = gate_runs};
    size_t rows;
    describe(&op);
    MOERT_TRY(moert_file_op_load_f32(job, "x", &rows, &op.columns, &op.x));
    if (gate_runs > 0)
        op.columns /= 2;
    MOERT_TRY(moert_file_op_load_groups(job, "ends", rows, &op.groups));
    op.blocks = row_blocks(job, &op.groups, moert_format_block(op.how.format));
    const moert_quantized_shape shape =
        moert_quantized_shape_of(&op.how, rows, op.columns, op.blocks);
    const size_t bytes = moert_format_scale_bytes(op.how.format);
    if (op.how.format == MOERT_FORMAT_NVFP4)
        MOERT_TRY(prepare_global(job, &op));
    MOERT_TRY(moert_file_op_buffer(job, shape.q_lines * shape.q_bytes, &op.q));
    MOERT_TRY(moert_file_op_buffer(job, shape.scale_lines * shape.scales * bytes, &op.scale));
    MOERT_TRY(moert_quantize_run(&op));
    const moert_tensor_spec q = {"q", MOERT_FILE_U8, 2, {shape.q_lines, shape.q_bytes}};
    const moert_tensor_spec scale = {
        "scale", bytes == 1 ? MOERT_FILE_U8 : MOERT_FILE_F32, 2, {shape.scale_lines, shape.scales}};
    const moert_tensor_spec global = {
        "global_scale", MOERT_FILE_F32, 1, {group_scales ? op.groups.count : 1}};
    MOERT_TRY(moert_file_op_result(job, q, op.q));
    MOERT_TRY(moert_file_op_result(job, scale, op.scale));
    if (op.global != NULL)
        MOERT_TRY(moert_file_op_result(job, global, op.global));
    return swizzle_scales(job, &op, shape);
}

/* ---- dequantize ---- */

static moert_status dequantize(moert_file_op_job *job) {
    moert_quantize op = MOERT_QUANTIZE_INIT;
    size_t lines, bytes, scale_lines, scales, rows;
    describe(&op);
    const bool column = op.how.axis == MOERT_AXIS_COLUMN;
    const bool halves = moert_format_element_bits(op.how.format) == 4;
    MOERT_TRY(moert_file_op_load_bytes(job, "q", 1, &lines, &bytes, &op.q));
    MOERT_TRY(moert_file_op_load_bytes(job, "scale", moert_format_scale_bytes(op.how.format),
                                       &scale_lines, &scales, &op.scale));
    rows = column && transposed ? bytes : lines;
    op.columns = column && transposed ? lines : bytes;
    if (halves && column)
        rows *= 2;
    else if (halves)
        op.columns = columns_given > 0 ? columns_given : 2 * bytes;
    MOERT_TRY(moert_file_op_load_groups(job, "ends", rows, &op.groups));
    op.blocks = row_blocks(job, &op.groups, moert_format_block(op.how.format));
    const moert_quantized_shape shape =
        moert_quantized_shape_of(&op.how, rows, op.columns, op.blocks);
    if (shape.q_lines != lines || shape.q_bytes != bytes || shape.scale_lines != scale_lines ||
        shape.scales != scales)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "q[%zu,%zu] and scale[%zu,%zu] do not belong together: %zu rows of %zu "
                          "make q[%zu,%zu] and scale[%zu,%zu]",
                          lines, bytes, scale_lines, scales, rows, op.columns, shape.q_lines,
                          shape.q_bytes, shape.scale_lines, shape.scales);
    if (op.how.format == MOERT_FORMAT_NVFP4) {
        if (moert_tensors_find(job->input, "global_scale") == NULL)
            return MOERT_FAIL(ERROR_MISMATCH, "nvfp4 needs a tensor global_scale");
        MOERT_TRY(prepare_global(job, &op));
    }
    MOERT_TRY(moert_file_op_buffer(job, rows * op.columns * sizeof(float), &op.x));
    MOERT_TRY(moert_dequantize_run(&op));
    return moert_file_op_result(
        job, (moert_tensor_spec){"x", MOERT_FILE_F32, 2, {rows, op.columns}}, op.x);
}

const moert_file_op moert_file_op_quantize = {
    "quantize",
    "x[M,N] f32|f16|bf16, ends[G] (optional: groups of rows), global_scale (optional) -> q u8, "
    "scale u8|f32, swizzled u8 (scales in 128x4 tiles), nvfp4: global_scale f32",
    quantize_options,
    sizeof quantize_options / sizeof quantize_options[0],
    quantize,
};

const moert_file_op moert_file_op_dequantize = {
    "dequantize",
    "q, scale, ends[G] (optional), nvfp4: global_scale, as quantize writes them -> x[M,N] f32",
    dequantize_options,
    sizeof dequantize_options / sizeof dequantize_options[0],
    dequantize,
};
