/*
 * Causal attention over the sequences of a batch. Head h of q uses head h * kv_heads / heads of k
 * and v. Calls enqueue and return; they are not collective.
 */
#pragma once

#include "device/device.h"
#include "moert/formats.h"

/*
 * The forward reads q, k, v and writes out, lse. The backward reads q, k, v, out, lse, dout and
 * overwrites dq, dk, dv, which must not be its inputs. The forward computes 2 matrix products and
 * the backward 7, of 2 * S * heads * head_size * length * (length + 1) / 2 FLOPs each. Every length
 * is legal; head_size is 1 to 512. Errors: ERROR_USAGE (heads not a multiple of kv_heads),
 * ERROR_UNSUPPORTED (head_size).
 *
 * `type` BF16 allows operands of matrix products to be rounded to bf16; sums stay float32. GPUs of
 * compute capability 9.0 round them for a head_size of 64 or 128. All other devices and sizes run
 * the float32 kernels, with other bits. BF16 always needs `scratch` (ERROR_USAGE).
 */
typedef struct moert_attention {
    size_t sequences, length, heads, kv_heads, head_size;
    float scale;                   /* 1 / sqrt(head_size) */
    const moert_buffer *q, *k, *v; /* [T,heads,head_size], [T,kv_heads,head_size] twice */
    moert_buffer *out;             /* [T,heads,head_size] */
    moert_buffer *bf16;            /* forward and backward also store `out` here in bf16; or NULL */
    moert_buffer *lse; /* [T,heads] log-sum-exp of the scaled scores, kept for backward */
    const moert_buffer *dout;
    moert_buffer *dq, *dk, *dv;
    moert_dtype type;       /* F32 (0) or BF16 */
    moert_buffer **scratch; /* BF16: a growable buffer that keeps nothing between calls */
} moert_attention;
moert_status moert_attention_forward(const moert_attention *attention);
moert_status moert_attention_backward(const moert_attention *attention);
