/*
 * Included by kernels/exchange/barrier.cl and kernels/exchange/exchange.cl: ranks wait for each other
 * on their devices.
 *
 * Raising a flag releases what this device has done before, seeing one acquires it. A flag is an
 * int at the start of 64 bytes of its own. BARRIER_PARAMETERS are a kernel's parameters: segments [ranks] raw
 * addresses, where this device finds the flags of all ranks; verdict {rank that was late + 1 or 0,
 * number of the meeting}, behind whose LINE words is a count, 0 between kernels.
 *
 * The clock is the device's on NVIDIA and the system's on Linux on x86-64, where a waiting thread
 * also lets others run; elsewhere a look at a flag counts as 100 ns.
 */
#include "args/exchange.h"

#define LINE 16

#if MOERT_NVIDIA
static inline void raise_flag(global int *flag, int number) {
    __asm__ volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(number) : "memory");
}

static inline int look_at(global const int *flag) {
    int number;
    __asm__ volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(number) : "l"(flag) : "memory");
    return number;
}

/* *count before it grows by one: what the work-groups of this device that have done so before, and
 * their row_groups, have stored comes with it. */
static inline uint count_up(global uint *count) {
    uint before;
    __asm__ volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(count)
                     : "memory");
    return before;
}

static inline ulong now_ns(ulong looks) {
    ulong ns;
    __asm__ volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}
#else
static inline void raise_flag(global int *flag, int number) {
    __atomic_store_n(flag, number, __ATOMIC_RELEASE);
}

static inline int look_at(global const int *flag) {
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

static inline uint count_up(global uint *count) {
    return __atomic_fetch_add(count, 1, __ATOMIC_ACQ_REL);
}

#if MOERT_CPU && defined(__x86_64__) && defined(__linux__)
static inline long call_system(long number, long first, long second) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second)
                     : "rcx", "r11", "memory");
    return result;
}

static inline ulong now_ns(ulong looks) {
    long time[2];                    /* seconds and nanoseconds of CLOCK_MONOTONIC */
    call_system(24, 0, 0);           /* sched_yield */
    call_system(228, 1, (long)time); /* clock_gettime */
    return (ulong)time[0] * 1000000000 + (ulong)time[1];
}
#else
static inline ulong now_ns(ulong looks) {
    return looks * 100;
}
#endif
#endif

static inline global int *flag_of(global const ulong *segments, uint owner, uint writer) {
    return (global int *)(size_t)segments[owner] + writer * LINE;
}

#define BARRIER_PARAMETERS                                                                         \
    global const ulong *segments, volatile global uint *verdict, moert_barrier_args m

/* Raises this rank's flags; a row_group calls. */
INLINED void raise_all(BARRIER_PARAMETERS) {
    for (uint r = item_index(); r < m.ranks; r += MOERT_ITEMS)
        raise_flag(flag_of(segments, r, m.rank), m.number);
}

/* Waits for all ranks' flags, for `patience_ns` at most and not at all once somebody was late; a
 * row_group calls. */
INLINED void wait_for_all(BARRIER_PARAMETERS) {
    for (uint r = item_index(); r < m.ranks; r += MOERT_ITEMS) {
        ulong start = 0;
        for (ulong looks = 0;
             (int)((uint)look_at(flag_of(segments, m.rank, r)) - (uint)m.number) < 0; looks++) {
            const ulong now = now_ns(looks);
            start = looks == 0 ? now : start;
            if (verdict[0] != 0)
                return;
            if (now - start > m.patience_ns) {
                verdict[1] = (uint)m.number;
                verdict[0] = r + 1;
            }
        }
    }
}
