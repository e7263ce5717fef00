/*
 * Included by fake_quantize.cl in the CPU form: rounds rows in blocks along them. The scales of 16
 * rows are computed at once, one in each lane.
 */

/* LOW_n: of every 2 n lanes, the first n of a, then those of b. HIGH_n: the last n of both. */
#define LOW_1(a, b)                                                                                \
    __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define HIGH_1(a, b)                                                                               \
    __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#define LOW_2(a, b)                                                                                \
    __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH_2(a, b)                                                                               \
    __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define LOW_4(a, b)                                                                                \
    __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define HIGH_4(a, b)                                                                               \
    __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define LOW_8(a, b)                                                                                \
    __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define HIGH_8(a, b)                                                                               \
    __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#define HALVE(v, count, n)                                                                         \
    UNROLL_FOR(int i = 0; i < count; i++)                                                          \
    v[i] = max(LOW_##n(v[2 * i], v[2 * i + 1]), HIGH_##n(v[2 * i], v[2 * i + 1]))

/* Lane r of the result is the largest lane of v[r]. v is overwritten. */
static inline uvec largest_lanes(uvec v[VEC]) {
    HALVE(v, 8, 1);
    HALVE(v, 4, 2);
    HALVE(v, 2, 4);
    HALVE(v, 1, 8);
    return v[0];
}

/* Loads WIDE vectors of a row, of whose elements n exist. */
static inline void load_wide(const task *t, vec x[WIDE], uint row, int column, int n) {
    UNROLL_FOR(int i = 0; i < WIDE; i++)
        x[i] =
            n > i * VEC ? floats_of(load_step(t, row, column + i * VEC, n - i * VEC)) : (vec)0.0f;
}

static inline uvec wide_largest(const vec x[WIDE]) {
    uvec largest = 0;
    UNROLL_FOR(int i = 0; i < WIDE; i++)
        largest = larger_bits(largest, x[i]);
    return largest;
}

#ifdef TILES
/* Rounds the tile at `column`. It is read twice, the second time from the cache. */
static inline void round_tile(const task *t, int column, int n, local float *row_group) {
    uvec largest = 0;
    vec x[WIDE];
    for (uint r = 0; r < t->p.rows; r++) {
        load_wide(t, x, t->p.row + r, column, n);
        largest = max(largest, wide_largest(x));
    }
    const value_scale s = find_scale(t, block_largest(largest, 1, row_group));
    const bool plain = is_plain(s.scale);
    for (uint r = 0; r < t->p.rows; r++) {
        load_wide(t, x, t->p.row + r, column, n);
        store_along(t, s, x, plain, t->p.row + r, column, n);
    }
}
#else
/* Rounds the blocks at `column` of up to 16 rows from `row` on, of which `rows` exist. */
static inline void round_along(const task *t, uint row, uint rows, int column, int n) {
    vec step[VEC][WIDE];
    uvec most[VEC];
    float factor[VEC], scale[VEC];
    for (uint r = 0; r < VEC; r++) {
        load_wide(t, step[r], row + min(r, rows - 1), column, n);
        most[r] = wide_largest(step[r]);
    }
    const value_scale s = find_scale(t, largest_lanes(most));
    const bool plain = is_plain(s.scale);
    vstore_part(s.factor, 0, factor);
    vstore_part(s.scale, 0, scale);
    for (uint r = 0; r < rows; r++)
        store_along(t, (value_scale){(vec)factor[r], (vec)scale[r]}, step[r], plain, row + r,
                    column, n);
}
#endif
