/* The gated linear unit: in the epilogue of a GEMM (gemm/gemm.h), and as a separate call. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "moert/device.h"
#include "moert/formats.h"
#include "moert/glu.h"

/* The GLU in an epilogue. MOERT_GATED applies the GLU to a forward's result v. MOERT_GATED_BACKWARD
 * computes dv from a dgrad's result dh. */
typedef enum moert_gated { MOERT_UNGATED, MOERT_GATED, MOERT_GATED_BACKWARD } moert_gated;

/*
 * The gated linear unit (moert/glu.h), computed in float32. In backward an input equal to a limit
 * gets the full gradient, and dprob is not multiplied by prob. dv may be the buffer v if their
 * types agree. In moert_glu_forward and moert_glu_backward rows are dense, and `form` gives the
 * order of gates and ups.
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
    size_t run;          /* gates and ups alternate in runs of this many columns, 1 to I; 0: `form`
                            decides */
    bool linear_first;   /* ups come before their gates */
    moert_buffer *dbias; /* [G,2I] of bias_type: backward adds dv's column sums to it; or NULL */
} moert_glu;

/* GLU calls enqueue and return, like moert_gemm_run, with the same errors. */
moert_status moert_glu_forward(const moert_glu *glu);
moert_status moert_glu_backward(const moert_glu *glu);

/* For gemm.c: checks a GLU and fills in its strides and `run`. */
moert_status moert_check_glu(const moert_glu *glu, bool backward, moert_glu *full);
