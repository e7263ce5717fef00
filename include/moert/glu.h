/* The gated linear unit between an expert's two GEMMs. */
#ifndef MOERT_GLU_H
#define MOERT_GLU_H

#include <stdbool.h>

#include "moert/device.h"
#include "moert/formats.h"
#include "moert/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * h = prob * (clamp(u, -limit, limit) + offset) * a(min(g, limit)), where v = [g | u] (halves), or
 * g and u are alternating columns of v (interleaved). The field `activation` is the index of the
 * function a. Index 0 is silu: a(x) = x * sigmoid(alpha * x).
 */
typedef struct moert_glu_form {
    bool interleaved;
    float limit, alpha, offset;
    int activation;
} moert_glu_form;

/* The index of the activation that Hugging Face's hidden_act names; -1 if moert has no such
 * activation. */
MOERT_API int moert_activation_find(const char *name);
/* The name of an activation; NULL if there is no such index. */
MOERT_API const char *moert_activation_name(int activation);

#define MOERT_GLU_SWIGLU                                                                           \
    { false, __builtin_inff(), 1.0f, 0.0f, 0 } /* Mixtral, Qwen3-MoE, OLMoE, DeepSeek-V3 */
#define MOERT_GLU_GPT_OSS                                                                          \
    { true, 7.0f, 1.702f, 1.0f, 0 }

/*
 * The GLU alone, as the layer computes it, for programs that compute the experts between dispatch
 * and combine themselves. An op of kind GLU multiplies by prob last, so the last bits of its
 * results may differ.
 */
typedef struct moert_glu_rows {
    size_t size; /* sizeof(moert_glu_rows) */
    moert_glu_form form;
    size_t rows, width;       /* M, I */
    moert_dtype from, to;     /* from: dtype of v and dh; to: dtype of h and dv. `from` and `to` are
                                 each F32 or BF16; BF16 results are rounded */
    const moert_buffer *v;    /* [M,2I] */
    const moert_buffer *prob; /* float32 [M]; NULL: each prob is 1 */
    moert_buffer *h;          /* [M,I]: apply writes it */
    const moert_buffer *dh;   /* [M,I]: differentiate reads it */
    moert_buffer *dv;         /* [M,2I]: differentiate writes it; may be v if the dtypes agree */
    moert_buffer *dprob;      /* float32 [M], or NULL: differentiate writes it */
} moert_glu_rows;

#define MOERT_GLU_ROWS_INIT                                                                        \
    MOERT_INIT(moert_glu_rows, glu_, MOERT_SET(glu_, form, MOERT_GLU_SWIGLU))

/* moert_glu_apply computes h from v. moert_glu_differentiate computes dv and dprob from v and dh.
 * Both calls enqueue work and return; not collective. Bytes: reads or writes each buffer once.
 * Errors: ERROR_USAGE (a buffer is missing or too small, the form), ERROR_UNSUPPORTED (other
 * dtypes, 2^31 rows or columns), ERROR_DEVICE. */
MOERT_API moert_status moert_glu_apply(const moert_glu_rows *rows);
MOERT_API moert_status moert_glu_differentiate(const moert_glu_rows *rows);

#ifdef __cplusplus
}
#endif
#endif
