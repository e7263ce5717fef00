/* Batches, steps and gradients of whole models. */
#include "support/model/model_run.h"

#include "support/files.h"

#define MODELS "tests/golden/model/"

model_data alloc_data(size_t sequences, size_t length) {
    const size_t bytes = sequences * length * sizeof(int32_t);
    return (model_data){sequences, length, test_alloc(bytes), test_alloc(bytes)};
}

model_data golden_data(const char *name) {
    const moert_tensors *files = open_tensors(titled(MODELS "%s/expected.safetensors", name));
    const moert_tensor *tokens = moert_tensors_find(files, "tokens");
    const size_t row = tokens->shape[2], count = tokens->shape[1] * row;
    model_data d = alloc_data(tokens->shape[1], row - 1);
    int32_t *all = test_alloc(count * sizeof *all);
    ASSERT_OK(moert_tensor_read_i32(tokens, 0, count, all));
    for (size_t i = 0; i < d.sequences * d.length; i++) {
        d.input[i] = all[i / d.length * row + i % d.length];
        d.target[i] = all[i / d.length * row + i % d.length + 1];
    }
    return d;
}

size_t model_tokens(const moert_model *model, const model_data *data, size_t *first) {
    size_t count;
    moert_model_partition(data->sequences, moert_comm_rank(model->mesh->world),
                          moert_comm_size(model->mesh->world), first, &count);
    *first *= data->length;
    return count * data->length;
}

moert_model_batch model_batch(const moert_model *model, const model_data *data) {
    size_t first;
    model_tokens(model, data, &first);
    return (moert_model_batch){.total_sequences = data->sequences,
                               .length = data->length,
                               .input = data->input + first,
                               .target = data->target + first};
}

moert_model *load_golden(moert_mesh *mesh, const char *name, bool tied) {
    moert_model_config config = golden_config(name);
    config.tied_embeddings = tied;
    moert_model *model = open_model(mesh, &config);
    ASSERT_OK(moert_model_load(model, titled(MODELS "%s", name), NULL));
    return model;
}

moert_model_result model_step(moert_model *model, moert_model_batch batch,
                              moert_model_losses losses, size_t index, size_t count) {
    moert_model_result result;
    batch.accumulate = index > 0;
    ASSERT_OK(moert_run_forward(run_of(model), &batch));
    ASSERT_OK(moert_run_loss(run_of(model), &losses, 1.0 / (double)count, &result));
    ASSERT_OK(moert_run_backward(run_of(model), index + 1 == count));
    return result;
}

float *model_logits(moert_model *model) {
    const size_t vocabulary = moert_model_describe(model)->vocabulary;
    float *logits = test_alloc((run_of(model)->batch.tokens * vocabulary + 1) * sizeof *logits);
    for (size_t t = 0; t < run_of(model)->batch.tokens; t++)
        ASSERT_OK(moert_run_logits(run_of(model), t, logits + t * vocabulary));
    return logits;
}

float *model_gradients(const moert_model *model, size_t index, size_t *floats) {
    const moert_block *block = moert_model_block((moert_model *)model, index);
    float *values = test_alloc((block->floats + 1) * sizeof *values);
    *floats = block->floats;
    ASSERT_OK(moert_block_gather(block, block->gradient));
    ASSERT_OK(moert_buffer_read(block->gradient, 0, values, block->floats * sizeof *values));
    return values;
}

bool model_same_gradients(const moert_model *a, const moert_model *b) {
    bool same = true;
    for (size_t i = 0; i < moert_model_block_count(a); i++) {
        size_t floats;
        const float *x = model_gradients(a, i, &floats), *y = model_gradients(b, i, &floats);
        same &= memcmp(x, y, floats * sizeof *x) == 0;
    }
    return same;
}

double model_difference(const moert_model *a, const moert_model *b) {
    double worst = 0.0;
    for (size_t i = 0; i < moert_model_block_count(a); i++) {
        size_t floats;
        const float *x = model_gradients(a, i, &floats), *y = model_gradients(b, i, &floats);
        /* fmax ignores NaN, which is the difference of two zeros */
        worst = fmax(worst, relative_difference(x, y, floats));
    }
    return worst;
}

const moert_model_tensor *find_tensor(const moert_model *model, const char *name) {
    for (size_t i = 0; i < moert_model_tensor_count(model); i++)
        if (strcmp(moert_model_tensors(model)[i].name, name) == 0)
            return &moert_model_tensors(model)[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

float *read_tensor(const moert_model_tensor *tensor, bool gradient) {
    float *values = test_alloc(tensor->elements * sizeof *values);
    ASSERT_OK(moert_buffer_read(gradient ? tensor->block->gradient : tensor->block->weight,
                                tensor->offset * sizeof *values, values,
                                tensor->elements * sizeof *values));
    return values;
}

void write_tensor(const moert_model_tensor *tensor, const float *values) {
    ASSERT_OK(moert_buffer_write(tensor->block->weight, tensor->offset * sizeof *values, values,
                                 tensor->elements * sizeof *values));
}
