/* What the files of op objects share (moert/ops.h): the checked description and the backends. */
#ifndef MOERT_OPS_OP_H
#define MOERT_OPS_OP_H

#include "device/device.h"
#include "base/number.h"
#include "moert/ops.h"

typedef enum moert_op_buffer {
#define MOERT_OP_BUFFER_ENUM(name) MOERT_OP_BUFFER_##name,
    MOERT_OP_BUFFER_TABLE(MOERT_OP_BUFFER_ENUM)
#undef MOERT_OP_BUFFER_ENUM
        MOERT_OP_BUFFERS
} moert_op_buffer;

/* A buffer that execute takes: lines[lines] of `width` elements, `stride` apart. */
typedef struct moert_op_need {
    bool needed;
    moert_number type; /* F32 stands for uint32 as well */
    size_t lines, width, stride;
} moert_op_need;

/* One of the matrices x, y: what it is in the product, and how its rows are found. */
typedef struct moert_op_rows {
    bool input, output;
    bool gathered;  /* row r lies at gather[r] / divisor */
    size_t divisor; /* at least 1 */
    size_t width;
} moert_op_rows;

typedef struct moert_op_backend {
    const char *name;
    bool records; /* execute only launches kernels */
    /* Makes op->state; frees it. */
    moert_status (*create)(moert_op *op);
    void (*destroy)(moert_op *op);
    /* The buffers have been checked; there are groups, and rows unless it is a wgrad. */
    moert_status (*execute)(moert_op *op, const moert_op_buffers *buffers);
} moert_op_backend;

struct moert_op {
    moert_device *device;
    moert_op_options
        options; /* strides are not 0 but those of weight; beta makes accumulate false */
    const moert_op_backend *backend;
    moert_op_need needs[MOERT_OP_BUFFERS];
    moert_op_rows x, y;
    size_t glu_width; /* I */
    size_t run;       /* columns of gate or up side by side: 1, 8, 32 or I */
    size_t workspace_bytes;
    void *state; /* the backend's */
};

extern const moert_op_backend moert_op_backend_reference, moert_op_backend_portable;

/* Checks a description and fills in options, x, y, glu_width, run and needs of `op`. */
moert_status moert_op_describe(const moert_op_options *options, moert_op *op);

/* Checks the buffers of an execute. */
moert_status moert_op_check_buffers(const moert_op *op, const moert_op_buffers *buffers);

/* The name of a buffer's field, and the member of `buffers`. */
const char *moert_op_buffer_name(moert_op_buffer which);
moert_buffer **moert_op_buffer_at(moert_op_buffers *buffers, moert_op_buffer which);

static inline bool moert_op_has_glu(const moert_op *op) {
    return op->options.kind == MOERT_OP_GLU || op->options.kind == MOERT_OP_DGLU;
}

/* alpha and beta of a dGLU count without an offset only, as in cuDNN. */
static inline bool moert_op_dglu_scales(const moert_op *op) {
    return op->options.glu.offset == 0.0f;
}

#endif
