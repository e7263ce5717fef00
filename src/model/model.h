/*
 * A decoder-only transformer in the Mixtral and Qwen3-MoE form, forward and backward on the device.
 *
 * The batch of B sequences of length S is split over the ranks in contiguous pieces
 * (moert_model_partition); parameters outside the experts are replicated, with their gradients summed
 * in the tree over sequences. All calls are collective over the mesh's context unless said.
 */
#pragma once

#include "io/model_config.h"
#include "io/safetensors.h"
#include "layer/block.h"
#include "layer/mesh.h"
#include "router/router.h"

typedef struct moert_model moert_model;

typedef struct moert_model_losses {
    moert_aux_form aux_form;
    double aux_coefficient, z_coefficient;
} moert_model_losses;

/* `config` is copied but for its text. Errors: those of moert_model_config_check_model and of the
 * layers. */
moert_status moert_model_create(moert_mesh *mesh, const moert_model_config *config,
                                moert_model **model);
void moert_model_destroy(moert_model *model);
const moert_model_config *moert_model_describe(const moert_model *model);
moert_mesh *moert_model_mesh(const moert_model *model);

/* Fresh weights: matrices normal with the config's initializer_range, norms 1; by (seed, name,
 * element). Not collective. */
moert_status moert_model_initialize(moert_model *model, uint64_t seed);

/* To be called when weights were written other than by the two functions of this file that set
 * them, as the optimizer does: see moert_layer_weights_changed. Not collective. */
void moert_model_weights_changed(moert_model *model);

/* ---- tensors, in the names and shapes of the model's files; the order is the same on all ranks
 * ---- */

typedef struct moert_model_tensor {
    char name[96];
    size_t rank, shape[2], elements;
    bool replicated;    /* else one expert's */
    bool is_matrix;     /* not a norm */
    size_t owner;       /* rank of the EP group that holds it, when not replicated */
    moert_block *block; /* NULL when it is another rank's */
    size_t offset;      /* floats from the block's start */
} moert_model_tensor;

size_t moert_model_tensor_count(const moert_model *model);
const moert_model_tensor *moert_model_tensors(const moert_model *model);
/* Elements [first, first + count) of a tensor. */
typedef struct moert_model_range {
    size_t first, count;
} moert_model_range;
/* Those in this rank's slice of the tensor's block: it has their complete gradient and the
 * optimizer's state of them, and writes them to files. */
moert_model_range moert_model_shard(const moert_model_tensor *tensor);

/* All blocks, in a fixed order. */
size_t moert_model_block_count(const moert_model *model);
moert_block *moert_model_block(const moert_model *model, size_t index);

/* ---- computing ---- */

/* The sequences [first, first + count) of `total` that rank `rank` of `size` has. */
void moert_model_partition(size_t total, size_t rank, size_t size, size_t *first, size_t *count);

typedef struct moert_model_batch {
    size_t total_sequences, length; /* B, S */
    const int32_t *input, *target;  /* this rank's [sequences, S] */
    bool forward_only;              /* no backward will follow; none is accepted */
} moert_model_batch;

typedef struct moert_model_result {
    double cross_entropy; /* mean over the tokens of all ranks */
    double aux, z;        /* raw, without coefficient */
    double expert_load;   /* largest / mean slots per expert, the worst layer */
} moert_model_result;

/* Logits [T,V] of the batch; kept until the next forward. */
moert_status moert_model_forward(moert_model *model, const moert_model_batch *batch);
/* Reads logits of this rank's token t: out[V]. Not collective. */
moert_status moert_model_logits(moert_model *model, size_t token, float *out);

/*
 * The losses of the last forward. With `factor` above 0 (1 / number of micro-batches) it also
 * prepares backward: the logits become their gradient.
 */
moert_status moert_model_loss(moert_model *model, const moert_model_losses *losses, double factor,
                              moert_model_result *result);

/* Slots per expert [layers,E] of the last loss, over all ranks. Not collective. */
const uint64_t *moert_model_expert_counts(const moert_model *model);

/*
 * Gradients of the last loss, complete in this rank's slices (moert_model_shard), over all ranks
 * for replicated tensors; micro-batch `index` of `count`: the first one replaces, further ones add,
 * the last one also completes the experts' over their replicas.
 */
moert_status moert_model_backward(moert_model *model, size_t index, size_t count);

/* ---- files ---- */

/*
 * Reads a range of one tensor's values, stored as `name`, to target[at ...]; an empty one only
 * checks that they are there. Not collective. Errors: ERROR_MISMATCH, ...
 */
moert_status moert_model_read_values(const moert_tensors *files, const char *name,
                                     const moert_model_tensor *tensor, moert_model_range range,
                                     moert_buffer *target, size_t at);

/* Reads this rank's weights from a directory or file in Hugging Face form; all ranks return the
 * same status. */
moert_status moert_model_load(moert_model *model, const char *path);
