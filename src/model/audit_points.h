/* The points of forward and backward at which an audit (audit.h) takes hashes. */
#pragma once

#include "model/internal.h"

typedef enum moert_audit_point {
    MOERT_AUDIT_ATTENDED,       /* middle is computed */
    MOERT_AUDIT_FORWARDED,      /* out is computed; before the pass is discarded */
    MOERT_AUDIT_BACKWARD,       /* the layer's backward begins */
    MOERT_AUDIT_MLP_DONE,       /* run->d is the gradient of middle */
    MOERT_AUDIT_DIFFERENTIATED, /* run->d is the gradient of the layer's input */
} moert_audit_point;

moert_status moert_audit_take(moert_run *run, const moert_run_layer *layer,
                              moert_audit_point point);

/* Does nothing without an audit. */
static inline moert_status moert_audit_at(moert_run *run, const moert_run_layer *layer,
                                          moert_audit_point point) {
    return run->audit != NULL ? moert_audit_take(run, layer, point) : MOERT_OK;
}
