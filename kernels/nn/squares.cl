/*
 * Sums of squares.
 *
 *   sum_squares   sum[b] = sum of x^2 over block b. Tensor i is [begin, begin + length) of its
 *                 buffer. Tensor i owns the blocks from `block` up to the first block of the next
 *                 tensor. table[i] = (begin, length, block). A launch covers the blocks from
 *                 `first_block` on, of the tensors [first_tensor, last) of the buffer x. A block is
 *                 BLOCK elements, counted from its tensor's start, so that a sum does not depend on
 *                 where the tensor lies. x is float32 or, if BF16 is 1, bf16.
 *   sum_blocks   sum[i] = the sum over the blocks of tensor i
 *
 * A row group owns one block (sum_squares); ROW_GROUPS row groups add the blocks of a tensor
 * (sum_blocks). Local memory: one number for each item, up to 2 KiB. Sums are double if the device
 * has float64 (MOERT_FP64).
 *
 * Deterministic, with the same bits in both forms: in a block each of SUM_LANES lanes adds its
 * elements in order; then the lanes are added as a tree. Each of JOIN_SUMS sums adds every
 * JOIN_SUMS-th block of a tensor, and these sums are added as a tree.
 */
#include "args/nn.h"
#if BF16
#include "lib/formats.h"
#endif

#define BLOCK      MOERT_SQUARES_CHUNK
#define JOIN_SUMS  256
#define ROW_GROUPS (MOERT_ITEMS == 1 ? 1 : 8)
#define JOIN_ITEMS (ROW_GROUPS * MOERT_ITEMS) /* items that add JOIN_SUMS / JOIN_ITEMS sums each */

#if MOERT_FP64
typedef double real;
typedef double2 real2;
typedef double4 real4;
typedef double8 real8;
typedef double16 real16;
#if MOERT_ITEMS == 1
typedef double16 real_vec;
#define to_real convert_double16
#else
typedef double4 real_vec;
#define to_real convert_double4
#endif
#else
typedef float real;
typedef float2 real2;
typedef float4 real4;
typedef float8 real8;
typedef float16 real16;
typedef vec real_vec;
#define to_real(x) (x)
#endif

#if BF16
typedef ushort element;
#define load_element_part(p, n) decode(load_shorts(p, n), DTYPE_BF16)
#else
typedef float element;
#define load_element_part(p, n) load_part(p, n)
#endif

/* The steps that are loaded at once. */
#define STEPS (MOERT_ITEMS == 1 ? SUM_VECS : BATCH)

static inline void load_steps(vec x[STEPS], global const element *p, int n) {
    UNROLL_FOR(int i = 0; i < STEPS; i++)
        x[i] = MOERT_ITEMS > 1 || n > i * VEC ? load_element_part(p + i * VEC, n - i * VEC)
                                              : (vec)(0.0f);
}

DEFINE_TREE(sum_reals, real, PLUS)

/* The sum of all lanes, as sum_lanes() adds them; only the first item gets it. */
#if MOERT_ITEMS == 1
static inline real sum_parts(const real_vec x[SUM_VECS], local real *items) {
    real item[SUM_LANES / 4];
    UNROLL_FOR(int i = 0; i < SUM_VECS; i++) {
        const real8 pairs = (real8)(x[i].s014589cd) + (real8)(x[i].s2367abef);
        vstore4(pairs.even + pairs.odd, i, item);
    }
    return sum_reals_of_16(vload16(0, item) + vload16(1, item));
}
#else
static inline real sum_parts(const real_vec x[SUM_VECS], local real *items) {
    items[item_index()] = (x[0].x + x[0].z) + (x[0].y + x[0].w);
    barrier(CLK_LOCAL_MEM_FENCE);
    return is_first_item() ? sum_reals_of_16(vload16(0, items) + vload16(1, items)) : 0;
}
#endif

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
    real_vec squares[SUM_VECS];
    UNROLL_FOR(int v = 0; v < SUM_VECS; v++)
        squares[v] = 0;
    for (ulong i = first; i < end; i += STEPS * VEC) {
        vec part[STEPS];
        load_steps(part, x + begin + i, (int)(end - i));
        UNROLL_FOR(int k = 0; k < STEPS; k++) {
            const real_vec value = to_real(part[k]);
            squares[k % SUM_VECS] += value * value;
        }
    }
    const real total = sum_parts(squares, items);
    if (is_first_item())
        sum[block] = total;
}

KERNEL_OF(ROW_GROUPS)
void sum_blocks(global const ulong *restrict table, global const real *restrict block_sum,
                global real *restrict sum) {
    local real sums[JOIN_SUMS];
    const ulong tensor = get_group_id(0), end = table[3 * tensor + 5];
    const int item = row_group_index() * MOERT_ITEMS + item_index();
    for (int own = item; own < JOIN_SUMS; own += JOIN_ITEMS) {
        real total = 0;
        IN_ORDER_FOR(ulong block = table[3 * tensor + 2] + own; block < end; block += JOIN_SUMS)
            total += block_sum[block];
        sums[own] = total;
    }
    for (int left = JOIN_SUMS / 2; left > 0; left /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int own = item; own < left; own += JOIN_ITEMS)
            sums[own] += sums[own + left];
    }
    if (item == 0)
        sum[tensor] = sums[0];
}
