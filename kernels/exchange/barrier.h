/*
 * Included by kernels/exchange/barrier.cl and kernels/exchange/exchange.cl: the barrier of all
 * ranks' devices.
 *
 * Raising a flag is a release of this device's earlier stores; seeing it raised is an acquire. Each
 * flag is an int at the start of a 64-byte line of its own. `state` has, line after line:
 *
 *   verdict            {1 + the late rank, or 0; number of the barrier it was late in}
 *   arrival counter    is 0 between kernels
 *   ulong [ranks]      raw addresses at which this device finds the flags of each rank
 *
 * ticks(polls) is the time after `polls` polls of a flag. A tick is a nanosecond of the device's
 * clock on NVIDIA, and of the system's clock on x86-64 Linux, where a waiting thread also yields to
 * other threads. Elsewhere the host measures how long a tick takes. On other CPUs a tick is one of
 * x86-64's time-stamp counter or of cl_khr_kernel_clock, or one poll if the CPU has neither. With
 * several work-items, x86-64 Linux also reads the time-stamp counter, since PoCL 6 crashes while it
 * compiles assembly.
 */
#include "args/exchange.h"

#define LINE_INTS 16 /* ints in a cache line of 64 bytes */

#if MOERT_NVIDIA
static inline void raise_flag(global int *flag, int number) {
    __asm__ volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(number) : "memory");
}

static inline int load_flag(global const int *flag) {
    int number;
    __asm__ volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(number) : "l"(flag) : "memory");
    return number;
}

/* Adds one to *count and returns the value before, as an acquire and a release: the work-group that
 * counts last sees the stores of all work-groups of this device that counted before. */
static inline uint count_up(global uint *count) {
    uint before;
    __asm__ volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(count)
                     : "memory");
    return before;
}
#elif defined(__SPIR__) && !MOERT_CPU /* clang for SPIR has only OpenCL's atomics */
static inline void raise_flag(global int *flag, int number) {
    mem_fence(CLK_GLOBAL_MEM_FENCE);
    atomic_xchg((volatile global int *)flag, number);
}

static inline int load_flag(global int *flag) {
    const int number = atomic_or((volatile global int *)flag, 0);
    mem_fence(CLK_GLOBAL_MEM_FENCE);
    return number;
}

static inline uint count_up(global uint *count) {
    mem_fence(CLK_GLOBAL_MEM_FENCE);
    const uint before = atomic_inc((volatile global uint *)count);
    mem_fence(CLK_GLOBAL_MEM_FENCE);
    return before;
}
#else
static inline void raise_flag(global int *flag, int number) {
    __atomic_store_n(flag, number, __ATOMIC_RELEASE);
}

static inline int load_flag(global const int *flag) {
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

static inline uint count_up(global uint *count) {
    return __atomic_fetch_add(count, 1, __ATOMIC_ACQ_REL);
}
#endif

#if MOERT_NVIDIA
#define TICK_IS_NS 1
static inline ulong ticks(ulong polls) {
    ulong ns;
    __asm__ volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}
#elif MOERT_CPU && MOERT_ITEMS == 1 && defined(__x86_64__) && defined(__linux__)
#define TICK_IS_NS 1
static inline long system_call(long number, long first, long second) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second)
                     : "rcx", "r11", "memory");
    return result;
}

static inline ulong ticks(ulong polls) {
    long time[2];                    /* seconds and nanoseconds of CLOCK_MONOTONIC */
    system_call(24, 0, 0);           /* sched_yield */
    system_call(228, 1, (long)time); /* clock_gettime */
    return (ulong)time[0] * 1000000000 + (ulong)time[1];
}
#elif MOERT_CPU && defined(__x86_64__)
static inline ulong ticks(ulong polls) {
    __builtin_ia32_pause();
    return __builtin_ia32_rdtsc();
}
#elif MOERT_CPU && defined(cl_khr_kernel_clock)
/* OpenCL C declares this function from 3.0 on */
ulong __attribute__((overloadable)) clock_read_device(void);
static inline ulong ticks(ulong polls) {
    return clock_read_device();
}
#else
static inline ulong ticks(ulong polls) {
    return polls;
}
#endif

static inline global int *flag_of(volatile global const uint *state, uint owner, uint writer) {
    global const ulong *segments = (global const ulong *)(state + 2 * LINE_INTS);
    return (global int *)(size_t)segments[owner] + writer * LINE_INTS;
}

/* Raises this rank's flag in every segment; called by a whole row group. */
INLINED void raise_all(volatile global uint *state, moert_barrier_args m) {
    for (uint r = item_index(); r < m.ranks; r += MOERT_ITEMS)
        raise_flag(flag_of(state, r, m.rank), m.number);
}

/* Waits for all ranks' flags, for at most `patience` ticks, and not at all once a rank was late.
 * Called by a whole row group. */
INLINED void wait_for_all(volatile global uint *state, moert_barrier_args m) {
    for (uint r = item_index(); r < m.ranks; r += MOERT_ITEMS) {
        ulong start = 0;
        for (ulong polls = 0;
             (int)((uint)load_flag(flag_of(state, m.rank, r)) - (uint)m.number) < 0; polls++) {
            const ulong now = ticks(polls);
            start = polls == 0 ? now : start;
            if (state[0] != 0)
                return;
            if (now - start > m.patience) {
                state[1] = (uint)m.number;
                state[0] = r + 1;
            }
        }
    }
}
