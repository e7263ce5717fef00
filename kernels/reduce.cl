/*
 * Sums in a fixed order.
 *
 *   tree_reduce   for each step in order: partial[left,:] += partial[right,:]; then target row i = (or +=) partial[node i,:]
 *                 partial[rows,n]; target row i begins at target + i * stride + offset.
 *                 plan = node_count rows of nodes, then step_count pairs (left, right); base/tree.h makes them.
 *   sum_squares   sum[b] = sum of x^2 over block b. Tensor i is x[begin, begin + length) and owns the blocks from `block`
 *                 to that of tensor i + 1; table[count] of (begin, length, block). A block is BLOCK floats, counted from
 *                 its tensor's start, so that a sum does not depend on where the tensor lies.
 *
 * Deterministic: per element exactly the tree's additions; a block's 16 lanes run over its vectors in order, then the
 * lanes are added in order. Sums of squares are double where the device has it (MOERT_FP64).
 * A work-item owns COLUMNS columns through all steps, or one block. No local memory.
 */
#define COLUMNS 1024
#define BLOCK   4096

#if MOERT_FP64
typedef double real;
typedef double16 real16;
#define to_real16 convert_double16
#else
typedef float real;
typedef float16 real16;
#define to_real16(x) (x)
#endif

static inline void add_row(global float *left, global const float *right, ulong first, ulong end)
{
    for (ulong i = first; i < end; i += VEC) {
        int part = (int)min((ulong)VEC, end - i);
        store_part(load_part(left + i, part) + load_part(right + i, part), left + i, part);
    }
}

static inline void copy_row(global float *to, global const float *from, ulong first, ulong end)
{
    for (ulong i = first; i < end; i += VEC) {
        int part = (int)min((ulong)VEC, end - i);
        store_part(load_part(from + i, part), to + i, part);
    }
}

KERNEL void tree_reduce(global float *partial, global const uint *plan, uint node_count, uint step_count, ulong n,
                        global float *target, ulong stride, ulong offset, int accumulate)
{
    ulong first = get_group_id(0) * (ulong)COLUMNS, end = min(first + COLUMNS, n);
    global const uint *step = plan + node_count;
    for (uint i = 0; i < step_count; i++)
        add_row(partial + step[2 * i] * n, partial + step[2 * i + 1] * n, first, end);
    for (uint i = 0; i < node_count; i++) {
        global const float *node = partial + plan[i] * n;
        if (accumulate)
            add_row(target + i * stride + offset, node, first, end);
        else
            copy_row(target + i * stride + offset, node, first, end);
    }
}

KERNEL void sum_squares(global const float *restrict x, global const ulong *restrict table, uint count,
                        global real *restrict sum)
{
    ulong block = get_group_id(0);
    uint tensor = 0; /* the last one whose blocks begin at or before this block */
    for (uint above = count; above - tensor > 1;) {
        uint middle = tensor + (above - tensor) / 2;
        if (table[3 * middle + 2] <= block)
            tensor = middle;
        else
            above = middle;
    }
    ulong begin = table[3 * tensor], length = table[3 * tensor + 1];
    ulong first = (block - table[3 * tensor + 2]) * BLOCK, end = min(first + BLOCK, length);
    real16 squares = (real16)(0);
    for (ulong i = first; i < end; i += VEC) {
        real16 value = to_real16(load_part(x + begin + i, (int)min((ulong)VEC, end - i)));
        squares += value * value;
    }
    real lane[VEC], total = 0;
    vstore16(squares, 0, lane);
    for (int i = 0; i < VEC; i++)
        total += lane[i];
    sum[block] = total;
}
