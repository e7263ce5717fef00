// run: check=1 all=1san
/* Grouped GEMMs of bf16 operands by the nvidia backend. On an NVIDIA GPU, tensor cores compute
 * them; results are within the rounding of tensor cores of the reference. On other devices, and for
 * unaligned rows, the portable backend computes them. */
#include "base/memory.h"
#include "base/dtype.h"
#include "gemm/nvidia/tensor_cores.h"
#include "support/gemm/gemm.h"

static const way nvidia = {
    .name = "nvidia", .backend = "auto", .type = MOERT_DTYPE_BF16, .prepacked = true};
static const way rounded = {.name = "rounded",
                            .backend = "auto",
                            .type = MOERT_DTYPE_BF16,
                            .prepacked = true,
                            .result = MOERT_DTYPE_BF16};

/* whole tiles; sizes one above or below a tile; partial blocks of K; empty groups and rows past the
 * end; strides, columns of y, one weight for all groups. The last three problems are unaligned. */
static const problem problems[] = {
    {.n = 16, .k = 8, .rows = 1, .groups = 1, .ends = {1}, .bias = true},
    {.n = 16, .k = 24, .rows = 0, .groups = 2, .ends = {0, 0}},
    {.n = 256, .k = 64, .rows = 128, .groups = 1, .ends = {128}},
    {.n = 272, .k = 72, .rows = 131, .groups = 2, .ends = {129, 130}, .bias = true},
    {.n = 240, .k = 56, .rows = 127, .groups = 3, .ends = {0, 127, 127}, .accumulate = true},
    {.n = 528, .k = 136, .rows = 200, .groups = 5, .ends = {9, 9, 25, 26, 143}, .bias = true},
    {.n = 48, .k = 264, .rows = 300, .groups = 3, .ends = {70, 135, 290}, .accumulate = true},
    {.n = 64, .k = 520, .rows = 190, .groups = 4, .ends = {60, 60, 61, 190}, .pad_x = 8},
    {.n = 80,
     .k = 72,
     .rows = 140,
     .groups = 3,
     .ends = {3, 130, 139},
     .shared = true,
     .bias = true},
    {.n = 32, .k = 96, .rows = 70, .groups = 6, .ends = {4, 8, 8, 64, 65, 70}, .shared = true},
    {.n = 24, .k = 40, .rows = 66, .groups = 2, .ends = {1, 65}, .y_column = 16, .pad_y = 8},
    {.n = 40, .k = 48, .rows = 66, .groups = 2, .ends = {1, 65}, .accumulate = true, .y_column = 8},
    {.n = 18, .k = 40, .rows = 9, .groups = 2, .ends = {4, 8}, .bias = true},
    {.n = 40, .k = 40, .rows = 30, .groups = 3, .ends = {0, 30, 30}, .pad_x = 3},
    {.n = 24, .k = 64, .rows = 9, .groups = 2, .ends = {4, 8}, .y_column = 4, .pad_y = 4},
};
enum { PROBLEMS = MOERT_COUNT(problems) };

TEST(test_gemms_of_small_integers_are_exact) {
    has_tensor_cores("portable computes");
    for (size_t i = 0; i < PROBLEMS; i++)
        for (operation op = 0; op < OPERATIONS; op++)
            check_exact(&problems[i], op, &nvidia);
}

TEST(test_gemms_of_random_numbers_are_within_their_rounding) {
    for (size_t i = 0; i < PROBLEMS; i++)
        for (operation op = 0; op < BIAS_GRAD; op++)
            check_near(&problems[i], op, &nvidia, 1e-5);
}

/* ---- results of bf16 ---- */

/* Whether the device supports rounded or scattered results of a problem, by moert_gemm_rounds or
 * moert_gemm_scatters. */
static bool can(bool (*supports)(const moert_device *, const moert_gemm *), const problem *p) {
    const moert_gemm like = {.groups = {NULL, p->groups, p->rows},
                             .n = p->n,
                             .k = p->k,
                             .type = MOERT_DTYPE_BF16,
                             .shared_weight = p->shared,
                             .ldx = p->k + p->pad_x,
                             .ldy = p->y_column + p->n + p->pad_y,
                             .y_column = p->y_column};
    set_variable("MOERT_BACKEND", NULL);
    return supports(test_device, &like);
}

TEST(test_rounded_results_are_casts_of_float32_results) {
    enum { UNALIGNED = 3 };
    size_t able = 0;
    for (size_t i = 0; i < PROBLEMS; i++) {
        problem p = problems[i];
        p.accumulate = false;
        if (!can(moert_gemm_rounds, &p))
            continue;
        able++;
        for (operation op = FORWARD; op <= DGRAD; op++) {
            const arrays want = run_new(&p, op, &nvidia, false);
            round_all(results_of(&p, op, &want).data, results_of(&p, op, &want).count,
                      MOERT_DTYPE_BF16);
            check_run(&p, op, &rounded, false, &want);
        }
    }
    assert_int_equal(able, has_tensor_cores("portable rounds nothing") ? PROBLEMS - UNALIGNED : 0);
}

static void check_scattered(const problem *p, operation op, size_t runs) {
    way anywhere = rounded;
    anywhere.runs = runs;
    const arrays got = run_new(p, op, &anywhere, false), want = run_new(p, op, &rounded, false);
    const arrays old = make_arrays(p, false);
    const results lines = results_of(p, op, &want);
    for (size_t m = 0; m < p->rows; m++)
        if (is_lost(m))
            memcpy(lines.data + m * lines.stride, results_of(p, op, &old).data + m * lines.stride,
                   lines.stride * sizeof(float));
    round_all(lines.data, lines.count, MOERT_DTYPE_BF16);
    assert_same_bits(titled("%s in %zu runs, n %zu, k %zu", operation_names[op], runs, p->n, p->k),
                     results_of(p, op, &got).data, lines.data, lines.count);
}

/* A problem whose column tiles the runs divide unevenly. */
static const problem tall = {
    .n = 272, .k = 72, .rows = 1300, .groups = 3, .ends = {1100, 1100, 1290}};

TEST(test_rows_of_results_may_lie_anywhere) {
    enum { REFUSED = 5 }; /* of the problems, three are unaligned, and two have columns before y */
    size_t able = 0;
    for (size_t i = 0; i <= PROBLEMS; i++) {
        problem p = i < PROBLEMS ? problems[i] : tall;
        p.accumulate = false;
        if (!can(moert_gemm_scatters, &p))
            continue;
        able++;
        for (size_t runs = 1; runs <= 7; runs += 3)
            for (operation op = FORWARD; op <= DGRAD; op++)
                check_scattered(&p, op, runs);
    }
    const bool wgmma = moert_nvidia_uses_wgmma(test_device);
    assert_int_equal(able, wgmma ? PROBLEMS + 1 - REFUSED : 0);
}

TEST(test_unaligned_bf16_results_are_refused) {
    enum { N = 12, ROWS = 2 }; /* N is not a multiple of the required alignment */
    const problem p = {.n = 2 * N, .k = 2 * N, .rows = ROWS, .groups = 1, .ends = {ROWS}};
    const arrays a = make_arrays(&p, true);
    set_variable("MOERT_BACKEND", NULL);
    moert_gemm gemm = upload_gemm(&p, &a, MOERT_DTYPE_F32, MOERT_DTYPE_F32);
    gemm.type = gemm.result = MOERT_DTYPE_BF16;
    gemm.n = gemm.k = N;
    ASSERT_FAILS(run_as(MOERT_GEMM_FORWARD, &gemm), MOERT_ERROR_UNSUPPORTED, "results in f32");
    ASSERT_FAILS(run_as(MOERT_GEMM_DGRAD, &gemm), MOERT_ERROR_UNSUPPORTED, "results in f32");
    /* gates and ups together are aligned, but each of the two is not */
    const moert_prepacked_shape shape = {1, 2 * N, 2 * N, MOERT_PREPACKED_GATED, MOERT_DTYPE_BF16};
    moert_gemm fused = gemm;
    moert_prepacked *prepacked;
    ASSERT_OK(moert_prepacked_create(test_device, &shape, &prepacked));
    fused.n = fused.k = 2 * N;
    fused.prepacked = prepacked;
    fused.gated = true;
    fused.glu = (moert_glu){.form = MOERT_GLU_SWIGLU, .h = gemm.y};
    ASSERT_FAILS(moert_gemm_run(&fused), MOERT_ERROR_UNSUPPORTED, "results in f32");
    moert_prepacked_destroy(prepacked);
    gemm.scatter = (moert_scatter){gemm.y, 1};
    for (int i = 0; i < 2; i++) {
        ASSERT_FAILS(run_as(MOERT_GEMM_FORWARD, &gemm), MOERT_ERROR_UNSUPPORTED,
                     "results without scatter");
        ASSERT_FAILS(run_as(MOERT_GEMM_DGRAD, &gemm), MOERT_ERROR_UNSUPPORTED,
                     "results without scatter");
        gemm.result = MOERT_DTYPE_F32;
    }
}

/* ---- GLU ---- */

/* Problem i with a GLU. */
static problem gated(size_t i, size_t form) {
    problem p = problems[i];
    p.accumulate = false;
    p.y_column = p.pad_y = 0;
    p.gate = &gates[form];
    return p;
}

/* Small integers: v is exact, and h is within the rounding of exp. */
TEST(test_a_gemm_with_a_glu_is_near_the_reference) {
    for (size_t i = 0; i < PROBLEMS; i++)
        for (size_t f = 0; f < GATES; f++) {
            const problem p = gated(i, f);
            way by = nvidia;
            by.drop_v = (i + f) % 3 == 0;
            const char *title = titled("n %zu, k %zu, form %zu", p.n, p.k, f);
            arrays got = run_new(&p, FORWARD, &by, true);
            arrays want = run_new(&p, FORWARD, &gemm_ways[REFERENCE_BF16], true);
            assert_close(title, got.h, to_doubles(want.h, want.h_count), want.h_count, 0.0, 4e-6);
            got.h_count = 0;
            if (!by.drop_v)
                compare_arrays(title, &got, &want);
        }
}

TEST(test_v_in_bf16_is_a_cast_of_the_float32_v_and_leaves_h_alone) {
    enum { UNALIGNED = 5 };
    size_t able = 0;
    for (size_t i = 0; i < PROBLEMS * GATES; i++) {
        const problem p = gated(i / GATES, i % GATES);
        problem half = p; /* gates or ups */
        half.n /= 2;
        if (!can(moert_gemm_rounds, &p) || !can(moert_gemm_rounds, &half))
            continue;
        able++;
        const arrays want = run_new(&p, FORWARD, &nvidia, false);
        round_all(want.y, want.y_count, MOERT_DTYPE_BF16);
        check_run(&p, FORWARD, &rounded, false, &want);
    }
    assert_int_equal(
        able, has_tensor_cores("portable rounds nothing") ? (PROBLEMS - UNALIGNED) * GATES : 0);
}

/* ---- bits ---- */

TEST(test_a_row_has_the_same_bits_with_any_other_rows) {
    const problem whole = {.n = 272,
                           .k = 328,
                           .rows = 300,
                           .groups = 3,
                           .ends = {40, 41, 300},
                           .shared = true,
                           .bias = true};
    static const size_t ranges[][2] = {{0, 1}, {7, 65}, {127, 173}, {299, 1}};
    check_company(&whole, &nvidia, ranges, MOERT_COUNT(ranges));
}

TEST(test_parts_of_the_groups_give_the_bits_of_the_whole) {
    for (size_t i = 0; i < PROBLEMS; i++)
        for (operation op = 0; op < OPERATIONS && !problems[i].shared; op++)
            check_parts(&problems[i], op, &nvidia);
}

/* If other units join a GEMM, its first launch ends when all tiles are computed. No tile is omitted
 * or computed twice, on any division of the units. */
TEST(test_units_that_join_later_change_no_bit) {
    static const problem large = {.n = 1040,
                                  .k = 1320,
                                  .rows = 900,
                                  .groups = 5,
                                  .ends = {200, 201, 201, 720, 890},
                                  .accumulate = true};
    const unsigned units = moert_device_describe(test_device)->compute_units;
    const unsigned spared[] = {1, units / 6, units / 2, units - 1};
    if (!has_tensor_cores("portable shares nothing"))
        return;
    for (size_t i = 0; i <= PROBLEMS; i++) {
        problem p = i < PROBLEMS ? problems[i] : large;
        for (size_t j = 0; j < 2 * MOERT_COUNT(spared); j++) {
            way joined = nvidia;
            joined.spared = spared[j / 2];
            p.accumulate = j % 2 == 0;
            joined.name = titled("%u units spared", joined.spared);
            const arrays want = run_new(&p, WGRAD, &nvidia, false);
            check_run(&p, WGRAD, &joined, false, &want);
        }
    }
}

/* ---- prepacked weights ---- */

TEST(test_one_prepacked_weight_of_the_first_gemm_serves_all_uses) {
    enum { N = 32, K = 16, M = 4 };
    const problem p = {.n = N, .k = K, .rows = M, .groups = 1, .ends = {M}};
    uint16_t ones[N * K];
    moert_prepacks prepacks = {0};
    if (!has_tensor_cores("portable computes"))
        return;
    set_variable("MOERT_BACKEND", NULL);
    assert_string_equal(moert_backend_name(test_device), "nvidia");
    arrays a = make_arrays(&p, true);
    for (size_t i = 0; i < (size_t)N * K; i++) {
        ones[i] = 0x3F80;
        a.weight[i] = (float)(i % K);
    }
    moert_gemm source = upload_gemm(&p, &a, MOERT_DTYPE_F32, MOERT_DTYPE_F32);
    moert_buffer *rows = upload(ones, sizeof ones), *result = source.y;
    source.type = MOERT_DTYPE_BF16;
    for (moert_prepacked_use use = 0; use < MOERT_PREPACKED_USES; use++) {
        const bool dgrad = use == MOERT_PREPACKED_DGRAD;
        moert_gemm gemm = source;
        gemm.kind = dgrad ? MOERT_GEMM_DGRAD : MOERT_GEMM_FORWARD;
        gemm.x = dgrad ? result : rows;
        gemm.y = dgrad ? rows : result;
        gemm.gated = use == MOERT_PREPACKED_GATED;
        ASSERT_OK(moert_prepacks_take(&prepacks, &gemm));
        gemm.gated = false;
        assert_non_null(gemm.prepacked);
        assert_int_equal(moert_prepacks_bytes(&prepacks), N * K * sizeof(uint16_t));
        ASSERT_OK(moert_gemm_run(&gemm));
        float first[2];
        ASSERT_OK(moert_buffer_read(result, 0, first, sizeof first));
        assert_true(first[1] == (dgrad ? (float)N : (float)(K * (K - 1) / 2)));
    }
    /* if the optimizer writes the prepacked weight, no GEMM fills it again; else also a GEMM does
     * that repeats an earlier one */
    source.x = rows;
    ASSERT_OK(moert_buffer_write(moert_prepacks_copy(&prepacks, N * K), 0, ones, sizeof ones));
    for (int i = 0; i < 3; i++) {
        float sum;
        moert_prepacks_changed(&prepacks);
        if (i < 2)
            moert_prepacks_rounded(&prepacks);
        prepacks.repeats = i == 2;
        ASSERT_OK(moert_prepacks_take(&prepacks, &source));
        ASSERT_OK(run_as(MOERT_GEMM_FORWARD, &source));
        ASSERT_OK(moert_buffer_read(result, 0, &sum, sizeof sum));
        assert_true(sum == (float)(i < 2 ? K : K * (K - 1) / 2));
    }
    moert_prepacks_free(&prepacks);
}

int main(void) {
    return run_tensor_forms(__FILE__);
}
