/*
 * RMSNorm over the rows of x[R,W], and its gradients.
 *
 *   forward   rstd[r] = 1 / sqrt(sum_c x[r,c]^2 / W + epsilon),  y[r,c] = x[r,c] * rstd[r] * weight[c]
 *   dx        g[r,c] = dy[r,c] * weight[c],  s[r] = sum_c g[r,c] * x[r,c]
 *             dx[r,c] (+)= rstd[r] * g[r,c] - x[r,c] * rstd[r]^3 / W * s[r]
 *   partial   partial[s,c] = sum over the rows r of sequence s, ascending, of dy[r,c] * x[r,c] * rstd[r]
 *
 * All float32, row-major, without padding; W is any positive number. Work-groups own `block` rows (forward, dx) or
 * COLUMNS columns of one sequence (partial). Local memory: the team's.
 *
 * Required: COLUMNS, a multiple of VEC.
 *
 * Deterministic: a sum over a row is kept in the lanes of a step and joined in tree order, so a row's result depends on that row
 * alone; a column's sum has one accumulator.
 */
#ifndef COLUMNS
#error "COLUMNS must be defined: the columns of a work-group of norm_partial"
#endif
#define COLUMN_VECS (COLUMNS / VEC)

KERNEL void norm_forward(ulong rows, ulong block, int width, float epsilon, global const float *x,
                         global const float *weight, global float *y, global float *rstd)
{
    TEAM;
    ulong first = get_group_id(0) * block, end = min(first + block, rows);
    for (ulong row = first; row < end; row++) {
        global const float *from = x + row * width;
        global float *to = y + row * width;
        vec squares = 0.0f;
        for (int c = 0; c < width; c += VEC) {
            vec a = load_part(from + c, width - c);
            squares = fma(a, a, squares);
        }
        float scale = 1.0f / sqrt(sum_lanes(squares, team) / (float)width + epsilon);
        if (is_first_item())
            rstd[row] = scale;
        for (int c = 0; c < width; c += VEC) {
            int n = width - c;
            store_part(load_part(from + c, n) * scale * load_part(weight + c, n), to + c, n);
        }
    }
}

/* dx may be dy: every element is read before it is written. */
KERNEL void norm_backward(ulong rows, ulong block, int width, int accumulate, global const float *x,
                          global const float *weight, global const float *rstd, global const float *dy,
                          global float *dx)
{
    TEAM;
    ulong first = get_group_id(0) * block, end = min(first + block, rows);
    for (ulong row = first; row < end; row++) {
        global const float *xr = x + row * width, *dyr = dy + row * width;
        global float *to = dx + row * width;
        vec products = 0.0f;
        for (int c = 0; c < width; c += VEC) {
            int n = width - c;
            vec g = load_part(dyr + c, n) * load_part(weight + c, n);
            products = fma(g, load_part(xr + c, n), products);
        }
        float scale = rstd[row];
        float pull = -scale * scale * scale / (float)width * sum_lanes(products, team);
        for (int c = 0; c < width; c += VEC) {
            int n = width - c;
            vec g = load_part(dyr + c, n) * load_part(weight + c, n);
            vec d = fma((vec)pull, load_part(xr + c, n), scale * g);
            store_part(accumulate ? d + load_part(to + c, n) : d, to + c, n);
        }
    }
}

KERNEL void norm_partial(ulong sequence_rows, int width, global const float *x, global const float *rstd,
                         global const float *dy, global float *partial)
{
    int column = get_group_id(0) * COLUMNS;
    ulong sequence = get_group_id(1);
    vec sum[COLUMN_VECS];
    UNROLL for (int v = 0; v < COLUMN_VECS; v++)
        sum[v] = 0.0f;
    for (ulong row = sequence * sequence_rows; row < (sequence + 1) * sequence_rows; row++) {
        ulong at = row * width + column;
        UNROLL for (int v = 0; v < COLUMN_VECS; v++) {
            int n = width - column - v * VEC;
            if (n > 0)
                sum[v] = fma(load_part(dy + at + v * VEC, n) * rstd[row], load_part(x + at + v * VEC, n), sum[v]);
        }
    }
    UNROLL for (int v = 0; v < COLUMN_VECS; v++) {
        int n = width - column - v * VEC;
        if (n > 0)
            store_part(sum[v], partial + sequence * width + column + v * VEC, n);
    }
}
