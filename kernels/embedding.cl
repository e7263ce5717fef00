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
 * team looks for them in SCAN tokens at once. Local memory: the team's.
 */
#if MOERT_ITEMS == 1
#define TOKENS  16
#define COLUMNS 256
#else
#define TOKENS  1
#define COLUMNS 512
#endif
#define SCAN 128 /* 4 tokens an item */

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

/* Whether one of n tokens, SCAN at most, is among the rows; on CPUs nobody asks ahead. */
static inline bool any_among(global const int *token, ulong n, ulong first_row, ulong rows, local float *team)
{
#if MOERT_ITEMS == 1
    return true;
#else
    vec found = 0.0f;
    UNROLL for (int i = 0; i < SCAN / MOERT_ITEMS; i++) {
        ulong t = get_local_id(0) + i * MOERT_ITEMS;
        found += t < n && (ulong)token[t] - first_row < rows ? 1.0f : 0.0f;
    }
    return max_lanes(found, team) > 0.0f;
#endif
}

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
    for (ulong next = begin; next < tokens_end; next += SCAN) {
        ulong stop = min(next + SCAN, tokens_end);
        if (!any_among(token + next, stop - next, first_row + skipped, own, team))
            continue;
        for (ulong t = next; t < stop; t++) {
            ulong row = (ulong)token[t] - first_row - skipped; /* wraps to a large number below the first */
            if (row >= own)
                continue;
            for (ulong h = first; h < end; h += BATCH * VEC) {
                int n = (int)min((ulong)BATCH * VEC, end - h);
                global float *at = sum + row * hidden + h;
                vec part[BATCH], more[BATCH];
                load_batch(more, dx + t * hidden + h, n);
                load_batch(part, at, n);
                UNROLL for (int k = 0; k < BATCH; k++)
                    part[k] += more[k];
                store_batch(part, at, n);
            }
        }
    }
}
