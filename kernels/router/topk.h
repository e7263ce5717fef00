/*
 * Included by router.cl: arrays over the experts of a token, which the items of a row group share,
 * and the choice of the largest selection scores, with or without groups of experts.
 *
 * Selection scores are integer keys. A key of 0 has been chosen or must not be chosen. Loops read
 * whole steps of keys, so arrays end at a multiple of VEC. An item sees the stores of other items
 * after sync_items().
 */
#if MOERT_ITEMS == 1
#define ROW private
#else
#define ROW local
#endif
#define ROW_ARRAY(name) ROW uint name[MOST_EXPERTS] __attribute__((aligned(64)))

static inline void sync_items(void) {
#if MOERT_ITEMS > 1
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
}

/* Whether this item stores element i of the arrays. */
static inline bool owns(int i) {
    return MOERT_ITEMS == 1 || i % VEC / PART == (int)get_local_id(0);
}

static inline uvec load_keys(ROW const uint *p) {
#if MOERT_ITEMS == 1
    return vload16(0, p);
#else
    return *(ROW const uvec *)(p + part_start());
#endif
}

static inline void store_keys(uvec x, ROW uint *p) {
#if MOERT_ITEMS == 1
    vstore16(x, 0, p);
#else
    *(ROW uvec *)(p + part_start()) = x;
#endif
}

/* Floats are kept in the same arrays, as their bits. */
static inline vec load_floats(ROW const uint *p) {
    return as_vec(load_keys(p));
}

static inline void store_floats(vec x, ROW uint *p) {
    store_keys(as_uvec(x), p);
}

/* Returns the index of the largest of n keys, the lowest one of equals, and sets that key to 0.
 * Only the item that owns it sees the 0 at once. Keys from n to the end of the step must be 0. */
INLINED int take_best(ROW uint *key, int n, local float *row_group) {
    uvec best = 0;
    ivec at = 0;
    for (int i = 0; i < n; i += VEC) {
        uvec k = load_keys(key + i);
        at = select(at, (ivec)i, k > best);
        best = max(best, k);
    }
    at = select((ivec)INT_MAX, at + lane_places(), best == max_uints(best, row_group));
    const int first = (int)~max_uints(~as_uvec(at), row_group);
    if (owns(first))
        key[first] = 0;
    return first;
}

/* The sum of the `best` largest selection scores of n keys, added from the smallest up. It is no
 * NaN unless a score is infinite. */
static float sum_best(ROW const uint *key, int n, int best) {
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
    IN_ORDER_FOR(int i = best; i > 0; i--)
        sum += key_value(top[i - 1]);
    return sum;
}

/* If groups > 1, zeroes the keys of all experts outside the kept groups. `group` is scratch of the
 * same length as `key`. */
static void keep_groups(ROW uint *key, ROW uint *group, int experts, int groups, int kept_groups,
                        int group_best, local float *row_group) {
    const int size = experts / groups, most = groups > 1 ? groups : 0;
    for (int g = 0; g < most; g += VEC)
        store_keys((uvec)0, group + g);
    sync_items();
    for (int g = get_local_id(0); g < most; g += MOERT_ITEMS)
        group[g] = order_key(sum_best(key + g * size, size, group_best));
    sync_items();
    for (int i = 0; i < min(kept_groups, most); i++)
        take_best(group, groups, row_group);
    sync_items();
    for (int g = 0; g < most; g++)
        if (group[g] != 0)
            for (int e = g * size + (int)get_local_id(0); e < (g + 1) * size; e += MOERT_ITEMS)
                key[e] = 0;
    sync_items();
}
