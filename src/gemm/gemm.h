/*
 * The grouped GEMM in its three orientations with its epilogue, and the GLU as a separate call. A
 * moert_gemm describes the GEMM; a backend computes it: `reference` (plain C on mapped buffers),
 * `portable` (OpenCL) or `nvidia` (the tensor cores of NVIDIA GPUs). The training layer and the op
 * objects use the same descriptor and the same backends.
 *
 * Rows [ends[g-1], ends[g]) of the row matrices belong to group g. In the MoE layer a group is the
 * rows of an expert. In a dense layer it is a sequence of the batch; all groups use one weight
 * (`shared`), and wgrad gives one partial gradient per sequence.
 *
 * Bits of reference and portable: an element of forward and dgrad is one chain of fma over the
 * reduction index in ascending order from 0 (bias added last), whatever the tiles. An element of
 * wgrad is such a chain over the group's rows in order. With MOERT_ADDEND_FIRST the chain starts
 * from the old value. With bf16 operands, CPUs with AMX add 32 products at a time
 * (kernels/gemm/add_amx.h) unless MOERT_BF16 says otherwise. These two backends agree bit for bit,
 * except in the GLU's exp.
 *
 * Bits of the nvidia backend: tensor cores add bf16 products in the hardware's order, and the old
 * value last. The order is the same in every run, and a row's bits do not depend on the other rows.
 * The same holds for float32 operands that `split` allows Hopper to split; the error was at most
 * 2^-20 of the sum of the magnitudes of 7168 products. Operands that are infinite, or round to
 * infinity in bf16, give NaN.
 *
 * Calls enqueue and return; they are not collective. Errors: ERROR_USAGE (a buffer is missing or
 * too small, a stride is below its width, n or k is 0, forward with an addend, a prepacked weight
 * of another shape), ERROR_UNSUPPORTED (a count of 2^31 or more, a GEMM that no backend of
 * this device supports), ERROR_DEVICE.
 */
#pragma once

#include "moert/device.h"
#include "moert/formats.h"
#include "moert/glu.h"
#include "moert/quantize.h"

/*
 * A prepacked weight: a copy in the order in which the device's kernels read it, made once and used
 * by many GEMMs. Forward and dgrad read weight[G,N,K] along different dimensions, so each has its
 * own copy; forward with a GLU has a third if all gates precede all ups. On tensor cores one copy
 * serves all uses. A copy of type BF16 holds the weight rounded to nearest even.
 *
 * Where prepacking does not pay, or no buffer of the device is large enough,
 * moert_prepacked_create gives NULL. NULL is legal everywhere; GEMMs then read the weight.
 */
typedef struct moert_prepacked moert_prepacked;
typedef enum moert_prepacked_use {
    MOERT_PREPACKED_FORWARD,
    MOERT_PREPACKED_DGRAD,
    MOERT_PREPACKED_GATED,
    MOERT_PREPACKED_USES
} moert_prepacked_use;
typedef struct moert_prepacked_shape {
    size_t groups, n, k;
    moert_prepacked_use use;
    moert_dtype type; /* F32 or BF16 */
} moert_prepacked_shape;
moert_status moert_prepacked_create(moert_device *device, const moert_prepacked_shape *shape,
                                    moert_prepacked **prepacked);
/* Bytes of device memory; 0 where moert_prepacked_create would give NULL. */
size_t moert_prepacked_need(const moert_device *device, const moert_prepacked_shape *shape);
/* Prepacks weight[G,N,K], float32. */
moert_status moert_prepacked_fill(moert_prepacked *prepacked, const moert_buffer *weight);
/*
 * Prepacks a block-scaled weight: the values that moert_dequantize_run gives. Its rows form G equal
 * groups; each holds the weight's [N,K] or, with `transposed`, the transpose [K,N]. Payload and
 * scales lie as in moert/formats.h, with how.transposed false.
 */
typedef struct moert_quantized {
    moert_format format;
    moert_axis axis;
    bool transposed;
    const moert_buffer *q, *scale;
    const moert_buffer *global; /* NVFP4: float32 [G], or NULL = 1 */
    size_t blocks;              /* with COLUMN blocks: row blocks for which q and scale have room */
} moert_quantized;
moert_status moert_prepacked_fill_quantized(moert_prepacked *prepacked,
                                            const moert_quantized *quantized);
/* Bytes of device memory; 0 for NULL. */
size_t moert_prepacked_bytes(const moert_prepacked *prepacked);
void moert_prepacked_destroy(moert_prepacked *prepacked);

/*
 * Groups of rows (moert_groups), of which [first, end) are computed; zeros: all. The host must know
 * the rows of that part, [first_row, end_row). In a dense layer all groups are `shared`: forward
 * and dgrad use one weight[N,K] and bias[N] for all of them and compute no part; wgrad and
 * bias_grad give a result for each group.
 */
typedef struct moert_row_groups {
    const moert_buffer *ends;
    size_t count, rows; /* G, M */
    size_t first, end, first_row, end_row;
    bool shared;
    size_t runs; /* with `places`: the rows of a group form about so many equal runs,
                    one per destination memory; the kernel takes tiles from these in turn */
} moert_row_groups;

/* The groups with the part that they compute filled in. */
static inline moert_row_groups moert_groups_filled(moert_row_groups groups) {
    if (groups.end == 0) {
        groups.end = groups.count;
        groups.end_row = groups.rows;
    }
    return groups;
}

/* The GLU in an epilogue. MOERT_GATED applies it to a forward's result v. MOERT_GATED_BACKWARD
 * computes dv from a dgrad's result dh. */
typedef enum moert_gated { MOERT_UNGATED, MOERT_GATED, MOERT_GATED_BACKWARD } moert_gated;

/*
 * The gated linear unit (moert/glu.h), computed in float32. In backward an input equal to a limit
 * passes its gradient, and dprob is not multiplied by prob. dv may be the buffer v if their types
 * agree. In moert_glu_forward and moert_glu_backward rows are dense, and `form` gives the order of
 * gates and ups.
 */
typedef struct moert_glu {
    moert_glu_form form;
    size_t first_row;         /* the first row to compute; earlier rows stay unchanged */
    size_t rows, width;       /* M, I */
    const moert_buffer *v;    /* [M,2I] */
    const moert_buffer *prob; /* [M] at stride prob_stride floats; NULL: each prob is 1 */
    size_t prob_stride;       /* 0 = dense */
    moert_dtype from;         /* dtype of v and dh: F32 (0) or BF16 */
    moert_dtype type;         /* dtype of h and dv: F32 (0), or BF16, rounded to nearest even */
    moert_buffer *h;          /* [M,I]: forward writes it */
    const moert_buffer *dh;   /* [M,I], the gradient of h: backward reads it */
    moert_buffer *dv;         /* [M,2I]: backward writes it */
    moert_buffer *dprob;      /* [M] at stride prob_stride: backward writes it; or NULL */
    /* the following fields apply only in the epilogue of a GEMM */
    moert_gated gated;
    bool drop_v;         /* forward: v is not needed; its contents are unspecified afterwards, and
                            the GEMM leaves most of it unwritten */
    size_t ldv, ldh;     /* strides of v, and of h or dv; 0 = dense */
    size_t run;          /* gates and ups alternate in runs of this many columns, 1 to I; 0: by
                            `form` */
    bool linear_first;   /* ups come before their gates */
    moert_buffer *dbias; /* [G,2I] of bias_type: backward adds dv's column sums to it; or NULL */
} moert_glu;

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
    size_t stride;              /* from row to row, in elements; 0 = dense. A weight is dense */
    size_t first;               /* the first column in use, of y; 0 of the others */
    const moert_buffer *gather; /* uint32 [M]: row r is row gather[r] of the matrix or, for an x
                                   that is read, row gather[r] / divisor. NULL: in order */
    /* An operand that the backend takes as payload and scales. The backend stores decoded values in
     * the buffer, unless that is NULL. Of a weight one element or, with `discrete`, [G]. */
    const moert_quantized *quantized;
} moert_matrix;

/* What is added to the result: nothing, or its old value. That starts each chain of sums, or is
 * added last, as with a beta of 1. */
typedef enum moert_addend {
    MOERT_ADDEND_NONE,
    MOERT_ADDEND_FIRST, /* of dgrad, wgrad, bias_grad */
    MOERT_ADDEND_LAST   /* of op objects */
} moert_addend;

static inline moert_addend moert_accumulate(bool accumulates) {
    return accumulates ? MOERT_ADDEND_FIRST : MOERT_ADDEND_NONE;
}

/* What follows the sums, besides a bias and a GLU. */
typedef struct moert_epilogue {
    const moert_buffer *alpha; /* float32 [G]: multiplies the sums; NULL: 1. Op objects only */
    moert_addend addend;
} moert_epilogue;

/* A backend's memory for GEMMs with conversions. */
typedef struct moert_workspace moert_workspace;

/* What few GEMMs need. Layers set the first three fields, op objects the others; these have the
 * formulas of moert/ops.h. Buffers may be NULL. */
typedef struct moert_gemm_more {
    moert_buffer **split;  /* float32: the backend may multiply each operand as a sum of three bf16
                             values, stored in the growable buffer *split. NULL: sums are chains */
    moert_buffer *rounded; /* wgrad of all groups without an addend: bf16 [G,N,K] gets the result,
                              rounded to nearest even, and `weight` unspecified values */
    /* uint64 [M]: row m of y (dgrad: x) is stored at the address places[m], which the device's
     * kernels reach, such as peer memory; not if that is 0. For dgrad, and for forward without a
     * GLU. y (x) must be given and is not written. NULL: rows are stored in the result's buffer. */
    const moert_buffer *places;
    moert_buffer *const *weights; /* with `discrete`, instead of `weight`: [G] buffers of [N,K] */
    bool discrete;
    size_t divisor;      /* of a gathered x */
    size_t row_multiple; /* each group's rows are a multiple of this; 0 = 1 */
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
 * Types: rows that are operands are float32 or bf16, in wgrad both of the same type. The result
 * (forward y, dgrad x, wgrad weight; bias_grad bias) is float32; y and x may be bf16, rounded from
 * the float32 sums, where moert_gemm_rounds says so. A weight that is an operand is float32
 * [G,N,K]; prepacking or the kernel rounds it to bf16 if the rows are. Products of two bf16 values
 * are exact in float32. So a chain of fma has the same bits for bf16 operands and for the same
 * values in float32, except that values below 2^-126 may be flushed to 0. With a workspace, as in
 * the op objects, any types, row orders and epilogues are legal.
 *
 * With `glu.gated`, the GLU is part of the epilogue. The GEMM sets the sizes, v and `from` of
 * `glu`. In forward v is y (NULL: v is not kept), and h is computed from the float32 v, with the
 * bits of moert_glu_forward. If v is kept in bf16, moert_glu_backward differentiates at the rounded
 * v. Without a workspace rows are dense; h and v may be bf16 only if the operands are, and v only
 * if moert_gemm_rounds accepts I columns. Rows of y past the last end are not touched; those of h
 * may get any values.
 */
typedef struct moert_gemm {
    moert_gemm_kind kind;
    moert_row_groups groups;
    size_t n, k;                      /* N, K */
    moert_matrix x;                   /* [M,K] */
    moert_matrix weight;              /* [G,N,K] */
    moert_matrix y;                   /* [M,N] */
    moert_buffer *bias;               /* [G,N]; NULL is legal in forward */
    const moert_prepacked *prepacked; /* forward, dgrad: the weight for this use; or NULL */
    moert_glu glu;
    moert_epilogue epilogue;
    const moert_gemm_more *more; /* NULL: nothing of it */
} moert_gemm;

/* Makes `gemm` one of this kind whose operands among x and y have a type and whose result is
 * float32. */
static inline void moert_gemm_set(moert_gemm *gemm, moert_gemm_kind kind, moert_dtype operands) {
    gemm->kind = kind;
    gemm->x.type = kind == MOERT_GEMM_DGRAD ? MOERT_DTYPE_F32 : operands;
    gemm->y.type = kind == MOERT_GEMM_FORWARD ? MOERT_DTYPE_F32 : operands;
}

/* The result, except of bias_grad. */
static inline const moert_matrix *moert_gemm_output(const moert_gemm *gemm) {
    return gemm->kind == MOERT_GEMM_FORWARD ? &gemm->y
           : gemm->kind == MOERT_GEMM_DGRAD ? &gemm->x
                                            : &gemm->weight;
}

/* The type in which operands are multiplied: the narrower one. */
static inline moert_dtype moert_gemm_type(const moert_gemm *gemm) {
    const moert_matrix *rows = gemm->kind == MOERT_GEMM_FORWARD ? &gemm->x : &gemm->y;
    const moert_matrix *other = gemm->kind == MOERT_GEMM_WGRAD ? &gemm->x : &gemm->weight;
    return rows->type != MOERT_DTYPE_F32 || gemm->kind == MOERT_GEMM_BIAS_GRAD ? rows->type
                                                                               : other->type;
}

/*
 * The prepacked copies of a weight that changes from time to time. On CPUs a copy costs about as
 * much as it saves in one GEMM, so the second GEMM after a change makes it. A weight with one
 * forward and one dgrad between changes, as in a plain training step, gets no copy. Tensor cores
 * need the copy, so the first GEMM makes it.
 */
typedef struct moert_prepacks {
    moert_prepacked *prepacked[MOERT_PREPACKED_USES];
    size_t gemms[MOERT_PREPACKED_USES]; /* GEMMs of each use since the weight changed */
    bool repeats; /* GEMMs now repeat earlier ones: they do not count, and make no copy unless they
                     need it */
} moert_prepacks;
/* To be called when the weight has changed; a zeroed struct needs no call. */
void moert_prepacks_changed(moert_prepacks *prepacks);
/* Sets gemm->prepacked for the next forward or dgrad by gemm->weight; NULL: read the weight. */
moert_status moert_prepacks_take(moert_prepacks *prepacks, moert_gemm *gemm);
/* The copy of weight[n] if it exists and is the weight rounded to bf16 in the weight's order; else
 * NULL. A caller may write the copy together with the weight. It then calls moert_prepacks_changed,
 * and moert_prepacks_rounded after that. */
moert_buffer *moert_prepacks_copy(const moert_prepacks *prepacks, size_t n);
void moert_prepacks_rounded(moert_prepacks *prepacks);
/* Bytes of the copies after `gemms` forwards, of use shape->use, and `gemms` dgrads. */
size_t moert_prepacks_need(const moert_device *device, const moert_prepacked_shape *shape,
                           size_t gemms);
void moert_prepacks_free(moert_prepacks *prepacks);

/* The use for which this forward or dgrad needs its weight prepacked. */
static inline moert_prepacked_use moert_prepacked_use_of(const moert_gemm *gemm) {
    return gemm->kind == MOERT_GEMM_DGRAD                   ? MOERT_PREPACKED_DGRAD
           : gemm->glu.gated && !gemm->glu.form.interleaved ? MOERT_PREPACKED_GATED
                                                            : MOERT_PREPACKED_FORWARD;
}

/* How a device adds the products of bf16 GEMMs: "value by value", "in tiles" (as AMX does) or "by
 * tensor cores". The three give different bits. */
const char *moert_gemm_bf16_order(const moert_device *device);

/* FLOPs: 2 M N K, except bias_grad. */
moert_status moert_gemm_run(const moert_gemm *gemm);

/* The next three functions ignore the buffers of `gemm`. Whether forward and dgrad of this shape by
 * prepacked weights can round their results to BF16, to nearest even as a cast would. */
bool moert_gemm_rounds(const moert_device *device, const moert_gemm *gemm);
/* Whether forward and dgrad can also store the rows of a BF16 result at `places`. */
bool moert_gemm_scatters(const moert_device *device, const moert_gemm *gemm);
/* The size to which forward, dgrad and wgrad of this shape let `split` grow. */
size_t moert_gemm_split_bytes(const moert_device *device, const moert_gemm *gemm);

/* *gflops = the best rate at which the device multiplies large bf16 matrices by a prepacked weight.
 * Takes about a second, and memory for a while; blocks. Errors: ERROR_DEVICE, ERROR_MEMORY. */
moert_status moert_gemm_peak(moert_device *device, double *gflops);

moert_status moert_glu_forward(const moert_glu *glu);
moert_status moert_glu_backward(const moert_glu *glu);

/* The backend in use on a device (MOERT_BACKEND): "reference", "portable" or "nvidia". */
const char *moert_backend_name(const moert_device *device);
/* ERROR_UNSUPPORTED if MOERT_BACKEND names a backend that does not support this device. GEMMs and
 * prepacked weights make this check themselves. */
moert_status moert_backend_check(const moert_device *device);

/*
 * Reports backend number `index`, and whether it can multiply 2 by 3 on this device; false past the
 * last backend. Compiles its kernels. Not collective.
 */
typedef struct moert_backend_report {
    const char *name;
    bool automatic;   /* MOERT_BACKEND=auto chooses it */
    char reason[256]; /* why it does not work; "" if it does */
} moert_backend_report;
bool moert_backend_survey(moert_device *device, size_t index, moert_backend_report *report);
