/*
 * Reads the weights of a single MoE layer from its model's files and writes its gradients, with the
 * names and layouts of its family.
 *
 * A range maps consecutive elements of a file's tensor to elements of a layer's tensor. A range is
 * transposed if the family's files hold [in, out] matrices (gpt-oss). Whether a range is transposed
 * is never guessed from shapes. Quantized weights (io/weights.h) are dequantized when they are
 * read. Gradients are written with the names and shapes of weights that are not quantized.
 */
#pragma once

#include "io/model_config.h"
#include "io/safetensors.h"
#include "moert/layer.h"

typedef struct moert_layer_range {
    char name[MOERT_TENSOR_NAME_BYTES]; /* name of the file's tensor */
    size_t rank, shape[3];
    /* first element in the file's tensor, and in the layer's tensor */
    size_t file_first, layer_first;
    size_t rows, columns; /* shape in the layer; a vector has one row */
    bool transposed;      /* the file has [columns, rows] */
    moert_layer_tensor which;
} moert_layer_range;

/* A tensor of a file that holds all experts of a layer: [E, columns, rows] if an expert has a
 * matrix [rows, columns], or [E, columns] if it has a vector (rows 0). */
typedef struct moert_fused_tensor {
    moert_expert_part part; /* GATE: gate and up */
    moert_layer_tensor which;
    size_t rows, columns;
} moert_fused_tensor;
enum { MOERT_FUSED_MOST = 4 };

/* Stores the tensors of experts in transposed files (moert_expert_files), in the order of the
 * layer's blocks. Returns the number of tensors. */
size_t moert_fused_tensors_of(const moert_model_config *config,
                              moert_fused_tensor tensors[MOERT_FUSED_MOST]);

/* The name of a fused tensor of layer `layer`. */
void moert_fused_name(const moert_model_config *config, size_t layer,
                      const moert_fused_tensor *fused, char name[MOERT_TENSOR_NAME_BYTES]);

/* Whether the files have joined experts, although released files of the family have separate ones
 * (moert_model_config.joined_experts). */
bool moert_files_join_experts(const moert_model_config *config, const moert_tensors *files);

/* Layer options that a config implies. */
moert_layer_options moert_layer_options_of(const moert_model_config *config);

/*
 * The ranges of layer `index` for experts [first, first + count) and for the replicated tensors.
 * The caller frees *ranges.
 */
moert_status moert_layer_ranges(const moert_model_config *config, size_t index, size_t first,
                                size_t count, moert_layer_range **ranges, size_t *range_count);

/* ERROR_MISMATCH if tensors of layer `index` are missing or do not form a MoE layer. */
moert_status moert_layer_check_files(const moert_model_config *config, const moert_tensors *files,
                                     size_t index);

/* Reads this rank's weights. Not collective. */
moert_status moert_layer_load(moert_layer *layer, const moert_layer_range *ranges, size_t count,
                              const moert_tensors *files);

/* Writes this rank's gradients under the weights' names with the prefix "grad.". Writes the
 * gradients of replicated tensors only if `replicated`. Not collective. */
moert_status moert_layer_put_gradients(moert_layer *layer, const moert_layer_range *ranges,
                                       size_t count, bool replicated, moert_tensor_writer *writer);
