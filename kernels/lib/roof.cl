/*
 * Upper bounds of a device's rates, to compare other kernels with.
 *
 *   roof_fma    sum[c] = fma(sum[c], scale, add) for each of the CHAINS accumulators that a
 *               work-item keeps in registers, ROUNDS times. Enough chains hide the latency of a
 *               multiply-add. A work-item executes 2 * CHAINS * LANES * ROUNDS operations.
 *   roof_copy   target[i] = source[i]; each work-group copies BLOCK vectors of LANES floats.
 *
 * Required: CHAINS (more chains hide longer latencies, fewer fit into small register files; the
 * host tries several numbers), ROUNDS, BLOCK, LANES (2, 4, 8, 16) and ITEMS, the work-items of a
 * work-group: on CPUs one item of 16 lanes, on other devices many items of 4 lanes. No local
 * memory. Deterministic; roof_fma has a result only to keep the compiler from removing the loop.
 */
#if !defined(CHAINS) || !defined(ROUNDS) || !defined(BLOCK) || !defined(LANES) || !defined(ITEMS)
#error "CHAINS, ROUNDS, BLOCK, LANES and ITEMS must be defined"
#endif

#define VECTOR(lanes)    VECTOR_OF(lanes)
#define VECTOR_OF(lanes) float##lanes
typedef VECTOR(LANES) lanes;

#define ROOF __attribute__((reqd_work_group_size(ITEMS, 1, 1))) kernel

ROOF void roof_fma(global float *result, float scale, float add) {
    lanes sum[CHAINS];
    UNROLL_FOR(int c = 0; c < CHAINS; c++)
        sum[c] = (lanes)((float)(get_local_id(0) + c));
    for (int round = 0; round < ROUNDS; round++)
        UNROLL_FOR(int c = 0; c < CHAINS; c++)
            sum[c] = fma(sum[c], (lanes)(scale), (lanes)(add));
    UNROLL_FOR(int c = 1; c < CHAINS; c++)
        sum[0] += sum[c];
    if (all(sum[0] == (lanes)(12345.0f)))
        result[0] = sum[0].x;
}

ROOF void roof_copy(global const lanes *restrict source, global lanes *restrict target) {
    const size_t first = get_group_id(0) * (size_t)BLOCK;
    for (size_t i = get_local_id(0); i < BLOCK; i += ITEMS)
        target[first + i] = source[first + i];
}
