// run: check=1,1gpu all=1san
/* Layouts: scales in tiles of 128 x 4, runs of gate and up, offsets of experts. Also casts. */
#include "base/dtype.h"
#include "moert/quantize.h"
#include "support/test.h"

/* Returns n bytes from 1 to 255. */
static unsigned char *make_scales(size_t n) {
    unsigned char *scales = test_alloc(n);
    for (size_t i = 0; i < n; i++)
        scales[i] = (unsigned char)(1 + i * 2654435761u % 255);
    return scales;
}

/* ---- tiles ---- */

enum { MOST_GROUPS = 8, UNSET = 0xEE };

/* Lines of scales in groups; without groups, all lines are one group. */
typedef struct lines_case {
    size_t lines, width, groups;
    uint32_t ends[MOST_GROUPS];
    /* number of tiles for which there is room, plain and transposed: too few for the last group; 0:
     * enough room */
    size_t tiles[2];
} lines_case;

/* Writes the tiles of each group that has room, and copies the group's lines to `back`. Returns the
 * bytes of all groups. */
static size_t expect(const lines_case *c, bool transposed, const unsigned char *scales,
                     unsigned char *tiles, size_t bytes, unsigned char *back) {
    size_t at = 0;
    for (size_t g = 0, line = 0; g < c->groups; line = c->ends[g++]) {
        const size_t lines = c->ends[g] - line, n = lines * c->width;
        const size_t rows = transposed ? c->width : lines, columns = transposed ? lines : c->width;
        const size_t own = (rows + 127) / 128 * ((columns + 3) / 4) * 512;
        const unsigned char *from = scales + line * c->width;
        if (at + own <= bytes) {
            memset(tiles + at, 0, own);
            memcpy(back + line * c->width, from, n);
            for (size_t i = 0; i < n; i++) {
                const size_t r = transposed ? i % c->width : i / c->width,
                             k = transposed ? i / c->width : i % c->width,
                             tile = r / 128 * ((columns + 3) / 4) + k / 4;
                tiles[at + tile * 512 + r % 32 * 16 + r % 128 / 32 * 4 + k % 4] = from[i];
            }
        }
        at += own;
    }
    return at;
}

/* Converts scales to tiles and back. Returns the tiles. */
static unsigned char *check_tiles(const char *backend, lines_case c, bool transposed) {
    const size_t n = c.lines * c.width;
    moert_scale_tiles op = MOERT_SCALE_TILES_INIT;
    op.groups =
        (moert_groups){c.groups > 0 ? upload(c.ends, sizeof c.ends) : NULL, c.groups, c.lines};
    const size_t all =
        moert_swizzled_bytes(c.groups > 0 ? c.ends : NULL, c.groups, c.lines, c.width, transposed);
    if (c.groups == 0)
        c.ends[c.groups++] = (uint32_t)c.lines;
    const size_t needed = moert_row_blocks(c.ends, c.groups, transposed ? 4 : 128);
    op.tiles = c.tiles[transposed] > 0 ? c.tiles[transposed] : needed;
    const size_t bytes = all / needed * op.tiles;
    unsigned char *scales = make_scales(n), *back = test_alloc(n), *want = test_alloc(bytes);
    memset(want, UNSET, bytes);
    op.width = c.width;
    op.transposed = transposed;
    op.linear = upload(scales, n);
    op.swizzled = upload(want, bytes);
    set_variable("MOERT_BACKEND", backend);
    ASSERT_OK(moert_swizzle(&op));
    assert_int_equal(expect(&c, transposed, scales, want, bytes, back), all);
    unsigned char *got = download(op.swizzled, bytes);
    assert_memory_equal(got, want, bytes);
    ASSERT_OK(moert_buffer_clear(op.linear, 0, n));
    ASSERT_OK(moert_unswizzle(&op));
    assert_memory_equal(download(op.linear, n), back, n);
    if (op.tiles < needed) {
        op.tiles = 0;
        ASSERT_FAILS(moert_swizzle(&op), MOERT_ERROR_USAGE, "bytes, too few for");
    }
    return got;
}

TEST(test_scales_go_to_their_tiles_and_back) {
    static const size_t shapes[][2] = {{1, 1},   {100, 3}, {129, 5}, {200, 10}, {384, 12},
                                       {128, 4}, {256, 8}, {50, 10}, {4, 4}};
    for (size_t i = 0; i < MOERT_COUNT(shapes) * BACKENDS * 2; i++) {
        const size_t *shape = shapes[i / BACKENDS / 2];
        const bool transposed = i / BACKENDS % 2;
        const lines_case c = {.lines = shape[transposed], .width = shape[!transposed]};
        check_tiles(backends[i % BACKENDS], c, transposed);
    }
}

TEST(test_groups_follow_each_other_from_a_new_tile_on) {
    static const lines_case cases[] = {
        {720, 3, 8, {0, 1, 32, 159, 287, 416, 716, 716}, {0}},
        {720, 193, 8, {0, 1, 32, 159, 287, 416, 716, 716}, {0}},
        {720, 383, 8, {0, 1, 32, 159, 287, 416, 716, 716}, {0}},
        /* the second group does not fit: the groups need 1 + 2 rows of tiles, or 25 + 50 columns of
         * tiles */
        {300, 8, 2, {100, 300}, {2, 50}},
    };
    for (size_t i = 0; i < MOERT_COUNT(cases) * BACKENDS * 2; i++)
        check_tiles(backends[i % BACKENDS], cases[i / BACKENDS / 2], i / BACKENDS % 2);
}

TEST(test_scales_lie_at_the_published_positions) {
    /* `columns`: scales of 256 columns in blocks of 32 rows, in one matrix of tiles. `experts`: a
     * matrix of tiles for each of three experts, whose rows end at 256, 768 and 1024. The test
     * looks for the scale of row 300 in column 130. */
    static const lines_case rows = {.lines = 200, .width = 10},
                            columns = {.lines = 32, .width = 256},
                            experts = {32, 256, 3, {8, 24, 32}, {0}};
    static const struct {
        const lines_case *of;
        bool transposed;
        size_t at, line, column;
    } known[] = {{&rows, false, 597, 37, 5},
                 {&rows, false, 1536, 128, 0},
                 {&rows, false, 2681, 199, 9},
                 {&columns, true, 5153, 300 / 32, 130},
                 {&experts, true, 4129, 300 / 32, 130}};
    assert_int_equal(moert_swizzled_bytes(NULL, 1, 200, 10, false), 3072);
    for (size_t i = 0; i < MOERT_COUNT(known) * BACKENDS; i++) {
        const size_t k = i / BACKENDS, width = known[k].of->width;
        assert_int_equal(
            check_tiles(backends[i % BACKENDS], *known[k].of, known[k].transposed)[known[k].at],
            make_scales(known[k].of->lines * width)[known[k].line * width + known[k].column]);
    }
}

/* ---- gate and up ---- */

/* Interleaves the gate and up columns of [rows, 2 width] in runs, and then undoes the
 * interleaving. */
static void check_runs(const char *backend, size_t rows, size_t width, size_t granularity,
                       size_t element_bytes) {
    const size_t bytes = rows * 2 * width * element_bytes;
    unsigned char *plain = make_scales(bytes);
    moert_buffer *from = upload(plain, bytes), *to = upload(plain, bytes);
    moert_interleave op = {sizeof op, rows, width, granularity, element_bytes, false, from, to};
    set_variable("MOERT_BACKEND", backend);
    ASSERT_OK(moert_interleave_run(&op));
    unsigned char *mixed = download(to, bytes);
    for (size_t m = 0; m < rows; m++)
        for (size_t j = 0; j < 2 * width; j++) {
            /* new column j: q = j / 2g, o = j % 2g; o < g -> gate[gq + o], else up[gq + o - g] */
            const size_t q = j / (2 * granularity), o = j % (2 * granularity);
            const size_t column = granularity * q + (o < granularity ? o : width + o - granularity);
            assert_memory_equal(mixed + (m * 2 * width + j) * element_bytes,
                                plain + (m * 2 * width + column) * element_bytes, element_bytes);
        }
    op = (moert_interleave){sizeof op, rows, width, granularity, element_bytes, true, to, from};
    ASSERT_OK(moert_buffer_clear(from, 0, bytes));
    ASSERT_OK(moert_interleave_run(&op));
    assert_memory_equal(download(from, bytes), plain, bytes);
}

TEST(test_gate_and_up_alternate_in_runs_of_any_granularity) {
    for (size_t b = 0; b < BACKENDS; b++) {
        check_runs(backends[b], 3, 64, 1, 4);
        check_runs(backends[b], 3, 64, 8, 1);
        check_runs(backends[b], 2, 96, 32, 2);
        check_runs(backends[b], 2, 33, 33, 4);
        check_runs(backends[b], 1, 16, 8, 4 * 37); /* gate and up are runs of a weight's rows */
    }
    moert_interleave op = {sizeof op, 1, 12, 8, 4, false, NULL, NULL};
    ASSERT_FAILS(moert_interleave_run(&op), MOERT_ERROR_USAGE, "granularity 8");
    op.width = SIZE_MAX / 2 + 1; /* twice this width overflows to 0 */
    ASSERT_FAILS(moert_interleave_run(&op), MOERT_ERROR_UNSUPPORTED, "columns of gate");
}

TEST(test_descriptions_of_another_size_are_refused) {
    moert_scale_tiles tiles = MOERT_SCALE_TILES_INIT;
    moert_interleave runs = MOERT_INTERLEAVE_INIT;
    moert_cast cast = MOERT_CAST_INIT;
    tiles.size--, runs.size--, cast.size--;
    ASSERT_FAILS(moert_swizzle(&tiles), MOERT_ERROR_USAGE, "MOERT_SCALE_TILES_INIT");
    ASSERT_FAILS(moert_unswizzle(&tiles), MOERT_ERROR_USAGE, "MOERT_SCALE_TILES_INIT");
    ASSERT_FAILS(moert_interleave_run(&runs), MOERT_ERROR_USAGE, "MOERT_INTERLEAVE_INIT");
    ASSERT_FAILS(moert_cast_run(&cast), MOERT_ERROR_USAGE, "MOERT_CAST_INIT");
}

TEST(test_expert_offsets_are_inclusive_sums) {
    const uint64_t counts[] = {3, 0, 5, INT32_MAX - 8, 1};
    int32_t offsets[5];
    ASSERT_OK(moert_expert_offsets(counts, 4, offsets));
    assert_true(offsets[0] == 3 && offsets[1] == 3 && offsets[2] == 8 && offsets[3] == INT32_MAX);
    offsets[0] = -1;
    ASSERT_FAILS(moert_expert_offsets(counts, 5, offsets), MOERT_ERROR_UNSUPPORTED,
                 "experts 0 to 4");
    assert_int_equal(offsets[0], -1);
}

/* ---- casts ---- */

/* Casts n values of dtype `from`, as bytes, to `to` by a backend. */
static void *cast(const char *backend, moert_dtype from, moert_dtype to, const void *source,
                  size_t n) {
    const size_t bytes = n * moert_dtype_bits(to) / 8;
    unsigned char *unset = test_alloc(bytes);
    const moert_cast op = {
        sizeof op,           from, to, n, upload(source, n * moert_dtype_bits(from) / 8),
        upload(unset, bytes)};
    set_variable("MOERT_BACKEND", backend);
    ASSERT_OK(moert_cast_run(&op));
    return download(op.target, bytes);
}

TEST(test_casts_agree_on_every_bit_pattern_and_around_every_midpoint) {
    for (moert_dtype type = MOERT_DTYPE_F16; type <= MOERT_DTYPE_E5M2; type++) {
        const size_t bytes = moert_dtype_bits(type) / 8, patterns = (size_t)1 << 8 * bytes;
        const size_t n = patterns * 6 + 5;
        unsigned char *encoded = test_alloc(patterns * bytes);
        float *x = test_alloc(n * sizeof *x);
        for (size_t i = 0; i < patterns; i++) {
            for (size_t k = 0; k < bytes; k++)
                encoded[i * bytes + k] = (unsigned char)(i >> 8 * k);
            const float low = moert_dtype_decode(type, (uint32_t)i);
            const float high = moert_dtype_decode(type, (uint32_t)(i + 1) % (uint32_t)patterns);
            const float middle = (float)(((double)low + (double)high) / 2);
            const float all[] = {low,
                                 middle,
                                 nextafterf(middle, INFINITY),
                                 nextafterf(middle, -INFINITY),
                                 moert_float_from_bits((uint32_t)i * 0x9E3779B9u),
                                 nextafterf(low, INFINITY)};
            memcpy(x + i * 6, all, sizeof all);
        }
        float *want = cast("reference", type, MOERT_DTYPE_F32, encoded, patterns);
        float *got = cast("portable", type, MOERT_DTYPE_F32, encoded, patterns);
        assert_same_bits(moert_dtype_name(type), got, want, patterns);
        unsigned char *down = cast("reference", MOERT_DTYPE_F32, type, x, n);
        unsigned char *also = cast("portable", MOERT_DTYPE_F32, type, x, n);
        assert_memory_equal(also, down, n * bytes);
    }
    const moert_cast op = {sizeof op, MOERT_DTYPE_F16, MOERT_DTYPE_BF16, 1, NULL, NULL};
    ASSERT_FAILS(moert_cast_run(&op), MOERT_ERROR_USAGE, "cannot cast from f16 to bf16");
}

TESTS(open_test_device, close_test_device)
