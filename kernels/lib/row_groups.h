/*
 * Included by kernels whose work-groups have several row groups in the GPU form. Combines values of
 * the row groups through local memory, in the order of the row groups.
 */
#if MOERT_ITEMS > 1

/* The number of rows that a row group loads at once when it adds up rows. */
#define ROWS_AHEAD 8

/* Declares `sums`, the local memory in which a work-group's row groups add their sums. */
#define SUMS_OF(row_groups) local vec sums[row_groups][MOERT_ITEMS]

/* The sum or the maximum of x over the row groups of a work-group, in their order. All work-items
 * must call together. `of_groups` has one float for each row group. */
static inline float reduce_row_groups(float x, bool largest, int row_groups,
                                      local float *of_groups) {
    barrier(CLK_LOCAL_MEM_FENCE); /* all items have read the previous values */
    if (is_first_item())
        of_groups[row_group_index()] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    float all = of_groups[0];
    IN_ORDER_FOR(int i = 1; i < row_groups; i++)
        all = largest ? fmax(all, of_groups[i]) : all + of_groups[i];
    return all;
}

/* Adds the row groups' sums of the same columns in order; only the first row group may use the
 * result. All row groups must call together. */
static inline vec sum_row_groups(vec x, int row_groups, local vec (*sums)[MOERT_ITEMS]) {
    sums[row_group_index()][item_index()] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    vec all = sums[0][item_index()];
    for (int i = 1; i < row_groups; i++)
        all += sums[i][item_index()];
    return all;
}

#endif
