/*
 * Cross-entropy over a vocabulary.
 *
 *   m = max_v logits[t,v]      s = sum_v exp(logits[t,v] - m)      loss[t] = log(s) - (logits[t,target[t]] - m)
 *   logits[t,v] <- (exp(logits[t,v] - m) / s - [v = target[t]]) * factor          when factor is not 0
 *
 * Shapes: logits[T,V] float, target int32 [T], loss[T]. Target -1: loss 0, gradient 0. A target of V or more, and any
 * logit that is not finite (but -infinity), gives a loss of NaN.
 * Deterministic: a row depends on itself alone and the order of its sums on V alone. 16 lanes are summed in blocks of
 * BLOCK vectors, then the blocks, then the lanes; two levels keep the rounding error of a long row small.
 * A work-item owns one row. No local memory.
 */
#define BLOCK 64

/* Like load_part, the lanes past n being -infinity: neutral for max, and exp makes them 0. */
static inline vec load_logits(global const float *p, int n)
{
    if (n >= VEC)
        return vload16(0, p);
    const int16 lane = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return select((vec)(-INFINITY), load_part(p, n), lane < (int16)(n));
}

static inline float row_maximum(global const float *row, ulong vocabulary)
{
    vec most = (vec)(-INFINITY);
    for (ulong v = 0; v < vocabulary; v += VEC)
        most = fmax(most, load_logits(row + v, (int)min((ulong)VEC, vocabulary - v)));
    return max_lanes(most, 0);
}

/* Sum of exp(row - most); leaves the exponentials in the row when `keep`. */
static inline float row_exponentials(global float *row, ulong vocabulary, float most, bool keep)
{
    vec sum = (vec)(0.0f);
    for (ulong first = 0; first < vocabulary; first += BLOCK * VEC) {
        ulong end = min(first + BLOCK * VEC, vocabulary);
        vec part = (vec)(0.0f);
        for (ulong v = first; v < end; v += VEC) {
            int n = (int)min((ulong)VEC, end - v);
            vec e = exp(load_logits(row + v, n) - (vec)(most));
            part += e;
            if (keep)
                store_part(e, row + v, n);
        }
        sum += part;
    }
    return sum_lanes(sum, 0);
}

static inline void row_zero(global float *row, ulong vocabulary)
{
    for (ulong v = 0; v < vocabulary; v += VEC)
        store_part((vec)(0.0f), row + v, (int)min((ulong)VEC, vocabulary - v));
}

/* row = (row / sum - onehot(target)) * factor */
static inline void row_gradient(global float *row, ulong vocabulary, float sum, float factor, ulong target)
{
    const int16 lane = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (ulong v = 0; v < vocabulary; v += VEC) {
        int n = (int)min((ulong)VEC, vocabulary - v);
        vec p = load_part(row + v, n) / (vec)(sum);
        if (target - v < VEC)
            p = select(p, p - (vec)(1.0f), lane == (int16)((int)(target - v)));
        store_part(p * (vec)(factor), row + v, n);
    }
}

KERNEL void cross_entropy(global const int *restrict targets, global float *restrict logits,
                          global float *restrict loss, ulong vocabulary, float factor)
{
    ulong t = get_group_id(0);
    global float *row = logits + t * vocabulary;
    int target = targets[t];
    if (target < 0) {
        loss[t] = 0.0f;
        if (factor != 0.0f)
            row_zero(row, vocabulary);
        return;
    }
    float most = row_maximum(row, vocabulary);
    float chosen = (ulong)target < vocabulary ? row[target] : NAN;
    float sum = row_exponentials(row, vocabulary, most, factor != 0.0f);
    loss[t] = log((vec)(sum)).s0 - (chosen - most);
    if (factor != 0.0f)
        row_gradient(row, vocabulary, sum, factor, (ulong)target);
}
