/* main() of every program: MPI, options, context, error message and exit code. */
#include "tools/common/program.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "comm/launcher.h"
#include "device/device.h"
#include "io/json.h"
#include "tools/common/option_file.h"
#include "tools/common/signs.h"

void moert_program_begin(void) {
    moert_json_watch(malloc);
    signal(SIGXFSZ, SIG_IGN);
}

int moert_program_code(moert_status status) {
    return status == MOERT_OK ? 0 : status == MOERT_ERROR_USAGE ? 2 : 1;
}

static void complain(const char *name, moert_status status) {
    const char *text = moert_last_error();
    fprintf(stderr, "%s: %s\n", name, text[0] != '\0' ? text : moert_status_text(status));
}

moert_status moert_program_flush(void) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return MOERT_OK;
    return MOERT_FAIL(ERROR_IO, "stdout: the output cannot be written: %s (is the disk full?)",
                      errno != 0 ? strerror(errno) : "an earlier write failed");
}

/* Ends all ranks at once if only this rank has failed, so that the others do not wait for it. */
static void end_if_alone(const char *name, moert_comm *world, moert_context *context,
                         moert_status status) {
    if (status == MOERT_OK || moert_comm_size(world) == 1 || moert_comm_failure_is_shared())
        return;
    if (moert_context_claim_report(context))
        complain(name, status);
    moert_comm_abort(world, moert_program_code(status));
}

/* Creates the context and runs the program's body. */
static moert_status run(const moert_program *program, const char *name, moert_comm *world) {
    moert_context *context = NULL;
    moert_status status =
        moert_context_open(moert_comm_world(), NULL, !program->any_variables, &context);
    if (status == MOERT_OK)
        status = program->run(context);
    if (status == MOERT_OK)
        status =
            moert_comm_agree(world, moert_comm_rank(world) == 0 ? moert_program_flush() : MOERT_OK);
    end_if_alone(name, world, context, status);
    moert_context_destroy(context);
    if (status == MOERT_OK) { /* the barrier fails if MPI has failed on this rank */
        status = moert_comm_barrier(world);
        end_if_alone(name, world, NULL, status);
    }
    return status;
}

/* ---- options ---- */

static const char *config_path;
static bool shows_config, shows_version;

static const moert_option standard[] = {
    {.help = "Every program"},
    {"config", MOERT_OPTION_STRING, &config_path, NULL, "FILE",
     "file with options in JSON, such as {\"steps\": 100, \"data\": [\"a\", \"b\"]}, or the "
     "run.json of a run; options of the command line take precedence"},
    {"show-config", MOERT_OPTION_FLAG, &shows_config, NULL, NULL,
     "show the values of all options, and where they come from, in JSON that --config reads"},
    {"version", MOERT_OPTION_FLAG, &shows_version, NULL, NULL,
     "show the versions of moert, MPI and the OpenCL drivers"},
};

/* The call of a program: its own options and those of every program, which must be equal on all
 * ranks, and its words. */
typedef struct call {
    const moert_program *program;
    moert_option *table;
    size_t count;
    bool help;
    char *file; /* the file of options, or NULL */
    moert_command command;
} call;

static moert_status open_call(const moert_program *program, int argc, char **argv, call *c) {
    const size_t own = program->option_count;
    *c = (call){.program = program, .count = own + MOERT_COUNT(standard)};
    c->command = (moert_command){program->options, own, argc, argv, 0};
    MOERT_TRY(MOERT_NEW_ARRAY(&c->table, c->count));
    memcpy(c->table, program->options, own * sizeof *c->table);
    memcpy(c->table + own, standard, sizeof standard);
    return MOERT_OK;
}

static void close_call(call *c) {
    if (c->file != NULL)
        moert_option_file_free(&c->command);
    MOERT_FREE(c->file, c->table);
}

static void print_call(const void *object, FILE *file) {
    const call *given = object;
    fprintf(file, "%s--help%c", given->help ? "" : "no ", 0);
    moert_options_print(given->table, given->count, file);
}

/* Finds the file of options: that of --config, or one that the program knows of. */
static moert_status find_file(call *c) {
    if (c->help || shows_version)
        return MOERT_OK;
    if (config_path != NULL)
        return moert_text_path(&c->file, "%s", config_path);
    return c->program->option_file != NULL ? c->program->option_file(&c->file) : MOERT_OK;
}

/* Parses the arguments, then once more with the options of a file before them. */
static moert_status parse(call *c) {
    MOERT_TRY(moert_options_parse(c->table, c->count, c->command.argc, c->command.argv, &c->help));
    MOERT_TRY(find_file(c));
    if (c->file == NULL)
        return MOERT_OK;
    MOERT_TRY(moert_option_file_read(c->file, c->program->repeats, &c->command));
    moert_options_free(c->table, c->count);
    return moert_options_parse(c->table, c->count, c->command.argc, c->command.argv, &c->help);
}

/* Adds to the message about wrong options that a file has given some of them. */
static moert_status hint_at_file(const call *c, moert_status status) {
    if (status == MOERT_ERROR_USAGE && c->command.from_file > 0) {
        char *why = moert_error_keep();
        MOERT_FAIL(ERROR_USAGE, "%s (%s gives options, too)", why != NULL ? why : "", c->file);
        free(why);
    }
    return status;
}

static moert_status check(const call *c) {
    if (c->program->check == NULL || c->help || shows_version)
        return MOERT_OK;
    return hint_at_file(c, c->program->check(&c->command));
}

/* Like moert_comm_agree. But if all ranks have failed, each rank keeps its own error message, which
 * then does not name a rank. */
static moert_status agree_or_fail_alike(moert_comm *world, moert_status status) {
    uint64_t all_failed = status != MOERT_OK;
    MOERT_TRY(moert_comm_smallest(world, &all_failed));
    return all_failed ? status : moert_comm_agree(world, status);
}

/* Parses and checks the options. All ranks return the same status. The message names a rank if only
 * some ranks have bad options, or if a rank's options differ from those of rank 0. Collective. */
static moert_status take_options(call *c, moert_comm *world) {
    MOERT_TRY(agree_or_fail_alike(world, parse(c)));
    MOERT_TRY(moert_comm_compare(world, print_call, c, MOERT_ERROR_USAGE,
                                 "all ranks must run the same program with the same options"));
    return agree_or_fail_alike(world, check(c));
}

/* ---- what a program does ---- */

static void print_versions(const char *name) {
    char mpi[64];
    moert_device_info *list = NULL;
    size_t count = 0;
    moert_comm_library(mpi, sizeof mpi);
    moert_option_version(stdout, name);
    printf(", %s", mpi);
    if (moert_device_list(&list, &count) != MOERT_OK)
        printf(", no OpenCL device");
    for (size_t i = 0; i < count; i++)
        if (i == 0 || list[i].platform != list[i - 1].platform)
            printf(", %s %s", list[i].platform_name, list[i].driver);
    printf("\n");
    free(list);
}

/* Answers --help, --version or --show-config on the first rank. */
static moert_status answer(const call *c, const char *name) {
    char *text = NULL;
    if (c->help) {
        moert_options_usage(stdout, c->program->synopsis, c->program->about, c->table, c->count);
    } else if (shows_version) {
        print_versions(name);
    } else {
        MOERT_TRY(moert_option_record(&c->command, &text));
        printf("%s\n", text);
        free(text);
    }
    return moert_program_flush();
}

/* Says which options a file has given. */
static void say_file(const call *c) {
    printf("options of %s:", c->file);
    for (size_t i = 1; i <= c->command.from_file; i++)
        printf(" %s", c->command.argv[i]);
    printf("\n");
}

/* Fails if the launcher has started several processes that MPI does not connect: each of them would
 * run the whole job. */
static moert_status check_launcher(const moert_comm *world) {
    char library[64];
    if (moert_comm_size(world) > 1 || moert_launcher_count() == 1)
        return MOERT_OK;
    moert_comm_library(library, sizeof library);
    return MOERT_FAIL(
        ERROR_USAGE,
        "the launcher has started %zu processes, but %s, the MPI of this program, knows "
        "only this one; use the mpirun of that MPI, or rebuild with the launcher's",
        moert_launcher_count(), library);
}

/* Ends this rank without a communicator; returns its exit code. After a failure of all ranks, no
 * rank ends before rank 0 has printed the message, since mpirun kills the other ranks as soon as
 * one ends. */
static int end_early(const char *name, moert_status status) {
    const bool shared = moert_comm_failure_is_shared(), first = moert_comm_is_first();
    if (!shared || first)
        complain(name, status);
    if (shared)
        moert_comm_finalize();
    return shared && !first ? 0 : moert_program_code(status);
}

int moert_program_main(const moert_program *described, int argc, char **argv) {
    moert_program taken = *described, *program = &taken;
    const char *slash = argv[0], *name = slash;
    moert_comm *world = NULL;
    call c;
    moert_program_begin();
    for (; *slash != '\0'; slash++)
        name = *slash == '/' ? slash + 1 : name;
    if (program->take_word != NULL)
        taken.option_count = program->take_word(&argc, &argv);
    moert_status status = moert_comm_init(&argc, &argv);
    if (status == MOERT_OK)
        status = moert_comm_create(moert_comm_world(), &world);
    if (status != MOERT_OK)
        return end_early(name, status);
    status = open_call(program, argc, argv, &c);
    if (status == MOERT_OK)
        status = check_launcher(world);
    if (status == MOERT_OK)
        status = take_options(&c, world);
    if (status == MOERT_ERROR_COMM)
        end_if_alone(name, world, NULL, status);
    bool first = (moert_comm_size(world) > 1 ? moert_comm_rank(world) : moert_launcher_rank()) == 0;
    const bool answers = c.help || shows_version || shows_config;
    if (status == MOERT_OK && first && !answers && c.command.from_file > 0)
        say_file(&c);
    if (status == MOERT_OK && !answers && first)
        moert_signs_begin();
    if (status == MOERT_OK && !answers)
        status = hint_at_file(&c, run(program, name, world));
    else if (status == MOERT_OK && first)
        status = answer(&c, name);
    moert_signs_end();
    if (status != MOERT_OK && first)
        complain(name, status);
    close_call(&c);
    moert_comm_destroy(world);
    const moert_status ended = moert_comm_finalize();
    if (status == MOERT_OK && ended != MOERT_OK) {
        complain(name, ended);
        return moert_program_code(ended);
    }
    return first ? moert_program_code(status) : 0;
}

void moert_program_say(const moert_context *context, const char *format, ...) {
    va_list arguments;
    if (moert_context_rank(context) != 0)
        return;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    fflush(stdout);
}

moert_status moert_program_compute(moert_compute_choice *choice, moert_model_config *config) {
    config->dense = (moert_precision)choice->dense;
    config->dispatch = (moert_dispatch)choice->dispatch;
    config->combine = (moert_combine)choice->combine;
    return moert_recipe_read(&choice->precision, &config->precision, &config->recipe);
}
