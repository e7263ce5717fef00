/* What the files of the reference backend's ops share: host arrays, mapped buffers, elements. */
#ifndef MOERT_OP_REFERENCE_OP_H
#define MOERT_OP_REFERENCE_OP_H

#include "device/mapping.h"
#include "op/op.h"

/* Float32 operands in the groups' order; NULL where the op has none. */
typedef struct moert_op_host {
    float *x, *y;  /* inputs [M,K], [M,N] */
    float *weight; /* of the group at hand, [N,K] */
    float *acc;    /* [M, columns of the product] */
} moert_op_host;

/* The buffers of one execute as host memory; NULL where there is none. */
typedef struct moert_op_maps {
    moert_mapping maps;
    void *at[MOERT_OP_BUFFERS];
    const uint32_t *ends, *gather;
    const float *acc_scale;
    size_t rows; /* ends[G-1] */
} moert_op_maps;

static inline size_t moert_op_start(const moert_op_maps *maps, size_t g) {
    return g > 0 ? maps->ends[g - 1] : 0;
}

/* Element i of memory of a type: read, write rounded; and a value as the type has it. */
float moert_op_load(const void *memory, moert_number type, size_t i);
void moert_op_store(void *memory, moert_number type, size_t i, float value);
float moert_op_round(moert_number type, float value);

/* The largest magnitude; NaN stays. */
void moert_op_raise(float *peak, float value);

/* Turns the product of group g in host->acc into c, d and what comes with them. */
void moert_op_reference_glu(const moert_op *op, const moert_op_maps *maps, size_t g);
void moert_op_reference_dglu(const moert_op *op, const moert_op_maps *maps, size_t g);

#endif
