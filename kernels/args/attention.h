/* The scalar arguments of kernels/attention (see args.h). */
#ifndef MOERT_ARGS_ATTENTION_H
#define MOERT_ARGS_ATTENTION_H

#include "args/args.h"

/* Rows of a work-group of stats.cl. */
enum { MOERT_STATS_ROWS = 16 };

typedef struct moert_attention_args {
    args_u64 length;
    args_i32 heads, kv_heads, window;
    args_f32 scale;
} moert_attention_args;
MOERT_ARGS_LAYOUT(moert_attention_args, scale, 20, 24)

/* BLOCK_ROWS: on Hopper, rows of a TMA box and of a block of stats, which has two floats for each
 * row. OWN_ROWS: rows of a tile of nvidia_attention. */
enum {
    MOERT_ATTENTION_BLOCK_ROWS = 64,
    MOERT_ATTENTION_OWN_ROWS = 128,
};

/* A block of positions that a work-group owns. The block lies in one document, or in one sequence
 * if no documents are given. */
typedef struct moert_attention_block {
    /* The index in the batch of the document's first token. If a cache holds earlier keys of the
     * document (moert_documents_continue), the index that this token would have, modulo 2^64. */
    args_u64 token;
    args_u64 keys;          /* the row of k and v of the document's first token */
    args_i32 length, first; /* length of the document; the block's first position in it */
    args_i32 slot;          /* number of 64-position blocks in all documents before this one */
} moert_attention_block;
MOERT_ARGS_LAYOUT(moert_attention_block, slot, 24, 32)

typedef struct moert_sink_args {
    args_u64 length;
    args_i32 heads, value_size;
} moert_sink_args;
MOERT_ARGS_LAYOUT(moert_sink_args, value_size, 12, 16)

typedef struct moert_stats_args {
    args_u64 length;
    args_i32 heads;
} moert_stats_args;
MOERT_ARGS_LAYOUT(moert_stats_args, heads, 8, 16)

typedef struct moert_nvidia_attention_args {
    args_i32 tiles, length, heads, kv_heads, sequences, window, section;
    args_f32 scale, factor;
} moert_nvidia_attention_args;
MOERT_ARGS_LAYOUT(moert_nvidia_attention_args, factor, 32, 36)

#endif
