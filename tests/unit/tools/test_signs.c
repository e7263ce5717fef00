// run: check=1 all=1san device=0
/* Signs of long activities: after two seconds, of the innermost activity, with its parts. */
#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/progress.h"
#include "support/files.h"
#include "support/test.h"
#include "tools/common/signs.h"

static void pass(double seconds) {
    usleep((useconds_t)(1e6 * seconds));
}

TEST(test_activities_are_nested_and_go_on_after_a_short_pause) {
    moert_progress now;
    assert_false(moert_progress_get(&now));
    moert_progress_begin("evaluating", 4);
    moert_progress_add(3);
    moert_progress_begin("compiling", 0);
    assert_true(moert_progress_get(&now) && strcmp(now.what, "compiling") == 0 && now.of == 0);
    moert_progress_add(1);
    const uint64_t began_ns = now.began_ns;
    moert_progress_end();
    assert_true(moert_progress_get(&now) && strcmp(now.what, "evaluating") == 0 && now.done == 3 &&
                now.of == 4);
    moert_progress_begin("compiling", 0); /* goes on */
    moert_progress_add(1);
    assert_true(moert_progress_get(&now) && now.done == 2 && now.began_ns == began_ns);
    moert_progress_end();
    moert_progress_end();
    assert_false(moert_progress_get(&now));
    moert_progress_begin("compiling", 0); /* another activity has ended since */
    assert_true(moert_progress_get(&now) && now.done == 0);
    for (int i = 0; i < 20; i++) /* deeper than the stack: the innermost are not shown */
        moert_progress_begin("deep", 0);
    for (int i = 0; i < 21; i++)
        moert_progress_end();
    assert_false(moert_progress_get(&now));
}

TEST(test_a_file_gets_a_line_after_two_seconds) {
    const char *path = in_directory("stderr");
    const int before = dup(STDERR_FILENO), file = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
    assert_true(before >= 0 && dup2(file, STDERR_FILENO) >= 0);
    moert_signs_begin();
    moert_progress_begin("reading short files", 0);
    pass(0.5);
    moert_progress_end();
    moert_progress_begin("reading long files", 3);
    moert_progress_add(1);
    pass(2.7);
    moert_progress_end();
    moert_signs_end();
    moert_signs_end();
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    close(file);
    assert_string_equal(read_file(path, NULL), "... reading long files: 1 of 3, 2 s\n");
}

TESTS(make_test_directory, remove_test_directory)
