/*
 * Sums of squares.
 *
 *   sum_squares   sum[b] = sum of x^2 over block b. Tensor i is [begin, begin + length) of its
 *                 buffer. It owns the blocks from `block` up to that of tensor i + 1. table[i] =
 *                 (begin, length, block). A launch covers the blocks from `first_block` on, of the
 *                 tensors [first_tensor, last) of the buffer x. A block is BLOCK elements, counted
 *                 from its tensor's start, so that a sum does not depend on where the tensor lies.
 *                 x is float32 or, if BF16 is 1, bf16.
 *   sum_blocks   sum[i] = the sum over the blocks of tensor i
 *
 * A row group owns one block (sum_squares); ROW_GROUPS row groups add the blocks of a tensor
 * (sum_blocks). Local memory: one number for each item, up to 2 KiB. Sums are double if the device
 * has float64 (MOERT_FP64).
 *
 * Deterministic: in a block each lane adds its elements in order; then the lanes are added. In the
 * CPU form, lanes and blocks are added in order. In the GPU form each item adds every JOIN_ITEMS-th
 * block of a tensor, and the items' sums are added by halves.
 */
#include "args/nn.h"
#if BF16
#include "lib/formats.h"
#endif

#define BLOCK      4096
#define ROW_GROUPS (MOERT_ITEMS == 1 ? 1 : 8)
#define JOIN_ITEMS (ROW_GROUPS * MOERT_ITEMS)

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

#if BF16
typedef ushort element;
#define load_elements load_bf16_batch
#else
typedef float element;
#define load_elements load_batch
#endif

/* The sum of all lanes; only the first item gets it. */
static inline real sum_reals(real_vec x, local real *items) {
#if MOERT_ITEMS == 1
    real lane[VEC], total = 0;
    vstore16(x, 0, lane);
    IN_ORDER_FOR(int i = 0; i < VEC; i++)
        total += lane[i];
    return total;
#else
    items[item_index()] = (x.x + x.z) + (x.y + x.w);
    barrier(CLK_LOCAL_MEM_FENCE);
    real total = 0;
    if (is_first_item())
        IN_ORDER_FOR(int i = 0; i < MOERT_ITEMS; i++)
            total += items[i];
    return total;
#endif
}

KERNEL void sum_squares(global const element *restrict x, global const ulong *restrict table,
                        global real *restrict sum, moert_squares_args args) {
    local real items[MOERT_ITEMS];
    ulong block = args.first_block + get_group_id(0);
    uint tensor = args.first_tensor; /* the last tensor that begins at or before `block` */
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
        load_elements(part, x + begin + i, (int)(end - i));
        UNROLL_FOR(int k = 0; k < BATCH; k++) {
            real_vec value = to_real(part[k]);
            squares += value * value;
        }
    }
    const real total = sum_reals(squares, items);
    if (is_first_item())
        sum[block] = total;
}

KERNEL_OF(ROW_GROUPS)
void sum_blocks(global const ulong *restrict table, global const real *restrict block_sum,
                global real *restrict sum) {
    local real sums[JOIN_ITEMS];
    ulong tensor = get_group_id(0), end = table[3 * tensor + 5];
    int item = row_group_index() * MOERT_ITEMS + item_index();
    real total = 0;
    IN_ORDER_FOR(ulong block = table[3 * tensor + 2] + item; block < end; block += JOIN_ITEMS)
        total += block_sum[block];
    sums[item] = total;
    for (int left = JOIN_ITEMS / 2; left > 0; left /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < left)
            sums[item] += sums[item + left];
    }
    if (item == 0)
        sum[tensor] = sums[0];
}
