/* The block of queries or keys that a work-group owns, and the positions that the mask lets them
 * see or be seen from. */
#ifndef MOERT_ATTENTION_PLACE_H
#define MOERT_ATTENTION_PLACE_H

#include "args/attention.h"

/* `blocks`: the blocks of all documents, or null if each sequence is one document. */
#define FORWARD_INPUTS                                                                             \
    global const moert_attention_block *blocks, global const float *q, global const float *k,      \
        global const float *v
#define BACKWARD_INPUTS                                                                            \
    FORWARD_INPUTS, global const float *out, global const float *lse, global const float *dout

/* Rows of `size` floats, `stride` floats apart. `size` is a constant once a function is inlined. */
typedef struct head_rows {
    global const float *at;
    size_t stride;
    int size;
} head_rows;

/* The rows of one head. `row` is the number of the first one among the rows of all `heads`
 * heads. */
INLINED head_rows rows_from(global const float *x, size_t row, int heads, int size) {
    return (head_rows){x + row * size, (size_t)heads * size, size};
}

/* The running maximum before the first score that a row sees. This maximum is finite, so that a
 * block of masked scores has weights exp(-infinity - LOWEST) = 0. */
#define LOWEST -FLT_MAX

/* Block `number`, counted from the start, of the work-group's sequence or of all documents. */
static inline moert_attention_block block_of(global const moert_attention_block *blocks,
                                             moert_attention_args args, int own, size_t number) {
    const ulong token = get_group_id(2) * args.length;
    moert_attention_block sequence = {token, token, (int)args.length, (int)number * own};
    return blocks != 0 ? blocks[number] : sequence;
}

/* Up to `own` queries of one head. Positions count from the start of the document. Rows count the
 * heads of all tokens: row r of q begins at q + r * HEAD_SIZE. */
typedef struct place {
    int query, head, count; /* the first query's position; the number of queries */
    int first_key, end_key,
        window; /* the queries may see keys first_key to end_key - 1; first_key begins a block */
    size_t row, kv_row; /* row of q of the first query; row of k of the document's first key */
} place;

/* A work-group's queries. Later blocks, which see more keys, have lower group numbers, so that they
 * start first. Keys come in blocks of `block`, counted from the start of the document. */
static inline place query_place(global const moert_attention_block *blocks,
                                moert_attention_args args, int own, int block) {
    const moert_attention_block b =
        block_of(blocks, args, own, get_num_groups(0) - 1 - get_group_id(0));
    place p = {.query = b.first, .head = get_group_id(1), .window = args.window};
    p.count = min(b.length - p.query, own);
    p.first_key = max(p.query + 1 - args.window, 0) / block * block;
    p.end_key = p.query + p.count;
    p.row = (b.token + p.query) * args.heads + p.head;
    p.kv_row = b.keys * args.kv_heads + (size_t)p.head * args.kv_heads / args.heads;
    return p;
}

/* Up to `own` keys of one head of k and v, and the queries and heads that may see them. */
typedef struct key_place {
    int key, count, end_query, first_head, end_head;
    size_t token, kv_row; /* the document's first token; the row of the first key */
} key_place;

static inline key_place key_place_of(global const moert_attention_block *blocks,
                                     moert_attention_args args, int own) {
    const moert_attention_block b = block_of(blocks, args, own, get_group_id(0));
    const int kv_head = get_group_id(1), group = args.heads / args.kv_heads;
    key_place p = {.key = b.first,
                   .first_head = kv_head * group,
                   .end_head = (kv_head + 1) * group,
                   .token = b.token};
    p.count = min(b.length - p.key, own);
    p.end_query = (int)min((ulong)b.length, (ulong)p.key + p.count + args.window - 1);
    p.kv_row = (p.token + p.key) * args.kv_heads + kv_head;
    return p;
}

#endif
