/*
 * Included by norm_streamed.h and norm_held.h: stores the results of a row, and rotates rows that
 * are heads by the token's position.
 */
#include "lib/formats.h"

#define JOIN_ROW_GROUPS 32 /* row groups of norm_sum_pieces */

/* Writes the first n lanes of x at offset `at` of the result matrices. */
static inline void store_results(vec x, global float *y, global ushort *bf16, ulong at, int n) {
    if (RESULTS & 1)
        store_part(x, y + at, n);
    if (RESULTS & 2)
        store_shorts(encode(x, DTYPE_BF16), bf16 + at, n);
}

/* A row's head, and its token's position in the sequence. */
typedef struct head_position {
    int head, position;
} head_position;

/* The head and position of row `row`, counted from the first row of a sequence. */
static inline head_position head_position_of(ulong row, int heads, int length) {
    const ulong token = row / heads;
    return (head_position){(int)(row % heads), (int)(token % length)};
}

static inline head_position next_head_position(head_position s, int heads, int length) {
    const bool wraps = s.head + 1 == heads;
    return (head_position){wraps ? 0 : s.head + 1, !wraps                     ? s.position
                                                   : s.position + 1 == length ? 0
                                                                              : s.position + 1};
}

/* The distance from this item's columns in the step from c on to the columns that they are rotated
 * with: 0 past the first `rotated` columns of a row. */
static inline int to_partners(int c, int rotated) {
    c += part_start();
    return c < rotated / 2 ? rotated / 2 : c < rotated ? -rotated / 2 : 0;
}

/* Returns x, which holds n columns from c on, rotated by a row of the table. `partner` holds the
 * columns to_partners() away. */
static inline vec rotate_columns(vec x, vec partner, global const float *table, int c, int n,
                                 int rotated, float sign) {
    const int to = to_partners(c, rotated), first = to < 0 ? c + to : c;
    if (to == 0)
        return x;
    const vec cosine = load_part(table + first, n),
              sine = load_part(table + first + rotated / 2, n);
    return fma(x, cosine, partner * (to < 0 ? sign * sine : -sign * sine));
}
