/*
 * PTX for the tensor cores of sm_80 and later: asynchronous copies to local memory, loads of 8 x 8
 * matrices from it, mma.sync. Local memory is addressed by 32-bit addresses. Source: the PTX ISA
 * manual. Required: nvidia.h before it.
 */

/* ---- copies of 16 bytes from global to local memory ---- */

/* Copies 16 bytes, or stores zeros without reading if not `used`. */
static inline void copy_16(uint to, global const uchar *from, bool used) {
    __asm__ volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(used ? 16 : 0)
                     : "memory");
}

/* Ends a batch: the copies that this thread has started since the previous call. */
static inline void end_copies(void) {
    __asm__ volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until all asynchronous copies of this thread are complete, except its last n batches. */
#define await_copies(n) __asm__ volatile("cp.async.wait_group " TEXT(n) ";" ::: "memory")

/* ---- 8 x 8 matrices of 16-bit values ---- */

/* Loads four matrices. Lane l passes the address of row l % 8 of matrix l / 8. Of each matrix, lane
 * l gets values 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 (transposed: of column l / 4). */
static inline void load_matrices(uint *m, uint address, bool transposed) {
    if (transposed)
        __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                         : "r"(address)
                         : "memory");
    else
        __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                         : "r"(address)
                         : "memory");
}

/* sum[16,8] of a warp += a[16,16] b[16,8]; a is four matrices, b two. */
static inline void multiply_matrices(float *sum, const uint *a, const uint *b) {
    __asm__("mma.sync.aligned.m16n8k16.row.col.f32." OPERAND_TYPE "." OPERAND_TYPE
            ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : SUMS_4(sum, 0)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* ---- between lanes ---- */

#define lane_across(x, mask)                                                                       \
    ({                                                                                             \
        uint other_;                                                                               \
        __asm__ volatile("shfl.sync.bfly.b32 %0, %1, " TEXT(mask) ", 31, 0xffffffff;"              \
                         : "=r"(other_)                                                            \
                         : "r"(x));                                                                \
        other_;                                                                                    \
    })

/* Transposes words among four consecutive lanes: word j of lane i becomes word i of lane j. */
static inline uint4 transpose_words(uint4 x) {
    const bool odd = (get_local_id(0) & 1) != 0, high = (get_local_id(0) & 2) != 0;
    const uint a = lane_across(odd ? x.s0 : x.s1, 1), b = lane_across(odd ? x.s2 : x.s3, 1);
    x = odd ? (uint4)(a, x.s1, b, x.s3) : (uint4)(x.s0, a, x.s2, b);
    const uint c = lane_across(high ? x.s0 : x.s2, 2), d = lane_across(high ? x.s1 : x.s3, 2);
    return high ? (uint4)(c, d, x.s2, x.s3) : (uint4)(x.s0, x.s1, c, d);
}
