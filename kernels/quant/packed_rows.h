/*
 * Included by fp8_rows.h after rows.h: largest magnitudes of rows as loaded, and how row groups
 * combine them. On NVIDIA's GPUs bf16 rows stay in pairs: unpacked rows would take twice the
 * registers, and half as many work-groups would run at the same time.
 */
#if X_BF16 && defined(HAS_WARPS) && MOERT_NVIDIA >= 86 && defined(ALIGNED)
#define IN_PAIRS
#endif

#ifdef IN_PAIRS
/* The larger magnitudes of two pairs of bf16 values, with any signs; a NaN wins. */
static inline uint larger_pair(uint a, uint b) {
    uint larger;
    __asm__("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}
#endif

/* Makes the compiler unpack the rows again where it uses them next. */
static inline void renew(loaded own[HELD]) {
#ifdef IN_PAIRS
    UNROLL_FOR(uint r = 0; r < HELD; r++) {
        uint low = own[r].x, high = own[r].y;
        __asm__ volatile("" : "+r"(low), "+r"(high));
        own[r] = (loaded)(low, high);
    }
#endif
}

/* The largest magnitude bits of this item's elements of a row. */
static inline uint largest_in_row(loaded x) {
#ifdef IN_PAIRS
    const uint pair = larger_pair(x.x, x.y);
    return max(pair << 16 & 0x7FFF0000u, pair & 0x7FFF0000u);
#else
    const uvec bits = larger_bits(0, floats_of(x));
    const uint2 two = max(bits.lo, bits.hi);
    return max(two.x, two.y);
#endif
}

/* The largest magnitude bits in each column of the held rows. */
static inline uvec largest_in_columns(const loaded own[HELD]) {
#ifdef IN_PAIRS
    loaded most = 0;
    UNROLL_FOR(uint r = 0; r < HELD; r++)
        most = (loaded)(larger_pair(most.x, own[r].x), larger_pair(most.y, own[r].y));
    return magnitude_bits(floats_of(most));
#else
    uvec most = 0;
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) most = larger_bits(most, floats_of(own[r]));
    return most;
#endif
}

/* Gives the other row groups this one's maxima. They have read the previous ones. */
static inline void put_peaks(uvec own, local uvec (*peaks)[MOERT_ITEMS]) {
    peaks[row_group_index()][item_index()] = own;
}

/* The maxima over the row groups; all row groups call together. */
static inline uvec largest_peaks(local uvec (*peaks)[MOERT_ITEMS]) {
    uvec largest = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL_FOR(int i = 0; i < ROW_GROUPS; i++)
        largest = max(largest, peaks[i][item_index()]);
    return largest;
}
