/*
 * Token embedding.
 *
 *   forward   x[t,h] = table[token[t],h]                                  x[T,H], table[V,H], token int32 [T]
 *   backward  partial[s,r,h] = sum over t of sequence s, token[t] = first_row + r, of dx[t,h]
 *                                                                         partial[S,rows,H], dx[T,H], T = S * length
 *
 * Deterministic: a gradient row adds its tokens in the order of the sequence; every element has one owner, no atomics.
 * Forward: a work-item owns TOKENS rows. Backward: a work-item owns COLUMNS columns of one sequence, so that the
 * sequence's tokens are read once and its part of a gradient row stays in the cache. No local memory.
 */
#define TOKENS  16
#define COLUMNS 256

KERNEL void embedding_forward(global const float *restrict table, global const int *restrict token,
                              global float *restrict x, ulong tokens, ulong hidden)
{
    ulong first = get_group_id(0) * (ulong)TOKENS, end = min(first + TOKENS, tokens);
    for (ulong t = first; t < end; t++) {
        global const float *row = table + (ulong)token[t] * hidden;
        for (ulong h = 0; h < hidden; h += VEC) {
            int n = (int)min((ulong)VEC, hidden - h);
            store_part(load_part(row + h, n), x + t * hidden + h, n);
        }
    }
}

KERNEL void embedding_backward(global const int *restrict token, global const float *restrict dx,
                               global float *restrict partial, ulong length, ulong hidden, ulong first_row, ulong rows)
{
    ulong first = get_group_id(0) * (ulong)COLUMNS, end = min(first + COLUMNS, hidden);
    ulong sequence = get_group_id(1);
    global float *sum = partial + sequence * rows * hidden;
    for (ulong r = 0; r < rows; r++)
        for (ulong h = first; h < end; h += VEC)
            store_part((vec)(0.0f), sum + r * hidden + h, (int)min((ulong)VEC, end - h));
    for (ulong t = sequence * length; t < (sequence + 1) * length; t++) {
        ulong row = (ulong)token[t] - first_row; /* wraps to a large number below first_row */
        if (row >= rows)
            continue;
        for (ulong h = first; h < end; h += VEC) {
            int n = (int)min((ulong)VEC, end - h);
            global float *at = sum + row * hidden + h;
            store_part(load_part(at, n) + load_part(dx + t * hidden + h, n), at, n);
        }
    }
}
