/*
 * Computes the memory that a rank of a training run allocates, from config.json and the setting.
 * The result is the sum over the tables by which the run reserves its buffers. These are the tables
 * of blocks (layer/block.h), of a layer's passes and scratch (layer/sizes.h), of a run
 * (model/sizes.h) and of windows (exchange). tests/unit/estimate/test_memory_estimate.c compares
 * the result with the allocations of real models. Memory of OpenCL, MPI and compiled kernels is not
 * included.
 */
#pragma once

#include "io/model_config.h"
#include "layer/block.h"
#include "layer/mesh.h"
#include "moert/device.h"
#include "router/router.h"

typedef struct moert_memory_setting {
    const moert_model_config *config;
    size_t batch, length; /* B sequences of one micro-batch over all ranks, of S tokens each */
    size_t ranks, ep;     /* R; ranks that share one set of experts (divides R) */
    bool exact;           /* replicas of the experts are exact */
    bool moves, clones;   /* experts move between the ranks; experts get clones in spare slots */
    const moert_mesh_place *places; /* [R] place of each rank in the mesh; NULL: one host */
    unsigned engine;                /* MOERT_EXCHANGE_* of base/config.h, not AUTO */
    size_t largest_bytes;           /* largest allocation that all ranks' devices support */
    size_t micro_batches;           /* micro-batches of a step */
    bool saves_beside;              /* checkpoints are written while training goes on */
    bool verifies;                  /* ranks repeat each other's work */
    const moert_device *device;     /* the device whose prepacked weights count; NULL: none */
    moert_aux_form aux_form;
    const moert_row_peak *peaks; /* [MoE layers] rows of the rank; NULL: rows of balanced routing
                                    (tokens of the EP group x K x experts of the rank / E, rounded
                                    up), times config->memory.imbalance */
} moert_memory_setting;

/* X(field, title, help): bytes of one rank. */
#define MOERT_MEMORY_TABLE(X)                                                                      \
    X(weights, "weights", "parameters, each tensor padded to 512 bytes")                           \
    X(gradients, "gradients", "of all parameters, with the same padding")                          \
    X(moments, "moments",                                                                          \
      "of AdamW, two per parameter in this rank's shards; ranks with the same parameters "         \
      "divide them")                                                                               \
    X(copies, "copies", "of weights: rounded or prepacked")                                        \
    X(sums, "sums", "gradients of replicated parameters, per node of the tree that sums them")     \
    X(activations, "activations", "kept from forward to backward")                                 \
    X(scratch, "scratch", "of backward, shared by all layers")                                     \
    X(staging, "staging",                                                                          \
      "rows packed into messages of the staged or node exchange; windows of "                      \
      "sums between devices")                                                                      \
    X(moves, "moves",                                                                              \
      "host copies of experts that move, and of the weights and gradients that an expert "         \
      "exchanges with its clones or exact replicas")                                               \
    X(saves, "saves", "host copy of this rank's part of a checkpoint, to save beside training")    \
    X(checks, "checks",                                                                            \
      "a second copy of a layer and its inputs, with which ranks repeat each other's work "        \
      "(--verify)")                                                                                \
    X(windows, "windows", "rows of the exchange windows that are used")                            \
    X(reserved, "reserved",                                                                        \
      "reserved for those windows; untouched pages of the window exchange "                        \
      "cost nothing")                                                                              \
    X(total, "total",                                                                              \
      "sum of the others, with windows (window and node exchange) or reserved (other engines)")

/* A part of the memory, such as "weights: attention". */
typedef struct moert_memory_part {
    const char *kind, *name; /* field of the table above; name of the buffers */
    size_t bytes;
} moert_memory_part;
enum { MOERT_MEMORY_PARTS = 128 };

typedef struct moert_memory {
#define MOERT_MEMORY_FIELD(field, title, help) size_t field;
    MOERT_MEMORY_TABLE(MOERT_MEMORY_FIELD)
#undef MOERT_MEMORY_FIELD
    moert_memory_part part[MOERT_MEMORY_PARTS]; /* in descending order of bytes; without parts of
                                                   "reserved" */
    size_t parts;
} moert_memory;

/* M of rank `rank`: the rows of its layer with the most rows. */
size_t moert_memory_rows(const moert_memory_setting *setting, size_t rank);

/*
 * Estimates the memory of rank `rank`. Errors: ERROR_USAGE (sizes that a run would refuse),
 * ERROR_UNSUPPORTED and ERROR_FORMAT (moert_model_config_check_model).
 */
moert_status moert_memory_estimate(const moert_memory_setting *setting, size_t rank,
                                   moert_memory *memory);
