/*
 * The values in files for each tensor of a model: weights, gradients or moments. F is the number of
 * the files' tensors. Entries list `kinds` kinds of values, beginning with first_kind: entry e is
 * tensor e % F of kind first_kind + e / F.
 */
#pragma once

#include "device/elements.h"
#include "io/safetensors.h"
#include "train/optimizer.h"

/* Kinds of values in files. MOERT_VALUES_MOMENTS is the first moment of the optimizer; its other
 * moments have the next numbers. */
typedef enum moert_value_kind {
    MOERT_VALUES_WEIGHTS,
    MOERT_VALUES_MOMENTS,
    MOERT_VALUES_GRADIENTS = MOERT_VALUES_MOMENTS + MOERT_MOMENTS_MOST
} moert_value_kind;

/* The prefix that the names of a kind's tensors have in files. */
const char *moert_value_prefix(const moert_model *model, moert_value_kind kind);
/* The number of kinds of values in a checkpoint: the weights and each moment of the optimizer. */
size_t moert_checkpoint_kinds(const moert_model *model);

/* The values of a kind in this rank's shard of a tensor. The shard must not be empty. `optimizer`
 * may be NULL for weights and gradients. */
moert_elements moert_values_of(const moert_optimizer *optimizer, const moert_model_tensor *tensor,
                               moert_value_kind kind);

/* specs[kinds * F] = the specs of the entries. Free the specs by moert_value_specs_free, also after
 * a failure. Errors: ERROR_MEMORY. */
moert_status moert_value_specs(const moert_model *model, moert_value_kind first_kind, size_t kinds,
                               moert_tensor_spec **specs);
void moert_value_specs_free(const moert_model *model, size_t kinds, moert_tensor_spec *specs);

/* Writes this rank's shard of a tensor to the tensor `name` of a file. The shard must not be
 * empty. */
moert_status moert_values_put(moert_tensor_writer *writer, const char *name,
                              const moert_model_tensor *tensor, const moert_elements *shard);

/* Metadata of the files; transformers requires this metadata. */
extern const char *const moert_value_metadata[];

/* Writes the gradients of the last backward to a safetensors file. Collective. */
moert_status moert_gradients_save(moert_model *model, const char *path);
