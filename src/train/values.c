/* Finds and names the values of a model's tensors. Writes gradients. */
#include "train/values.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/text.h"
#include "model/file_runs.h"
#include "train/shared_file.h"

const char *const moert_value_metadata[] = {"format", "pt", NULL};

const char *moert_value_prefix(const moert_model *model, moert_value_kind kind) {
    return kind == MOERT_VALUES_GRADIENTS ? "grad."
           : kind == MOERT_VALUES_WEIGHTS
               ? ""
               : moert_optimizer_of(model)->moment[kind - MOERT_VALUES_MOMENTS].prefix;
}

size_t moert_checkpoint_kinds(const moert_model *model) {
    return 1 + moert_optimizer_of(model)->moments;
}

moert_elements moert_values_of(const moert_optimizer *optimizer, const moert_model_tensor *tensor,
                               moert_value_kind kind) {
    const size_t at = tensor->offset + moert_model_shard(tensor).first;
    if (kind == MOERT_VALUES_WEIGHTS)
        return (moert_elements){tensor->block->weight, MOERT_DTYPE_F32, at};
    if (kind == MOERT_VALUES_GRADIENTS)
        return moert_block_gradient(tensor->block, at);
    return moert_optimizer_moment(optimizer, tensor->block, kind - MOERT_VALUES_MOMENTS, at);
}

static moert_file_type file_type(const moert_model *model, moert_value_kind kind) {
    const bool bf16 = moert_model_describe(model)->memory.moments == MOERT_STATE_BF16;
    const bool moments = kind != MOERT_VALUES_WEIGHTS && kind != MOERT_VALUES_GRADIENTS;
    return moments && bf16 ? MOERT_FILE_BF16 : MOERT_FILE_F32;
}

/* Fills in the spec of a tensor's values of one kind (weights, gradients or a moment). */
static moert_status name_spec(const moert_model *model, const moert_model_tensor *tensor,
                              moert_value_kind kind, moert_tensor_spec *spec) {
    *spec = (moert_tensor_spec){
        moert_text_format("%s%s", moert_value_prefix(model, kind), tensor->name),
        file_type(model, kind),
        tensor->rank,
        {tensor->shape[0], tensor->shape[1], tensor->shape[2]}};
    return spec->name != NULL ? MOERT_OK : MOERT_FAIL(ERROR_MEMORY, "no room for tensor names");
}

moert_status moert_value_specs(const moert_model *model, moert_value_kind first_kind, size_t kinds,
                               moert_tensor_spec **specs) {
    const size_t files = moert_model_file_tensor_count(model);
    const moert_model_tensor *tensor = moert_model_tensors(model);
    MOERT_TRY(MOERT_NEW_ARRAY(specs, kinds * files));
    for (size_t k = 0; k < kinds; k++)
        for (size_t i = 0; i < moert_model_tensor_count(model); i++)
            if (tensor[i].file_first == 0)
                MOERT_TRY(name_spec(model, &tensor[i], first_kind + (moert_value_kind)k,
                                    &(*specs)[k * files + tensor[i].file]));
    return MOERT_OK;
}

void moert_value_specs_free(const moert_model *model, size_t kinds, moert_tensor_spec *specs) {
    const size_t count = kinds * moert_model_file_tensor_count(model);
    for (size_t e = 0; specs != NULL && e < count; e++)
        free((char *)specs[e].name);
    free(specs);
}

/* Writes a rank's shard of a tensor that is stored transposed in the file. */
static moert_status put_transposed(moert_tensor_writer *writer, const char *name,
                                   const moert_model_tensor *tensor,
                                   const moert_elements *elements) {
    enum { PIECE = MOERT_PIECE_BYTES / sizeof(float) };
    const moert_model_range shard = moert_model_shard(tensor);
    float *values;
    MOERT_TRY(MOERT_NEW_ARRAY(&values, shard.count + moert_min(shard.count, PIECE)));
    moert_file_runs runs = moert_file_runs_of(tensor, shard, true);
    moert_status status = moert_elements_read(elements, 0, shard.count, values);
    while (status == MOERT_OK && moert_file_runs_next(&runs, PIECE))
        status =
            moert_writer_put_floats(writer, name, runs.first, runs.count,
                                    moert_file_runs_gather(&runs, values, values + shard.count));
    free(values);
    return status;
}

moert_status moert_values_put(moert_tensor_writer *writer, const char *name,
                              const moert_model_tensor *tensor, const moert_elements *shard) {
    const moert_model_range range = moert_model_shard(tensor);
    if (tensor->transposed)
        return put_transposed(writer, name, tensor, shard);
    return moert_put_elements(writer, name, tensor->file_first + range.first, range.count, shard);
}

/* ---- gradients ---- */

typedef struct gradient_file {
    const moert_model *model;
    moert_tensor_spec *specs; /* specs of all tensors */
    moert_tensor_spec *kept;  /* [count] specs of the tensors that have a gradient */
    size_t count;
} gradient_file;

static moert_status keep_specs(gradient_file *file) {
    const moert_model_tensor *tensor = moert_model_tensors(file->model);
    MOERT_TRY(moert_value_specs(file->model, MOERT_VALUES_GRADIENTS, 1, &file->specs));
    MOERT_TRY(MOERT_NEW_ARRAY(&file->kept, moert_model_file_tensor_count(file->model)));
    for (size_t i = 0; i < moert_model_tensor_count(file->model); i++)
        if (tensor[i].file_first == 0 && !tensor[i].is_fixed)
            file->kept[file->count++] = file->specs[tensor[i].file];
    return MOERT_OK;
}

static moert_status put_gradients(const void *context, moert_tensor_writer *writer) {
    const gradient_file *file = context;
    const moert_model_tensor *tensor = moert_model_tensors(file->model);
    for (size_t i = 0; i < moert_model_tensor_count(file->model); i++) {
        if (tensor[i].is_fixed || moert_model_shard(&tensor[i]).count == 0)
            continue;
        const moert_elements shard = moert_values_of(NULL, &tensor[i], MOERT_VALUES_GRADIENTS);
        MOERT_TRY(moert_values_put(writer, file->specs[tensor[i].file].name, &tensor[i], &shard));
    }
    return MOERT_OK;
}

moert_status moert_gradients_save(moert_model *model, const char *path) {
    gradient_file file = {.model = model};
    moert_status status = keep_specs(&file);
    const moert_shared_file shared = {path,          file.kept, file.count, moert_value_metadata,
                                      put_gradients, &file};
    status = moert_shared_file_write(moert_model_mesh(model)->world, &shared, true, status);
    moert_value_specs_free(model, 1, file.specs);
    free(file.kept);
    return status;
}
