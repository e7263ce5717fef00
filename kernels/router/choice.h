/*
 * Included by gpu.cl: the choice of the smallest of a token's keys, KEYS of which an item
 * has. UINT_MAX is not to be chosen.
 */
#define KEYS (MOST_EXPERTS / SLOTS)
#define LIST 8 /* keys that are sorted at once; at most SLOTS */

static inline void order(uint *a, uint *b) {
    const uint low = min(*a, *b);
    *b = max(*a, *b);
    *a = low;
}

static inline void sort_list(uint key[LIST]) {
#define ORDER(i, j) order(&key[i], &key[j]);
    /* a row is a step of the network */
    /* clang-format off */
    ORDER(0, 2) ORDER(1, 3) ORDER(4, 6) ORDER(5, 7)
    ORDER(0, 4) ORDER(1, 5) ORDER(2, 6) ORDER(3, 7)
    ORDER(0, 1) ORDER(2, 3) ORDER(4, 5) ORDER(6, 7)
    ORDER(2, 4) ORDER(3, 5)
    ORDER(1, 4) ORDER(3, 6)
    ORDER(1, 2) ORDER(3, 4) ORDER(5, 6)
    /* clang-format on */
#undef ORDER
}

/* The first of two sorted lists; Batcher's bitonic merge. */
static inline void merge_lists(uint list[SLOTS], const uint other[SLOTS]) {
    UNROLL_FOR(int i = 0; i < SLOTS; i++)
        list[i] = min(list[i], other[SLOTS - 1 - i]);
    UNROLL_FOR(int d = SLOTS / 2; d > 0; d /= 2)
        UNROLL_FOR(int i = 0; i < SLOTS; i++)
            if ((i & d) == 0)
                order(&list[i], &list[i + d]);
}

static inline uint extreme(bool larger, uint a, uint b) {
#if defined(__NV_CL_C_VERSION) ||                                                                  \
    defined(__NVPTX__) /* whose compiler would compare several times */
    uint x;
    __asm__("{ .reg .pred p; .reg .b32 low, high; setp.ne.u32 p, %3, 0; min.u32 low, %1, %2; "
            "max.u32 high, %1, %2; "
            "selp.b32 %0, high, low, p; }"
            : "=r"(x)
            : "r"(a), "r"(b), "r"((uint)larger));
    return x;
#else
    return larger ? max(a, b) : min(a, b);
#endif
}

/* Where the item lies whose rank among those that share a list has its bit v transposed. */
#define ACROSS(v) (((v) | 2 * (v)) & (SLOTS - 1))

/* One step of join_lists(): the bit v of an item's rank is the parity of the bits of its number
 * from w to v. */
INLINED void order_across(uint list[SLOTS], int w, int v, local float *row_group) {
    const bool upper = popcount(slot_index() & (2 * v - 1) & ~(w - 1)) & 1;
    uint other[SLOTS];
    UNROLL_FOR(int i = 0; i < SLOTS / 2; i++)
        if (i < w)
            other[i] = uint_across(list[v == w ? w - 1 - i : i], ACROSS(v), row_group);
    UNROLL_FOR(int i = 0; i < SLOTS / 2; i++)
        if (i < w)
            list[i] = extreme(upper, list[i], other[i]);
}

/*
 * Items that share a sorted list, 2 w keys each, and as many others join: each meets the one with
 * the mirrored part of the other list, and of its first keys and that one's last ones keeps the
 * smaller, w in all. They are bitonic, and are ordered across the items, then in each. (Loops have
 * fixed lengths: w is a constant after inlining.)
 */
INLINED void join_lists(uint list[SLOTS], int w, local float *row_group) {
    uint other[SLOTS];
    UNROLL_FOR(int i = 0; i < SLOTS / 2; i++)
        if (i < w)
            other[i] = uint_across(list[2 * w - 1 - i], ACROSS(w), row_group);
    UNROLL_FOR(int i = 0; i < SLOTS / 2; i++)
        if (i < w)
            list[i] = min(list[i], other[i]);
    UNROLL_FOR(int v = SLOTS / 2; v > 0; v /= 2)
        if (v >= w)
            order_across(list, w, v, row_group);
    UNROLL_FOR(int d = SLOTS / 4; d > 0; d /= 2)
        UNROLL_FOR(int i = 0; i < SLOTS / 2; i++)
            if (i + d < w && (i & d) == 0)
                order(&list[i], &list[i + d]);
}

/* The key of choice k for the token's item k; `clear` if no two keys of which one is chosen have
 * the same score. */
static inline uint choose(const uint key[KEYS], int topk, bool *clear, local float *row_group) {
    const int slot = slot_index(), base = item_index() - slot;
    uint list[SLOTS], other[SLOTS], nearest = UINT_MAX;
    UNROLL_FOR(int from = 0; from < KEYS; from += LIST) {
        UNROLL_FOR(int i = 0; i < SLOTS; i++)
            other[i] = i < LIST && from + i < KEYS ? key[from + i] : UINT_MAX;
        sort_list(other);
        if (from > 0)
            merge_lists(list, other);
        UNROLL_FOR(int i = 0; i < SLOTS; i++)
            list[i] = from > 0 ? list[i] : other[i];
    }
    UNROLL_FOR(int w = SLOTS / 2; w > 0; w /= 2)
        join_lists(list, w, row_group);
    const uint mine = int_of_item(list[0], base + ((slot ^ slot << 1) & (SLOTS - 1)), row_group);
    const uint last = int_of_item(mine, base + topk - 1, row_group);
    const uint before = int_of_item(mine, base + max(slot - 1, 0), row_group);
    UNROLL_FOR(int i = 0; i < KEYS; i++)
        nearest = min(nearest, key[i] - last - 1); /* how far it is from the last one to the next */
    const bool equal = slot > 0 && slot < topk && (mine ^ before) <= PLACE;
    *clear = max_uints((uvec)(uint)(equal || nearest < (~last & PLACE)), row_group) == 0;
    return mine;
}

/* The same by whole keys; what comes out is an expert. */
static inline uint choose_again(uint key[KEYS], int topk, local float *row_group) {
    uint mine = 0;
    for (int k = 0; k < topk; k++) {
        uint best = UINT_MAX, place = PLACE;
        UNROLL_FOR(int i = 0; i < KEYS; i++)
            best = min(best, key[i]);
        best = least_of_token(best, row_group);
        UNROLL_FOR(int i = KEYS - 1; i >= 0; i--)
            place = key[i] == best ? place_of(i) : place;
        place = least_of_token(place, row_group);
        UNROLL_FOR(int i = 0; i < KEYS; i++)
            key[i] = place_of(i) == place ? UINT_MAX : key[i];
        mine = slot_index() == k ? place : mine;
    }
    return mine;
}
