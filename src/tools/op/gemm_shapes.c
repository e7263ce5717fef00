/* Shapes of the tensors of a grouped GEMM. gemm.h explains the letters. */
#include "tools/op/gemm.h"

#include <string.h>

#include "base/memory.h"
#include "moert/quantize.h"
#include "quant/scales.h"

moert_operand *moert_gemm_operand_of(const moert_gemm_job *job, const moert_gemm_row *row) {
    return moert_op_operand(job->options, row->buffer);
}

/* ---- rows ---- */

static moert_gemm_role matrix_role(moert_op_kind kind, const moert_op_matrix *m,
                                   moert_op_buffer buffer) {
    const bool result = m->payload == moert_op_roles_of(kind).result ||
                        m->payload == MOERT_OP_BUFFER_column ||
                        (m->payload == MOERT_OP_BUFFER_c && kind == MOERT_OP_GLU);
    return buffer == m->global           ? MOERT_GEMM_GLOBAL
           : buffer == m->scale          ? result ? MOERT_GEMM_RESULT_SCALE : MOERT_GEMM_SCALE
           : result                      ? MOERT_GEMM_RESULT
           : buffer == MOERT_OP_BUFFER_c ? MOERT_GEMM_DTYPES
                                         : MOERT_GEMM_INPUT;
}

static moert_gemm_role field_role(const moert_op_field *field) {
    return field->use == MOERT_OP_ADD_TO  ? MOERT_GEMM_SUM
           : field->use == MOERT_OP_RAISE ? MOERT_GEMM_MOST
           : field->type == MOERT_OP_BIAS ? MOERT_GEMM_DTYPES
                                          : MOERT_GEMM_F32;
}

moert_gemm_row moert_gemm_row_of(const moert_op_options *o, moert_gemm_tensor tensor) {
    const moert_op_matrix *m = moert_op_matrix_of(tensor.buffer);
    const moert_op_field *field = moert_op_field_of(tensor.buffer);
    const char *shape = moert_op_shape(o, tensor.buffer);
    /* a tensor with one maximum per group has one dimension */
    const bool flat = tensor.buffer == MOERT_OP_BUFFER_amax && o->kind != MOERT_OP_DGLU;
    return (moert_gemm_row){.name = tensor.name,
                            .buffer = tensor.buffer,
                            .role = m != NULL       ? matrix_role(o->kind, m, tensor.buffer)
                                    : field != NULL ? field_role(field)
                                    : tensor.buffer == MOERT_OP_BUFFER_gather ? MOERT_GEMM_INDEX
                                                                              : MOERT_GEMM_ENDS,
                            .shape = shape,
                            .rank = flat ? 1 : strlen(shape)};
}

/* ---- letters ---- */

/* The size in the options that a letter stands for. NULL if the letter's size follows from other
 * sizes. */
static size_t *known_size(const moert_gemm_job *job, char letter) {
    moert_op_options *o = job->options;
    return letter == 'G'   ? &o->groups
           : letter == 'M' ? &o->rows
           : letter == 'N' ? &o->n
           : letter == 'K' ? &o->k
                           : NULL;
}

/* The letters of a tensor in the order of its dimensions. `paired` = the dimension that counts
 * pairs of 4-bit elements, or `rank` if no dimension counts pairs. */
typedef struct layout {
    size_t rank, paired;
    char letters[MOERT_GEMM_LETTERS];
} layout;

static layout layout_of(const moert_gemm_job *job, const moert_gemm_row *row) {
    layout l = {.rank = row->rank};
    const size_t last = l.rank - 1;
    l.paired = l.rank;
    memcpy(l.letters, row->shape, l.rank);
    if (row->role != MOERT_GEMM_INPUT)
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

void moert_gemm_learn(moert_gemm_job *job, const moert_gemm_row *row, const moert_tensor *tensor,
                      bool pairs) {
    const layout l = layout_of(job, row);
    for (size_t i = 0; i < l.rank; i++) {
        size_t *size = known_size(job, l.letters[i]);
        if (size != NULL && *size == MOERT_GEMM_UNKNOWN && (i == l.paired) == pairs)
            *size = tensor->shape[i] * (pairs ? 2 : 1);
    }
}

/* ---- quantized matrices ---- */

/* The quantized matrix that a payload or scales belong to. */
static const moert_op_quantized *matrix_of(const moert_gemm_job *job, const moert_gemm_row *row) {
    const moert_op_quantized *q = job->op->quantized;
    while (q->payload != row->buffer && q->scale != row->buffer)
        q++;
    return q;
}

/* The number of units of `unit` rows in all groups, rounded up in each group. For groups of equal
 * size, the caller gives the number of units as `room`. */
static size_t row_units(const moert_gemm_job *job, const moert_op_quantized *q, size_t unit,
                        size_t room) {
    return q->by_ends ? moert_row_blocks(job->file->ends, q->groups, unit) : room;
}

/* The shape of payload and linear scales for all groups together, not transposed. */
static moert_quantized_shape shape_of(const moert_gemm_job *job, const moert_op_quantized *q) {
    const size_t block = moert_format_block(q->how.format);
    moert_quantizer how = q->how;
    how.transposed = false;
    return moert_quantized_shape_of(&how, q->rows, q->columns, row_units(job, q, block, q->blocks));
}

/* Bytes of the scales in tiles. */
static size_t tiled_bytes(const moert_gemm_job *job, const moert_op_quantized *q) {
    const bool column = q->how.axis == MOERT_AXIS_COLUMN;
    const size_t unit = moert_tile_lines(column) * (column ? moert_format_block(q->how.format) : 1);
    /* MOERT_SCALES_TILED_WHOLE: tiles of all rows together, not rounded up in each group */
    const bool whole = q->scales == MOERT_SCALES_TILED_WHOLE;
    return (whole ? q->tiles : row_units(job, q, unit, q->tiles)) * job->op->needs[q->scale].width;
}

/* ---- checks ---- */

static moert_status check_scale(const moert_gemm_job *job, const moert_gemm_row *row,
                                const moert_tensor *tensor) {
    const moert_op_quantized *q = matrix_of(job, row);
    const moert_quantized_shape shape = shape_of(job, q);
    const bool tiled = q->scales != MOERT_SCALES_LINEAR;
    const size_t bytes =
        tiled ? tiled_bytes(job, q)
              : shape.scale_lines * shape.scales * moert_format_scale_bytes(q->how.format);
    const size_t most =
        moert_max(bytes, moert_op_buffer_bytes(job->op, moert_op_buffer_name(row->buffer)));
    if (tensor->bytes >= bytes && tensor->bytes <= most)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_MISMATCH,
                      "%s: tensor '%s' has %zu bytes; %s scales [%zu,%zu] of %s need %zu bytes",
                      tensor->file, row->name, tensor->bytes, tiled ? "tiled" : "linear",
                      shape.scale_lines, shape.scales, moert_format_name(q->how.format), bytes);
}

/* The number of lines of a payload in which pairs of 4-bit elements run along columns. Each group
 * fills whole blocks. 0 if pairs run along rows. */
static size_t paired_lines(const moert_gemm_job *job, const moert_gemm_row *row) {
    const moert_op_quantized *q = matrix_of(job, row);
    if (q->how.axis != MOERT_AXIS_COLUMN)
        return 0;
    const size_t lines = shape_of(job, q).q_lines;
    return q->by_ends ? lines : lines / moert_max(q->groups, 1);
}

moert_status moert_gemm_check_shape(const moert_gemm_job *job, const moert_gemm_row *row,
                                    const moert_tensor **tensor) {
    const layout l = layout_of(job, row);
    size_t shape[MOERT_GEMM_LETTERS];
    *tensor = moert_tensors_find(job->file->input, row->name);
    if (row->role == MOERT_GEMM_SCALE)
        return check_scale(job, row, *tensor);
    for (size_t i = 0; i < l.rank; i++) {
        shape[i] = moert_op_size(job->options, l.letters[i]);
        if (i == l.paired)
            shape[i] = moert_ceil_div(shape[i], 2);
    }
    if (row->role == MOERT_GEMM_GLOBAL && *tensor != NULL && (*tensor)->elements == 1)
        shape[0] = 1;
    if (l.paired < l.rank)
        shape[l.paired] = moert_max(shape[l.paired], paired_lines(job, row));
    return moert_tensors_get(job->file->input, row->name, l.rank, shape, tensor);
}

/* ---- results ---- */

/* Type and shape of a quantized result's payload or scales. */
static void describe_quantized(const moert_gemm_job *job, const moert_gemm_row *row,
                               moert_tensor_spec *spec) {
    const moert_op_quantized *q = matrix_of(job, row);
    const bool scale = row->role == MOERT_GEMM_RESULT_SCALE;
    const moert_quantized_shape shape = shape_of(job, q);
    const bool bytes = !scale || moert_format_scale_bytes(q->how.format) == 1;
    spec->type = bytes ? MOERT_FILE_U8 : MOERT_FILE_F32;
    spec->rank = 2;
    spec->shape[0] = scale ? shape.scale_lines : shape.q_lines;
    spec->shape[1] = scale ? shape.scales : shape.q_bytes;
    if (scale && q->scales != MOERT_SCALES_LINEAR) {
        spec->rank = 1;
        spec->shape[0] = tiled_bytes(job, q);
    }
}

moert_status moert_gemm_result(const moert_gemm_job *job, const moert_gemm_row *row) {
    const layout l = layout_of(job, row);
    const bool is_operand = row->role == MOERT_GEMM_RESULT || row->role == MOERT_GEMM_RESULT_SCALE;
    moert_tensor_spec spec = {row->name, MOERT_FILE_F32, l.rank, {0}};
    for (size_t i = 0; i < l.rank; i++)
        spec.shape[i] = moert_op_size(job->options, l.letters[i]);
    if (is_operand && moert_gemm_operand_of(job, row)->how.size > 0)
        describe_quantized(job, row, &spec);
    else if (is_operand)
        spec.type = moert_file_type_of(moert_gemm_operand_of(job, row)->type);
    return moert_file_op_result(job->file, spec, *moert_op_buffer_at(&job->buffers, row->buffer));
}
