/* moert-layer: runs forward and backward of one MoE layer of a model, from file to file, to compare
 * results with other code. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/buffer.h"
#include "device/elements.h"
#include "layer/block.h"
#include "model/layer_files.h"
#include "model/model.h"
#include "tools/common/program.h"
#include "train/shared_file.h"

/* Tokens of a leaf of the fixed tree in which gradients are summed. Each rank has whole leaves, so
 * the bits do not depend on the number of ranks. */
enum { LEAF_TOKENS = 4 };

static const char *model_path, *input_path, *output_path;
static size_t layer_index, ep;
static moert_compute_choice compute_choice;

static const moert_option options[] = {
    {"model", MOERT_OPTION_STRING, &model_path, NULL, "DIR",
     "directory with config.json and safetensors files"},
    {"layer", MOERT_OPTION_UINT, &layer_index, "0", "0..100000", "index of the layer"},
    {"input", MOERT_OPTION_STRING, &input_path, NULL, "FILE",
     "safetensors file with x[T,H] and optionally dy[T,H]"},
    {"output", MOERT_OPTION_STRING, &output_path, NULL, "FILE",
     "safetensors file to write: y, and with dy also dx and grad.NAME of every weight"},
    {"ep", MOERT_OPTION_UINT, &ep, "0", "0..1000000",
     "ranks among which one set of experts is divided; 0 = all"},
    MOERT_COMPUTE_OPTIONS(compute_choice, "the shared expert's GEMMs"),
};

typedef struct job {
    moert_context *context;
    moert_comm *world;
    moert_device *device;
    moert_mesh *mesh;
    moert_model_config config;
    moert_layer *layer;
    moert_tensors *weights, *input;
    const moert_tensor *x, *dy; /* dy may be NULL */
    /* tokens in the file; first token and number of tokens of this rank */
    size_t tokens, first, count;
    moert_batch batch;
    moert_buffer *ends, *buffer_x, *buffer_y, *buffer_dy, *buffer_dx;
    /* ranges of tensors: for the experts of this rank; for all experts */
    moert_layer_range *ranges, *all_ranges;
    size_t range_count, all_count;
} job;

static moert_status check(const moert_command *command) {
    (void)command;
    if (model_path == NULL || input_path == NULL || output_path == NULL)
        return MOERT_FAIL(ERROR_USAGE, "--model, --input and --output are needed; see --help");
    return MOERT_OK;
}

static moert_status find_matrix(const job *j, const char *name, const moert_tensor **tensor) {
    *tensor = moert_tensors_find(j->input, name);
    if (*tensor == NULL)
        return MOERT_OK;
    if ((*tensor)->rank != 2 || (*tensor)->shape[1] != j->config.hidden)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "%s: %s is not a matrix [T,%zu], the hidden size of the model",
                          input_path, name, j->config.hidden);
    return MOERT_OK;
}

static moert_status open_files(job *j) {
    MOERT_TRY(moert_model_config_read(model_path, &j->config));
    MOERT_TRY(moert_tensors_open(model_path, &j->weights));
    j->config.joined_experts = moert_files_join_experts(&j->config, j->weights);
    MOERT_TRY(moert_layer_check_files(&j->config, j->weights, layer_index));
    MOERT_TRY(moert_tensors_open(input_path, &j->input));
    MOERT_TRY(find_matrix(j, "x", &j->x));
    MOERT_TRY(find_matrix(j, "dy", &j->dy));
    if (j->x == NULL)
        return MOERT_FAIL(ERROR_MISMATCH, "%s holds no tensor x[T,%zu]", input_path,
                          j->config.hidden);
    if (j->dy != NULL && j->dy->shape[0] != j->x->shape[0])
        return MOERT_FAIL(ERROR_MISMATCH, "%s: x has %zu rows, dy %zu", input_path, j->x->shape[0],
                          j->dy->shape[0]);
    j->tokens = j->x->shape[0];
    return MOERT_OK;
}

/* Assigns this rank a contiguous range of the tokens, in whole leaves. */
static moert_status partition_tokens(job *j) {
    size_t leaves = moert_ceil_div(j->tokens, LEAF_TOKENS), first, count;
    uint32_t *ends;
    moert_model_partition(leaves, moert_comm_rank(j->world), moert_comm_size(j->world), &first,
                          &count);
    j->first = first * LEAF_TOKENS;
    j->count = moert_min((first + count) * LEAF_TOKENS, j->tokens) - moert_min(j->first, j->tokens);
    MOERT_TRY(moert_alloc(&ends, count, sizeof *ends));
    for (size_t i = 0; i < count; i++)
        ends[i] = (uint32_t)moert_min((i + 1) * LEAF_TOKENS, j->count);
    moert_status status = moert_buffer_create(j->device, count * sizeof *ends, &j->ends);
    if (status == MOERT_OK)
        status = moert_buffer_write(j->ends, 0, ends, count * sizeof *ends);
    free(ends);
    j->batch = (moert_batch){.size = sizeof j->batch,
                             .tokens = j->count,
                             .sequences = count,
                             .first_sequence = first,
                             .total_sequences = leaves,
                             .ends = j->ends};
    return status;
}

static moert_status upload(job *j, const moert_tensor *tensor, moert_buffer **buffer) {
    size_t elements = j->count * j->config.hidden;
    float *values;
    MOERT_TRY(moert_buffer_create(j->device, elements * sizeof *values, buffer));
    MOERT_TRY(moert_alloc(&values, elements, sizeof *values));
    moert_status status =
        moert_tensor_read_f32(tensor, j->first * j->config.hidden, elements, values);
    if (status == MOERT_OK)
        status = moert_buffer_write(*buffer, 0, values, elements * sizeof *values);
    free(values);
    return status;
}

static moert_status prepare(job *j) {
    size_t bytes, first = moert_layer_first_expert(j->layer),
                  local = moert_layer_local_experts(j->layer);
    MOERT_TRY(
        moert_layer_ranges(&j->config, layer_index, first, local, &j->ranges, &j->range_count));
    MOERT_TRY(moert_layer_ranges(&j->config, layer_index, 0, j->config.router.experts,
                                 &j->all_ranges, &j->all_count));
    MOERT_TRY(moert_layer_load(j->layer, j->ranges, j->range_count, j->weights));
    MOERT_TRY(partition_tokens(j));
    bytes = j->count * j->config.hidden * sizeof(float);
    MOERT_TRY(upload(j, j->x, &j->buffer_x));
    MOERT_TRY(moert_buffer_create(j->device, bytes, &j->buffer_y));
    if (j->dy == NULL)
        return MOERT_OK;
    MOERT_TRY(upload(j, j->dy, &j->buffer_dy));
    return moert_buffer_create(j->device, bytes, &j->buffer_dx);
}

static moert_status compute(job *j) {
    moert_pass *pass; /* the layer frees it */
    MOERT_TRY(moert_layer_forward(j->layer, &j->batch, j->buffer_x, j->buffer_y, &pass));
    if (j->dy != NULL) {
        MOERT_TRY(moert_pass_backward(pass, j->buffer_dy, NULL, j->buffer_dx));
        MOERT_TRY(moert_layer_reduce(j->layer, true));
    }
    return moert_mesh_settle(j->mesh);
}

/* ---- output ---- */

/* Makes specs of y, dx and the gradient of each weight. *specs points into *names. The caller frees
 * both. */
static moert_status make_specs(const job *j, moert_tensor_spec **specs, size_t *count,
                               char (**names)[160]) {
    size_t h = j->config.hidden;
    MOERT_TRY(moert_alloc(specs, 2 + j->all_count, sizeof **specs));
    MOERT_TRY(moert_alloc(names, j->all_count, sizeof **names));
    (*specs)[0] = (moert_tensor_spec){"y", MOERT_FILE_F32, 2, {j->tokens, h}};
    *count = 1;
    if (j->dy == NULL)
        return MOERT_OK;
    (*specs)[(*count)++] = (moert_tensor_spec){"dx", MOERT_FILE_F32, 2, {j->tokens, h}};
    for (size_t i = 0; i < j->all_count; i++) {
        const moert_layer_range *range = &j->all_ranges[i];
        if (range->which == MOERT_LAYER_CORRECTION || range->file_first > 0)
            /* the range has no gradient, or another expert's range has made the spec of this
             * tensor */
            continue;
        snprintf((*names)[i], sizeof **names, "grad.%s", range->name);
        moert_tensor_spec *spec = &(*specs)[(*count)++];
        *spec = (moert_tensor_spec){(*names)[i], MOERT_FILE_F32, range->rank, {0}};
        memcpy(spec->shape, range->shape, range->rank * sizeof *spec->shape);
    }
    return MOERT_OK;
}

static moert_status put_results(const void *context, moert_tensor_writer *writer) {
    const job *j = context;
    const size_t first = j->first * j->config.hidden, count = j->count * j->config.hidden;
    MOERT_TRY(moert_put_elements(writer, "y", first, count,
                                 &(moert_elements){j->buffer_y, MOERT_DTYPE_F32, 0}));
    if (j->dy == NULL)
        return MOERT_OK;
    MOERT_TRY(moert_put_elements(writer, "dx", first, count,
                                 &(moert_elements){j->buffer_dx, MOERT_DTYPE_F32, 0}));
    if (moert_comm_rank(j->mesh->replicas) != 0)
        return MOERT_OK;
    return moert_layer_put_gradients(j->layer, j->ranges, j->range_count,
                                     moert_comm_rank(j->world) == 0, writer);
}

static moert_status write_output(job *j) {
    char(*names)[160] = NULL;
    moert_tensor_spec *specs = NULL;
    size_t count = 0;
    moert_status status = make_specs(j, &specs, &count, &names);
    const moert_shared_file file = {output_path, specs, count, NULL, put_results, j};
    status = moert_shared_file_write(j->world, &file, true, status);
    MOERT_FREE(names, specs);
    return status;
}

static moert_status run_job(job *j) {
    MOERT_TRY(moert_comm_agree(j->world, open_files(j)));
    MOERT_TRY(moert_comm_agree(j->world, moert_program_compute(&compute_choice, &j->config)));
    const moert_layer_options layer_options = moert_layer_options_of(&j->config);
    MOERT_TRY(moert_mesh_create(j->context, ep, &j->mesh));
    MOERT_TRY(moert_layer_create(j->mesh, &layer_options, &j->layer));
    MOERT_TRY(moert_comm_agree(j->world, prepare(j)));
    MOERT_TRY(compute(j));
    return write_output(j);
}

static void clean_up(job *j) {
    MOERT_DESTROY(j->ends, j->buffer_x, j->buffer_y, j->buffer_dy, j->buffer_dx);
    moert_layer_destroy(j->layer);
    moert_mesh_destroy(j->mesh);
    moert_tensors_close(j->input);
    moert_tensors_close(j->weights);
    moert_model_config_free(&j->config);
    MOERT_FREE(j->ranges, j->all_ranges);
}

static moert_status run(moert_context *context) {
    job j = {.context = context,
             .world = moert_context_comm(context),
             .device = moert_context_device(context)};
    moert_status status = run_job(&j);
    if (status == MOERT_OK)
        moert_program_say(
            context, "layer %zu of %s: %zu tokens on %zu rank%s, exchange %s, backend %s -> %s\n",
            layer_index, model_path, j.tokens, moert_context_size(context),
            moert_context_size(context) > 1 ? "s" : "", moert_mesh_engine(j.mesh),
            moert_backend_name(moert_context_device(context)), output_path);
    clean_up(&j);
    return status;
}

const moert_program moert_layer_program =
    MOERT_PROGRAM_OF("[mpirun -n R] moert-layer --model DIR [--layer N] --input IN --output OUT",
                     "Runs one MoE layer, forward and (when IN holds dy) backward, with the tokens "
                     "split over the ranks.",
                     check);
MOERT_MAIN(moert_layer_program)
