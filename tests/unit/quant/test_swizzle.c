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

/* Lines of scales on the host, and the groups of lines. If `groups` is 0, `ends` is unused. */
typedef struct matrix {
    const unsigned char *scales;
    size_t lines, width;
    bool transposed;
    const uint32_t *ends;
    size_t groups;
} matrix;

/* Describes the conversion of a matrix to `tiles` tiles, with buffers. All `bytes` of the tiles are
 * 0xEE. */
static moert_scale_tiles describe(const char *backend, const matrix *m, size_t tiles,
                                  size_t bytes) {
    moert_scale_tiles op = MOERT_SCALE_TILES_INIT;
    unsigned char *unset = test_alloc(bytes);
    memset(unset, 0xEE, bytes);
    set_variable("MOERT_BACKEND", backend);
    op.groups = (moert_groups){m->groups > 0 ? upload(m->ends, m->groups * sizeof *m->ends) : NULL,
                               m->groups, m->lines};
    op.width = m->width;
    op.transposed = m->transposed;
    op.linear = upload(m->scales, m->lines * m->width);
    op.swizzled = upload(unset, bytes);
    op.tiles = tiles;
    return op;
}

/* Converts a matrix of scales to tiles, and checks that the tiles convert back. *bytes: the size of
 * the tiles. */
static unsigned char *swizzle(const char *backend, const matrix *m, size_t *bytes) {
    const uint32_t whole = (uint32_t)m->lines;
    const size_t tiles = moert_row_blocks(m->groups > 0 ? m->ends : &whole,
                                          m->groups > 0 ? m->groups : 1, m->transposed ? 4 : 128);
    *bytes = moert_swizzled_bytes(m->ends, m->groups, m->lines, m->width, m->transposed);
    const moert_scale_tiles op = describe(backend, m, tiles, *bytes);
    ASSERT_OK(moert_swizzle(&op));
    ASSERT_OK(moert_buffer_clear(op.linear, 0, m->lines * m->width));
    ASSERT_OK(moert_unswizzle(&op));
    assert_memory_equal(download(op.linear, m->lines * m->width), m->scales, m->lines * m->width);
    return download(op.swizzled, *bytes);
}

/* Checks that every scale lies where the formula of the tiles says, and that all other bytes are
 * 0. */
static void check_tiles(const matrix *m, const unsigned char *tiles, size_t bytes) {
    const size_t rows = m->transposed ? m->width : m->lines;
    const size_t scales = m->transposed ? m->lines : m->width;
    unsigned char *want = test_alloc(bytes);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < scales; c++) {
            const size_t tile = r / 128 * ((scales + 3) / 4) + c / 4;
            want[tile * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4] =
                m->scales[m->transposed ? c * m->width + r : r * m->width + c];
        }
    assert_memory_equal(tiles, want, bytes);
}

TEST(test_scales_go_to_their_tiles_and_back) {
    const size_t shapes[][2] = {{1, 1},   {100, 3}, {129, 5}, {200, 10}, {384, 12},
                                {128, 4}, {256, 8}, {50, 10}, {4, 4}};
    for (size_t i = 0; i < 9 * BACKENDS * 2; i++) {
        const size_t *shape = shapes[i % 9];
        unsigned char *scales = make_scales(shape[0] * shape[1]);
        const bool transposed = i / 9 / BACKENDS > 0;
        const matrix m = {scales, shape[transposed], shape[!transposed], transposed, NULL, 0};
        size_t bytes;
        unsigned char *tiles = swizzle(backends[i / 9 % BACKENDS], &m, &bytes);
        assert_int_equal(bytes, (shape[0] + 127) / 128 * ((shape[1] + 3) / 4) * 512);
        check_tiles(&m, tiles, bytes);
    }
}

TEST(test_scales_lie_at_the_published_positions) {
    enum { LINES = 200, WIDTH = 10 };
    unsigned char scales[LINES * WIDTH] = {0};
    scales[37 * WIDTH + 5] = 1;
    scales[128 * WIDTH] = 2;
    scales[199 * WIDTH + 9] = 3;
    const matrix m = {scales, LINES, WIDTH, false, NULL, 0};
    for (size_t b = 0; b < BACKENDS; b++) {
        size_t bytes;
        unsigned char *tiles = swizzle(backends[b], &m, &bytes);
        assert_int_equal(bytes, 3072);
        assert_true(tiles[597] == 1 && tiles[1536] == 2 && tiles[2681] == 3);
    }
}

TEST(test_column_scales_lie_in_one_matrix_or_one_for_each_expert) {
    /* 256 columns; the rows of three groups end at 256, 768 and 1024, in blocks of 32. The scale of
     * column 130, row 300 is 1. */
    enum { LINES = 32, WIDTH = 256 };
    const uint32_t ends[] = {8, 24, 32};
    unsigned char scales[LINES * WIDTH] = {[300 / 32 * WIDTH + 130] = 1};
    for (size_t i = 0; i < 2 * BACKENDS; i++) {
        const bool whole = i < BACKENDS;
        const matrix m = {scales, LINES, WIDTH, true, whole ? NULL : ends, whole ? 0 : 3};
        size_t bytes;
        assert_int_equal(swizzle(backends[i % BACKENDS], &m, &bytes)[whole ? 5153 : 4129], 1);
    }
}

TEST(test_experts_follow_each_other_from_a_new_tile_on) {
    const uint32_t ends[] = {0, 1, 32, 159, 287, 416, 716, 716};
    enum { GROUPS = 8, LINES = 720 };
    for (size_t width = 3; width < 400; width += 190)
        for (size_t i = 0; i < BACKENDS * 2; i++) {
            unsigned char *scales = make_scales(LINES * width);
            const bool transposed = i >= BACKENDS;
            size_t bytes, at = 0, own;
            /* rows past the last group do not come back */
            memset(scales + 716 * width, 0, 4 * width);
            const matrix m = {scales, LINES, width, transposed, ends, GROUPS};
            unsigned char *tiles = swizzle(backends[i % BACKENDS], &m, &bytes);
            for (size_t g = 0, start = 0; g < GROUPS; start = ends[g++], at += own) {
                const matrix part = {
                    scales + start * width, ends[g] - start, width, transposed, NULL, 0};
                own = moert_swizzled_bytes(NULL, 1, part.lines, width, transposed);
                check_tiles(&part, tiles + at, own);
            }
            assert_int_equal(at, bytes);
        }
}

TEST(test_groups_without_room_are_left_out) {
    enum { LINES = 300, WIDTH = 8 };
    /* two groups of 1 and 2 rows of tiles, or of 25 and 50 columns of tiles */
    const uint32_t ends[] = {100, LINES};
    const size_t tiles[] = {2, 50}, kept[] = {2 * 512, 25 * 512};
    unsigned char *scales = make_scales(LINES * WIDTH);
    for (size_t i = 0; i < 2 * BACKENDS; i++) {
        const bool transposed = i >= BACKENDS;
        const size_t bytes = tiles[transposed] * (transposed ? 1 : 2) * 512;
        const matrix m = {scales, LINES, WIDTH, transposed, ends, 2};
        moert_scale_tiles op = describe(backends[i % BACKENDS], &m, tiles[transposed], bytes);
        ASSERT_OK(moert_swizzle(&op));
        unsigned char *got = download(op.swizzled, bytes);
        const matrix first = {scales, 100, WIDTH, transposed, NULL, 0};
        check_tiles(&first, got, kept[transposed]);
        for (size_t at = kept[transposed]; at < bytes; at++)
            assert_int_equal(got[at], 0xEE);
        op.tiles = 0;
        ASSERT_FAILS(moert_swizzle(&op), MOERT_ERROR_USAGE, "bytes, too few for");
    }
}

/* ---- gate and up ---- */

/* Interleaves [rows, 2 width] in runs, and reverses that. */
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
    ASSERT_FAILS(moert_cast_run(&op), MOERT_ERROR_USAGE, "a cast from f16 to bf16");
}

TESTS(open_test_device, close_test_device)
