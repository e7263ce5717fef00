/*
 * Included by router_gpu.cl: the choice of the largest of a token's keys, which lie across the items of a team. A key of 0
 * is not to be chosen.
 */
/* An item's keys, the largest first. */
static inline void sort_keys(uvec key[STEPS])
{
#define ORDER(a, b)                                                                                                    \
    {                                                                                                                  \
        const uint low = min(a, b);                                                                                    \
        a = max(a, b);                                                                                                 \
        b = low;                                                                                                       \
    }
#define SORT(v) ORDER(v.x, v.y) ORDER(v.z, v.w) ORDER(v.x, v.z) ORDER(v.y, v.w) ORDER(v.y, v.z)
    SORT(key[0])
#if STEPS == 2 /* and Batcher's merge */
    SORT(key[1])
    ORDER(key[0].x, key[1].x) ORDER(key[0].y, key[1].y) ORDER(key[0].z, key[1].z) ORDER(key[0].w, key[1].w)
    ORDER(key[0].z, key[1].x) ORDER(key[0].w, key[1].y) ORDER(key[0].y, key[0].z) ORDER(key[0].w, key[1].x)
    ORDER(key[1].y, key[1].z)
#endif
#undef SORT
#undef ORDER
}

/* Leaves in item `at` + k the key of choice k; false where the keys do not tell. */
static inline bool choose(uvec key[STEPS], int topk, int at, uint *mine, local float *team)
{
    uint before = 0;
    bool clear = true;
    sort_keys(key);
    for (int k = 0; k <= topk; k++) { /* and the first that is not chosen */
        const uint best = max_uints((uvec)key[0].x, team);
        const bool taken = key[0].x == best;
        clear &= (best ^ before) > PLACE;
#if STEPS == 1
        key[0] = taken ? (uvec)(key[0].yzw, 0) : key[0];
#else
        key[0] = taken ? (uvec)(key[0].yzw, key[1].x) : key[0];
        key[1] = taken ? (uvec)(key[1].yzw, 0) : key[1];
#endif
        *mine = k < topk && item_index() == at + k ? best : *mine;
        before = best;
    }
    return clear;
}

/* The same by whole keys. */
static inline void choose_again(uvec keys[STEPS], int topk, int at, uint *mine, local float *team)
{
    for (int k = 0; k < topk; k++) {
        uvec largest = 0, first = PLACE;
        UNROLL for (int i = 0; i < STEPS; i++)
            largest = max(largest, keys[i]);
        const uint best = max_uints(largest, team);
        UNROLL for (int i = STEPS - 1; i >= 0; i--)
            first = select(first, as_uvec(lane_places() + i * VEC), keys[i] == best);
        const uint place = max_uints(PLACE - first, team);
        UNROLL for (int i = 0; i < STEPS; i++)
            keys[i] = select(keys[i], (uvec)0, as_uvec(lane_places() + i * VEC) == PLACE - place);
        *mine = item_index() == at + k ? place : *mine;
    }
}
