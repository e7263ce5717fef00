/*
 * The walk of persistent work-groups over the tiles of all groups (wgmma.h, fp8.h). Required:
 *
 *     LINES, RESULTS    lines of a tile, and columns of the result in it
 *     BLOCK_K           K values of a block
 *     REDUCES_ROWS      0, 1: the reduction runs over the rows of a group, so the result has
 *                       `lines` lines for each group; else its lines are the rows
 *     KEEPS_EMPTY       0, 1: with REDUCES_ROWS, groups without rows have no tiles
 *     shape             a struct with fields groups, lines and columns
 */

/* The state of the walk: the current group, its first tile `base`, its rows `first` to `last` - 1,
 * and the number `block` of blocks of rows in all earlier groups. */
typedef struct walk {
    uint group, first, last, base, block;
} walk;

static inline uint blocks_of(uint k_size) {
    return (k_size + BLOCK_K - 1) / BLOCK_K;
}

/* The number of tiles along the lines of a group. */
static inline uint tiles_down(const shape *s, const walk *w) {
    const bool all = REDUCES_ROWS ? !KEEPS_EMPTY || w->last > w->first : false;
    return ((all ? s->lines : w->last - w->first) + LINES - 1) / LINES;
}

static inline uint tiles_across(const shape *s) {
    return (s->columns + RESULTS - 1) / RESULTS;
}

/* Finds the group of tile t, which must not decrease from call to call; false beyond the last
 * tile. */
static inline bool find_group(const shape *s, local const uint *ends, uint t, walk *w) {
    for (; w->group < s->groups; w->group++) {
        w->first = w->group > 0 ? ends[w->group - 1] : 0;
        w->last = ends[w->group];
        const uint count = tiles_down(s, w) * tiles_across(s);
        if (t - w->base < count)
            return true;
        w->base += count;
        w->block += blocks_of(w->last - w->first);
    }
    return false;
}
