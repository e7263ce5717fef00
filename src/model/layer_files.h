/*
 * A single MoE layer in its model's files: weights in, gradients out, in the names and layouts of
 * the five families.
 *
 * A slice is a contiguous piece of a file's tensor and the piece of a layer's tensor that it is,
 * transposed where the file holds [in, out] matrices (gpt-oss; never guessed from shapes). Weights
 * in low precision (io/weights.h) are decoded on the way in; gradients have the plain names and
 * shapes.
 */
#pragma once

#include "io/model_config.h"
#include "io/safetensors.h"
#include "moert/layer.h"

typedef struct moert_layer_range {
    char name[128]; /* of the file's tensor */
    size_t rank, shape[3];
    size_t file_first, layer_first; /* in elements */
    size_t rows, columns;           /* as the layer has it; 1 row for vectors */
    bool transposed;                /* the file has [columns, rows] */
    moert_layer_tensor which;
} moert_layer_range;

/* Layer options that a config implies. */
moert_layer_options moert_layer_options_of(const moert_model_config *config);

/*
 * The slices of layer `index` for the experts [first, first + count), replicated tensors included;
 * *slices is to be freed.
 */
moert_status moert_layer_ranges(const moert_model_config *config, size_t index, size_t first,
                                size_t count, moert_layer_range **slices, size_t *slice_count);

/* ERROR_MISMATCH if the tensors of layer `index` are not there or do not make a MoE layer. */
moert_status moert_layer_check_files(const moert_model_config *config, const moert_tensors *files,
                                     size_t index);

/* Reads this rank's weights. Not collective. */
moert_status moert_layer_load(moert_layer *layer, const moert_layer_range *slices, size_t count,
                              const moert_tensors *files);

/* Writes this rank's gradients as "grad." + name; replicated ones only when asked. Not
 * collective. */
moert_status moert_layer_put_gradients(moert_layer *layer, const moert_layer_range *slices,
                                       size_t count, bool replicated, moert_tensor_writer *writer);
