/*
 * Included by router.cl: arrays over the experts of a token, and the choice of the largest
 * selection scores, with or without groups of experts.
 *
 * Selection scores are integer keys. A key of 0 has been chosen or must not be chosen. Loops read
 * whole steps of keys, so arrays end at a multiple of VEC.
 */
#include "router/groups.h"

#define ROW_ARRAY(name) uint name[MOST_EXPERTS] __attribute__((aligned(64)))

static inline uvec load_keys(const uint *p) {
    return vload16(0, p);
}

static inline void store_keys(uvec x, uint *p) {
    vstore16(x, 0, p);
}

/* Floats are kept as their bits in the same arrays as keys. */
static inline vec load_floats(const uint *p) {
    return as_vec(load_keys(p));
}

static inline void store_floats(vec x, uint *p) {
    store_keys(as_uvec(x), p);
}

/* Returns the index of the largest of n keys, the lowest one of equals, and sets that key to 0.
 * Keys from n to the end of the step must be 0. */
INLINED int take_best(uint *key, int n) {
    uvec best = 0;
    ivec at = 0;
    for (int i = 0; i < n; i += VEC) {
        uvec k = load_keys(key + i);
        at = select(at, (ivec)i, k > best);
        best = max(best, k);
    }
    at = select((ivec)INT_MAX, at + lane_places(), best == max_uints(best, 0));
    const int first = (int)~max_uints(~as_uvec(at), 0);
    key[first] = 0;
    return first;
}

/* If groups > 1, zeroes the keys of all experts outside the kept groups. `group` is scratch of the
 * same length as `key`. */
static void keep_groups(uint *key, uint *group, moert_router_args args) {
    const int size = args.experts / args.groups, most = args.groups > 1 ? args.groups : 0;
    for (int g = 0; g < most; g += VEC)
        store_keys((uvec)0, group + g);
    for (int g = 0; g < most; g++)
        group[g] = order_key(sum_best(key + g * size, size, args.group_best));
    for (int i = 0; i < min(args.kept_groups, most); i++)
        take_best(group, args.groups);
    for (int g = 0; g < most; g++)
        if (group[g] != 0)
            for (int e = g * size; e < (g + 1) * size; e++)
                key[e] = 0;
}
