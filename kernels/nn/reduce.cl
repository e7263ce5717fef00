/*
 * Sums in a fixed order.
 *
 *   tree_reduce   the nodes of the leaves [first, first + count) of `total` (base/tree.h): target
 *                 row i = (or +=) the sum of node i by the tree, of partial[count,n]. Target row i
 *                 begins at target + i * stride + offset.
 *   sum_squares   sum[b] = sum of x^2 over block b. Tensor i is [begin, begin + length) of its
 *                 buffer and owns the blocks from `block` to that of tensor i + 1; table[] of
 *                 (begin, length, block). A launch is for blocks from `first_block` on, of the
 *                 tensors [first, last) of the buffer x. A block is BLOCK floats, counted from its
 *                 tensor's start, so that a sum does not depend on where the tensor lies.
 *   join_blocks   sum[i] = that of tensor i's blocks.
 *
 * Deterministic: per element exactly the tree's additions; a block's lanes run over its steps in
 * order, then the lanes are added, in the CPU form in order, and so are blocks; in the GPU form
 * each item has every JOINERS-th block of a tensor, and their sums are added by halves. Sums of
 * squares are double where the device has it (MOERT_FP64).
 * A row_group owns COLUMNS columns of all nodes, or one block; GROUPS_PER_ROW row_groups the blocks of a tensor. Local
 * memory: a number for each item (squares).
 */
#include "args/nn.h"

#define COLUMNS        (MOERT_ITEMS == 1 ? 1024ul : 512ul)
#define BLOCK          4096
#define LEAVES         8  /* read side by side */
#define LEVELS         28 /* of the tree above them */
#define GROUPS_PER_ROW (MOERT_ITEMS == 1 ? 1 : 8)
#define JOINERS        (GROUPS_PER_ROW * MOERT_ITEMS)

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

/* The widest complete node that starts at `first` and ends, clipped to total, at or before
 * `end`. */
static inline uint node_width(uint first, uint end, uint total) {
    uint width = 1;
    while (first % (2 * width) == 0 && first + width < total &&
           min(first + 2 * width, total) <= end)
        width *= 2;
    return width;
}

/* The sum of 1 to LEAVES rows by the tree. */
static inline vec sum_leaves(global const float *row, ulong stride, uint rows, int n) {
    vec x[LEAVES];
    UNROLL_FOR(uint i = 0; i < LEAVES; i++)
        x[i] = i < rows ? load_part(row + i * stride, n) : (vec)0.0f;
    UNROLL_FOR(uint apart = 1; apart < LEAVES; apart *= 2)
        UNROLL_FOR(uint i = 0; i + apart < LEAVES; i += 2 * apart)
            x[i] = i + apart < rows ? x[i] + x[i + apart] : x[i];
    return x[0];
}

/* The sum of a node's rows: a level of the stack holds the sum of LEAVES << level rows when that
 * bit of `done` is set. */
static inline vec sum_node(global const float *row, ulong stride, uint rows, int n) {
    vec stack[LEVELS];
    uint done = 0, first = 0;
    for (; rows - first > LEAVES; first += LEAVES, done++) {
        vec sum = sum_leaves(row + first * stride, stride, LEAVES, n);
        uint level = 0;
        for (; done >> level & 1; level++)
            sum = stack[level] + sum;
        stack[level] = sum;
    }
    vec sum = sum_leaves(row + first * stride, stride, rows - first, n);
    for (uint level = 0; done >> level > 0; level++)
        if (done >> level & 1)
            sum = stack[level] + sum;
    return sum;
}

KERNEL void tree_reduce(global const float *partial, global float *target, moert_tree_args args) {
    ulong begin = get_group_id(0) * COLUMNS, end = min(begin + COLUMNS, args.n);
    global float *to = target + args.offset;
    for (uint leaf = args.first, width; leaf < args.first + args.count;
         leaf += width, to += args.stride) {
        width = node_width(leaf, args.first + args.count, args.total);
        for (ulong i = begin; i < end; i += VEC) {
            int left = (int)min((ulong)VEC, end - i);
            vec sum = sum_node(partial + (leaf - args.first) * args.n + i, args.n,
                               min(width, args.total - leaf), left);
            store_part(args.accumulate ? load_part(to + i, left) + sum : sum, to + i, left);
        }
    }
}

/* The sum of all lanes, for the first item. */
static inline real sum_reals(real_vec x, local real *items) {
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

KERNEL void sum_squares(global const float *restrict x, global const ulong *restrict table,
                        global real *restrict sum, moert_squares_args args) {
    local real items[MOERT_ITEMS];
    ulong block = args.first_block + get_group_id(0);
    uint tensor = args.first_tensor; /* the last one whose blocks begin at or before this block */
    for (uint above = args.last; above - tensor > 1;) {
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
        UNROLL_FOR(int k = 0; k < BATCH; k++) {
            real_vec value = to_real(part[k]);
            squares += value * value;
        }
    }
    const real total = sum_reals(squares, items);
    if (is_first_item())
        sum[block] = total;
}

KERNEL_OF(GROUPS_PER_ROW)
void join_blocks(global const ulong *restrict table, global const real *restrict block_sum,
                 global real *restrict sum) {
    local real joined[JOINERS];
    ulong tensor = get_group_id(0), end = table[3 * tensor + 5];
    int joiner = row_group_index() * MOERT_ITEMS + item_index();
    real total = 0;
    for (ulong block = table[3 * tensor + 2] + joiner; block < end; block += JOINERS)
        total += block_sum[block];
    joined[joiner] = total;
    for (int left = JOINERS / 2; left > 0; left /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (joiner < left)
            joined[joiner] += joined[joiner + left];
    }
    if (joiner == 0)
        sum[tensor] = joined[0];
}
