/*
 * The result of a work-group's GEMM, and its tiles of LINES x COLUMNS sums (picture in gemm.cl).
 *
 * Required: LINES by WIDTH, a tile in lines and vectors; PANEL (address space of the panels). A
 * panel is as wide as a tile unless PANEL_WIDTH is defined. With PANEL_WIDTH, a panel has
 * PANEL_WIDTH vectors, a divisor of WIDTH, and a tile reads several panels, which are `height` rows
 * apart.
 */
#include "gemm/dots.h"

#if !defined(PANEL) || !defined(LINES) || !defined(WIDTH)
#error "PANEL, LINES and WIDTH must be defined"
#endif
#ifndef PANEL_WIDTH
#define PANEL_WIDTH WIDTH
#endif
#define COLUMNS (WIDTH * VEC) /* columns of a tile */

/* The part of the result that a work-group computes; `at` is its first element. */
typedef struct target {
    global float *at;
    global const float *bias; /* biases of the target's columns, or null */
    ulong line;
    int lines, columns;
    bool once;              /* whole tiles bypass the cache; addresses are multiples of 64 bytes */
    global ushort *rounded; /* where the sums go as bf16, instead of `at`; or null */
} target;

/* The tile of the target that begins at (line, column). */
static inline target tile_of(target c, int line, int column) {
    const ulong at = line * c.line + column;
    return (target){c.at + at,
                    c.bias != 0 ? c.bias + column : 0,
                    c.line,
                    min(LINES, c.lines - line),
                    min(COLUMNS, c.columns - column),
                    c.once,
                    c.rounded != 0 ? c.rounded + at : 0};
}

/* The sums of a tile. Only constants index this array in tile_vector.h, so that the sums stay in
 * registers. */
typedef vec accumulators[LINES][WIDTH];

/* ---- stores ---- */

#if BF16
/* Writes the first n lanes, rounded to bf16. */
static inline void store_bf16(vec x, global ushort *p, int n, bool past_cache) {
    const ushort16 bits = convert_ushort16(as_uint16(rounded(x)) >> 16);
    ushort lane[VEC];
#if MOERT_CPU && defined(__clang__)
    if (past_cache && n >= VEC) {
        __builtin_nontemporal_store(bits, (global ushort16 *)p);
        return;
    }
#endif
    if (n >= VEC) {
        STORE_VECTOR(global, ushort, 16, bits, p);
        return;
    }
    vstore16(bits, 0, lane);
    for (int i = 0; i < n; i++)
        p[i] = lane[i];
}
#else
#define store_bf16(x, p, n, past_cache) /* results of float operands are not rounded */
#endif

static inline void store_whole(vec x, global float *p, bool past_cache) {
#if MOERT_CPU && defined(__clang__)
    if (past_cache) {
        __builtin_nontemporal_store(x, (global vec *)p);
        return;
    }
#endif
    store_vec(x, p);
}

/* Stores a vector of the target, `at` elements after its first. */
static inline void store_sum(vec x, target c, ulong at) {
    if (BF16 && c.rounded != 0)
        store_bf16(x, c.rounded + at, VEC, c.once);
    else
        store_whole(x, c.at + at, c.once);
}

/* Stores the first n lanes of x where store_sum() stores all lanes. */
static inline void store_sum_part(vec x, target c, ulong at, int n) {
    if (BF16 && c.rounded != 0)
        store_bf16(x, c.rounded + at, n, false);
    else
        store_part(x, c.at + at, n);
}
