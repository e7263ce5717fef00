/* Internals of op objects (moert/ops.h): the checked description, conversions of quantized
 * operands, and the functions between the files of this directory. */
#pragma once

#include "base/dtype.h"
#include "gemm/backend.h"
#include "moert/device.h"
#include "op/fields.h"
#include "quant/backend.h"

/* The required size of a buffer of execute: `lines` lines of `width` elements, `stride` apart. */
#define MOERT_OP_BYTE MOERT_DTYPE_E4M3
typedef struct moert_op_need {
    bool needed;
    moert_dtype type; /* F32 also stands for uint32, MOERT_OP_BYTE for any byte */
    size_t lines, width, stride;
} moert_op_need;

/* The role of x or y in the GEMM, and the order of its rows. */
typedef struct moert_op_rows {
    bool input, output;
    bool gathered;  /* row r is stored at row gather[r] / divisor */
    size_t divisor; /* at least 1 */
    size_t width;
} moert_op_rows;

/* A quantized operand or result, described as the matrix that its payload is; the rows of this
 * matrix form groups. */
typedef struct moert_op_quantized {
    moert_op_buffer payload, scale, global; /* MOERT_OP_BUFFERS: no such buffer */
    bool result;
    bool by_ends;                 /* true: the groups of the op; false: groups of equal size */
    bool transposed;              /* each group holds the transpose of the operand's matrix */
    moert_quantizer how;          /* how.axis refers to this matrix; how.rounding is never AUTO */
    size_t groups, rows, columns; /* number of groups; rows and columns of one group's matrix */
    size_t blocks;                /* row blocks that payload and scales have room for */
    moert_scale_layout scales;
    size_t width; /* scales in a line of linear scales that are not transposed */
    size_t tiles; /* rows of tiles; for COLUMN blocks, columns of tiles */
} moert_op_quantized;

/* two operands, and two versions of the result (moert_op_options.column) */
enum { MOERT_OP_MOST_QUANTIZED = 4 };

/* How a quantized operand is converted, and the workspace for it; buffers that are not needed are
 * NULL. */
typedef struct moert_conversion {
    const moert_op_quantized *as;
    bool direct;                         /* the backend takes the operand as payload and scales */
    moert_quantized quantized;           /* payload and scales of a direct operand */
    moert_quantized *discrete_quantized; /* [G] payloads and scales of direct discrete weights */
    moert_dtype type;                    /* dtype of the dequantized values */
    moert_buffer *stored;                /* if transposed: values in the order of the payload */
    moert_buffer *ends;                  /* ends of groups of equal size */
    moert_buffer *block_ends;            /* ends of row blocks, for tiled scales of COLUMN blocks */
    moert_buffer *scale;                 /* linear copy of tiled scales */
    moert_buffer **scales;               /* [G] linear scales of direct discrete weights */
    moert_buffer *transposed;            /* transpose of `scale` */
} moert_conversion;

struct moert_op {
    moert_device *device;
    moert_op_options options; /* strides of plain row matrices are filled in */
    const moert_backend *backend;
    moert_op_need needs[MOERT_OP_BUFFERS];
    moert_op_need weights, weight_scales; /* buffer sizes of each discrete weight */
    moert_op_quantized quantized[MOERT_OP_MOST_QUANTIZED];
    size_t quantized_count;
    moert_op_rows x, y;
    size_t glu_width; /* I */
    size_t run;       /* gates and ups alternate in runs of this many columns: 1, 8, 32 or I */
    /* conversions before and after the GEMM */
    const moert_quant_backend *quantizers;
    moert_conversion conversions[MOERT_OP_MOST_QUANTIZED]; /* [quantized_count] */
    moert_buffer *values[MOERT_OP_BUFFERS]; /* dequantized operands; results before quantizing */
    moert_buffer **discrete_values;         /* dequantized discrete weights: [G] */
    moert_buffer *alphas;                   /* float32 [G]: alpha times the global scales */
    moert_workspace work;                   /* `bytes` includes the conversions */
    const void *bound;                      /* the cl_mem of the caller's workspace, or NULL */
};

/* Checks a description and sets options, x, y, glu_width, run, needs and quantized of `op`. */
moert_status moert_op_describe(const moert_op_options *options, moert_op *op);

/* The parts of moert_op_describe for quantized operands: check them; set `quantized` and needs. */
moert_status moert_op_check_quantized(const moert_op *op);
moert_status moert_op_shape_quantized(moert_op *op);

/*
 * Decides for each quantized operand whether op->backend takes it as payload and scales, without
 * dequantizing. Returns NULL, or the backend's text if it does not support the op
 * (moert_backend.supports).
 */
const char *moert_op_plan(moert_op *op);
/* Whether both operands of a gemm_* are plain E4M3 or E5M2, or FP8_BLOCK. */
bool moert_op_has_fp8_operands(const moert_op *op);
/* The GEMM of an op, with converted operands where needed. If `buffers` is NULL, the GEMM may only
 * be passed to the backend's functions supports and reserve, which only test buffers for NULL. */
moert_gemm moert_op_lower(const moert_op *op, const moert_op_buffers *buffers,
                          moert_gemm_more *more);

/* The dtype of a quantized operand's values after dequantizing, or of a quantized result's values
 * before quantizing. */
moert_dtype moert_op_value_type(const moert_op *op, const moert_op_quantized *q);

/* Allocates, and frees, the workspace of the conversions. */
moert_status moert_op_make_conversions(moert_op *op);
void moert_op_free_conversions(moert_op *op);
/* Converts the operands to the form that the GEMM takes, and computes op->alphas. */
moert_status moert_op_load_operands(moert_op *op, const moert_op_buffers *buffers);
/* Writes payload and scales of quantized results. */
moert_status moert_op_store_results(moert_op *op, const moert_op_buffers *buffers);

/* Reports a refusal: the field, its value printed by `format`, and the legal values. */
moert_status moert_op_refuse(moert_status code, const moert_op *op, const char *field,
                             const char *legal, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* A rule of a description: whether it is broken, the field, the field's legal values, and its
 * actual value as `text` or, if `text` is NULL, as `value`. */
typedef struct moert_op_rule {
    bool broken;
    moert_status code;
    const char *field, *legal, *text;
    size_t value;
} moert_op_rule;

/* Reports the first broken rule. Fields are those of operand `name` or, if NULL, of the options. */
moert_status moert_op_check_rules(const moert_op *op, const char *name, const moert_op_rule *rules,
                                  size_t count);
#define MOERT_OP_CHECK_RULES(op, name, ...)                                                        \
    moert_op_check_rules(op, name, (const moert_op_rule[]){__VA_ARGS__},                           \
                         sizeof((const moert_op_rule[]){__VA_ARGS__}) / sizeof(moert_op_rule))

/* Bytes of a buffer; SIZE_MAX if they overflow. */
size_t moert_op_need_bytes(const moert_op_need *need);

/* Checks the buffers of an execute. */
moert_status moert_op_check_buffers(const moert_op *op, const moert_op_buffers *buffers);

static inline bool moert_op_has_glu(const moert_op *op) {
    return op->options.kind == MOERT_OP_GLU || op->options.kind == MOERT_OP_DGLU;
}

static inline bool moert_op_takes_c(const moert_op *op) {
    return op->options.kind == MOERT_OP_DGLU ||
           (op->options.kind == MOERT_OP_GLU && op->options.save_c);
}
