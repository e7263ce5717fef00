/*
 * An audit of a step: ranks repeat each other's work and compare its bits.
 *
 * While an audit is under way, forward and backward leave hashes of what they compute. As soon as
 * the backward of a layer is complete, and last for what is outside of the layers, the audit calls
 * its caller back. moert_audit_repeat then computes this part again, in other places: attention
 * (and a dense MLP, the embedding and the head) of a rank's tokens on another rank, and the experts
 * of a rank on another rank of its EP group. All results must have the same bits, because no bit
 * depends on the place. A part is computed from the inputs that its first run had, so a wrong bit
 * shows only where it arises.
 *
 * What a part leaves rests in memory until another part reads it. Sites that rest compare the hash
 * of what is read with the hash that its producer left, on the same rank.
 *
 * The rank that repeats is the next one, `distance` further, among the ranks whose devices have the
 * same name and driver. A rank that is alone repeats its own work.
 */
#pragma once

#include "layer/probe.h"
#include "model/model.h"

/* Who repeats it. */
typedef enum moert_audit_class {
    MOERT_AUDIT_OWN,      /* the same rank */
    MOERT_AUDIT_TOKENS,   /* a rank of the same kind */
    MOERT_AUDIT_EXPERTS,  /* another owner of experts, of the same kind and EP group */
    MOERT_AUDIT_EVERYONE, /* any rank: what all ranks hold */
    MOERT_AUDIT_REPLICAS, /* a rank with the same experts */
    MOERT_AUDIT_CLASSES
} moert_audit_class;

/* What a hash is of. */
typedef enum moert_audit_kind {
    MOERT_AUDIT_COMPUTES, /* what a rank computes from inputs with equal hashes */
    MOERT_AUDIT_TRAVELS, /* what other ranks have sent: a sender or the network may be wrong, too */
    MOERT_AUDIT_RESTS,   /* what has rested in the memory of this rank */
} moert_audit_kind;

/*
 * X(NAME, name, part, class, kind, description): what has a hash. A part's sites come in the order
 * in which they are computed, after those of kind RESTS. Sites of experts come in the order of
 * MOERT_PROBE_TABLE. In a layer with a dense MLP, all that is computed is of class TOKENS.
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

/* Allocates a second copy of a layer and of what is outside of the layers, and a run of it. The
 * first run must outlive the audit. Collective; all ranks return the same status. Errors:
 * ERROR_MEMORY, ERROR_DEVICE. */
moert_status moert_audit_create(moert_run *run, moert_audit **audit);
void moert_audit_destroy(moert_audit *audit); /* Collective. NULL is legal. */

/* A wrong bit for tests, on this rank, in the result of a site; `layer` matters for layers. */
typedef struct moert_audit_plant {
    moert_audit_site site;
    size_t layer;
    moert_plant plant;
} moert_audit_plant;

/* When a part is checked: its backward is complete (moert_audit_repeat), or the sums of its
 * gradients over the ranks are (moert_audit_repeat_sums). */
typedef enum moert_audit_stage { MOERT_AUDIT_COMPUTED, MOERT_AUDIT_SUMMED } moert_audit_stage;
/* Compares the bits of a part. Collective. */
typedef moert_status moert_audit_check(void *context, moert_audit_stage stage);
/* The next forward, loss and backward leave hashes and call `check` for each part, if it is not
 * NULL, and leave a wrong bit, if `plant` is not NULL. end: they leave no more. Not collective. */
void moert_audit_begin(moert_audit *audit, moert_audit_check *check, void *context,
                       const moert_audit_plant *plant);
void moert_audit_end(moert_audit *audit);

/* For `check`: repeats the part. It changes no weight and no gradient. Collective. Errors: those of
 * moert_run_forward and _backward. */
moert_status moert_audit_repeat(moert_audit *audit, size_t distance);

/* For `check`, about its part: hash[MOERT_AUDIT_SITES, slots] of the first run, or of what this
 * rank has repeated. Sites that are not of experts use the first slot. */
const uint64_t *moert_audit_hashes(const moert_audit *audit, bool repeated);
size_t moert_audit_slots(const moert_audit *audit);
moert_audit_class moert_audit_class_of(const moert_audit *audit, moert_audit_site site);
/* Whether the site has a hash for each expert. */
bool moert_audit_of_experts(moert_audit_site site);
/* Whether the site is of the part, and its bits are the same in all places: not those of combined
 * rows if ranks or hosts sum their rows first (MOERT_PUSH=sum, MOERT_NODE_SUM=presum). */
bool moert_audit_compares(const moert_audit *audit, moert_audit_site site);
/* The expert in a slot of a rank of the world. */
uint32_t moert_audit_expert(const moert_audit *audit, size_t rank, size_t slot);
/* The layer, or the number of layers: what is outside. */
size_t moert_audit_layer(const moert_audit *audit);

extern const moert_audit_kind moert_audit_kinds[MOERT_AUDIT_SITES];

/* The rank that repeats the work of `rank` of the world. */
size_t moert_audit_repeater(const moert_audit *audit, moert_audit_class class, size_t rank,
                            size_t distance);
/* The rank whose work `rank` repeats. */
size_t moert_audit_repeated(const moert_audit *audit, moert_audit_class class, size_t rank,
                            size_t distance);
/* The ranks that repeat each other's work of a class, `rank` among them. */
size_t moert_audit_peers(const moert_audit *audit, moert_audit_class class, size_t rank);
/* Whether rows of two ranks travel to each other: they are in one EP group. */
bool moert_audit_exchange(const moert_audit *audit, size_t rank, size_t other);

/*
 * For `check` at MOERT_AUDIT_SUMMED: the hashes of the sums of gradients in this rank's shards, in
 * pairs: of the sum over the ranks, and of the gradient to which it is added; and of the sums of
 * the rank `distance` before this one, and what the own gradients should be. Blocks that the part
 * does not have leave their hashes as they are. Collective.
 */
enum { MOERT_AUDIT_SUMS = 3, MOERT_AUDIT_SUM_HASHES = 2 * MOERT_AUDIT_SUMS };
moert_status moert_audit_own_sums(moert_audit *audit, uint64_t hash[MOERT_AUDIT_SUM_HASHES]);
moert_status moert_audit_repeat_sums(moert_audit *audit, size_t distance,
                                     uint64_t hash[MOERT_AUDIT_SUM_HASHES]);
/* Describes hash `index`. */
const char *moert_audit_sum_name(size_t index);
/* hash[layers, slots] of the gradients of the experts' weights, as the last audited backward has
 * left them or, with `now`, as they are; 0 where they have been rounded or summed since. */
moert_status moert_audit_left_gradients(moert_audit *audit, bool now, uint64_t *hash);
