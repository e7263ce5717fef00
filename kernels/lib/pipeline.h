/*
 * The pipeline of Hopper's kernels (wgmma.cl, fp8.cl, split.cl, and attention/nvidia): producers
 * fill a ring of STAGES stages in local memory by TMA, and two consumers of 128 work-items multiply
 * from it. Step n of a work-group uses stage n % STAGES, and round n / STAGES of its barriers:
 *
 *     FULL     producers arrive, and TMA counts its bytes: the stage holds step n
 *     EMPTY    consumers arrive: the stage may be filled for step n + STAGES
 *
 *     producer    full = claim_stage(base, n); expect(full, bytes); load_box(.., full);
 *     consumer    await_full(base, n); multiply; release_stage(base, n) or leave_stage(base, n);
 *
 * Required: lib/nvidia.h before this file; STAGES; FULL_AT and EMPTY_AT, the offsets of the
 * barriers in the arena, which is at `base`; if consumers alternate, ORDER, the first of two
 * hardware barriers.
 */

/* A consumer's position in the ring. */
typedef struct ring {
    uint base, step, consumer;
    local uchar *arena;
} ring;

/* The barriers of the stage of a step. */
INLINED uint full_of(uint base, uint step) {
    return base + FULL_AT + step % STAGES * 8;
}

INLINED uint empty_of(uint base, uint step) {
    return base + EMPTY_AT + step % STAGES * 8;
}

/* Initialises the barriers with the number of arrivals that the full and the empty barriers
 * expect. */
INLINED void begin_pipeline(uint base, uint full_arrivals, uint empty_arrivals) {
    begin_ring(base + FULL_AT, base + EMPTY_AT, STAGES, full_arrivals, empty_arrivals);
}

/* Waits until a producer may fill the stage of a step. Returns the barrier at which the stage's
 * loads count their bytes. */
INLINED uint claim_stage(uint base, uint step) {
    if (step >= STAGES)
        await(empty_of(base, step), step / STAGES - 1);
    return full_of(base, step);
}

INLINED void await_full(uint base, uint step) {
    await(full_of(base, step), step / STAGES);
}

/* Tells the producers that this consumer has finished with a stage: one arrival for all of its
 * warps, which run each wgmma together. */
INLINED void release_stage(uint base, uint step) {
    if (get_local_id(0) % 128 == 0)
        arrive(empty_of(base, step));
}

/* Tells the producers that this warp has finished with a stage. */
INLINED void leave_stage(uint base, uint step) {
    sync_warp();
    if (get_local_id(0) % 32 == 0)
        arrive(empty_of(base, step));
}

#ifdef ORDER
/* Waits until this consumer may use the tensor cores. */
INLINED void await_turn(uint consumer) {
    barrier_of(ORDER + consumer, 256);
}

/* Lets the other consumer use the tensor cores. */
INLINED void pass_turn(uint consumer) {
    pass_barrier(ORDER + 1 - consumer, 256);
}
#endif
