/* What the files of the portable backend's ops share: the workspace and the launches around the
 * products. */
#ifndef MOERT_OP_PORTABLE_OP_H
#define MOERT_OP_PORTABLE_OP_H

#include "base/memory.h"
#include "op/op.h"

/*
 * Float32 copies of what the kernels of the products cannot take as it is; NULL where the caller's
 * buffer serves. Weights are converted, or made, for `batch` groups at a time.
 */
typedef struct moert_op_workspace {
    bool direct;          /* the product's result is the op's */
    moert_buffer *x, *y;  /* inputs [M,K], [M,N] */
    moert_buffer *weight; /* [batch,N,K] */
    moert_buffer *acc;    /* [M, columns of the product]; not in a wgrad */
    moert_buffer *wide;   /* DGLU with dbias: d [M,2K] before rounding */
    moert_buffer *peak;   /* amax: of every row [M], DGLU [M,2] */
    size_t batch;
} moert_op_workspace;

/* Rows of so many columns that a work-group takes: about 16384 elements, on GPUs one. */
static inline size_t moert_op_split(const moert_op *op, size_t columns) {
    return moert_share(op->device, moert_ceil_div(16384, columns), 1);
}

/* Turns the product in `acc` into c, d and what comes with them. */
moert_status moert_op_portable_glu(const moert_op *op, const moert_op_buffers *buffers);
moert_status moert_op_portable_dglu(const moert_op *op, const moert_op_buffers *buffers);

#endif
