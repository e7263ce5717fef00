/*
 * PTX that NVIDIA's OpenCL compiler accepts as inline assembly: barriers in local memory, TMA,
 * wgmma. Local memory is addressed by 32-bit addresses. The driver compiles OpenCL source for
 * sm_90, not for sm_90a. Instructions that need sm_90a are therefore comments marked @sm_90a, which
 * src/device/nvidia/ptx.c turns into instructions. Source: the PTX ISA manual. Required: F16 (0
 * bf16, 1 f16).
 */
#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

static inline uint local_address(local void *p) {
    return (uint)(size_t)p;
}

/* Atomically adds x to a word in local memory. */
static inline void add_local(uint to, uint x) {
    __asm__ volatile("red.shared.add.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

/* Atomically adds x to a word in global memory and returns the old value. The addition comes after
 * earlier accesses of the work-group up to its last barrier, and before later ones. */
static inline uint add_global(global uint *to, uint x) {
    uint old;
    __asm__ volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                     : "=r"(old)
                     : "l"(to), "r"(x)
                     : "memory");
    return old;
}

/* Adds 1 to a word in global memory and returns the old value; orders no other accesses. */
static inline uint count_global(global uint *to) {
    uint old;
    __asm__ volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(to));
    return old;
}

/* Reads a word in global memory before all accesses that follow. */
static inline uint acquire_global(global const uint *from) {
    uint x;
    __asm__ volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

/* Reads this work-item's index in its warp from the hardware again. So the compiler cannot keep
 * values computed from the index in registers across a loop. */
static inline uint lane_again(void) {
    uint lane;
    __asm__ volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* ---- barriers in local memory (mbarrier) ---- */

static inline void begin_barrier(uint barrier, uint arrivals) {
    __asm__ volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                     : "memory");
}

static inline void arrive(uint barrier) {
    __asm__ volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives at the barrier, and announces that TMA will write `bytes` bytes. */
static inline void expect(uint barrier, uint bytes) {
    __asm__ volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"(bytes)
                     : "memory");
}

/* Waits until round `round` is complete; rounds count from 0. */
static inline void await(uint barrier, uint round) {
    uint done = 0;
    while (done == 0)
        __asm__ volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                         "selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(barrier), "r"(round & 1)
                         : "memory");
}

/* Initialises the barriers of a ring of stages, 8 bytes each in local memory, with the number of
 * arrivals that the full and the empty barriers expect. */
static inline void begin_ring(uint full, uint empty, int stages, uint full_arrivals,
                              uint empty_arrivals) {
    for (int i = 0; i < stages; i++) {
        begin_barrier(full + 8 * i, full_arrivals);
        begin_barrier(empty + 8 * i, empty_arrivals);
    }
}

/* Makes new barriers visible to TMA. */
static inline void fence_barriers(void) {
    __asm__ volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;" ::: "memory");
}

/* ---- synchronisation ---- */

static inline void barrier_of(uint number, uint threads) {
    __asm__ volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Arrives without waiting. */
static inline void pass_barrier(uint number, uint threads) {
    __asm__ volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

static inline void sync_warp(void) {
    __asm__ volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}

/* x of the first work-item of the warp; tells the compiler that all work-items have the same
 * value. */
static inline int of_warp(int x) {
    int first;
    __asm__ volatile("shfl.sync.idx.b32 %0, %1, 0, 31, 0xffffffff;" : "=r"(first) : "r"(x));
    return first;
}

/* Orders this thread's stores to local memory before later reads by tensor cores and TMA. */
static inline void fence_tensor(void) {
    __asm__ volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- TMA ---- */

typedef struct tensor_map {
    ulong16 words;
} tensor_map;

/* The address of tensor map `n` of a kernel, whose first argument is a struct of tensor maps. TMA
 * takes maps at multiples of 64 bytes. */
static inline ulong map_address(ulong parameter, int n) {
    ulong address;
    __asm__("cvta.param.u64 %0, %1;" : "=l"(address) : "l"(parameter));
    return address + n * sizeof(tensor_map);
}
#define MAP_ADDRESS(kernel, n)                                                                     \
    ({                                                                                             \
        ulong parameter_;                                                                          \
        __asm__("mov.b64 %0, " TEXT(kernel) "_param_0;" : "=l"(parameter_));                       \
        map_address(parameter_, n);                                                                \
    })

/* Starts a load of the map's box at (x, y, z), innermost first; TMA counts its bytes at the
 * barrier. */
static inline void load_box(uint to, ulong map, int x, int y, int z, uint barrier) {
    __asm__ volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                     : "memory");
}

/* load_box for a map of rank 5 whose rows alternate in runs of gates and of ups. Loads rows of run
 * `run`, from `row` on, and rows of the runs that follow: ups if `up` is 1, else gates. */
static inline void load_gated_box(uint to, ulong map, int x, int row, int up, int run, int z,
                                  uint barrier) {
    __asm__ volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(row), "r"(up), "r"(run), "r"(z)
                     : "memory");
}

/* ---- tensor cores ---- */

/*
 * The descriptor of a matrix in boxes of 64 rows of 128 bytes, swizzled by 128 bytes, at a multiple
 * of 1024 bytes. Rows are lines or columns of the result, and 8 of them take 1024 bytes. If
 * transposed, rows run along K, and the next 64 lines or columns are one box further.
 */
static inline ulong matrix_at(uint address, int transposed) {
    return (ulong)(address >> 4 & 0x3FFF) | (ulong)(transposed ? 512 : 1) << 16 | (ulong)64 << 32 |
           (ulong)1 << 62;
}

/* The descriptor of a matrix that is not transposed, from an address in units of 16 bytes. */
static inline ulong matrix_of(uint at) {
    return (ulong)at | (ulong)1 << 16 | (ulong)64 << 32 | (ulong)1 << 62;
}

static inline void wgmma_fence(void) {
    __asm__ volatile("//@sm_90a wgmma.fence.sync.aligned;" ::: "memory");
}

static inline void wgmma_commit(void) {
    __asm__ volatile("//@sm_90a wgmma.commit_group.sync.aligned;" ::: "memory");
}

#define wgmma_wait(n)                                                                              \
    __asm__ volatile("//@sm_90a wgmma.wait_group.sync.aligned " TEXT(n) ";" ::: "memory")
#define claim_registers(n)                                                                         \
    __asm__ volatile("//@sm_90a setmaxnreg.inc.sync.aligned.u32 " TEXT(n) ";")
#define release_registers(n)                                                                       \
    __asm__ volatile("//@sm_90a setmaxnreg.dec.sync.aligned.u32 " TEXT(n) ";")

#if F16
#define OPERAND_TYPE "f16"
#else
#define OPERAND_TYPE "bf16"
#endif

/* Operands %0 to %127, sums s[0] to s[127]. */
#define TEN(t)                                                                                     \
    "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t         \
    "8, %" #t "9, "
#define SUMS                                                                                       \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7)    \
        TEN(8) TEN(9) TEN(10) TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_4(s, i)  "+f"((s)[i]), "+f"((s)[i + 1]), "+f"((s)[i + 2]), "+f"((s)[i + 3])
#define SUMS_16(s, i) SUMS_4(s, i), SUMS_4(s, i + 4), SUMS_4(s, i + 8), SUMS_4(s, i + 12)
#define SUMS_128(s)                                                                                \
    SUMS_16(s, 0), SUMS_16(s, 16), SUMS_16(s, 32), SUMS_16(s, 48), SUMS_16(s, 64), SUMS_16(s, 80), \
        SUMS_16(s, 96), SUMS_16(s, 112)

/* sums[64,256] of four warps += a[64,16] b[16,256]. With predicate p, the old sums are added to;
 * the factors 1 keep the operands' signs. */
#define WGMMA(s, a, b, transposed_a, transposed_b)                                                 \
    __asm__ volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n//@sm_90a "                            \
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32." OPERAND_TYPE "." OPERAND_TYPE  \
                     " {" SUMS                                                                     \
                     "}, %128, %129, p, 1, 1, " TEXT(transposed_a) ", " TEXT(transposed_b) ";\n}"  \
                     : SUMS_128(s)                                                                 \
                     : "l"(a), "l"(b))

enum { IS_F32, IS_F16, IS_BF16 }; /* types of results */

/* ---- 16-bit values, two in a word, the first in the low half ---- */

/* Rounds to nearest even. */
static inline uint round_pair_as(int f16, float low, float high) {
    uint pair;
    if (f16)
        __asm__("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

static inline uint round_pair(float low, float high) {
    return round_pair_as(F16, low, high);
}

static inline float2 widen_pair(int f16, uint pair) {
    float2 x = {as_float(pair << 16), as_float(pair & 0xFFFF0000u)};
    if (f16)
        __asm__("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 "
                "%1, high; }"
                : "=f"(x.x), "=f"(x.y)
                : "r"(pair));
    return x;
}

/* ---- maxima ---- */

static inline int largest_of_warp(int x) {
    int largest;
    __asm__ volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(largest) : "r"(x));
    return largest;
}

static inline void raise_global(global int *to, int x) {
    __asm__ volatile("red.global.max.s32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

/* Stores four 8x8 matrices of 16-bit values in the tensor cores' order. Lane l passes the address
 * of row l % 8 of matrix l / 8. */
static inline void store_matrices(uint address, uint4 m) {
    __asm__ volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m.x),
        "r"(m.y), "r"(m.z), "r"(m.w)
        : "memory");
}

/* ---- tensor cores, 8-bit values ---- */

/* Operands %0 to %63, sums s[0] to s[63], `how` "+f" or "=f". */
#define SUMS_TO_63                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " TEN(1) TEN(2) TEN(3) TEN(4)                         \
        TEN(5) "%60, %61, %62, %63"
#define LIST_4(how, s, i) how((s)[i]), how((s)[i + 1]), how((s)[i + 2]), how((s)[i + 3])
#define LIST_16(how, s, i)                                                                         \
    LIST_4(how, s, i), LIST_4(how, s, i + 4), LIST_4(how, s, i + 8), LIST_4(how, s, i + 12)
#define LIST_64(how, s)                                                                            \
    LIST_16(how, s, 0), LIST_16(how, s, 16), LIST_16(how, s, 32), LIST_16(how, s, 48)

/* sums[64,128] of four warps = a[64,32] b[32,128] of e4m3 or e5m2; += if `keep` is 1. */
#define WGMMA_BYTES(s, a, b, how, keep, type)                                                      \
    __asm__ volatile("{ .reg .pred p; setp.ne.b32 p, " TEXT(                                       \
                         keep) ", 0;\n"                                                            \
                               "//@sm_90a wgmma.mma_async.sync.aligned.m64n128k32.f32." type       \
                               "." type " {" SUMS_TO_63 "}, %64, %65, p, 1, 1;\n}"                 \
                     : LIST_64(how, s)                                                             \
                     : "l"(a), "l"(b))

/* Keeps the compiler from moving reads of the sums before the preceding wait. */
#define SETTLE(s) __asm__ volatile("" : LIST_64("+f", s)::"memory")
