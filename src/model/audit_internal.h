/* The struct of an audit (audit.h), and functions that its files share. */
#pragma once

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

struct moert_audit {
    moert_model *model;
    moert_run *run;                 /* the first run, */
    const moert_model_layer *layer; /* and its layer that is audited; NULL: none */
    moert_model_layer copy;         /* the layer's second copy, */
    moert_run *repeat;              /* and the second run, of that alone */
    moert_probe *probe, *plants;    /* of the MoE layer; `plants` only plants */
    const moert_audit_plant *plant;
    size_t slots;
    uint64_t *hash[2]; /* [SITES, slots], first run and repeated */
    bool taken[2][MOERT_AUDIT_SITES];
    moert_buffer *digests; /* of rows */
    moert_buffer *middle;  /* [T,H] of the first run; inputs of the second: */
    moert_buffer *d[2];    /* [T,H] gradients of the layer's result, and of middle */
    moert_buffer
        *before[MOERT_AUDIT_EXPERT_BLOCKS]; /* gradients of the experts before the backward */
    moert_buffer *x, *received; /* [T,H] of another rank's tokens: the layer's input, and d */
    moert_buffer *positions;    /* int32 [T] of its documents */
    moert_mesh_place *place;    /* [R] of each rank */
    moert_audit_ring ring[MOERT_AUDIT_CLASSES];
    size_t distance; /* in a ring: the rank at this distance repeats this rank's work */
};

/* Opens a probe for a run. */
void moert_audit_open_probe(moert_probe *probe, bool takes, const moert_audit_plant *plant);
