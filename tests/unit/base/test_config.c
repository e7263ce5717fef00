// run: check=1 all=1san device=0
/* The table of variables: defaults, types, illegal values, unknown names. */
#include "base/config.h"
#include "base/log.h"
#include "support/test.h"

/* Unsets all variables of the table before a test. */
static int unset_variables(void **state) {
    (void)state;
    moert_variable variable;
    for (size_t i = 0; moert_config_variable(i, &variable); i++)
        set_variable(variable.name, NULL);
    return 0;
}

/* Describes the configuration; choices appear as the words that a user sets. */
static const char *describe(void) {
    const moert_config *c = moert_config_get();
    const char *backend = titled("%s", moert_config_choice("MOERT_BACKEND", c->backend));
    return titled("device %s, backend %s, exchange %s, timeout %u, bind %u, cache '%s', log %d",
                  c->device, backend, moert_config_choice("MOERT_EXCHANGE", c->exchange),
                  c->timeout_s, c->bind, c->cache_dir, (int)c->log_level);
}

TEST_WITH(test_values_are_read_by_their_type_and_have_defaults, unset_variables, NULL) {
    static const char *const set[][2] = {
        {"MOERT_DEVICE", "0:1"},      {"MOERT_BACKEND", "portable"}, {"MOERT_EXCHANGE", "staged"},
        {"MOERT_TIMEOUT_S", "86400"}, {"MOERT_BIND", "0"},           {"MOERT_LOG", "trace"}};
    ASSERT_OK(moert_config_check());
    assert_string_equal(
        describe(),
        "device auto, backend auto, exchange auto, timeout 60, bind 1, cache '', log 1");
    for (size_t i = 0; i < MOERT_COUNT(set); i++)
        set_variable(set[i][0], set[i][1]);
    ASSERT_OK(moert_config_check());
    assert_string_equal(describe(), "device 0:1, backend portable, exchange staged, "
                                    "timeout 86400, bind 0, cache '', log 4");
    assert_int_equal(moert_config_get()->exchange, MOERT_EXCHANGE_STAGED);
    assert_string_equal(moert_config_choice("MOERT_EXCHANGE", 99), "?");
    assert_string_equal(moert_config_choice("MOERT_NOTHING", 0), "?");
}

TEST_WITH(test_the_table_shows_which_variables_are_set, unset_variables, NULL) {
    moert_variable variable;
    size_t count = 0;
    set_variable("MOERT_THREADS", "3");
    for (; moert_config_variable(count, &variable); count++) {
        assert_memory_equal(variable.name, "MOERT_", 6);
        assert_true(strlen(variable.help) > 0);
        if (strcmp(variable.name, "MOERT_THREADS") == 0)
            assert_string_equal(variable.value, "3");
        else
            assert_null(variable.value);
    }
    assert_true(count > 5);
}

TEST(test_illegal_values_are_named_and_leave_the_default) {
    static const struct {
        const char *name, *value, *expected;
    } rows[] = {
        {"MOERT_EXCHANGE", "stage", "auto|local|window|node|staged"},
        {"MOERT_EXCHANGE", "staged|auto", "auto|local|window|node|staged"},
        {"MOERT_EXCHANGE", "", "auto|local|window|node|staged"},
        {"MOERT_BIND", "yes", "0 or 1"},
        {"MOERT_BIND", "", "0 or 1"},
        {"MOERT_BIND", "01", "0 or 1"},
        {"MOERT_TIMEOUT_S", "86401", "0-86400"},
        {"MOERT_TIMEOUT_S", "-1", "0-86400"},
        {"MOERT_TIMEOUT_S", " -1", "0-86400"},
        {"MOERT_TIMEOUT_S", " -18446744073709551600", "0-86400"},
        {"MOERT_TIMEOUT_S", "12s", "0-86400"},
        {"MOERT_TIMEOUT_S", "", "0-86400"},
        {"MOERT_TIMEOUT_S", "99999999999999999999", "0-86400"},
        {"MOERT_LOG", "loud", "error|warn|info|debug|trace"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        char text[128];
        unset_variables(NULL);
        const moert_config standard = *moert_config_get();
        set_variable(rows[i].name, rows[i].value);
        snprintf(text, sizeof text, "%s=%s is not legal; expected %s", rows[i].name, rows[i].value,
                 rows[i].expected);
        ASSERT_FAILS(moert_config_check(), MOERT_ERROR_USAGE, text);
        assert_memory_equal(moert_config_get(), &standard, sizeof standard);
    }
}

TEST(test_portable_by_name_means_sums_value_by_value) {
    static const struct {
        const char *backend, *form, *bf16;
        unsigned sums;
        const char *refused; /* part of the expected error message, or NULL */
    } rows[] = {
        {NULL, NULL, NULL, MOERT_BF16_AUTO, NULL},
        {"portable", NULL, NULL, MOERT_BF16_WIDENED, NULL},
        {"portable", NULL, "auto", MOERT_BF16_WIDENED, NULL},
        {"reference", NULL, NULL, MOERT_BF16_AUTO, NULL},
        {"reference", "cpu", "tiles", MOERT_BF16_TILES, NULL},
        {"portable", NULL, "tiles", MOERT_BF16_TILES, "MOERT_BACKEND=portable"},
        {NULL, "gpu", "tiles", MOERT_BF16_TILES, "MOERT_FORM=gpu"},
        {NULL, "gpu", "widened", MOERT_BF16_WIDENED, NULL},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        unset_variables(NULL);
        set_variable("MOERT_BACKEND", rows[i].backend);
        set_variable("MOERT_FORM", rows[i].form);
        set_variable("MOERT_BF16", rows[i].bf16);
        assert_int_equal(moert_config_get()->bf16, rows[i].sums);
        if (rows[i].refused == NULL)
            ASSERT_OK(moert_config_check());
        else
            ASSERT_FAILS(moert_config_check(), MOERT_ERROR_USAGE, rows[i].refused);
    }
}

static void keep_line(void *text, int level, const char *line) {
    snprintf(text, 256, "%d %s", level, line);
}

TEST_WITH(test_unknown_variables_warn_with_the_nearest_name, unset_variables, NULL) {
    char text[256] = "";
    set_variable("MOERT_EXCHANG", "staged");
    moert_log_set_sink(keep_line, text);
    const moert_status status = moert_config_check();
    moert_log_set_sink(NULL, NULL);
    set_variable("MOERT_EXCHANG", NULL);
    ASSERT_OK(status);
    assert_int_equal(text[0], '0' + MOERT_LOG_WARN);
    assert_non_null(strstr(text, "MOERT_EXCHANG;"));
    assert_non_null(strstr(text, "did you mean MOERT_EXCHANGE?"));
}

TESTS(NULL, NULL)
