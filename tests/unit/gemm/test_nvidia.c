// run: check=1 all=1san
/* Grouped GEMMs by the nvidia backend: of bf16 operands, and of float32 operands that may be split
 * into bf16 parts. On an NVIDIA GPU, tensor cores compute the bf16 GEMMs within the rounding of
 * tensor cores. On a Hopper GPU, tensor cores compute the float32 GEMMs about as exactly as a chain
 * of fma. On other devices, and for unaligned rows, the portable backend computes both kinds. */
#include "base/rng.h"
#include "device/device.h"
#include "gemm/nvidia/tensor_cores.h"
#include "support/gemm/gemm.h"

static const way nvidia = {
    .name = "nvidia", .backend = "auto", .type = MOERT_DTYPE_BF16, .prepacked = true};
static const way rounded = {.name = "rounded",
                            .backend = "auto",
                            .type = MOERT_DTYPE_BF16,
                            .prepacked = true,
                            .result = MOERT_DTYPE_BF16};

static const way split = {.name = "split", .backend = "auto", .split = true};

/* whole tiles; sizes one above or below a tile; partial blocks of K; empty groups and rows past the
 * end; strides, columns of y, one weight for all groups. Problems [0, BF16) are for bf16; the last
 * three of them are unaligned. The problems after them are for the tiles and the alignment of
 * float32. */
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
    {.n = 8, .k = 4, .rows = 1, .groups = 1, .ends = {1}, .bias = true},
    {.n = 8, .k = 4096, .rows = 130, .groups = 2, .ends = {60, 130}},
    {.n = 64, .k = 64, .rows = 128, .groups = 1, .ends = {128}},
    {.n = 128, .k = 128, .rows = 129, .groups = 2, .ends = {64, 128}, .bias = true},
    {.n = 256, .k = 200, .rows = 300, .groups = 3, .ends = {70, 135, 290}, .accumulate = true},
    {.n = 264, .k = 72, .rows = 131, .groups = 2, .ends = {129, 130}, .bias = true},
    {.n = 60, .k = 140, .rows = 127, .groups = 3, .ends = {0, 127, 127}, .accumulate = true},
    {.n = 128, .k = 36, .rows = 200, .groups = 5, .ends = {9, 9, 25, 26, 143}, .bias = true},
    {.n = 40, .k = 520, .rows = 190, .groups = 4, .ends = {60, 60, 61, 190}, .pad_x = 4},
    {.n = 40, .k = 48, .rows = 66, .groups = 2, .ends = {1, 65}, .accumulate = true, .y_column = 4},
    {.n = 13, .k = 40, .rows = 66, .groups = 2, .ends = {1, 65}, .y_column = 3, .pad_y = 2},
};
enum { BF16 = 15, PROBLEMS = MOERT_COUNT(problems) };

TEST(test_gemms_are_exact_on_small_integers_and_else_within_their_rounding) {
    has_tensor_cores("portable computes");
    has_hopper("chains of fma");
    for (size_t i = 0; i < PROBLEMS; i++)
        for (size_t c = 0; c < (size_t)OPERATIONS * 4; c++) {
            const operation op = (operation)(c / 4);
            const bool splits = c % 2 == 1, exact = c / 2 % 2 == 0;
            problem p = problems[i];
            p.shared |= splits;
            ops_bytes data =
                make_data(&p, op, splits ? &split : &nvidia, exact ? OPS_EXACT : OPS_WIDE);
            if (exact || op != BIAS_GRAD)
                check_gemm(&p, op, splits ? &split : &nvidia, &data,
                           exact    ? 0.0
                           : splits ? 0x1p-20
                                    : 1e-5);
        }
}

/* ---- split operands ---- */

/* Integers of up to `bits` bits and either sign. */
static void draw_integers(ops_bytes *data, moert_op_buffer which, int bits) {
    for (size_t i = 0; i < ops_bytes_count(data, which); i++)
        ops_floats(data, which)[i] =
            rintf(ldexpf((float)(2.0 * moert_rng_uniform(2, which, i) - 1.0), bits));
}

static ops_bytes make_integers(const problem *p, operation op, int x_bits, int y_bits,
                               int weight_bits) {
    ops_bytes data = make_data(p, op, &split, OPS_EXACT);
    draw_integers(&data, MOERT_OP_BUFFER_x, x_bits);
    draw_integers(&data, MOERT_OP_BUFFER_y, y_bits);
    draw_integers(&data, MOERT_OP_BUFFER_weight, weight_bits);
    return data;
}

/* All products have 22 bits, so sums of four products are below 2^24 and exact in float32. A lost
 * bit of an operand would change a sum. */
TEST(test_no_bit_of_an_operand_is_lost) {
    static const problem of_four[] = {
        [FORWARD] = {.n = 72, .k = 4, .rows = 131, .groups = 1, .ends = {131}, .shared = true},
        [DGRAD] = {.n = 4, .k = 200, .rows = 131, .groups = 1, .ends = {131}, .shared = true},
        [WGRAD] = {.n = 72, .k = 136, .rows = 13, .groups = 3, .ends = {4, 8, 12}},
    };
    static const int bits[][2] = {{20, 2}, {2, 20}, {11, 11}, {16, 6}, {6, 16}, {13, 9}};
    for (operation op = 0; op < BIAS_GRAD; op++)
        for (size_t i = 0; i < MOERT_COUNT(bits); i++) {
            const problem *p = &of_four[op];
            const int x = bits[i][0], y = bits[i][op == WGRAD], weight = bits[i][1];
            ops_bytes got = make_integers(p, op, x, y, weight), want = ops_bytes_copy(&got);
            run_gemm(p, op, &split, &got);
            run_gemm(p, op, &gemm_ways[REFERENCE_F32], &want);
            ops_assert_same(
                titled("%d by %d bits, %s", bits[i][0], bits[i][1], operation_names[op]), &got,
                &want, true);
        }
}

/* Truncation instead of rounding would bias long sums of one sign towards 0. */
TEST(test_long_sums_are_not_biased) {
    static const problem p = {
        .n = 136, .k = 7168, .rows = 200, .groups = 1, .ends = {200}, .shared = true};
    static const moert_op_buffer operands[] = {MOERT_OP_BUFFER_x, MOERT_OP_BUFFER_weight};
    ops_bytes data = make_data(&p, FORWARD, &split, OPS_EXACT);
    for (size_t i = 0; i < 2; i++)
        for (size_t e = 0; e < ops_bytes_count(&data, operands[i]); e++)
            ops_floats(&data, operands[i])[e] = 1.0f + (float)moert_rng_uniform(3, i, e);
    check_gemm(&p, FORWARD, &split, &data,
               moert_nvidia_uses_wgmma(test_device) ? 0x1p-20 : 0x1p-16);
}

/* ---- results of bf16 ---- */

/* Whether the device supports rounded results (`supports` is moert_gemm_rounds) or scattered
 * results (moert_gemm_scatters) of a problem. */
static bool can(bool (*supports)(const moert_device *, const moert_gemm *), const problem *p) {
    const moert_gemm like = {.groups = {NULL, p->groups, p->rows, .shared = p->shared},
                             .n = p->n,
                             .k = p->k,
                             .x = {.type = MOERT_DTYPE_BF16, .stride = p->k + p->pad_x},
                             .y = {.stride = p->y_column + p->n + p->pad_y, .first = p->y_column}};
    set_variable("MOERT_BACKEND", NULL);
    return supports(test_device, &like);
}

TEST(test_rounded_results_are_casts_of_float32_results) {
    enum { UNALIGNED = 3 };
    size_t able = 0;
    for (size_t i = 0; i < BF16; i++) {
        problem p = problems[i];
        p.accumulate = false;
        if (!can(moert_gemm_rounds, &p))
            continue;
        able++;
        for (operation op = FORWARD; op <= DGRAD; op++) {
            ops_bytes want = run_new(&p, op, &nvidia);
            round_data(&want, results_of(&want).which, MOERT_DTYPE_BF16);
            check_run(&p, op, &rounded, &want);
        }
    }
    assert_int_equal(able, has_tensor_cores("portable rounds nothing") ? BF16 - UNALIGNED : 0);
}

static void check_scattered(const problem *p, operation op, size_t runs) {
    way anywhere = rounded;
    anywhere.runs = runs;
    const ops_bytes got = run_new(p, op, &anywhere), want = run_new(p, op, &rounded),
                    old = make_data(p, op, &rounded, OPS_WIDE);
    const moert_op_buffer which = results_of(&want).which;
    /* width: bytes of a row without the padding */
    const size_t row = results_of(&want).stride * sizeof(uint16_t),
                 width = want.shape.needs[which].width * sizeof(uint16_t);
    for (size_t m = 0; m < p->rows; m++)
        if (is_lost(m))
            memcpy(want.at[which] + m * row, old.at[which] + m * row, width);
    ops_assert_same(titled("%s in %zu runs, n %zu, k %zu", operation_names[op], runs, p->n, p->k),
                    &got, &want, true);
}

/* A problem whose column tiles cannot be divided evenly among the runs of scattered rows. */
static const problem tall = {
    .n = 272, .k = 72, .rows = 1300, .groups = 3, .ends = {1100, 1100, 1290}};

TEST(test_rows_of_results_may_lie_anywhere) {
    /* number of refused problems: three are unaligned, and in two y is a range of columns that does
     * not begin at column 0 */
    enum { REFUSED = 5 };
    size_t able = 0;
    for (size_t i = 0; i <= BF16; i++) {
        problem p = i < BF16 ? problems[i] : tall;
        p.accumulate = false;
        if (!can(moert_gemm_scatters, &p))
            continue;
        able++;
        for (size_t runs = 1; runs <= 7; runs += 3)
            for (operation op = FORWARD; op <= DGRAD; op++)
                check_scattered(&p, op, runs);
    }
    const bool wgmma = moert_nvidia_uses_wgmma(test_device);
    assert_int_equal(able, wgmma ? BF16 + 1 - REFUSED : 0);
}

TEST(test_unaligned_bf16_results_are_refused) {
    enum { N = 12, ROWS = 2 }; /* N is not a multiple of the required alignment */
    const problem p = {.n = 2 * N, .k = 2 * N, .rows = ROWS, .groups = 1, .ends = {ROWS}};
    const ops_bytes a = make_data(&p, FORWARD, &gemm_ways[PORTABLE_F32], OPS_EXACT);
    set_variable("MOERT_BACKEND", NULL);
    moert_gemm gemm = upload_gemm(&p, &a);
    gemm.x.type = gemm.y.type = MOERT_DTYPE_BF16;
    for (moert_gemm_kind kind = MOERT_GEMM_FORWARD; kind <= MOERT_GEMM_DGRAD; kind++) {
        const moert_gemm_more more = {.places = gemm.y.buffer};
        REFUSED(kind, MOERT_ERROR_UNSUPPORTED, "results in f32", wrong.n = wrong.k = N);
        REFUSED(kind, MOERT_ERROR_UNSUPPORTED, "results without scatter",
                (wrong.n = wrong.k = N, wrong.groups.runs = 1, wrong.more = &more));
        REFUSED(kind, MOERT_ERROR_UNSUPPORTED, "results without scatter",
                (wrong.n = wrong.k = N, wrong.groups.runs = 1, wrong.more = &more,
                 moert_gemm_set(&wrong, kind, MOERT_DTYPE_BF16)));
    }
    /* the 2 N columns of gate and up are aligned; the N columns of gate alone are not */
    const moert_panels_shape shape = {1, 2 * N, 2 * N, MOERT_PANELS_GATED, MOERT_DTYPE_BF16};
    moert_panels *panels;
    ASSERT_OK(moert_panels_create(test_device, &shape, &panels));
    gemm.panels = panels;
    gemm.glu = (moert_glu){.gated = MOERT_GATED, .form = MOERT_GLU_SWIGLU, .h = gemm.y.buffer};
    ASSERT_FAILS(moert_gemm_run(&gemm), MOERT_ERROR_UNSUPPORTED, "results in f32");
    moert_panels_destroy(panels);
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

/* v must be exact; h may have the rounding error of exp. */
TEST(test_a_gemm_with_a_glu_is_near_float64) {
    for (size_t i = 0; i < BF16; i++)
        for (size_t f = 0; f < GATES; f++) {
            const problem p = gated(i, f);
            way by = nvidia;
            by.drop_v = (i + f) % 3 == 0;
            ops_bytes data = make_data(&p, FORWARD, &by, OPS_EXACT);
            check_gemm(&p, FORWARD, &by, &data, 0.0);
        }
}

TEST(test_v_in_bf16_is_a_cast_of_the_float32_v_and_leaves_h_alone) {
    enum { UNALIGNED = 5 };
    size_t able = 0;
    for (size_t i = 0; i < (size_t)BF16 * GATES; i++) {
        const problem p = gated(i / GATES, i % GATES);
        problem half = p; /* gates or ups */
        half.n /= 2;
        if (!can(moert_gemm_rounds, &p) || !can(moert_gemm_rounds, &half))
            continue;
        able++;
        ops_bytes want = run_new(&p, FORWARD, &nvidia);
        round_data(&want, results_of(&want).which, MOERT_DTYPE_BF16);
        check_run(&p, FORWARD, &rounded, &want);
    }
    assert_int_equal(able,
                     has_tensor_cores("portable rounds nothing") ? (BF16 - UNALIGNED) * GATES : 0);
}

/* ---- bits ---- */

static const problem three_groups = {.n = 272,
                                     .k = 328,
                                     .rows = 300,
                                     .groups = 3,
                                     .ends = {40, 157, 300},
                                     .shared = true,
                                     .bias = true};

TEST(test_a_row_has_the_same_bits_with_any_other_rows) {
    static const size_t ranges[][2] = {{0, 1}, {7, 65}, {127, 173}, {299, 1}};
    check_company(&three_groups, &nvidia, ranges, MOERT_COUNT(ranges));
    check_company(&three_groups, &split, ranges, MOERT_COUNT(ranges));
}

/* The rows of the neighbouring groups are NaN and infinite. */
TEST(test_a_group_has_the_same_gradient_with_any_other_groups) {
    const size_t first = three_groups.ends[0], rows = three_groups.ends[1] - first;
    const ops_bytes start = make_data(&three_groups, WGRAD, &split, OPS_WIDE);
    ops_bytes all = ops_bytes_copy(&start);
    for (size_t m = 0; m < three_groups.rows; m++)
        for (size_t i = 0; i < three_groups.k && (m < first || m >= first + rows); i++) {
            ops_floats(&all, MOERT_OP_BUFFER_x)[m * three_groups.k + i] = NAN;
            ops_floats(&all, MOERT_OP_BUFFER_y)[m * three_groups.n + i % three_groups.n] = INFINITY;
        }
    run_gemm(&three_groups, WGRAD, &split, &all);
    ops_bytes alone = run_alone(&three_groups, WGRAD, &split, &start, first, rows);
    ops_assert_same_rows("gradient", &(ops_pair){&alone, &all, 0, 1, rows, 0});
}

TEST(test_parts_of_the_groups_give_the_bits_of_the_whole) {
    for (size_t i = 0; i < BF16; i++)
        for (operation op = 0; op < OPERATIONS && !problems[i].shared; op++)
            check_parts(&problems[i], op, &nvidia);
}

/* A GEMM's first launch ends when all tiles are computed, also if other compute units join the GEMM
 * later. However the units are divided, each tile is computed exactly once. */
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
    for (size_t i = 0; i <= BF16; i++) {
        problem p = i < BF16 ? problems[i] : large;
        for (size_t j = 0; j < 2 * MOERT_COUNT(spared); j++) {
            way joined = nvidia;
            joined.spared = spared[j / 2];
            p.accumulate = j % 2 == 0;
            joined.name = titled("%u units spared", joined.spared);
            const ops_bytes want = run_new(&p, WGRAD, &nvidia);
            check_run(&p, WGRAD, &joined, &want);
        }
    }
}

/* ---- prepacked weights ---- */

TEST(test_one_prepacked_weight_of_the_first_gemm_serves_all_uses) {
    enum { N = 32, K = 16, M = 4 };
    const problem p = {.n = N, .k = K, .rows = M, .groups = 1, .ends = {M}};
    uint16_t ones[N * K];
    moert_weight_cache cache = {0};
    if (!has_tensor_cores("portable computes"))
        return;
    set_variable("MOERT_BACKEND", NULL);
    assert_string_equal(moert_backend_name(test_device), "nvidia");
    ops_bytes a = make_data(&p, FORWARD, &gemm_ways[PORTABLE_F32], OPS_EXACT);
    for (size_t i = 0; i < (size_t)N * K; i++) {
        ones[i] = 0x3F80;
        ops_floats(&a, MOERT_OP_BUFFER_weight)[i] = (float)(i % K);
    }
    moert_gemm source = upload_gemm(&p, &a);
    moert_buffer *rows = upload(ones, sizeof ones), *result = source.y.buffer;
    for (moert_panels_use use = 0; use < MOERT_PANELS_USES; use++) {
        const bool dgrad = use == MOERT_PANELS_DGRAD;
        moert_gemm gemm = source;
        moert_gemm_set(&gemm, dgrad ? MOERT_GEMM_DGRAD : MOERT_GEMM_FORWARD, MOERT_DTYPE_BF16);
        gemm.x.buffer = dgrad ? result : rows;
        gemm.y.buffer = dgrad ? rows : result;
        gemm.glu.gated = use == MOERT_PANELS_GATED ? MOERT_GATED : MOERT_UNGATED;
        ASSERT_OK(moert_weight_cache_take(&cache, &gemm));
        gemm.glu.gated = MOERT_UNGATED;
        assert_non_null(gemm.panels);
        assert_int_equal(weight_cache_bytes(&cache), N * K * sizeof(uint16_t));
        ASSERT_OK(moert_gemm_run(&gemm));
        float first[2];
        ASSERT_OK(moert_buffer_read(result, 0, first, sizeof first));
        assert_true(first[1] == (dgrad ? (float)N : (float)(K * (K - 1) / 2)));
    }
    /* If the optimizer has written the prepacked weight, no GEMM fills the prepacked weight again.
     * If not, the next GEMM fills the prepacked weight, even if it repeats an earlier GEMM */
    source.x.buffer = rows;
    moert_gemm_set(&source, MOERT_GEMM_FORWARD, MOERT_DTYPE_BF16);
    ASSERT_OK(moert_buffer_write(moert_weight_cache_copy(&cache, N * K), 0, ones, sizeof ones));
    for (int i = 0; i < 3; i++) {
        float sum;
        moert_weight_cache_changed(&cache);
        if (i < 2)
            moert_weight_cache_rounded(&cache);
        cache.repeats = i == 2;
        ASSERT_OK(moert_weight_cache_take(&cache, &source));
        ASSERT_OK(run_as(MOERT_GEMM_FORWARD, &source));
        ASSERT_OK(moert_buffer_read(result, 0, &sum, sizeof sum));
        assert_true(sum == (float)(i < 2 ? K : K * (K - 1) / 2));
    }
    moert_weight_cache_free(&cache);
}

int main(void) {
    return run_tensor_forms(__FILE__);
}
