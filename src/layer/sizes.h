/*
 * The sizes of a layer's buffers: those that its passes keep for their backward, and those that
 * they use in the mesh's scratch. The layer and the estimate of memory use the same tables.
 */
#pragma once

#include "device/buffer_table.h"
#include "layer/choices.h"
#include "layer/operand.h"

/* The sizes of a dense GLU (layer/dense_glu.h). */
typedef struct moert_glu_sizes {
    const moert_device *device; /* NULL in an estimate: assumes GEMMs that do not round their
                                   results */
    moert_dtype type;           /* dtype of the operands */
    bool rounds;                /* a recipe rounds the operands */
    size_t tokens, sequences, hidden, width;
} moert_glu_sizes;

/* The dtype of v and dh. */
static inline moert_dtype moert_glu_between(const moert_glu_sizes *s) {
    return moert_operand_between(s->device, s->type, 1, s->hidden, s->width);
}
static inline size_t moert_glu_v_floats(const moert_glu_sizes *s) {
    return moert_operand_floats(moert_glu_between(s), s->tokens * 2 * s->width);
}
static inline size_t moert_glu_h_floats(const moert_glu_sizes *s) {
    return moert_operand_floats(s->type, s->tokens * s->width);
}

typedef struct moert_layer_sizes {
    const moert_layer_options *options;
    const moert_layer_choices *choices;
    const moert_device *device; /* NULL in an estimate, as in moert_glu_sizes */
    size_t local;               /* L */
    size_t tokens, sequences;   /* T */
    size_t rows;                /* M; 0 before the plan */
    bool given;                 /* the caller also has the rows in bf16 */
    bool bf16;                  /* the batch's rows are bf16 */
    bool sends;                 /* ranks push results (moert_transfer.slot_window) */
    bool casts;                 /* some operands of a recipe are in bf16 */
    bool fp8;                   /* the experts' GEMMs have FP8 operands (layer/fp8.h) */
} moert_layer_sizes;

/* The sizes of the shared expert's GLU; width 0: no shared expert. */
moert_glu_sizes moert_layer_shared_sizes(const moert_layer_sizes *sizes);

/* Buffers that a pass keeps for its backward: those reserved before its plan, and those whose sizes
 * depend on the plan's rows. */
moert_buffer_table moert_pass_routing_buffers, moert_pass_hidden_buffers;

/*
 * X(use, buffer, floats): uses of the scratch buffers, where `s` are the layer's sizes, `o` its
 * options and `c` its choices; sizes.c has the functions. 0 floats: the layer has no such use.
 */
#define MOERT_LAYER_SCRATCH_TABLE(X)                                                               \
    /* v and h if the backward computes them again */                                              \
    X(V, V, o->recompute_experts ? hidden(s, c->v, 2) : 0)                                         \
    X(H, H, o->recompute_experts ? hidden(s, c->h, 1) : 0)                                         \
    X(SHARED_V, V, o->recompute_experts ? moert_glu_v_floats(&shared) : 0)                         \
    X(SHARED_H, H, o->recompute_experts ? moert_glu_h_floats(&shared) : 0)                         \
    /* the experts' backward */                                                                    \
    X(DH, HIDDEN, hidden(s, c->v, 1))                                                              \
    X(DV, ROUNDED_Y, c->dv != c->v ? hidden(s, c->dv, 2) : 0)                                      \
    /* the router, and the gate of the shared expert */                                            \
    X(DLOGITS, LOGITS, of_tokens(s, experts))                                                      \
    X(MASS, LOGITS, of_sequences(s, experts))                                                      \
    X(ROUTER, PARTIAL, moert_block_partial_floats(s->device, s->sequences, experts, o->hidden))    \
    X(DWEIGHT, SLOTS, of_tokens(s, o->router.topk))                                                \
    X(GATE_DLOGITS, LOGITS, o->shared_gate ? s->tokens : 0)                                        \
    X(GATE_DPROB, SLOTS, o->shared_gate ? s->tokens : 0)                                           \
    X(SPLIT, ROUNDED_X, split_floats(s))                                                           \
    /* results of [T,H] */                                                                         \
    X(SHARED_Y, TOKENS, o->shared_intermediate > 0 ? of_tokens(s, o->hidden) : 0)                  \
    X(RESULT, TOKENS, s->bf16 ? of_tokens(s, o->hidden) : 0)                                       \
    /* packed rows to send; received rows in float32; received rows without gaps, both dtypes */   \
    X(PACKED, WIRE, is_packed(s) ? of_tokens(s, c->forth.width) : 0)                               \
    X(UNPACKED, DENSE, unpacks(s) ? of_rows(s, o->hidden) : 0)                                     \
    X(GAPLESS_BF16, WIRE, has_bf16_gaps(s) ? of_rows(s, o->hidden / 2) : 0)                        \
    X(GAPLESS, DENSE, has_gaps(s) ? of_rows(s, o->hidden) : 0)                                     \
    /* results to send: float32 (if the GEMM does not round), bf16, and bf16 rows to push */       \
    X(Y_F32, DENSE, float_results(s))                                                              \
    X(Y_BF16, WIRE, s->sends ? sent_floats(s) : 0)                                                 \
    X(Y_PUSHED, ROUNDED_Y, s->sends ? sent_floats(s) : 0)                                          \
    /* rounded operands of the experts' GEMMs: by the first weight, by the second */               \
    /* each is followed by the scales that FP8 operands have (layer/fp8.c) */                      \
    X(X_IN, ROUNDED_X, rounded(s, c->received, o->hidden))                                         \
    X(X_IN_SCALES, SCALES_X, fp8_scales(s, o->hidden))                                             \
    X(Y_IN, ROUNDED_Y, rounded(s, c->dv, 2 * o->intermediate))                                     \
    X(Y_IN_SCALES, SCALES_Y, fp8_scales(s, 2 * o->intermediate))                                   \
    X(X_OUT, ROUNDED_X, rounded(s, c->h, o->intermediate))                                         \
    X(X_OUT_SCALES, SCALES_X, fp8_scales(s, o->intermediate))                                      \
    X(Y_OUT, ROUNDED_Y, rounded(s, c->received, o->hidden))                                        \
    X(Y_OUT_SCALES, SCALES_Y, fp8_scales(s, o->hidden))                                            \
    /* operands y of wgrads, which their dgrads make (moert_round_rows) */                         \
    X(DOWN_IN, DOWN_IN, c->keeps_down ? rounded(s, c->dv, 2 * o->intermediate) : 0)                \
    X(DOWN_IN_SCALES, SCALES_DOWN_IN, fp8_scales(s, 2 * o->intermediate))                          \
    X(DOWN_OUT, DOWN_OUT, c->keeps_down ? rounded(s, c->received, o->hidden) : 0)                  \
    X(DOWN_OUT_SCALES, SCALES_DOWN_OUT, fp8_scales(s, o->hidden))                                  \
    X(PADDED_ENDS, PADDED_ENDS, s->fp8 ? s->local : 0)

typedef enum moert_layer_use {
#define MOERT_LAYER_USE(use, buffer, floats) MOERT_USE_##use,
    MOERT_LAYER_SCRATCH_TABLE(MOERT_LAYER_USE)
#undef MOERT_LAYER_USE
        MOERT_LAYER_USES
} moert_layer_use;

/* Returns the size in floats of a use. *which = the scratch buffer of the use. */
size_t moert_layer_use_floats(const moert_layer_sizes *sizes, moert_layer_use use,
                              moert_scratch *which);
