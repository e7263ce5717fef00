/*
 * Op objects: grouped GEMMs and their fusions, described once and executed many times.
 *
 *   moert_op_options options = MOERT_OP_OPTIONS_INIT;   describe
 *   moert_op_create(device, &options, &op);             check; an error names the field
 *   moert_op_compile(op);                               optional: compile before the first execute
 *   moert_op_execute(op, &buffers);                     any number of times
 *   moert_op_destroy(op);
 *
 * The rows [ends[g-1], ends[g]) of the row matrices belong to group (expert) g of G. `ends` and all
 * other inputs are on the device, and the host never reads them (except in the reference backend).
 * So one op serves any division of up to M rows into groups. Rows past ends[G-1] are neither read
 * nor written. For every kind x has K columns, y has N, and weight[g] is [N,K]:
 *
 *   kind           other libraries    result
 *   GEMM_FORWARD   TN, fprop          y[M,N] = x weight[g]^T
 *   GEMM_DGRAD     NN                 x[M,K] = y weight[g]
 *   GEMM_WGRAD     NT, 2Dx2D          weight[g] = y^T x, over the rows of the group
 *   GLU            grouped GEMM+GLU   c[M,N] = x weight[g]^T, d[M,N/2] = GLU(c)
 *   DGLU           grouped GEMM+dGLU  d[M,2K] = gradient of c[M,2K]; y weight[g] is the gradient of
 *                                     the GLU's result (weight is that of the second projection)
 *
 * Arithmetic: sums acc are accumulated in float32, as one chain of fma over the reduction index in
 * ascending order from 0. The epilogue then computes v in float32:
 *
 *   v = acc * alpha[g], with a bias fma(acc, alpha[g], bias[g,n] * bias_scale[m]),
 *       with prob in a GEMM (acc * alpha[g]) * prob[m]
 *   v = fma(beta[g], old value, v), unless beta is 0
 *
 * The result is v, rounded once to nearest even to the result's dtype. So a result does not depend
 * on the backend, on M, on the other rows, nor on whether the weights are stacked. Only the GLU's
 * exp differs between backends.
 *
 * The nvidia backend is the exception. That backend uses tensor cores for gemm_* and glu with
 * 16-bit, MX and NV operands, and on Hopper for gemm_* with FP8 operands. The hardware determines
 * the order of the sums: the sums are the same in every run, and a row's sums do not depend on the
 * other rows. The sums of the nvidia backend equal those of the other backends only up to float32
 * rounding. FP8 sums round to about 14 bits within 128 values of the reduction index. MX operands
 * below 2^-126 are rounded to bf16 subnormals.
 *
 * Groups without rows change nothing, except in GEMM_WGRAD, which sets their result to 0, or to
 * beta[g] times the old value. For groups without rows GEMM_WGRAD ignores all other inputs, even
 * NaN, and a beta of 1 leaves the result unchanged. GEMM_WGRAD sums the rows of a group in order.
 *
 * Quantized operands (moert/formats.h; moert/quantize.h makes them) have the values float32(element
 * * scale). With `first` and `second`, the NVFP4 global scales of the GEMM's two operands, alpha[g]
 * becomes alpha[g] * (first * second). In DGLU first * second multiplies acc instead. A quantized
 * result, and its second version `column`, are quantized from the float32 values before any
 * rounding:
 *
 *   scale = round_to_scale((max|block| * f32(1/max)) * norm)
 *   q = round(v * min(norm * (1/scale), FLT_MAX))
 *
 * norm is 1 unless given; a consumer of the result divides by norm. q is 0 where scale is 0.
 * Without norm this formula is the same as the quantizer's (moert/quantize.h). With norm, as in
 * cuDNN, max of E5M2 is 128, and 1/scale of the E8M0 scale 2^-127 is infinity. norm is the only
 * global scale of an NVFP4 result: magnitudes above 2688/norm saturate; give norm = 2688/amax. A
 * norm that is not positive, or NaN, makes all scales NaN.
 *
 * The semantics follow cuDNN frontend's grouped GEMM, GLU, dGLU, quant and wgrad,
 * TransformerEngine's grouped GEMM (which rounds once more between GEMM and bias), and Unsloth's
 * permuted grouped GEMM.
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
 * Selects the row matrix that is in the order of the tokens' slots (slot = token * topk + choice)
 * instead of the groups' order; gather[r] is the slot of row r.
 *
 *   mode   forward, GLU                  dgrad                  wgrad
 *   X      reads x[gather[r] / topk]     writes x[gather[r]]    reads x[gather[r] / topk]
 *   Y      writes y[gather[r]]           reads y[gather[r]]     reads y[gather[r]]
 *
 * An op of kind GLU can have mode X only, an op of kind DGLU mode Y only. A row whose slot is M or
 * more is read as zeros and is not written.
 */
typedef enum moert_op_permute {
    MOERT_OP_PERMUTE_NONE,
    MOERT_OP_PERMUTE_X,
    MOERT_OP_PERMUTE_Y
} moert_op_permute;

/*
 * The layout of a quantized operand's scales. Tiles are those of moert_scale_tiles
 * (moert/quantize.h), for formats with scales of one byte. In the formula of moert_scale_tiles, r
 * is a row of the matrix (with COLUMN blocks: a column), and C is the number of blocks in that row
 * or column.
 */
typedef enum moert_scale_layout {
    MOERT_SCALES_LINEAR,     /* [lines, width] as in moert_axis */
    MOERT_SCALES_TILED,      /* tiles; every group begins a new tile, and the groups follow each
                                other */
    MOERT_SCALES_TILED_WHOLE /* tiles; all groups are one matrix: cuDNN's SFA of padded groups, and
                                its contiguous SFD_col. C of COLUMN blocks: ceil(M/block) with
                                row_multiple; otherwise moert_op_buffer_bytes gives the size. Not
                                for a transposed weight */
} moert_scale_layout;

/* One matrix operand. No alignment is required. */
typedef struct moert_operand {
    moert_dtype type; /* any dtype but E2M1; ignored if the operand is quantized */
    ptrdiff_t stride; /* elements from row to row; 0 means the width. The stride is 0 or K for
                         weight, and 0 for a quantized operand */
    bool discrete;    /* weight: one buffer per group (at most 65536) instead of a stack [G,N,K] */
    /*
     * how.size 0: plain elements of `type`; the other fields of `how` must be 0. Otherwise the
     * operand is block-scaled: the buffer holds the payload, the buffer <operand>_scale the scales.
     * An input's blocks may lie along any axis; tensor cores use blocks along the reduction index.
     * COLUMN and TILE blocks divide the rows of a group; in `weight` they divide the N rows of a
     * group. A quantized matrix that `gather` permutes counts as one group.
     *
     * how.transposed is legal for row matrices with COLUMN blocks, whose payload and linear scales
     * are then [columns, M]. how.transposed is also legal for `weight` with ROW or COLUMN blocks,
     * or with TILE blocks of FP8_BLOCK: each group's payload and linear scales are transposed,
     * [K,N] (cuDNN's N-major; bridge's K/2 x N). For a transposed weight the axis refers to the
     * transposed matrix: blocks along K are its COLUMN blocks, padded with zeros, and blocks along
     * N are its ROW blocks.
     */
    moert_quantizer how;
    moert_scale_layout scales; /* linear scales of `weight` are [G,lines,width] */
    bool global; /* NVFP4 inputs, true: <operand>_global has the global scale, float32 [1] or, with
                    how.group_scales, [G]. False: the global scale is 1, or part of alpha (cuDNN) */
} moert_operand;

typedef struct moert_op_options {
    size_t size; /* sizeof(moert_op_options) */
    moert_op_kind kind;
    const char *backend;        /* "reference", "portable", "nvidia": that backend, or an error with
                                   the reason; NULL or "auto" = MOERT_BACKEND, where auto is the
                                   best backend that supports the description. "auto" never uses FP8
                                   on tensor cores, "nvidia" does */
    bool fallback;              /* if the chosen backend refuses the op, use another backend, and
                                   log this */
    size_t groups, rows, n, k;  /* G; M (the most rows; may be 0); N; K */
    moert_operand x, weight, y; /* the two inputs of the GEMM are each plain or quantized; two plain
                                   inputs have the same dtype */
    moert_operand c, d;         /* operands of GLU and DGLU; c is plain */
    moert_operand column;       /* if quantized: a second version of the quantized result, in COLUMN
                                   blocks; not in GEMM_WGRAD */
    size_t row_multiple; /* a promise: the rows of every group are a multiple of this (0 = 1), so
                            that COLUMN payloads and scales by groups need less room. If `ends`
                            breaks the promise, execute leaves out the blocks for which a buffer has
                            no room: it does not write such blocks of a result, and it computes
                            with undefined values instead of such blocks of an input (zeros, or
                            values of an earlier execute) */
    bool norm;           /* `norm` multiplies the quantized results, see above */

    bool alpha, beta;      /* each group has its own alpha or beta, in a buffer; otherwise alpha is
                              1 and beta is 0 */
    bool accumulate;       /* beta is 1 */
    bool bias;             /* adds a bias; forward and GLU */
    bool bias_scale;       /* forward: bias_scale[m] multiplies the bias of row m */
    moert_dtype bias_type; /* dtype of bias and dbias */

    moert_op_permute permute;
    size_t topk;     /* slots of a token, with permute; at least 1 */
    bool row_weight; /* forward, permute Y: y = round(round(v) * round(w[gather[r]])) */

    moert_glu_form glu;    /* glu.interleaved means interleave = 1 */
    size_t interleave;     /* gate and up alternate in runs of 1, 8 or 32 columns; 0 = halves */
    bool linear_first;     /* true: up comes before gate, as in cuDNN's documentation; false: gate
                              comes first, as in cuDNN's code */
    bool save_c;           /* GLU: also write c */
    bool prob;             /* prob multiplies each row; otherwise each prob is 1. A GEMM with prob
                              takes no beta, accumulate or bias (cuDNN scales the bias instead:
                              bias_scale). Not in GEMM_WGRAD */
    bool amax;             /* largest magnitudes of the result before rounding; not in GEMM_WGRAD */
    bool dprob, dbias;     /* DGLU: also compute dprob, dbias */
    bool caller_workspace; /* create allocates nothing on the device; execute uses the buffer
                              `workspace`, whose content it may change, and keeps a reference to its
                              memory. An op with caller_workspace cannot be recorded */
} moert_op_options;

#define MOERT_OP_OPTIONS_INIT                                                                      \
    MOERT_INIT(moert_op_options, op_, MOERT_SET(op_, topk, 1) MOERT_SET(op_, glu, MOERT_GLU_SWIGLU))

/*
 * X(buffer): the buffers of execute. Exactly the buffers that the op's options require must be set;
 * all others must be NULL. Row matrices hold M rows, all of which a permutation may read or write.
 */
#define MOERT_OP_BUFFER_TABLE(X)                                                                   \
    X(ends)    /* uint32 [G], cumulative, non-decreasing */                                        \
    X(x)       /* [M,K], with permute X as input [ceil(M/topk),K] */                               \
    X(weight)  /* [G,N,K], unless discrete */                                                      \
    X(y)       /* [M,N] */                                                                         \
    X(c)       /* GLU: [M,N], written before clamping; DGLU: [M,2K], read */                       \
    X(d)       /* GLU: [M,N/2]; DGLU: [M,2K]; written */                                           \
    X(x_scale) /* scales of quantized operands, see moert_operand */                               \
    X(y_scale)                                                                                     \
    X(weight_scale) /* unless discrete */                                                          \
    X(d_scale)                                                                                     \
    X(x_global)                                                                                    \
    X(y_global)                                                                                    \
    X(weight_global)                                                                               \
    X(column)                                                                                      \
    X(column_scale)                                                                                \
    X(norm)       /* float32 [1] */                                                                \
    X(alpha)      /* float32 [G] */                                                                \
    X(beta)       /* float32 [G] */                                                                \
    X(bias)       /* [G,N] */                                                                      \
    X(bias_scale) /* float32 [M] */                                                                \
    X(gather)     /* uint32 [M] */                                                                 \
    X(row_weight) /* float32 w[M], indexed by slot */                                              \
    X(prob)       /* float32 [M] */                                                                \
    X(amax)       /* float32 [G], DGLU [G,2] (gate, up): raised to the new maximum, so set it to 0
                     or -inf first; a NaN stays */ \
    X(dprob)      /* float32 [M]; execute adds to it */                                            \
    X(dbias)      /* [G,2K]; execute adds column sums of d before rounding */                      \
    X(workspace)  /* bytes, see caller_workspace and moert_op_check; NULL if the op needs 0 bytes */

typedef struct moert_op_buffers {
    size_t size;                        /* sizeof(moert_op_buffers) */
    moert_buffer *const *weights;       /* discrete: G buffers [N,K]; none may be NULL */
    moert_buffer *const *weight_scales; /* discrete and quantized: G buffers of scales; none may be
                                           NULL */
#define MOERT_OP_BUFFER_MEMBER(name) moert_buffer *name;
    MOERT_OP_BUFFER_TABLE(MOERT_OP_BUFFER_MEMBER)
#undef MOERT_OP_BUFFER_MEMBER
} moert_op_buffers;

#define MOERT_OP_BUFFERS_INIT MOERT_INIT(moert_op_buffers, buffers_, )

typedef struct moert_op moert_op;

/*
 * Creates an op with all the workspace that it needs. The call copies `options`; the device must
 * outlive the op. Not collective. Errors: ERROR_USAGE (a field is wrong), ERROR_UNSUPPORTED (a
 * field is legal, but no backend computes it), each with the field, its value and the legal values;
 * ERROR_MEMORY, ERROR_DEVICE.
 *
 * DGLU: alpha[g]^2 multiplies the sums, and beta[g] multiplies c. alpha and beta are ignored when
 * the GLU has an offset (GeGLU), as in cuDNN.
 */
MOERT_API moert_status moert_op_create(moert_device *device, const moert_op_options *options,
                                       moert_op **op);

/*
 * Checks a description as moert_op_create does, with the same errors, but allocates nothing on the
 * device. The results say which backend computes the op, and how many bytes `workspace` needs if
 * caller_workspace is set. Either result pointer may be NULL. Not collective.
 */
MOERT_API moert_status moert_op_check(moert_device *device, const moert_op_options *options,
                                      const char **backend, size_t *workspace_bytes);

/* Builds the kernels now instead of at the first execute; blocks. Not collective. Errors:
 * ERROR_DEVICE, ERROR_MEMORY. */
MOERT_API moert_status moert_op_compile(moert_op *op);

/*
 * Enqueues the operation and returns; the buffers may be reused in queue order. Not collective;
 * allocates nothing. An op's executions run in order on the device's queue and share its workspace.
 * An execution computes 2 ends[G-1] N K FLOPs. Errors: ERROR_USAGE (a buffer is missing, too small,
 * of another device, or not part of the description; the reference backend also detects decreasing
 * ends and a broken promise of row_multiple), ERROR_DEVICE.
 */
MOERT_API moert_status moert_op_execute(moert_op *op, const moert_op_buffers *buffers);

/* Does not wait: the op's memory is freed once the enqueued work that uses this memory is done.
 * NULL is legal. */
MOERT_API void moert_op_destroy(moert_op *op);

/* Creates, executes and destroys an op in one call. Errors: those of moert_op_create and
 * moert_op_execute. */
MOERT_API moert_status moert_op_once(moert_device *device, const moert_op_options *options,
                                     const moert_op_buffers *buffers);

/*
 * Records an execute, for devices with cl_khr_command_buffer (the counterpart of CUDA graphs).
 * record checks as execute does and enqueues nothing. replay enqueues the whole operation on the
 * current content of the buffers. Op and buffers must outlive the recording; destroy waits for the
 * recording's replays. Not collective. Errors: those of execute, ERROR_UNSUPPORTED (the device or
 * the reference backend cannot record), ERROR_MEMORY.
 */
typedef struct moert_op_recording moert_op_recording;
MOERT_API moert_status moert_op_record(moert_op *op, const moert_op_buffers *buffers,
                                       moert_op_recording **recording);
MOERT_API moert_status moert_op_replay(moert_op_recording *recording);
MOERT_API void moert_op_recording_destroy(moert_op_recording *recording); /* NULL is legal */

/* The least bytes of a buffer of execute, by its name in MOERT_OP_BUFFER_TABLE; for "weights" and
 * "weight_scales", of each buffer of the array. 0 if the op takes no such buffer. */
MOERT_API size_t moert_op_buffer_bytes(const moert_op *op, const char *buffer);

/* The backend that computes the op ("reference", "portable" or "nvidia"), and the bytes of the op's
 * workspace on the device or the host. */
MOERT_API const char *moert_op_backend_name(const moert_op *op);
MOERT_API size_t moert_op_workspace_bytes(const moert_op *op);

/* A name such as "gemm_forward"; NULL past the last kind. */
MOERT_API const char *moert_op_kind_name(moert_op_kind kind);

#ifdef __cplusplus
}
#endif
#endif
