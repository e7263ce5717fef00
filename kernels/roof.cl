/*
 * What a device can do at best, to compare other kernels with.
 *
 *   roof_fma    CHAINS accumulators of registers a work-item, sum[c] = fma(sum[c], scale, add), ROUNDS times: that many
 *               chains hide the latency of a multiply-add. 2 * CHAINS * LANES * ROUNDS operations a work-item.
 *   roof_copy   target[i] = source[i], BLOCK vectors of LANES floats a work-group.
 *
 * Required: CHAINS (more hide longer latencies, fewer fit into small register files: the host tries several), ROUNDS,
 * BLOCK, and ITEMS, the work-items of a work-group: 1 on CPUs, of 16 lanes, many of 4 lanes elsewhere. No local memory.
 * Deterministic; the result of roof_fma only keeps the compiler from leaving it out.
 */
#if !defined(CHAINS) || !defined(ROUNDS) || !defined(BLOCK) || !defined(ITEMS)
#error "CHAINS, ROUNDS, BLOCK and ITEMS must be defined"
#endif

#if MOERT_CPU
typedef float16 lanes;
#define SUM_LANES(x) sum_lanes(x)
#else
typedef float4 lanes;
#define SUM_LANES(x) ((x).x + (x).y + (x).z + (x).w)
#endif

#define ROOF __attribute__((reqd_work_group_size(ITEMS, 1, 1))) kernel

ROOF void roof_fma(global float *result, float scale, float add)
{
    lanes sum[CHAINS];
    UNROLL for (int c = 0; c < CHAINS; c++)
        sum[c] = (lanes)((float)(get_local_id(0) + c));
    for (int round = 0; round < ROUNDS; round++)
        UNROLL for (int c = 0; c < CHAINS; c++)
            sum[c] = fma(sum[c], (lanes)(scale), (lanes)(add));
    UNROLL for (int c = 1; c < CHAINS; c++)
        sum[0] += sum[c];
    if (SUM_LANES(sum[0]) == 12345.0f)
        result[0] = sum[0].x;
}

ROOF void roof_copy(global const lanes *restrict source, global lanes *restrict target)
{
    const size_t first = get_group_id(0) * (size_t)BLOCK;
    for (size_t i = get_local_id(0); i < BLOCK; i += ITEMS)
        target[first + i] = source[first + i];
}
