/* The layer's struct and functions that its files share. */
#pragma once

#include "layer/block.h"
#include "layer/choices.h"
#include "layer/dense_glu.h"
#include "layer/mesh.h"
#include "layer/probe.h"
#include "layer/sizes.h"
#include "nn/bias.h"
#include "router/router.h"

/* Indices of a layer's blocks, and of the tensors in each block (in the order of
 * moert_layer_tensor). */
enum { BLOCK_DENSE, BLOCK_EXPERT_IN, BLOCK_EXPERT_OUT, BLOCKS = MOERT_LAYER_BLOCKS };
enum {
    DENSE_ROUTER,
    DENSE_ROUTER_BIAS,
    DENSE_CORRECTION, /* the correction bias of the scores; its gradient is always 0 */
    DENSE_SHARED_W1,
    DENSE_SHARED_W2,
    DENSE_SHARED_GATE,
    DENSE_TENSORS
};
enum { EXPERT_WEIGHT, EXPERT_BIAS, EXPERT_TENSORS };

/* The passes of a layer, or of several layers that share the list. A later pass reuses the memory
 * of a pass that is not in use. */
typedef struct moert_pass_list {
    moert_pass **pass; /* [count] */
    size_t count, room;
    size_t layers; /* number of layers that share the list */
} moert_pass_list;

/* Whether clones have the current weights of their experts, old ones, or new ones in flight. */
typedef enum clones_state { CLONES_OLD, CLONES_SENT, CLONES_CURRENT } clones_state;

struct moert_layer {
    moert_mesh *mesh;
    moert_layer_options options;
    moert_layer_choices choices;
    moert_expert_map *placement;
    size_t first_expert, local_experts; /* first expert of this rank in the contiguous placement;
                                           number of expert slots of this rank (L) */
    moert_block *block[BLOCKS];
    moert_rounded rounded[BLOCKS]; /* of the experts' weights */
    bool weights_changed;          /* the weights changed since `rounded` was computed */
    clones_state clones;
    moert_probe *probe; /* NULL: none */

    moert_pass_list *passes;
    moert_batch batch; /* the batch of the last backward */
    bool unreduced;    /* the last backward's gradients have not been reduced */
    bool trusts_batches;
    bool balanced;      /* moert_layer_balance_routing */
    uint64_t backwards; /* backwards so far */
    bool lost_wgrad;    /* a pass ended before its deferred wgrad */
};

/* A forward, and the data that its backward needs. */
struct moert_pass {
    moert_layer *layer; /* the layer that uses the pass, or used it last */
    enum {
        PASS_FREE,       /* the pass is not in use; a later pass may reuse its memory */
        PASS_FORWARD,    /* the forward runs, or has run and no backward will follow */
        PASS_READY,      /* the pass is ready for its backward */
        PASS_BACKWARD,   /* its backward runs */
        PASS_FAILED,     /* the pass's backward has failed */
        PASS_OWES_WGRAD, /* the pass's deferred wgrad has not run */
        PASS_DONE
    } state;

    moert_batch batch;
    const moert_buffer *input; /* the caller's x[T,H] */
    moert_buffer *logits;      /* [T,E] */
    moert_routing routing;
    const moert_buffer *index, *weight; /* [T,K] experts and weights of the slots, in buffers of
                                           `routing` or of the caller */
    moert_exchange_plan *plan;
    moert_row_peak peak;       /* peak over all plans of this pass so far */
    moert_window *x, *prob;    /* received rows in the wire's encoding, and routing weights */
    moert_buffer *v, *h;       /* v [M,2I] and h [M,I], in the dtypes of moert_layer_choices */
    moert_buffer *gate_logits; /* [T] logits of the shared expert's gate */
    moert_routing gate;        /* gate.weight[T] scales the shared expert's result */
    moert_quantized fp8[2];    /* rows x and y of the GEMM that was prepared last (layer/fp8.h) */
    moert_buffer *shared_v, *shared_h; /* shared_v [T,2I] in the dtype of moert_operand_between,
                                          shared_h [T,I] in the dtype of operands */

    /* fields of the call in progress */
    moert_status status;         /* first failure of the call */
    const moert_buffer *packed;  /* x or dy in the wire's encoding */
    moert_transfer back;         /* transfer of the experts' results */
    moert_buffer *result;        /* the caller's y or dx [T,H] */
    moert_buffer *shared_result; /* [T,H] result of the shared expert, in scratch */

    /* fields of the backward, kept for a deferred wgrad */
    const moert_buffer *gradient; /* the caller's dy[T,H] */
    moert_layer_losses losses;
    moert_window *dy;      /* if wgrad is deferred, each pass has its own window for dy */
    moert_buffer *dv;      /* [M,2I]: v, or scratch */
    moert_buffer *dlogits; /* [T,E], in scratch */
    uint64_t backward;     /* index of the pass's backward among the layer's backwards */
};

/* Stores `now` in *status unless *status is already a failure. */
static inline void moert_note(moert_status *status, moert_status now) {
    *status = *status != MOERT_OK ? *status : now;
}

/*
 * A stage of a forward or backward. The kind of the stage says whether the stage runs after a
 * failure. In a local stage ranks do not wait for each other; in the other stages they may.
 */
typedef enum moert_stage_kind {
    MOERT_STAGE_LOCAL,  /* skipped after a failure */
    MOERT_STAGE_JOINT,  /* a rank that has failed communicates without computing; once the whole
                           EP group has failed, all its ranks skip this stage */
    MOERT_STAGE_AGREED, /* a joint stage that fails on all ranks of the EP group alike, except after
                           its last synchronisation (exchange.h) */
    MOERT_STAGE_ALWAYS  /* runs after any failure */
} moert_stage_kind;
typedef struct moert_stage {
    moert_status (*run)(moert_pass *pass);
    moert_stage_kind kind;
} moert_stage;
/* Runs the stages in order; returns pass->status. Reports a failure of the EP group to the replicas
 * of its experts. */
moert_status moert_pass_run(moert_pass *pass, const moert_stage *stages, size_t count);

/* *pass = the first pass of the layer's list that is not in use, with its windows. Collective over
 * the mesh's context if all passes are in use. */
moert_status moert_pass_take(moert_layer *layer, moert_pass **pass);
/* Removes the layer from its list of passes. The last layer to leave frees the passes. */
void moert_pass_leave_list(moert_layer *layer);

/* The received rows, grouped by expert, with all groups selected. */
moert_row_groups moert_pass_groups(const moert_pass *pass);
/* Whether v is not needed after the GLU. */
bool moert_pass_drops_v(const moert_pass *pass);
/* The descriptor of the shared expert. */
moert_dense_glu moert_pass_shared_expert(const moert_pass *pass);
/* The shared expert's gate, as a router of one expert: its weight is the sigmoid of the logit. */
moert_router_options moert_pass_gate(void);
/* The GEMM descriptor of a router of `experts` experts. */
moert_gemm moert_pass_router_gemm(const moert_pass *pass, size_t experts, const moert_buffer *x,
                                  moert_buffer *logits);

/* Calls `work` for the experts and rows of each chunk, between its dispatch and its combine. After
 * a failure moert_pass_each_chunk no longer calls `work`, but still receives and sends the
 * remaining chunks. */
typedef moert_status moert_chunk_work(moert_pass *pass, const moert_row_groups *part);
moert_status moert_pass_each_chunk(moert_pass *pass, moert_chunk_work *work);

/* Whether the experts' GEMMs have FP8 operands (layer/fp8.h): not if the batch asks for bf16, or if
 * experts have clones, whose wgrads are computed expert by expert. */
bool moert_pass_fp8(const moert_pass *pass);
/* The sizes of the pass's buffers; a pass without a plan has no rows. */
moert_layer_sizes moert_pass_sizes(const moert_pass *pass);
/* *buffer = the scratch buffer for `use`, reserved for the floats that this use needs. */
moert_status moert_pass_scratch(const moert_pass *pass, moert_layer_use use, moert_buffer **buffer);
/* Reserves the buffers of v and h of the experts: the pass's own, or scratch buffers if the
 * backward computes v and h again. */
moert_status moert_pass_hidden(moert_pass *pass);

/* h = prob * glu(x W1^T): of the experts' rows in `part`, and of the shared expert. */
moert_status moert_pass_activate(moert_pass *pass, const moert_row_groups *part);
moert_status moert_pass_activate_shared(moert_pass *pass);

/* ---- probes (layer/probe.h) ---- */

/* Rows at a probe point: `bytes` of each row are hashed; rows are `stride` floats apart. The
 * functions below do nothing if the layer has no probe. */
typedef struct moert_probe_rows {
    moert_buffer *rows;
    size_t stride, bytes;
} moert_probe_rows;
moert_status moert_probe_take(const moert_pass *pass, moert_probe_point point,
                              const moert_probe_rows *rows, const moert_row_groups *part);
moert_status moert_probe_take_window(const moert_pass *pass, moert_probe_point point,
                                     const moert_window *window, size_t bytes,
                                     const moert_row_groups *part);
/* Takes the digests of a GEMM's results, which the combine then sends. */
moert_status moert_probe_take_results(const moert_pass *pass, moert_probe_point point,
                                      const moert_matrix *results, const moert_row_groups *part);
/* After the last chunk of the forward or the backward: hashes the digests. Waits for the device. */
moert_status moert_probe_close(const moert_pass *pass, bool forward);
