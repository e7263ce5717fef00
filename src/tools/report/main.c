/* moert-report: writes an HTML page that shows the bottlenecks of a training run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"
#include "io/json.h"
#include "tools/common/option_file.h"
#include "tools/common/program.h"
#include "tools/report/page.h"

static const char *out_path, *trace_path, *other_run;
static bool shows_version;

static const moert_option options[] = {
    {"out", MOERT_OPTION_STRING, &out_path, NULL, "FILE", "the page; default RUN/report.html"},
    {"compare", MOERT_OPTION_STRING, &other_run, NULL, "RUN",
     "another run to compare with: where the losses begin to differ, and which run is faster"},
    {"trace", MOERT_OPTION_STRING, &trace_path, NULL, "FILE",
     "file written by moert-train --trace; default RUN/trace.json, if it exists"},
    {"version", MOERT_OPTION_FLAG, &shows_version, NULL, NULL, "show moert's version"},
};
enum { OPTIONS = MOERT_COUNT(options) };

/* The last component of a path. */
static const char *name_of(const char *path) {
    const char *name = strrchr(path, '/');
    return name != NULL && name[1] != '\0' ? name + 1 : path;
}

/* *path = the option's value `given` or, if it is NULL, RUN/name. The caller frees *path. */
static moert_status path_of(const char *run, const char *given, const char *name, char **path) {
    return given != NULL ? moert_text_path(path, "%s", given)
                         : moert_text_path(path, "%s/%s", run, name);
}

static moert_status write_page(const char *run, const char *path, const moert_run_record *record,
                               const moert_verdict *verdict, const moert_verdict *comparison) {
    char *page = NULL, *trace_file;
    json_t *trace = NULL;
    mode_t there;
    moert_status status;
    MOERT_TRY(path_of(run, trace_path, "trace.json", &trace_file));
    MOERT_TRY_OR(done, moert_file_mode(trace_file, true, &there));
    if (trace_path != NULL || there != 0)
        MOERT_TRY_OR(done, moert_trace_step_read(trace_file, &trace));
    MOERT_TRY_OR(done, moert_report_page(name_of(run), record, verdict, comparison, trace, &page));
    status = moert_durable_write(path, page);
done:
    json_decref(trace);
    MOERT_FREE(trace_file, page);
    return status;
}

/* Compares the run with the run of --compare. */
static moert_status compare(const moert_run_record *record, moert_verdict *comparison) {
    moert_run_record other;
    const moert_status status = moert_run_record_read(other_run, &other);
    if (status == MOERT_OK)
        moert_comparison_make(record, &other, name_of(other_run), comparison);
    moert_run_record_free(&other);
    return status;
}

static moert_status report(const char *run) {
    moert_run_record record;
    moert_verdict verdict, comparison = {.count = 0};
    moert_status status;
    char *path;
    MOERT_TRY(path_of(run, out_path, "report.html", &path));
    MOERT_TRY_OR(done, moert_run_record_read(run, &record));
    moert_verdict_make(&record, &verdict);
    if (other_run != NULL)
        MOERT_TRY_OR(done, compare(&record, &comparison));
    MOERT_TRY_OR(done, write_page(run, path, &record, &verdict, &comparison));
    printf("%s\n", verdict.headline);
    for (size_t i = 0; i < verdict.count; i++)
        printf("%s %s\n", verdict.line[i].warns ? "!" : " ", verdict.line[i].text);
    for (size_t i = 0; i < comparison.count; i++)
        printf("= %s\n", comparison.line[i].text);
    printf("page    %s\n", path);
done:
    moert_run_record_free(&record);
    free(path);
    return status;
}

/* The run directory comes first, then options. */
static moert_status run(int argc, char **argv) {
    const bool named = argc > 1 && argv[1][0] != '-';
    bool help;
    MOERT_TRY(moert_options_parse(options, OPTIONS, argc - named, argv + named, &help));
    if (help) {
        moert_options_usage(
            stdout, "moert-report RUN [OPTION...]",
            "Shows a training run, the --out directory of moert-train, on one page for a browser:\n"
            "how fast it is, what bounds a step, which rank the others wait for, and which expert\n"
            "is hot. Train with --profile to see it all.",
            options, OPTIONS);
        return MOERT_OK;
    }
    if (shows_version) {
        moert_option_version(stdout, "moert-report");
        printf("\n");
        return MOERT_OK;
    }
    if (!named)
        return MOERT_FAIL(
            ERROR_USAGE,
            "no run is named; give moert-report RUN, the --out directory of moert-train");
    return report(argv[1]);
}

int main(int argc, char **argv) {
    moert_program_begin();
    moert_status status = run(argc, argv);
    if (status == MOERT_OK)
        status = moert_program_flush();
    if (status != MOERT_OK)
        fprintf(stderr, "moert-report: %s\n", moert_last_error());
    return moert_program_code(status);
}
