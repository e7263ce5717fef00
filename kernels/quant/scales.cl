/*
 * Scale matrices to and from tiles of 128 x 4 bytes, and runs of gate and up columns
 * (moert/quantize.h).
 *
 *   byte of (r, c) = ((r/128) * ceil(C/4) + c/4) * 512 + (r%32) * 16 + (r%128)/32 * 4 + c%4
 *
 * So 16 consecutive bytes of a tile are rows r, r+32, r+64, r+96 of 4 columns. A row group moves
 * one tile. Groups follow one another along the rows; with `transposed`, where lines are columns,
 * along the columns. Each group begins a new tile. With `whole`, all `rows` lines are one matrix.
 * The other kernels prepare quantized operands (src/quant/scales.h):
 *
 *   block_ends    to[g] = min(blocks of groups 0 to g, most)
 *   fold_globals  to[g] = alpha[g] * (first[g * first_stride] * second[g * second_stride]); a null
 *                 pointer means 1
 *   transpose_*   to[g][c][r] = from[g][r][c]
 *   interleave    rows of `width` gates, then `width` ups, to runs of `granularity` gates and ups
 *                 in turn, or the inverse
 *
 * Grids: swizzle, unswizzle: (tiles along the groups, tiles across); interleave: (rows);
 * block_ends, fold_globals: (1); transpose_*: (blocks of 16 rows, groups). Required: nothing. No
 * local memory. Deterministic.
 */
#include "args/quant.h"
#include "lib/formats.h"

#define ROWS       MOERT_TILE_ROWS
#define COLUMNS    MOERT_TILE_SCALES
#define TILE_BYTES MOERT_TILE_BYTES

/* A tile: lines [start, start + lines) of its group, its first row r and column c in the group's
 * matrix, and its offset `base`. `lines` is 0 past the last group, and also from the first group on
 * whose tiles exceed a->tiles. */
typedef struct tile {
    uint start, lines, r, c;
    ulong base;
} tile;

static inline tile find_tile(global const uint *ends, const moert_scales_args *a) {
    const uint unit = a->transposed ? COLUMNS : ROWS, wide = a->transposed ? ROWS : COLUMNS,
               across = (a->width + wide - 1) / wide;
    uint slot = get_group_id(0), start = 0, before = 0;
    for (uint g = a->whole ? a->groups - 1 : 0; g < a->groups; g++) {
        const uint end = group_end(ends, g, start, a->rows),
                   lines = a->whole ? a->rows : end - start;
        const uint own = (lines + unit - 1) / unit;
        if (before + own > a->tiles)
            break;
        if (slot < own) {
            if (slot * unit >= end - start)
                break;
            const ulong at = a->transposed ? (ulong)get_group_id(1) * own + slot
                                           : (ulong)slot * across + get_group_id(1);
            return (tile){start, end - start, a->transposed ? get_group_id(1) * ROWS : slot * ROWS,
                          a->transposed ? slot * COLUMNS : get_group_id(1) * COLUMNS,
                          ((ulong)before * across + at) * TILE_BYTES};
        }
        slot -= own;
        before += own;
        start = end;
    }
    return (tile){0, 0, 0, 0, 0};
}

/* The offset in `linear` of byte i of a tile, or -1 outside the matrix. */
static inline long linear_at(tile t, uint width, int transposed, uint i) {
    const uint r = t.r + i / 16 + i % 16 / 4 * 32, c = t.c + i % 4;
    const uint line = transposed ? c : r, column = transposed ? r : c;
    return line < t.lines && column < width ? (long)(t.start + line) * width + column : -1;
}

/* Copies this row group's tile to `swizzled` (`forward`), with zeros outside the matrix, or
 * back. */
INLINED void move_tile(global const uint *ends, global uchar *linear, global uchar *swizzled,
                       moert_scales_args args, bool forward) {
    const tile t = find_tile(ends, &args);
    if (t.lines == 0)
        return;
    for (uint i = get_local_id(0); i < TILE_BYTES; i += MOERT_ITEMS) {
        const long at = linear_at(t, args.width, args.transposed, i);
        if (forward)
            swizzled[t.base + i] = at >= 0 ? linear[at] : 0;
        else if (at >= 0)
            linear[at] = swizzled[t.base + i];
    }
}

KERNEL void swizzle(global const uint *ends, global uchar *linear, global uchar *swizzled,
                    moert_scales_args args) {
    move_tile(ends, linear, swizzled, args, true);
}

KERNEL void unswizzle(global const uint *ends, global uchar *linear, global uchar *swizzled,
                      moert_scales_args args) {
    move_tile(ends, linear, swizzled, args, false);
}

KERNEL void block_ends(global const uint *ends, global uint *to, moert_scales_args args) {
    uint start = 0, blocks = 0;
    for (uint g = 0; g < args.groups; g++) {
        const uint end = group_end(ends, g, start, args.rows);
        blocks = min(blocks + (end - start + args.block - 1) / args.block, args.most);
        if (is_first_item())
            to[g] = blocks;
        start = end;
    }
}

KERNEL void fold_globals(global const float *alpha, global const float *first,
                         global const float *second, global float *to, moert_scales_args args) {
    for (uint g = get_local_id(0); g < args.groups; g += MOERT_ITEMS) {
        const float a = first != 0 ? first[g * args.first_stride] : 1.0f,
                    b = second != 0 ? second[g * args.second_stride] : 1.0f;
        to[g] = (alpha != 0 ? alpha[g] : 1.0f) * (a * b);
    }
}

#define TRANSPOSE(name, type)                                                                      \
    KERNEL void name(global const type *from, uint rows, uint columns, global type *to) {          \
        const ulong base = (ulong)get_group_id(1) * rows * columns;                                \
        const uint first = get_group_id(0) * 16, last = min(rows, first + 16);                     \
        for (uint c = get_local_id(0); c < columns; c += MOERT_ITEMS)                              \
            for (uint r = first; r < last; r++)                                                    \
                to[base + (ulong)c * rows + r] = from[base + (ulong)r * columns + c];              \
    }
TRANSPOSE(transpose_bytes, uchar)
TRANSPOSE(transpose_halves, ushort)
TRANSPOSE(transpose_words, uint)

KERNEL void interleave(global const uchar *from, global uchar *to, moert_interleave_args args) {
    const ulong row = get_group_id(0) * 2 * args.width * args.element_bytes,
                bytes = args.granularity * args.element_bytes;
    for (ulong run = 0; run < 2 * args.width / args.granularity; run++) {
        const ulong mixed = row + run * bytes;
        const ulong plain =
            row + (run % 2 * args.width + run / 2 * args.granularity) * args.element_bytes;
        global const uchar *source = from + (args.inverse ? mixed : plain);
        global uchar *target = to + (args.inverse ? plain : mixed);
        for (ulong i = get_local_id(0); i < bytes; i += MOERT_ITEMS)
            target[i] = source[i];
    }
}
