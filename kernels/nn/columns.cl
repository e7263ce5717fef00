/*
 * Copies and sums a block of columns from one matrix to another; both have rows of any stride.
 *
 *   columns_copy  to[r,c] = from[r / repeat,c]
 *   columns_sum   to[r,c] = sum over i < repeat, ascending, of from[r * repeat + i,c]
 *
 * The formulas hold for r < rows and c < columns. columns_sum computes the gradient of
 * columns_copy; with repeat 1 both do the same. A row group owns `block` rows of `to`. With
 * ALIGNED, columns, strides and both first columns are multiples of 4. `to` is bf16 if ROUNDED is
 * 1, else float32. Required: ROUNDED (0, 1). No local memory. Deterministic.
 */
#include "args/nn.h"
#include "lib/formats.h"
#ifndef ROUNDED
#error "ROUNDED must be defined"
#endif

#if ROUNDED
typedef ushort element;
#define store_elements(x, p, n) store_shorts(encode(x, DTYPE_BF16), p, n)
#else
typedef float element;
#define store_elements(x, p, n) store_part(x, p, n)
#endif

static inline void copy_rows(global const float *from, global element *to, ulong first, int count,
                             moert_columns_args args) {
    for (int c = 0; c < args.columns; c += VEC) {
        vec part[BATCH];
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            part[k] = load_part(from + (first + k) / args.repeat * args.from_stride + c,
                                k < count ? args.columns - c : 0);
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            store_elements(part[k], to + (first + k) * args.to_stride + c,
                           k < count ? args.columns - c : 0);
    }
}

static inline void sum_rows(global const float *from, global element *to, moert_columns_args args) {
    for (int c = 0; c < args.columns; c += VEC) {
        const int n = args.columns - c;
        vec sum = 0.0f;
        for (ulong i = 0; i < args.repeat; i += BATCH) {
            vec part[BATCH];
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                part[k] =
                    load_part(from + (i + k) * args.from_stride + c, i + k < args.repeat ? n : 0);
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                sum += part[k];
        }
        store_elements(sum, to + c, n);
    }
}

KERNEL void columns_copy(global const float *from, global element *to, moert_columns_args args) {
    const ulong first = get_group_id(0) * args.block, end = min(first + args.block, args.rows);
    for (ulong r = first; r < end; r += BATCH)
        copy_rows(from + args.from_column, to + args.to_column, r, (int)min(end - r, (ulong)BATCH),
                  args);
}

KERNEL void columns_sum(global const float *from, global element *to, moert_columns_args args) {
    const ulong first = get_group_id(0) * args.block, end = min(first + args.block, args.rows);
    for (ulong r = first; r < end; r++)
        sum_rows(from + args.from_column + r * args.repeat * args.from_stride,
                 to + args.to_column + r * args.to_stride, args);
}
