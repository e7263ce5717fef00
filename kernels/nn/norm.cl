/*
 * RMSNorm over the rows of x[R,W], and its gradients.
 *
 *   forward   rstd[r] = 1 / sqrt(sum_c x[r,c]^2 / W + epsilon),  y[r,c] = x[r,c] * rstd[r] *
 *             weight[c]
 *   dx        g[r,c] = dy[r,c] * weight[c],  s[r] = sum_c g[r,c] * x[r,c]
 *             dx[r,c] (+)= rstd[r] * g[r,c] - x[r,c] * rstd[r]^3 / W * s[r]
 *   partial   partial[p,c] = sum over the rows r of piece p, ascending, of dy[r,c] * x[r,c] *
 *             rstd[r]
 *
 * y and dx are float32 matrices, bf16 matrices, or both, as RESULTS says; all others are float32.
 * All are row-major without padding; W is any positive number. A piece is `block` rows of a
 * sequence, counted from its first row. On GPUs norm_sum_pieces adds the pieces of each sequence;
 * on CPUs norm_partial does, in the same order.
 *
 * A row group owns `block` rows (forward, dx), or COLUMNS columns of a piece (partial), and reads
 * rows twice. If STEPS is not 0, GROUPS_PER_ROW row groups own a row together and keep it in
 * registers, and norm_gradients computes dx and a piece in one pass. Local memory on GPUs: 132
 * bytes for each row group; 16 KiB (norm_sum_pieces). On CPUs a work-item adds the parts of a row,
 * `part` columns each, as these row groups do.
 *
 * If ROTATED is 1, rows are heads, `heads` for each token of a sequence of `length`. The first
 * `rotated` columns of y are rotated by the token's position, as by rope.cl; those of dy are
 * rotated back before use. For this an item also reads the partners of its columns, rotated / 2
 * columns away.
 *
 * Required: COLUMNS, a multiple of VEC; STEPS, steps of a row group's part of a row, or 0;
 * GROUPS_PER_ROW; RESULTS, 1 (float32), 2 (bf16) or 3 (both); ROTATED (0, 1; 1 only with STEPS,
 * `rotated` a multiple of 8, and results that are not the input).
 *
 * Deterministic: a sum over a row runs by lane and then over the lanes as a tree, so a row's result
 * depends on that row only. A column's sum has one accumulator per piece, and pieces are added in
 * an order that depends on their number only.
 */
#include "args/nn.h"
#include "lib/formats.h"
#include "lib/row_groups.h"

#if !defined(COLUMNS) || !defined(STEPS) || !defined(GROUPS_PER_ROW) || !defined(RESULTS) ||       \
    !defined(ROTATED)
#error "COLUMNS, STEPS, GROUPS_PER_ROW, RESULTS and ROTATED must be defined"
#endif
#define COLUMN_VECS     (COLUMNS / VEC)
#define JOIN_ROW_GROUPS 32 /* of norm_sum_pieces */

/* Writes the first n lanes of x at offset `at` of the result matrices. */
static inline void store_results(vec x, global float *y, global ushort *bf16, ulong at, int n) {
    if (RESULTS & 1)
        store_part(x, y + at, n);
    if (RESULTS & 2)
        store_shorts(encode(x, DTYPE_BF16), bf16 + at, n);
}

#if STEPS == 0
KERNEL void norm_forward(global const float *x, global const float *weight, global float *y,
                         global ushort *bf16, global float *rstd, global const float *table,
                         moert_norm_args args) {
    ROW_GROUP;
    ulong first = get_group_id(0) * args.block, end = min(first + args.block, args.rows);
    for (ulong row = first; row < end; row++) {
        global const float *from = x + row * args.width;
        float squares = 0.0f;
        IN_ORDER_FOR(int begin = 0; begin < args.width; begin += args.part) {
            const int width = min(args.part, args.width - begin);
            lane_sums sum = NO_SUM;
            FOR_EACH_STEP(c, v, width, {
                const vec a = load_part(from + begin + c, width - c);
                sum.part[v] = fma(a, a, sum.part[v]);
            })
            squares += sum_lanes(sum, row_group);
        }
        float scale = 1.0f / sqrt(squares / (float)args.width + args.epsilon);
        if (is_first_item())
            rstd[row] = scale;
        for (int c = 0; c < args.width; c += VEC) {
            int n = args.width - c;
            store_results(load_part(from + c, n) * scale * load_part(weight + c, n), y, bf16,
                          row * args.width + c, n);
        }
    }
}

/* dx may be dy: every element is read before it is written. */
KERNEL void norm_backward(global const float *x, global const float *weight,
                          global const float *rstd, global const float *dy, global float *dx,
                          global ushort *bf16, moert_norm_args args) {
    ROW_GROUP;
    ulong first = get_group_id(0) * args.block, end = min(first + args.block, args.rows);
    for (ulong row = first; row < end; row++) {
        global const float *xr = x + row * args.width, *dyr = dy + row * args.width;
        float dots = 0.0f;
        IN_ORDER_FOR(int begin = 0; begin < args.width; begin += args.part) {
            const int width = min(args.part, args.width - begin);
            lane_sums sum = NO_SUM;
            FOR_EACH_STEP(c, v, width, {
                const int at = begin + c;
                const int n = width - c;
                const vec g = load_part(dyr + at, n) * load_part(weight + at, n);
                sum.part[v] = fma(g, load_part(xr + at, n), sum.part[v]);
            })
            dots += sum_lanes(sum, row_group);
        }
        float scale = rstd[row];
        float x_factor = -scale * scale * scale / (float)args.width * dots;
        for (int c = 0; c < args.width; c += VEC) {
            int n = args.width - c;
            vec g = load_part(dyr + c, n) * load_part(weight + c, n);
            vec d = fma((vec)x_factor, load_part(xr + c, n), scale * g);
            const ulong at = row * args.width + c;
            store_results(args.accumulate ? d + load_part(dx + at, n) : d, dx, bf16, at, n);
        }
    }
}

/* Adds rows [row, end) of the columns from `column` on to `sum`. */
static inline void add_piece(vec sum[COLUMN_VECS], global const float *x, global const float *rstd,
                             global const float *dy, ulong row, ulong end, int column, int width) {
    for (; row < end; row += BATCH) {
        vec g[BATCH][COLUMN_VECS], a[BATCH][COLUMN_VECS];
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++) {
                ulong at = (row + k) * width + column + v * VEC;
                int n = row + k < end ? width - column - v * VEC : 0;
                g[k][v] = load_part(dy + at, n);
                a[k][v] = load_part(x + at, n);
            }
        UNROLL_FOR(int k = 0; k < BATCH; k++) {
            float scale = row + k < end ? rstd[row + k] : 0.0f;
            UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
                sum[v] = fma(g[k][v] * scale, a[k][v], sum[v]);
        }
    }
}

static inline void store_columns(const vec sum[COLUMN_VECS], global float *row, int column,
                                 int width) {
    UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
        if (column + v * VEC < width)
            store_part(sum[v], row + column + v * VEC, width - column - v * VEC);
}

#if MOERT_ITEMS == 1
/* A sequence's pieces, added in the order of norm_sum_pieces. */
KERNEL void norm_partial(global const float *x, global const float *rstd, global const float *dy,
                         global float *partial, moert_norm_args args) {
    const int column = get_group_id(0) * COLUMNS;
    const ulong sequence = get_group_id(2), first = sequence * args.sequence_rows,
                end = first + args.sequence_rows;
    vec all[COLUMN_VECS];
    for (ulong own = 0; own < min(args.pieces, (ulong)JOIN_ROW_GROUPS); own++) {
        vec sum[COLUMN_VECS];
        UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
            sum[v] = 0.0f;
        for (ulong piece = own; piece < args.pieces; piece += JOIN_ROW_GROUPS) {
            const ulong row = first + piece * args.block;
            vec part[COLUMN_VECS];
            UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
                part[v] = 0.0f;
            add_piece(part, x, rstd, dy, row, min(row + args.block, end), column, args.width);
            UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
                sum[v] += part[v];
        }
        UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
            all[v] = own > 0 ? all[v] + sum[v] : sum[v];
    }
    store_columns(all, partial + sequence * args.width, column, args.width);
}
#else
KERNEL void norm_partial(global const float *x, global const float *rstd, global const float *dy,
                         global float *partial, moert_norm_args args) {
    const int column = get_group_id(0) * COLUMNS;
    const ulong sequence = get_group_id(2), piece = sequence * get_num_groups(1) + get_group_id(1),
                first = sequence * args.sequence_rows + get_group_id(1) * args.block,
                end = min(first + args.block, (sequence + 1) * args.sequence_rows);
    vec sum[COLUMN_VECS];
    UNROLL_FOR(int v = 0; v < COLUMN_VECS; v++)
        sum[v] = 0.0f;
    add_piece(sum, x, rstd, dy, first, end, column, args.width);
    store_columns(sum, partial + piece * args.width, column, args.width);
}
#endif
#else
/* ROWS: rows that are loaded at once; a rotation doubles the loads of a row. A CPU loads one row if
 * several row groups share it: with more rows, PoCL 6 ends the process while it compiles. It lets
 * LLVM verify that an optimization has reached a fixpoint, which LLVM does not promise. */
#define SOME_STEPS   (ROTATED ? 2 * STEPS : STEPS)
#define ONE_BY_ONE   (MOERT_CPU && GROUPS_PER_ROW > 1)
#define ROWS         (SOME_STEPS < 8 && !ONE_BY_ONE ? 8 / SOME_STEPS : 1)
#define HOLDS_WEIGHT (STEPS <= 2)
#define PREFETCHES   (STEPS <= 2 && !ROTATED) /* loads the next ROWS rows ahead of use */

#include "nn/norm_rotated.h"

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

/* The sums of ROWS rows' lanes. The rows take each step of the tree together, to hide its
 * latency. */
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

/* Computes dx and a piece of partial. dx may be dy. */
KERNEL_OF(GROUPS_PER_ROW)
void norm_gradients(global const float *x, global const float *weight, global const float *rstd,
                    global const float *dy, global float *dx, global ushort *bf16,
                    global float *partial, global const float *table, moert_norm_args args) {
    ROW_GROUP_OF(GROUPS_PER_ROW);
    local float of_groups[GROUPS_PER_ROW];
    ulong piece = get_group_id(1) * get_num_groups(0) + get_group_id(0),
          sequence_end = (get_group_id(1) + 1) * args.sequence_rows;
    ulong first = get_group_id(1) * args.sequence_rows + get_group_id(0) * args.block,
          end = min(first + args.block, sequence_end);
    vec sum[STEPS];
    head_position at = {0, 0};
    if (ROTATED)
        at =
            head_position_of(first - get_group_id(1) * args.sequence_rows, args.heads, args.length);
    vec weights[STEPS], ahead_g[ROWS][STEPS], ahead_a[ROWS][STEPS];
    UNROLL_FOR(int s = 0; s < STEPS; s++) {
        sum[s] = 0.0f;
        if (HOLDS_WEIGHT)
            weights[s] = load_part(weight + column_of(s), args.width - column_of(s));
    }
    if (PREFETCHES) {
        load_rows(ahead_g, dy, first, end, args.width);
        load_rows(ahead_a, x, first, end, args.width);
    }
    for (ulong row = first; row < end; row += ROWS) {
        vec g[ROWS][STEPS], a[ROWS][STEPS], dots[ROWS];
        float scale[ROWS], dot[ROWS];
        if (PREFETCHES) {
            UNROLL_FOR(int r = 0; r < ROWS; r++)
                UNROLL_FOR(int s = 0; s < STEPS; s++)
                    g[r][s] = ahead_g[r][s], a[r][s] = ahead_a[r][s];
        } else {
            load_rows(g, dy, row, end, args.width);
            load_rows(a, x, row, end, args.width);
        }
        UNROLL_FOR(int r = 0; r < ROWS; r++)
            scale[r] = rstd[min(row + r, end - 1)];
        if (PREFETCHES) {
            load_rows(ahead_g, dy, row + ROWS, end, args.width);
            load_rows(ahead_a, x, row + ROWS, end, args.width);
        }
        UNROLL for (int r = 0; ROTATED && r < ROWS;
                    r++, at = next_head_position(at, args.heads, args.length)) {
            UNROLL_FOR(int s = 0; s < STEPS; s++) {
                const int c = column_of(s), n = row + r < end ? args.width - c : 0;
                const vec partner =
                    load_part(dy + (row + r) * args.width + c + to_partners(c, args.rotated), n);
                g[r][s] =
                    rotate_columns(g[r][s], partner, table + (ulong)at.position * args.rotated, c,
                                   n, args.rotated, -1.0f);
            }
        }
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
        if (args.accumulate) {
            load_rows(a, dx, row, end, args.width);
            UNROLL_FOR(int r = 0; r < ROWS; r++)
                UNROLL_FOR(int s = 0; s < STEPS; s++)
                    g[r][s] += a[r][s];
        }
        UNROLL_FOR(int r = 0; r < ROWS; r++)
            UNROLL_FOR(int s = 0; s < STEPS; s++)
                store_results(g[r][s], dx, bf16, (row + r) * args.width + column_of(s),
                              row + r < end ? args.width - column_of(s) : 0);
    }
    UNROLL_FOR(int s = 0; s < STEPS; s++)
        store_part(sum[s], partial + piece * args.width + column_of(s), args.width - column_of(s));
}
#endif

#if MOERT_ITEMS > 1
/* partial[s,c] = the sum of sequence s's pieces. Each row group adds every JOIN_ROW_GROUPS-th
 * piece. */
KERNEL_OF(JOIN_ROW_GROUPS)
void norm_sum_pieces(global const float *piece, global float *partial, moert_norm_args args) {
    SUMS_OF(JOIN_ROW_GROUPS);
    const int column = get_group_id(0) * VEC, n = args.width - column;
    const ulong end = (get_group_id(1) + 1) * args.pieces;
    vec sum = 0.0f;
    for (ulong row = get_group_id(1) * args.pieces + row_group_index(); row < end;
         row += ROWS_AHEAD * JOIN_ROW_GROUPS) {
        vec part[ROWS_AHEAD];
        UNROLL_FOR(int k = 0; k < ROWS_AHEAD; k++)
            part[k] = load_part(piece + (row + k * JOIN_ROW_GROUPS) * args.width + column,
                                row + k * JOIN_ROW_GROUPS < end ? n : 0);
        UNROLL_FOR(int k = 0; k < ROWS_AHEAD; k++)
            sum += part[k];
    }
    sum = sum_row_groups(sum, JOIN_ROW_GROUPS, sums);
    if (row_group_index() == 0)
        store_part(sum, partial + get_group_id(1) * args.width + column, n);
}
#endif
