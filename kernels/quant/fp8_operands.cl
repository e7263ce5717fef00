/*
 * Quantizes x[M,N], whose rows form groups, to operands of FP8 GEMMs on tensor cores (fp8.cl):
 * payloads in E4M3, and float32 scales that are powers of two. payload * scale has the values of
 * fake_quantize.cl. x is read once for both results:
 *
 *   along[M,N]       blocks of 128 columns of a row; along_scale[M,N/128]
 *   down[N,q_bytes]  blocks of 128 rows of a group; the payload is transposed, so that a block is
 *                    contiguous. The bytes of group g begin at padded_ends[g-1], a multiple of 16.
 *                    Up to 15 bytes that follow the group's rows are payloads of 0 (NaN in a block
 *                    with a NaN). down_scale[P,N]: a row for each row block
 *   TILES            groups of q_bytes rows, a multiple of 128; blocks of 128 x 128:
 *                    along[M,N], along_scale[M/128,N/128]; down[M/q_bytes,N,q_bytes],
 *                    down_scale[M/q_bytes,N/128,scales]
 *
 *     x of a tile, 128 rows x 128 columns            `turned`, 128 columns x 8 words
 *     row group 0   16 rows, 4 columns an item  -->  word 0 of each column: the 16 bytes of 16 rows
 *     ...                                            ...
 *     row group 7                                    word 7
 *
 * Rows of x lie args.x_stride elements apart, a multiple of 4; N and args.strip are multiples of
 * 128. A work-group of 8 row groups quantizes `strip` columns of one row block of a group.
 * Required: BLOCK 128, ELEMENT, E4M3, ELEMENT_BITS 8, SCALE 0, LARGEST and LARGEST_EXPONENT, as in
 * quantize.cl; X_BF16 (0 x is float32, 1 bf16); ALONG and DOWN (0; 1: there is such a result);
 * ALIGNED; the GPU form. Optional: TILES. Grid of fp8_operands: (row blocks, strips); of
 * pad_ends: (1). Local memory: 21504 bytes. Deterministic.
 */
#if !defined(ALONG) || !defined(DOWN) || !defined(ALIGNED) || MOERT_ITEMS == 1
#error "ALONG, DOWN and ALIGNED must be defined, in the GPU form"
#endif
#include "quant/fp8_rows.h"
#include "quant/held_rows.h"

KERNEL_OF(ROW_GROUPS)
void fp8_operands(global const uint *ends, global const uint *padded_ends, global const void *x,
                  global uint *along, global float *along_scale, global uchar *down,
                  global float *down_scale, moert_quantize_args args) {
    ROW_GROUP_OF(ROW_GROUPS);
    PEAKS;
    local uint4 turned[BLOCK * WORDS];
    task t = {&args, find_part(ends, &args, COLUMN), x, along, along_scale, down_scale, down};
    if (t.p.rows == 0)
        return;
    find_down(&t, ends, padded_ends);
    loaded own[HELD];
    ROLLED for (int c = t.p.first; c < t.p.last; c += VEC) {
        load_rows(&t, own, c);
#ifdef TILES
        round_tile(&t, own, c, row_group[row_group_index()], peaks, turned);
#else
        round_rows(&t, own, c, row_group[row_group_index()], peaks, turned);
#endif
    }
}

/* padded_ends[g] = the sum of the rows of groups 0 to g, each rounded up to a multiple of WORD. */
KERNEL void pad_ends(global const uint *ends, global uint *padded_ends, moert_quantize_args args) {
    local uint rows[MOERT_ITEMS]; /* padded rows of each item's group */
    uint before = 0;
    for (uint first = 0; first < args.groups; first += MOERT_ITEMS) {
        const uint g = first + item_index();
        uint padded = 0;
        if (g < args.groups) {
            const uint start = min(group_start(ends, g), args.rows);
            padded = (group_end(ends, g, start, args.rows) - start + WORD - 1) / WORD * WORD;
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* all items have read the previous values */
        rows[item_index()] = padded;
        barrier(CLK_LOCAL_MEM_FENCE);
        uint sum = before;
        for (int i = 0; i < MOERT_ITEMS; i++) {
            sum += i <= item_index() ? rows[i] : 0;
            before += rows[i];
        }
        if (g < args.groups)
            padded_ends[g] = sum;
    }
}
