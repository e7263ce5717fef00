/* Included by attention.cl and gpu.cl: which rows of a head of a sequence a work-group has. */
#include "args/attention.h"

#define BACKWARD_INPUTS                                                                            \
    global const float *q, global const float *k, global const float *v, global const float *out,  \
        global const float *lse, global const float *dout

typedef struct place {
    int query, head, count;          /* rows from `query` on, if queries; so many */
    size_t token, stride, kv_stride; /* the sequence's first token; of rows of q, and of k and v */
    size_t from, kv_from; /* the first of these rows; the first row of k and v of the sequence */
} place;

/* Of `own` queries; later blocks, which see more keys, come first. */
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
