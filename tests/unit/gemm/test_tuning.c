// run: check=1 all=1san
/* Tuning rows: their grammar and bounds, the choice of a row, and the storing of rows. */
#include <sys/wait.h>
#include <unistd.h>

#include "device/device.h"
#include "io/durable.h"
#include "support/files.h"
#include "support/gemm/gemm.h"

static void read_rows(const char *text) {
    write_text("rows", text);
    moert_tuning_reload();
}

/* Replaces the built-in rows. */
static void build_in(const char *text) {
    ASSERT_OK(moert_make_directories(in_directory("kernels/gemm")));
    write_text("kernels/gemm/tuning.txt", text);
    set_variable("MOERT_KERNEL_DIR", in_directory("kernels"));
    moert_tuning_reload();
}

static moert_choices find(moert_tuned tuned, size_t n, size_t k, size_t rows) {
    const moert_tuning_key key = {tuned, MOERT_DTYPE_F32, n, k, rows};
    return moert_tuning_find(test_device, &key);
}

static void assert_choices(moert_choices got, moert_choices want) {
    char a[128], b[128];
    moert_choices_print(&got, a, sizeof a);
    moert_choices_print(&want, b, sizeof b);
    assert_string_equal(a, b);
}

/* ---- text ---- */

/* Parses a line; returns its row as text, "" if the line has no row, or the error message. */
static const char *parsed(const char *line) {
    moert_tuning_row row;
    char text[256], reason[160];
    bool empty;
    if (!moert_tuning_parse(line, &row, &empty, reason))
        return titled("%s", reason);
    moert_tuning_print(&row, text, sizeof text);
    return empty ? "" : titled("%s", text);
}

TEST(test_a_row_is_printed_as_it_was_read) {
    static const char *const lines[] = {
        "default * * * * * panels=4 depth=1024 split=512 lines=8 width=2",
        "device \"An EPYC, \" forward f32 1408 512 32-63 split=64",
        "vendor \"AMD\" wgrad bf16 1- 16-512 * width=3",
        "family \"cpu-avx512\" prepacked_dgrad * * 7 8- lines=12",
    };
    for (size_t i = 0; i < MOERT_COUNT(lines); i++)
        assert_string_equal(parsed(lines[i]), lines[i]);
    assert_string_equal(parsed("device \"An EPYC, \"forward f32 1408 512 32-63 split=64"),
                        lines[1]);
}

TEST(test_comments_and_empty_lines_are_not_rows) {
    static const char *const lines[] = {"", "  \t\r", "# default * * * * * panels=4", "  #"};
    for (size_t i = 0; i < MOERT_COUNT(lines); i++)
        assert_string_equal(parsed(lines[i]), "");
    assert_string_equal(parsed("default * * * * * panels=4#x"), "default * * * * * panels=4");
}

TEST(test_an_error_names_what_is_wrong_with_a_line) {
    static const struct {
        const char *line, *problem;
    } bad[] = {
        {"everyone * * * * * panels=4", "'everyone', not device"},
        {"default * * * * *", "6 words, fewer than 7"},
        {"device \"EPYC * * * * * panels=4", "quote without end"},
        {"default sideways * * * * panels=4", "no operation 'sideways'"},
        {"default * f16 * * * panels=4", "'f16', not f32"},
        {"default * * 0 * * panels=4", "'0' is not a size"},
        {"default * * * 9-8 * panels=4", "'9-8' is not a size"},
        {"default * * * * -8 panels=4", "'-8' is not a size"},
        {"default * * * * 99999999999999999999 panels=4", "is not a size"},
        {"default * * * * * panels", "is not panels=NUMBER"},
        {"default * * * * * panels=-1", "is not panels=NUMBER"},
        {"default * * * * * panels=0", "panels=0 is not 1 to 64"},
        {"default * * * * * panels=65", "panels=65 is not 1 to 64"},
        {"default * * * * * panels=4294967298", "panels=4294967298 is not"},
        {"default * * * * * depth=24", "depth=24 is not 16 to 4096, a multiple of 16"},
        {"default * * * * * depth=8192", "not 16 to 4096"},
        {"default * * * * * split=65537", "not 1 to 65536"},
        {"default * * * * * lines=17", "not 1 to 16"},
        {"default * * * * * width=5", "not 1 to 4"},
        {"default * * * * * colour=5", "no choice 'colour=5'"},
    };
    for (size_t i = 0; i < MOERT_COUNT(bad); i++)
        if (strstr(parsed(bad[i].line), bad[i].problem) == NULL)
            fail_msg("'%s' gives '%s', not '%s'", bad[i].line, parsed(bad[i].line), bad[i].problem);
}

/* Random bytes, and rows with changed bytes: every accepted row is within its bounds. */
TEST(test_no_line_gives_choices_out_of_bounds) {
    static const char row_text[] = "device \"a b\" forward f32 1408 512- 32-63 panels=4 depth=1024 "
                                   "split=512 lines=8 width=2 # c";
    size_t taken = 0;
    srand(1);
    for (size_t i = 0; i < 20000; i++) {
        char line[sizeof row_text], reason[160];
        moert_tuning_row row;
        bool empty;
        memcpy(line, row_text, sizeof line);
        for (int changes = rand() % 3; changes >= 0; changes--)
            line[(size_t)rand() % (sizeof line - 1)] = (char)(1 + rand() % 127);
        if (!moert_tuning_parse(line, &row, &empty, reason) || empty)
            continue;
        taken++;
        assert_true(moert_choices_check(&row.choices, reason));
    }
    assert_in_range(taken, 300, 20000);
}

/* ---- the choice of a row ---- */

/* test_tuning_bits parses all built-in rows. */
TEST_WITH(test_a_built_in_row_is_found, forget_tuning, NULL) {
    const moert_tuning_key key = {MOERT_TUNED_WGRAD, MOERT_DTYPE_BF16, 0, 0, 0};
    moert_tuning_report report;
    assert_true(moert_tuning_survey(test_device, &key, 0, &report));
    assert_non_null(strstr(report.place, "kernels/gemm/tuning.txt:"));
}

TEST_WITH(test_without_any_row_gemms_use_the_standard_choices, forget_tuning, NULL) {
    build_in("# nothing\n");
    assert_choices(find(MOERT_TUNED_WGRAD, 10, 10, 10), standard_choices);
    ASSERT_OK(moert_remove_tree(in_directory("kernels")));
    moert_tuning_reload();
    assert_choices(find(MOERT_TUNED_WGRAD, 10, 10, 10), standard_choices);
}

TEST_WITH(test_device_comes_before_family_before_vendor_before_default, forget_tuning, NULL) {
    const moert_device_info *info = moert_device_describe(test_device);
    const char *family = moert_tuning_family(info);
    build_in(titled("device \"%.*s\" * * * * * panels=9\n"
                    "default forward f32 64 64 64 panels=6 depth=16 split=6 lines=6\n"
                    "vendor \"%s\" * * * * * panels=7 depth=32 split=7\n"
                    "family %.3s * * * * * panels=8 depth=48\n"
                    "family %.2s * * * * * panels=1 # no part of a name\n"
                    "device \"another one\" forward f32 64 64 64 panels=2\n",
                    3, info->name, info->vendor, family, family));
    assert_choices(find(MOERT_TUNED_FORWARD, 64, 64, 64), (moert_choices){9, 48, 7, 6, 2, 4096});
    assert_choices(find(MOERT_TUNED_FORWARD, 64, 64, 65), (moert_choices){9, 48, 7, 8, 2, 4096});
}

TEST_WITH(test_the_row_that_names_more_of_the_shape_is_chosen, forget_tuning, NULL) {
    build_in("default * * * * 20 panels=5\n"
             "default * * 10 10 * panels=3\n"
             "default forward * * * * panels=1\n"
             "default * * 10 1- * panels=2\n"
             "default * f32 * * * panels=7\n"
             "default * * * * * panels=6\n"
             "default * * * * 30-40 panels=8\n"
             "default * * * * 30-50 panels=9\n");
    assert_int_equal(find(MOERT_TUNED_FORWARD, 10, 10, 20).panels, 3);
    assert_int_equal(find(MOERT_TUNED_FORWARD, 10, 11, 21).panels, 2);
    assert_int_equal(find(MOERT_TUNED_FORWARD, 11, 11, 20).panels, 5);
    /* two rows name ranges that contain 35; the later row counts */
    assert_int_equal(find(MOERT_TUNED_FORWARD, 11, 11, 35).panels, 9);
    assert_int_equal(find(MOERT_TUNED_DGRAD, 11, 11, 60).panels, 7);
    assert_int_equal(find(MOERT_TUNED_DGRAD, 0, 0, 0).panels, 7); /* 0 means an unknown size */
}

TEST_WITH(test_measured_rows_come_before_built_in_ones_of_a_level, forget_tuning, NULL) {
    build_in("default * * 10 10 10 panels=3\nfamily cpu * * * * * split=9\nfamily gpu * * * * * "
             "split=9\n");
    /* the last row has no newline, so it is not fully written yet */
    read_rows("default * * * * * panels=5 split=10\nfamily nothing * * * * * panels=6\n"
              "default * * * * * panels=6");
    const moert_choices c = find(MOERT_TUNED_FORWARD, 10, 10, 10);
    assert_int_equal(c.panels, 5);
    assert_int_equal(c.split, 9);
    set_variable("MOERT_TUNE", "off");
    moert_tuning_reload();
    assert_int_equal(find(MOERT_TUNED_FORWARD, 10, 10, 10).panels, 3);
}

/* ---- storing rows ---- */

TEST_WITH(test_a_stored_row_is_found_again, forget_tuning, NULL) {
    const moert_tuning_key key = {MOERT_TUNED_DGRAD, MOERT_DTYPE_BF16, 96, 64, 50};
    const moert_choices first = {2, 256, 64, 6, 3, 32}, second = {1, 16, 1, 1, 1, 16};
    moert_tuning_key other = key;
    const moert_choices before = moert_tuning_find(test_device, &key);
    ASSERT_OK(moert_tuning_remember(test_device, MOERT_TUNING_DEVICE, &key, &first, "a test"));
    ASSERT_OK(moert_tuning_remember(test_device, MOERT_TUNING_DEVICE, &key, &second,
                                    "a test # \"of\" comments"));
    for (int again = 0; again < 2; again++) {
        assert_choices(moert_tuning_find(test_device, &key), second);
        other.rows = 63; /* 63 is in the tuning row's range of rows, 32 to 63 */
        assert_choices(moert_tuning_find(test_device, &other), second);
        other.rows = 64;
        assert_choices(moert_tuning_find(test_device, &other), before);
        moert_tuning_reload();
    }
    char *text = read_file(in_directory("rows"), NULL);
    assert_non_null(strstr(text, " dgrad bf16 96 64 32-63 panels=2 depth=256 split=64 lines=6 "
                                 "width=3 prefetch=32 # a test\n"));
}

TEST_WITH(test_a_file_that_cannot_be_written_is_an_error_and_the_row_still_counts, forget_tuning,
          NULL) {
    const moert_tuning_key key = {MOERT_TUNED_DGRAD, MOERT_DTYPE_F32, 96, 64, 50};
    set_variable("MOERT_TUNE_FILE", in_directory("no/such/directory"));
    const moert_choices choices = {1, 16, 1, 1, 1, 16};
    ASSERT_FAILS(moert_tuning_remember(test_device, MOERT_TUNING_DEVICE, &key, &choices, "a test"),
                 MOERT_ERROR_IO, "No such file");
    assert_choices(moert_tuning_find(test_device, &key), choices);
}

TEST_WITH(test_rows_of_processes_that_write_at_once_are_whole, forget_tuning, NULL) {
    enum { WRITERS = 4, ROWS = 50 };
    pid_t children[WRITERS];
    fflush(NULL);
    for (unsigned i = 0; i < WRITERS; i++) {
        if ((children[i] = fork()) != 0)
            continue;
        const moert_choices c = {1 + i, 16, 1, 1, 1, 16};
        moert_status status = MOERT_OK;
        for (size_t row = 1; row <= ROWS; row++) {
            const moert_tuning_key key = {MOERT_TUNED_WGRAD, MOERT_DTYPE_F32, row, 1 + i, 1};
            status |= moert_tuning_remember(test_device, MOERT_TUNING_DEVICE, &key, &c, "a test");
        }
        _exit(status == MOERT_OK ? 0 : 1);
    }
    for (size_t i = 0; i < WRITERS; i++) {
        int status = -1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    moert_tuning_reload();
    for (unsigned i = 0; i < WRITERS; i++)
        for (size_t row = 1; row <= ROWS; row++)
            assert_int_equal(find(MOERT_TUNED_WGRAD, row, 1 + i, 1).panels, 1 + i);
}

TESTS(open_device_and_directory, close_device_and_directory)
