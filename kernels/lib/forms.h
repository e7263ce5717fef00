/*
 * Included by common.h, which lists the required defines: how kernels, functions and loops are
 * declared in both forms.
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
/* AVX2 has 16 registers of half a vector. Loops that fill these registers are unrolled, because
 * loop control would be a tenth of the instructions. */
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
 * sum into several ones if the loop's length is known only at run time. The driver leaves vectors,
 * chains of fma and unrolled loops as they are. tests/lint_kernels.awk finds scalar sums in other
 * loops. */
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
