/*
 * An audit of a step: ranks repeat each other's work and compare the results bit by bit.
 *
 * During an audit, forward and backward store hashes of their results. The audit calls `check`
 * after the backward of each layer, and last for the tensors outside of the layers. `check` then
 * calls moert_audit_repeat, which computes that layer or those tensors again, on other ranks.
 * Another rank repeats attention, a dense MLP, the embedding and the head for a rank's tokens. The
 * experts of a rank are repeated by a rank of the same EP group. All results must be bit-identical,
 * because they do not depend on the rank that computes them. The second run of a part reads the
 * same inputs as the first run. So results differ only in the part where a wrong bit arises.
 *
 * A part's results stay in memory until another part reads them. At sites of kind RESTS, a rank
 * compares two hashes of values that an earlier part left in memory: the hash when the values were
 * computed, and the hash when the values are read.
 *
 * The ranks whose devices have the same name and driver form a ring. A rank's work is repeated by
 * the rank `distance` places after it in the ring, or by itself if it is alone.
 */
#pragma once

#include "layer/probe.h"
#include "model/model.h"

/* Which rank repeats the work of a site. */
typedef enum moert_audit_class {
    MOERT_AUDIT_OWN,      /* the same rank */
    MOERT_AUDIT_TOKENS,   /* repeated by a rank of the same kind */
    MOERT_AUDIT_EXPERTS,  /* repeated by a rank of the same kind and EP group that owns experts */
    MOERT_AUDIT_EVERYONE, /* repeated by any rank: the values are the same on all ranks */
    MOERT_AUDIT_REPLICAS, /* repeated by a rank with the same experts */
    MOERT_AUDIT_CLASSES
} moert_audit_class;

/* Where the hashed values come from. */
typedef enum moert_audit_kind {
    MOERT_AUDIT_COMPUTES, /* computed by a rank from inputs with equal hashes */
    MOERT_AUDIT_TRAVELS,  /* received from other ranks: a sender or the network may also be wrong */
    MOERT_AUDIT_RESTS,    /* left in the memory of this rank by an earlier part */
} moert_audit_kind;

/*
 * X(NAME, name, part, class, kind, description): the sites, which are the values that an audit
 * hashes. A part's sites come in the order in which they are computed, after those of kind RESTS.
 * Sites of experts come in the order of MOERT_PROBE_TABLE. In a layer with a dense MLP, all sites
 * of kind COMPUTES are of class TOKENS.
 */
#define MOERT_AUDIT_TABLE(X)                                                                       \
    X(INPUT, input, LAYER, OWN, RESTS, "the layer's input")                                        \
    X(RESIDUAL, residual, LAYER, OWN, RESTS, "the results of attention")                           \
    X(D_RESULT, d_result, LAYER, OWN, RESTS, "the gradients of the layer's results")               \
    X(ADDEND, addend, LAYER, EXPERTS, RESTS, "the gradients of earlier micro-batches")             \
    X(AUX, aux, LAYER, EVERYONE, COMPUTES, "the gradients of the auxiliary loss")                  \
    X(MIDDLE, attention, LAYER, TOKENS, COMPUTES, "attention")                                     \
    X(ROUTE, route, LAYER, OWN, COMPUTES, "the router's choice of experts")                        \
    X(ROUTER_LOSS, router_loss, LAYER, OWN, COMPUTES, "what the router's losses read")             \
    X(ROWS, rows, LAYER, EXPERTS, TRAVELS, "the rows that were dispatched to it")                  \
    X(PROB, prob, LAYER, EXPERTS, TRAVELS, "the routing weights that were dispatched to it")       \
    X(Y, y, LAYER, EXPERTS, COMPUTES, "its results")                                               \
    X(COMBINED, combined, LAYER, OWN, TRAVELS, "the combined results of the experts")              \
    X(OUT, out, LAYER, OWN, COMPUTES, "the results of the layer")                                  \
    X(DY, dy, LAYER, EXPERTS, TRAVELS, "the gradients of its results that were dispatched to it")  \
    X(DX, dx, LAYER, EXPERTS, COMPUTES, "the gradients of its rows")                               \
    X(DPROB, dprob, LAYER, EXPERTS, COMPUTES, "the gradients of its routing weights")              \
    X(EXPERT_GRADIENT, expert_gradient, LAYER, EXPERTS, COMPUTES, "the gradients of its weights")  \
    X(D_COMBINED, d_combined, LAYER, OWN, TRAVELS, "the combined gradients of the experts' rows")  \
    X(MLP_GRADIENT, mlp_gradient, LAYER, OWN, COMPUTES,                                            \
      "the gradients of the weights that all tokens use in the MLP")                               \
    X(NORM_GRADIENT, norm_gradient, LAYER, OWN, COMPUTES, "the gradient of the second norm")       \
    X(D_MIDDLE, d_middle, LAYER, OWN, COMPUTES, "the gradients of the MLP's inputs")               \
    X(D_INPUT, d_input, LAYER, TOKENS, COMPUTES, "the gradients of the layer's inputs")            \
    X(ATTENTION_GRADIENT, attention_gradient, LAYER, TOKENS, COMPUTES,                             \
      "the gradients of attention's weights")                                                      \
    X(LAST, last, OUTSIDE, OWN, RESTS, "the results of the last layer")                            \
    X(D_EMBEDDED, d_embedded, OUTSIDE, OWN, RESTS, "the gradients of the embeddings")              \
    X(EMBEDDED, embedded, OUTSIDE, TOKENS, COMPUTES, "the embeddings")                             \
    X(NORMED, normed, OUTSIDE, TOKENS, COMPUTES, "the results of the last norm")                   \
    X(TOKEN_LOSS, token_loss, OUTSIDE, TOKENS, COMPUTES, "the losses of the tokens")               \
    X(D_NORMED, d_normed, OUTSIDE, TOKENS, COMPUTES, "the gradients of the head's inputs")         \
    X(D_HEAD, d_head, OUTSIDE, TOKENS, COMPUTES, "the gradients of the last norm's inputs")        \
    X(OUTER_GRADIENT, outer_gradient, OUTSIDE, TOKENS, COMPUTES,                                   \
      "the gradients of embedding, head and last norm")

/* The parts of a model that are repeated one by one. */
typedef enum moert_audit_part { MOERT_AUDIT_LAYER, MOERT_AUDIT_OUTSIDE } moert_audit_part;

typedef enum moert_audit_site {
#define MOERT_AUDIT_SITE(NAME, ...) MOERT_AUDIT_##NAME,
    MOERT_AUDIT_TABLE(MOERT_AUDIT_SITE)
#undef MOERT_AUDIT_SITE
        MOERT_AUDIT_SITES
} moert_audit_site;

typedef struct moert_audit moert_audit;

/* Allocates a second copy of a layer and of the tensors outside of the layers, and a second run on
 * this copy. `run` must outlive the audit. Collective; all ranks return the same status. Errors:
 * ERROR_MEMORY, ERROR_DEVICE. */
moert_status moert_audit_create(moert_run *run, moert_audit **audit);
void moert_audit_destroy(moert_audit *audit); /* Collective. NULL is legal. */

/* A wrong bit that a test plants in the result of a site on this rank. Sites outside of the layers
 * ignore `layer`. */
typedef struct moert_audit_plant {
    moert_audit_site site;
    size_t layer;
    moert_plant plant;
} moert_audit_plant;

/* When `check` is called for a part. COMPUTED: the part's backward is complete, so that
 * moert_audit_repeat may follow. SUMMED: the gradients of the part are summed over the ranks, so
 * that moert_audit_repeat_sums may follow. */
typedef enum moert_audit_stage { MOERT_AUDIT_COMPUTED, MOERT_AUDIT_SUMMED } moert_audit_stage;
/* Compares the bits of a part. Collective. */
typedef moert_status moert_audit_check(void *context, moert_audit_stage stage);
/* begin: the next forward, loss and backward store hashes. Forward, loss and backward call `check`
 * for each part, unless `check` is NULL, and plant a wrong bit, unless `plant` is NULL. end: stops
 * the audit. Not collective. */
void moert_audit_begin(moert_audit *audit, moert_audit_check *check, void *context,
                       const moert_audit_plant *plant);
void moert_audit_end(moert_audit *audit);

/* To be called by `check`: computes the part again. Changes no weight and no gradient of the first
 * run. Collective. Errors: those of moert_run_forward and moert_run_backward. */
moert_status moert_audit_repeat(moert_audit *audit, size_t distance);

/* To be called by `check`: the part's hash[MOERT_AUDIT_SITES, slots] in the first run or, with
 * `repeated`, in this rank's second run. Sites without a hash per expert use the first slot. */
const uint64_t *moert_audit_hashes(const moert_audit *audit, bool repeated);
size_t moert_audit_slots(const moert_audit *audit);
moert_audit_class moert_audit_class_of(const moert_audit *audit, moert_audit_site site);
/* Whether the site has a hash for each expert. */
bool moert_audit_of_experts(moert_audit_site site);
/* Whether the site belongs to the part, and every rank would compute the same bits for it. Combined
 * rows differ if ranks or hosts sum them first (MOERT_PUSH=sum, MOERT_NODE_SUM=presum). */
bool moert_audit_compares(const moert_audit *audit, moert_audit_site site);
/* The expert in a slot of rank `rank` of the world. */
uint32_t moert_audit_expert(const moert_audit *audit, size_t rank, size_t slot);
/* The index of the layer that is checked, or the number of layers for the part outside of the
 * layers. */
size_t moert_audit_layer(const moert_audit *audit);

extern const moert_audit_kind moert_audit_kinds[MOERT_AUDIT_SITES];

/* The world rank that repeats the work of world rank `rank`. */
size_t moert_audit_repeater(const moert_audit *audit, moert_audit_class class, size_t rank,
                            size_t distance);
/* The rank whose work `rank` repeats. */
size_t moert_audit_repeated(const moert_audit *audit, moert_audit_class class, size_t rank,
                            size_t distance);
/* The ranks that repeat each other's work of a class, `rank` among them. */
size_t moert_audit_peers(const moert_audit *audit, moert_audit_class class, size_t rank);
/* Whether two ranks send rows to each other: they are in one EP group. */
bool moert_audit_exchange(const moert_audit *audit, size_t rank, size_t other);

/*
 * For `check` at MOERT_AUDIT_SUMMED: hashes of summed gradients, two for each block.
 * moert_audit_own_sums hashes the sum over the ranks for this rank's shard, and the gradient of the
 * shard after the sum was added. moert_audit_repeat_sums hashes the repeated sum for the shard of
 * the rank `distance` before this one, and the gradient that this rank's own shard should have. The
 * hashes of blocks that the part does not have stay unchanged. Collective.
 */
enum { MOERT_AUDIT_SUMS = 3, MOERT_AUDIT_SUM_HASHES = 2 * MOERT_AUDIT_SUMS };
moert_status moert_audit_own_sums(moert_audit *audit, uint64_t hash[MOERT_AUDIT_SUM_HASHES]);
moert_status moert_audit_repeat_sums(moert_audit *audit, size_t distance,
                                     uint64_t hash[MOERT_AUDIT_SUM_HASHES]);
/* Describes hash `index`. */
const char *moert_audit_sum_name(size_t index);
/* hash[layers, slots] of the gradients of the experts' weights: as the last audited backward
 * computed them or, with `now`, their present values. A hash is 0 if the gradients have been
 * rounded or summed since. */
moert_status moert_audit_left_gradients(moert_audit *audit, bool now, uint64_t *hash);
