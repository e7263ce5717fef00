/* Included by quantize.h and dequantize.cl after formats.h: the rows and columns of a
 * work-group. */
#include "args/quant.h"

/* The first row and the number of rows (0: nothing to do) in a group. `slot`: the number of the
 * row, or of the row block, over all groups. */
typedef struct part {
    uint group, row, rows, slot;
    int first, last; /* columns first to last - 1 */
} part;

static inline part find_part(global const uint *ends, const moert_quantize_args *a, int axis) {
    const uint slot = get_group_id(0);
    const int first = get_group_id(1) * a->strip, last = min(a->columns, first + a->strip);
    const row_block p =
        axis == ROW ? find_row(ends, a->groups, a->rows, SCALE == 1 && a->group_scales, slot)
                    : find_row_block(ends, a->groups, a->rows, BLOCK, slot);
    const bool inside = axis == ROW || slot < a->blocks;
    return (part){p.group, p.row, inside ? p.rows : 0, slot, first, last};
}
