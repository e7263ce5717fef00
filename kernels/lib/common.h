/*
 * Precedes every kernel file.
 *
 * A row, or another piece of work, belongs to a row group: a work-group of MOERT_ITEMS work-items.
 * In the CPU form a row group is one work-item, which computes in explicit vectors of 16 floats;
 * kernels written for GPUs run 20 to 90 times slower on CPUs. In the GPU form a row group has 32
 * work-items with vectors of 4 floats, so that its loads and stores are contiguous.
 *
 * Both forms process a row in steps of VEC floats. A work-item holds PART of them in a `vec`: item
 * i holds those from i * PART on. A sum over a row has SUM_LANES lanes in both forms, which are
 * added in the same order, so both give the same bits. Every elementwise formula is evaluated in
 * vector form. This includes tails, which are loaded with zeros and stored by count, so a value
 * does not depend on its position in a buffer. The first work-item of a row group stores the
 * results that all of its items share.
 *
 * Required: MOERT_CPU (0, 1), MOERT_FP64 (0, 1), MOERT_ITEMS (1 or 32). On NVIDIA's GPUs
 * MOERT_NVIDIA is the compute capability, 90 for sm_90; it selects instructions that PTX has and
 * OpenCL C lacks. MOERT_FAST is defined there unless MOERT_BACKEND names a backend without tensor
 * cores: divisions, square roots and elementary functions are then the hardware's, and their last
 * bits differ from those of CPUs. The GPU form may define ALIGNED: memory that steps read and write
 * begins at multiples of 16 bytes and ends at multiples of 4 floats. A part is then one access or
 * none, and the compiler can keep many loads in flight.
 */
#if !defined(MOERT_CPU) || !defined(MOERT_FP64) || !defined(MOERT_ITEMS)
#error "MOERT_CPU, MOERT_FP64 and MOERT_ITEMS must be defined"
#endif
#pragma OPENCL FP_CONTRACT OFF
#if MOERT_FP64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#define KERNEL KERNEL_OF(1)
#define KERNEL_OF(row_groups)                                                                      \
    __attribute__((reqd_work_group_size(MOERT_ITEMS, row_groups, 1)))                              \
    kernel /* the work-items of a work-group, in `row_groups` row groups */
#define UNROLL             _Pragma("unroll")
#define UNROLL_FOR(header) UNROLL for (header)
/* AVX2 has 16 registers of half a vector. Loops that fill them are unrolled, because loop control
 * would be a tenth of the instructions. */
#if MOERT_CPU && defined(__AVX2__) && !defined(__AVX512F__)
#define NARROW         1
#define EACH_STEP_OF_K _Pragma("unroll 4")
#else
#define NARROW 0
#define EACH_STEP_OF_K
#endif
/* Used where a constant argument must stay a constant. Without inlining, PoCL's compiler may also
 * leave `row_group` in a separate function, where all work-groups would share it. */
#define INLINED static inline __attribute__((always_inline))
#if MOERT_ITEMS > 1 && !defined(__NV_CL_C_VERSION) && !defined(__NVPTX__)
#pragma clang diagnostic ignored "-Wkeyword-macro"
#define inline                                                                                     \
    inline __attribute__((                                                                         \
        always_inline)) /* without inlining, PoCL's threads share the work-item's index */
#endif
#define ROLLED _Pragma("unroll 1") /* for loops whose unrolling only slows the compiler */
/* A loop that adds floats to a scalar, one after another. Intel's driver for CPUs would split the
 * sum into several ones if the loop's length is known only at run time. It leaves vectors, chains
 * of fma and unrolled loops as they are. tests/lint_kernels.awk finds scalar sums in other loops.
 */
#if MOERT_CPU && defined(__clang__)
#define IN_ORDER_FOR(header)                                                                       \
    _Pragma("clang loop vectorize(disable) interleave(disable)") for (header)
#else
#define IN_ORDER_FOR(header) for (header)
#endif
#if MOERT_CPU
#define UNROLL_ON_GPU /* the loop stays as it is, in both forms */
#else
#define UNROLL_ON_GPU UNROLL
#endif

/* BATCH: the number of steps whose loads are in flight together, in loops that hide memory
 * latency. */
#if MOERT_ITEMS == 1
#define PART  16
#define BATCH 1
typedef float16 vec;
typedef int16 ivec;
typedef uint16 uvec;
typedef uchar16 byte_vec;
typedef ushort16 short_vec;
#define as_vec            as_float16
#define as_uvec           as_uint16
#define as_ivec           as_int16
#define convert_vec       convert_float16
#define convert_uvec      convert_uint16
#define convert_ivec      convert_int16
#define convert_byte_vec  convert_uchar16
#define convert_short_vec convert_ushort16
#define vload_part        vload16
#define vstore_part       vstore16
#define LANES_IN_ORDER    (ivec)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#else
#define PART              4
#define BATCH             4
typedef float4 vec;
typedef int4 ivec;
typedef uint4 uvec;
typedef uchar4 byte_vec;
typedef ushort4 short_vec;
#define as_vec            as_float4
#define as_uvec           as_uint4
#define as_ivec           as_int4
#define convert_vec       convert_float4
#define convert_uvec      convert_uint4
#define convert_ivec      convert_int4
#define convert_byte_vec  convert_uchar4
#define convert_short_vec convert_ushort4
#define vload_part        vload4
#define vstore_part       vstore4
#define LANES_IN_ORDER    (ivec)(0, 1, 2, 3)
#endif
#define VEC (MOERT_ITEMS * PART)

/* The lanes of a sum over a row: eight vectors of a CPU's work-item, or one of each of 32. */
#define SUM_LANES 128
#define SUM_VECS  (SUM_LANES / VEC)
typedef struct lane_sums {
    vec part[SUM_VECS];
} lane_sums;
#define NO_SUM                                                                                     \
    {                                                                                              \
        { 0.0f }                                                                                   \
    }
/* Runs `body` for each step of the first `width` columns of a row. The step begins at column c, and
 * its sum belongs to part v of a lane_sums. `body` may have commas only inside parentheses. */
#define FOR_EACH_STEP(c, v, width, body)                                                           \
    {                                                                                              \
        int c = 0;                                                                                 \
        while (c + SUM_LANES <= (int)(width)) {                                                    \
            UNROLL_FOR(int v = 0; v < SUM_VECS; v++) {                                             \
                body c += VEC;                                                                     \
            }                                                                                      \
        }                                                                                          \
        for (int v = 0; c < (int)(width); v++) {                                                   \
            body c += VEC;                                                                         \
        }                                                                                          \
    }
/* Precedes a statement that is too long to be repeated: runs it for each step. */
#define EACH_STEP_OF(c, v, width)                                                                  \
    for (int c = 0, v = 0; c < (int)(width); c += VEC, v = (v + 1) % SUM_VECS)

static inline int item_index(void) {
    return MOERT_ITEMS > 1 ? (int)get_local_id(0) : 0;
}

static inline bool is_first_item(void) {
    return item_index() == 0;
}

/* The index in a step at which this work-item's part begins. */
static inline int part_start(void) {
    return item_index() * PART;
}

/* The index of this work-item's row group in its work-group. */
static inline int row_group_index(void) {
    return MOERT_ITEMS > 1 ? (int)get_local_id(1) : 0;
}

/* The indices in a step of this work-item's lanes. */
static inline ivec lane_places(void) {
    return part_start() + LANES_IN_ORDER;
}

/* Declares `row_group`, the local memory through which the items of a row group exchange
 * values. With several row groups it is an array with one entry for each, and they use it at
 * the same time. */
#define ROW_GROUP                local float row_group[MOERT_ITEMS]
#define ROW_GROUP_OF(row_groups) local float row_group[row_groups][MOERT_ITEMS]

/* Whether a part that begins at p is a single access. */
#define IS_WHOLE(p) (MOERT_ITEMS > 1 && ((size_t)(p)&15) == 0)

/* Read and write a vector of `n` elements of `type` in the address space `space`, aligned as one of
 * them is. PoCL compiles vloadN and vstoreN to several accesses, vstoreN of bytes and 16-bit
 * elements to N. */
#if MOERT_ITEMS == 1 && MOERT_CPU && defined(__clang__)
typedef float16 loose_float16 __attribute__((aligned(4)));
typedef uint16 loose_uint16 __attribute__((aligned(4)));
typedef ushort16 loose_ushort16 __attribute__((aligned(2)));
typedef uchar16 loose_uchar16 __attribute__((aligned(1)));
typedef uchar8 loose_uchar8 __attribute__((aligned(1)));
#define LOAD_VECTOR(space, type, n, p)     (*(space const loose_##type##n *)(p))
#define STORE_VECTOR(space, type, n, x, p) (*(space loose_##type##n *)(p) = (x))
#else
#define LOAD_VECTOR(space, type, n, p)     vload##n(0, p)
#define STORE_VECTOR(space, type, n, x, p) vstore##n(x, 0, p)
#endif

/* Reads n floats of a step; lanes beyond them are zero. n may exceed VEC, and in the GPU form it
 * may be 0 or negative. */
static inline vec load_part(global const float *p, int n) {
    p += part_start();
    n -= part_start();
#ifdef ALIGNED
    return n > 0 ? *(global const vec *)p : 0.0f;
#endif
    if (n >= PART) /* else vload4 would be four loads */
        return IS_WHOLE(p) ? *(global const vec *)p : vload_part(0, p);
    float lane[PART];
    for (int i = 0; i < PART; i++)
        lane[i] = i < n ? p[i] : 0.0f;
    return vload_part(0, lane);
}

/* Writes PART floats. */
static inline void store_vec(vec x, global float *p) {
#if MOERT_ITEMS == 1
    STORE_VECTOR(global, float, 16, x, p);
#else
    if (IS_WHOLE(p))
        *(global vec *)p = x;
    else
        vstore_part(x, 0, p);
#endif
}

/* Writes the first n lanes of a step. */
static inline void store_part(vec x, global float *p, int n) {
    p += part_start();
    n -= part_start();
#ifdef ALIGNED
    if (n > 0)
        *(global vec *)p = x;
    return;
#endif
    float lane[PART];
    if (n >= PART) {
        store_vec(x, p);
        return;
    }
    vstore_part(x, 0, lane);
    for (int i = 0; i < PART; i++)
        if (i < n)
            p[i] = lane[i];
}

/* load_part and store_part for BATCH steps. */
static inline void load_batch(vec x[BATCH], global const float *p, int n) {
    UNROLL_FOR(int i = 0; i < BATCH; i++)
        x[i] = load_part(p + i * VEC, n - i * VEC);
}

static inline void store_batch(const vec x[BATCH], global float *p, int n) {
    UNROLL_FOR(int i = 0; i < BATCH; i++)
        store_part(x[i], p + i * VEC, n - i * VEC);
}

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
 * DEFINE_LANES below adds in the same tree order with it. */
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

DEFINE_LANES(sum_vec, float, PLUS)
DEFINE_LANES(max_lanes, float, fmax)

/* The sum of a row's lanes. A CPU adds as the work-items of the GPU form do: the four lanes of each
 * item, then items 16, 8, 4, 2 and 1 apart. */
#if MOERT_ITEMS == 1
/* Lanes i and j of each four lanes of a, then of b; lane i of each two lanes. */
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

/* The first n lanes of a step; the others become zero. */
static inline vec first_lanes(vec x, int n) {
    return lane_places() < n ? x : 0.0f;
}

/* The larger magnitude of each lane; NaN persists. */
static inline vec raise(vec peak, vec x) {
    return fabs(x) > peak || isnan(x) ? fabs(x) : peak;
}

static inline float raise_lanes(vec peak, local float *row_group) {
    const ivec none = isnan(peak);
    const float most = max_lanes(peak, row_group); /* fmax ignores a NaN */
    const float missing = max_lanes(none != 0 ? (vec)1.0f : (vec)0.0f, row_group);
    return missing > 0.0f ? NAN : most;
}

/* Row r belongs to group g if ends[g-1] <= r < ends[g]. Returns that group, or `groups` if there is
 * none. */
static inline uint group_of(global const uint *ends, uint groups, uint r) {
    uint from = 0, to = groups;
    while (from < to) {
        const uint middle = (from + to) / 2;
        if (ends[middle] > r)
            to = middle;
        else
            from = middle + 1;
    }
    return from;
}

static inline uint group_start(global const uint *ends, uint g) {
    return g > 0 ? ends[g - 1] : 0;
}
