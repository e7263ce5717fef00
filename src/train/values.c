/* Finds and names the values of a model's tensors; writes gradients. */
#include "train/values.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/text.h"
#include "train/shared_file.h"

const char *const moert_value_metadata[] = {"format", "pt", NULL};

const char *moert_value_prefix(moert_value_kind kind) {
    static const char *const prefixes[] = {
#define VALUE_PREFIX(name, prefix) prefix,
        MOERT_VALUE_TABLE(VALUE_PREFIX)
#undef VALUE_PREFIX
    };
    return prefixes[kind];
}

moert_buffer *moert_values_of(const moert_optimizer *optimizer, const moert_model_tensor *tensor,
                              moert_value_kind kind, size_t *at) {
    *at = tensor->offset + moert_model_shard(tensor).first;
    if (kind == MOERT_VALUES_WEIGHTS)
        return tensor->block->weight;
    if (kind == MOERT_VALUES_GRADIENTS)
        return tensor->block->gradient;
    const moert_moments *moments = moert_optimizer_moments(optimizer, tensor, at);
    return kind == MOERT_VALUES_FIRST_MOMENTS ? moments->first : moments->second;
}

moert_status moert_value_specs(const moert_model *model, moert_value_kind first_kind, size_t kinds,
                               moert_tensor_spec **specs) {
    const size_t count = moert_model_tensor_count(model);
    const moert_model_tensor *tensor = moert_model_tensors(model);
    MOERT_TRY(MOERT_NEW_ARRAY(specs, kinds * count));
    for (size_t e = 0; e < kinds * count; e++) {
        const moert_model_tensor *t = &tensor[e % count];
        const char *prefix = moert_value_prefix(first_kind + (moert_value_kind)(e / count));
        (*specs)[e] = (moert_tensor_spec){moert_text_format("%s%s", prefix, t->name),
                                          MOERT_FILE_F32,
                                          t->rank,
                                          {t->shape[0], t->shape[1]}};
        if ((*specs)[e].name == NULL)
            return MOERT_FAIL(ERROR_MEMORY, "no room for tensor names");
    }
    return MOERT_OK;
}

void moert_value_specs_free(const moert_model *model, size_t kinds, moert_tensor_spec *specs) {
    const size_t count = kinds * moert_model_tensor_count(model);
    for (size_t e = 0; specs != NULL && e < count; e++)
        free((char *)specs[e].name);
    free(specs);
}

/* ---- gradients ---- */

typedef struct gradient_file {
    const moert_model *model;
    moert_tensor_spec *specs; /* of the tensors that have a gradient */
    size_t count;
} gradient_file;

/* Removes the specs of tensors without a gradient. */
static void drop_fixed(gradient_file *file) {
    const moert_model_tensor *tensor = moert_model_tensors(file->model);
    for (size_t i = 0; i < moert_model_tensor_count(file->model); i++) {
        const moert_tensor_spec spec = file->specs[i];
        file->specs[i].name = NULL;
        if (tensor[i].is_fixed)
            free((char *)spec.name);
        else
            file->specs[file->count++] = spec;
    }
}

static moert_status put_gradients(const void *context, moert_tensor_writer *writer) {
    const gradient_file *file = context;
    const moert_model_tensor *tensor = moert_model_tensors(file->model);
    for (size_t i = 0, e = 0; i < moert_model_tensor_count(file->model); i++) {
        const moert_model_range shard = moert_model_shard(&tensor[i]);
        if (tensor[i].is_fixed)
            continue;
        const char *name = file->specs[e++].name;
        if (shard.count == 0)
            continue;
        MOERT_TRY(moert_put_floats(writer, name, shard.first, shard.count,
                                   tensor[i].block->gradient, tensor[i].offset + shard.first));
    }
    return MOERT_OK;
}

moert_status moert_gradients_save(moert_model *model, const char *path) {
    gradient_file file = {.model = model};
    moert_status status = moert_value_specs(model, MOERT_VALUES_GRADIENTS, 1, &file.specs);
    if (status == MOERT_OK)
        drop_fixed(&file);
    const moert_shared_file shared = {path,          file.specs, file.count, moert_value_metadata,
                                      put_gradients, &file};
    status = moert_shared_file_write(moert_model_mesh(model)->world, &shared, true, status);
    moert_value_specs_free(model, 1, file.specs);
    return status;
}
