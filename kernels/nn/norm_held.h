/*
 * Included by norm.cl if STEPS is not 0: GROUPS_PER_ROW row groups own a row together and keep it
 * in registers.
 */
#include "nn/norm_rows.h"

/* ROWS: rows that are loaded at once; a rotation doubles the loads of a row. A CPU loads one row if
 * several row groups share it: with more rows, PoCL 6 ends the process while it compiles. PoCL 6
 * makes LLVM verify that an optimization has reached a fixpoint, which LLVM does not promise. */
#define SOME_STEPS   (ROTATED ? 2 * STEPS : STEPS)
#define ONE_BY_ONE   (MOERT_CPU && GROUPS_PER_ROW > 1)
#define ROWS         (SOME_STEPS < 8 && !ONE_BY_ONE ? 8 / SOME_STEPS : 1)
#define HOLDS_WEIGHT (STEPS <= 2)
#define PREFETCHES   (STEPS <= 2 && !ROTATED) /* loads the next ROWS rows ahead of use */

/* The first column of step s of this row group's part of a row. */
static inline int column_of(int s) {
    return (row_group_index() * STEPS + s) * VEC;
}

/* Loads this item's parts of ROWS rows; zeros from row `end` on. */
static inline void load_rows(vec parts[ROWS][STEPS], global const float *p, ulong row, ulong end,
                             int width) {
    UNROLL_FOR(int r = 0; r < ROWS; r++)
        UNROLL_FOR(int s = 0; s < STEPS; s++)
            parts[r][s] = load_part(p + (row + r) * width + column_of(s),
                                    row + r < end ? width - column_of(s) : 0);
}

static inline float sum_row(vec x, local float (*row_group)[MOERT_ITEMS], local float *of_groups) {
    const float own = sum_vec(x, row_group[row_group_index()]);
    return GROUPS_PER_ROW > 1 ? reduce_row_groups(own, false, GROUPS_PER_ROW, of_groups) : own;
}

/* The sums of ROWS rows' lanes. Each step of the tree is done for all rows before the next step,
 * which hides latency. */
static inline void sum_rows(const vec x[ROWS], float sum[ROWS],
                            local float (*row_group)[MOERT_ITEMS], local float *of_groups) {
#if GROUPS_PER_ROW == 1 && ROWS > 1 && (defined(__NV_CL_C_VERSION) || defined(__NVPTX__))
    UNROLL_FOR(int r = 0; r < ROWS; r++) {
        const float2 own = x[r].lo + x[r].hi;
        sum[r] = own.x + own.y;
    }
    UNROLL_FOR(int distance = MOERT_ITEMS / 2; distance > 0; distance /= 2)
        UNROLL_FOR(int r = 0; r < ROWS; r++)
            sum[r] += exchanged(sum[r], distance);
#else
    UNROLL_FOR(int r = 0; r < ROWS; r++)
        sum[r] = sum_row(x[r], row_group, of_groups);
#endif
}

KERNEL_OF(GROUPS_PER_ROW)
void norm_forward(global const float *x, global const float *weight, global float *y,
                  global ushort *bf16, global float *rstd, global const float *table,
                  moert_norm_args args) {
    ROW_GROUP_OF(GROUPS_PER_ROW);
    local float of_groups[GROUPS_PER_ROW];
    ulong first = get_group_id(0) * args.block, end = min(first + args.block, args.rows);
    head_position at = {0, 0};
    if (ROTATED)
        at = head_position_of(first, args.heads, args.length);
    for (ulong row = first; row < end; row += ROWS) {
        vec a[ROWS][STEPS];
        load_rows(a, x, row, end, args.width);
        UNROLL_FOR(int r = 0; r < ROWS; r++) {
            vec squares = 0.0f;
            UNROLL_FOR(int s = 0; s < STEPS; s++)
                squares = fma(a[r][s], a[r][s], squares);
            float scale = 1.0f / sqrt(sum_row(squares, row_group, of_groups) / (float)args.width +
                                      args.epsilon);
            if (is_first_item() && row_group_index() == 0 && row + r < end)
                rstd[row + r] = scale;
            UNROLL_FOR(int s = 0; s < STEPS; s++) {
                int c = column_of(s), n = row + r < end ? args.width - c : 0;
                vec value = a[r][s] * scale * load_part(weight + c, n);
                if (ROTATED) {
                    const int other = c + to_partners(c, args.rotated);
                    const vec partner = load_part(x + (row + r) * args.width + other, n) * scale *
                                        load_part(weight + other, n);
                    value =
                        rotate_columns(value, partner, table + (ulong)at.position * args.rotated, c,
                                       n, args.rotated, 1.0f);
                }
                store_results(value, y, bf16, (row + r) * args.width + c, n);
            }
            if (ROTATED)
                at = next_head_position(at, args.heads, args.length);
        }
    }
}

/* Rotates heads of dy back, from row `row` on; `at` is the position of row `row`, and becomes the
 * position of the row after the last one. */
static inline void rotate_back(vec g[ROWS][STEPS], global const float *dy, ulong row, ulong end,
                               head_position *at, global const float *table, moert_norm_args args) {
    UNROLL for (int r = 0; r < ROWS; r++, *at = next_head_position(*at, args.heads, args.length)) {
        UNROLL_FOR(int s = 0; s < STEPS; s++) {
            const int c = column_of(s), n = row + r < end ? args.width - c : 0;
            const vec partner =
                load_part(dy + (row + r) * args.width + c + to_partners(c, args.rotated), n);
            g[r][s] = rotate_columns(g[r][s], partner, table + (ulong)at->position * args.rotated,
                                     c, n, args.rotated, -1.0f);
        }
    }
}

/* Stores results of ROWS rows from row `row` on. */
static inline void store_rows(const vec x[ROWS][STEPS], global float *y, global ushort *bf16,
                              ulong row, ulong end, int width) {
    UNROLL_FOR(int r = 0; r < ROWS; r++)
        UNROLL_FOR(int s = 0; s < STEPS; s++)
            store_results(x[r][s], y, bf16, (row + r) * width + column_of(s),
                          row + r < end ? width - column_of(s) : 0);
}

/* Adds to x ROWS rows of y, from row `row` on. */
static inline void add_rows(vec x[ROWS][STEPS], global const float *y, ulong row, ulong end,
                            int width) {
    vec old[ROWS][STEPS];
    load_rows(old, y, row, end, width);
    UNROLL_FOR(int r = 0; r < ROWS; r++)
        UNROLL_FOR(int s = 0; s < STEPS; s++)
            x[r][s] += old[r][s];
}

/* Calls load_rows for dy and for x. */
static inline void load_both(vec g[ROWS][STEPS], vec a[ROWS][STEPS], global const float *dy,
                             global const float *x, ulong row, ulong end, int width) {
    load_rows(g, dy, row, end, width);
    load_rows(a, x, row, end, width);
}

/* Moves rows that were loaded ahead to where they are used. */
static inline void take_rows(vec to[ROWS][STEPS], vec ahead[ROWS][STEPS]) {
    UNROLL_FOR(int r = 0; r < ROWS; r++)
        UNROLL_FOR(int s = 0; s < STEPS; s++)
            to[r][s] = ahead[r][s];
}

/* Computes dx and a piece of partial. dx may be dy. */
KERNEL_OF(GROUPS_PER_ROW)
void norm_gradients(global const float *x, global const float *weight, global const float *rstd,
                    global const float *dy, global float *dx, global ushort *bf16,
                    global float *partial, global const float *table, moert_norm_args args) {
    ROW_GROUP_OF(GROUPS_PER_ROW);
    local float of_groups[GROUPS_PER_ROW];
    const ulong piece = get_group_id(1) * get_num_groups(0) + get_group_id(0),
                begin = get_group_id(1) * args.sequence_rows,
                first = begin + get_group_id(0) * args.block,
                end = min(first + args.block, begin + args.sequence_rows);
    head_position at = {0, 0};
    vec sum[STEPS], weights[STEPS], ahead_g[ROWS][STEPS], ahead_a[ROWS][STEPS];
    if (ROTATED)
        at = head_position_of(first - begin, args.heads, args.length);
    UNROLL_FOR(int s = 0; s < STEPS; s++) {
        sum[s] = 0.0f;
        if (HOLDS_WEIGHT)
            weights[s] = load_part(weight + column_of(s), args.width - column_of(s));
    }
    if (PREFETCHES)
        load_both(ahead_g, ahead_a, dy, x, first, end, args.width);
    for (ulong row = first; row < end; row += ROWS) {
        vec g[ROWS][STEPS], a[ROWS][STEPS], dots[ROWS];
        float scale[ROWS], dot[ROWS];
        if (PREFETCHES) {
            take_rows(g, ahead_g);
            take_rows(a, ahead_a);
        } else {
            load_both(g, a, dy, x, row, end, args.width);
        }
        UNROLL_FOR(int r = 0; r < ROWS; r++)
            scale[r] = rstd[min(row + r, end - 1)];
        if (PREFETCHES)
            load_both(ahead_g, ahead_a, dy, x, row + ROWS, end, args.width);
        if (ROTATED)
            rotate_back(g, dy, row, end, &at, table, args);
        UNROLL_FOR(int r = 0; r < ROWS; r++) {
            scale[r] = row + r < end ? scale[r] : 0.0f;
            dots[r] = 0.0f;
            UNROLL_FOR(int s = 0; s < STEPS; s++) {
                sum[s] = fma(g[r][s] * scale[r], a[r][s], sum[s]);
                g[r][s] *= HOLDS_WEIGHT
                               ? weights[s]
                               : load_part(weight + column_of(s), args.width - column_of(s));
                dots[r] = fma(g[r][s], a[r][s], dots[r]);
            }
        }
        sum_rows(dots, dot, row_group, of_groups);
        UNROLL_FOR(int r = 0; r < ROWS; r++) {
            const float x_factor = -scale[r] * scale[r] * scale[r] / (float)args.width * dot[r];
            UNROLL_FOR(int s = 0; s < STEPS; s++)
                g[r][s] = fma((vec)x_factor, a[r][s], scale[r] * g[r][s]);
        }
        if (args.accumulate)
            add_rows(g, dx, row, end, args.width);
        store_rows(g, dx, bf16, row, end, args.width);
    }
    UNROLL_FOR(int s = 0; s < STEPS; s++)
        store_part(sum[s], partial + piece * args.width + column_of(s), args.width - column_of(s));
}
