/*
 * The grouped GEMM in its three orientations with its epilogue, and the GLU as a separate call. A
 * moert_gemm describes the GEMM; a backend computes it: `reference` (plain C on mapped buffers),
 * `portable` (OpenCL) or `nvidia` (the tensor cores of NVIDIA GPUs). The training layer and the op
 * objects use the same descriptor and the same backends.
 *
 * Rows [ends[g-1], ends[g]) of the row matrices belong to group g. In the MoE layer a group is the
 * rows of an expert. In a dense layer a group is a sequence of the batch; all groups use one weight
 * (`shared`), and wgrad gives one partial gradient per sequence.
 *
 * Bits of reference and portable: an element of forward and dgrad is one chain of fma over the
 * reduction index in ascending order from 0 (bias added last), whatever the tiles. An element of
 * wgrad is a chain of fma over the group's rows in order. With MOERT_ADDEND_FIRST the chain starts
 * from the old value. With bf16 operands, CPUs with AMX add 32 products at a time
 * (kernels/gemm/add_amx.h) unless MOERT_BF16 forbids this. The reference and portable backends
 * agree bit for bit, except in the GLU's exp.
 *
 * Bits of the nvidia backend: tensor cores add bf16 products in the hardware's order, and the old
 * value last. The hardware's order is the same in every run, and a row's bits do not depend on the
 * other rows. For float32 operands that Hopper may split (`split`), sums also have the same order
 * in every run, and do not depend on other rows. With split operands, the measured error of sums of
 * 7168 products was at most 2^-20 of the sum of the products' magnitudes. Operands that are
 * infinite, or round to infinity in bf16, give NaN.
 *
 * Calls enqueue and return; they are not collective. Errors: ERROR_USAGE (a buffer is missing or
 * too small, a stride is below its width, n or k is 0, forward with an addend, a prepacked weight
 * of another shape), ERROR_UNSUPPORTED (a count of 2^31 or more, a GEMM that no backend of
 * this device supports), ERROR_DEVICE.
 */
#pragma once

#include "gemm/glu.h"
#include "gemm/prepacked.h"
#include "moert/device.h"
#include "moert/formats.h"
#include "moert/quantize.h"

/*
 * Groups of rows (moert_groups), of which a GEMM computes the part [first, end) or, if `end` is 0,
 * all groups. The host must know the rows of that part, [first_row, end_row). In a dense layer all
 * groups are `shared`: forward and dgrad use one weight[N,K] and bias[N] for all groups and cannot
 * compute a part; wgrad and bias_grad give a result for each group.
 */
typedef struct moert_row_groups {
    const moert_buffer *ends;
    size_t count, rows; /* G, M */
    size_t first, end, first_row, end_row;
    bool shared;
    size_t runs; /* with `places`: a group's rows form about this many equal runs, one per
                    destination memory; the kernel takes tiles from the runs in turn */
} moert_row_groups;

/* Returns the groups; if no part is set, the part becomes all groups. */
static inline moert_row_groups moert_groups_filled(moert_row_groups groups) {
    if (groups.end == 0) {
        groups.end = groups.count;
        groups.end_row = groups.rows;
    }
    return groups;
}

typedef enum moert_gemm_kind {
    MOERT_GEMM_FORWARD,  /* y = x weight^T + bias */
    MOERT_GEMM_DGRAD,    /* x = y weight: the gradient of x from the gradient y */
    MOERT_GEMM_WGRAD,    /* weight = y^T x, per group; a group without rows gives zeros */
    MOERT_GEMM_BIAS_GRAD /* bias = column sums of y, per group, rows in order */
} moert_gemm_kind;

/* A matrix of a GEMM: an operand or the result. */
typedef struct moert_matrix {
    moert_buffer *buffer;
    moert_dtype type;
    size_t stride;              /* distance between rows, in elements; 0 = dense. A weight is
                                   dense */
    size_t first;               /* first column of y that the GEMM uses; 0 in other matrices */
    const moert_buffer *gather; /* uint32 [M]: row r of the GEMM is row gather[r] of the matrix or,
                                   for an x that is read, row gather[r] / divisor. NULL: row r is
                                   row r of the matrix */
    /* Payload and scales of a quantized operand; NULL: not quantized. The backend stores decoded
     * values in `buffer`, unless that is NULL. A weight has one struct moert_quantized or, with
     * `discrete`, an array [G] of them. */
    const moert_quantized *quantized;
} moert_matrix;

/* The value that is added to the result: nothing, or the result's old value. The old value starts
 * each chain of sums (FIRST), or is added last, as with a beta of 1 (LAST). */
typedef enum moert_addend {
    MOERT_ADDEND_NONE,
    MOERT_ADDEND_FIRST, /* legal in dgrad, wgrad and bias_grad */
    MOERT_ADDEND_LAST   /* legal in op objects */
} moert_addend;

static inline moert_addend moert_accumulate(bool accumulates) {
    return accumulates ? MOERT_ADDEND_FIRST : MOERT_ADDEND_NONE;
}

/* The epilogue other than a bias and a GLU. */
typedef struct moert_epilogue {
    const moert_buffer *alpha; /* float32 [G]: multiplies the sums; NULL: 1. Op objects only */
    moert_addend addend;
} moert_epilogue;

/* A backend's memory for GEMMs with conversions. */
typedef struct moert_workspace moert_workspace;

/* Fields that few GEMMs need. Layers set the first three fields, measurements set the fourth field,
 * and op objects set the other fields. moert/ops.h has the formulas for the fields of op objects.
 * Buffers may be NULL. */
typedef struct moert_gemm_more {
    moert_buffer **split;  /* float32: the backend may multiply each operand as a sum of three bf16
                              values, stored in the growable buffer *split. NULL: sums are chains of
                              fma */
    moert_buffer *rounded; /* wgrad of all groups without an addend: bf16 [G,N,K] gets the result,
                              rounded to nearest even. The contents of `weight` are then
                              unspecified */
    /* uint64 [M]: row m of y (dgrad: x) is stored at the address places[m], which the device's
     * kernels can reach, such as peer memory. A row whose address is 0 is not stored. Only dgrad,
     * and forward without a GLU, can have `places`. The buffer of y (dgrad: x) must be given, but
     * is not written. NULL: rows are stored in that buffer. */
    const moert_buffer *places;
    /* Tiles of the portable backend (gemm/tuning/tuning.h): all choices are set, and within their
     * bounds. NULL: the choices of the tuning rows. */
    const struct moert_choices *choices;
    moert_buffer *const *weights; /* with `discrete`, instead of `weight`: [G] buffers of [N,K] */
    bool discrete;
    size_t divisor;      /* divisor of the row indices of a gathered x */
    size_t row_multiple; /* the rows of each group are a multiple of this number; 0 means 1 */
    moert_workspace *workspace;
    moert_dtype bias_type;
    const moert_buffer *beta;       /* float32 [G] */
    const moert_buffer *bias_scale; /* float32 [M] */
    const moert_buffer *row_weight; /* float32 [M], indexed by slot */
    const moert_buffer *prob;       /* float32 [M]; a GLU uses the prob of moert_glu instead */
    const moert_buffer *acc_scale;  /* float32 [G], MOERT_GATED_BACKWARD: multiplies the sums */
    moert_buffer *amax;             /* float32 [G], MOERT_GATED_BACKWARD: [G,2] */
} moert_gemm_more;

/*
 * Types: row matrices that are operands are float32 or bf16; in wgrad both have the same type. The
 * result (forward y, dgrad x, wgrad weight; bias_grad bias) is float32; y and x may be bf16,
 * rounded from the float32 sums, where moert_gemm_rounds says so. A weight that is an operand is
 * float32 [G,N,K]; prepacking or the kernel rounds the weight to bf16 if the rows are bf16.
 * Products of two bf16 values are exact in float32. So a chain of fma has the same bits for bf16
 * operands and for the same values in float32, except that magnitudes below 2^-126 may be flushed
 * to 0. With a workspace, as in the op objects, any types, row orders and epilogues are legal.
 * Without one, both operands may be quantized if moert_gemm_takes_fp8() says so; their types are
 * then BF16.
 *
 * With `glu.gated`, the GLU is part of the epilogue. The GEMM sets the sizes, v and `from` of
 * `glu`. In forward v is y (NULL: v is not kept), and h is computed from the float32 v, with the
 * bits of moert_glu_forward. If v is kept in bf16, moert_glu_backward differentiates at the rounded
 * v. Without a workspace rows are dense; h and v may be bf16 only if the operands are bf16; v may
 * be bf16 only if moert_gemm_rounds accepts I columns. Rows of y past the last end are not touched;
 * rows of h past the last end get unspecified values.
 */
typedef struct moert_gemm {
    moert_gemm_kind kind;
    moert_row_groups groups;
    size_t n, k;                /* N, K */
    moert_matrix x;             /* [M,K] */
    moert_matrix weight;        /* [G,N,K] */
    moert_matrix y;             /* [M,N] */
    moert_buffer *bias;         /* [G,N]; NULL is legal in forward */
    const moert_panels *panels; /* forward, dgrad: the prepacked weight for this use, or NULL */
    moert_glu glu;
    moert_epilogue epilogue;
    const moert_gemm_more *more; /* NULL: no field of moert_gemm_more is set */
} moert_gemm;

/* Sets the kind of `gemm`, and the types of x and y: `operands` for operands, float32 for the
 * result. */
static inline void moert_gemm_set(moert_gemm *gemm, moert_gemm_kind kind, moert_dtype operands) {
    gemm->kind = kind;
    gemm->x.type = kind == MOERT_GEMM_DGRAD ? MOERT_DTYPE_F32 : operands;
    gemm->y.type = kind == MOERT_GEMM_FORWARD ? MOERT_DTYPE_F32 : operands;
}

/* The result of a GEMM other than bias_grad. */
static inline const moert_matrix *moert_gemm_output(const moert_gemm *gemm) {
    return gemm->kind == MOERT_GEMM_FORWARD ? &gemm->y
           : gemm->kind == MOERT_GEMM_DGRAD ? &gemm->x
                                            : &gemm->weight;
}

/* The type in which operands are multiplied: the narrower type of the two operands. */
static inline moert_dtype moert_gemm_type(const moert_gemm *gemm) {
    const moert_matrix *rows = gemm->kind == MOERT_GEMM_FORWARD ? &gemm->x : &gemm->y;
    const moert_matrix *other = gemm->kind == MOERT_GEMM_WGRAD ? &gemm->x : &gemm->weight;
    return rows->type != MOERT_DTYPE_F32 || gemm->kind == MOERT_GEMM_BIAS_GRAD ? rows->type
                                                                               : other->type;
}

/* The use for which this forward or dgrad needs its weight prepacked. */
static inline moert_panels_use moert_panels_use_of(const moert_gemm *gemm) {
    return gemm->kind == MOERT_GEMM_DGRAD                   ? MOERT_PANELS_DGRAD
           : gemm->glu.gated && !gemm->glu.form.interleaved ? MOERT_PANELS_GATED
                                                            : MOERT_PANELS_FORWARD;
}

/* How a device adds the products of bf16 GEMMs: "value by value", "in tiles" (as AMX does) or "by
 * tensor cores". These three orders give different bits. */
const char *moert_gemm_bf16_order(const moert_device *device);

/* FLOPs: 2 M N K, except bias_grad. */
moert_status moert_gemm_run(const moert_gemm *gemm);

/* The next functions ignore the buffers of `gemm`. Whether forward and dgrad of this shape by
 * prepacked weights can round their results to BF16, to nearest even as a cast would. */
bool moert_gemm_rounds(const moert_device *device, const moert_gemm *gemm);
/* Whether forward and dgrad can also store the rows of a BF16 result at `places`. */
bool moert_gemm_scatters(const moert_device *device, const moert_gemm *gemm);
/* Whether forward, dgrad and wgrad by weights [groups,N,K] multiply FP8_BLOCK operands themselves.
 * The operands are rows in blocks along rows, weights in tiles, stored transposed for dgrad, and
 * for wgrad rows in blocks along columns, stored transposed, with a `row_multiple` of
 * MOERT_FP8_ROW_MULTIPLE. Results are float32 or bf16. Tensor cores keep only about 14 bits of the
 * sums of 128 products. */
bool moert_gemm_takes_fp8(const moert_device *device, size_t groups, size_t n, size_t k);
/* The largest size to which forward, dgrad and wgrad of this shape grow the buffer `split`. */
size_t moert_gemm_split_bytes(const moert_device *device, const moert_gemm *gemm);

/* *gflops = the best rate at which the device multiplies large bf16 matrices by a prepacked weight.
 * Takes about a second and temporary memory; blocks. Errors: ERROR_DEVICE, ERROR_MEMORY. */
moert_status moert_gemm_peak(moert_device *device, double *gflops);

/* The backend in use on a device (MOERT_BACKEND): "reference", "portable" or "nvidia". */
const char *moert_backend_name(const moert_device *device);
/* ERROR_UNSUPPORTED if MOERT_BACKEND names a backend that does not support this device. Running
 * GEMMs and creating prepacked weights include this check. */
moert_status moert_backend_check(const moert_device *device);

/*
 * Reports backend number `index`, and whether this backend can multiply 2 by 3 on this device;
 * false past the last backend. Compiles the backend's kernels. Not collective.
 */
typedef struct moert_backend_report {
    const char *name;
    bool automatic;   /* whether MOERT_BACKEND=auto chooses this backend */
    char reason[256]; /* why the backend does not work; "" if it works */
} moert_backend_report;
bool moert_backend_survey(moert_device *device, size_t index, moert_backend_report *report);
