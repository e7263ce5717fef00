/*
 * The grouped GEMM in its three orientations with its epilogue, and the GLU alone. One descriptor,
 * moert_gemm, says what to compute; a backend computes it: `reference` (plain C on mapped buffers),
 * `portable` (OpenCL) or `nvidia` (the tensor cores of NVIDIA GPUs). The training layer and the op
 * objects use the same descriptor and the same backends.
 *
 * Rows [ends[g-1], ends[g]) of the row matrices belong to group g. An expert's rows form a group;
 * for a dense layer the sequences of the batch do, all with one weight (shared_weight), so that its
 * wgrad yields one partial per sequence.
 *
 * Bits: an element of forward and dgrad is one chain of fma over the reduction index in ascending
 * order from 0 (bias added last), whatever the tiles; wgrad is one such chain over the group's rows
 * in order. With `accumulate` the chain starts from the old value instead of 0. Of bf16, CPUs with
 * AMX add 32 products at a time (kernels/gemm/amx.h) unless MOERT_BF16 says otherwise. Reference
 * and portable keep to this and agree bit for bit; the GLU's exp may differ between them. Tensor
 * cores add bf16 products in an order of their own, which is the same for a row in any company and
 * in every run, and the old value last. So do Hopper's with float32 operands that they may `split`:
 * to 2^-20 of the sum of the magnitudes of 7168 products; operands that are infinite, or round to
 * infinity in bf16, give NaN.
 *
 * Calls enqueue and return; they are not collective. Errors: ERROR_USAGE (a buffer is missing or
 * too small, a stride is below its width, n or k is 0, forward with `accumulate`, a prepacked weight
 * of another shape), ERROR_UNSUPPORTED (a count of 2^31 or more, a GEMM that no backend of this
 * device supports), ERROR_DEVICE.
 */
#pragma once

#include "device/device.h"
#include "moert/formats.h"
#include "moert/glu.h"
#include "moert/quantize.h"

/*
 * A weight in the order in which the kernels of its device take it, made once and used by many
 * products: forward and dgrad read weight[G,N,K] along different dimensions and have a prepack
 * each, and so has forward with a GLU whose gates come first, all of them; on tensor cores one
 * serves all. Packings of BF16 hold
 * the weight rounded to nearest even. Devices and backends that gain nothing from it, or have no
 * buffer that large, have none: then moert_prepacked_create gives NULL, which is legal everywhere, and
 * products read the weight itself.
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
/* The bytes that it would take; 0: nothing is gained from it, or no buffer is that large. */
size_t moert_prepacked_need(const moert_device *device, const moert_prepacked_shape *shape);
/* Packs weight[G,N,K], float32. */
moert_status moert_prepacked_fill(moert_prepacked *prepacked, const moert_buffer *weight);
/*
 * The same of a block-scaled matrix whose G equal groups of rows are the weight's [N,K], or with
 * `flipped` their transposes: the values that moert_dequantize_run gives. Blocks lie as in
 * moert/formats.h, not transposed.
 */
typedef struct moert_quantized {
    moert_format format;
    moert_axis axis;
    bool flipped;
    const moert_buffer *q, *scale;
    const moert_buffer *global; /* NVFP4: float32 [G], or NULL = 1 */
    size_t blocks;              /* of rows, in blocks along columns: that there is room for */
} moert_quantized;
moert_status moert_prepacked_fill_quantized(moert_prepacked *prepacked,
                                            const moert_quantized *quantized);
size_t moert_prepacked_bytes(const moert_prepacked *prepacked); /* of device memory; 0 for NULL */
void moert_prepacked_destroy(moert_prepacked *prepacked);

/* Groups [first, end), whose rows [first_row, end_row) the host must know. */
typedef struct moert_part {
    size_t first, end, first_row, end_row;
} moert_part;

/*
 * A result whose lines lie anywhere that the device's kernels reach: line m of y (dgrad: x) at
 * address places[m], nowhere if that is 0. The lines of a group come in about so many equal runs,
 * each for a memory of its own, which take lines in turns. y itself is as ever, and stays.
 */
typedef struct moert_scatter {
    const moert_buffer *places; /* uint64 [M], or NULL */
    size_t runs;
} moert_scatter;

/*
 * The gated linear unit (moert/glu.h), computed in float32. In backward the masks are inclusive at
 * the bound and dprob has no prob factor. A dv of v's type may be v. Alone, rows have no gaps, and
 * gates and ups lie as `form` says.
 */
typedef struct moert_glu {
    moert_glu_form form;
    size_t first_row;         /* rows before it stay as they are */
    size_t rows, width;       /* M, I */
    const moert_buffer *v;    /* [M,2I] */
    const moert_buffer *prob; /* [M] at stride prob_stride floats (0 = 1), or NULL = 1 */
    size_t prob_stride;
    moert_dtype from;       /* of v and dh: F32 (0) or BF16 */
    moert_dtype type;       /* of h and dv: F32 (0), or BF16, to which they are rounded */
    moert_buffer *h;        /* [M,I]: written by forward */
    const moert_buffer *dh; /* [M,I]: backward reads it (the gradient of h) ... */
    moert_buffer *dv;       /* [M,2I]: ... and writes this ... */
    moert_buffer *dprob;    /* [M] at stride prob_stride: ... and this, or NULL */
    /* behind a GEMM only */
    size_t ldv, ldh;     /* of v, and of h or dv; 0 = dense */
    size_t run;          /* columns of gate or up side by side, 1 to I; 0: by the form */
    bool linear_first;   /* ups come before their gates */
    moert_buffer *dbias; /* [G,2I] of bias_type: backward adds dv's column sums, or NULL */
} moert_glu;

typedef enum moert_gemm_kind {
    MOERT_GEMM_FORWARD,  /* y = x weight^T + bias */
    MOERT_GEMM_DGRAD,    /* x = y weight: the gradient of x from the gradient y */
    MOERT_GEMM_WGRAD,    /* weight = y^T x of each group; a group without rows gives zeros */
    MOERT_GEMM_BIAS_GRAD /* bias = column sums of y of each group, in order */
} moert_gemm_kind;

/* The GLU behind a GEMM: of a forward's result, or the gradient of one from a dgrad's. */
typedef enum moert_gated { MOERT_UNGATED, MOERT_GATED, MOERT_GATED_BACKWARD } moert_gated;

/*
 * What follows the sums in the same call, as moert/ops.h has it; NULL: nothing. `add` is a beta of
 * 1: the old result is added last, while `accumulate` continues its chain.
 */
typedef struct moert_epilogue {
    const moert_buffer *alpha, *beta; /* float32 [G] */
    bool add;
    moert_dtype bias_type;
    const moert_buffer *bias_scale; /* float32 [M] */
    const moert_buffer *row_weight; /* float32 [M], by slots */
    const moert_buffer *prob;       /* float32 [M]; with a GLU it is there */
    const moert_buffer *acc_scale;  /* float32 [G], MOERT_GATED_BACKWARD: multiplies the sums */
    moert_buffer *amax;             /* float32 [G], MOERT_GATED_BACKWARD: [G,2] */
} moert_epilogue;

/* Memory of a backend's own, which a GEMM with conversions around it takes. */
typedef struct moert_workspace moert_workspace;

/*
 * Types: operands x and y are of `type`, float32 or bf16 values. The result (forward y, dgrad x,
 * wgrad weight; bias_grad bias) is float32, or where moert_gemm_rounds says so bf16. A weight that
 * is an operand is float32 [G,N,K] all the same and is rounded to bf16 by its prepack, or on the
 * fly. Products of two bf16 numbers are exact in float32, so a chain of fma is that of the rounded
 * values, but numbers below 2^-126 may be flushed to 0. With a workspace any types, order of rows
 * and epilogue are legal, as of the op objects, and a weight is of `type`, too.
 *
 * With `gated`, the GLU follows while the result is at hand. Of `glu` alone the sizes, v and from
 * are filled in: forward, v is y (NULL: it is not kept), and h is that of the float32 v, to the same
 * bits as by moert_glu_forward, even where v is kept rounded, so that moert_glu_backward
 * differentiates at a v that is a little off. Without a workspace rows are dense, an h of bf16 is
 * that of rows in BF16, as is a v of bf16, where I, too, is such that moert_gemm_rounds. Rows of y
 * past the last end stay; those of h may get any values.
 */
typedef struct moert_gemm {
    moert_gemm_kind kind;
    moert_groups groups;
    moert_part part;       /* forward, dgrad, without a shared weight: of the groups; zeros: all */
    size_t n, k;           /* columns of y, columns of x */
    moert_dtype type;      /* of the operands: F32 (0) or BF16 */
    moert_dtype result;    /* of the result, F32 (0) or BF16, to which the float32 sums are rounded;
                              strides are in numbers of it */
    moert_scatter scatter; /* forward without a GLU, dgrad; zeros: lines lie in the result */
    const moert_prepacked
        *prepacked;       /* forward, dgrad: of this weight, for this use and type, or NULL */
    bool shared_weight;   /* forward, dgrad: one weight[N,K] and bias[N] for all groups; wgrad and
                             bias_grad give one for each group all the same */
    bool accumulate;      /* dgrad, wgrad, bias_grad: add to what is there */
    moert_buffer *x;      /* [M,K] at stride ldx */
    moert_buffer *weight; /* [G,N,K] */
    moert_buffer *bias;   /* [G,N]; forward: or NULL */
    moert_buffer *y;      /* [M,N] at stride ldy */
    size_t ldx, ldy;      /* in numbers; 0 = k, n */
    size_t y_column;      /* columns [y_column, y_column + n) of y are used */
    moert_buffer **split; /* F32: operands may be multiplied as sums of three bf16 numbers each, for
                             which this buffer, or NULL, grows; NULL: sums are chains */
    moert_gated gated;
    moert_glu glu;
    bool drop_v; /* forward, gated: v is not needed: its contents are unspecified afterwards, and
                    most of it is not written */
    moert_epilogue epilogue;
    moert_buffer *const *weights; /* [G] of [N,K] each, instead of `weight`; discrete says so */
    bool discrete;
    const moert_buffer *x_gather, *y_gather; /* uint32 [M]: row r lies at gather[r], of an x that is
                                                read at gather[r] / divisor; or NULL */
    size_t divisor;
    /* Quantized operands that the backend takes as they are; their buffers, or NULL, get the values.
     * The weight's: [1] or, discrete, [G]. */
    const moert_quantized *x_quantized, *weight_quantized, *y_quantized;
    bool wide_x, wide_weight, wide_y; /* with a workspace: this operand is float32 all the same */
    size_t row_multiple;              /* groups have multiples of so many rows; 0: of 1 */
    moert_workspace *workspace;
} moert_gemm;

/*
 * The prepacks of a weight that changes now and then. On CPUs making one costs about what it saves
 * a product, so it is made by the second product since the change: a weight that has one product
 * each way between two changes, as in a plain training step, has none. Tensor cores take nothing
 * else, so theirs is made by the first product.
 */
typedef struct moert_prepacks {
    moert_prepacked *prepacked[MOERT_PREPACKED_USES];
    size_t products[MOERT_PREPACKED_USES]; /* since the change */
} moert_prepacks;
/* Starts with zeros. */
void moert_prepacks_changed(moert_prepacks *prepacks);
/* For the next forward or dgrad: gemm->prepacked of gemm->weight, or NULL. */
moert_status moert_prepacks_take(moert_prepacks *prepacks, moert_gemm *gemm);
/* Where the prepack of weight[n] is to be written together with the weight, rounded to bf16 in its
 * own order, if there is one of that kind already; else NULL. moert_prepacks_rounded says that it
 * was, after moert_prepacks_changed. */
moert_buffer *moert_prepacks_copy(const moert_prepacks *prepacks, size_t n);
void moert_prepacks_rounded(moert_prepacks *prepacks);
size_t moert_prepacks_bytes(const moert_prepacks *prepacks);
/* What they will take after so many forward products, of shape->use, and as many dgrads. */
size_t moert_prepacks_need(const moert_device *device, const moert_prepacked_shape *shape,
                           size_t products);
void moert_prepacks_free(moert_prepacks *prepacks);

/* What a weight is prepacked for that takes part in this forward or dgrad. */
static inline moert_prepacked_use moert_prepacked_use_of(const moert_gemm *gemm) {
    return gemm->kind == MOERT_GEMM_DGRAD               ? MOERT_PREPACKED_DGRAD
           : gemm->gated && !gemm->glu.form.interleaved ? MOERT_PREPACKED_GATED
                                                        : MOERT_PREPACKED_FORWARD;
}

/* FLOPs: 2 M N K, but for bias_grad. */
moert_status moert_gemm_run(const moert_gemm *gemm);

/* The next three look at no buffers. Whether forward and dgrad of this shape on a device, by weights
 * that are prepacked, can round their results to BF16: to nearest even, as a cast of the float32
 * results would. */
bool moert_gemm_rounds(const moert_device *device, const moert_gemm *gemm);
/* Whether they can also store each line of such a result anywhere (`scatter`). */
bool moert_gemm_scatters(const moert_device *device, const moert_gemm *gemm);
/* The bytes to which `split` grows by forward, dgrad and wgrad of this shape on a device. */
size_t moert_gemm_split_bytes(const moert_device *device, const moert_gemm *gemm);

/* The part of a product's groups that takes part. */
static inline moert_part moert_part_of(const moert_gemm *gemm) {
    return gemm->part.end > 0 ? gemm->part
                              : (moert_part){0, gemm->groups.count, 0, gemm->groups.rows};
}

moert_status moert_glu_forward(const moert_glu *glu);
moert_status moert_glu_backward(const moert_glu *glu);

/* The backend in use on a device (MOERT_BACKEND): "reference", "portable" or "nvidia". */
const char *moert_backend_name(const moert_device *device);
/* ERROR_UNSUPPORTED if MOERT_BACKEND names one that is not for this device. GEMMs and prepacked
 * weights check it themselves. */
moert_status moert_backend_check(const moert_device *device);

/*
 * Backend number `index` and whether it works on this device, by a product of two numbers; false
 * past the last one. Compiles its kernels. Not collective.
 */
typedef struct moert_backend_report {
    const char *name;
    bool automatic;   /* the one that MOERT_BACKEND=auto takes */
    char reason[256]; /* why it does not work; "" if it does */
} moert_backend_report;
bool moert_backend_survey(moert_device *device, size_t index, moert_backend_report *report);
