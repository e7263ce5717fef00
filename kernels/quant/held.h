/*
 * Included by quantize.cl and fake_quantize.cl after formats.h: the rows of a block that a row
 * group holds in registers, and the largest magnitudes of blocks.
 *
 * Required: BLOCK (16, 32, 128). Optional: HELD (the rows that a row group holds). If there are
 * several row groups, all of a work-group work on one row block.
 */
#define SPAN (BLOCK > VEC ? BLOCK : VEC) /* columns quantized at a time: a block, or a step */

/* Rows of a block that a row group holds in registers; on GPUs ROW_GROUPS row groups share the
 * block. */
#ifndef HELD
#define HELD (MOERT_ITEMS == 1 ? BLOCK : BLOCK == 32 ? 8 : 16)
#endif
#define ROW_GROUPS (BLOCK / HELD)
#define PEAKS      local uvec peaks[ROW_GROUPS][MOERT_ITEMS]

/* The first of this row group's rows in a block. */
static inline uint first_held(void) {
    return row_group_index() * HELD;
}

/* The indices of the row group and of the work-item, for a step of a loop. On NVIDIA's GPUs each
 * call reads an index from the hardware, so that the compiler does not keep addresses that depend
 * on it in registers across the loop. */
static inline uint row_group_again(void) {
#ifdef HAS_WARPS
    uint index;
    __asm__ volatile("mov.u32 %0, %%tid.y;" : "=r"(index));
    return index;
#else
    return row_group_index();
#endif
}

static inline uint item_again(void) {
#ifdef HAS_WARPS
    uint index;
    __asm__ volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
#else
    return item_index();
#endif
}

/* first_held for a step of a loop. */
static inline uint first_held_again(void) {
    return row_group_again() * HELD;
}

/* The maximum of x over the `items` items of this item's block. `items` is a power of two, and the
 * first item's number is a multiple of it. */
INLINED uvec block_largest(uvec x, int items, local float *row_group) {
#if MOERT_ITEMS == 1
    return max_uints(x, row_group);
#else
    uint2 own = max(x.lo, x.hi);
    uint most = max(own.x, own.y);
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
    UNROLL_FOR(int distance = items / 2; distance > 0; distance /= 2)
        most = max(most, as_uint(exchanged(as_float(most), distance)));
#else
    const int first = get_local_id(0) / items * items;
    barrier(CLK_LOCAL_MEM_FENCE); /* all items have read the previous values */
    row_group[get_local_id(0)] = as_float(most);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < items; i++)
        most = max(most, as_uint(row_group[first + i]));
#endif
    return most;
#endif
}

/* The maximum over the row groups; all row groups call together. */
INLINED uvec largest_of_groups(uvec own, local uvec (*peaks)[MOERT_ITEMS]) {
#if ROW_GROUPS > 1
    barrier(CLK_LOCAL_MEM_FENCE); /* all items have read the previous values */
    peaks[row_group_index()][item_index()] = own;
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL_FOR(int i = 0; i < ROW_GROUPS; i++)
        own = max(own, peaks[i][item_index()]);
#endif
    return own;
}
