/* Runs moert's programs in this process. */
#include "support/program.h"

#include <limits.h>
#include <regex.h>
#include <unistd.h>
#include <wordexp.h>

#include "support/files.h"

int open_context_and_shared_directory(void **state) {
    if (open_test_context(state) != 0 || (test_rank == 0 && make_test_directory(state) != 0) ||
        moert_comm_broadcast(test_comm, 0, test_directory, strlen(test_directory)) != MOERT_OK)
        return -1;
    char program[PATH_MAX] = "";
    return readlink("/proc/self/exe", program, sizeof program - 1) < 0 ||
           setenv("PROGRAM", program, 1) != 0 || setenv("DIR", test_directory, 1) != 0 ||
           setenv("OUT", in_directory("out"), 1) != 0;
}

int close_context_and_shared_directory(void **state) {
    const int removed = test_rank == 0 ? remove_test_directory(state) : 0;
    return removed != 0 || close_test_context(state) != 0;
}

void name_words(const char *name, const char *words) {
    wordexp_t list;
    char text[1024] = "";
    assert_int_equal(wordexp(words, &list, WRDE_NOCMD | WRDE_UNDEF), 0);
    for (size_t i = 0; i < list.we_wordc; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i > 0 ? " " : "",
                 list.we_wordv[i]);
    wordfree(&list);
    assert_int_equal(setenv(name, text, 1), 0);
}

moert_status run_program(const moert_program *program, const char *words) {
    wordexp_t list;
    bool help;
    assert_int_equal(wordexp(words, &list, WRDE_NOCMD | WRDE_UNDEF), 0);
    int argc = 1 + (int)list.we_wordc;
    char *arguments[64] = {"program"}, **argv = arguments;
    assert_true(list.we_wordc < MOERT_COUNT(arguments) - 1);
    memcpy(argv + 1, list.we_wordv, list.we_wordc * sizeof *argv);
    const size_t count =
        program->take_word != NULL ? program->take_word(&argc, &argv) : program->option_count;
    moert_status status = moert_options_parse(program->options, count, argc, argv, &help);
    if (status == MOERT_OK && program->check != NULL)
        status = program->check(&(moert_command){program->options, count, argc, argv, 0});
    if (status == MOERT_OK)
        status = program->run(test_context);
    wordfree(&list);
    return status;
}

bool run_shell(const char *command) {
    return on_all(test_rank > 0 || system(titled("bash -c '%s'", command)) == 0);
}

bool matches(const char *text, const char *pattern) {
    regex_t compiled;
    assert_int_equal(regcomp(&compiled, pattern, REG_EXTENDED | REG_NOSUB), 0);
    const bool found = regexec(&compiled, text, 0, NULL, 0) == 0;
    regfree(&compiled);
    return found;
}
