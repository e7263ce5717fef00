/*
 * Included by gpu.cl: the choice of the smallest of a token's keys. An item holds KEYS keys.
 * UINT_MAX must not be chosen.
 *
 * A key holds the first bits of a selection score and the expert, or the whole score. If keys are
 * whole scores, the smallest ones are chosen one after the other. Where items have shuffles, they
 * sort the shorter keys. If a chosen key has the same score bits as another key, the choice is
 * repeated with whole scores.
 */
#include "router/items.h"

#define EXPERT_BITS (MOST_EXPERTS - 1u) /* the bits of a key that hold the expert */
#define SORTS       (HAS_SHUFFLES && SLOTS <= MOERT_ITEMS)
#define LIST        8 /* keys that sort_list sorts; at most SLOTS */

/* mine[i] = the expert of this item's slot number i, 0 past the last slot. Keys are whole
 * scores. */
static inline void choose_whole(uint key[KEYS], int topk, uint mine[OWN_SLOTS],
                                local float *row_group) {
    UNROLL_FOR(int i = 0; i < OWN_SLOTS; i++)
        mine[i] = 0;
    for (int k = 0; k < topk; k++) {
        uint best = UINT_MAX, expert = EXPERT_BITS;
        UNROLL_FOR(int i = 0; i < KEYS; i++)
            best = min(best, key[i]);
        best = token_min(best, row_group);
        UNROLL_FOR(int i = KEYS - 1; i >= 0; i--)
            expert = key[i] == best ? expert_of(i) : expert;
        expert = token_min(expert, row_group);
        UNROLL_FOR(int i = 0; i < KEYS; i++)
            key[i] = expert_of(i) == expert ? UINT_MAX : key[i];
        UNROLL_FOR(int i = 0; i < OWN_SLOTS; i++)
            mine[i] = slot_index() + i * SPAN == k ? expert : mine[i];
    }
}

#if SORTS
/* Swaps *a and *b unless *a <= *b. */
static inline void order(uint *a, uint *b) {
    const uint low = min(*a, *b);
    *b = max(*a, *b);
    *a = low;
}

static inline void sort_list(uint key[LIST]) {
#define ORDER(i, j) order(&key[i], &key[j]);
    /* each line is one step of a sorting network */
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

/* The SLOTS smallest keys of two sorted lists, sorted, by Batcher's bitonic merge. */
static inline void merge_lists(uint list[SLOTS], const uint other[SLOTS]) {
    UNROLL_FOR(int i = 0; i < SLOTS; i++)
        list[i] = min(list[i], other[SLOTS - 1 - i]);
    UNROLL_FOR(int d = SLOTS / 2; d > 0; d /= 2)
        UNROLL_FOR(int i = 0; i < SLOTS; i++)
            if ((i & d) == 0)
                order(&list[i], &list[i + d]);
}

/* Returns the larger or the smaller of a and b, by assembly, since the compiler would compare
 * several times. */
static inline uint extreme(bool larger, uint a, uint b) {
    uint x;
    __asm__("{ .reg .pred p; .reg .b32 low, high; setp.ne.u32 p, %3, 0; min.u32 low, %1, %2; "
            "max.u32 high, %1, %2; "
            "selp.b32 %0, high, low, p; }"
            : "=r"(x)
            : "r"(a), "r"(b), "r"((uint)larger));
    return x;
}

/* The key of the item whose index differs from this item's in the bits `bits`. */
static inline uint shuffle_key(uint key, int bits) {
    return as_uint(exchanged(as_float(key), bits));
}

/* Each item has a rank among the items that share its list. The numbers of two items whose ranks
 * differ only in bit v differ in the bits RANK_BIT(v). */
#define RANK_BIT(v) (((v) | 2 * (v)) & (SLOTS - 1))

/* One step of merge_across(): orders keys between items whose ranks differ in bit v. That bit of an
 * item's rank is the parity of bits w to v of its number. */
INLINED void order_across(uint list[SLOTS], int w, int v) {
    const bool upper = popcount(slot_index() & (2 * v - 1) & ~(w - 1)) & 1;
    uint other[SLOTS];
    UNROLL_FOR(int i = 0; i < SLOTS / 2; i++)
        if (i < w)
            other[i] = shuffle_key(list[v == w ? w - 1 - i : i], RANK_BIT(v));
    UNROLL_FOR(int i = 0; i < SLOTS / 2; i++)
        if (i < w)
            list[i] = extreme(upper, list[i], other[i]);
}

/*
 * Merges pairs of sorted lists, each spread over several items with 2 w keys per item, and keeps
 * the smaller half of both. An item reads the mirrored part of the other list: for each i < w it
 * keeps the smaller of its key i and the other item's key 2 w - 1 - i. These keys are bitonic; they
 * are then ordered across the items, and last within each item. (Loops have fixed lengths, since w
 * is a constant after inlining.)
 */
INLINED void merge_across(uint list[SLOTS], int w) {
    uint other[SLOTS];
    UNROLL_FOR(int i = 0; i < SLOTS / 2; i++)
        if (i < w)
            other[i] = shuffle_key(list[2 * w - 1 - i], RANK_BIT(w));
    UNROLL_FOR(int i = 0; i < SLOTS / 2; i++)
        if (i < w)
            list[i] = min(list[i], other[i]);
    UNROLL_FOR(int v = SLOTS / 2; v > 0; v /= 2)
        if (v >= w)
            order_across(list, w, v);
    UNROLL_FOR(int d = SLOTS / 4; d > 0; d /= 2)
        UNROLL_FOR(int i = 0; i < SLOTS / 2; i++)
            if (i + d < w && (i & d) == 0)
                order(&list[i], &list[i + d]);
}

/* Returns the key of choice k to the token's item k. *distinct: no chosen key has the same score
 * bits as another key of the token. */
static inline uint choose(const uint key[KEYS], int topk, bool *distinct, local float *row_group) {
    const int slot = slot_index(), base = first_item();
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
        merge_across(list, w);
    const uint mine =
        shuffle_int_from(list[0], base + ((slot ^ slot << 1) & (SLOTS - 1)), row_group);
    const uint last = shuffle_int_from(mine, base + topk - 1, row_group);
    const uint before = shuffle_int_from(mine, base + max(slot - 1, 0), row_group);
    UNROLL_FOR(int i = 0; i < KEYS; i++)
        nearest =
            min(nearest, key[i] - last - 1); /* distance from the last choice to the next key */
    const bool equal = slot > 0 && slot < topk && (mine ^ before) <= EXPERT_BITS;
    *distinct = max_uints((uvec)(uint)(equal || nearest < (~last & EXPERT_BITS)), row_group) == 0;
    return mine;
}
#endif
