/*
 * Included after panels.h: tiles of a forward GEMM whose epilogue applies a GLU (glu.h) in
 * registers: v = x w^T + b, h = prob glu(v).
 *
 * The vectors of a panel's row, and so of a tile, alternate: 16 gates, their ups, the next 16
 * gates, their ups. Interleaved weights keep the order of v: a vector has 8 gates and their ups.
 * With either order of v, two vectors give 16 columns of h. Between two blocks of the reduction, v
 * holds the partial sums. Otherwise v is written only if the caller keeps it.
 */
#include "gemm/glu.h"

#if WIDTH % 2 == 0 /* a tile needs pairs of vectors */

#define PAIRS      (WIDTH / 2) /* pairs of vectors in a tile */
#define PAIR_WIDTH (PAIRS * VEC)

/* The results from the work-group's first row on, and the part that the work-group computes. */
typedef struct gated {
    global float *v;
    global void *h;
    int quantized;                   /* h is bf16; only with BF16 */
    global const float *bias, *prob; /* bias of the group, prob of the first row; or null */
    ulong prob_stride;
    int lines, first, columns,
        width; /* columns [first, first + columns) of the `width` columns of h */
    glu_form form;
    bool fresh, last; /* whether this block of K is the first, or the last */
    bool keep;        /* v is an output */
    bool once;        /* v is written past the caches, unless it holds sums between blocks */
} gated;

static inline gated gated_target(span rows, int first, int columns, global float *v, global void *h,
                                 global const float *bias, uint g, global const float *prob,
                                 moert_gemm_args args) {
    const ulong width = args.width, at = rows.first * width;
    return (gated){.v = v + 2 * at,
                   .h = args.quantized ? (global void *)((global ushort *)h + at)
                                       : (global void *)((global float *)h + at),
                   .quantized = args.quantized,
                   .bias = bias != 0 ? bias + g * 2 * width : 0,
                   .prob = prob != 0 ? prob + rows.first * args.prob_stride : 0,
                   .prob_stride = args.prob_stride,
                   .lines = rows.count,
                   .first = first,
                   .columns = columns,
                   .width = args.width,
                   .form = {args.interleaved, args.limit, args.alpha, args.offset, args.activation},
                   .keep = args.keep,
                   .once = args.once && ((ulong)v | width * sizeof(float)) % 64 == 0};
}

/* The first column in v, and the number of columns, of vector i of the tile whose first column of h
 * is j. */
static inline span gated_part(int j, int i, int width, int interleaved) {
    const int pair = j + i / 2 * VEC, odd = i % 2, left = width - pair;
    if (interleaved)
        return (span){2 * pair + odd * VEC, min(VEC, 2 * left - odd * VEC)};
    return (span){pair + odd * width, min(VEC, left)};
}

/* pack_transposed for the columns [first, first + columns) of h; `first_k` is the first value of
 * the reduction. */
static inline void pack_gated(matrix w, int first, int columns, int width, int interleaved,
                              int first_k, int used, int height, PANEL vec *panel) {
    for (int j = 0; j < columns; j += PAIR_WIDTH, panel += height * WIDTH)
        for (int i = 0; i < WIDTH; i++) {
            const span part = gated_part(first + j, i, width, interleaved);
            pack_columns(w, part.first, first_k, part.count, used, panel + i);
        }
}

static inline bool gated_whole(const gated *c, int line, int j) {
    return c->lines - line >= LINES && c->width - j >= PAIR_WIDTH;
}

static inline global float *gated_at(const gated *c, int line, span part) {
    return c->v + line * 2ul * c->width + part.first;
}

static inline void begin_gated(accumulators acc, const gated *c, int line, int j) {
    accumulators old;
    if (c->fresh || gated_whole(c, line, j)) {
        UNROLL_FOR(int i = 0; i < WIDTH; i++) {
            const span part = gated_part(j, i, c->width, c->form.interleaved);
            UNROLL_FOR(int r = 0; r < LINES; r++)
                acc[r][i] = c->fresh ? 0.0f : vload16(0, gated_at(c, line + r, part));
        }
        return;
    }
    for (int i = 0; i < WIDTH; i++) {
        const span part = gated_part(j, i, c->width, c->form.interleaved);
        for (int r = 0; r < min(LINES, c->lines - line) && part.count > 0; r++)
            old[r][i] = load_part(gated_at(c, line + r, part), part.count);
    }
    UNROLL_FOR(int r = 0; r < LINES; r++)
        UNROLL_FOR(int i = 0; i < WIDTH; i++)
            acc[r][i] = old[r][i];
}

/* Writes n columns of h from element `at` on. */
static inline void store_h(vec x, const gated *c, ulong at, int n) {
#if BF16
    if (c->quantized) {
        store_bf16(x, (global ushort *)c->h + at, n, false);
        return;
    }
#endif
    store_part(x, (global float *)c->h + at, n);
}

static inline void end_gated(accumulators acc, const gated *c, int line, int j) {
    const int lines = min(LINES, c->lines - line);
    accumulators x;
    if (!c->last && gated_whole(c, line, j)) {
        UNROLL_FOR(int i = 0; i < WIDTH; i++) {
            const span part = gated_part(j, i, c->width, c->form.interleaved);
            UNROLL_FOR(int r = 0; r < LINES; r++)
                store_vec(acc[r][i], gated_at(c, line + r, part));
        }
        return;
    }
    UNROLL_FOR(int r = 0; r < LINES; r++)
        UNROLL_FOR(int i = 0; i < WIDTH; i++)
            x[r][i] = acc[r][i];
    for (int i = 0; i < WIDTH; i++) {
        const span part = gated_part(j, i, c->width, c->form.interleaved);
        if (part.count <= 0)
            continue;
        if (c->last && c->bias != 0) {
            const vec bias = load_part(c->bias + part.first, part.count);
            for (int r = 0; r < lines; r++)
                x[r][i] += bias;
        }
        for (int r = 0; r < lines && (c->keep || !c->last); r++)
            if (part.count >= VEC)
                store_whole(x[r][i], gated_at(c, line + r, part), c->once && c->fresh && c->last);
            else
                store_part(x[r][i], gated_at(c, line + r, part), part.count);
    }
    for (int i = 0; i < PAIRS && c->last; i++) {
        const int column = j + i * VEC, count = c->width - column;
        for (int r = 0; r < lines && count > 0; r++) {
            const vec prob = c->prob != 0 ? c->prob[(line + r) * c->prob_stride] : 1.0f;
            const pair part = gate_and_up(x[r][2 * i], x[r][2 * i + 1], c->form.interleaved);
            store_h(glu_of(part, prob, c->form), c, (line + r) * (ulong)c->width + column, count);
        }
    }
}

/* Does what multiply() does, with a GLU in the epilogue. */
static inline void multiply_gated(global const value *a, ulong lda, local element *transposed,
                                  PANEL const vec *panel, int used, int height, const gated *c,
                                  prefetch_plan next_panels) {
    const int dots = (used + PER_DOT - 1) / PER_DOT;
    next_panels = prefetch_during(often(next_panels), c->lines, c->columns, PAIR_WIDTH, dots);
    begin_tiles();
    for (int i = 0; i < c->lines; i += LINES) {
        LINE line[LINES];
        find_lines(a + i * lda, lda, c->lines - i, used, transposed, line);
        prefetch_plan next_lines = prefetch_lines(a + i * lda, lda, c->lines - i, used, c->columns,
                                                  PAIR_WIDTH, next_panels.every);
        PANEL const vec *row = panel;
        for (int j = c->first; j < c->first + c->columns; j += PAIR_WIDTH, row += height * WIDTH) {
            accumulators acc;
            begin_gated(acc, c, i, j);
            add_dots(acc, line, c->lines - i, row, height, dots, &next_panels, &next_lines);
            end_gated(acc, c, i, j);
        }
    }
    end_tiles();
}
#endif
