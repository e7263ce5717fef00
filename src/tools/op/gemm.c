/* Runs the grouped GEMMs of moert-op. Loads the tensors of a file into the buffers of an op
 * (moert/ops.h), and names the results. */
#include "tools/op/gemm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* ---- operands ---- */

/* The index of the first format in MOERT_GEMM_FORMAT_WORDS. */
enum { FIRST_FORMAT = MOERT_DTYPE_E5M2 + 1 };

moert_operand moert_gemm_operand(unsigned word, moert_axis axis, bool transposed,
                                 moert_scale_layout scales) {
    moert_operand operand = {.type = (moert_dtype)word};
    /* load_matrix() transposes a plain operand that the file stores transposed */
    operand.how.transposed = transposed;
    operand.how.axis = axis;
    if (word < FIRST_FORMAT)
        return operand;
    const moert_file_op_format f = moert_file_op_format_of(word - FIRST_FORMAT);
    operand.type = MOERT_DTYPE_F32;
    operand.how.size = sizeof operand.how;
    operand.how.format = f.format;
    operand.how.axis = f.square ? MOERT_AXIS_TILE : axis;
    operand.scales = moert_gemm_tileable(&operand) ? scales : MOERT_SCALES_LINEAR;
    return operand;
}

moert_operand moert_gemm_weight(unsigned word, moert_axis axis, bool transposed,
                                moert_scale_layout scales) {
    moert_operand operand = moert_gemm_operand(word, axis, transposed, scales);
    if (moert_gemm_quantized(&operand) && operand.how.format == MOERT_FORMAT_FP8_BLOCK &&
        !moert_file_op_format_of(word - FIRST_FORMAT).line)
        operand.how.axis = MOERT_AXIS_TILE;
    return operand;
}

moert_operand moert_gemm_column(unsigned word, moert_scale_layout scales) {
    moert_operand operand = moert_gemm_operand(word, MOERT_AXIS_COLUMN, false, scales);
    operand.how.axis = MOERT_AXIS_COLUMN;
    return operand;
}

/* ---- tensors of the file ---- */

static bool is_input(moert_gemm_role role) {
    return role <= MOERT_GEMM_INDEX;
}

static bool is_quantized(const moert_gemm_job *job, const moert_gemm_row *row) {
    return moert_gemm_quantized(moert_gemm_operand_of(job, row));
}

/* Whether the op reads or writes the tensor of a table row. If the row enables an option of the op,
 * sets the option. */
static bool is_used(const moert_gemm_job *job, const moert_gemm_row *row) {
    const moert_op_field *field = moert_op_field_of(row->buffer);
    bool *enables = field != NULL ? moert_op_flag(job->options, field) : NULL;
    const bool present = moert_tensors_find(job->file->input, row->name) != NULL;
    switch (row->role) {
    case MOERT_GEMM_SCALE:
    case MOERT_GEMM_RESULT_SCALE:
        return is_quantized(job, row);
    case MOERT_GEMM_RESULT: /* `column`, the second version of a result, is always quantized */
        return row->buffer != MOERT_OP_BUFFER_column || is_quantized(job, row);
    case MOERT_GEMM_INDEX:
        return job->options->permute != MOERT_OP_PERMUTE_NONE;
    case MOERT_GEMM_SUM:
    case MOERT_GEMM_MOST:
        return *enables = true;
    case MOERT_GEMM_GLOBAL:
        return present;
    default:
        if (enables != NULL && !*enables)
            *enables = present;
        return enables == NULL || *enables;
    }
}

/* Finds the tensors that the op reads, checks their types, and derives M, N, K and G from their
 * dimensions: first from dimensions that count elements, then from dimensions that count pairs of
 * 4-bit elements. */
static moert_status survey(moert_gemm_job *job) {
    moert_op_options *o = job->options;
    o->groups = o->rows = o->n = o->k = MOERT_GEMM_UNKNOWN;
    for (int pairs = 0; pairs < 2; pairs++)
        for (size_t i = 0; i < job->count; i++) {
            const moert_gemm_row *row = &job->rows[i];
            const moert_tensor *tensor;
            if (!row->used || !is_input(row->role))
                continue;
            MOERT_TRY(moert_file_op_find(job->file, row->name, row->rank, &tensor));
            MOERT_TRY(moert_gemm_check_type(job, row, tensor));
            if (row->role == MOERT_GEMM_GLOBAL) {
                moert_gemm_operand_of(job, row)->global = true;
                moert_gemm_operand_of(job, row)->how.group_scales = tensor->elements > 1;
                continue;
            }
            moert_gemm_learn(job, row, tensor, pairs > 0);
        }
    return MOERT_OK;
}

/* Loads the groups' ends. Sets row_multiple to the greatest common divisor of the groups' numbers
 * of rows. */
static moert_status load_ends(moert_gemm_job *job, const moert_gemm_row *row) {
    moert_op_options *o = job->options;
    moert_groups groups;
    MOERT_TRY(moert_file_op_load_groups(job->file, row->name, o->rows, &groups));
    job->buffers.ends = job->file->ends_buffer;
    o->row_multiple = 0;
    for (size_t g = 0, start = 0; g < groups.count; start = job->file->ends[g++]) {
        size_t rows = job->file->ends[g] - start;
        while (rows > 0) { /* Euclid */
            const size_t rest = o->row_multiple % rows;
            o->row_multiple = rows;
            rows = rest;
        }
    }
    return MOERT_OK;
}

/* ---- inputs ---- */

/* Creates the buffer of a table row. The buffer has at least `bytes` bytes, and at least as many as
 * the op needs. */
static moert_status make(moert_gemm_job *job, const moert_gemm_row *row, size_t bytes,
                         moert_buffer **buffer) {
    const size_t need = moert_op_buffer_bytes(job->op, moert_op_buffer_name(row->buffer));
    MOERT_TRY(moert_file_op_buffer(job->file, moert_max(bytes, need), buffer));
    *moert_op_buffer_at(&job->buffers, row->buffer) = *buffer;
    return MOERT_OK;
}

static moert_status put(moert_gemm_job *job, const moert_gemm_row *row, const void *values,
                        size_t bytes) {
    moert_buffer *buffer;
    MOERT_TRY(make(job, row, bytes, &buffer));
    return moert_buffer_write(buffer, 0, values, bytes);
}

/* to[count][columns][rows] = from[count][rows][columns], for elements of `bytes` bytes. */
static void transpose(const char *from, char *to, size_t count, size_t rows, size_t columns,
                      size_t bytes) {
    for (size_t i = 0; i < count * rows * columns; i++) {
        const size_t matrix = i / (rows * columns), r = i / columns % rows, c = i % columns;
        memcpy(to + ((matrix * columns + c) * rows + r) * bytes, from + i * bytes, bytes);
    }
}

/* Loads a matrix in the layout that the op reads. A plain matrix that is stored transposed is
 * transposed. In a transposed quantized matrix, each line has the rows of all groups; lines are cut
 * or extended to the op's line length. */
static moert_status load_matrix(moert_gemm_job *job, const moert_gemm_row *row,
                                const moert_tensor *tensor) {
    const moert_operand *operand = moert_gemm_operand_of(job, row);
    const size_t need = moert_op_buffer_bytes(job->op, moert_op_buffer_name(row->buffer));
    const bool plain = operand->how.size == 0, weight = operand == &job->options->weight;
    const bool transposed = operand->how.transposed && tensor->elements > 0;
    const bool tiled = row->role == MOERT_GEMM_SCALE && operand->scales != MOERT_SCALES_LINEAR;
    const size_t last = tensor->rank - 1;
    const size_t lines = operand == &job->options->x ? job->options->k : job->options->n;
    char *values;
    if (!transposed || tiled || (weight && !plain) || (!plain && need == tensor->bytes))
        return put(job, row, tensor->data, tensor->bytes);
    MOERT_TRY(moert_alloc(&values, moert_max(need, tensor->bytes), 1));
    if (plain)
        transpose(tensor->data, values, last == 2 ? tensor->shape[0] : 1, tensor->shape[last - 1],
                  tensor->shape[last], moert_file_type_bytes(tensor->type));
    else
        for (size_t i = 0, from = tensor->bytes / lines, to = need / lines; i < lines; i++)
            memcpy(values + i * to, (const char *)tensor->data + i * from, moert_min(from, to));
    const moert_status status = put(job, row, values, plain ? tensor->bytes : need);
    free(values);
    return status;
}

/* Loads float32 values. If another tensor was loaded into the same buffer before, the buffer gets
 * the product of the two tensors. */
static moert_status load_values(moert_gemm_job *job, const moert_gemm_row *row,
                                const moert_tensor *tensor) {
    moert_buffer *buffer = *moert_op_buffer_at(&job->buffers, row->buffer);
    float *values, *old;
    moert_status status;
    if (buffer == NULL)
        return put(job, row, tensor->data, tensor->bytes);
    MOERT_TRY(MOERT_NEW_ARRAY(&values, 2 * tensor->elements));
    old = values + tensor->elements;
    MOERT_TRY_OR(release, moert_tensor_read_f32(tensor, 0, tensor->elements, values));
    MOERT_TRY_OR(release, moert_buffer_read(buffer, 0, old, tensor->bytes));
    for (size_t i = 0; i < tensor->elements; i++)
        old[i] *= values[i];
    MOERT_TRY_OR(release, moert_buffer_write(buffer, 0, old, tensor->bytes));
release:
    free(values);
    return status;
}

static moert_status load_index(moert_gemm_job *job, const moert_gemm_row *row,
                               const moert_tensor *tensor) {
    int32_t *values;
    MOERT_TRY(MOERT_NEW_ARRAY(&values, tensor->elements));
    moert_status status = moert_tensor_read_i32(tensor, 0, tensor->elements, values);
    if (status == MOERT_OK)
        status = put(job, row, values, tensor->elements * sizeof *values);
    free(values);
    return status;
}

static moert_status load(moert_gemm_job *job, const moert_gemm_row *row) {
    const moert_tensor *tensor;
    MOERT_TRY(moert_gemm_check_shape(job, row, &tensor));
    switch (row->role) {
    case MOERT_GEMM_ENDS:
        return MOERT_OK;
    case MOERT_GEMM_INPUT:
    case MOERT_GEMM_SCALE:
        return load_matrix(job, row, tensor);
    case MOERT_GEMM_INDEX:
        return load_index(job, row, tensor);
    case MOERT_GEMM_F32:
        return load_values(job, row, tensor);
    default:
        return put(job, row, tensor->data, tensor->bytes);
    }
}

/* ---- results ---- */

static moert_status fill(moert_buffer *buffer, float value) {
    const size_t count = moert_buffer_bytes(buffer) / sizeof value;
    float *values;
    MOERT_TRY(MOERT_NEW_ARRAY(&values, count));
    for (size_t i = 0; i < count; i++)
        values[i] = value;
    const moert_status status = moert_buffer_write(buffer, 0, values, count * sizeof value);
    free(values);
    return status;
}

/* Creates the buffer of a result, with the initial values that the op needs. */
static moert_status begin(moert_gemm_job *job, const moert_gemm_row *row) {
    const moert_op_options *o = job->options;
    const moert_tensor *old;
    moert_buffer *buffer;
    MOERT_TRY(make(job, row, 0, &buffer));
    if (row->role == MOERT_GEMM_MOST)
        MOERT_TRY(fill(buffer, -INFINITY));
    if (row->role != MOERT_GEMM_RESULT || o->kind == MOERT_OP_DGLU || !(o->beta || o->accumulate))
        return MOERT_OK;
    MOERT_TRY(moert_file_op_find(job->file, row->name, row->rank, &old));
    MOERT_TRY(moert_gemm_check_type(job, row, old));
    MOERT_TRY(moert_gemm_check_shape(job, row, &old));
    return moert_buffer_write(buffer, 0, old->data, old->bytes);
}

static moert_status execute(moert_gemm_job *job) {
    for (size_t i = 0; i < job->count; i++)
        if (job->rows[i].used)
            MOERT_TRY((is_input(job->rows[i].role) ? load : begin)(job, &job->rows[i]));
    MOERT_TRY(moert_op_execute(job->op, &job->buffers));
    for (size_t i = 0; i < job->count; i++)
        if (job->rows[i].used && !is_input(job->rows[i].role))
            MOERT_TRY(moert_gemm_result(job, &job->rows[i]));
    return MOERT_OK;
}

moert_status moert_gemm_job_run(moert_file_op_job *file, moert_op_options *options,
                                const moert_gemm_tensor *tensors, size_t count) {
    moert_gemm_job job = {
        .file = file, .options = options, .count = count, .buffers = MOERT_OP_BUFFERS_INIT};
    for (size_t i = 0; i < count; i++) {
        job.rows[i] = moert_gemm_row_of(options, tensors[i]);
        job.rows[i].used = is_used(&job, &job.rows[i]);
    }
    MOERT_TRY(survey(&job));
    MOERT_TRY(moert_gemm_check_tensors(&job));
    for (size_t i = 0; i < count; i++)
        if (job.rows[i].role == MOERT_GEMM_ENDS)
            MOERT_TRY(load_ends(&job, &job.rows[i]));
    moert_op_options created = *options;
    for (size_t i = 0; i < MOERT_OP_MATRICES; i++) {
        moert_operand *operand = moert_op_operand(&created, moert_op_matrices[i].payload);
        if (operand->how.size == 0) /* load_matrix() gives the op plain operands untransposed */
            operand->how = (moert_quantizer){0};
    }
    MOERT_TRY(moert_op_create(file->device, &created, &job.op));
    const moert_status status = execute(&job);
    moert_op_destroy(job.op);
    return status;
}
