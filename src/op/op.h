/* What the files of op objects share (moert/ops.h): the checked description and the backends. */
#pragma once

#include "base/dtype.h"
#include "device/device.h"
#include "gemm/backend.h"
#include "moert/ops.h"
#include "quant/backend.h"

typedef enum moert_op_buffer {
#define MOERT_OP_BUFFER_ENUM(name) MOERT_OP_BUFFER_##name,
    MOERT_OP_BUFFER_TABLE(MOERT_OP_BUFFER_ENUM)
#undef MOERT_OP_BUFFER_ENUM
        MOERT_OP_BUFFERS
} moert_op_buffer;

/* A buffer that execute takes: lines[lines] of `width` elements, `stride` apart. */
#define MOERT_OP_BYTE MOERT_DTYPE_E4M3
typedef struct moert_op_need {
    bool needed;
    moert_dtype type; /* F32 stands for uint32 as well, MOERT_OP_BYTE for any byte */
    size_t lines, width, stride;
} moert_op_need;

/* One of the matrices x, y: what it is in the product, and how its rows are found. */
typedef struct moert_op_rows {
    bool input, output;
    bool gathered;  /* row r lies at gather[r] / divisor */
    size_t divisor; /* at least 1 */
    size_t width;
} moert_op_rows;

/* A quantized operand as the matrix whose rows form groups that its payload is. */
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

enum { MOERT_OP_MOST_QUANTIZED = 4 }; /* two operands, two versions of the result */

/* How a quantized operand is converted, in workspace; NULL what it does not need. */
typedef struct moert_conversion {
    const moert_op_quantized *as;
    bool taken;                 /* a factor that the backend takes in codes: ... */
    moert_quantized codes;      /* ... these, or ... */
    moert_quantized *all_codes; /* ... those of discrete weights, [G] */
    moert_dtype type;           /* of the values, if not */
    moert_buffer *stored;       /* flipped: values as the payload lies */
    moert_buffer *ends;         /* of equal groups */
    moert_buffer *block_ends;   /* tiled, COLUMN */
    moert_buffer *scale;        /* tiled: linear ... */
    moert_buffer **scales;      /* ... of discrete weights that are taken: [G] */
    moert_buffer *transposed;   /* tiled, transposed: the transpose of `scale` */
} moert_conversion;

struct moert_op {
    moert_device *device;
    moert_op_options
        options; /* strides are not 0 but those of weight; beta makes accumulate false */
    const moert_backend *backend;
    moert_op_need needs[MOERT_OP_BUFFERS];
    moert_op_need weights, weight_scales; /* each of the discrete ones */
    moert_op_quantized quantized[MOERT_OP_MOST_QUANTIZED];
    size_t quantized_count;
    moert_op_rows x, y;
    size_t glu_width; /* I */
    size_t run;       /* columns of gate or up side by side: 1, 8, 32 or I */
    /* around the GEMM */
    const moert_quant_backend *quantizers;
    moert_conversion conversions[MOERT_OP_MOST_QUANTIZED]; /* [quantized_count] */
    moert_buffer *values[MOERT_OP_BUFFERS]; /* what the GEMM takes and gives in their place */
    moert_buffer **discrete_values;         /* of discrete weights: [G] */
    moert_buffer *operands;                 /* float32 [G]: alpha with the global scales */
    moert_workspace work;                   /* bytes: of the conversions, too */
};

/* Checks a description and fills in options, x, y, glu_width, run, needs and what is quantized of
 * `op`. */
moert_status moert_op_describe(const moert_op_options *options, moert_op *op);

/* Its part for quantized operands: checks them; fills in `quantized` and needs. */
moert_status moert_op_check_quantized(const moert_op *op);
moert_status moert_op_place_quantized(moert_op *op);

/*
 * Chooses for each quantized factor whether op->backend takes it in codes; what the backend takes
 * instead of something in the description, or NULL.
 */
const char *moert_op_plan(moert_op *op);
/* Whether all operands of a gemm_* are plain E4M3 or E5M2, or FP8_BLOCK. */
bool moert_op_has_fp8_operands(const moert_op *op);
/* The GEMM of an op, of what its conversions make of `buffers`; NULL: for supports and reserve,
 * which look at no buffers. */
moert_gemm moert_op_lower(const moert_op *op, const moert_op_buffers *buffers);

/* The type of the values that an operand becomes, or is made of. */
moert_dtype moert_op_value_type(const moert_op *op, const moert_op_quantized *q);

/* Makes the conversions' workspace; frees it. */
moert_status moert_op_make_conversions(moert_op *op);
void moert_op_free_conversions(moert_op *op);
/* The operands as the GEMM takes them, and alpha with their global scales. */
moert_status moert_op_load_operands(moert_op *op, const moert_op_buffers *buffers);
/* Payload and scales of quantized results. */
moert_status moert_op_store_results(moert_op *op, const moert_op_buffers *buffers);

/* A refusal: the field, its value by `format`, what is legal. */
moert_status moert_op_refuse(moert_status code, const moert_op *op, const char *field,
                             const char *legal, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* What must not be: the field, its value as text or number, and what is legal. */
typedef struct moert_op_rule {
    bool broken;
    moert_status code;
    const char *field, *legal, *text;
    size_t value;
} moert_op_rule;

/* Refuses the first broken rule; fields belong to operand `name`, NULL: to the options. */
moert_status moert_op_check_rules(const moert_op *op, const char *name, const moert_op_rule *rules,
                                  size_t count);
#define MOERT_OP_CHECK_RULES(op, name, ...)                                                        \
    moert_op_check_rules(op, name, (const moert_op_rule[]){__VA_ARGS__},                           \
                         sizeof((const moert_op_rule[]){__VA_ARGS__}) / sizeof(moert_op_rule))

/* Bytes of a buffer; SIZE_MAX if they cannot be counted. */
size_t moert_op_need_bytes(const moert_op_need *need);

/* Checks the buffers of an execute. */
moert_status moert_op_check_buffers(const moert_op *op, const moert_op_buffers *buffers);

/* The name of a buffer's field, and the member of `buffers`. */
const char *moert_op_buffer_name(moert_op_buffer which);
moert_buffer **moert_op_buffer_at(const moert_op_buffers *buffers, moert_op_buffer which);

static inline bool moert_op_has_glu(const moert_op *op) {
    return op->options.kind == MOERT_OP_GLU || op->options.kind == MOERT_OP_DGLU;
}

static inline bool moert_op_takes_c(const moert_op *op) {
    return op->options.kind == MOERT_OP_DGLU ||
           (op->options.kind == MOERT_OP_GLU && op->options.save_c);
}
