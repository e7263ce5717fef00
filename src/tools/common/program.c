/* main() of every program: MPI, options, context, error message and exit code. */
#include "tools/common/program.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/launcher.h"
#include "io/json.h"

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

/* Properties of a program's call that must be equal on all ranks. */
typedef struct call {
    const moert_program *program;
    bool help;
} call;

static void print_call(const void *object, FILE *file) {
    const call *given = object;
    fprintf(file, "%s--help%c", given->help ? "" : "no ", 0);
    moert_options_print(given->program->options, given->program->option_count, file);
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
static moert_status take_options(const moert_program *program, moert_comm *world, int argc,
                                 char **argv, bool *help) {
    MOERT_TRY(agree_or_fail_alike(
        world, moert_options_parse(program->options, program->option_count, argc, argv, help)));
    MOERT_TRY(moert_comm_compare(world, print_call, &(call){program, *help}, MOERT_ERROR_USAGE,
                                 "all ranks must run the same program with the same options"));
    if (program->check == NULL || *help)
        return MOERT_OK;
    return agree_or_fail_alike(world, program->check(argc, argv));
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
    bool help = false;
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
    status = check_launcher(world);
    if (status == MOERT_OK)
        status = take_options(program, world, argc, argv, &help);
    if (status == MOERT_ERROR_COMM)
        end_if_alone(name, world, NULL, status);
    bool first = (moert_comm_size(world) > 1 ? moert_comm_rank(world) : moert_launcher_rank()) == 0;
    if (status == MOERT_OK && !help)
        status = run(program, name, world);
    else if (status == MOERT_OK && first)
        moert_options_usage(stdout, program->synopsis, program->about, program->options,
                            program->option_count);
    if (status == MOERT_OK && help && first)
        status = moert_program_flush();
    if (status != MOERT_OK && first)
        complain(name, status);
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

void moert_program_compute(const moert_compute_choice *choice, moert_model_config *config) {
    config->precision = (moert_precision)choice->precision;
    config->dense = (moert_precision)choice->dense;
    config->dispatch = (moert_dispatch)choice->dispatch;
    config->combine = (moert_combine)choice->combine;
}
