/*
 * Cross-entropy over a vocabulary.
 *
 *   m = max_v logits[t,v]      s = sum_v exp(logits[t,v] - m)
 *   loss[t] = log(s) - (logits[t,target[t]] - m)
 *   logits[t,v] <- (exp(logits[t,v] - m) / s - [v = target[t]]) * factor      unless factor is 0
 *
 * If BF16 is 1, the gradient is bf16 and fills the first half of its row: rows of 2 V values, of
 * which the first V are the gradient. A store never overwrites a logit that is still to be read.
 *
 * Shapes: logits[T,V] float, target int32 [T], loss[T]. Target -1: loss 0, gradient 0. A target of
 * V or more gives a loss of NaN, and so does any logit that is not finite, except -infinity.
 *
 * GPU form: GROUPS_PER_ROW row groups own a row, which they read in tiles of TILE_FLOATS. The first
 * pass goes backwards, from the end of the row:
 *
 *   tiles   0 .. NEAR - 1 | NEAR ..             | the last HELD
 *           kept in L1    | kept in L2          | kept in registers
 *
 * On sm_80 and later, loads carry hints that keep these tiles in L1 or in L2. The second pass reads
 * the tiles that are not in registers, from 0 on, and marks them for early eviction, which leaves
 * room for other rows. In the first pass a work-item rescales its sum whenever it finds a larger
 * logit (Milakov, Gimelshein: "Online normalizer calculation for softmax", 2018).
 *
 * CPU form: a work-item owns a row. It sums the row's values in the order of the GPU form: a
 * vector holds the partial sums of four work-items of that form.
 *
 * Required: BF16 (0, 1). Local memory on GPUs: 2112 bytes. Deterministic: a row's result depends
 * on that row only, and the order of its sums on V only.
 */
#include "args/nn.h"
#include "lib/row_groups.h"
#include "nn/logits.h"

#define HELD  4 /* tiles that stay in registers */
#define NEAR  6 /* tiles that fit in the L1 cache of a compute unit */
#define TILES 2 /* tiles that are loaded at once */

#if MOERT_ITEMS == 1
/* A tile of the GPU form: each of its ROW_GROUPS row groups owns BATCHES neighbouring runs of RUN
 * columns, and in each run an item owns 4 columns. */
#define ROW_GROUPS  16
#define BATCHES     4
#define RUN         128
#define GROUP_VECS  (RUN / VEC)
#define TILE_VECS   (ROW_GROUPS * GROUP_VECS)
#define TILE_FLOATS (ROW_GROUPS * BATCHES * RUN)

/* The column in a tile where vector q of the items begins; the column grows with q. */
static inline int first_column(int q) {
    return q / GROUP_VECS * BATCHES * RUN + q % GROUP_VECS * VEC;
}

/* The largest logit so far of each item, in all of its lanes, and its sums of exp(logit -
 * largest). */
typedef struct scan {
    vec most, lanes;
} scan;

static inline vec larger(vec x, vec than) {
    return x > than ? x : than; /* a NaN is never larger */
}

/* Adds the columns that one vector of items owns in `runs` runs; n columns in the last run. */
INLINED void scan_runs(scan *s, global const float *p, int runs, int n) {
    vec x[BATCHES], peak = s->most, all = s->lanes;
    UNROLL_FOR(int k = 0; k < runs; k++) {
        x[k] = k < runs - 1 ? load_part(p + k * RUN, VEC) : load_logits(p + k * RUN, n);
        peak = larger(x[k], peak);
    }
    peak = larger(peak.s23016745ab89efcd, peak);
    peak = larger(peak.s1032547698badcfe, peak);
    if (any(peak != s->most && s->most > -INFINITY)) /* otherwise no sum would change */
        all *= exponentials(s->most, peak);
    UNROLL_FOR(int k = 0; k < runs; k++)
        all += exponentials(x[k], peak);
    *s = (scan){peak, all};
}

/* Adds the columns that one vector of items owns in a tile; n columns are left from p on. */
static inline void scan_vector(scan *s, global const float *p, long n) {
    const int last = (int)min((n - 1) / RUN, (long)BATCHES - 1),
              left = (int)min(n - last * RUN, 16l);
    if (last == 3)
        scan_runs(s, p, 4, left);
    else if (last == 2)
        scan_runs(s, p, 3, left);
    else if (last == 1)
        scan_runs(s, p, 2, left);
    else
        scan_runs(s, p, 1, left);
}

/* The sum of exp(logit - *most) over a row; *most becomes the largest logit. */
static inline float row_sum_of(global const float *row, ulong vocabulary, float *most) {
    const long width = (long)vocabulary;
    scan found[TILE_VECS];
    int used = 0;
    for (; used < TILE_VECS && first_column(used) < width; used++)
        found[used] = (scan){(vec)(-INFINITY), (vec)(0.0f)};
    for (long first = (width - 1) / TILE_FLOATS * TILE_FLOATS; first >= 0; first -= TILE_FLOATS)
        for (int q = 0; q < used && first + first_column(q) < width; q++)
            scan_vector(&found[q], row + first + first_column(q), width - first - first_column(q));
    vec peak = (vec)(-INFINITY);
    for (int q = 0; q < used; q++)
        peak = fmax(peak, found[q].most);
    *most = max_lanes(peak, 0);
    float sum = 0.0f;
    IN_ORDER_FOR(int group = 0; group < used; group += GROUP_VECS) {
        float own[2 * VEC] = {0.0f}; /* sums of the row group's items */
        for (int i = 0; i < GROUP_VECS && group + i < used; i++) {
            const scan *s = &found[group + i];
            const vec e = exponentials(s->most, (vec)(*most)), x = s->lanes;
            vstore4((x.s048c + x.s159d + x.s26ae + x.s37bf) * e.s048c, i, own);
        }
        sum += sum_vec(vload16(0, own) + vload16(1, own), 0);
    }
    return sum;
}

/* Returns the loss; stores the gradient unless factor is 0. */
static inline float row_loss(global float *row, ulong vocabulary, ulong target, float factor,
                             local float *row_group, local float *of_groups) {
    const float chosen = target < vocabulary ? row[target] : NAN;
    float most, sum = row_sum_of(row, vocabulary, &most);
    const float scale = factor / sum;
    for (ulong v = 0; v < vocabulary && factor != 0.0f; v += VEC) {
        const int n = (int)min((ulong)VEC, vocabulary - v);
        vec p = exponentials(load_logits(row + v, n), (vec)(most)) * scale;
        if (target - v < VEC)
            p = select(p, p - factor, lane_places() == (ivec)((int)(target - v)));
        store_gradient(p, row, v, n);
    }
    return moert_logf(sum) - (chosen - most);
}
#else
#define TILE_FLOATS (GROUPS_PER_ROW * BATCH * VEC)

/* Loads the logits of tiles from number `first` on; lanes outside [0, vocabulary) are -infinity. */
static inline void load_tiles(int tiles, vec (*x)[BATCH], global const float *row, long first,
                              long vocabulary, int use) {
    UNROLL_FOR(int i = 0; i < tiles; i++)
        UNROLL_FOR(int k = 0; k < BATCH; k++) {
            const long v = (first + i) * TILE_FLOATS + (row_group_index() * BATCH + k) * VEC;
            const int n = first + i >= 0 ? (int)clamp(vocabulary - v, 0l, (long)VEC) : 0;
#ifdef HAS_LAST_USE
            x[i][k] = load_for(use, row + v + part_start(), part_start() < n, -INFINITY);
#else
            x[i][k] = load_logits(row + v, n);
#endif
        }
}

/* An item's largest logit so far, and its sums of exp(logit - largest). */
typedef struct scan {
    float most;
    vec lanes;
} scan;

/* Adds tiles to a scan, the last one first. */
static inline void scan_tiles(int tiles, scan *s, vec (*x)[BATCH]) {
    UNROLL_FOR(int i = tiles - 1; i >= 0; i--) {
        vec peak = s->most;
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            peak = fmax(peak, x[i][k]);
        const float larger = fmax(fmax(peak.x, peak.y), fmax(peak.z, peak.w));
        s->lanes *= exponentials(s->most, larger);
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            s->lanes += exponentials(x[i][k], larger);
        s->most = larger;
    }
}

/* The gradient of a row: scale * exp(logit - most), minus `factor` at the target. */
typedef struct row_slope {
    float most, scale, factor;
    ulong target;
} row_slope;

/* Stores the gradient of tiles from number `first` on, up to column `end`. */
static inline void store_tiles(int tiles, vec (*x)[BATCH], global float *row, long first, long end,
                               const row_slope *s) {
    UNROLL_FOR(int i = 0; i < tiles; i++) {
        const long v = (first + i) * TILE_FLOATS + row_group_index() * BATCH * VEC;
        const int n = first + i >= 0 ? (int)clamp(end - v, 0l, (long)BATCH * VEC) : 0;
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            x[i][k] = exponentials(x[i][k], s->most) * s->scale;
        if (s->target - (ulong)v < BATCH * VEC) {
            UNROLL_FOR(int k = 0; k < BATCH; k++)
                x[i][k] -= lane_places() == (ivec)((int)(s->target - (ulong)v) - k * VEC)
                               ? s->factor
                               : 0.0f;
        }
        UNROLL_FOR(int k = 0; k < BATCH; k++)
            store_gradient(x[i][k], row, v + k * VEC, n - k * VEC);
    }
}

static inline float row_loss(global float *row, ulong vocabulary, ulong target, float factor,
                             local float *row_group, local float *of_groups) {
    const float chosen = target < vocabulary ? row[target] : NAN;
    const long width = (long)vocabulary, tiles = (width + TILE_FLOATS - 1) / TILE_FLOATS,
               streamed = tiles - HELD;
    vec x[TILES][BATCH];
    scan found = {-INFINITY, 0.0f};
    vec held[HELD][BATCH];
    load_tiles(HELD, held, row, streamed, width, LAST_USE);
    scan_tiles(HELD, &found, held);
    for (long first = streamed - TILES; first > -TILES; first -= TILES) {
        if (first >= NEAR && factor != 0.0f)
            load_tiles(TILES, x, row, first, width, KEEP_FAR);
        else
            load_tiles(TILES, x, row, first, width, KEEP_NEAR);
        scan_tiles(TILES, &found, x);
    }
    const float most =
        reduce_row_groups(max_lanes(found.most, row_group), true, GROUPS_PER_ROW, of_groups);
    const float own = (found.lanes.x + found.lanes.y + found.lanes.z + found.lanes.w) *
                      exponentials(found.most, most).x;
    const float sum = reduce_row_groups(sum_vec((vec)(own, 0.0f, 0.0f, 0.0f), row_group), false,
                                        GROUPS_PER_ROW, of_groups);
    const row_slope s = {most, factor / sum, factor, target};
    if (factor == 0.0f)
        return moert_logf(sum) - (chosen - most);
    barrier(CLK_GLOBAL_MEM_FENCE); /* all items have read the target's logit */
    for (long first = 0; first < streamed; first += TILES) {
        const long end = min(streamed * TILE_FLOATS, width);
        load_tiles(TILES, x, row, first, end, LAST_USE);
        if (BF16)
            barrier(CLK_GLOBAL_MEM_FENCE); /* all items have read the logits that bf16 overwrites */
        store_tiles(TILES, x, row, first, end, &s);
    }
    store_tiles(HELD, held, row, streamed, width, &s);
    return moert_logf(sum) - (chosen - most);
}
#endif

KERNEL_OF(GROUPS_PER_ROW)
void cross_entropy(global const int *restrict targets, global float *restrict logits,
                   global float *restrict loss, moert_loss_args args) {
    ROW_GROUP_OF(GROUPS_PER_ROW);
    local float of_groups[GROUPS_PER_ROW];
    ulong t = get_group_id(0);
    global float *row = logits + t * args.vocabulary;
    int target = targets[t];
    float value = 0.0f;
    if (target >= 0)
        value = row_loss(row, args.vocabulary, (ulong)target, args.factor,
                         row_group[row_group_index()], of_groups);
    else if (args.factor != 0.0f)
        row_zero(row, args.vocabulary);
    if (is_first_item() && row_group_index() == 0)
        loss[t] = value;
}
