/*
 * Token embedding.
 *
 *   forward   x[t,h] = table[token[t],h]                                  x[T,H], table[V,H], token int32 [T]
 *   backward  partial[s,r,h] = sum over t of sequence s, token[t] = first_row + r, of dx[t,h]
 *                                                                         partial[S,rows,H], dx[T,H], T = S * length
 *
 * Deterministic: a gradient row adds its tokens in the order of the sequence; every element has one owner, no atomics.
 * Forward: a team owns TOKENS rows. Backward: a team owns COLUMNS columns of `share` rows of one sequence: on CPUs of all,
 * so that the sequence's tokens are read once and its part of a gradient row stays in the cache; on GPUs of a few, and the
 * team looks for the next of their tokens among SCAN at once. Local memory: the team's.
 */
#if MOERT_ITEMS == 1
#define TOKENS  16
#define COLUMNS 256
#else
#define TOKENS  1
#define COLUMNS 512
#endif
#define SCAN 512

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
