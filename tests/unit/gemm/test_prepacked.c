// run: check=1 all=1san
/* Prepacked weights: they are filled from float32 and bf16 weights, and are created when they save
 * time. */
#include "gemm/backend.h"
#include "support/gemm/gemm.h"

enum { GROUPS = 3 };

static const moert_dtype types[] = {MOERT_DTYPE_F32, MOERT_DTYPE_BF16};

/* Creates a prepacked weight whose panels hold zeros, also in bytes that are never filled. */
static moert_panels *create(const moert_panels_shape *shape) {
    moert_panels *panels = NULL;
    set_variable("MOERT_BACKEND", "portable");
    ASSERT_OK(moert_panels_create(test_device, shape, &panels));
    if (panels != NULL)
        ASSERT_OK(moert_buffer_clear(panels->buffer, 0, moert_panels_bytes(panels)));
    return panels;
}

static float *read_floats(const moert_buffer *buffer, size_t count) {
    float *values = test_alloc(count * sizeof *values);
    ASSERT_OK(moert_buffer_read(buffer, 0, values, count * sizeof *values));
    return values;
}

/* ---- from bf16 weights ---- */

/* Returns values of all magnitudes that bf16 holds; one is infinity and one is NaN. */
static float *random_weight(size_t rows, size_t columns) {
    float *x = random_floats(rows * columns, 1.0f, rows);
    for (size_t i = 0; i < rows * columns; i++)
        x[i] = ldexpf(x[i], (int)(i / 7 % 40) - 20);
    x[columns] = INFINITY;
    x[rows * columns - 1] = NAN;
    round_all(x, rows * columns, MOERT_DTYPE_BF16);
    return x;
}

static void check_weight(size_t n, size_t k, moert_panels_use use, moert_dtype type) {
    const moert_panels_shape shape = {GROUPS, n, k, use, type};
    const float *x = random_weight(GROUPS * n, k);
    moert_panels *want = create(&shape), *got = create(&shape);
    if (want != NULL) {
        const size_t floats = moert_panels_bytes(want) / sizeof(float);
        ASSERT_OK(moert_panels_fill(want, upload_floats(x, GROUPS * n * k)));
        ASSERT_OK(moert_panels_fill_as(got, upload_as(x, GROUPS * n * k, MOERT_DTYPE_BF16),
                                       MOERT_DTYPE_BF16));
        float *a = read_floats(got->buffer, floats), *b = read_floats(want->buffer, floats);
        assert_same_bits("panels", a, b, floats);
    }
    moert_panels_destroy(want);
    moert_panels_destroy(got);
}

TEST(test_bf16_weights_and_their_values_fill_the_same_panels) {
    static const size_t sizes[][2] = {{38, 67}, {64, 160}, {2, 33}};
    for (size_t i = 0; i < MOERT_COUNT(sizes); i++)
        for (int use = 0; use < MOERT_PANELS_USES; use++)
            for (size_t j = 0; j < MOERT_COUNT(types); j++)
                check_weight(sizes[i][0], sizes[i][1], (moert_panels_use)use, types[j]);
}

TEST(test_weights_in_buffers_that_are_too_small_are_refused) {
    const moert_panels_shape shape = {GROUPS, 32, 64, MOERT_PANELS_FORWARD, MOERT_DTYPE_F32};
    moert_panels *panels = create(&shape);
    moert_buffer *small = test_buffer(4);
    for (size_t i = 0; i < MOERT_COUNT(types) && panels != NULL; i++)
        ASSERT_FAILS(moert_panels_fill_as(panels, small, types[i]), MOERT_ERROR_USAGE,
                     "weight has 4 bytes");
    ASSERT_OK(moert_panels_fill_as(NULL, small, MOERT_DTYPE_BF16));
    moert_panels_destroy(panels);
}

/* ---- when they save time ---- */

enum { N = 40, K = 48, M = 14, FEW = 5 };

/* Runs a GEMM of the first `rows` of `all` rows, whose weight `cache` prepacks, and returns the
 * result of the GEMM. */
static float *multiply(moert_weight_cache *cache, moert_panels_use use, moert_dtype type,
                       moert_buffer *values, size_t all, size_t rows) {
    const bool forward = use == MOERT_PANELS_FORWARD;
    const operation op = forward ? FORWARD : DGRAD;
    const way by = {.type = type};
    const problem p = {
        .n = N, .k = K, .rows = all, .groups = GROUPS, .ends = {1, 1, (uint32_t)all}};
    const ops_bytes data = make_data(&p, op, &by, OPS_WIDE);
    moert_gemm gemm = upload_gemm(&p, &data);
    moert_gemm_set(&gemm, (moert_gemm_kind)op, type);
    gemm.weight.buffer = values;
    gemm.groups.rows = rows;
    ASSERT_OK(moert_weight_cache_take(cache, &gemm));
    ASSERT_OK(moert_gemm_run(&gemm));
    return read_floats(moert_gemm_output(&gemm)->buffer, all * (forward ? N : K));
}

/* Checks that the next GEMM has the bits of a GEMM without prepacked weights. Returns its
 * result. */
static float *check_next(moert_weight_cache *cache, moert_panels_use use, moert_dtype type,
                         moert_buffer *values, size_t rows) {
    moert_weight_cache none = {0};
    const float *want = multiply(&none, use, type, values, rows, rows);
    float *got = multiply(cache, use, type, values, rows, rows);
    assert_int_equal(weight_cache_bytes(&none), 0);
    assert_same_bits("result", got, want, rows * (use == MOERT_PANELS_FORWARD ? N : K));
    return got;
}

static void check_life(moert_panels_use use, moert_dtype type) {
    const size_t elements = (size_t)GROUPS * N * K, bytes = elements * sizeof(float);
    const moert_panels_shape shape = {GROUPS, N, K, use, type};
    const float *second = random_floats(elements, 1.0f, 2), *got = NULL;
    moert_buffer *values = upload(random_floats(elements, 1.0f, 1), bytes);
    moert_weight_cache cache = {0};
    set_variable("MOERT_BACKEND", "portable");
    const size_t need = moert_panels_need(test_device, &shape);
    check_next(&cache, use, type, values, M);
    assert_int_equal(weight_cache_bytes(&cache), 0);
    /* a GEMM without rows does not count as a use of the weight */
    multiply(&cache, use, type, values, M, 0);
    assert_int_equal(weight_cache_bytes(&cache), 0);
    for (size_t i = 0; i < 2; i++) {
        got = check_next(&cache, use, type, values, M);
        assert_int_equal(weight_cache_bytes(&cache), need);
    }
    /* GEMMs read the prepacked weight, so a changed weight has no effect until it is announced */
    ASSERT_OK(moert_buffer_write(values, 0, second, bytes));
    if (need > 0)
        assert_same_bits("kept", multiply(&cache, use, type, values, M, M), got,
                         M * (use == MOERT_PANELS_FORWARD ? N : K));
    moert_weight_cache_changed(&cache);
    for (size_t i = 0; i < 3; i++)
        check_next(&cache, use, type, values, M);
    assert_int_equal(weight_cache_bytes(&cache), need);
    moert_weight_cache_free(&cache);
}

TEST(test_a_weight_is_prepacked_by_the_second_gemm_after_its_announced_change) {
    for (size_t i = 0; i < 4; i++)
        check_life(i % 2 == 0 ? MOERT_PANELS_FORWARD : MOERT_PANELS_DGRAD, types[i / 2]);
}

TEST(test_panels_for_few_rows_hold_pairs_and_give_the_same_bits) {
    const moert_device_info *info = moert_device_describe(test_device);
    const size_t elements = (size_t)GROUPS * N * K;
    const moert_panels_shape shape = {GROUPS, N, K, MOERT_PANELS_FORWARD, MOERT_DTYPE_BF16};
    moert_buffer *values = upload(random_floats(elements, 1.0f, 3), elements * sizeof(float));
    moert_weight_cache cache = {.is_fixed = true};
    /* on tensor cores any GEMM would prepack */
    set_variable("MOERT_BACKEND", info->is_cpu ? "auto" : "portable");
    const size_t need = moert_panels_need(test_device, &shape);
    check_next(&cache, shape.use, shape.type, values, M);
    const size_t bytes = weight_cache_bytes(&cache); /* of the first GEMM */
    check_next(&cache, shape.use, shape.type, values, FEW);
    if (need > 0 && info->has_bf16_dot && !info->bf16_dot_pays && !moert_device_sums_in_tiles(info))
        assert_in_range(bytes, need / 2, need * 5 / 8);
    else
        assert_int_equal(bytes, need);
    moert_weight_cache_free(&cache);
}

/* ---- rounded by the optimizer ---- */

TEST(test_the_optimizer_writes_only_whole_bf16_prepacked_weights_in_the_weights_order) {
    const struct {
        const moert_prepacker *prepacker;
        moert_dtype type;
        size_t n;
        bool serves;
    } rows[] = {{moert_backend_nvidia.prepacker, MOERT_DTYPE_BF16, GROUPS * N * K, true},
                {moert_backend_nvidia.prepacker, MOERT_DTYPE_BF16, GROUPS * N * K + 1, false},
                {moert_backend_nvidia.prepacker, MOERT_DTYPE_F32, GROUPS * N * K, false},
                {moert_backend_portable.prepacker, MOERT_DTYPE_BF16, GROUPS * N * K, false}};
    moert_weight_cache cache = {0};
    assert_null(moert_weight_cache_copy(&cache, GROUPS * N * K));
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_buffer *memory = unset_floats(GROUPS * N * K);
        moert_panels panels = {.shape = {GROUPS, N, K, MOERT_PANELS_FORWARD, rows[i].type},
                               .prepacker = rows[i].prepacker,
                               .buffer = memory};
        cache.panels[MOERT_PANELS_FORWARD] = &panels;
        assert_ptr_equal(moert_weight_cache_copy(&cache, rows[i].n),
                         rows[i].serves ? memory : NULL);
    }
}

TESTS(open_test_device, close_test_device)
