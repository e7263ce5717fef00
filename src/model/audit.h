/*
 * An audit of one layer: ranks repeat each other's work and compare its bits.
 *
 * While an audit is under way, forward and backward of the chosen layer leave hashes of what they
 * compute. moert_audit_repeat then computes the layer again, in other places: attention (and a
 * dense MLP) of a rank's tokens on another rank, and the experts of a rank on another rank of its
 * EP group. All results must have the same bits, because no bit depends on the place. The layer is
 * computed from the inputs that its first run had, so a wrong bit shows only where it arises.
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

/*
 * X(NAME, name, class, description): what has a hash, in the order in which it is computed. Sites
 * of experts come in the order of MOERT_PROBE_TABLE. With a dense MLP, OUT, MLP_GRADIENT and
 * D_MIDDLE are of class TOKENS.
 */
#define MOERT_AUDIT_TABLE(X)                                                                       \
    X(MIDDLE, attention, TOKENS, "attention")                                                      \
    X(ROUTE, route, OWN, "the router's choice of experts")                                         \
    X(ROWS, rows, EXPERTS, "the rows that were dispatched to it")                                  \
    X(PROB, prob, EXPERTS, "the routing weights that were dispatched to it")                       \
    X(Y, y, EXPERTS, "its results")                                                                \
    X(OUT, out, OWN, "the combined results of the MLP")                                            \
    X(DY, dy, EXPERTS, "the gradients of its results that were dispatched to it")                  \
    X(DX, dx, EXPERTS, "the gradients of its rows")                                                \
    X(DPROB, dprob, EXPERTS, "the gradients of its routing weights")                               \
    X(EXPERT_GRADIENT, expert_gradient, EXPERTS, "the gradients of its weights")                   \
    X(MLP_GRADIENT, mlp_gradient, OWN, "the gradients of the dense MLP's weights")                 \
    X(D_MIDDLE, d_middle, OWN, "the combined gradients of the MLP's inputs")                       \
    X(D_INPUT, d_input, TOKENS, "the gradients of the layer's inputs")                             \
    X(ATTENTION_GRADIENT, attention_gradient, TOKENS, "the gradients of attention's weights")

typedef enum moert_audit_site {
#define MOERT_AUDIT_SITE(NAME, name, class, description) MOERT_AUDIT_##NAME,
    MOERT_AUDIT_TABLE(MOERT_AUDIT_SITE)
#undef MOERT_AUDIT_SITE
        MOERT_AUDIT_SITES
} moert_audit_site;

typedef struct moert_audit moert_audit;

/* Allocates a second copy of a layer, and a run of it. The first run must outlive the audit.
 * Collective; all ranks return the same status. Errors: ERROR_MEMORY, ERROR_DEVICE. */
moert_status moert_audit_create(moert_run *run, moert_audit **audit);
void moert_audit_destroy(moert_audit *audit); /* Collective. NULL is legal. */

/* A wrong bit for tests, on this rank, in the result of a site of a layer. */
typedef struct moert_audit_plant {
    moert_audit_site site;
    size_t layer;
    moert_plant plant;
} moert_audit_plant;

enum { MOERT_AUDIT_NO_LAYER = -1 };
/* The next forward and backward leave the hashes of `layer`, if there is one, and a wrong bit, if
 * `plant` is not NULL. end: they leave no more. Not collective. */
void moert_audit_begin(moert_audit *audit, ptrdiff_t layer, const moert_audit_plant *plant);
void moert_audit_end(moert_audit *audit);

/* Repeats the layer after the backward of the same batch. Weights must be the same, and it changes
 * no gradient. Collective. Errors: those of moert_run_forward and _backward. */
moert_status moert_audit_repeat(moert_audit *audit, size_t distance);

/* hash[MOERT_AUDIT_SITES, slots] of the first run, or of what this rank has repeated. Sites that
 * are not of experts use the first slot. */
const uint64_t *moert_audit_hashes(const moert_audit *audit, bool repeated);
size_t moert_audit_slots(const moert_audit *audit);
moert_audit_class moert_audit_class_of(const moert_audit *audit, moert_audit_site site);
/* The rank that repeats the work of `rank` of the world. */
size_t moert_audit_repeater(const moert_audit *audit, moert_audit_class class, size_t rank,
                            size_t distance);
/* The rank whose work `rank` repeats. */
size_t moert_audit_repeated(const moert_audit *audit, moert_audit_class class, size_t rank,
                            size_t distance);
/* Whether the bits of a site are the same in all places: not those of combined rows if ranks or
 * hosts sum their rows first (MOERT_PUSH=sum, MOERT_NODE_SUM=presum). */
bool moert_audit_compares(const moert_audit *audit, moert_audit_site site);
/* The expert in a slot of a rank of the world, in the audited layer. */
uint32_t moert_audit_expert(const moert_audit *audit, size_t rank, size_t slot);
/* The ranks that repeat each other's work of a class, `rank` among them. */
size_t moert_audit_peers(const moert_audit *audit, moert_audit_class class, size_t rank);
