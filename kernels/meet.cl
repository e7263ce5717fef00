/*
 * Ranks wait for each other on their devices.
 *
 *   meet   flag[rank] of every rank's segment = number; then until flag[r] of this rank's segment has come to `number`,
 *          for all r, or `patience_ns` have passed: then verdict = {r + 1, number} and later meetings wait no more
 *
 * segments [ranks] raw addresses, where this device finds the segments of all ranks; verdict [2]. A flag is an int at the
 * start of 64 bytes of its own. Numbers count up by one, and wrap. What the queues have done before a meeting, on any
 * rank's device, is seen by what they do after it: raising a flag releases it, seeing one acquires it. One work-group, no
 * local memory. Waits for kernels of other devices, which must run at the same time.
 *
 * The clock is the device's on NVIDIA and the system's on Linux on x86-64, where a waiting thread also lets others run;
 * elsewhere a look at a flag counts as 100 ns.
 */
#define LINE 16

#if MOERT_NVIDIA
static inline void raise_flag(global int *flag, int number)
{
    __asm__ volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(number) : "memory");
}

static inline int look_at(global const int *flag)
{
    int number;
    __asm__ volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(number) : "l"(flag) : "memory");
    return number;
}

static inline ulong now_ns(ulong looks)
{
    ulong ns;
    __asm__ volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}
#else
static inline void raise_flag(global int *flag, int number)
{
    __atomic_store_n(flag, number, __ATOMIC_RELEASE);
}

static inline int look_at(global const int *flag)
{
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

#if MOERT_CPU && defined(__x86_64__) && defined(__linux__)
static inline long call_system(long number, long first, long second)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second) : "rcx", "r11", "memory");
    return result;
}

static inline ulong now_ns(ulong looks)
{
    long time[2]; /* seconds and nanoseconds of CLOCK_MONOTONIC */
    call_system(24, 0, 0); /* sched_yield */
    call_system(228, 1, (long)time); /* clock_gettime */
    return (ulong)time[0] * 1000000000 + (ulong)time[1];
}
#else
static inline ulong now_ns(ulong looks)
{
    return looks * 100;
}
#endif
#endif

static inline global int *flag_of(global const ulong *segments, uint owner, uint writer)
{
    return (global int *)(size_t)segments[owner] + writer * LINE;
}

static inline bool has_come(global const int *flag, int number, ulong patience_ns)
{
    ulong start = 0;
    for (ulong looks = 0; (int)((uint)look_at(flag) - (uint)number) < 0; looks++) {
        const ulong now = now_ns(looks);
        start = looks == 0 ? now : start;
        if (now - start > patience_ns)
            return false;
    }
    return true;
}

KERNEL void meet(global const ulong *segments, global uint *verdict, uint ranks, uint rank, int number,
                 ulong patience_ns)
{
    for (uint r = item_index(); r < ranks; r += MOERT_ITEMS)
        raise_flag(flag_of(segments, r, rank), number);
    for (uint r = item_index(); r < ranks && verdict[0] == 0; r += MOERT_ITEMS)
        if (!has_come(flag_of(segments, rank, r), number, patience_ns)) {
            verdict[1] = (uint)number;
            verdict[0] = r + 1;
        }
}
