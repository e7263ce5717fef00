/*
 * Grouped GEMM by packed weights: as gemm_forward and gemm_dgrad of gemm.cl, bit for bit, by a second factor whose
 * panels lie in global memory, ready for every product of a step.
 *
 *   packing for   line of the weight   panels                              a term
 *   forward       n                    panel[g, n / 32, k, n % 32]         w[g,n,k], with BF16 k and k + 1
 *   dgrad         k                    panel[g, k / 32, n, k % 32]         w[g,n,k], with BF16 n and n + 1
 *
 * A panel has `height` rows of 128 bytes, the terms of the reduction rounded up to 16 numbers; columns past the end
 * are zero. Shapes, strides and the shared weight are as in gemm.cl.
 *
 * Grid of the product: (line splits, groups, column blocks). Local memory: with BF16 (depth + 16) * 32 bytes, else 4.
 * Deterministic.
 * Required: BF16 and DOT, as in gemm.h; CODED, as in panels.h: with 1 there are the packers alone.
 */
#define PANEL global
#include "gemm.h"
#include "panels.h"

/* w[G,N,K]. Grid: (blocks of `panels` panels, groups). */
KERNEL void gemm_pack_forward(WEIGHT_ARGUMENTS, global vec *panel, int n, int k, int height, int panels)
{
    const int column = get_group_id(0) * panels * COLUMNS, columns = min(panels * COLUMNS, n - column);
    const ulong blocks = (n + COLUMNS - 1) / COLUMNS, g = get_group_id(1);
    panel += (g * blocks + column / COLUMNS) * height * WIDTH;
    pack_forward(matrix_of(w, scale, whole, axis, flipped, g, n, k), flipped, column, 0, columns, k, height, panel);
}

KERNEL void gemm_pack_dgrad(WEIGHT_ARGUMENTS, global vec *panel, int n, int k, int height, int panels)
{
    const int column = get_group_id(0) * panels * COLUMNS, columns = min(panels * COLUMNS, k - column);
    const ulong blocks = (k + COLUMNS - 1) / COLUMNS, g = get_group_id(1);
    panel += (g * blocks + column / COLUMNS) * height * WIDTH;
    pack_dgrad(matrix_of(w, scale, whole, axis, flipped, g, n, k), flipped, column, 0, columns, n, height, panel);
}

#if !CODED
/* c[m, :] = sum_p a[m,p] panel[g, :, p] + bias: `columns` of c at stride ldc, `terms` numbers of a at stride lda. */
KERNEL void gemm_packed(global const uint *ends, uint start, uint shared, uint rows, global const code *a, ulong lda,
                        ulong a_column, global const vec *panel, global const float *bias, global float *c, ulong ldc,
                        ulong c_column, int width, int reduction, int accumulate, int height, int panels, int depth,
                        uint split, local element *turned)
{
    const uint g = start + get_group_id(1);
    const span part = group_part(ends, g, shared, rows, get_group_id(0), split);
    const int column = get_group_id(2) * panels * COLUMNS, columns = min(panels * COLUMNS, width - column);
    const ulong blocks = (width + COLUMNS - 1) / COLUMNS;
    if (part.count == 0)
        return;
    panel += (get_group_id(1) * blocks + column / COLUMNS) * height * WIDTH;
    a += part.first * lda + a_column;
    c += part.first * ldc + c_column + column;
    for (int p = 0; p < reduction; p += depth * PER_TERM, panel += depth * WIDTH) {
        const int used = min(depth * PER_TERM, reduction - p);
        const bool last = p + used == reduction && bias != 0;
        const target result = {c, last ? bias + (ulong)g * width + column : 0, ldc, part.count, columns, false};
        multiply(a + p, lda, turned, panel, used, height, depth, result, p == 0 && !accumulate);
    }
}
#endif
