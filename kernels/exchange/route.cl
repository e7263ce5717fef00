/*
 * Moves rows between a window and the caller's dense matrix [rows, width], in which each expert's
 * rows are padded to a multiple of a given number (moert/exchange.h).
 *
 *   take_*    to[p] = from[row of p], or zeros if p fills up an expert       grid: (rows p)
 *   give_*    to[row of p] = from[p], unless p fills up an expert            grid: (rows p)
 *   weigh     dot[p] = sum over c of combined[p,c] * rows[p,c], then
 *             rows[p,c] *= weight[p]                                         grid: (rows p)
 *
 * ends[experts] are the ends of the experts' rows in the window, padded[experts] those of their
 * rows in the matrix. If padded is null, the ends in the matrix are those in the window. take_ and
 * give_ move units: words of 4 bytes or bytes. Window rows are `window_stride` units apart, and
 * `first` units of a row precede the units that are moved. In weigh, rows and combined are dense,
 * of type 0 (float32) or 2 (bf16, rounded).
 *
 * A row group computes one row. Local memory: MOERT_ITEMS floats (weigh). Deterministic: weigh adds
 * column c to lane c mod SUM_LANES, then adds the lanes as a tree.
 */
#include "args/exchange.h"
#include "lib/formats.h"

/* The window's row for row p of the matrix; ULONG_MAX if p is padding. */
static inline ulong window_row(global const uint *ends, global const uint *padded, uint experts,
                               uint p) {
    if (padded == 0)
        return p;
    /* rows after those of the last expert but one count as rows of the last expert */
    const uint e = group_of(padded, experts - 1, p);
    const uint row = p - group_start(padded, e) + group_start(ends, e);
    return row < ends[e] ? row : ULONG_MAX;
}

#define MOVE_ROWS(take, give, unit)                                                                \
    KERNEL void take(global const unit *from, global unit *to, global const uint *ends,            \
                     global const uint *padded, moert_route_args args) {                           \
        const uint p = get_group_id(0);                                                            \
        const ulong row = window_row(ends, padded, args.experts, p);                               \
        global const unit *source = from + row * args.window_stride + args.first;                  \
        global unit *target = to + (ulong)p * args.width;                                          \
        if (row == ULONG_MAX)                                                                      \
            for (uint i = item_index(); i < args.width; i += MOERT_ITEMS)                          \
                target[i] = 0;                                                                     \
        else                                                                                       \
            for (uint i = item_index(); i < args.width; i += MOERT_ITEMS)                          \
                target[i] = source[i];                                                             \
    }                                                                                              \
    KERNEL void give(global const unit *from, global unit *to, global const uint *ends,            \
                     global const uint *padded, moert_route_args args) {                           \
        const uint p = get_group_id(0);                                                            \
        const ulong row = window_row(ends, padded, args.experts, p);                               \
        global const unit *source = from + (ulong)p * args.width;                                  \
        global unit *target = to + row * args.window_stride + args.first;                          \
        if (row != ULONG_MAX)                                                                      \
            for (uint i = item_index(); i < args.width; i += MOERT_ITEMS)                          \
                target[i] = source[i];                                                             \
    }
MOVE_ROWS(take_words, give_words, uint)
MOVE_ROWS(take_bytes, give_bytes, uchar)

KERNEL void weigh(global const void *combined, global const float *weight, global void *rows,
                  global float *dot, moert_route_args args) {
    ROW_GROUP;
    const uint p = get_group_id(0), width = args.width;
    const ulong first = (ulong)p * width;
    const vec w = (vec)weight[p];
    lane_sums sum = NO_SUM;
    EACH_STEP_OF(c, v, width) {
        const int left = (int)(width - c);
        const vec x = load_as(rows, args.type, first + c, left);
        sum.part[v] = fma(load_as(combined, args.type, first + c, left), x, sum.part[v]);
        store_as(w * x, rows, args.type, first + c, left);
    }
    const float total = sum_lanes(sum, row_group);
    if (is_first_item())
        dot[p] = total;
}
