/*
 * Token embedding.
 *
 *   forward   x[t,h] = table[token[t],h]                        x[T,H], table[V,H], token int32 [T]
 *             A negative token is padding: its x is 0, and its dx is ignored.
 *   backward  partial[s,r,h] = sum of dx[t,h] over the tokens t of sequence first_leaf + s with
 *             token[t] = first_row + r;  partial[S,rows,H], dx[T,H], T = S * length
 *   gradient  the gradient of the whole table, summed over the sequences of each tree node
 *             (base/tree.h). Node i's table lies at target + i * stride + offset. Rows without
 *             tokens are not touched. link[t] = (a, b): a is the node in which t is the first token
 *             of its row, or -1; b is the next token of that row in the node, or -1.
 *
 * Forward: a row group owns TOKENS tokens. Backward on CPUs: a row group owns COLUMNS columns of
 * all rows of one sequence, so that it reads the sequence's tokens once and its part of a gradient
 * row stays in the cache. Backward on GPUs: a work-group of ROW_GROUPS row groups owns `share`
 * rows. The work-group searches the sequence for tokens of these rows, up to ROOM at a time, links
 * the tokens of each row, and adds their gradients. If ROOM suffices, the work-group writes each
 * row once. Gradient: for each token that is the first of its row, a row group owns
 * GRADIENT_COLUMNS columns of that row. The row group follows the links, and loads the next
 * gradient while it adds one.
 *
 * Local memory: 12 ROOM + 36 bytes in the backward pass on GPUs. Deterministic: a gradient row adds
 * its tokens in the order of the sequence, whatever the order in which an atomic counter collected
 * them. Every element has one owner.
 */
#include "args/nn.h"

#define TOKENS           BY_FORM(MOERT_EMBEDDING_TOKENS, MOERT_EMBEDDING_GPU_TOKENS)
#define COLUMNS          MOERT_EMBEDDING_COLUMNS
#define GRADIENT_COLUMNS BY_FORM(MOERT_GRADIENT_COLUMNS, MOERT_GRADIENT_GPU_COLUMNS)
#define MOST_ROWS        MOERT_EMBEDDING_GPU_ROWS /* the largest `share` */
#define ROW_GROUPS       8
#define ROOM             512
#define AHEAD            16 /* tokens that an item loads at once */
#define LEVELS           32 /* most levels of the tree */

KERNEL void embedding_forward(global const float *restrict table, global const int *restrict token,
                              global float *restrict x, moert_embedding_args args) {
    ulong first = get_group_id(0) * (ulong)TOKENS, end = min(first + TOKENS, args.tokens);
    for (ulong t = first; t < end; t++) {
        const int id = token[t];
        global const float *row = table + (ulong)max(id, 0) * args.hidden;
        for (ulong h = 0; h < args.hidden; h += BATCH * VEC) {
            int n = (int)min((ulong)BATCH * VEC, args.hidden - h);
            vec part[BATCH];
            load_batch(part, row + h, n);
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                part[k] = id < 0 ? (vec)(0.0f) : part[k];
            store_batch(part, x + t * args.hidden + h, n);
        }
    }
}

#if MOERT_ITEMS == 1
/* The first of the tokens [at, end) whose row is one of `rows` rows from first_row on, or `end`. */
static inline ulong find_token(global const int *token, ulong at, ulong end, ulong first_row,
                               ulong rows) {
    while (at < end && (ulong)token[at] - first_row >= rows) /* a smaller token wraps */
        at++;
    return at;
}

KERNEL void embedding_backward(global const int *restrict token, global const float *restrict dx,
                               global float *restrict partial, moert_embedding_args args) {
    ulong first = get_group_id(0) * (ulong)COLUMNS, end = min(first + COLUMNS, args.hidden);
    ulong sequence = get_group_id(1), skipped = get_group_id(2) * args.share,
          own = min(args.share, args.rows - skipped);
    ulong begin = (args.first_leaf + sequence) * args.length, tokens_end = begin + args.length;
    global float *sum = partial + (sequence * args.rows + skipped) * args.hidden;
    for (ulong r = 0; r < own; r++)
        for (ulong h = first; h < end; h += VEC)
            store_part((vec)(0.0f), sum + r * args.hidden + h, (int)min((ulong)VEC, end - h));
    args.first_row += skipped;
    for (ulong t = begin; (t = find_token(token, t, tokens_end, args.first_row, own)) < tokens_end;
         t++) {
        global float *row = sum + ((ulong)token[t] - args.first_row) * args.hidden;
        for (ulong h = first; h < end; h += BATCH * VEC) {
            int n = (int)min((ulong)BATCH * VEC, end - h);
            vec part[BATCH], more[BATCH];
            load_batch(more, dx + t * args.hidden + h, n);
            load_batch(part, row + h, n);
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                part[k] += more[k];
            store_batch(part, row + h, n);
        }
    }
}
#else
/* The tokens found for a work-group's rows, in any order. Entry i is token token[i] of row row[i].
 * next[i] is the entry of the next token of the same row, first[r] the entry of row r's first
 * token; ROOM if no such token was found. */
typedef struct found {
    uint token[ROOM], row[ROOM], next[ROOM], first[MOST_ROWS], count;
} found;

static inline int group_item(void) {
    return row_group_index() * MOERT_ITEMS + item_index();
}

/* Collects those of the tokens [from, to) whose row is one of `rows` rows from first_row on, and
 * returns their number. If the number exceeds ROOM, only ROOM tokens are stored. */
INLINED uint find_tokens(local found *f, global const int *token, uint from, uint to,
                         ulong first_row, uint rows) {
    barrier(CLK_LOCAL_MEM_FENCE); /* all items have read the previous tokens */
    if (group_item() == 0)
        f->count = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint t = from + group_item(); t < to; t += AHEAD * ROW_GROUPS * MOERT_ITEMS) {
        uint row[AHEAD];
        UNROLL_FOR(uint i = 0; i < AHEAD; i++) /* UINT_MAX if a token is below first_row */
            row[i] =
                (uint)min((ulong)token[min(t + i * ROW_GROUPS * MOERT_ITEMS, to - 1)] - first_row,
                          (ulong)UINT_MAX);
        UNROLL_FOR(uint i = 0; i < AHEAD; i++)
            if (row[i] < rows && t + i * ROW_GROUPS * MOERT_ITEMS < to) {
                const uint at = atomic_inc(&f->count);
                if (at < ROOM) {
                    f->token[at] = t + i * ROW_GROUPS * MOERT_ITEMS;
                    f->row[at] = row[i];
                }
            }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return f->count;
}

/* The entry, among n entries, of the first token t of row `row` with t + 1 > after; ROOM if there
 * is no such token. */
static inline uint find_next(local const found *f, uint n, uint row, uint after) {
    uint at = ROOM, nearest = UINT_MAX;
    for (uint i = 0; i < n; i++) {
        const uint token = f->token[i] + 1;
        if (f->row[i] == row && token > after && token < nearest) {
            nearest = token;
            at = i;
        }
    }
    return at;
}

/* Sets next[] of n entries and first[] of `rows` rows. */
INLINED void link_tokens(local found *f, uint n, uint rows) {
    for (uint i = group_item(); i < n; i += ROW_GROUPS * MOERT_ITEMS)
        f->next[i] = find_next(f, n, f->row[i], f->token[i] + 1);
    for (uint r = group_item(); r < rows; r += ROW_GROUPS * MOERT_ITEMS)
        f->first[r] = find_next(f, n, r, 0);
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* Stores the sums over the collected tokens in the first `rows` rows of `sum`, or adds to these
 * rows if `adds`. */
static inline void add_tokens(local const found *f, uint rows, global const float *restrict dx,
                              global float *restrict sum, ulong hidden, bool adds) {
    const uint chunks = (uint)((hidden + BATCH * VEC - 1) / (BATCH * VEC));
    for (uint i = row_group_index(); i < rows * chunks; i += ROW_GROUPS) {
        const uint row = i / chunks, h = i % chunks * BATCH * VEC;
        const int n = (int)min((ulong)BATCH * VEC, hidden - h);
        uint at = f->first[row];
        vec part[BATCH], more[BATCH];
        if (adds && at == ROOM)
            continue;
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            part[k] = 0.0f;
        if (adds)
            load_batch(part, sum + row * hidden + h, n);
        for (; at < ROOM; at = f->next[at]) {
            load_batch(more, dx + f->token[at] * hidden + h, n);
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                part[k] += more[k];
        }
        store_batch(part, sum + row * hidden + h, n);
    }
}

KERNEL_OF(ROW_GROUPS)
void embedding_backward(global const int *restrict token, global const float *restrict dx,
                        global float *restrict partial, moert_embedding_args args) {
    local found f;
    const ulong sequence = get_group_id(1), skipped = get_group_id(2) * args.share,
                begin = (args.first_leaf + sequence) * args.length;
    const uint own = (uint)min(min(args.share, (ulong)MOST_ROWS), args.rows - skipped);
    global float *sum = partial + (sequence * args.rows + skipped) * args.hidden;
    uint from = 0, most = (uint)args.length;
    bool adds = false;
    do {
        const uint to = (uint)min((ulong)from + most, args.length);
        const uint n = find_tokens(&f, token + begin, from, to, args.first_row + skipped, own);
        const bool all = n <= ROOM;
        link_tokens(&f, all ? n : 0, own);
        add_tokens(&f, all ? own : 0, dx + begin * args.hidden, sum, args.hidden, adds);
        adds |= all;
        from = all ? to : from;
        most = all ? most : ROOM;
    } while (from < args.length);
}
#endif

/* The sum of a table row's gradients over the sequences of a tree node, in the order of the tree;
 * `token` is the row's first token there. Leaves (sequences) without a token of the row are left
 * out, since they would add zeros. A stack holds the sums of complete subtrees, and for each the
 * level of its common ancestor with the next leaf. */
static inline vec sum_links(global const int *restrict link, global const float *restrict dx,
                            ulong token, ulong length, ulong first_leaf, ulong hidden, int n) {
    vec stack[LEVELS], sum = 0.0f, part = load_part(dx + token * hidden, n);
    uint level[LEVELS], depth = 0, leaf = first_leaf + token / length;
    for (int next; (next = link[2 * token + 1]) >= 0;) {
        const vec ahead = load_part(dx + next * hidden, n);
        const uint after = first_leaf + next / length;
        sum += part;
        if (after != leaf) {
            const uint ancestor = 31 - clz(leaf ^ after);
            while (depth > 0 && level[depth - 1] < ancestor)
                sum = stack[--depth] + sum;
            stack[depth] = sum;
            level[depth++] = ancestor;
            sum = 0.0f;
        }
        leaf = after;
        token = next;
        part = ahead;
    }
    sum += part;
    while (depth > 0)
        sum = stack[--depth] + sum;
    return sum;
}

KERNEL void embedding_gradient(global const int *restrict token, global const int *restrict link,
                               global const float *restrict dx, global float *restrict target,
                               moert_embedding_args args) {
    const ulong groups = (args.hidden + GRADIENT_COLUMNS - 1) / GRADIENT_COLUMNS,
                t = get_group_id(0) / groups;
    const ulong first = get_group_id(0) % groups * GRADIENT_COLUMNS,
                end = min(first + GRADIENT_COLUMNS, args.hidden);
    const int node = link[2 * t];
    if (node < 0)
        return;
    global float *row = target + node * args.stride + args.offset + token[t] * args.hidden;
    for (ulong h = first; h < end; h += VEC) {
        const int n = (int)min((ulong)VEC, end - h);
        const vec sum = sum_links(link, dx + h, t, args.length, args.first_leaf, args.hidden, n);
        store_part(args.accumulate ? load_part(row + h, n) + sum : sum, row + h, n);
    }
}
