/*
 * A decoder-only transformer of the families in io/families.h, forward and backward on the device.
 *
 * Each rank holds consecutive sequences of the batch of B sequences of length S
 * (moert_model_partition). Parameters outside the experts are replicated, and their gradients are
 * summed in the tree over sequences. All calls are collective over the mesh's context unless said
 * otherwise.
 */
#pragma once

#include "device/elements.h"
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

/* Copies `config` without its text. Errors: those of moert_model_config_check_model and of the
 * layers. */
moert_status moert_model_create(moert_mesh *mesh, const moert_model_config *config,
                                moert_model **model);
void moert_model_destroy(moert_model *model);
const moert_model_config *moert_model_describe(const moert_model *model);
moert_mesh *moert_model_mesh(const moert_model *model);

/* Sets the initial weights of all tensors. Values depend on (seed, name, element) only. Not
 * collective. */
moert_status moert_model_initialize(moert_model *model, uint64_t seed);

/* Call it after writing weights in any way except moert_model_initialize and moert_model_load
 * (moert_layer_weights_changed). Not collective. */
void moert_model_weights_changed(moert_model *model);

/* With `repeats`, GEMMs prepack no weights (moert_block_repeat): for a few forwards, the copies
 * would cost much memory and save little time. Not collective. */
void moert_model_repeat(moert_model *model, bool repeats);

/* The scheme of the config's rotary positions. Not collective. */
moert_rope_scheme moert_model_rope_scheme(const moert_model_config *config);

/*
 * ---- tensors, in the same order on all ranks ----
 *
 * A tensor is one of the model's files or, where a file's tensor has all experts of a layer
 * (gpt-oss), one expert's part of it. The parts of a file's tensor follow each other.
 */

typedef enum moert_initial {
    MOERT_INITIAL_NORMAL, /* standard deviation: the config's initializer_range */
    MOERT_INITIAL_ONES,
    MOERT_INITIAL_ZEROS
} moert_initial;

typedef struct moert_model_tensor {
    char name[96];         /* name of the file's tensor */
    size_t layer;          /* layer; the number of layers for tensors outside of the layers */
    size_t file;           /* index of the file's tensor */
    size_t rank, shape[3]; /* shape of the file's tensor */
    size_t file_first;     /* element of the file's tensor at which this part starts; 0: the first
                              part, or the whole */
    size_t elements;       /* elements of this part */
    bool transposed; /* the file has [E, columns, rows]; the part is one expert's [rows, columns] */
    bool replicated; /* false: the tensor belongs to one expert */
    bool is_matrix;  /* false: a vector, such as a norm */
    bool is_fixed;   /* it has no gradient, and AdamW leaves it as it is */
    moert_initial initial;
    size_t owner;       /* rank of the EP group that holds the tensor, when not replicated */
    moert_block *block; /* NULL if only another rank holds it */
    size_t offset;      /* offset in floats from the start of its owner's block */
} moert_model_tensor;

/*
 * From now on the files of the model have joined experts (moert_joined_tensor) or, as at first, one
 * tensor for each expert and projection. The order of the tensors changes. Families whose released
 * files are fused have one form only.
 */
void moert_model_join_experts(moert_model *model, bool joined);

size_t moert_model_tensor_count(const moert_model *model);
/* The number of the files' tensors. */
size_t moert_model_file_tensor_count(const moert_model *model);
const moert_model_tensor *moert_model_tensors(const moert_model *model);
/* Elements [first, first + count) of a tensor. */
typedef struct moert_model_range {
    size_t first, count;
} moert_model_range;
/* The elements of a tensor in this rank's shard of its block. This rank has their complete gradient
 * and optimizer state, and writes them to files. */
moert_model_range moert_model_shard(const moert_model_tensor *tensor);

/*
 * Where the experts of MoE layer `layer` are, and moving them: moert_layer_place. The caller moves
 * weights and states. Afterwards the tensors have other owners and offsets, in the same order.
 */
const moert_expert_map *moert_model_placement(const moert_model *model, size_t layer);
moert_status moert_model_place(moert_model *model, size_t layer, const uint32_t *expert);

/* All blocks, in a fixed order. */
size_t moert_model_block_count(const moert_model *model);
moert_block *moert_model_block(const moert_model *model, size_t index);

/* ---- computing ---- */

/* The sequences [first, first + count) of `total` that rank `rank` of `size` holds. */
void moert_model_partition(size_t total, size_t rank, size_t size, size_t *first, size_t *count);

typedef struct moert_model_batch {
    size_t total_sequences, length; /* B, S */
    const int32_t *input, *target;  /* this rank's [sequences, S]; an input of -1 is padding, which
                                       must follow all other inputs of its sequence and have no
                                       target; a target of -1 does not count */
    bool forward_only;              /* no backward follows; the layers refuse a backward */
    const int32_t *positions;       /* [sequences, S]: each token's distance from the first token of
                                       its document (attention/documents.h). Attention sees only
                                       the document, and rotates by these positions. NULL: each
                                       sequence is one document */
    /* The targets that count, over all ranks and micro-batches: they divide the cross-entropy and
     * its gradient. 0: all of this batch count, and `factor` of the loss scales the gradient. */
    size_t targets;
    bool accumulate; /* a further micro-batch of a step, whose gradients are added to those of the
                        earlier ones; otherwise they replace the gradients */
} moert_model_batch;

typedef struct moert_model_result {
    double cross_entropy; /* sum over the targets of all ranks / targets */
    double aux, z;        /* raw, without coefficient */
    double expert_load;   /* largest / mean slots per expert, in the worst layer */
} moert_model_result;

/* The state of a batch in a model. A run may compute any number of batches, one after the other. A
 * model may have any number of runs. Destroy its runs before the model. Not collective. */
typedef struct moert_run moert_run;
moert_status moert_run_create(moert_model *model, moert_run **run);
moert_model *moert_run_model(const moert_run *run);
void moert_run_destroy(moert_run *run); /* NULL is legal */
/* Ends the passes of the last batch, as moert_model_place requires of all runs. Not collective. */
void moert_run_end(moert_run *run);

/* Runs the batch up to the norm before the head. Errors: those of moert_documents_set, ... */
moert_status moert_run_forward(moert_run *run, const moert_model_batch *batch);
/* out[V] = the logits of this rank's token `token` of the last forward. Read them in order: they
 * are computed for config.memory.loss_chunk tokens at a time. A document's logits have the same
 * bits alone and in a longer sequence. Not collective. ERROR_USAGE (no such token), ... */
moert_status moert_run_logits(moert_run *run, size_t token, float *out);

/*
 * Computes the losses of the last forward. With `factor` above 0 (1 / number of micro-batches) it
 * also begins the backward: it computes the gradients of the head.
 */
moert_status moert_run_loss(moert_run *run, const moert_model_losses *losses, double factor,
                            moert_model_result *result);

/* The number of MoE layers L; the others are dense. Not collective. */
size_t moert_model_moe_layers(const moert_model *model);
/* peaks[L]: the most rows of a forward so far, of each MoE layer. Not collective. */
void moert_model_row_peaks(const moert_model *model, moert_row_peak *peaks);
/* Slots per expert [L,E] of the last loss, over all ranks. Not collective. */
const uint64_t *moert_run_expert_counts(const moert_run *run);
/* Slots per expert [L,nodes,E] of the last forward, of the tokens of each node of the EP group;
 * NULL if it is on one node. Not collective. */
const uint64_t *moert_run_node_counts(const moert_run *run);

/*
 * Moves the routers' correction biases, if the model has them, towards balanced loads
 * (moert_router_update_bias). counts [layers,E] are the sums of moert_run_expert_counts over the
 * micro-batches of a step. All ranks have the same counts, so they compute the same bits.
 */
moert_status moert_model_update_correction(moert_model *model, const uint64_t *counts, float rate);

/*
 * Computes the gradients of the last loss. Gradients of replicated tensors are summed over all
 * ranks, and complete in this rank's shards (moert_model_shard). `last`, for the last micro-batch
 * of a step, also sums the gradients of the experts over their replicas.
 */
moert_status moert_run_backward(moert_run *run, bool last);

/* ---- files ---- */

/*
 * Reads a range of one tensor's values, stored as `name` as weights are, to target[at ...]. With an
 * empty range it only checks the tensor's presence and shape. Not collective. Errors:
 * ERROR_MISMATCH, ...
 */
moert_status moert_model_read_values(const moert_tensors *files, const char *name,
                                     const moert_model_tensor *tensor, moert_model_range range,
                                     const moert_elements *target);

/*
 * Reads this rank's weights from a directory or file in Hugging Face form, fused or not (then files
 * are written unfused). `manifest`, if not NULL, gets the checksums of what is read. A tensor of
 * the model's layers or head that no part of the model reads is an ERROR_MISMATCH, whose message
 * names the key of config.json that it needs. Layers of multi-token prediction are ignored. All
 * ranks return the same status.
 */
moert_status moert_model_load(moert_model *model, const char *path, moert_manifest *manifest);
