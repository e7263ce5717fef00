/*
 * Op objects: grouped GEMM and its fusions, described once and executed many times.
 *
 *   moert_op_options options = MOERT_OP_OPTIONS_INIT;       describe
 *   moert_op_create(device, &options, &op);                 checked here; a refusal names the field
 *   moert_op_compile(op);                                   optional: kernels ahead of the first
 * use moert_op_execute(op, &buffers);                         any number of times
 *   moert_op_destroy(op);
 *
 * The rows [ends[g-1], ends[g]) of the row matrices belong to group (expert) g of G. `ends` lies on
 * the device and is never read by the host, nor is anything else, so that one op serves any
 * split of up to M rows; rows past ends[G-1] are neither read nor written. For every kind x has K
 * columns, y has N, and weight[g] is [N,K]:
 *
 *   kind           other libraries' letters    result
 *   GEMM_FORWARD   TN, fprop                   y[M,N] = x weight[g]^T
 *   GEMM_DGRAD     NN                          x[M,K] = y weight[g]
 *   GEMM_WGRAD     NT, 2Dx2D                   weight[g] = y^T x, over the rows of the group
 *   GLU            grouped GEMM + GLU          c[M,N] = x weight[g]^T, d[M,N/2] = GLU(c)
 *   DGLU           grouped GEMM + dGLU         d[M,2K] = gradient of c[M,2K], from y weight[g] as
 *                                              the gradient of the GLU's result (weight is that of
 *                                              the second projection)
 *
 * Numbers: products are accumulated in float32, as one chain of fma over the reduction index in
 * ascending order from 0; then, in float32,
 *
 *   v = acc * alpha[g], with a bias fma(acc, alpha[g], bias[g,n] * bias_scale[m])
 *   v = fma(beta[g], old value, v), unless beta is 0
 *
 * and one rounding to nearest even to the result's type. So a result does not depend on the
 * backend, on M, on the other rows, nor on whether the weights are stacked; only what the GLU's exp
 * touches differs between backends. Groups without rows are left alone, except that GEMM_WGRAD
 * gives them acc = 0. GEMM_WGRAD keeps a group's order of rows.
 *
 * Semantics: cuDNN frontend grouped GEMM, GLU and dGLU; TransformerEngine's grouped GEMM
 * (which rounds once more between product and bias); Unsloth's permuted grouped GEMM.
 */
#ifndef MOERT_OPS_H
#define MOERT_OPS_H

#include <stdbool.h>
#include <stddef.h>

#include "moert/device.h"
#include "moert/formats.h"
#include "moert/glu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, text): the operations; see above. */
#define MOERT_OP_KIND_TABLE(X)                                                                     \
    X(GEMM_FORWARD, "gemm_forward")                                                                \
    X(GEMM_DGRAD, "gemm_dgrad")                                                                    \
    X(GEMM_WGRAD, "gemm_wgrad")                                                                    \
    X(GLU, "glu")                                                                                  \
    X(DGLU, "dglu")

typedef enum moert_op_kind {
#define MOERT_OP_KIND_ENUM(name, text) MOERT_OP_##name,
    MOERT_OP_KIND_TABLE(MOERT_OP_KIND_ENUM)
#undef MOERT_OP_KIND_ENUM
        MOERT_OP_KINDS
} moert_op_kind;

/*
 * Which row matrix is in the order of the tokens' slots (slot = token * topk + choice) instead of
 * the groups'; gather[r] is the slot of row r.
 *
 *   mode   forward, GLU                  dgrad                  wgrad
 *   X      reads x[gather[r] / topk]     writes x[gather[r]]    reads x[gather[r] / topk]
 *   Y      writes y[gather[r]]           reads y[gather[r]]     reads y[gather[r]]
 *
 * GLU takes X only, DGLU Y only. A slot of M or more reads as zeros and is not written.
 */
typedef enum moert_op_permute {
    MOERT_OP_PERMUTE_NONE,
    MOERT_OP_PERMUTE_X,
    MOERT_OP_PERMUTE_Y
} moert_op_permute;

/* One matrix operand. No alignment is required. */
typedef struct moert_operand {
    moert_number type; /* F32, F16 or BF16 */
    ptrdiff_t stride;  /* elements from row to row; 0 = the width. weight: 0 or K */
    bool discrete;     /* weight: one buffer per group instead of a stack [G,N,K] */
} moert_operand;

typedef struct moert_op_options {
    size_t size; /* sizeof(moert_op_options) */
    moert_op_kind kind;
    const char *backend;        /* "reference", "portable"; NULL or "auto" = MOERT_BACKEND */
    bool fallback;              /* take another backend if this one refuses, and log it */
    size_t groups, rows, n, k;  /* G and M (the most rows), which may be 0; N; K */
    moert_operand x, weight, y; /* the two that are multiplied have one type */
    moert_operand c, d;         /* GLU, DGLU */

    bool alpha, beta;       /* factors per group; otherwise 1 and 0 */
    bool accumulate;        /* beta is 1 */
    bool bias;              /* forward, GLU */
    bool bias_scale;        /* forward: a factor of the bias for each row */
    moert_number bias_type; /* of bias and dbias */

    moert_op_permute permute;
    size_t topk;     /* with permute; at least 1 */
    bool row_weight; /* forward, permute Y: y = round(round(v) * round(w[gather[r]])) */

    moert_glu_form glu; /* `interleaved` = interleave 1 */
    size_t interleave;  /* gate and up alternate in runs of 1, 8 or 32 columns; 0 = halves */
    bool linear_first;  /* up comes before gate (cuDNN's text), not after it (its code) */
    bool save_c;        /* GLU: c is wanted */
    bool prob;          /* a factor for each row; otherwise 1 */
    bool amax;          /* largest magnitudes of d before rounding */
    bool dprob, dbias;  /* DGLU: wanted */
} moert_op_options;

#define MOERT_OP_OPTIONS_INIT                                                                      \
    { .size = sizeof(moert_op_options), .topk = 1, .glu = MOERT_GLU_SWIGLU }

/*
 * X(buffer): what execute takes; exactly those that the description asks for, the others NULL.
 * Row matrices hold M rows: all of them if a permutation scatters or gathers them.
 */
#define MOERT_OP_BUFFER_TABLE(X)                                                                   \
    X(ends)       /* uint32 [G], cumulative, non-decreasing */                                     \
    X(x)          /* [M,K], with permute X as input [ceil(M/topk),K] */                            \
    X(weight)     /* [G,N,K], unless discrete */                                                   \
    X(y)          /* [M,N] */                                                                      \
    X(c)          /* GLU: [M,N], written before the limits; DGLU: [M,2K], read */                  \
    X(d)          /* GLU: [M,N/2]; DGLU: [M,2K]; written */                                        \
    X(alpha)      /* float32 [G] */                                                                \
    X(beta)       /* float32 [G] */                                                                \
    X(bias)       /* [G,N] */                                                                      \
    X(bias_scale) /* float32 [M] */                                                                \
    X(gather)     /* uint32 [M] */                                                                 \
    X(row_weight) /* float32 w[M], by slots */                                                     \
    X(prob)       /* float32 [M] */                                                                \
    X(amax)  /* float32 [G], DGLU [G,2] (gate, up): raised, so set it to 0 or -inf before; NaN     \
                stays */                                                                           \
    X(dprob) /* float32 [M], added to */                                                           \
    X(dbias) /* [G,2K], added to: column sums of d before rounding */

typedef struct moert_op_buffers {
    size_t size;                  /* sizeof(moert_op_buffers) */
    moert_buffer *const *weights; /* discrete: G buffers [N,K]; none may be NULL */
#define MOERT_OP_BUFFER_MEMBER(name) moert_buffer *name;
    MOERT_OP_BUFFER_TABLE(MOERT_OP_BUFFER_MEMBER)
#undef MOERT_OP_BUFFER_MEMBER
} moert_op_buffers;

#define MOERT_OP_BUFFERS_INIT                                                                      \
    { .size = sizeof(moert_op_buffers) }

typedef struct moert_op moert_op;

/*
 * Makes an op with all the workspace that it needs; `options` is copied, the device must outlive
 * the op. Not collective. Errors: ERROR_USAGE (a field is wrong), ERROR_UNSUPPORTED (a field is
 * legal, but nothing computes it), each with the field, its value and what is legal; ERROR_MEMORY,
 * ERROR_DEVICE.
 *
 * DGLU: alpha counts squared and beta multiplies c; both are ignored when the GLU has an offset
 * (GeGLU), as cuDNN does.
 */
MOERT_API moert_status moert_op_create(moert_device *device, const moert_op_options *options,
                                       moert_op **op);

/* Builds the kernels now instead of at the first execute; blocks. Not collective. Errors:
 * ERROR_DEVICE, ERROR_MEMORY. */
MOERT_API moert_status moert_op_compile(moert_op *op);

/*
 * Enqueues the operation and returns; the buffers may be reused in queue order. Not collective;
 * allocates nothing. Executions of one op share its workspace, on one queue. FLOPs: 2 ends[G-1] N
 * K. Errors: ERROR_USAGE (a buffer is missing, too small, of another device, or not described; the
 * reference backend also finds decreasing ends), ERROR_DEVICE.
 */
MOERT_API moert_status moert_op_execute(moert_op *op, const moert_op_buffers *buffers);

/* Waits for nothing: its memory goes back when enqueued work has used it. NULL is legal. */
MOERT_API void moert_op_destroy(moert_op *op);

/* create, execute and destroy in one call, with the errors of all. */
MOERT_API moert_status moert_op_once(moert_device *device, const moert_op_options *options,
                                     const moert_op_buffers *buffers);

/*
 * An execute as a recording, for devices with cl_khr_command_buffer (CUDA graphs' counterpart):
 * record checks as execute does and enqueues nothing; replay enqueues the whole operation on what
 * the buffers then hold. Op and buffers must outlive the recording; destroy waits for its replays.
 * Not collective. Errors: those of execute, ERROR_UNSUPPORTED (the device, or the reference
 * backend, cannot), ERROR_MEMORY.
 */
typedef struct moert_op_recording moert_op_recording;
MOERT_API moert_status moert_op_record(moert_op *op, const moert_op_buffers *buffers,
                                       moert_op_recording **recording);
MOERT_API moert_status moert_op_replay(moert_op_recording *recording);
MOERT_API void moert_op_recording_destroy(moert_op_recording *recording); /* NULL is legal */

/* The backend that computes it, "reference" or "portable"; bytes of device or host workspace. */
MOERT_API const char *moert_op_backend_name(const moert_op *op);
MOERT_API size_t moert_op_workspace_bytes(const moert_op *op);

/* "gemm_forward"; NULL past the last one. */
MOERT_API const char *moert_op_kind_name(moert_op_kind kind);

#ifdef __cplusplus
}
#endif
#endif
