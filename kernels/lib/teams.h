/*
 * Included by families whose work-groups have several teams in the GPU form: what the teams have is
 * joined in local memory, in the order of the teams.
 */
#if MOERT_ITEMS > 1

/* Rows whose loads a team that adds up rows has under way together. */
#define ROWS_AHEAD 8

/* Local memory in which a work-group's teams join their sums; declared in the kernel, where `sums`
 * is then its name. */
#define SUMS_OF(teams) local vec sums[teams][MOERT_ITEMS]

/* The sum, or the largest, of what the teams of a work-group have, in their order; all call at
 * once. `crew` has a float for each team. */
static inline float join_teams(float x, bool largest, int teams, local float *crew) {
    barrier(CLK_LOCAL_MEM_FENCE); /* all are done with the last ones */
    if (is_first_item())
        crew[team_index()] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    float all = crew[0];
    for (int i = 1; i < teams; i++)
        all = largest ? fmax(all, crew[i]) : all + crew[i];
    return all;
}

/* The teams' sums of the same columns, added in order, for the first team; all teams call at
 * once. */
static inline vec sum_teams(vec x, int teams, local vec (*sums)[MOERT_ITEMS]) {
    sums[team_index()][item_index()] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    vec all = sums[0][item_index()];
    for (int i = 1; i < teams; i++)
        all += sums[i][item_index()];
    return all;
}

#endif
