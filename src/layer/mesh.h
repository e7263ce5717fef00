/*
 * The EP x EDP arrangement of the ranks, and the objects that its layers share: the exchange,
 * windows that no layer keeps, and scratch buffers.
 */
#pragma once

#include "context/context.h"
#include "exchange/exchange.h"
#include "layer/block.h"
#include "moert/layer.h"

/* X(buffer, name): scratch buffers, valid until the next operation that uses the same buffer. */
#define MOERT_SCRATCH_TABLE(X)                                                                     \
    X(PARTIAL, "gradients per sequence")                                                           \
    X(HIDDEN, "gradients of h")                   /* [M or T, I] */                                \
    X(V, "v that is computed again")              /* [M or T, 2I], only with recompute_experts */  \
    X(H, "h that is computed again")              /* [M or T, I] */                                \
    X(SLOTS, "gradients of routing weights")      /* [T,K] */                                      \
    X(LOGITS, "gradients of the routers' logits") /* [T,E] */                                      \
    X(TOKENS, "results of shared experts")        /* [T,H] */                                      \
    X(DENSE, "received rows in float32")          /* [M,H]; also results in a window's layout */   \
    X(WIRE, "rows for the wire")                  /* quantizers also write payloads here */        \
    X(ENDS, "ends of experts' weights")           /* uint32 [L] */                                 \
    X(DOWN_IN, "gradients of v rounded down columns")                                              \
    X(DOWN_OUT, "gradients of y rounded down columns")                                             \
    /* FP8 payloads are in the buffers of rounded operands */                                      \
    X(SCALES_X, "scales of FP8 operands x")                                                        \
    X(SCALES_Y, "scales of FP8 operands y")                                                        \
    X(SCALES_DOWN_IN, "scales of FP8 gradients of v down columns")                                 \
    X(SCALES_DOWN_OUT, "scales of FP8 gradients of y down columns")                                \
    X(PADDED_ENDS, "ends of experts' padded rows") /* uint32 [L] */                                \
    X(ATTENTION_X, "operands x of attention rounded by a recipe")                                  \
    X(ATTENTION_Y, "operands y of attention rounded by a recipe")                                  \
    X(ROUNDED_X, "rounded operands x of GEMMs")                                                    \
    X(ROUNDED_Y, "rounded operands y of GEMMs") /* conversions for the wire also write here */

typedef enum moert_scratch {
#define MOERT_SCRATCH_INDEX(buffer, name) MOERT_SCRATCH_##buffer,
    MOERT_SCRATCH_TABLE(MOERT_SCRATCH_INDEX)
#undef MOERT_SCRATCH_INDEX
        MOERT_SCRATCHES
} moert_scratch;

/* Raises floats[which] to at least `need`. */
static inline void moert_scratch_need(size_t floats[MOERT_SCRATCHES], moert_scratch which,
                                      size_t need) {
    floats[which] = floats[which] > need ? floats[which] : need;
}

/* Windows whose contents no layer needs after the combine of a pass. */
typedef enum moert_shared_window {
    MOERT_WINDOW_OUT,   /* results of the experts, or gradients of their inputs */
    MOERT_WINDOW_BF16,  /* rows of MOERT_WINDOW_OUT as bf16; its width counts bf16 values */
    MOERT_WINDOW_DY,    /* gradients of the experts' results */
    MOERT_WINDOW_DPROB, /* gradients of the routing weights, width 1 */
    MOERT_WINDOW_ROUTE, /* rows of a route; the next three: rows in bf16, slots, and values that
                           return with slots */
    MOERT_WINDOW_ROUTE_BF16,
    MOERT_WINDOW_ROUTE_SLOTS,
    MOERT_WINDOW_ROUTE_BACK,
    MOERT_SHARED_WINDOWS
} moert_shared_window;

struct moert_mesh {
    moert_context *context;
    moert_device *device;
    moert_comm *world;    /* all ranks of the context */
    moert_comm *experts;  /* ranks of this rank's EP group; with exact replicas, all ranks */
    moert_comm *replicas; /* EDP ranks with the same experts; with exact replicas, this rank
                             alone */
    moert_holders everyone, owners; /* ranks that hold replicated blocks; ranks that hold the same
                                       experts' blocks */
    size_t exact;                   /* number of exact replicas of an expert among `experts`; 1:
                                       none */
    moert_exchange *exchange;
    moert_window *windows[MOERT_SHARED_WINDOWS];
    size_t window_width[MOERT_SHARED_WINDOWS];
    moert_buffer *scratch[MOERT_SCRATCHES];
    moert_gemm_more splitting;       /* options of GEMMs whose split operands are in
                                        MOERT_SCRATCH_ROUNDED_X */
    struct moert_handover *handover; /* layer/handover.h; NULL until a layer has clones */
    moert_span *spans;         /* [R] sequences of the ranks, set by moert_mesh_gather_spans */
    moert_span *replica_spans; /* [EDP] spans for sums over replicas, one leaf for each replica */
};

/* The kinds of replicas of the experts: moert_mesh_create makes summed replicas, and
 * moert_mesh_create_exact exact replicas. */
#define MOERT_REPLICA_WORDS "summed|exact"
enum { MOERT_REPLICAS_SUMMED, MOERT_REPLICAS_EXACT };

/* *group = the number of ranks that share one set of experts: `ep`, or all `ranks` if it is 0.
 * ERROR_USAGE as for moert_mesh_create. */
moert_status moert_mesh_group(size_t ranks, size_t ep, size_t *group);

/*
 * A rank's index when the ranks are ordered by host, then by rank. Groups are consecutive ranks of
 * this order. So the ranks of one host form groups together, however the launcher places them.
 * Within a group the order is that of the ranks, and so of their tokens.
 */
size_t moert_mesh_position(const moert_comm *world, size_t rank);

/* Blocks that are created on this mesh from now on have no gradients: a model for forwards only. */
void moert_mesh_forward_only(moert_mesh *mesh);

/* Where a rank is in a mesh. */
typedef struct moert_mesh_place {
    size_t group;   /* the rank's EP group: moert_mesh_position / EP */
    size_t member;  /* the rank's index in the group, which selects its experts */
    size_t replica; /* the rank's index among the ranks with the same experts */
} moert_mesh_place;

/* places[R] = the places of all ranks in a mesh with groups of `ep` ranks. */
void moert_mesh_places(const moert_comm *world, size_t ep, moert_mesh_place *places);

/* Fills mesh->spans. ERROR_MISMATCH on all ranks unless the spans together are the sequences of one
 * batch. Collective. */
moert_status moert_mesh_gather_spans(moert_mesh *mesh, const moert_batch *batch);

/* A scratch buffer of at least `floats`. */
moert_status moert_mesh_scratch(moert_mesh *mesh, moert_scratch which, size_t floats,
                                moert_buffer **buffer);

/* The shared window with rows of `width` floats; in the two BF16 windows, of `width` bf16 values.
 * Collective when
 * the width changes. */
moert_status moert_mesh_window(moert_mesh *mesh, moert_shared_window which, size_t width,
                               moert_window **window);
