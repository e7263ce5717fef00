/* Shapes of the tensors of a grouped GEMM; see op_gemm.h for the letters. */
#include "tools/op_gemm_shapes.h"

#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "moert/quantize.h"

void *moert_gemm_at(const moert_gemm_job *job, size_t offset) {
    return (char *)job->options + offset;
}

moert_operand *moert_gemm_operand_of(const moert_gemm_job *job, const moert_gemm_tensor *row) {
    return moert_gemm_at(job, row->place);
}

/* ---- letters ---- */

/* The size in the options that a letter stands for; NULL for one that follows from others. */
static size_t *known_size(const moert_gemm_job *job, char letter) {
    moert_op_options *o = job->options;
    return letter == 'G'   ? &o->groups
           : letter == 'M' ? &o->rows
           : letter == 'N' ? &o->n
           : letter == 'K' ? &o->k
                           : NULL;
}

static size_t size_of(const moert_gemm_job *job, char letter) {
    const moert_op_options *o = job->options;
    const size_t *known = known_size(job, letter);
    return known != NULL   ? *known
           : letter == 'T' ? moert_ceil_div(o->rows, o->topk)
           : letter == 'H' ? o->n / 2
           : letter == 'W' ? 2 * o->k
                           : (size_t)(letter - '0');
}

/* The letters of a tensor in the order of its dimensions, and which of them counts pairs of
 * elements, or rank for none. */
typedef struct layout {
    size_t rank, paired;
    char letters[MOERT_GEMM_LETTERS];
} layout;

static layout layout_of(const moert_gemm_job *job, const moert_gemm_tensor *row) {
    layout l = {.rank = strlen(row->shape)};
    const size_t last = l.rank - 1;
    l.paired = l.rank;
    memcpy(l.letters, row->shape, l.rank);
    if (row->role != MOERT_GEMM_FACTOR)
        return l;
    const moert_quantizer *how = &moert_gemm_operand_of(job, row)->how;
    if (how->size > 0 && moert_format_element_bits(how->format) == 4)
        l.paired = how->axis == MOERT_AXIS_COLUMN ? last - 1 : last;
    if (!how->transposed)
        return l;
    l.letters[last] = row->shape[last - 1];
    l.letters[last - 1] = row->shape[last];
    if (l.paired < l.rank)
        l.paired = l.paired == last ? last - 1 : last;
    return l;
}

void moert_gemm_learn(moert_gemm_job *job, const moert_gemm_tensor *row, const moert_tensor *tensor,
                      bool pairs) {
    const layout l = layout_of(job, row);
    for (size_t i = 0; i < l.rank; i++) {
        size_t *size = known_size(job, l.letters[i]);
        if (size != NULL && *size == MOERT_GEMM_UNKNOWN && (i == l.paired) == pairs)
            *size = tensor->shape[i] * (pairs ? 2 : 1);
    }
}

/* ---- quantised matrices ---- */

/* The matrices that an operand's blocks of rows divide: those of the groups, which have the rows of
 * the operand between them, or (ends NULL) some of as many rows each. */
typedef struct parts {
    size_t groups, rows, columns;
    const uint32_t *ends;
} parts;

static parts parts_of(const moert_gemm_job *job, const moert_gemm_tensor *row) {
    const moert_op_options *o = job->options;
    const moert_operand *operand = moert_gemm_operand_of(job, row);
    const bool x = operand == &o->x, y = operand == &o->y;
    if (operand == &o->weight)
        return (parts){o->groups, o->n, o->k, NULL};
    const bool gathered =
        (x && o->permute == MOERT_OP_PERMUTE_X) || (y && o->permute == MOERT_OP_PERMUTE_Y);
    const size_t columns = x                                ? o->k
                           : y                              ? o->n
                           : o->kind == MOERT_OP_GLU        ? o->n / 2
                           : o->kind == MOERT_OP_DGLU       ? 2 * o->k
                           : o->kind == MOERT_OP_GEMM_DGRAD ? o->k
                                                            : o->n;
    if (gathered)
        return (parts){1, x && o->kind != MOERT_OP_GEMM_DGRAD ? size_of(job, 'T') : o->rows,
                       columns, NULL};
    return (parts){o->groups, o->rows, columns, job->file->ends};
}

/* Blocks of rows of all parts. */
static size_t row_blocks(const parts *p, size_t block) {
    return p->ends != NULL ? moert_row_blocks(p->ends, p->groups, block)
                           : p->groups * moert_ceil_div(p->rows, block);
}

/* The payload and the linear scales of all parts together, not transposed. */
static moert_quantized_shape shape_of(const moert_operand *operand, const parts *p) {
    moert_quantizer how = operand->how;
    const size_t rows = p->ends != NULL ? p->rows : p->groups * p->rows;
    how.transposed = false;
    return moert_quantized_shape_of(&how, rows, p->columns,
                                    row_blocks(p, moert_format_block(how.format)));
}

/* Bytes of the scales in tiles. */
static size_t tiled_bytes(const moert_gemm_job *job, const moert_gemm_tensor *row) {
    const moert_operand *operand = moert_gemm_operand_of(job, row);
    const parts p = parts_of(job, row);
    const size_t block = moert_format_block(operand->how.format);
    const bool column = operand->how.axis == MOERT_AXIS_COLUMN;
    const size_t width = shape_of(operand, &p).scales;
    size_t bytes = 0;
    if (operand->scales == MOERT_SCALES_TILED_WHOLE) /* the op's room decides how tiles follow */
        return moert_op_buffer_bytes(job->op, moert_op_buffer_name(row->buffer));
    for (size_t g = 0, start = 0; g < p.groups; g++) {
        const size_t rows = p.ends != NULL ? p.ends[g] - start : p.rows;
        bytes += moert_swizzled_bytes(NULL, 1, column ? moert_ceil_div(rows, block) : rows, width,
                                      column);
        start += rows;
    }
    return bytes;
}

/* ---- checks ---- */

static moert_status check_scale(const moert_gemm_job *job, const moert_gemm_tensor *row,
                                const moert_tensor *tensor) {
    const moert_operand *operand = moert_gemm_operand_of(job, row);
    const parts p = parts_of(job, row);
    const moert_quantized_shape shape = shape_of(operand, &p);
    const bool tiled = operand->scales != MOERT_SCALES_LINEAR;
    const size_t bytes =
        tiled ? tiled_bytes(job, row)
              : shape.scale_lines * shape.scales * moert_format_scale_bytes(operand->how.format);
    const size_t most =
        moert_max(bytes, moert_op_buffer_bytes(job->op, moert_op_buffer_name(row->buffer)));
    if (tensor->bytes >= bytes && tensor->bytes <= most)
        return MOERT_OK;
    return MOERT_FAIL(
        ERROR_MISMATCH, "%s: tensor '%s' has %zu bytes; %s scales [%zu,%zu] of %s have %zu",
        tensor->file, row->name, tensor->bytes, tiled ? "tiled" : "linear", shape.scale_lines,
        shape.scales, moert_format_name(operand->how.format), bytes);
}

/* Lines of pairs where a matrix is stored with its blocks across them: whole blocks, of each group.
 * 0 where it is not. */
static size_t paired_lines(const moert_gemm_job *job, const moert_gemm_tensor *row, layout l) {
    const moert_operand *operand = moert_gemm_operand_of(job, row);
    const bool column = operand->how.axis == MOERT_AXIS_COLUMN;
    const size_t block = moert_format_block(operand->how.format);
    const parts p = parts_of(job, row);
    if (operand != &job->options->weight)
        return column ? shape_of(operand, &p).q_lines : 0;
    return column != operand->how.transposed
               ? moert_ceil_div(size_of(job, l.letters[l.paired]), block) * block / 2
               : 0;
}

moert_status moert_gemm_check_shape(const moert_gemm_job *job, const moert_gemm_tensor *row,
                                    const moert_tensor **tensor) {
    const layout l = layout_of(job, row);
    size_t shape[MOERT_GEMM_LETTERS];
    *tensor = moert_tensors_find(job->file->input, row->name);
    if (row->role == MOERT_GEMM_SCALE)
        return check_scale(job, row, *tensor);
    for (size_t i = 0; i < l.rank; i++) {
        shape[i] = size_of(job, l.letters[i]);
        if (i == l.paired)
            shape[i] = moert_ceil_div(shape[i], 2);
    }
    if (row->role == MOERT_GEMM_GLOBAL && *tensor != NULL && (*tensor)->elements == 1)
        shape[0] = 1;
    if (l.paired < l.rank)
        shape[l.paired] = moert_max(shape[l.paired], paired_lines(job, row, l));
    return moert_tensors_get(job->file->input, row->name, l.rank, shape, tensor);
}

/* ---- results ---- */

/* Type and shape of a quantised result's payload or scales. */
static void describe_quantised(const moert_gemm_job *job, const moert_gemm_tensor *row,
                               moert_tensor_spec *spec) {
    const moert_operand *operand = moert_gemm_operand_of(job, row);
    const bool scale = row->role == MOERT_GEMM_RESULT_SCALE;
    const parts p = parts_of(job, row);
    const moert_quantized_shape shape = shape_of(operand, &p);
    const bool bytes = !scale || moert_format_scale_bytes(operand->how.format) == 1;
    spec->type = bytes ? MOERT_FILE_U8 : MOERT_FILE_F32;
    spec->rank = 2;
    spec->shape[0] = scale ? shape.scale_lines : shape.q_lines;
    spec->shape[1] = scale ? shape.scales : shape.q_bytes;
    if (scale && operand->scales != MOERT_SCALES_LINEAR) {
        spec->rank = 1;
        spec->shape[0] = tiled_bytes(job, row);
    }
}

moert_status moert_gemm_result(const moert_gemm_job *job, const moert_gemm_tensor *row,
                               const moert_buffer *buffer) {
    const layout l = layout_of(job, row);
    const bool is_operand = row->role == MOERT_GEMM_RESULT || row->role == MOERT_GEMM_RESULT_SCALE;
    moert_tensor_spec spec = {row->name, MOERT_FILE_F32, l.rank, {0}};
    for (size_t i = 0; i < l.rank; i++)
        spec.shape[i] = size_of(job, l.letters[i]);
    if (is_operand && moert_gemm_operand_of(job, row)->how.size > 0)
        describe_quantised(job, row, &spec);
    else if (is_operand)
        spec.type = moert_file_type_of(moert_gemm_operand_of(job, row)->type);
    return moert_file_op_result(job->file, spec, buffer);
}
