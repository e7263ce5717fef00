/*
 * The EP x EDP arrangement of the ranks, and the objects that its layers share: the exchange,
 * windows that no layer keeps, and scratch buffers.
 */
#pragma once

#include "context/context.h"
#include "exchange/exchange.h"
#include "layer/block.h"
#include "moert/layer.h"

/* Scratch buffers, valid until the next operation that uses the same one. */
typedef enum moert_scratch {
    MOERT_SCRATCH_PARTIAL,   /* partial gradients per sequence */
    MOERT_SCRATCH_HIDDEN,    /* [M or T, I] */
    MOERT_SCRATCH_V,         /* [M or T, 2I] and */
    MOERT_SCRATCH_H,         /* [M or T, I] of layers with recompute_experts */
    MOERT_SCRATCH_SLOTS,     /* [T,K] */
    MOERT_SCRATCH_LOGITS,    /* [T,E] */
    MOERT_SCRATCH_TOKENS,    /* [T,H] */
    MOERT_SCRATCH_DENSE,     /* [M,H] rows of a window, as floats; with its gaps for results */
    MOERT_SCRATCH_WIRE,      /* payloads that quantizers write; rows in the wire's representation */
    MOERT_SCRATCH_SCALES,    /* scales that quantizers write */
    MOERT_SCRATCH_GLOBAL,    /* [L] global scales */
    MOERT_SCRATCH_AMAX,      /* [L] */
    MOERT_SCRATCH_ENDS,      /* uint32 [L] ends of the experts' rows in a weight */
    MOERT_SCRATCH_ROUNDED_X, /* operand x of a GEMM, rounded */
    MOERT_SCRATCH_ROUNDED_Y, /* operand y of a GEMM, rounded; results rounded for the wire */
    MOERT_SCRATCHES
} moert_scratch;

/* Windows whose contents no layer needs after the combine of a pass. */
typedef enum moert_shared_window {
    MOERT_WINDOW_OUT,   /* results of the experts, or gradients of their inputs */
    MOERT_WINDOW_BF16,  /* rows of MOERT_WINDOW_OUT as bf16; its width counts bf16 values */
    MOERT_WINDOW_DY,    /* gradients of the experts' results */
    MOERT_WINDOW_DPROB, /* gradients of the routing weights, width 1 */
    MOERT_WINDOW_ROUTE, /* rows of a route, then slots, and what travels back with slots */
    MOERT_WINDOW_ROUTE_BF16,
    MOERT_WINDOW_ROUTE_SLOTS,
    MOERT_WINDOW_ROUTE_BACK,
    MOERT_SHARED_WINDOWS
} moert_shared_window;

/* A rank's message in the gather of an amax (layer/rounding.h). */
typedef struct moert_amax_report {
    uint32_t status; /* the rank's moert_status so far */
    float amax;
} moert_amax_report;

struct moert_mesh {
    moert_context *context;
    moert_device *device;
    moert_comm *world;    /* the context's */
    moert_comm *experts;  /* the EP ranks of this rank's group; with exact replicas all ranks */
    moert_comm *replicas; /* the EDP ranks with the same experts; with exact ones this rank alone */
    moert_holders everyone, owners; /* of replicated blocks, and of the experts' blocks */
    size_t exact;                   /* exact replicas among `experts`; 1: there are none */
    moert_exchange *exchange;
    moert_window *windows[MOERT_SHARED_WINDOWS];
    size_t window_width[MOERT_SHARED_WINDOWS];
    moert_buffer *scratch[MOERT_SCRATCHES];
    moert_gemm_more splitting;  /* of GEMMs whose split operands are in MOERT_SCRATCH_ROUNDED_X */
    moert_amax_report *reports; /* [R] */
    struct moert_handover *handover; /* layer/handover.h; NULL until a layer has clones */
    moert_span *spans;         /* [R] sequences of the ranks, set by moert_mesh_gather_spans */
    moert_span *replica_spans; /* [EDP] one leaf for each replica */
};

/* The kinds of replicas of the experts: moert_mesh_create, and moert_mesh_create_exact. */
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

/* Where a rank is in a mesh. */
typedef struct moert_mesh_place {
    size_t group;   /* its EP group: its position / EP */
    size_t member;  /* its index in the group, and so the index of its experts */
    size_t replica; /* its index among the ranks with the same experts */
} moert_mesh_place;

/* places[R] of all ranks, in a mesh with groups of `ep`. */
void moert_mesh_places(const moert_comm *world, size_t ep, moert_mesh_place *places);

/* Fills mesh->spans. ERROR_MISMATCH on all ranks unless the spans together are the sequences of one
 * batch. Collective. */
moert_status moert_mesh_gather_spans(moert_mesh *mesh, const moert_batch *batch);

/* A scratch buffer of at least `floats`. */
moert_status moert_mesh_scratch(moert_mesh *mesh, moert_scratch which, size_t floats,
                                moert_buffer **buffer);

/* The shared window with rows of `width` floats (those of bf16: bf16 values). Collective when
 * the width changes. */
moert_status moert_mesh_window(moert_mesh *mesh, moert_shared_window which, size_t width,
                               moert_window **window);
