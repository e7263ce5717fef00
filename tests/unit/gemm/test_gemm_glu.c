// run: check=1 all=1san
/* A forward GEMM with a fused GLU has the bits of a GEMM followed by a GLU, for every backend,
 * dtype and tile. */

#include <xxhash.h>

#include "base/memory.h"
#include "gemm/tuning/tuning.h"
#include "support/gemm/gemm.h"

/* Widths of the GLU around the 16 columns of a tile, several blocks of K, empty groups, rows past
 * the last end. */
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

/* A tile of even width applies the GLU; one of odd width leaves it to a separate pass. */
static const moert_choices fusing = {4, 1024, 512, 8, 2, 16}, separate = {4, 1024, 512, 6, 1, 4096};

static void force_tile(const moert_choices *choices) {
    ASSERT_OK(moert_tuning_force(choices));
}

static int force_fusing(void **state) {
    (void)state;
    return moert_tuning_force(&fusing) == MOERT_OK ? 0 : -1;
}

static int force_none(void **state) {
    (void)state;
    return moert_tuning_force(NULL) == MOERT_OK ? 0 : -1;
}

/* Compares one fused call with two calls: the same h, and the same v unless it is dropped. */
static void compare_calls(const problem *p, size_t f, const way *by) {
    gated_run how = gated_forms[f];
    how.fused = false;
    const gated want = run_gated(p, &how, by, false);
    how.fused = true;
    for (int drop = 0; drop < 2; drop++) {
        how.drop_v = drop != 0;
        const gated got = run_gated(p, &how, by, false);
        const char *title = titled("n %zu, k %zu, form %zu, %s, %s v", p->n, p->k, f, by->name,
                                   drop ? "dropped" : "kept");
        assert_same_bits(title, got.h, want.h, want.results);
        if (!drop)
            compare_arrays(title, &got.a, &want.a);
    }
}

/* Even problems use the first two forms, odd problems the last two. */
TEST_WITH(test_a_fused_call_has_the_bits_of_two_calls, NULL, force_none) {
    /* NULL: the tile that this CPU uses by default */
    const moert_choices *const tiles[] = {NULL, &fusing, &separate};
    for (size_t t = 0; t < MOERT_COUNT(tiles); t++) {
        force_tile(tiles[t]);
        for (size_t i = 0; i < PROBLEMS; i++)
            for (size_t f = i % 2 * 2, last = f + 2; f < last; f++)
                for (size_t w = 0; w < gemm_way_count; w++)
                    compare_calls(&problems[i], f, &gemm_ways[w]);
    }
}

/* A v of more than 16 MiB is written past the caches, unless its rows are not aligned. */
TEST(test_a_fused_call_with_a_large_v_has_the_bits_of_two_calls) {
    const problem large[] = {{.n = 2048, .k = 1, .rows = 2100, .groups = 2, .ends = {1001, 2100}},
                             {.n = 2064, .k = 1, .rows = 2100, .groups = 2, .ends = {1001, 2100}}};
    for (size_t i = 0; i < MOERT_COUNT(large); i++) {
        compare_calls(&large[i], 0, &gemm_ways[PORTABLE_F32]);
        compare_calls(&large[i], 2, &gemm_ways[PREPACKED_BF16]);
    }
}

TEST_WITH(test_h_in_bf16_is_the_rounded_float32_h, force_fusing, force_none) {
    for (size_t i = 0; i < PROBLEMS; i++)
        for (size_t w = 0; w < gemm_way_count; w++) {
            if (gemm_ways[w].type == MOERT_DTYPE_F32)
                continue; /* the backend refuses this case */
            gated_run how = gated_forms[i % GATED_FORMS];
            const gated full = run_gated(&problems[i], &how, &gemm_ways[w], false);
            how.type = MOERT_DTYPE_BF16;
            const gated rounded = run_gated(&problems[i], &how, &gemm_ways[w], false);
            for (size_t j = 0; j < full.results; j++)
                full.h[j] = round_to(MOERT_DTYPE_BF16, full.h[j]);
            assert_same_bits(gemm_ways[w].name, rounded.h, full.h, full.results);
            compare_arrays(gemm_ways[w].name, &rounded.a, &full.a);
        }
}

TEST_WITH(test_v_of_the_portable_backend_has_the_bits_of_the_reference, force_fusing, force_none) {
    for (size_t i = 0; i < PROBLEMS; i++)
        for (size_t w = 0; w < gemm_way_count; w++) {
            const way *by = &gemm_ways[w];
            const gated_run one = {.form = gated_forms[i % GATED_FORMS].form, .fused = true};
            const gated got = run_gated(&problems[i], &one, by, false);
            const gated want = run_gated(&problems[i], &one, reference_of(by), false);
            compare_arrays(by->name, &got.a, &want.a);
        }
}

TEST_WITH(test_parts_of_the_groups_give_the_bits_of_the_whole, NULL, force_none) {
    const moert_choices *const tiles[] = {&fusing, &separate};
    for (size_t t = 0; t < MOERT_COUNT(tiles); t++) {
        force_tile(tiles[t]);
        for (size_t i = 0; i < PROBLEMS; i++)
            for (size_t w = 0; w < gemm_way_count && !problems[i].shared; w++) {
                const gated_run *one = &gated_forms[i % GATED_FORMS];
                way by = gemm_ways[w];
                const gated whole = run_gated(&problems[i], one, &by, false);
                by.parts = true;
                const gated parts = run_gated(&problems[i], one, &by, false);
                compare_arrays(by.name, &parts.a, &whole.a);
                assert_same_bits(by.name, parts.h, whole.h, whole.results);
            }
    }
}

TEST_WITH(test_a_dropped_v_is_not_written_after_a_short_chain, force_fusing, force_none) {
    if (moert_device_describe(test_device)->gpu_form) {
        print_message("# skipped: in GPU form the GLU is a separate launch\n");
        return;
    }
    for (size_t i = 0; i < PROBLEMS; i++)
        for (size_t w = PORTABLE_F32; w <= PREPACKED_F32 && problems[i].k <= 64; w++) {
            const gated_run one = {
                .form = gated_forms[i % GATED_FORMS].form, .fused = true, .drop_v = true};
            const gated got = run_gated(&problems[i], &one, &gemm_ways[w], false);
            const arrays before = make_arrays(&problems[i], false);
            compare_arrays(gemm_ways[w].name, &got.a, &before);
        }
}

/* Returns a hash of all results of the portable backend. */
static uint64_t digest(void) {
    uint64_t hash = 0;
    force_tile(&fusing);
    for (size_t i = 0; i < PROBLEMS; i++)
        for (size_t w = PORTABLE_F32; w < gemm_way_count; w++) {
            const gated_run one = {gated_forms[i % GATED_FORMS].form, 1, .fused = true};
            const gated g = run_gated(&problems[i], &one, &gemm_ways[w], false);
            hash = XXH3_64bits_withSeed(g.h, g.h_count * sizeof *g.h, hash);
            hash = XXH3_64bits_withSeed(g.a.y, g.a.y_count * sizeof *g.a.y, hash);
        }
    return hash;
}

TEST(test_one_and_two_threads_give_the_same_bits) {
    char one[32], two[32];
    digest_by("1", one);
    digest_by("2", two);
    assert_string_equal(one, two);
}

TEST(test_what_does_not_fit_together_is_refused) {
    const problem p = {.n = 4, .k = 4, .rows = 4, .groups = 1, .ends = {4}};
    const arrays a = make_arrays(&p, true);
    moert_gemm right = upload_gemm(&p, &a, MOERT_DTYPE_F32, MOERT_DTYPE_F32);
    right.gated = true;
    right.glu = (moert_glu){.form = MOERT_GLU_SWIGLU, .h = unset_floats(8)};
    moert_gemm wrong[] = {right, right, right, right, right, right, right};
    wrong[0].n = 3;
    wrong[1].ldy = 5;
    wrong[2].accumulate = true;
    wrong[3].glu.h = test_buffer(7 * sizeof(float));
    wrong[4].glu.form.limit = 0.0f;
    wrong[5].k = 0;
    wrong[6].kind = MOERT_GEMM_DGRAD;
    for (size_t b = 0; b < 2; b++) {
        set_variable("MOERT_BACKEND", b == 0 ? "reference" : "portable");
        ASSERT_OK(moert_gemm_run(&right));
        for (size_t i = 0; i < MOERT_COUNT(wrong); i++)
            assert_int_equal(moert_gemm_run(&wrong[i]), MOERT_ERROR_USAGE);
        moert_gemm rounded = right;
        rounded.glu.type = MOERT_DTYPE_BF16;
        ASSERT_FAILS(moert_gemm_run(&rounded), MOERT_ERROR_UNSUPPORTED, "needs bf16 operands");
    }
    moert_prepacked_shape shape = {1, 4, 4, MOERT_PREPACKED_FORWARD, MOERT_DTYPE_F32};
    moert_prepacked *prepacked = NULL;
    ASSERT_OK(moert_prepacked_create(test_device, &shape, &prepacked));
    if (prepacked != NULL) {
        moert_gemm by_panels = right;
        by_panels.prepacked = prepacked;
        ASSERT_FAILS(moert_gemm_run(&by_panels), MOERT_ERROR_USAGE,
                     "cannot serve forward with a GLU");
        by_panels.glu.form.interleaved = true;
        ASSERT_OK(moert_prepacked_fill(prepacked, right.weight));
        ASSERT_OK(moert_gemm_run(&by_panels));
    }
    moert_prepacked_destroy(prepacked);
    shape.n = 3;
    shape.use = MOERT_PREPACKED_GATED;
    ASSERT_FAILS(moert_prepacked_create(test_device, &shape, &prepacked), MOERT_ERROR_USAGE,
                 "needs an even n");
}

int main(int count, char **arguments) {
    return run_with_digest(__FILE__, count, arguments, digest);
}
