/*
 * A decoder-only transformer of a family in io/families.h. Forward and backward run on the device.
 *
 * Each rank holds consecutive sequences of the batch of B sequences of length S
 * (moert_model_partition). Parameters outside the experts are replicated, and their gradients are
 * summed over the sequences in a fixed tree (base/tree.h). All calls are collective over the mesh's
 * context unless said otherwise.
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

/* Copies `config`, except its text. Errors: those of moert_model_config_check_model and of the
 * layers. */
moert_status moert_model_create(moert_mesh *mesh, const moert_model_config *config,
                                moert_model **model);
void moert_model_destroy(moert_model *model);
const moert_model_config *moert_model_describe(const moert_model *model);
moert_mesh *moert_model_mesh(const moert_model *model);

/* Sets the initial weights of all tensors. Values depend on (seed, name, element) only. Not
 * collective. */
moert_status moert_model_initialize(moert_model *model, uint64_t seed);

/* Call this after writing weights in any way except moert_model_initialize and moert_model_load
 * (see moert_layer_weights_changed). Not collective. */
void moert_model_weights_changed(moert_model *model);

/* With `repeats`, GEMMs prepack no weights (moert_block_repeat). For a few forwards, prepacked
 * copies would cost much memory and save little time. Not collective. */
void moert_model_repeat(moert_model *model, bool repeats);

/* The rotary scheme of a config's layers without a window (0) and with a window (1); theta 0: the
 * latter have that of the former. Not collective. */
enum { MOERT_ROPES = 2 };
moert_rope_scheme moert_model_rope_scheme(const moert_model_config *config, size_t windowed);

/*
 * ---- tensors, in the same order on all ranks ----
 *
 * moert_model_tensors lists the tensors of the model's files. If a file's tensor has all experts of
 * a layer (gpt-oss), the list has each expert's part as a tensor of its own, and these parts are
 * consecutive.
 */

typedef enum moert_initial {
    MOERT_INITIAL_NORMAL, /* standard deviation: the config's initializer_range */
    MOERT_INITIAL_ONES,
    MOERT_INITIAL_ZEROS
} moert_initial;

typedef struct moert_model_tensor {
    char name[MOERT_TENSOR_NAME_BYTES]; /* name of the file's tensor */
    size_t layer;          /* index of the layer; outside of the layers: the number of layers */
    size_t file;           /* index of the file's tensor */
    size_t rank, shape[3]; /* shape of the file's tensor */
    /* element of the file's tensor at which this part starts; 0: the first part, or the whole
     * tensor */
    size_t file_first;
    size_t elements; /* elements of this part */
    /* the file has [E, columns, rows]; this part is one expert's [rows, columns] */
    bool transposed;
    bool replicated; /* false: the tensor belongs to one expert */
    bool is_matrix;  /* false: a vector, such as a norm */
    bool is_fixed;   /* the tensor has no gradient, and AdamW does not change it */
    moert_initial initial;
    size_t owner;       /* member of the EP group that holds the tensor, when not replicated */
    moert_block *block; /* NULL if only other ranks hold the tensor */
    size_t offset;      /* offset in floats from the start of the owner's block */
} moert_model_tensor;

/* Selects the form of the model's files: with joined experts, or as the family's released files.
 * Changes the order of the tensors. Transposed files (moert_expert_files) have one form only. */
void moert_model_join_experts(moert_model *model, bool joined);

size_t moert_model_tensor_count(const moert_model *model);
/* The number of tensors in the model's files. */
size_t moert_model_file_tensor_count(const moert_model *model);
const moert_model_tensor *moert_model_tensors(const moert_model *model);
/* Elements [first, first + count) of a tensor. */
typedef struct moert_model_range {
    size_t first, count;
} moert_model_range;
/* The elements of a tensor in this rank's shard of the tensor's block. This rank has the complete
 * gradient and optimizer state of the elements in its shards, and writes these elements to
 * files. */
moert_model_range moert_model_shard(const moert_model_tensor *tensor);

/* moert_model_placement: which slot each expert of MoE layer `layer` has. moert_model_place moves
 * experts (moert_layer_place); the caller moves weights and optimizer states. Afterwards the
 * tensors have other owners and offsets, but their order is the same. */
const moert_expert_map *moert_model_placement(const moert_model *model, size_t layer);
moert_status moert_model_place(moert_model *model, size_t layer, const uint32_t *expert);

/* All blocks, in a fixed order. */
size_t moert_model_block_count(const moert_model *model);
moert_block *moert_model_block(const moert_model *model, size_t index);

/* ---- computing ---- */

/* Computes the range [first, first + count) of `total` sequences that rank `rank` of `size` ranks
 * holds. */
void moert_model_partition(size_t total, size_t rank, size_t size, size_t *first, size_t *count);

typedef struct moert_model_batch {
    size_t total_sequences, length; /* B, S */
    /* this rank's [sequences, S]. An input of -1 is padding, which must follow all other inputs of
     * its sequence and have no target. A target of -1 is masked */
    const int32_t *input, *target;
    bool forward_only; /* no backward follows, and the layers refuse one */
    /* [sequences, S] distance of each token from the first token of its document
     * (attention/documents.h). Attention sees only the document, and rotates by these positions.
     * NULL: each sequence is one document */
    const int32_t *positions;
    /* The number of unmasked targets over all ranks and micro-batches. The cross-entropy and its
     * gradient are divided by this number. 0: divide by the unmasked targets of this batch, and
     * multiply the gradient by `factor` of the loss. */
    size_t targets;
    /* gradients are added to the gradients of earlier micro-batches of the step; otherwise they
     * replace earlier gradients */
    bool accumulate;
    /* With moert_run_cache: the number of tokens of each sequence that earlier forwards have left
     * in the cache. The batch continues the sequences after these tokens. */
    size_t past;
    uint64_t draws;     /* the seed of stochastic rounding, another for each batch; the same on all
                           ranks */
    bool bf16_operands; /* MoE layers with a recipe compute in bf16 (moert_batch.bf16_operands) */
} moert_model_batch;

typedef struct moert_model_result {
    double cross_entropy; /* sum over the targets of all ranks / number of targets */
    double aux, z;        /* raw, without coefficient */
    double expert_load;   /* largest / mean slots per expert, in the layer with the largest ratio */
} moert_model_result;

/* The state of a batch in a model. A run may compute any number of batches, one after the other. A
 * model may have any number of runs. Destroy the runs before their model. Not collective. */
typedef struct moert_run moert_run;
moert_status moert_run_create(moert_model *model, moert_run **run);
moert_model *moert_run_model(const moert_run *run);
void moert_run_destroy(moert_run *run); /* NULL is legal */
/* Ends the passes of the last batch. moert_model_place requires this of all runs. Not
 * collective. */
void moert_run_end(moert_run *run);

/* Lets each forward keep the keys and values of its tokens, up to `room` tokens of each sequence,
 * so that a later forward may continue the sequences (moert_model_batch.past). The results have the
 * same bits as a forward of the whole sequences. The run then refuses positions and a backward. The
 * next forward allocates the memory. A later call with more room keeps the contents.
 * ERROR_UNSUPPORTED: the device's tensor cores compute the attention. Not collective. */
moert_status moert_run_cache(moert_run *run, size_t room);
/* Runs the batch's forward up to the norm before the head. Errors: those of moert_documents_set,
 * ERROR_USAGE (more tokens than the cache has room for), ... */
moert_status moert_run_forward(moert_run *run, const moert_model_batch *batch);
/* out[V] = the logits of this rank's token `token` in the last forward. Read tokens in order, since
 * logits are computed for config.memory.loss_chunk tokens at a time. A document's logits have the
 * same bits alone as in a longer sequence. Not collective. ERROR_USAGE (no such token), ... */
moert_status moert_run_logits(moert_run *run, size_t token, float *out);

/*
 * Computes the losses of the last forward. With `factor` above 0 (1 / number of micro-batches) also
 * begins the backward by computing the gradients of the head.
 */
moert_status moert_run_loss(moert_run *run, const moert_model_losses *losses, double factor,
                            moert_model_result *result);

/* The number L of MoE layers; other layers are dense. Not collective. */
size_t moert_model_moe_layers(const moert_model *model);
/* peaks[L]: the largest number of rows in a forward so far, for each MoE layer. Not collective. */
void moert_model_row_peaks(const moert_model *model, moert_row_peak *peaks);
/* [L,E] slots per expert in the batch of the last loss, over all ranks. Not collective. */
const uint64_t *moert_run_expert_counts(const moert_run *run);
/* [L,nodes,E] slots per expert in the last forward, by the node of the EP group that holds the
 * tokens. NULL if the group is on one node. Not collective. */
const uint64_t *moert_run_node_counts(const moert_run *run);

/*
 * Moves the routers' correction biases, if the model has them, towards balanced loads
 * (moert_router_update_bias). counts [layers,E] are the sums of moert_run_expert_counts over the
 * micro-batches of a step. All ranks have the same counts, so they compute bit-identical biases.
 */
moert_status moert_model_update_correction(moert_model *model, const uint64_t *counts, float rate);

/*
 * Computes the gradients of the last loss. Gradients of replicated tensors are summed over all
 * ranks. Each rank then has the complete sums for its shards (moert_model_shard). `last`, for the
 * last micro-batch of a step, also sums the gradients of the experts over their replicas.
 */
moert_status moert_run_backward(moert_run *run, bool last);

/* ---- files ---- */

/*
 * Reads a range of a tensor's values into target[at ...]. The files store these values like a
 * weight, under `name`. With an empty range, only checks the tensor's presence and shape. Not
 * collective. Errors: ERROR_MISMATCH, ...
 */
moert_status moert_model_read_values(const moert_tensors *files, const char *name,
                                     const moert_model_tensor *tensor, moert_model_range range,
                                     const moert_elements *target);

/*
 * Reads this rank's weights from a directory or file in Hugging Face form, with fused or separate
 * experts; files are then written with separate experts. `manifest`, if not NULL, gets the
 * checksums of the values read. ERROR_MISMATCH if the model does not read a tensor of its layers or
 * head; the message names the key of config.json that the tensor needs. Layers of multi-token
 * prediction are ignored. All ranks return the same status.
 */
moert_status moert_model_load(moert_model *model, const char *path, moert_manifest *manifest);
