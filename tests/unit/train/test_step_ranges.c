// run: check=1 all=1san device=0
/* Steps that options name. */
#include "support/files.h"
#include "train/step_ranges.h"

TEST(test_ranges_are_read_and_counted) {
    moert_step_ranges r;
    ASSERT_OK(moert_step_ranges_read("3:5,5:6,100:1000000000000", &r));
    assert_int_equal(r.count, 3);
    static const struct {
        uint64_t step, below;
        bool has;
    } rows[] = {{0, 0, false}, {3, 0, true},   {4, 1, true},   {5, 2, true},
                {6, 3, false}, {99, 3, false}, {100, 3, true}, {150, 53, true}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        assert_int_equal(moert_step_ranges_below(&r, rows[i].step), rows[i].below);
        assert_int_equal(moert_step_ranges_have(&r, rows[i].step), rows[i].has);
    }
    assert_int_equal(moert_step_ranges_below(&r, UINT64_MAX), 999999999903);
    const moert_step_ranges none = {0};
    assert_true(!moert_step_ranges_have(&none, 0) && moert_step_ranges_below(&none, 9) == 0);
}

TEST(test_bad_ranges_are_refused) {
    static const char *const bad[] = {
        "",      "3",       ":3",      "3:",   "3:3",  "4:3",  "3:4,",
        "3:4:5", "3:5,4:6", "5:6,1:2", "-1:2", " 1:2", "1:2 ", "1:1000000000000000000000"};
    for (size_t i = 0; i < MOERT_COUNT(bad); i++) {
        moert_step_ranges r = {.count = 7};
        ASSERT_FAILS(moert_step_ranges_read(bad[i], &r), MOERT_ERROR_USAGE, "expected A:B");
        assert_int_equal(r.count, 7);
    }
    char text[8 * (MOERT_STEP_RANGES_MOST + 1)] = "";
    moert_step_ranges r;
    for (int i = 0; i < MOERT_STEP_RANGES_MOST; i++)
        sprintf(text + strlen(text), "%s%d:%d", i > 0 ? "," : "", 2 * i, 2 * i + 1);
    ASSERT_OK(moert_step_ranges_read(text, &r));
    strcat(text, ",900:901");
    ASSERT_FAILS(moert_step_ranges_read(text, &r), MOERT_ERROR_USAGE, "more than 64 ranges");
}

TEST(test_a_step_or_several_are_read) {
    static const char *const bad[] = {"", "x", "3:0", "3:", ":2", "3:2:1", "-3", "3,4"};
    moert_step_range r;
    ASSERT_OK(moert_step_range_read("17", &r));
    assert_true(r.first == 17 && r.end == 18);
    ASSERT_OK(moert_step_range_read("0:5", &r));
    assert_true(r.first == 0 && r.end == 5);
    for (size_t i = 0; i < MOERT_COUNT(bad); i++)
        ASSERT_FAILS(moert_step_range_read(bad[i], &r), MOERT_ERROR_USAGE, "STEP or STEP:COUNT");
}

TESTS(NULL, NULL)
