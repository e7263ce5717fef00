/*
 * Precedes every kernel file.
 *
 * CPU form: a work-group has one work-item, which owns a whole tile and computes in explicit vectors of 16 floats; GPU
 * style kernels run 20 to 90 times slower on CPUs. Every elementwise formula is evaluated in vector form, tails too
 * (loaded with zeros, stored by count), so that a value does not depend on its place in a buffer.
 * Required: MOERT_CPU (0, 1), MOERT_FP64 (0, 1).
 */
#if !defined(MOERT_CPU) || !defined(MOERT_FP64)
#error "MOERT_CPU and MOERT_FP64 must be defined"
#endif
#pragma OPENCL FP_CONTRACT OFF
#if MOERT_FP64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#define KERNEL __attribute__((reqd_work_group_size(1, 1, 1))) kernel
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1") /* where unrolling only makes the kernel slow to compile */
#define VEC    16

typedef float16 vec;

/* Reads n (1 to 16) floats; the lanes past them are zero. */
static inline vec load_part(global const float *p, int n)
{
    if (n >= VEC)
        return vload16(0, p);
    float lane[VEC];
    for (int i = 0; i < VEC; i++)
        lane[i] = i < n ? p[i] : 0.0f;
    return vload16(0, lane);
}

/* Writes the first n (1 to 16) lanes. */
static inline void store_part(vec x, global float *p, int n)
{
    if (n >= VEC) {
        vstore16(x, 0, p);
        return;
    }
    float lane[VEC];
    vstore16(x, 0, lane);
    for (int i = 0; i < n; i++)
        p[i] = lane[i];
}

/* Sum and maximum of the 16 lanes, always in the same tree order. */
static inline float sum_lanes(vec x)
{
    float8 a = x.lo + x.hi;
    float4 b = a.lo + a.hi;
    float2 c = b.lo + b.hi;
    return c.x + c.y;
}

static inline float max_lanes(vec x)
{
    float8 a = fmax(x.lo, x.hi);
    float4 b = fmax(a.lo, a.hi);
    float2 c = fmax(b.lo, b.hi);
    return fmax(c.x, c.y);
}

/* The first n lanes, zeros after them. */
static inline vec first_lanes(vec x, int n)
{
    const int16 lane = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return lane < n ? x : 0.0f;
}

/* The largest magnitude; NaN stays. */
static inline vec raise(vec peak, vec x)
{
    return fabs(x) > peak || isnan(x) ? fabs(x) : peak;
}

static inline float raise_lanes(vec peak)
{
    float lane[VEC], top = 0.0f;
    vstore16(peak, 0, lane);
    for (int i = 0; i < VEC; i++)
        top = lane[i] > top || isnan(lane[i]) ? lane[i] : top;
    return top;
}

/* Row r belongs to group g when ends[g-1] <= r < ends[g]. */
static inline uint group_start(global const uint *ends, uint g)
{
    return g > 0 ? ends[g - 1] : 0;
}
