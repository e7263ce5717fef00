/* Included by attention.cl and gpu.cl: the block of queries that a work-group owns. */
#include "args/attention.h"

#define BACKWARD_INPUTS                                                                            \
    global const float *q, global const float *k, global const float *v, global const float *out,  \
        global const float *lse, global const float *dout

typedef struct place {
    int query, head, count;   /* the first query's position; the number of queries */
    size_t token;             /* the sequence's first */
    size_t stride, kv_stride; /* floats from a row to the next one: q; k and v */
    size_t from, kv_from;     /* offset of the first query in q; of the first key in k and v */
} place;

/* A work-group's block of up to `own` queries. Later blocks, which see more keys, have lower group
 * numbers, so that they start first. */
static inline place query_place(moert_attention_args args, int own) {
    place p = {.query = (int)(get_num_groups(0) - 1 - get_group_id(0)) * own,
               .head = get_group_id(1),
               .token = get_group_id(2) * args.length,
               .stride = args.heads * HEAD_SIZE,
               .kv_stride = args.kv_heads * HEAD_SIZE};
    p.count = min((int)args.length - p.query, own);
    p.from = (p.token + p.query) * p.stride + p.head * HEAD_SIZE;
    p.kv_from = p.token * p.kv_stride + (size_t)p.head * args.kv_heads / args.heads * HEAD_SIZE;
    return p;
}
