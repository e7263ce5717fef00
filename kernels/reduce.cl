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
 * Deterministic: per element exactly the tree's additions; a block's lanes run over its steps in order, then the lanes are
 * added, in the CPU form in order. Sums of squares are double where the device has it (MOERT_FP64).
 * A team owns COLUMNS columns through all steps, or one block. Local memory: a number for each item (sum_squares).
 */
#define COLUMNS (MOERT_ITEMS == 1 ? 1024ul : 512ul)
#define BLOCK   4096

#if MOERT_FP64
typedef double real;
#if MOERT_ITEMS == 1
typedef double16 real_vec;
#define to_real convert_double16
#else
typedef double4 real_vec;
#define to_real convert_double4
#endif
#else
typedef float real;
typedef vec real_vec;
#define to_real(x) (x)
#endif

static inline void add_row(global float *left, global const float *right, ulong first, ulong end)
{
    for (ulong i = first; i < end; i += BATCH * VEC) {
        int n = (int)min((ulong)BATCH * VEC, end - i);
        vec a[BATCH], b[BATCH];
        load_batch(a, left + i, n);
        load_batch(b, right + i, n);
        UNROLL for (int k = 0; k < BATCH; k++)
            a[k] += b[k];
        store_batch(a, left + i, n);
    }
}

static inline void copy_row(global float *to, global const float *from, ulong first, ulong end)
{
    for (ulong i = first; i < end; i += BATCH * VEC) {
        int n = (int)min((ulong)BATCH * VEC, end - i);
        vec part[BATCH];
        load_batch(part, from + i, n);
        store_batch(part, to + i, n);
    }
}

KERNEL void tree_reduce(global float *partial, global const uint *plan, uint node_count, uint step_count, ulong n,
                        global float *target, ulong stride, ulong offset, int accumulate)
{
    ulong first = get_group_id(0) * COLUMNS, end = min(first + COLUMNS, n);
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

/* The sum of all lanes, for the first item. */
static inline real sum_reals(real_vec x, local real *items)
{
#if MOERT_ITEMS == 1
    real lane[VEC], total = 0;
    vstore16(x, 0, lane);
    for (int i = 0; i < VEC; i++)
        total += lane[i];
    return total;
#else
    items[item_index()] = (x.x + x.z) + (x.y + x.w);
    barrier(CLK_LOCAL_MEM_FENCE);
    real total = 0;
    if (is_first_item())
        for (int i = 0; i < MOERT_ITEMS; i++)
            total += items[i];
    return total;
#endif
}

KERNEL void sum_squares(global const float *restrict x, global const ulong *restrict table, uint count,
                        global real *restrict sum)
{
    local real items[MOERT_ITEMS];
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
    real_vec squares = (real_vec)(0);
    for (ulong i = first; i < end; i += BATCH * VEC) {
        vec part[BATCH];
        load_batch(part, x + begin + i, (int)(end - i));
        UNROLL for (int k = 0; k < BATCH; k++) {
            real_vec value = to_real(part[k]);
            squares += value * value;
        }
    }
    const real total = sum_reals(squares, items);
    if (is_first_item())
        sum[block] = total;
}
