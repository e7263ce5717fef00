/*
 * Token embedding.
 *
 *   forward   x[t,h] = table[token[t],h]                                  x[T,H], table[V,H], token int32 [T]
 *   backward  partial[s,r,h] = sum over t of sequence s, token[t] = first_row + r, of dx[t,h]
 *                                                                         partial[S,rows,H], dx[T,H], T = S * length
 *   gradient  the same for all rows, summed over the sequences of each tree node (base/tree.h) at once: node i's table lies
 *             at target + i * stride + offset. Rows without tokens are left alone. link[T,2] has, for a token that is
 *             the first of its row in a node, the node, else -1; and the next token of that row in the node, or -1.
 *
 * Deterministic: a gradient row adds its tokens in the order of the sequence; every element has one owner, no atomics.
 * Forward: a team owns TOKENS rows. Backward: a team owns COLUMNS columns of `share` rows of one sequence: on CPUs of all,
 * so that the sequence's tokens are read once and its part of a gradient row stays in the cache; on GPUs of a few, and the
 * team looks for the next of their tokens among SCAN at once. Local memory: the team's. Gradient: a team owns
 * GRADIENT_COLUMNS columns of the row that a token is the first of, and follows its links; the next gradient is under way
 * while one is added.
 */
#if MOERT_ITEMS == 1
#define TOKENS  16
#define COLUMNS 256
#define GRADIENT_COLUMNS 256
#else
#define TOKENS  1
#define COLUMNS 512
#define GRADIENT_COLUMNS 128
#endif
#define SCAN 512
#define LEVELS 32 /* of the tree */

KERNEL void embedding_forward(global const float *restrict table, global const int *restrict token,
                              global float *restrict x, ulong tokens, ulong hidden)
{
    ulong first = get_group_id(0) * (ulong)TOKENS, end = min(first + TOKENS, tokens);
    for (ulong t = first; t < end; t++) {
        global const float *row = table + (ulong)token[t] * hidden;
        for (ulong h = 0; h < hidden; h += BATCH * VEC) {
            int n = (int)min((ulong)BATCH * VEC, hidden - h);
            vec part[BATCH];
            load_batch(part, row + h, n);
            store_batch(part, x + t * hidden + h, n);
        }
    }
}

/* The place of the first of the tokens [at, end) that is among the rows; `end` if there is none. */
#if MOERT_ITEMS == 1
static inline ulong find_token(global const int *token, ulong at, ulong end, ulong first_row, ulong rows,
                               local float *team)
{
    while (at < end && (ulong)token[at] - first_row >= rows) /* wraps to a large number below first_row */
        at++;
    return at;
}
#else
static inline ulong find_token(global const int *token, ulong at, ulong end, ulong first_row, ulong rows,
                               local float *team)
{
    for (; at < end; at += SCAN) {
        float nearest = -SCAN;
        UNROLL for (int i = SCAN / MOERT_ITEMS - 1; i >= 0; i--) {
            const int place = i * MOERT_ITEMS + item_index();
            if (at + place < end && (ulong)token[at + place] - first_row < rows)
                nearest = -place;
        }
        nearest = max_lanes((vec)(nearest), team);
        if (nearest > -SCAN)
            return at + (ulong)-nearest;
    }
    return end;
}
#endif

KERNEL void embedding_backward(global const int *restrict token, global const float *restrict dx,
                               global float *restrict partial, ulong length, ulong hidden, ulong first_row, ulong rows,
                               ulong share)
{
    TEAM;
    ulong first = get_group_id(0) * (ulong)COLUMNS, end = min(first + COLUMNS, hidden);
    ulong sequence = get_group_id(1), skipped = get_group_id(2) * share, own = min(share, rows - skipped);
    ulong begin = sequence * length, tokens_end = begin + length;
    global float *sum = partial + (sequence * rows + skipped) * hidden;
    for (ulong r = 0; r < own; r++)
        for (ulong h = first; h < end; h += VEC)
            store_part((vec)(0.0f), sum + r * hidden + h, (int)min((ulong)VEC, end - h));
    first_row += skipped;
    for (ulong t = begin; (t = find_token(token, t, tokens_end, first_row, own, team)) < tokens_end; t++) {
        global float *row = sum + ((ulong)token[t] - first_row) * hidden;
        for (ulong h = first; h < end; h += BATCH * VEC) {
            int n = (int)min((ulong)BATCH * VEC, end - h);
            vec part[BATCH], more[BATCH];
            load_batch(more, dx + t * hidden + h, n);
            load_batch(part, row + h, n);
            UNROLL for (int k = 0; k < BATCH; k++)
                part[k] += more[k];
            store_batch(part, row + h, n);
        }
    }
}

/* The sum of a row's gradients in a node, `token` being its first, by the tree without the leaves that have none: those
 * would add zeros. A stack holds sums of complete subtrees, and the level at which each meets what follows it. */
static inline vec sum_links(global const int *restrict link, global const float *restrict dx, ulong token, ulong length,
                            ulong first_leaf, ulong hidden, int n)
{
    vec stack[LEVELS], sum = 0.0f, part = load_part(dx + token * hidden, n);
    uint level[LEVELS], depth = 0, leaf = first_leaf + token / length;
    for (int next; (next = link[2 * token + 1]) >= 0;) {
        const vec ahead = load_part(dx + next * hidden, n);
        const uint after = first_leaf + next / length;
        sum += part;
        if (after != leaf) {
            const uint meet = 31 - clz(leaf ^ after);
            while (depth > 0 && level[depth - 1] < meet)
                sum = stack[--depth] + sum;
            stack[depth] = sum;
            level[depth++] = meet;
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
                               global const float *restrict dx, ulong length, ulong hidden, ulong first_leaf,
                               global float *restrict target, ulong stride, ulong offset, int accumulate)
{
    const ulong groups = (hidden + GRADIENT_COLUMNS - 1) / GRADIENT_COLUMNS, t = get_group_id(0) / groups;
    const ulong first = get_group_id(0) % groups * GRADIENT_COLUMNS, end = min(first + GRADIENT_COLUMNS, hidden);
    const int node = link[2 * t];
    if (node < 0)
        return;
    global float *row = target + node * stride + offset + token[t] * hidden;
    for (ulong h = first; h < end; h += VEC) {
        const int n = (int)min((ulong)VEC, end - h);
        const vec sum = sum_links(link, dx + h, t, length, first_leaf, hidden, n);
        store_part(accumulate ? load_part(row + h, n) + sum : sum, row + h, n);
    }
}
