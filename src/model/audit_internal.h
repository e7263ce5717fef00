/* The struct of an audit (audit.h), and functions that its files share. */
#pragma once

#include "layer/ship.h"
#include "model/audit.h"
#include "model/internal.h"

enum { MOERT_AUDIT_EXPERT_BLOCKS = 2 };

/* The rings of a class. The ranks of a ring repeat each other's work; they are consecutive in
 * `order`. */
typedef struct moert_audit_ring {
    size_t *order;         /* [R] */
    size_t *at;            /* [R] index of each rank in `order` */
    size_t *first, *count; /* [R] start of each rank's ring in `order`, and its number of ranks */
} moert_audit_ring;

/* A replicated block's gradients, whose sum over the ranks is repeated (audit_sums.c). */
typedef struct moert_audit_sum {
    const moert_block *block; /* NULL: none */
    float *nodes; /* [nodes, floats] copy of the summation-tree nodes that this rank sent */
    float *shard; /* copy of the shard's gradients before the sum is added */
    size_t node_room, shard_room;
    bool compares; /* the sum over the ranks can still be read from memory */
    uint64_t hash[2], expected;
} moert_audit_sum;

struct moert_audit {
    moert_model *model;
    moert_run *run; /* the first run */
    moert_audit_check *check;
    void *context;
    size_t part; /* index of the layer that is checked, or the number of layers for the part outside
                    of the layers */
    moert_model_layer copy;    /* second copy of a layer */
    moert_block *attention[2]; /* second copies of blocks of the kinds MOERT_MODEL_ATTENTION and
                                  MOERT_MODEL_DENSE_ATTENTION */
    moert_block *outer;        /* second copy of the block outside of the layers */
    moert_run *repeat;         /* second run, which computes on the copies `copy` and `outer` */
    moert_probe *probe;        /* the probe of the MoE layer that is computed */
    const moert_audit_plant *plant;
    size_t slots;
    uint64_t *hash; /* [layers + 1, SITES, slots] hashes of the first run */
    /* [layers + 1, slots] hashes of the experts' gradients of the last audited batch */
    uint64_t *left;
    bool left_step;       /* hashes in `left` are valid: the batch before was audited */
    bool *taken;          /* [layers + 1, SITES] the site was reached in the first run */
    uint64_t *again_hash; /* [SITES, slots] hashes of the second run */
    bool again_taken[MOERT_AUDIT_SITES];
    moert_digest_queue digests;
    moert_parcels out, in; /* parcels that this rank sends and receives for the second run */
    moert_buffer *d[2];    /* [T,H] copies of the gradients of the layer's result and of `middle` */
    /* copies of the experts' gradients before the backward */
    moert_buffer *before[MOERT_AUDIT_EXPERT_BLOCKS];
    moert_buffer *before_outer; /* with a single rank: gradients of the block outside of the layers
                                   from before the loss */
    /* [T,H] rows of another rank's tokens: the input of the part, and the gradient of the part's
     * result */
    moert_buffer *x, *received;
    moert_audit_sum sum[MOERT_AUDIT_SUMS];
    moert_mesh_place *place; /* [R] place of each rank in the mesh */
    moert_audit_ring ring[MOERT_AUDIT_CLASSES];
};

/* The layer that is checked; NULL: the part outside of the layers. */
static inline const moert_model_layer *moert_audit_layer_of(const moert_audit *audit) {
    return audit->part < audit->model->config.layers ? &audit->model->layer[audit->part] : NULL;
}

/* The second copy of a layer's block with attention and norms. */
static inline moert_block *moert_audit_attention(const moert_audit *audit,
                                                 const moert_model_layer *layer) {
    return audit->attention[moert_model_attention_kind(&audit->model->config, layer->index) -
                            MOERT_MODEL_ATTENTION];
}

/* Hashes the values that the part has read, if the first run has not overwritten them. */
moert_status moert_audit_take_rests(moert_audit *audit);

/* Indices in moert_audit.sum: the blocks of the MLP, of attention and outside of the layers. */
enum { MOERT_AUDIT_SUM_MLP, MOERT_AUDIT_SUM_ATTENTION, MOERT_AUDIT_SUM_OUTSIDE };
/* Copies the gradients to which a backward adds (addend), and the nodes that a sum will send
 * (nodes). */
moert_status moert_audit_keep_addend(moert_audit *audit, size_t index, const moert_block *block);
moert_status moert_audit_keep_nodes(moert_audit *audit, size_t index, const moert_block *block,
                                    const moert_batch *batch);
void moert_audit_forget_sums(moert_audit *audit);
void moert_audit_free_sums(moert_audit *audit);
