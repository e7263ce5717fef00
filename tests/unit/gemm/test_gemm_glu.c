// run: np=1 sanitize=1
/* A forward product with its GLU: the bits of one after the other, in all ways to compute them. */

#include <xxhash.h>

#include "base/memory.h"
#include "base/number.h"
#include "gemm/tuning/tuning.h"
#include "support/gemm/gemm.h"

/* Widths of the GLU around the 16 columns of a tile, chains of several blocks, empty groups, rows
 * past the last end. */
static const problem problems[] = {
    {.n = 2, .k = 1, .rows = 1, .groups = 1, .ends = {1}, .bias = true},
    {.n = 32, .k = 16, .rows = 0, .groups = 2, .ends = {0, 0}},
    {.n = 32, .k = 33, .rows = 24, .groups = 3, .ends = {8, 16, 24}},
    {.n = 30, .k = 40, .rows = 23, .groups = 4, .ends = {0, 7, 7, 20}, .bias = true, .pad_x = 3},
    {.n = 34, .k = 31, .rows = 19, .groups = 3, .ends = {3, 3, 18}, .bias = true},
    {.n = 18, .k = 64, .rows = 40, .groups = 3, .ends = {3, 20, 39}, .shared = true, .bias = true},
    {.n = 70, .k = 1100, .rows = 18, .groups = 2, .ends = {1, 18}, .bias = true},
    {.n = 96, .k = 2100, .rows = 17, .groups = 2, .ends = {8, 17}},
    {.n = 46, .k = 2100, .rows = 9, .groups = 1, .ends = {9}, .bias = true},
    {.n = 40, .k = 33, .rows = 1200, .groups = 3, .ends = {1, 1100, 1199}},
    {.n = 300, .k = 17, .rows = 11, .groups = 1, .ends = {11}, .shared = true},
};
enum { PROBLEMS = MOERT_COUNT(problems) };

/* Each layout twice: the first two for one half of the problems, the others for the other. */
static const struct {
    moert_glu_form form;
    size_t prob_stride;
} forms[] = {
    {MOERT_GLU_SWIGLU, 0},
    {{true, INFINITY, 1.0f, 0.0f, 0}, 1},
    {MOERT_GLU_GPT_OSS, 3},
    {{false, 2.0f, 1.702f, 1.0f, 0}, 1},
};
enum { FORMS = MOERT_COUNT(forms) };

/* A tile of an even width takes the GLU, one of an odd width leaves it to a pass of its own. */
static const moert_choices taking = {4, 1024, 512, 8, 2, 16}, leaving = {4, 1024, 512, 6, 1, 4096};

static int force_tile(void **choices) {
    return moert_tuning_force(*choices) == MOERT_OK ? 0 : -1;
}

static int force_none(void **state) {
    (void)state;
    return moert_tuning_force(NULL) == MOERT_OK ? 0 : -1;
}

static float *unset_results(const problem *p) {
    float *h = test_alloc(p->rows * p->n / 2 * sizeof *h);
    for (size_t i = 0; i < p->rows * p->n / 2; i++)
        h[i] = NAN;
    return h;
}

/* Numbers of h in the groups' rows: what is past them is nobody's. */
static size_t results_of(const problem *p) {
    return p->ends[p->groups - 1] * p->n / 2;
}

/* One call and two calls: the same h, and the same v unless it is dropped. */
static void compare_calls(size_t i, size_t f, const way *by) {
    const problem *p = &problems[i];
    const gated_run two = {forms[f].form, forms[f].prob_stride, .fused = false};
    arrays want = make_arrays(p, false);
    float *h = unset_results(p);
    run_gated(p, &two, by, &want, h);
    for (int drop = 0; drop < 2; drop++) {
        const gated_run one = {two.form, two.prob_stride, .fused = true, .drop_v = drop != 0};
        arrays got = make_arrays(p, false);
        float *results = unset_results(p);
        char title[96];
        snprintf(title, sizeof title, "problem %zu, form %zu, %s, %s v", i, f, by->name,
                 drop ? "dropped" : "kept");
        run_gated(p, &one, by, &got, results);
        assert_same_bits(title, results, h, results_of(p));
        if (!drop)
            compare_arrays(title, &got, &want);
    }
}

static void test_one_call_has_the_bits_of_two(void **state) {
    (void)state;
    for (size_t i = 0; i < PROBLEMS; i++)
        for (size_t f = i % 2 * 2, last = f + 2; f < last; f++)
            for (size_t w = 0; w < gemm_way_count; w++)
                compare_calls(i, f, &gemm_ways[w]);
}

static void test_an_h_of_bf16_is_the_rounded_one(void **state) {
    (void)state;
    for (size_t i = 0; i < PROBLEMS; i++)
        for (size_t w = 0; w < gemm_way_count; w++) {
            if (gemm_ways[w].type == MOERT_NUMBER_F32)
                continue; /* refused */
            const problem *p = &problems[i];
            gated_run how = {forms[i % FORMS].form, forms[i % FORMS].prob_stride, .fused = true};
            arrays first = make_arrays(p, false), second = make_arrays(p, false);
            float *full = unset_results(p), *rounded = unset_results(p);
            run_gated(p, &how, &gemm_ways[w], &first, full);
            how.type = MOERT_NUMBER_BF16;
            run_gated(p, &how, &gemm_ways[w], &second, rounded);
            for (size_t j = 0; j < p->rows * p->n / 2; j++)
                full[j] = moert_number_decode(MOERT_NUMBER_BF16,
                                              moert_number_encode(MOERT_NUMBER_BF16, full[j]));
            assert_same_bits(gemm_ways[w].name, rounded, full, results_of(p));
            compare_arrays(gemm_ways[w].name, &second, &first);
        }
}

static void test_v_of_the_portable_backend_has_the_bits_of_the_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < PROBLEMS; i++)
        for (size_t w = 0; w < gemm_way_count; w++) {
            const problem *p = &problems[i];
            const way *by = &gemm_ways[w];
            const gated_run one = {.form = forms[i % FORMS].form, .fused = true};
            arrays got = make_arrays(p, false), want = make_arrays(p, false);
            float *h = unset_results(p);
            run_gated(p, &one, by, &got, h);
            run_gated(p, &one, reference_of(by), &want, h);
            compare_arrays(by->name, &got, &want);
        }
}

static void test_parts_of_the_groups_give_the_bits_of_the_whole(void **state) {
    (void)state;
    for (size_t i = 0; i < PROBLEMS; i++)
        for (size_t w = 0; w < gemm_way_count && !problems[i].shared; w++) {
            const problem *p = &problems[i];
            const gated_run one = {forms[i % FORMS].form, forms[i % FORMS].prob_stride,
                                   .fused = true};
            way by = gemm_ways[w];
            arrays whole = make_arrays(p, false), parts = make_arrays(p, false);
            float *h = unset_results(p), *h_parts = unset_results(p);
            run_gated(p, &one, &by, &whole, h);
            by.parts = true;
            run_gated(p, &one, &by, &parts, h_parts);
            compare_arrays(by.name, &parts, &whole);
            assert_same_bits(by.name, h_parts, h, results_of(p));
        }
}

static void test_a_v_that_is_dropped_is_not_written_behind_a_short_chain(void **state) {
    (void)state;
    if (moert_device_describe(test_device)->gpu_form) {
        print_message("# skipped: in GPU form the GLU is a launch of its own\n");
        return;
    }
    for (size_t i = 0; i < PROBLEMS; i++)
        for (size_t w = PORTABLE_F32; w <= PACKED_F32; w++) {
            const problem *p = &problems[i];
            const gated_run one = {.form = forms[i % FORMS].form, .fused = true, .drop_v = true};
            if (p->k > 64)
                continue;
            arrays got = make_arrays(p, false), before = make_arrays(p, false);
            float *h = unset_results(p);
            run_gated(p, &one, &gemm_ways[w], &got, h);
            compare_arrays(gemm_ways[w].name, &got, &before);
        }
}

/* Prints the hash of all results of the portable backend. */
static int print_digest(void) {
    void *state = NULL;
    uint64_t hash = 0;
    if (open_test_device(&state) != 0 || moert_tuning_force(&taking) != MOERT_OK)
        return 1;
    for (size_t i = 0; i < PROBLEMS; i++)
        for (size_t w = PORTABLE_F32; w < gemm_way_count; w++) {
            const problem *p = &problems[i];
            const gated_run one = {forms[i % FORMS].form, 1, .fused = true};
            arrays a = make_arrays(p, false);
            float *h = unset_results(p);
            run_gated(p, &one, &gemm_ways[w], &a, h);
            hash = XXH3_64bits_withSeed(h, p->rows * p->n / 2 * sizeof *h, hash);
            hash = XXH3_64bits_withSeed(a.y, a.y_count * sizeof *a.y, hash);
        }
    printf("%016llx\n", (unsigned long long)hash);
    return close_test_device(&state);
}

static void test_one_and_two_threads_give_the_same_bits(void **state) {
    (void)state;
    char one[32], two[32];
    digest_by("1", one);
    digest_by("2", two);
    assert_string_equal(one, two);
}

static void test_what_does_not_fit_together_is_refused(void **state) {
    (void)state;
    const uint32_t end = 4;
    float data[64] = {0};
    moert_buffer *ends = upload(&end, sizeof end), *x = upload(data, 64 * sizeof *data), *small;
    moert_buffer *y = upload(data, 64 * sizeof *data), *h = upload(data, 64 * sizeof *data);
    small = test_buffer(7 * sizeof *data);
    const moert_gemm right = {.groups = {ends, 1, 4},
                              .n = 4,
                              .k = 4,
                              .x = x,
                              .weight = x,
                              .y = y,
                              .gated = true,
                              .glu = {.form = MOERT_GLU_SWIGLU, .h = h}};
    moert_gemm wrong[] = {right, right, right, right, right, right, right};
    wrong[0].n = 3;
    wrong[1].ldy = 5;
    wrong[2].accumulate = true;
    wrong[3].glu.h = small;
    wrong[4].glu.form.limit = 0.0f;
    wrong[5].k = 0;
    wrong[6].kind = MOERT_GEMM_DGRAD;
    for (size_t b = 0; b < 2; b++) {
        set_variable("MOERT_BACKEND", b == 0 ? "reference" : "portable");
        ASSERT_OK(moert_gemm_run(&right));
        for (size_t i = 0; i < MOERT_COUNT(wrong); i++)
            assert_int_equal(moert_gemm_run(&wrong[i]), MOERT_ERROR_USAGE);
        moert_gemm coded = right;
        coded.glu.type = MOERT_NUMBER_BF16;
        ASSERT_FAILS(moert_gemm_run(&coded), MOERT_ERROR_UNSUPPORTED, "no h of bf16");
    }
    moert_packed_shape shape = {1, 4, 4, MOERT_PACKED_FORWARD, MOERT_NUMBER_F32};
    moert_packed *packed = NULL;
    ASSERT_OK(moert_packed_create(test_device, &shape, &packed));
    if (packed != NULL) {
        moert_gemm by_panels = right;
        by_panels.packed = packed;
        ASSERT_FAILS(moert_gemm_run(&by_panels), MOERT_ERROR_USAGE, "serves no forward with a GLU");
        by_panels.glu.form.interleaved = true;
        ASSERT_OK(moert_packed_fill(packed, x));
        ASSERT_OK(moert_gemm_run(&by_panels));
    }
    moert_packed_destroy(packed);
    shape.n = 3;
    shape.use = MOERT_PACKED_GATED;
    ASSERT_FAILS(moert_packed_create(test_device, &shape, &packed), MOERT_ERROR_USAGE, "odd");
}

int main(int count, char **words) {
    if (count == 2 && strcmp(words[1], "digest") == 0)
        return print_digest();
#define BY(tile, test)                                                                             \
    cmocka_unit_test_prestate_setup_teardown(test, force_tile, force_none, (void *)&(tile))
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_one_call_has_the_bits_of_two), /* by this CPU's tiles, wide ones too */
        BY(taking, test_one_call_has_the_bits_of_two),
        BY(leaving, test_one_call_has_the_bits_of_two),
        BY(taking, test_an_h_of_bf16_is_the_rounded_one),
        BY(taking, test_v_of_the_portable_backend_has_the_bits_of_the_reference),
        BY(taking, test_parts_of_the_groups_give_the_bits_of_the_whole),
        BY(leaving, test_parts_of_the_groups_give_the_bits_of_the_whole),
        BY(taking, test_a_v_that_is_dropped_is_not_written_behind_a_short_chain),
        cmocka_unit_test(test_one_and_two_threads_give_the_same_bits),
        cmocka_unit_test(test_what_does_not_fit_together_is_refused),
    };
    return run_table("gemm with GLU", tests, MOERT_COUNT(tests), open_test_device,
                     close_test_device);
}
