/*
 * Included by families whose work-groups have several row_groups in the GPU form: what the row_groups have is
 * joined in local memory, in the order of the row_groups.
 */
#if MOERT_ITEMS > 1

/* Rows whose loads a row_group that adds up rows has under way together. */
#define ROWS_AHEAD 8

/* Local memory in which a work-group's row_groups join their sums; declared in the kernel, where `sums`
 * is then its name. */
#define SUMS_OF(row_groups) local vec sums[row_groups][MOERT_ITEMS]

/* The sum, or the largest, of what the row_groups of a work-group have, in their order; all call at
 * once. `of_groups` has a float for each row_group. */
static inline float join_row_groups(float x, bool largest, int row_groups, local float *of_groups) {
    barrier(CLK_LOCAL_MEM_FENCE); /* all are done with the last ones */
    if (is_first_item())
        of_groups[row_group_index()] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    float all = of_groups[0];
    for (int i = 1; i < row_groups; i++)
        all = largest ? fmax(all, of_groups[i]) : all + of_groups[i];
    return all;
}

/* The row_groups' sums of the same columns, added in order, for the first row_group; all row_groups call at
 * once. */
static inline vec sum_row_groups(vec x, int row_groups, local vec (*sums)[MOERT_ITEMS]) {
    sums[row_group_index()][item_index()] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    vec all = sums[0][item_index()];
    for (int i = 1; i < row_groups; i++)
        all += sums[i][item_index()];
    return all;
}

#endif
