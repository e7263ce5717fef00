/*
 * Included after multiply.h by the grouped GEMM kernels for CPUs: loads the values of a weight and
 * packs panels of them.
 *
 * Required: QUANTIZED (0; 1: weights are block-scaled matrices, and the defines of blocks.h are
 * required). Optional: WEIGHT_BF16 (weights that are not block-scaled are bf16, not float32).
 */
#ifndef QUANTIZED
#error "QUANTIZED must be defined"
#endif
#define TRANSPOSE_STEPS UNROLL
#include "lib/transpose.h"
#if QUANTIZED
#include "lib/formats.h"
#include "lib/blocks.h"
#elif defined(WEIGHT_BF16)
#include "lib/elements.h"
#endif

/* ---- the weight ---- */

/*
 * One group's matrix [N,K] of a weight: float32, bf16 (WEIGHT_BF16) or, with QUANTIZED, a part of a
 * block-scaled matrix, which holds [K,N] if `transposed`. Its values are decoded while panels are
 * packed, without the copy that dequantize.cl would make.
 */
#if QUANTIZED
#define WEIGHT_ARGUMENTS global const uchar *w, global const uchar *scale, global const float *whole
typedef struct matrix {
    blocks as;
    uint row, slot; /* the group's first row, and the row block that this row begins */
    float whole;
} matrix;

static inline matrix matrix_of(WEIGHT_ARGUMENTS, int axis, int transposed, ulong g, int n, int k) {
    const int rows = transposed ? k : n, columns = transposed ? n : k;
    const ulong across = (columns + BLOCK - 1) / BLOCK, halves = (columns + 1) / 2;
    const blocks as = {w,
                       scale,
                       ELEMENT_BITS == 4 && axis != COLUMN ? halves : columns,
                       axis == COLUMN ? columns : across,
                       axis,
                       0};
    return (matrix){as, g * rows, g * ((rows + BLOCK - 1) / BLOCK), whole != 0 ? whole[g] : 1.0f};
}

static inline vec load_weight(matrix w, int row, int column, int n) {
    vec x = values_of(load_quantized(
        &w.as, (block_row){w.row + row, w.slot + row / BLOCK, row % BLOCK}, column, n));
    if (SCALE == 1)
        x *= w.whole;
    return n >= VEC ? quiet(x) : first_lanes(quiet(x), n);
}
#else
#ifdef WEIGHT_BF16
typedef ushort weight_element;
#else
typedef float weight_element;
#endif
#define WEIGHT_ARGUMENTS                                                                           \
    global const weight_element *w, global const uchar *scale, global const float *whole
typedef struct matrix {
    global const weight_element *at;
    ulong stride;
} matrix;

static inline matrix matrix_of(WEIGHT_ARGUMENTS, int axis, int transposed, ulong g, int n, int k) {
    return (matrix){w + g * n * k, k};
}

static inline vec load_weight(matrix w, int row, int column, int n) {
    global const weight_element *p = w.at + (ulong)row * w.stride + column;
#ifdef WEIGHT_BF16
    return as_vec(load_shorts(p, n) << 16);
#else
    return load_part(p, n);
#endif
}
#endif

static inline vec load_rounded(matrix w, int row, int column, int n) {
    return rounded(load_weight(w, row, column, n));
}

/* ---- panels ---- */

/* Packs 16 columns c of a panel: panel[p, c] = w[column + c, first + p], for p below `used`,
 * rounded up to whole steps. Reads blocks of 16 x 16. Columns beyond `columns` are zero. */
static inline void pack_columns(matrix w, int column, int first, int columns, int used,
                                PANEL vec *panel) {
    for (int p = 0; p < WHOLE_STEPS(used); p += VEC) {
        vec block[VEC];
        if (used - p >= VEC && columns >= VEC) {
            UNROLL_FOR(int i = 0; i < VEC; i++)
                block[i] = load_weight(w, column + i, first + p, VEC);
        } else {
            vec edge[VEC];
            for (int i = 0; i < VEC; i++)
                edge[i] = i < columns && p < used ? load_weight(w, column + i, first + p, used - p)
                                                  : 0.0f;
            UNROLL_FOR(int i = 0; i < VEC; i++)
                block[i] = edge[i];
        }
        transpose(block);
        UNROLL_FOR(int i = 0; i < VEC; i++)
            block[i] = rounded(block[i]);
        UNROLL_FOR(int i = 0; i < VEC / PER_DOT; i++)
            panel[(p / PER_DOT + i) * WIDTH] = dot_of(block + i * PER_DOT);
    }
}

/* Packs all columns of the panels with pack_columns. */
static inline void pack_transposed(matrix w, int column, int first, int columns, int used,
                                   int height, PANEL vec *panel) {
    for (int c = 0; c < (columns + COLUMNS - 1) / COLUMNS * COLUMNS; c += VEC)
        pack_columns(w, column + c, first, columns - c, used,
                     panel + c / COLUMNS * height * WIDTH + c / VEC % WIDTH);
}

/* panel[p, c] = source[first + p, column + c], for p below `used`, rounded up to whole steps;
 * `load` reads from a matrix of type `type`. */
#define DEFINE_PACK(name, type, load)                                                              \
    static inline vec name##_dot(type source, int row, int column, int columns, int dots) {        \
        vec x[PER_DOT];                                                                            \
        UNROLL_FOR(int i = 0; i < PER_DOT; i++)                                                    \
            x[i] = i < dots ? load(source, row + i, column, columns) : 0.0f;                       \
        return dot_of(x);                                                                          \
    }                                                                                              \
    static inline void name(type source, int first, int column, int columns, int used, int height, \
                            PANEL vec *panel) {                                                    \
        for (int p = 0; p < WHOLE_STEPS(used); p += PER_DOT, panel += WIDTH) {                     \
            PANEL vec *to = panel;                                                                 \
            for (int c = 0; c < columns; c += COLUMNS, to += height * WIDTH)                       \
                UNROLL_FOR(int v = 0; v < WIDTH; v++) {                                            \
                    const int at = c + v * VEC, left = columns - at;                               \
                    to[v] = left > 0 ? name##_dot(source, first + p, column + at, left, used - p)  \
                                     : 0.0f;                                                       \
                }                                                                                  \
        }                                                                                          \
    }

DEFINE_PACK(pack_straight, matrix, load_rounded)

/* Packs the panels of forward: columns of the result are rows of the weight, and dots run along its
 * columns. */
static inline void prepack_forward(matrix w, int transposed, int column, int first, int columns,
                                   int used, int height, PANEL vec *panel) {
#if QUANTIZED
    if (transposed) {
        pack_straight(w, first, column, columns, used, height, panel);
        return;
    }
#endif
    pack_transposed(w, column, first, columns, used, height, panel);
}

/* Packs the panels of dgrad: columns of the result are columns of the weight. */
static inline void prepack_dgrad(matrix w, int transposed, int column, int first, int columns,
                                 int used, int height, PANEL vec *panel) {
#if QUANTIZED
    if (transposed) {
        pack_transposed(w, column, first, columns, used, height, panel);
        return;
    }
#endif
    pack_straight(w, first, column, columns, used, height, panel);
}
