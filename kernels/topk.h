/*
 * Included by router.cl: the choice of the largest of a token's selection scores, as integer keys, alone and by groups.
 * A key of 0 is taken or not to be chosen. Whole vectors of keys are read, so arrays end at a multiple of 16.
 */
#define LANES ((int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))

/* Unsigned numbers in the order of the floats, -0 as 0; no float but a NaN becomes 0. */
static inline uint order_key(float x)
{
    uint bits = as_uint(x + 0.0f);
    return bits ^ (as_uint(as_int(bits) >> 31) | 0x80000000u);
}

static inline uint16 order_keys(vec x)
{
    uint16 bits = as_uint16(x + 0.0f);
    return bits ^ (as_uint16(as_int16(bits) >> 31) | 0x80000000u);
}

static inline float key_value(uint key)
{
    return as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}

/* The first of the largest of n keys; it becomes 0. Keys past n, up to a whole vector, must be 0. */
static int take_best(uint *key, int n)
{
    uint16 best = 0;
    int16 at = 0;
    for (int i = 0; i < n; i += VEC) {
        uint16 k = vload16(0, key + i);
        at = select(at, (int16)i, k > best);
        best = max(best, k);
    }
    uint8 b8 = max(best.lo, best.hi);
    uint4 b4 = max(b8.lo, b8.hi);
    uint2 b2 = max(b4.lo, b4.hi);
    at = select((int16)INT_MAX, at + LANES, best == max(b2.x, b2.y));
    int8 a8 = min(at.lo, at.hi);
    int4 a4 = min(a8.lo, a8.hi);
    int2 a2 = min(a4.lo, a4.hi);
    int first = min(a2.x, a2.y);
    key[first] = 0;
    return first;
}

/* The sum of the `best` best selection scores of n keys, the smallest first: without infinities it is no NaN. */
static float sum_best(const uint *key, int n, int best)
{
    uint top[MOST_EXPERTS / 2]; /* descending */
    float sum = 0.0f;
    for (int i = 0; i < best; i++)
        top[i] = 0;
    for (int e = 0; e < n; e++) {
        uint falling = key[e];
        for (int i = 0; i < best && falling > top[best - 1]; i++) {
            const uint higher = max(top[i], falling);
            falling = min(top[i], falling);
            top[i] = higher;
        }
    }
    for (int i = best; i > 0; i--)
        sum += key_value(top[i - 1]);
    return sum;
}

/* Zeroes the keys of all experts outside the kept groups. */
static void keep_groups(uint *key, int experts, int groups, int kept_groups, int group_best)
{
    uint group[MOST_EXPERTS];
    const int size = experts / groups;
    for (int g = 0; g < groups; g += VEC)
        vstore16((uint16)0, 0, group + g);
    for (int g = 0; g < groups; g++)
        group[g] = order_key(sum_best(key + g * size, size, group_best));
    for (int i = 0; i < kept_groups; i++)
        take_best(group, groups);
    for (int g = 0; g < groups; g++)
        if (group[g] != 0)
            for (int e = g * size; e < (g + 1) * size; e++)
                key[e] = 0;
}
