/* The points of forward and backward at which an audit (audit.h) takes hashes. */
#pragma once

#include "model/internal.h"

typedef enum moert_audit_point {
    /* of a layer */
    MOERT_AUDIT_ATTENDED,       /* middle is computed */
    MOERT_AUDIT_FORWARDED,      /* `out` is computed; the pass is not yet discarded */
    MOERT_AUDIT_BACKWARD,       /* the layer's backward begins */
    MOERT_AUDIT_MLP_DONE,       /* run->d is the gradient of the residual `middle` */
    MOERT_AUDIT_DIFFERENTIATED, /* run->d is the gradient of the layer's input */
    /* outside of the layers: `layer` is NULL */
    MOERT_AUDIT_EMBEDDINGS_DONE, /* run->embedded is computed */
    MOERT_AUDIT_NORM_DONE,       /* run->final_normed is computed */
    MOERT_AUDIT_LOSS_DONE,       /* run->dn is the gradient of run->final_normed */
    MOERT_AUDIT_HEAD_DONE,       /* run->d is the gradient of the last layer's output */
    MOERT_AUDIT_ALL_DONE,        /* all gradients of the block outside of the layers are computed */
} moert_audit_point;

moert_status moert_audit_take(moert_run *run, const moert_run_layer *layer,
                              moert_audit_point point);
/* Calls `check` for layer `index` or, if `index` is the number of layers, for the part outside of
 * the layers. First discards the layer's pass. Collective. */
moert_status moert_audit_check_part(moert_run *run, size_t index);

/* Whether `check` is called for the parts of this run. */
bool moert_audit_checks(const moert_run *run);
/* Calls `check` once the gradients of part `index` are summed over the ranks. */
moert_status moert_audit_check_sums(moert_run *run, size_t index);

/* Does nothing without an audit. */
static inline moert_status moert_audit_at(moert_run *run, const moert_run_layer *layer,
                                          moert_audit_point point) {
    return run->audit != NULL ? moert_audit_take(run, layer, point) : MOERT_OK;
}
