/*
 * The values that files hold for each tensor of a model: weights, gradients or moments.
 * The entries of `kinds` kinds from `first_kind` on are the files' F tensors of the first kind,
 * then those of the next one: entry e is tensor e % F of kind first_kind + e / F.
 */
#pragma once

#include "device/elements.h"
#include "io/safetensors.h"
#include "train/optimizer.h"

/* What files hold: weights, gradients, or the optimizer's moments, the first of which is of kind
 * MOERT_VALUES_MOMENTS. */
typedef enum moert_value_kind {
    MOERT_VALUES_WEIGHTS,
    MOERT_VALUES_MOMENTS,
    MOERT_VALUES_GRADIENTS = MOERT_VALUES_MOMENTS + MOERT_MOMENTS_MOST
} moert_value_kind;

/* The prefix of the tensors' names in files. */
const char *moert_value_prefix(const moert_model *model, moert_value_kind kind);
/* The number of kinds in a checkpoint, from MOERT_VALUES_WEIGHTS on. */
size_t moert_checkpoint_kinds(const moert_model *model);

/* A tensor's values of a kind in this rank's shard, which is not empty. The optimizer may be NULL
 * for weights and gradients. */
moert_elements moert_values_of(const moert_optimizer *optimizer, const moert_model_tensor *tensor,
                               moert_value_kind kind);

/* specs[kinds * F] = the entries, to be freed by moert_value_specs_free, also after a failure.
 * Errors: ERROR_MEMORY. */
moert_status moert_value_specs(const moert_model *model, moert_value_kind first_kind, size_t kinds,
                               moert_tensor_spec **specs);
void moert_value_specs_free(const moert_model *model, size_t kinds, moert_tensor_spec *specs);

/* Writes this rank's shard of a tensor, which is not empty, to `name` of a file. */
moert_status moert_values_put(moert_tensor_writer *writer, const char *name,
                              const moert_model_tensor *tensor, const moert_elements *shard);

/* Metadata of the files, which transformers requires. */
extern const char *const moert_value_metadata[];

/* Writes the gradients of the last backward to one safetensors file. Collective. */
moert_status moert_gradients_save(moert_model *model, const char *path);
