/*
 * Rotary positions in the rotate-half form, in place on x[T,N,D] (N heads of D elements, D even).
 *
 *   with t = token mod length, i < D / 2, c = table[t,0,i], s = sign * table[t,1,i]:
 *   x[token,n,i]         <- x[token,n,i] * c         - x[token,n,i + D / 2] * s
 *   x[token,n,i + D / 2] <- x[token,n,i + D / 2] * c + x[token,n,i] * s
 *
 * sign is 1 to rotate, -1 to rotate back. A work-group owns `block` tokens. Defines: none of its own. Local memory:
 * none. Deterministic: every pair is computed from itself alone.
 */
KERNEL void rope(ulong tokens, ulong block, ulong length, int heads, int head_size, float sign,
                 global const float *table, global float *x)
{
    int half_size = head_size / 2;
    ulong first = get_group_id(0) * block, end = min(first + block, tokens);
    for (ulong token = first; token < end; token++) {
        global const float *cosine = table + token % length * head_size, *sine = cosine + half_size;
        global float *low = x + token * heads * head_size;
        for (int h = 0; h < heads; h++, low += head_size) {
            global float *high = low + half_size;
            for (int i = 0; i < half_size; i += VEC) {
                int n = half_size - i;
                vec c = load_part(cosine + i, n), s = sign * load_part(sine + i, n);
                vec a = load_part(low + i, n), b = load_part(high + i, n);
                store_part(fma(a, c, -b * s), low + i, n);
                store_part(fma(b, c, a * s), high + i, n);
            }
        }
    }
}
