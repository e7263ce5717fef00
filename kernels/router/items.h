/*
 * Included by gpu.cl, which has the picture: how a token's experts and slots lie in the items of a
 * row group, and the values that the items of a token compute together.
 *
 * Required: EXPERTS (1 to 1024), SLOTS (a power of two from 8 on; at least 32 with more than 256
 * experts).
 */
#if !defined(EXPERTS) || !defined(SLOTS)
#error "EXPERTS and SLOTS must be defined"
#endif

#define SPAN      (SLOTS < MOERT_ITEMS ? SLOTS : MOERT_ITEMS) /* items of a token */
#define OWN_SLOTS (SLOTS / SPAN)                              /* slots of an item, SPAN apart */
#define TOKENS    (MOERT_ITEMS / SPAN)
#define MOST_EXPERTS                                                                               \
    (EXPERTS <= VEC ? VEC : EXPERTS <= 2 * VEC ? 2 * VEC : EXPERTS <= 4 * VEC ? 4 * VEC : 8 * VEC)
#define STEPS       (MOST_EXPERTS / VEC)
#define PARTS       (STEPS * TOKENS)      /* parts of a token's experts that an item holds */
#define PART_STRIDE (SPAN * PART)         /* experts from one part of an item to its next */
#define KEYS        (MOST_EXPERTS / SPAN) /* experts that an item holds */

#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
#define HAS_SHUFFLES 1
#else
#define HAS_SHUFFLES 0
#endif

/* A barrier of the items of a row group, which then see each other's stores to local memory. On
 * NVIDIA's GPUs the barrier may be under a condition that all items of the row group share. */
static inline void sync_items(void) {
#if HAS_SHUFFLES
    __asm__ volatile("bar.warp.sync 0xFFFFFFFF;" : : : "memory");
#else
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
}

/* x of item number `item` of the row group; all items call together. */
static inline float shuffle_from(float x, int item, local float *row_group) {
#if HAS_SHUFFLES
    float other;
    __asm__ volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xFFFFFFFF;"
                     : "=f"(other)
                     : "f"(x), "r"(item));
    return other;
#else
    sync_items();
    row_group[item_index()] = x;
    sync_items();
    return row_group[item];
#endif
}

static inline int shuffle_int_from(int x, int item, local float *row_group) {
    return as_int(shuffle_from(as_float(x), item, row_group));
}

static inline int slot_index(void) {
    return item_index() & (SPAN - 1);
}

/* The first item of this item's token. */
static inline int first_item(void) {
    return item_index() - slot_index();
}

/* The expert of an item's element i. */
static inline int expert_of(int i) {
    return i / PART * PART_STRIDE + slot_index() * PART + i % PART;
}

/* The item's first expert of a token, minus part_start(), which load_part and store_part add. */
static inline int token_offset(void) {
    return slot_index() * PART - part_start();
}

/*
 * Reductions over the items of a token, whose result all of these items get: the maximum, the
 * minimum, the sum by the tree of sum_vec(), and `sum` plus each item's x in order. Without
 * shuffles, each item reads the values of all items of its token from local memory.
 */
#if HAS_SHUFFLES
static inline float token_max(float x, local float *row_group) {
    UNROLL_FOR(int d = SPAN / 2; d > 0; d /= 2)
        x = fmax(x, exchanged(x, d));
    return x;
}

static inline uint token_min(uint x, local float *row_group) {
    UNROLL_FOR(int d = SPAN / 2; d > 0; d /= 2)
        x = min(x, as_uint(exchanged(as_float(x), d)));
    return x;
}

static inline float token_sum(float x, local float *row_group) {
    UNROLL_FOR(int d = SPAN / 2; d > 0; d /= 2)
        x += exchanged(x, d);
    return x;
}

static inline float add_items(float sum, float x, local float *row_group) {
    const int base = first_item();
    UNROLL_FOR(int k = 0; k < SPAN; k++)
        sum += shuffle_from(x, base + k, row_group);
    return sum;
}
#else
static inline float token_max(float x, local float *row_group) {
    const int base = first_item();
    float most = shuffle_from(x, base, row_group);
    for (int k = 1; k < SPAN; k++)
        most = fmax(most, row_group[base + k]);
    return most;
}

static inline uint token_min(uint x, local float *row_group) {
    const int base = first_item();
    uint least = (uint)shuffle_int_from((int)x, base, row_group);
    for (int k = 1; k < SPAN; k++)
        least = min(least, as_uint(row_group[base + k]));
    return least;
}

static inline float token_sum(float x, local float *row_group) {
    const int base = first_item();
    float sum[SPAN];
    sum[0] = shuffle_from(x, base, row_group);
    for (int k = 1; k < SPAN; k++)
        sum[k] = row_group[base + k];
    for (int d = SPAN / 2; d > 0; d /= 2)
        for (int k = 0; k < d; k++)
            sum[k] += sum[k + d];
    return sum[0];
}

static inline float add_items(float sum, float x, local float *row_group) {
    const int base = first_item();
    shuffle_from(x, base, row_group);
    IN_ORDER_FOR(int k = 0; k < SPAN; k++)
        sum += row_group[base + k];
    return sum;
}
#endif

/* The sum of a token's lanes. */
static inline float sum_token(const vec x[TOKENS], local float *row_group) {
    float sum[TOKENS];
    UNROLL_FOR(int i = 0; i < TOKENS; i++) {
        const float2 pair = x[i].lo + x[i].hi;
        sum[i] = pair.x + pair.y;
    }
    UNROLL_FOR(int d = TOKENS / 2; d > 0; d /= 2)
        UNROLL_FOR(int i = 0; i < d; i++)
            sum[i] += sum[i + d];
    return token_sum(sum[0], row_group);
}
