/* The struct of an audit (audit.h), and functions that its files share. */
#pragma once

#include "layer/ship.h"
#include "model/audit.h"
#include "model/internal.h"

enum { MOERT_AUDIT_EXPERT_BLOCKS = 2 };

/* The ranks in rings, whose members repeat each other's work of a class. A ring is consecutive in
 * `order`. */
typedef struct moert_audit_ring {
    size_t *order;         /* [R] */
    size_t *at;            /* [R] where a rank is in `order`, */
    size_t *first, *count; /* [R] and its ring */
} moert_audit_ring;

/* The sum of a replicated block's gradients, to be summed again (audit_sums.c). */
typedef struct moert_audit_sum {
    const moert_block *block; /* NULL: none */
    float *nodes;             /* [nodes, floats] a copy of what this rank has sent */
    float *shard;             /* of the gradients to which the sum is added */
    size_t node_room, shard_room;
    bool compares; /* the sum itself is still there */
    uint64_t hash[2], expected;
} moert_audit_sum;

struct moert_audit {
    moert_model *model;
    moert_run *run; /* the first run */
    moert_audit_check *check;
    void *context;
    size_t part;            /* the layer under way, or the number of layers: what is outside */
    moert_model_layer copy; /* the second copy of a layer, */
    moert_block *outer;     /* and of what is outside, */
    moert_run *repeat;      /* and the second run, of these alone */
    moert_probe *probe;     /* of the MoE layer under way */
    const moert_audit_plant *plant;
    size_t slots;
    uint64_t *hash;       /* [layers + 1, SITES, slots] of the first run, */
    uint64_t *left;       /* [layers + 1, slots] of the gradients that the batch before has left */
    bool left_step;       /* that batch was audited, too */
    bool *taken;          /* [layers + 1, SITES] */
    uint64_t *again_hash; /* [SITES, slots] and of what is repeated */
    bool again_taken[MOERT_AUDIT_SITES];
    moert_digest_queue digests;
    moert_parcels out, in; /* what the ranks hand on */
    moert_buffer *d[2];    /* [T,H] gradients of the layer's result, and of middle */
    moert_buffer
        *before[MOERT_AUDIT_EXPERT_BLOCKS]; /* gradients of the experts before the backward */
    moert_buffer *before_outer; /* gradients of the outside before the loss, on one rank */
    moert_buffer *x, *received; /* [T,H] of another rank's tokens: the part's input, and d */
    moert_audit_sum sum[MOERT_AUDIT_SUMS];
    moert_mesh_place *place; /* [R] of each rank */
    moert_audit_ring ring[MOERT_AUDIT_CLASSES];
};

/* The layer under way; NULL: what is outside. */
static inline const moert_model_layer *moert_audit_layer_of(const moert_audit *audit) {
    return audit->part < audit->model->config.layers ? &audit->model->layer[audit->part] : NULL;
}

/* Takes the hashes of what the part has read and the first run has not changed. */
moert_status moert_audit_take_rests(moert_audit *audit);

/* The sums of the MLP, of attention and of what is outside. */
enum { MOERT_AUDIT_SUM_MLP, MOERT_AUDIT_SUM_ATTENTION, MOERT_AUDIT_SUM_OUTSIDE };
/* Keeps the gradients to which a backward adds, and the nodes that a sum will send. */
moert_status moert_audit_keep_addend(moert_audit *audit, size_t index, const moert_block *block);
moert_status moert_audit_keep_nodes(moert_audit *audit, size_t index, const moert_block *block,
                                    const moert_batch *batch);
void moert_audit_forget_sums(moert_audit *audit);
void moert_audit_free_sums(moert_audit *audit);
