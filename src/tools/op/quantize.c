/* The operations quantize and dequantize of moert-op. */
#include <stdlib.h>

#include "base/memory.h"
#include "moert/quantize.h"
#include "quant/scales.h"
#include "tools/op/op.h"

static const char *base;
static unsigned format, axis, scale_rounding, nvfp4_rule, rounding, global_from;
static size_t seed, gate_runs, columns_given;
static bool transposed, hadamard, group_scales;

/* clang-format off */
#define FORMAT_OPTIONS                                                                             \
    {"name", MOERT_OPTION_STRING, &base, NULL, NULL,                                               \
     "name the float tensor NAME instead of x, and NAME, NAME_scale, NAME_global, NAME_swizzled "  \
     "instead of q, scale, global_scale, swizzled; copy all other tensors of the input to the "    \
     "output, so that one file grows step by step"},                                               \
    {"format", MOERT_OPTION_CHOICE, &format, "mxfp8", MOERT_FILE_OP_FORMAT_WORDS,                  \
     "of the payload; mxfp8 is mxfp8-e4m3, fp8-1x128 is fp8-block"},                               \
    {"axis", MOERT_OPTION_CHOICE, &axis, "row", "row|column|2d",                                   \
     "blocks along rows, along columns, or square; fp8-128x128 is always 2d"},                     \
    {"transposed", MOERT_OPTION_FLAG, &transposed, "0", NULL,                                      \
     "with --axis column: q and scale are stored transposed"},                                     \
    {"group-scales", MOERT_OPTION_FLAG, &group_scales, "0", NULL,                                  \
     "nvfp4: a global scale for each group"}
/* clang-format on */

static const moert_option quantize_options[] = {
    FORMAT_OPTIONS,
    {"scale-rounding", MOERT_OPTION_CHOICE, &scale_rounding, "rceil", "rceil|floor",
     "of power-of-two scales"},
    {"nvfp4-rule", MOERT_OPTION_CHOICE, &nvfp4_rule, "te", "te|torchao|bridge",
     "library whose rule computes nvfp4 scales"},
    {"global-scale", MOERT_OPTION_CHOICE, &global_from, "file", "file|amax",
     "of nvfp4: from the file if it has one, or always from the largest magnitude"},
    {"rounding", MOERT_OPTION_CHOICE, &rounding, "auto", "auto|nearest|bridge|stochastic",
     "of 4-bit elements; auto follows the rule"},
    {"seed", MOERT_OPTION_UINT, &seed, "0", NULL, "of stochastic rounding"},
    {"hadamard", MOERT_OPTION_FLAG, &hadamard, "0", NULL,
     "nvfp4 along columns: rotate each block of 16 first"},
    {"gate-runs", MOERT_OPTION_UINT, &gate_runs, "0", NULL,
     "columns of a run: x is [M,2N], and every second run is quantized; 0 = all of x[M,N]"},
};

static const moert_option dequantize_options[] = {
    FORMAT_OPTIONS,
    {"columns", MOERT_OPTION_UINT, &columns_given, "0", NULL,
     "N of 4-bit elements along rows, when it is odd"},
};

/* Tensors of the operation. With --name, a tensor is called NAME followed by its suffix. */
enum { VALUES, PAYLOAD, SCALE, GLOBAL, TILES, NAMES };
static const char *const plain_names[NAMES] = {"x", "q", "scale", "global_scale", "swizzled"};
static const char *const suffixes[NAMES] = {"", "", "_scale", "_global", "_swizzled"};

static moert_status name_tensors(moert_file_op_job *job, const char *names[NAMES]) {
    job->carries = base != NULL;
    for (size_t i = 0; i < NAMES; i++) {
        names[i] = plain_names[i];
        if (base != NULL)
            MOERT_TRY(moert_file_op_name(job, base, suffixes[i], &names[i]));
    }
    return MOERT_OK;
}

/* Sets op->how from the options; fails if an option does not apply. */
static moert_status describe(moert_quantize *op) {
    const moert_file_op_format f = moert_file_op_format_of(format);
    const bool nvfp4 = f.format == MOERT_FORMAT_NVFP4, column = axis == MOERT_AXIS_COLUMN;
    const bool powers = !nvfp4 && f.format != MOERT_FORMAT_FP8_BLOCK;
    MOERT_TRY(MOERT_FILE_OP_CHECK(
        {f.square && column, "axis", "column: blocks of fp8-128x128 are 2d"},
        {f.line && axis == MOERT_AXIS_TILE, "axis", "2d: blocks of fp8-1x128 are not"},
        {transposed && !column, "transposed", "goes with --axis column"},
        {group_scales && !nvfp4, "group-scales", "goes with --format nvfp4"},
        {scale_rounding != 0 && !powers, "scale-rounding", "goes with scales of mxfp8 and mxfp4"},
        {nvfp4_rule != 0 && !nvfp4, "nvfp4-rule", "goes with --format nvfp4"},
        {global_from != 0 && !nvfp4, "global-scale", "goes with --format nvfp4"},
        {rounding > MOERT_ROUNDING_NEAREST && moert_format_element_bits(f.format) != 4, "rounding",
         "bridge and stochastic go with elements of 4 bits"},
        {seed != 0 && rounding != MOERT_ROUNDING_STOCHASTIC, "seed",
         "goes with --rounding stochastic"},
        {hadamard && !(nvfp4 && column), "hadamard", "goes with --format nvfp4 --axis column"},
        {columns_given > 0 && (moert_format_element_bits(f.format) != 4 || column), "columns",
         "goes with elements of 4 bits in blocks along rows"}));
    op->how = (moert_quantizer){.size = sizeof op->how,
                                .format = f.format,
                                .axis = f.square ? MOERT_AXIS_TILE : (moert_axis)axis,
                                .scale_rounding = scale_rounding,
                                .nvfp4_rule = nvfp4_rule,
                                .rounding = rounding,
                                .seed = seed,
                                .transposed = transposed,
                                .hadamard = hadamard,
                                .group_scales = group_scales};
    return MOERT_OK;
}

/* Fails if --transposed is used with several matrices, which would be stored as one transposed
 * matrix. */
static moert_status check_stack(const moert_file_op_rows *rows) {
    return MOERT_FILE_OP_CHECK(
        {transposed && rows->rank == 3, "transposed", "goes with a tensor of two dimensions"});
}

/* The spec of a result with `lines` lines. The result has as many dimensions as the input. */
static moert_tensor_spec spec_of(const char *name, moert_file_type type,
                                 const moert_file_op_rows *rows, size_t lines, size_t width) {
    if (rows->rank == 2)
        return (moert_tensor_spec){name, type, 2, {lines, width}};
    return (moert_tensor_spec){name, type, 3, {rows->groups, lines / rows->groups, width}};
}

/* The number of row blocks in all groups; the last block of each group may be partial. */
static size_t row_blocks(const uint32_t *ends, const moert_groups *groups, size_t block) {
    return ends != NULL ? moert_row_blocks(ends, groups->count, block)
                        : moert_ceil_div(groups->rows, block);
}

/* ---- quantize ---- */

/* Computes ends[g], the end of group g's row blocks, which is also the end of its lines of scales.
 * *groups = these ends on the device. */
static moert_status block_groups(moert_file_op_job *job, const moert_quantize *op, uint32_t *ends,
                                 moert_groups *groups) {
    moert_buffer *buffer;
    for (size_t g = 0, start = 0, sum = 0; g < op->groups.count; start = job->ends[g++]) {
        sum += moert_ceil_div(job->ends[g] - start, moert_format_block(op->how.format));
        ends[g] = (uint32_t)sum;
    }
    MOERT_TRY(moert_file_op_upload(job, ends, op->groups.count * sizeof *ends, &buffer));
    *groups = (moert_groups){.ends = buffer, .count = op->groups.count, .rows = op->blocks};
    return MOERT_OK;
}

/* Adds one-byte scales in tiles as another result, unless the scales are transposed and have
 * several groups. */
static moert_status swizzle_scales(moert_file_op_job *job, const char *name,
                                   const moert_quantize *op, moert_quantized_shape shape) {
    const bool column = op->how.axis == MOERT_AXIS_COLUMN;
    moert_scale_tiles tiles = {
        .size = sizeof tiles, .groups = op->groups, .width = shape.scales, .linear = op->scale};
    uint32_t *ends;
    if (moert_format_scale_bytes(op->how.format) != 1 || (transposed && job->ends != NULL))
        return MOERT_OK;
    tiles.transposed = column && !transposed;
    if (!column)
        return moert_file_op_swizzled(job, name, &tiles, job->ends);
    tiles.groups = (moert_groups){.count = 1, .rows = transposed ? shape.scale_lines : op->blocks};
    if (job->ends == NULL)
        return moert_file_op_swizzled(job, name, &tiles, NULL);
    MOERT_TRY(MOERT_NEW_ARRAY(&ends, op->groups.count));
    moert_status status = block_groups(job, op, ends, &tiles.groups);
    if (status == MOERT_OK)
        status = moert_file_op_swizzled(job, name, &tiles, ends);
    free(ends);
    return status;
}

/* Loads the global scale from the file, or computes the amax from which the op computes the global
 * scale. */
static moert_status prepare_global(moert_file_op_job *job, const char *name, moert_quantize *op) {
    const size_t count = group_scales ? op->groups.count : 1;
    const moert_tensor *given = global_from == 0 ? moert_tensors_find(job->input, name) : NULL;
    MOERT_TRY(moert_file_op_buffer(job, count * sizeof(float), &op->global));
    if (given == NULL) {
        MOERT_TRY(moert_file_op_buffer(job, count * sizeof(float), &op->amax));
        return moert_quantize_amax(op);
    }
    if (given->type != MOERT_FILE_F32 || given->elements != count)
        return MOERT_FAIL(ERROR_MISMATCH, "%s: %s is %s [%zu], not F32 [%zu]", given->file, name,
                          moert_file_type_text(given->type), given->elements, count);
    return moert_buffer_write(op->global, 0, given->data, given->bytes);
}

static moert_status quantize(moert_file_op_job *job) {
    const char *names[NAMES];
    moert_file_op_rows rows;
    moert_quantize op = {.size = sizeof op, .x_runs = gate_runs};
    MOERT_TRY(describe(&op));
    MOERT_TRY(name_tensors(job, names));
    MOERT_TRY(moert_file_op_load_f32(job, names[VALUES], &rows, &op.x));
    MOERT_TRY(check_stack(&rows));
    op.columns = gate_runs > 0 ? rows.columns / 2 : rows.columns;
    MOERT_TRY(moert_file_op_groups_of(job, &rows, "ends", &op.groups));
    op.blocks = row_blocks(job->ends, &op.groups, moert_format_block(op.how.format));
    const moert_quantized_shape shape =
        moert_quantized_shape_of(&op.how, rows.rows, op.columns, op.blocks);
    const size_t bytes = moert_format_scale_bytes(op.how.format);
    if (op.how.format == MOERT_FORMAT_NVFP4)
        MOERT_TRY(prepare_global(job, names[GLOBAL], &op));
    MOERT_TRY(moert_file_op_buffer(job, shape.q_lines * shape.q_bytes, &op.q));
    MOERT_TRY(moert_file_op_buffer(job, shape.scale_lines * shape.scales * bytes, &op.scale));
    MOERT_TRY(moert_quantize_run(&op));
    const moert_file_type scale_type = bytes == 1 ? MOERT_FILE_U8 : MOERT_FILE_F32;
    MOERT_TRY(moert_file_op_result(
        job, spec_of(names[PAYLOAD], MOERT_FILE_U8, &rows, shape.q_lines, shape.q_bytes), op.q));
    MOERT_TRY(moert_file_op_result(
        job, spec_of(names[SCALE], scale_type, &rows, shape.scale_lines, shape.scales), op.scale));
    const moert_tensor_spec global = {
        names[GLOBAL], MOERT_FILE_F32, 1, {group_scales ? op.groups.count : 1}};
    if (op.global != NULL)
        MOERT_TRY(moert_file_op_result(job, global, op.global));
    return swizzle_scales(job, names[TILES], &op, shape);
}

/* ---- dequantize ---- */

/* The shape [rows,columns] of the matrix whose payload has these lines and bytes. */
static moert_file_op_rows unpacked(const moert_quantize *op, const moert_file_op_rows *lines) {
    const bool column = op->how.axis == MOERT_AXIS_COLUMN, swapped = column && transposed;
    const bool pairs = moert_format_element_bits(op->how.format) == 4;
    moert_file_op_rows rows = *lines;
    if (swapped) {
        rows.rows = lines->columns;
        rows.columns = lines->rows;
    }
    if (pairs && column)
        rows.rows *= 2;
    else if (pairs)
        rows.columns = columns_given > 0 ? columns_given : 2 * lines->columns;
    return rows;
}

static moert_status dequantize(moert_file_op_job *job) {
    const char *names[NAMES];
    moert_quantize op = MOERT_QUANTIZE_INIT;
    moert_file_op_rows q, scale;
    MOERT_TRY(describe(&op));
    MOERT_TRY(name_tensors(job, names));
    MOERT_TRY(moert_file_op_load_bytes(job, names[PAYLOAD], 1, &q, &op.q));
    MOERT_TRY(moert_file_op_load_bytes(job, names[SCALE], moert_format_scale_bytes(op.how.format),
                                       &scale, &op.scale));
    MOERT_TRY(check_stack(&q));
    const moert_file_op_rows rows = unpacked(&op, &q);
    op.columns = rows.columns;
    MOERT_TRY(moert_file_op_groups_of(job, &rows, "ends", &op.groups));
    op.blocks = row_blocks(job->ends, &op.groups, moert_format_block(op.how.format));
    const moert_quantized_shape shape =
        moert_quantized_shape_of(&op.how, rows.rows, op.columns, op.blocks);
    if (shape.q_lines != q.rows || shape.q_bytes != q.columns || shape.scale_lines != scale.rows ||
        shape.scales != scale.columns)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "%s[%zu,%zu] and %s[%zu,%zu] do not belong together: %zu rows of %zu "
                          "make a payload [%zu,%zu] and scales [%zu,%zu]",
                          names[PAYLOAD], q.rows, q.columns, names[SCALE], scale.rows,
                          scale.columns, rows.rows, op.columns, shape.q_lines, shape.q_bytes,
                          shape.scale_lines, shape.scales);
    if (op.how.format == MOERT_FORMAT_NVFP4) {
        if (moert_tensors_find(job->input, names[GLOBAL]) == NULL)
            return MOERT_FAIL(ERROR_MISMATCH, "nvfp4 needs a tensor %s", names[GLOBAL]);
        MOERT_TRY(prepare_global(job, names[GLOBAL], &op));
    }
    MOERT_TRY(moert_file_op_buffer(job, rows.rows * op.columns * sizeof(float), &op.x));
    MOERT_TRY(moert_dequantize_run(&op));
    return moert_file_op_result(
        job, spec_of(names[VALUES], MOERT_FILE_F32, &rows, rows.rows, op.columns), op.x);
}

MOERT_FILE_OP(
    quantize, "quantize",
    "x[M,N] f32|f16|bf16, ends[G] (optional: groups of rows), or weights x[G,N,K]; global_scale "
    "(optional) -> q u8 and scale u8|f32 with the dimensions of x, swizzled u8 (scales in 128x4 "
    "tiles), nvfp4: global_scale f32. For grouped-gemm: quantize --name x, then quantize --name "
    "weight on the file that this writes");

MOERT_FILE_OP(
    dequantize, "dequantize",
    "q, scale, ends[G] (optional), nvfp4: global_scale, as quantize writes them -> x[M,N] or "
    "x[G,N,K] f32");
