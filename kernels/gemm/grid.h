/* The parts of grouped GEMMs for CPUs that work-groups compute: rows of groups by column blocks. */

typedef struct span {
    uint first;
    int count;
} span;

/* Rows of group g that belong to part `part`, where a part has `split` rows. */
static inline span group_part(global const uint *ends, uint g, uint shared, uint rows, uint part,
                              uint split) {
    uint first = shared > 0 ? 0 : group_start(ends, g);
    uint end = min(ends[shared > 0 ? shared - 1 : g], rows);
    first += part * split;
    return (span){first, first < end ? (int)min(end - first, split) : 0};
}

/* The block of columns that this work-group computes; negative for an idle layer. */
static inline int column_block(void) {
    return (int)get_group_id(2) - MOERT_GEMM_IDLE_LAYERS;
}

/* The work-group that the same thread computes next, if threads take consecutive work-groups: that
 * of the next group with rows, or of the next column block. `any` is false if that work-group reads
 * the same panels as this one, or does not exist. */
typedef struct successor {
    uint group;
    int block;
    bool any;
} successor;

static inline successor no_successor(void) {
    return (successor){0, 0, false};
}

static inline successor successor_of(global const uint *ends, uint first, uint shared, uint rows,
                                     uint split) {
    successor next = {get_group_id(1), column_block(), false};
    if (get_group_id(0) + 1 < get_num_groups(0) &&
        group_part(ends, first + next.group, shared, rows, get_group_id(0) + 1, split).count > 0)
        return next;
    do {
        if (++next.group == get_num_groups(1)) {
            next.group = 0;
            next.block++;
        }
        next.any = next.block + MOERT_GEMM_IDLE_LAYERS < (int)get_num_groups(2);
    } while (next.any && group_part(ends, first + next.group, shared, rows, 0, split).count == 0);
    return next;
}
