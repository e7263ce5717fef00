/*
 * The Mixture-of-Experts layer: router, dispatch, experts, combine, and their backward.
 *
 *   x[T,H] -> router -> index[T,K], weight[T,K] -> plan -> dispatch -> GEMM1 + GLU (times weight)
 *          -> GEMM2 -> combine -> y[T,H]
 *
 * A mesh arranges the R ranks of a context as EP x EDP. EP ranks, neighbours in the order of hosts
 * and then of ranks, share one set of experts; EDP such groups hold replicas. Tokens go to their
 * experts' owners within their EP group; weight gradients are summed over the replicas. The GLU
 * multiplies by the routing weight, so dispatch and combine are transposes of each other: backward
 * dispatches dy and combines dx.
 *
 * Unless a matrix's comment says otherwise, it is dense row-major float32 in device memory. T may
 * differ between ranks and be 0. Unless a call's comment says otherwise, the call is collective
 * over the mesh's context. Calls enqueue work without waiting until the work ends; buffers may be
 * reused in queue order.
 */
#ifndef MOERT_LAYER_H
#define MOERT_LAYER_H

#include <stdbool.h>
#include <stdint.h>

#include "moert/context.h"
#include "moert/formats.h"
#include "moert/glu.h"
#include "moert/recipe.h"
#include "moert/router.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moert_mesh moert_mesh;

/*
 * ep = ranks that share one set of experts; 0 = all. Errors: ERROR_USAGE (ep does not divide R, or
 * differs between ranks),
 * ERROR_UNSUPPORTED (the engine that MOERT_EXCHANGE names cannot work here), ERROR_MEMORY,
 * ERROR_COMM. `context` must outlive the mesh.
 */
MOERT_API moert_status moert_mesh_create(moert_context *context, size_t ep, moert_mesh **mesh);
/*
 * Like moert_mesh_create, but with exact replicas: on CPUs, results have the same bits as with EDP
 * 1 (moert_layer_place names the exceptions). Groups are consecutive ranks. A replica computes the
 * rows of its group's tokens, except that the replica of a preceding group may compute an expert's
 * first rows, at most 63 (127 if weight gradients have FP8 blocks). The weight gradient of an
 * expert is one sum, which passes from replica to replica. One replica gets the complete sum, and
 * sends the expert's weights to the other replicas.
 */
MOERT_API moert_status moert_mesh_create_exact(moert_context *context, size_t ep,
                                               moert_mesh **mesh);
/* Destroy the mesh's layers first. NULL is legal. */
MOERT_API void moert_mesh_destroy(moert_mesh *mesh);
/* The engine that moves rows: "local", "window", "node" or "staged". Not collective. */
MOERT_API const char *moert_mesh_engine(const moert_mesh *mesh);
/*
 * Checks that the results of all forwards and backwards so far are valid. If devices wait for each
 * other (MOERT_SYNC), the call waits for this rank's device. If a rank's device did not arrive in
 * time, the call returns ERROR_COMM, whose message names the rank. Without this call, the next
 * forward returns that error. Collective over the EP group.
 */
MOERT_API moert_status moert_mesh_settle(moert_mesh *mesh);

/*
 * The division of a rank's tokens into sequences, the leaves of the tree that sums the gradients of
 * replicated parameters. If the division does not depend on the number of ranks, results have the
 * same bits on any number of ranks.
 */
typedef struct moert_batch {
    size_t size;              /* sizeof(moert_batch) */
    size_t tokens;            /* T on this rank */
    size_t sequences;         /* sequences on this rank, in order; some may be empty */
    size_t first_sequence;    /* global index of this rank's first sequence; ascends with the
                                 rank */
    size_t total_sequences;   /* sequences of all ranks */
    const moert_buffer *ends; /* uint32 [sequences] cumulative ends, the last is T. Forward waits
                                 for the device, to check the ends */
    bool forward_only;        /* forward keeps less data, and backward of the resulting pass is an
                                 error */
    const moert_buffer *index, *weight; /* with external_routing: [T,K] int32 experts as in
                                           moert/exchange.h, and [T,K] routing weights */
    /* int32 [T], or NULL: tokens with a negative number are padding, routed to no expert. For
     * padding, y is the shared expert's result, or 0 without a shared expert, and the router gets
     * no gradient. */
    const moert_buffer *token;
    /* The dtype of x, y, and the backward's dy and dx. F32, or BF16 in a layer with
     * external_routing and dispatch BF16, but no shared expert. BF16 y and dx are rounded to
     * nearest even. */
    moert_dtype type;
    const moert_buffer *bf16; /* NULL, or [T,H] a copy of the float32 x rounded to bf16, which a
                                 bf16 dispatch then reads */
    /* The seed of stochastic rounding, the same on all ranks. The random bits of an element depend
     * on this seed, the expert, the row among the expert's rows on all ranks, and the column; in a
     * shared expert on the sequence's global index and the row in the sequence. So give each batch
     * another seed. */
    uint64_t draws;
    bool bf16_operands; /* the same on all ranks: a layer with a recipe rounds all operands of this
                           batch's GEMMs to bf16 instead, as for MOERT_PRECISION_BF16 */
} moert_batch;

#define MOERT_BATCH_INIT MOERT_INIT(moert_batch, batch_, )

typedef struct moert_layer moert_layer;

typedef struct moert_layer_options {
    size_t size;                /* sizeof(moert_layer_options) */
    size_t hidden;              /* H */
    size_t intermediate;        /* I */
    size_t shared_intermediate; /* I of a shared expert that computes every token; 0 = none */
    moert_router_options router;
    moert_glu_form glu;
    bool router_bias;          /* the router's logits have a bias */
    bool correction_bias;      /* a bias on the selection scores, without gradient */
    bool expert_biases;        /* both projections of the experts have biases */
    bool deferred_wgrad;       /* backward leaves the experts' weight gradients to
                                  moert_pass_wgrad */
    moert_precision precision; /* precision of the experts' GEMMs. The router's operands stay
                                  float32. On Hopper GPUs, unless `precision` is F32, the router
                                  splits each operand into a sum of bf16 values */
    moert_precision dense;     /* precision of the shared expert's GEMMs: F32 or BF16. A recipe in
                                  `precision` rounds their operands instead */
    moert_dispatch dispatch;
    moert_combine combine;
    bool external_routing;  /* the layer has no router: each batch brings the experts (index) and
                               weights of its slots. Only the fields experts and topk of `router`
                               are used */
    bool shared_gate;       /* a gate scales the shared expert's result: sigmoid(x SHARED_GATE^T) */
    size_t slots;           /* L: experts that each rank has room for, ceil(E / EP) to E; 0: the
                               number of moert_plan_experts for the rank */
    bool recompute_experts; /* the backward computes the first projection and the GLU of all
                               experts, also of the shared expert, again, so forward need not keep
                               their results. y and all gradients have the same bits as without this
                               option. Not with deferred_wgrad */
    moert_recipe recipe;    /* with precision MOERT_PRECISION_RECIPE */
} moert_layer_options;

#define MOERT_LAYER_OPTIONS_INIT                                                                   \
    MOERT_INIT(moert_layer_options, layer_,                                                        \
               MOERT_SET(layer_, router, MOERT_ROUTER_OPTIONS_INIT)                                \
                   MOERT_SET(layer_, glu, MOERT_GLU_SWIGLU))

/* Compares the options of all ranks. Errors, the same on all ranks: ERROR_USAGE (sizes, choices, K
 * > E, E < EP, ranks that differ in a field; the message names the field), ERROR_MEMORY. The mesh
 * must outlive the layer, and destroying the layer ends its passes. */
MOERT_API moert_status moert_layer_create(moert_mesh *mesh, const moert_layer_options *options,
                                          moert_layer **layer);
MOERT_API void moert_layer_destroy(moert_layer *layer);

/*
 * Moves experts: from now on slot s of rank r of the EP group holds expert number expert[r L + s],
 * or no expert if that number is MOERT_LAYER_NO_EXPERT. Each expert has exactly one slot. A new
 * layer has contiguous blocks of experts. The results of the layer do not depend on the placement.
 * The caller moves the optimizer states and the weights, which are [L, ...] in the order of the
 * slots. Requires the option `slots`, and that the layer has no pass. Collective over the mesh's
 * context. Errors, the same on all ranks: ERROR_USAGE, ERROR_UNSUPPORTED (too many clones),
 * ERROR_MEMORY.
 *
 * A slot may also hold a clone of expert e: MOERT_LAYER_CLONE | e. A rank holds expert e or one
 * clone of it at most. All ranks that hold expert e or a clone of it share its rows evenly. The
 * expert's own slot gets the whole gradient. On CPUs, the results have the same bits as without
 * clones, unless ranks sum results before sending (MOERT_PUSH=sum, MOERT_NODE_SUM=presum). The
 * layer copies an expert's weights to its clones; the caller need not set the clones' weights. With
 * clones, moert_layer_weights_changed is collective over the EP group, and every wgrad waits for
 * other ranks.
 */
#define MOERT_LAYER_NO_EXPERT UINT32_MAX
#define MOERT_LAYER_CLONE     0x80000000u
MOERT_API moert_status moert_layer_place(moert_layer *layer, const uint32_t *expert);
/* The expert in a slot of this rank; MOERT_LAYER_NO_EXPERT if the slot is empty or holds a clone.
 * Not collective. */
MOERT_API uint32_t moert_layer_expert(const moert_layer *layer, size_t slot);

/*
 * Sets initial weights: matrices are normally distributed with standard deviation `deviation`, and
 * biases are zero. Values depend on (seed, tensor, expert, element) only, and so not on the number
 * of ranks. Not collective. Errors: ERROR_MEMORY, ERROR_DEVICE.
 */
MOERT_API moert_status moert_layer_initialize(moert_layer *layer, uint64_t seed, double deviation);

/*
 * Call this function after writing weights by other means than moert_layer_initialize, in any
 * `precision`. The layer then renews its rounded or prepacked copies of the weights. The weights of
 * a new layer count as changed. Not collective, no errors.
 */
MOERT_API void moert_layer_weights_changed(moert_layer *layer);

/*
 * A pass is one forward with all that its backward needs. Any number of passes of a layer may exist
 * at once, and their backwards may come in any order. All ranks make the same calls in the same
 * order. The layer's next pass reuses the memory of a destroyed pass.
 */
typedef struct moert_pass moert_pass;

/*
 * Computes y = layer(x), and creates *pass for the backward. `pass` may be NULL: the batch is then
 * forward_only. The caller must not change x until backward is done; y may be x only if the batch
 * is forward_only. All ranks of an EP group return the same error. Errors:
 * ERROR_NUMERIC (non-finite scores; names the token), ERROR_USAGE (buffers, batch), ERROR_MEMORY,
 * ERROR_DEVICE, ERROR_COMM.
 */
MOERT_API moert_status moert_layer_forward(moert_layer *layer, const moert_batch *batch,
                                           const moert_buffer *x, moert_buffer *y,
                                           moert_pass **pass);
/* Ends a pass, with or without its backward. Enqueued work may still use the pass. The ranks do not
 * communicate. NULL is legal. */
MOERT_API void moert_pass_destroy(moert_pass *pass);

/* Inputs of backward other than dy. */
typedef struct moert_layer_losses {
    size_t size; /* sizeof(moert_layer_losses) */
    const moert_buffer
        *aux_gradient; /* [E] gradient of the auxiliary loss with respect to each routing score, or
                          NULL */
    float z_factor;    /* 2 * z-loss coefficient / tokens of the global batch */
    bool accumulate;   /* add to the gradients (further micro-batches) instead of replacing the
                          gradients */
    moert_buffer *weight_gradient; /* [T,K] gets the gradients of the routing weights, or NULL */
    bool aux_by_sequence; /* aux_gradient is [sequences of the batch, E], a row for each sequence */
    /* NULL, or bf16 buffers that get the gradients of W1 and W2, rounded to nearest even. The
     * contents of the layer's own float32 gradients are then unspecified. The bf16 buffers must
     * stay valid until the pass's wgrad is done. The buffers must be NULL with `accumulate`, and if
     * experts have replicas or clones. */
    moert_buffer *w1_gradient, *w2_gradient;
    const moert_buffer *dy_bf16; /* NULL, or [T,H] a copy of the float32 dy rounded to bf16 */
} moert_layer_losses;

#define MOERT_LAYER_LOSSES_INIT MOERT_INIT(moert_layer_losses, losses_, )

/*
 * Computes dx, the gradient of the pass's x, from dy. Also computes the gradients of this rank's
 * experts (unless deferred), and this rank's partial sums of the replicated tensors' gradients.
 * losses may be NULL. dy must not change until backward (and wgrad) is done. dx must not overlap x,
 * nor dy if the layer has a shared expert. Call moert_layer_reduce between two backwards of a
 * layer, even if the second backward does not accumulate. Errors: ERROR_USAGE (no forward, a
 * reduction is missing, buffers), and those of forward. After ERROR_USAGE the pass may be used
 * again.
 */
MOERT_API moert_status moert_pass_backward(moert_pass *pass, const moert_buffer *dy,
                                           const moert_layer_losses *losses, moert_buffer *dx);
/*
 * For layers with deferred_wgrad: computes the experts' weight gradients of a pass after its
 * backward. Call it once for each pass, in the order of the passes' backwards. Not collective.
 * Errors: ERROR_USAGE (no backward, a second time, another order, not deferred), ERROR_DEVICE.
 */
MOERT_API moert_status moert_pass_wgrad(moert_pass *pass);
/*
 * Completes gradients after each micro-batch's backward. Sums the gradients of replicated tensors
 * over all ranks, and adds the old values if the backward's `accumulate` was set. With `last`, for
 * the last micro-batch, the call also sums the experts' gradients over their replicas. Errors:
 * ERROR_USAGE (no backward since the last reduction; `last` before a deferred wgrad), ERROR_MEMORY,
 * ERROR_DEVICE, ERROR_COMM.
 */
MOERT_API moert_status moert_layer_reduce(moert_layer *layer, bool last);

/*
 * X(NAME): the tensors of a layer. Tensors with dimension L hold the experts [first, first + L) of
 * this rank; all other tensors are replicated on all ranks. W1 holds gate rows then up rows, or
 * alternating gate and up rows when the GLU is interleaved.
 */
#define MOERT_LAYER_TENSOR_TABLE(X)                                                                \
    X(ROUTER)      /* [E,H] */                                                                     \
    X(ROUTER_BIAS) /* [E] */                                                                       \
    X(SHARED_W1)   /* [2 shared_intermediate, H] */                                                \
    X(SHARED_W2)   /* [H, shared_intermediate] */                                                  \
    X(W1)          /* [L,2I,H] */                                                                  \
    X(B1)          /* [L,2I] */                                                                    \
    X(W2)          /* [L,H,I] */                                                                   \
    X(B2)          /* [L,H] */                                                                     \
    X(CORRECTION)  /* [E], no gradient */                                                          \
    X(SHARED_GATE) /* [H] */

typedef enum moert_layer_tensor {
#define MOERT_LAYER_TENSOR_ENUM(name) MOERT_LAYER_##name,
    MOERT_LAYER_TENSOR_TABLE(MOERT_LAYER_TENSOR_ENUM)
#undef MOERT_LAYER_TENSOR_ENUM
        MOERT_LAYER_TENSORS
} moert_layer_tensor;

/*
 * Weights and gradients, owned by the layer; NULL if the layer is NULL or has no such tensor or
 * gradient.
 * Not collective. After writing to weights, call moert_layer_weights_changed.
 */
MOERT_API moert_buffer *moert_layer_weight(moert_layer *layer, moert_layer_tensor which);
MOERT_API moert_buffer *moert_layer_gradient(moert_layer *layer, moert_layer_tensor which);
/*
 * Makes the layer use the caller's buffers for a tensor from now on: `weight`, `gradient`, or both.
 * A NULL argument changes nothing. The buffers have the shapes of MOERT_LAYER_TENSOR_TABLE; the
 * layer keeps a reference to their memory. The contents of `weight` become the layer's weight. A
 * backward without `accumulate` replaces the gradient; a backward with `accumulate` adds to the
 * content of `gradient`. The gradient is complete after the last moert_layer_reduce. The tensors
 * are of three kinds: W1 and B1, W2 and B2, and all replicated tensors. Once all tensors of a kind
 * are bound, the layer frees its own memory of their weights. The layer also frees its own memory
 * of experts' gradients if the experts have no replicas. Call moert_layer_bind between steps. Not
 * collective, but all ranks must bind the same tensors. Errors: ERROR_USAGE (no such tensor, a
 * buffer is too small or of another device), ERROR_DEVICE, ERROR_MEMORY.
 */
MOERT_API moert_status moert_layer_bind(moert_layer *layer, moert_layer_tensor which,
                                        moert_buffer *weight, moert_buffer *gradient);
MOERT_API size_t moert_layer_first_expert(const moert_layer *layer);
MOERT_API size_t moert_layer_local_experts(const moert_layer *layer);

/*
 * X(NAME): the results of a pass's router. The pass owns the buffers, which are valid until the
 * pass ends.
 */
#define MOERT_PASS_VIEW_TABLE(X)                                                                   \
    X(INDEX)  /* int32 [T,K], best expert first */                                                 \
    X(WEIGHT) /* [T,K] */                                                                          \
    X(LOGITS) /* [T,E] */                                                                          \
    X(SCORES) /* [T,E]: softmax over all experts, or a score per logit */                          \
    X(LSE)    /* [T]: log-sum-exp of the logits */

typedef enum moert_pass_view {
#define MOERT_PASS_VIEW_ENUM(name) MOERT_PASS_##name,
    MOERT_PASS_VIEW_TABLE(MOERT_PASS_VIEW_ENUM)
#undef MOERT_PASS_VIEW_ENUM
        MOERT_PASS_VIEWS
} moert_pass_view;

/* Returns NULL with external routing, for an unknown view, or if `pass` is NULL. The buffer may be
 * larger than the shape in MOERT_PASS_VIEW_TABLE. Not collective. */
MOERT_API const moert_buffer *moert_pass_get(const moert_pass *pass, moert_pass_view which);

/* The losses of a pass's router over all tokens of all ranks, and the gradient that the pass's
 * backward needs. */
typedef struct moert_pass_losses {
    size_t size;                /* sizeof(moert_pass_losses) */
    double aux_coefficient;     /* given: multiplies aux_gradient */
    moert_buffer *aux_gradient; /* [E] or NULL; gets the gradient of aux with respect to each
                                   routing score, for moert_layer_losses */
    double aux, z; /* results, without coefficients. aux = E / (K T^2) * sum over e of slots_e *
                                   (sum of the scores of e), for T tokens; z = mean of lse^2 */
} moert_pass_losses;

#define MOERT_PASS_LOSSES_INIT MOERT_INIT(moert_pass_losses, losses_, )

/* Collective over the mesh's context; waits for the device. The losses have the same bits on any
 * number of ranks. Errors, the same on all ranks: ERROR_USAGE (external routing, a buffer),
 * ERROR_MEMORY, ERROR_DEVICE, ERROR_COMM. */
MOERT_API moert_status moert_pass_report(moert_pass *pass, moert_pass_losses *losses);

/* Slots of each expert [E], over all ranks of this rank's EP group. Not collective. */
MOERT_API const uint64_t *moert_pass_expert_counts(const moert_pass *pass);
/* Slots of each rank's tokens for each expert [ranks,E], for the ranks of this rank's EP group. Not
 * collective. */
MOERT_API const uint64_t *moert_pass_rank_counts(const moert_pass *pass);

#ifdef __cplusplus
}
#endif
#endif
