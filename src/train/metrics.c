/* Writes JSON lines, event files, console lines and the progress bar. */
#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"

struct moert_metrics {
    moert_metrics_options options;
    int file;  /* -1: none */
    bool made; /* this job created the file */
    size_t rows;
    char *path;
    moert_event_file *events;
    bool terminal;
    uint64_t began_ns; /* when the metrics were opened, then when the first step ended */
};

/* Copies the complete lines of steps below `start`. Returns false if the file cannot be read to its
 * end. */
static bool copy_lines(FILE *from, FILE *to, uint64_t start) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    while ((length = getline(&line, &capacity, from)) > 0) {
        unsigned long long step;
        if (!ferror(to) && line[length - 1] == '\n' &&
            sscanf(line, "{\"step\": %llu,", &step) == 1 && step < start)
            fputs(line, to);
    }
    free(line);
    return feof(from) != 0;
}

/* Locks a file for this job until the file's last descriptor is closed. Does nothing on a file
 * system without locks. */
static moert_status lock_file(const char *path, int file) {
    if (flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_USAGE, "%s: another job writes its metrics there; give another file",
                      path);
}

/* Drops a file's lines of steps from `start` on. Writes the other lines to the file `temporary`,
 * which then replaces the file, so that no line is lost. *file = the new file, locked; closes the
 * old file. */
static moert_status keep_lines(const char *path, const char *temporary, uint64_t start, int *file) {
    FILE *from = fopen(path, "re");
    if (from == NULL)
        return MOERT_FAIL(ERROR_IO, "cannot read %s: %s", path, strerror(errno));
    unlink(temporary);
    FILE *to = fopen(temporary, "ae");
    const int made = to != NULL ? fcntl(fileno(to), F_DUPFD_CLOEXEC, 0) : -1;
    if (made < 0) {
        const int reason = errno;
        fclose(from);
        if (to != NULL)
            fclose(to);
        return MOERT_FAIL(ERROR_IO, "cannot write %s: %s", temporary, strerror(reason));
    }
    moert_status status = lock_file(temporary, made);
    if (status == MOERT_OK && !copy_lines(from, to, start))
        status = MOERT_FAIL(ERROR_IO, "cannot read all of %s", path);
    fclose(from);
    if (status == MOERT_OK) {
        status = moert_durable_finish(to, temporary, path);
    } else {
        fclose(to);
        status = moert_durable_settle(temporary, path, status);
    }
    close(status == MOERT_OK ? *file : made);
    *file = status == MOERT_OK ? made : *file;
    return status;
}

/* Prepares the file `path` (if it is a link, the link's target) for lines from step `start` on.
 * Removes the temporary file of an interrupted run. */
static moert_status prepare_file(const char *path, uint64_t start, int *file) {
    char *temporary = NULL;
    char *target = realpath(path, NULL);
    const char *name = target != NULL ? target : path;
    moert_status status = moert_text_path(&temporary, "%s.tmp", name);
    if (status == MOERT_OK && start > 0)
        status = keep_lines(name, temporary, start, file);
    else if (status == MOERT_OK && ftruncate(*file, 0) != 0)
        status = MOERT_FAIL(ERROR_IO, "cannot write %s: %s", path, strerror(errno));
    if (status == MOERT_OK)
        unlink(temporary);
    MOERT_FREE(temporary, target);
    return status;
}

/* Opens the file. Locks the file before changing it, unless the file is a device or pipe. */
static moert_status open_file(moert_metrics *metrics) {
    const char *path = metrics->options.path;
    struct stat info, named;
    MOERT_TRY(moert_text_path(&metrics->path, "%s", path));
    const bool absent = access(path, F_OK) != 0;
    metrics->file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (metrics->file < 0 || fstat(metrics->file, &info) != 0)
        return MOERT_FAIL(ERROR_IO, "cannot write %s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return MOERT_OK;
    MOERT_TRY(lock_file(path, metrics->file));
    if (stat(path, &named) != 0)
        return MOERT_FAIL(ERROR_IO, "cannot write %s: %s", path, strerror(errno));
    if (named.st_ino != info.st_ino)
        return MOERT_FAIL(ERROR_IO, "cannot write %s: another job has replaced it", path);
    metrics->made = absent;
    return prepare_file(path, metrics->options.start, &metrics->file);
}

moert_status moert_metrics_open(const moert_metrics_options *options, moert_metrics **metrics) {
    moert_metrics *made;
    MOERT_TRY(MOERT_NEW(&made));
    made->options = *options;
    made->file = -1;
    made->terminal = moert_is_watched(options->console);
    made->began_ns = moert_clock_ns();
    moert_status status = options->path != NULL ? open_file(made) : MOERT_OK;
    if (status == MOERT_OK && options->events != NULL)
        status = moert_event_file_open(options->events, options->start, &made->events);
    if (status == MOERT_OK) {
        *metrics = made;
    } else {
        moert_metrics_discard(made);
        moert_close_files(&made->file, 1);
        MOERT_FREE(made->path, made);
    }
    return status;
}

/* *numbers[*count] = a row's numbers with their names, for JSON lines and event files. The caller
 * frees them. */
static moert_status list_numbers(const moert_metrics_row *row, moert_scalar **numbers,
                                 size_t *count) {
    const struct {
        moert_scalar number;
        bool applies;
    } all[] = {{{"loss", row->loss}, true},
               {{"aux_loss", row->aux_loss}, true},
               {{"grad_norm", row->grad_norm}, true},
               {{"lr", row->lr}, true},
               {{"tokens_per_s", row->tokens_per_s}, true},
               {{"expert_load", row->expert_load}, true},
               {{"batch", row->batch}, row->batch > 0.0},
               {{"epoch", row->epoch}, row->epoch > 0.0},
               {{"rank_load", row->rank_load}, row->rank_load > 0.0},
               {{"heldout_loss", row->heldout_loss}, row->has_heldout},
               {{"test_loss", row->test_loss}, row->has_test},
               {{"save_held_s", row->save_held_s}, row->save_held_s > 0.0},
               {{"save_s", row->save_s}, row->save_s > 0.0},
               {{"moved_experts", row->moved_experts}, row->moved_experts > 0.0},
               {{"move_s", row->move_s}, row->moved_experts > 0.0},
               {{"clones", row->clones}, row->clones > 0.0}};
    size_t most = MOERT_COUNT(all);
    for (size_t i = 0; i < MOERT_METRICS_MORE; i++)
        most += row->more[i].count;
    MOERT_TRY(moert_alloc(numbers, most, sizeof **numbers));
    *count = 0;
    for (size_t i = 0; i < MOERT_COUNT(all); i++)
        if (all[i].applies)
            (*numbers)[(*count)++] = all[i].number;
    for (size_t i = 0; i < MOERT_METRICS_MORE; i++)
        for (size_t k = 0; k < row->more[i].count; k++)
            (*numbers)[(*count)++] = row->more[i].number[k];
    return MOERT_OK;
}

static moert_status write_json(const moert_metrics *metrics, const moert_metrics_row *row,
                               const moert_scalar *numbers, size_t count) {
    moert_text_stream stream;
    MOERT_TRY(moert_text_open("a line of metrics", &stream));
    FILE *line = stream.file;
    fprintf(line, "{\"step\": %llu", (unsigned long long)row->step);
    for (size_t i = 0; i < count; i++)
        if (isfinite(numbers[i].value))
            fprintf(line, ", \"%s\": %.17g", numbers[i].name, numbers[i].value);
        else
            fprintf(line, ", \"%s\": null", numbers[i].name);
    fputs(row->skipped ? ", \"skipped\": true}\n" : "}\n", line);
    MOERT_TRY(moert_text_close(&stream));
    const moert_status status =
        moert_file_append_to(metrics->path, metrics->file, stream.text, stream.bytes);
    free(stream.text);
    return status;
}

static moert_status write_files(const moert_metrics *metrics, const moert_metrics_row *row) {
    moert_scalar *numbers;
    size_t count;
    MOERT_TRY(list_numbers(row, &numbers, &count));
    moert_status status = MOERT_OK;
    if (metrics->file >= 0)
        status = write_json(metrics, row, numbers, count);
    if (status == MOERT_OK && metrics->events != NULL)
        status = moert_event_file_write(metrics->events, row->step, numbers, count);
    free(numbers);
    return status;
}

/* Returns `x`, but a NaN without its sign. printf would write this sign, which has no meaning. */
static double unsigned_nan(double x) {
    return isnan(x) ? NAN : x;
}

static void put_line(const moert_metrics *metrics, const moert_metrics_row *row) {
    FILE *console = metrics->options.console;
    fprintf(console,
            "step %6llu  loss %8.4f  aux %6.3f  norm %8.3f  lr %.2e  %9.0f tok/s  load "
            "%5.2f",
            (unsigned long long)row->step, unsigned_nan(row->loss), unsigned_nan(row->aux_loss),
            unsigned_nan(row->grad_norm), row->lr, row->tokens_per_s, row->expert_load);
    if (row->has_heldout)
        fprintf(console, "  held-out %8.4f", row->heldout_loss);
    if (row->has_test)
        fprintf(console, "  test %8.4f", row->test_loss);
    fputs(row->skipped ? "  skipped\n" : "\n", console);
}

/* [=========>          ]  45 %  3:07 left */
static void put_bar(const moert_metrics *metrics, uint64_t done) {
    enum { WIDTH = 40 };
    static const char full[] = "========================================";
    uint64_t start = metrics->options.start, total = metrics->options.total;
    double part = (double)done / (double)total;
    /* the first step compiles kernels, so it tells nothing about the others */
    const uint64_t steps = done - start > 1 ? done - start - 1 : 1;
    double spent_s = (double)(moert_clock_ns() - metrics->began_ns) * 1e-9;
    double left_s = spent_s / (double)steps * (double)(total - done);
    int filled = (int)(part * WIDTH);
    fprintf(metrics->options.console, "[%.*s%-*s] %3d %%  %d:%02d left", filled, full,
            WIDTH - filled, filled < WIDTH ? ">" : "", (int)(part * 100.0), (int)(left_s / 60.0),
            (int)fmod(left_s, 60.0));
}

moert_status moert_metrics_write(moert_metrics *metrics, const moert_metrics_row *row) {
    const moert_metrics_options *options = &metrics->options;
    MOERT_TRY(write_files(metrics, row));
    metrics->rows++;
    if (options->console == NULL)
        return MOERT_OK;
    uint64_t done = row->step + 1;
    if (metrics->terminal)
        fputs("\r\033[K", options->console);
    bool notable = row->has_heldout || row->skipped || done == options->total;
    if (options->every > 0 && (row->step % options->every == 0 || notable))
        put_line(metrics, row);
    if (metrics->terminal && done > options->start && done < options->total)
        put_bar(metrics, done);
    fflush(options->console);
    if (metrics->rows == 1)
        metrics->began_ns = moert_clock_ns();
    return MOERT_OK;
}

void moert_metrics_clear(const moert_metrics *metrics) {
    if (metrics == NULL || !metrics->terminal)
        return;
    fputs("\r\033[K", metrics->options.console);
    fflush(metrics->options.console);
}

void moert_metrics_discard(moert_metrics *metrics) {
    if (metrics == NULL || metrics->rows > 0)
        return;
    if (metrics->made)
        unlink(metrics->path);
    moert_event_file_remove(metrics->events);
}

moert_status moert_metrics_close(moert_metrics *metrics) {
    moert_status status = MOERT_OK;
    if (metrics == NULL)
        return MOERT_OK;
    moert_metrics_clear(metrics);
    if (metrics->file >= 0 && close(metrics->file) != 0)
        status = MOERT_FAIL(ERROR_IO, "cannot write %s: %s", metrics->path, strerror(errno));
    char *message = moert_error_keep();
    status = moert_error_first(message, status, moert_event_file_close(metrics->events));
    MOERT_FREE(metrics->path, metrics);
    return status;
}
