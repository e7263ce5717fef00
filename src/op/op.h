/* What the files of op objects share (moert/ops.h): the checked description and the backends. */
#ifndef MOERT_OP_OP_H
#define MOERT_OP_OP_H

#include "base/number.h"
#include "device/device.h"
#include "gemm/gemm.h"
#include "moert/ops.h"

typedef enum moert_op_buffer {
#define MOERT_OP_BUFFER_ENUM(name) MOERT_OP_BUFFER_##name,
    MOERT_OP_BUFFER_TABLE(MOERT_OP_BUFFER_ENUM)
#undef MOERT_OP_BUFFER_ENUM
        MOERT_OP_BUFFERS
} moert_op_buffer;

/* A buffer that execute takes: lines[lines] of `width` elements, `stride` apart. */
#define MOERT_OP_BYTE MOERT_NUMBER_E4M3
typedef struct moert_op_need {
    bool needed;
    moert_number type; /* F32 stands for uint32 as well, MOERT_OP_BYTE for any byte */
    size_t lines, width, stride;
} moert_op_need;

/* One of the matrices x, y: what it is in the product, and how its rows are found. */
typedef struct moert_op_rows {
    bool input, output;
    bool gathered;  /* row r lies at gather[r] / divisor */
    size_t divisor; /* at least 1 */
    size_t width;
} moert_op_rows;

/* A quantised operand as the matrix whose rows form groups that its payload is. */
typedef struct moert_op_quantized {
    moert_op_buffer payload, scale, global; /* MOERT_OP_BUFFERS: has none */
    bool result;
    bool by_ends;                 /* its groups are the op's; otherwise equal parts */
    bool flipped;                 /* every group holds the transpose of the operand's matrix */
    moert_quantizer how;          /* axis as seen in this matrix; rounding is not AUTO */
    size_t groups, rows, columns; /* of one buffer */
    size_t blocks;                /* row blocks that payload and scales have room for */
    moert_scale_layout scales;
    size_t width, tiles; /* of a line of linear scales not transposed; lines of tiles */
} moert_op_quantized;

typedef struct moert_op_backend {
    const char *name;
    bool records; /* execute only launches kernels */
    bool decodes; /* execute takes a quantised weight as it is, by op->coded */
    /* Makes op->state; frees it. */
    moert_status (*create)(moert_op *op);
    void (*destroy)(moert_op *op);
    /* The buffers have been checked; there are groups, and rows unless it is a wgrad. */
    moert_status (*execute)(moert_op *op, const moert_op_buffers *buffers);
    /* What it takes instead of something in the description, or NULL; no member: it takes all. */
    const char *(*refuse)(const moert_op *op);
    /* Its part for ops with FP8 factors, which takes them as they are; no member: like others. */
    const struct moert_op_backend *fp8;
} moert_op_backend;

enum { MOERT_OP_MOST_QUANTIZED = 4 }; /* two factors, two versions of the result */

struct moert_op {
    moert_device *device;
    moert_op_options
        options; /* strides are not 0 but those of weight; beta makes accumulate false */
    const moert_op_backend *backend, *entries; /* the one chosen; it, or what converts around it */
    moert_op_need needs[MOERT_OP_BUFFERS];
    moert_op_need weights, weight_scales; /* each of the discrete ones */
    moert_op_quantized quantized[MOERT_OP_MOST_QUANTIZED];
    size_t quantized_count;
    moert_op_rows x, y;
    size_t glu_width; /* I */
    size_t run;       /* columns of gate or up side by side: 1, 8, 32 or I */
    size_t workspace_bytes;
    const moert_buffer *acc_scale; /* DGLU: float32 [G] that multiplies acc; NULL = 1 */
    const moert_coded *coded;      /* [1] or, discrete, [G]: the weight, instead of its buffers */
    const moert_coded *ahead;      /* [2] factors that the backend decodes into their buffers */
    moert_buffer *ready;           /* uint32 [G] for its use */
    void *state;                   /* that of `entries` */
};

extern const moert_op_backend moert_op_backend_reference, moert_op_backend_portable,
    moert_op_backend_nvidia, moert_op_backend_nvidia_fp8;

/* Whether both factors of a gemm_* are plain E4M3 or E5M2, or FP8_BLOCK. */
bool moert_op_has_fp8_factors(const moert_op *op);

/* Whether op->backend decodes a factor itself, ahead of the product, into its buffer. */
bool moert_op_decodes_ahead(const moert_op *op, const moert_op_quantized *factor);

/* Computes quantised operands by op->backend on float32 ones; only its entries count. */
extern const moert_op_backend moert_op_converted;

/* Checks a description and fills in options, x, y, glu_width, run, needs and what is quantised of
 * `op`. */
moert_status moert_op_describe(const moert_op_options *options, moert_op *op);

/* Its part for quantised operands: checks them; fills in `quantized` and needs. */
moert_status moert_op_check_quantized(const moert_op *op);
moert_status moert_op_place_quantized(moert_op *op);

/* A refusal: the field, its value by `format`, what is legal. */
moert_status moert_op_refuse(moert_status code, const moert_op *op, const char *field,
                             const char *legal, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Bytes of a buffer; SIZE_MAX if they cannot be counted. */
size_t moert_op_need_bytes(const moert_op_need *need);

/* Checks the buffers of an execute. */
moert_status moert_op_check_buffers(const moert_op *op, const moert_op_buffers *buffers);

/* The name of a buffer's field, and the member of `buffers`. */
const char *moert_op_buffer_name(moert_op_buffer which);
moert_buffer **moert_op_buffer_at(moert_op_buffers *buffers, moert_op_buffer which);

static inline bool moert_op_has_glu(const moert_op *op) {
    return op->options.kind == MOERT_OP_GLU || op->options.kind == MOERT_OP_DGLU;
}

static inline bool moert_op_takes_c(const moert_op *op) {
    return op->options.kind == MOERT_OP_DGLU ||
           (op->options.kind == MOERT_OP_GLU && op->options.save_c);
}

/* alpha and beta of a dGLU count without an offset only, as in cuDNN. */
static inline bool moert_op_dglu_scales(const moert_op *op) {
    return op->options.glu.offset == 0.0f;
}

#endif
