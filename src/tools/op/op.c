/* Files and buffers of moert-op. */
#include "tools/op/op.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "base/text.h"
#include "quant/quantize.h"
#include "train/shared_file.h"

moert_status moert_file_op_buffer(moert_file_op_job *job, size_t bytes, moert_buffer **buffer) {
    if (job->buffer_count == MOERT_OP_MOST_BUFFERS)
        return MOERT_FAIL(ERROR_INTERNAL, "an operation has more than %d buffers",
                          MOERT_OP_MOST_BUFFERS);
    MOERT_TRY(moert_buffer_create(job->device, bytes, &job->buffers[job->buffer_count]));
    *buffer = job->buffers[job->buffer_count++];
    return bytes > 0 ? moert_buffer_clear(*buffer, 0, bytes) : MOERT_OK;
}

moert_status moert_file_op_upload(moert_file_op_job *job, const void *values, size_t bytes,
                                  moert_buffer **buffer) {
    MOERT_TRY(moert_file_op_buffer(job, bytes, buffer));
    return moert_buffer_write(*buffer, 0, values, bytes);
}

/* ---- input ---- */

moert_status moert_file_op_find(const moert_file_op_job *job, const char *name, size_t rank,
                                const moert_tensor **tensor) {
    *tensor = moert_tensors_find(job->input, name);
    if (*tensor == NULL)
        return MOERT_FAIL(ERROR_MISMATCH, "%s holds no tensor '%s'",
                          moert_tensors_count(job->input) > 0
                              ? moert_tensors_at(job->input, 0)->file
                              : "the input",
                          name);
    if (rank != 0 && (*tensor)->rank != rank)
        return MOERT_FAIL(ERROR_MISMATCH, "%s: tensor '%s' has %zu dimensions, not %zu",
                          (*tensor)->file, name, (*tensor)->rank, rank);
    return MOERT_OK;
}

static moert_status find_rows(const moert_file_op_job *job, const char *name,
                              moert_file_op_rows *rows, const moert_tensor **tensor) {
    MOERT_TRY(moert_file_op_find(job, name, 0, tensor));
    const size_t rank = (*tensor)->rank, *shape = (*tensor)->shape;
    if (rank != 2 && rank != 3)
        return MOERT_FAIL(ERROR_MISMATCH, "%s: tensor '%s' has %zu dimensions, not 2 or 3",
                          (*tensor)->file, name, rank);
    if (rank == 3 && shape[0] == 0)
        return MOERT_FAIL(ERROR_MISMATCH, "%s: tensor '%s' holds no matrix", (*tensor)->file, name);
    *rows = (moert_file_op_rows){rank, rank == 3 ? shape[0] : 1,
                                 rank == 3 ? shape[0] * shape[1] : shape[0], shape[rank - 1]};
    if (rows->rows > INT32_MAX)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: tensor '%s' has %zu rows, 2^31 or more",
                          (*tensor)->file, name, rows->rows);
    return MOERT_OK;
}

moert_status moert_file_op_load_f32(moert_file_op_job *job, const char *name,
                                    moert_file_op_rows *rows, moert_buffer **buffer) {
    const moert_tensor *tensor;
    float *values;
    MOERT_TRY(find_rows(job, name, rows, &tensor));
    MOERT_TRY(MOERT_NEW_ARRAY(&values, tensor->elements));
    moert_status status = moert_tensor_read_f32(tensor, 0, tensor->elements, values);
    if (status == MOERT_OK)
        status = moert_file_op_upload(job, values, tensor->elements * sizeof *values, buffer);
    free(values);
    return status;
}

moert_status moert_file_op_load_bytes(moert_file_op_job *job, const char *name,
                                      size_t element_bytes, moert_file_op_rows *rows,
                                      moert_buffer **buffer) {
    const moert_tensor *tensor;
    MOERT_TRY(find_rows(job, name, rows, &tensor));
    if (moert_file_type_bytes(tensor->type) != element_bytes)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "%s: tensor '%s' is %s; its elements should have %zu bytes", tensor->file,
                          name, moert_file_type_text(tensor->type), element_bytes);
    return moert_file_op_upload(job, tensor->data, tensor->bytes, buffer);
}

/* ---- groups ---- */

/* Copies job->ends[count] to the device and sets *groups. */
static moert_status upload_ends(moert_file_op_job *job, size_t count, moert_groups *groups) {
    MOERT_TRY(moert_file_op_upload(job, job->ends, count * sizeof *job->ends, &job->ends_buffer));
    groups->ends = job->ends_buffer;
    groups->count = count;
    return MOERT_OK;
}

moert_status moert_file_op_load_groups(moert_file_op_job *job, const char *name, size_t rows,
                                       moert_groups *groups) {
    const moert_tensor *tensor = moert_tensors_find(job->input, name);
    *groups = (moert_groups){.count = 1, .rows = rows};
    if (tensor == NULL)
        return MOERT_OK;
    const size_t count = tensor->elements;
    MOERT_TRY(moert_alloc(&job->ends, count, sizeof *job->ends));
    MOERT_TRY(moert_tensor_read_i32(tensor, 0, count, (int32_t *)job->ends));
    for (size_t g = 0; g < count; g++)
        if (job->ends[g] < (g > 0 ? job->ends[g - 1] : 0) || job->ends[g] > rows)
            return MOERT_FAIL(ERROR_MISMATCH,
                              "%s: tensor '%s': group %zu of %zu ends at %d, not in [%u, %zu]",
                              tensor->file, name, g, count, (int)job->ends[g],
                              g > 0 ? job->ends[g - 1] : 0, rows);
    return upload_ends(job, count, groups);
}

moert_status moert_file_op_groups_of(moert_file_op_job *job, const moert_file_op_rows *rows,
                                     const char *name, moert_groups *groups) {
    if (rows->rank == 2)
        return moert_file_op_load_groups(job, name, rows->rows, groups);
    *groups = (moert_groups){.rows = rows->rows};
    MOERT_TRY(moert_alloc(&job->ends, rows->groups, sizeof *job->ends));
    for (size_t g = 0; g < rows->groups; g++)
        job->ends[g] = (uint32_t)((g + 1) * (rows->rows / rows->groups));
    return upload_ends(job, rows->groups, groups);
}

/* ---- options ---- */

moert_status moert_file_op_check(const moert_file_op_rule *rules, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (rules[i].broken)
            return MOERT_FAIL(ERROR_USAGE, "--%s %s", rules[i].option, rules[i].text);
    return MOERT_OK;
}

moert_file_op_format moert_file_op_format_of(unsigned word) {
    const unsigned last = MOERT_FORMATS, square = last + 2;
    if (word > last)
        return (moert_file_op_format){MOERT_FORMAT_FP8_BLOCK, word == square, word != square};
    return (moert_file_op_format){word == 0 ? MOERT_FORMAT_MXFP8_E4M3 : (moert_format)(word - 1),
                                  false, false};
}

/* ---- dtypes ---- */

static const moert_file_type file_types[] = {
    [MOERT_DTYPE_F32] = MOERT_FILE_F32,      [MOERT_DTYPE_F16] = MOERT_FILE_F16,
    [MOERT_DTYPE_BF16] = MOERT_FILE_BF16,    [MOERT_DTYPE_E4M3] = MOERT_FILE_F8_E4M3,
    [MOERT_DTYPE_E5M2] = MOERT_FILE_F8_E5M2, [MOERT_DTYPE_E2M1] = MOERT_FILE_U8,
};

moert_file_type moert_file_type_of(moert_dtype dtype) {
    return file_types[dtype];
}

bool moert_file_type_holds(moert_file_type type, moert_dtype dtype) {
    return type == file_types[dtype] || (type == MOERT_FILE_U8 && moert_dtype_bits(dtype) <= 8);
}

/* ---- output ---- */

moert_status moert_file_op_result(moert_file_op_job *job, moert_tensor_spec spec,
                                  const moert_buffer *buffer) {
    if (job->result_count == MOERT_OP_MOST_RESULTS)
        return MOERT_FAIL(ERROR_INTERNAL, "an operation has more than %d results",
                          MOERT_OP_MOST_RESULTS);
    job->result_buffers[job->result_count] = buffer;
    job->results[job->result_count++] = spec;
    return MOERT_OK;
}

moert_status moert_file_op_name(moert_file_op_job *job, const char *base, const char *suffix,
                                const char **name) {
    if (job->name_count == MOERT_OP_MOST_RESULTS)
        return MOERT_FAIL(ERROR_INTERNAL, "an operation names more than %d tensors",
                          MOERT_OP_MOST_RESULTS);
    *name = job->names[job->name_count++] = moert_text_format("%s%s", base, suffix);
    return *name != NULL ? MOERT_OK : MOERT_FAIL(ERROR_MEMORY, "no room for a name");
}

static bool is_carried(const moert_file_op_job *job, const char *name) {
    bool named = false;
    for (size_t i = 0; i < job->name_count; i++)
        named = named || strcmp(name, job->names[i]) == 0;
    return job->carries && !named;
}

static moert_status put(const moert_file_op_job *job, size_t index, moert_tensor_writer *writer) {
    const moert_tensor_spec *spec = &job->results[index];
    size_t elements = 1;
    for (size_t i = 0; i < spec->rank; i++)
        elements *= spec->shape[i];
    const size_t bytes = elements * moert_file_type_bytes(spec->type);
    void *values;
    MOERT_TRY(moert_alloc(&values, bytes, 1));
    moert_status status = moert_buffer_read(job->result_buffers[index], 0, values, bytes);
    if (status == MOERT_OK)
        status = moert_writer_put(writer, spec->name, 0, elements, values);
    free(values);
    return status;
}

static moert_status put_all(const void *context, moert_tensor_writer *writer) {
    const moert_file_op_job *job = context;
    for (size_t i = 0; i < job->result_count; i++)
        MOERT_TRY(put(job, i, writer));
    for (size_t i = 0; i < moert_tensors_count(job->input); i++) {
        const moert_tensor *tensor = moert_tensors_at(job->input, i);
        if (is_carried(job, tensor->name))
            MOERT_TRY(moert_writer_put(writer, tensor->name, 0, tensor->elements, tensor->data));
    }
    return MOERT_OK;
}

/* Makes the specs of the results, and of input tensors that are copied to the output. */
static moert_status make_specs(const moert_file_op_job *job, moert_tensor_spec **specs,
                               size_t *count) {
    MOERT_TRY(MOERT_NEW_ARRAY(specs, job->result_count + moert_tensors_count(job->input)));
    memcpy(*specs, job->results, job->result_count * sizeof **specs);
    *count = job->result_count;
    for (size_t i = 0; i < moert_tensors_count(job->input); i++) {
        const moert_tensor *tensor = moert_tensors_at(job->input, i);
        if (!is_carried(job, tensor->name))
            continue;
        moert_tensor_spec *spec = &(*specs)[(*count)++];
        *spec = (moert_tensor_spec){tensor->name, tensor->type, tensor->rank, {0}};
        memcpy(spec->shape, tensor->shape, sizeof spec->shape);
    }
    return MOERT_OK;
}

static moert_status write_results(const moert_file_op_job *job, moert_comm *comm,
                                  const char *path) {
    moert_tensor_spec *specs = NULL;
    size_t count = 0;
    moert_status status = make_specs(job, &specs, &count);
    const moert_shared_file file = {path, specs, count, NULL, put_all, job};
    status = moert_shared_file_write(comm, &file, true, status);
    free(specs);
    return status;
}

moert_status moert_file_op_run(const moert_file_op *op, moert_context *context, const char *input,
                               const char *output) {
    moert_file_op_job job = {.device = moert_context_device(context)};
    moert_status status = MOERT_OK;
    if (moert_context_size(context) > 1)
        status = MOERT_FAIL(ERROR_USAGE, "moert-op runs on one rank, not on %zu",
                            moert_context_size(context));
    MOERT_TRY(moert_comm_agree(moert_context_comm(context), status));
    status = moert_tensors_open(input, &job.input);
    if (status == MOERT_OK)
        status = op->run(&job);
    if (status == MOERT_OK)
        status = write_results(&job, moert_context_comm(context), output);
    for (size_t i = 0; i < job.buffer_count; i++)
        moert_buffer_destroy(job.buffers[i]);
    for (size_t i = 0; i < job.name_count; i++)
        free(job.names[i]);
    moert_tensors_close(job.input);
    free(job.ends);
    return status;
}
