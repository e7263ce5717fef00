/* Included by common.h: sums and maxima over the lanes of a row group. */
/*
 * The sum and the maxima over the lanes of a vec, always in the same tree order; all items get the
 * result. All items of the row group must call together, with `row_group` as ROW_GROUP declares it.
 * DEFINE_LANES defines such a function for an element type and an operation.
 */
#define PLUS(a, b) ((a) + (b))
#define DEFINE_TREE(name, type, op)                                                                \
    static inline type name##_of_16(type##16 x) {                                                  \
        const type##8 a = op(x.lo, x.hi);                                                          \
        const type##4 b = op(a.lo, a.hi);                                                          \
        const type##2 c = op(b.lo, b.hi);                                                          \
        return op(c.x, c.y);                                                                       \
    }

#if MOERT_ITEMS == 1
#define DEFINE_LANES(name, type, op)                                                               \
    DEFINE_TREE(name, type, op)                                                                    \
    static inline type name(type##16 x, local float *row_group) {                                  \
        return name##_of_16(x);                                                                    \
    }
#elif defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
/* Returns x of the item whose index differs in the bit `distance`, by NVIDIA's shuffle.
 * DEFINE_LANES below uses this to add in the same tree order. */
static inline float exchanged(float x, int distance) {
    float other;
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xFFFFFFFF;"
                     : "=f"(other)
                     : "f"(x), "r"(distance));
    return other;
}

#define DEFINE_LANES(name, type, op)                                                               \
    static inline type name(type##4 x, local float *row_group) {                                   \
        const type##2 own = op(x.lo, x.hi);                                                        \
        type all = op(own.x, own.y);                                                               \
        UNROLL_FOR(int distance = MOERT_ITEMS / 2; distance > 0; distance /= 2)                    \
            all = op(all, as_##type(exchanged(as_float(all), distance)));                          \
        return all;                                                                                \
    }
#else
/* Gives every item the floats of all 32 items. */
static inline void exchange_floats(float x, local float *row_group, float16 *low, float16 *high) {
    barrier(CLK_LOCAL_MEM_FENCE); /* all items have read the previous values */
    row_group[get_local_id(0)] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    *low = vload16(0, row_group);
    *high = vload16(1, row_group);
}

#define DEFINE_LANES(name, type, op)                                                               \
    DEFINE_TREE(name, type, op)                                                                    \
    static inline type name(type##4 x, local float *row_group) {                                   \
        const type##2 own = op(x.lo, x.hi);                                                        \
        float16 low, high;                                                                         \
        exchange_floats(as_float(op(own.x, own.y)), row_group, &low, &high);                       \
        return name##_of_16(op(as_##type##16(low), as_##type##16(high)));                          \
    }
#endif

#if MOERT_ITEMS > 1 && MOERT_NVIDIA >= 80
#define HAS_WARPS
/* The value of x in item `from` of the row group. */
static inline uint value_in(uint x, uint from) {
    uint value;
    __asm__ volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xFFFFFFFF;"
                     : "=r"(value)
                     : "r"(x), "r"(from));
    return value;
}

/* The sum of x over the items up to this one. */
static inline uint sum_to_item(uint x) {
    UNROLL_FOR(uint distance = 1; distance < 32; distance *= 2) {
        const uint before = get_local_id(0) - distance;
        const uint other = value_in(x, before & 31);
        x += get_local_id(0) >= distance ? other : 0;
    }
    return x;
}

/* Bit i: whether x is not 0 in item i. */
static inline uint items_with(uint x) {
    uint bits;
    __asm__ volatile(
        "{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xFFFFFFFF; }"
        : "=r"(bits)
        : "r"(x));
    return bits;
}

/* The larger magnitude; a NaN wins. */
static inline float larger_magnitude(float a, float b) {
    float larger;
    __asm__("{ .reg .f32 x, y; abs.f32 x, %1; abs.f32 y, %2; max.NaN.f32 %0, x, y; }"
            : "=f"(larger)
            : "f"(a), "f"(b));
    return larger;
}
#endif

DEFINE_LANES(sum_vec, float, PLUS)
DEFINE_LANES(max_lanes, float, fmax)

/* The sum of a row's lanes. A CPU adds as the work-items of the GPU form do: the four lanes of each
 * item, then items 16, 8, 4, 2 and 1 apart. */
#if MOERT_ITEMS == 1
/* TWO_OF_FOUR: lanes i and j of every four lanes of a, then of b. ONE_OF_TWO: lane i of every two
 * lanes of a, then of b. */
#define TWO_OF_FOUR(a, b, i, j)                                                                    \
    __builtin_shufflevector(a, b, i, j, i + 4, j + 4, i + 8, j + 8, i + 12, j + 12, i + 16,        \
                            j + 16, i + 20, j + 20, i + 24, j + 24, i + 28, j + 28)
#define ONE_OF_TWO(a, b, i)                                                                        \
    __builtin_shufflevector(a, b, i, i + 2, i + 4, i + 6, i + 8, i + 10, i + 12, i + 14, i + 16,   \
                            i + 18, i + 20, i + 22, i + 24, i + 26, i + 28, i + 30)
static inline float sum_lanes(lane_sums x, local float *row_group) {
    vec pairs[4], items[2];
    UNROLL_FOR(int i = 0; i < 4; i++) {
        const vec a = x.part[2 * i], b = x.part[2 * i + 1];
        pairs[i] = TWO_OF_FOUR(a, b, 0, 1) + TWO_OF_FOUR(a, b, 2, 3);
    }
    UNROLL_FOR(int i = 0; i < 2; i++)
        items[i] = ONE_OF_TWO(pairs[2 * i], pairs[2 * i + 1], 0) +
                   ONE_OF_TWO(pairs[2 * i], pairs[2 * i + 1], 1);
    return sum_vec(items[0] + items[1], row_group);
}
#else
static inline float sum_lanes(lane_sums x, local float *row_group) {
    return sum_vec(x.part[0], row_group);
}
#endif
#if MOERT_ITEMS > 1 && MOERT_NVIDIA >= 80
static inline uint max_uints(uvec x, local float *row_group) {
    uint2 own = max(x.lo, x.hi);
    uint most = max(own.x, own.y);
    __asm__ volatile("redux.sync.max.u32 %0, %1, 0xFFFFFFFF;" : "=r"(most) : "r"(most));
    return most;
}
#else
DEFINE_LANES(max_uints, uint, max)
#endif

/* The larger magnitude of each lane; a NaN stays a NaN. */
static inline vec raise(vec peak, vec x) {
    return fabs(x) > peak || isnan(x) ? fabs(x) : peak;
}

static inline float raise_lanes(vec peak, local float *row_group) {
    const ivec none = isnan(peak);
    const float most = max_lanes(peak, row_group); /* fmax ignores a NaN */
    const float missing = max_lanes(none != 0 ? (vec)1.0f : (vec)0.0f, row_group);
    return missing > 0.0f ? NAN : most;
}
