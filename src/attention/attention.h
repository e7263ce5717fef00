/*
 * Causal attention over the sequences of a batch, or over the documents in them. Head h of q uses
 * head h * kv_heads / heads of k and v. Calls enqueue and return; they are not collective.
 */
#pragma once

#include "attention/documents.h"
#include "moert/device.h"
#include "moert/formats.h"

/*
 * The forward reads q, k, v, sinks and writes out, lse. The backward reads the same buffers and
 * dout, and overwrites dq, dk, dv, dsinks, which must not be its inputs. The forward computes 2
 * matrix products and the backward 7. Each product takes 2 * heads * head_size FLOPs for every pair
 * of a query and a key that the query sees; one product of the forward and three of the backward
 * have value_size in place of head_size. Every length is legal; head_size and value_size are 1 to
 * 512. Errors: ERROR_USAGE (heads not a multiple of kv_heads, documents of another number of
 * tokens), ERROR_UNSUPPORTED (head_size, value_size, cached keys), ERROR_DEVICE (sizes that need
 * more local memory than the device has), and those of moert_documents_blocks.
 *
 * `type` BF16 allows matrix products of bf16 operands; sums stay float32. GPUs of compute
 * capability 9.0 compute these products on tensor cores if head_size and value_size are 64 and 64,
 * 128 and 128, or 192 and 128. On tensor cores, q, k, v and dout are bf16, and p and ds are
 * rounded. All other devices and calls run the float32 kernels, with other bits; the debug log says
 * why. `operands` must be the result of moert_attention_operands, and BF16 always needs `scratch`
 * (ERROR_USAGE).
 */
typedef struct moert_attention {
    size_t sequences, length, heads, kv_heads;
    size_t head_size;              /* head size of q and k */
    size_t value_size;             /* head size of v and out; 0: head_size */
    size_t window;                 /* query i sees the keys i - window < j <= i; 0: all j <= i */
    moert_documents *documents;    /* the documents in these sequences: a query sees keys of its own
                                      document only, and blocks count from the document's start.
                                      NULL: each sequence is one document. With
                                      moert_documents_continue, k and v also have the rows of
                                      earlier tokens; the backward and tensor cores refuse that */
    float scale;                   /* 1 / sqrt(head_size), or another positive factor of the
                                      scores */
    const moert_buffer *q, *k, *v; /* [T,heads,head_size], [T,kv_heads,head_size],
                                      [T,kv_heads,value_size], of dtype `operands` */
    const moert_buffer *sinks; /* [heads], or NULL: one more score for each query of a head, without
                                  a value; lse includes it */
    moert_buffer *out;         /* [T,heads,value_size] */
    moert_buffer *bf16;        /* copy of `out` in bf16, which forward and backward write; or
                                  NULL */
    moert_buffer *lse;         /* [T,heads] log-sum-exp of the scaled scores, kept for backward */
    const moert_buffer *dout;  /* of `operands` */
    moert_buffer *dq, *dk, *dv;
    moert_buffer *dsinks;   /* [S,heads]: a partial gradient of each sequence, to be summed in the
                               tree like those of other replicated parameters; NULL without
                               `sinks` */
    moert_dtype type;       /* F32 (0) or BF16 */
    moert_dtype operands;   /* dtype of q, k, v, dout: F32 (0) or BF16 */
    moert_buffer **scratch; /* BF16: a growable buffer that keeps nothing between calls */
} moert_attention;
/* The dtype of q, k, v and dout in attention of this type, head_size and value_size: BF16 where
 * tensor cores compute it, else F32. Reads no other field. If device is NULL, the result is F32. */
moert_dtype moert_attention_operands(const moert_device *device, const moert_attention *attention);
/* The bytes to which `scratch` of this attention grows if `documents` is NULL. Reads no buffer. */
size_t moert_attention_scratch_bytes(const moert_device *device, const moert_attention *attention);
moert_status moert_attention_forward(const moert_attention *attention);
moert_status moert_attention_backward(const moert_attention *attention);
