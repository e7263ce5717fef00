/* SVG plots of a run's metrics. gnuplot draws them from a script that contains the data. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"
#include "train/metrics.h"

/* Writes the steps and values of `field` as gnuplot's data block $field; returns their number. */
static size_t put_series(FILE *script, FILE *lines, const char *field) {
    char *line = NULL;
    size_t capacity = 0, count = 0;
    double step, value;
    fprintf(script, "$%s << END\n", field);
    rewind(lines);
    while (getline(&line, &capacity, lines) > 0)
        if (moert_metrics_field(line, "step", &step) && moert_metrics_field(line, field, &value)) {
            fprintf(script, "%.0f %.9g\n", step, value);
            count++;
        }
    fputs("END\n", script);
    free(line);
    return count;
}

/* Writes a gnuplot string in single quotes; quotes inside are doubled. */
static void put_quoted(FILE *script, const char *text) {
    fputc('\'', script);
    for (; *text != '\0'; text++)
        fputs((const char[]){*text, *text == '\'' ? '\'' : '\0', '\0'}, script);
    fputc('\'', script);
}

enum { LOSS, LOAD, PLOTS };

/* STEM-loss.svg or STEM-load.svg, and its temporary name while gnuplot draws it. */
typedef struct plot {
    char *path, *temporary;
} plot;

static moert_status name_plots(const char *stem, plot plots[PLOTS]) {
    static const char *const kinds[PLOTS] = {"loss", "load"};
    for (size_t i = 0; i < PLOTS; i++) {
        MOERT_TRY(moert_text_path(&plots[i].path, "%s-%s.svg", stem, kinds[i]));
        MOERT_TRY(moert_text_path(&plots[i].temporary, "%s.tmp", plots[i].path));
    }
    return MOERT_OK;
}

static void put_output(FILE *script, const plot *p, const char *label) {
    fputs("set output ", script);
    put_quoted(script, p->temporary);
    fprintf(script, "\nset ylabel '%s'\n", label);
}

static void put_script(FILE *script, FILE *lines, const plot plots[PLOTS]) {
    size_t losses = put_series(script, lines, "loss");
    size_t heldout = put_series(script, lines, "heldout_loss");
    size_t loads = put_series(script, lines, "expert_load");
    fputs("set terminal svg size 900,500 background 'white'\nset grid\nset xlabel 'step'\n",
          script);
    if (losses > 0) {
        put_output(script, &plots[LOSS], "loss");
        fprintf(script, "plot $loss with lines title 'training'%s\n",
                heldout > 0 ? ", $heldout_loss with linespoints pointtype 7 title 'held out'" : "");
    }
    if (loads > 0) {
        put_output(script, &plots[LOAD], "busiest expert / mean");
        fputs("plot $expert_load with lines notitle\n", script);
    }
}

/* Runs the script in an open file. If gnuplot fails, warns with the first line of its output and
 * returns false. */
static bool run_gnuplot(int script) {
    char command[128], output[200] = "", line[200];
    snprintf(command, sizeof command, "gnuplot /proc/self/fd/%d 2>&1", script);
    FILE *pipe = popen(command, "r");
    if (pipe == NULL) {
        MOERT_WARN("no plots: cannot run gnuplot: %s", strerror(errno));
        return false;
    }
    while (fgets(line, sizeof line, pipe) != NULL)
        if (output[0] == '\0' && line[strspn(line, " \t\r\n")] != '\0')
            memcpy(output, line, sizeof output);
    int code = pclose(pipe);
    output[strcspn(output, "\n")] = '\0';
    const bool ran = code != -1 && WIFEXITED(code) && WEXITSTATUS(code) == 0;
    if (!ran)
        MOERT_WARN("no plots: gnuplot failed%s%s", output[0] != '\0' ? ": " : "", output);
    return ran;
}

/* Whether an SVG file has its end tag. */
static bool is_whole(const char *path) {
    static const char end[] = "</svg>";
    char last[16] = "";
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    if (fseek(file, -(long)(sizeof last - 1), SEEK_END) == 0)
        last[fread(last, 1, sizeof last - 1, file)] = '\0';
    fclose(file);
    return strstr(last, end) != NULL;
}

/* Renames a finished drawing. Checks it first, since gnuplot does not report a full disk. */
static bool settle_plot(const plot *p) {
    if (access(p->temporary, F_OK) != 0)
        return true; /* nothing to draw */
    const moert_status whole = is_whole(p->temporary)
                                   ? MOERT_OK
                                   : MOERT_FAIL(ERROR_IO, "%s could not be written whole", p->path);
    if (moert_durable_settle(p->temporary, p->path, whole) == MOERT_OK)
        return true;
    MOERT_WARN("no plot: %s", moert_last_error());
    return false;
}

/* Draws the plots from the file `lines`; returns false, after a warning, if a plot is missing. The
 * script is in memory, so that a killed run leaves no file. */
static bool draw(FILE *lines, const plot plots[PLOTS]) {
    int descriptor = memfd_create("moert-plot", 0); /* gnuplot inherits it */
    FILE *script = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
    bool written = script != NULL;
    if (written) {
        put_script(script, lines, plots);
        written = fflush(script) == 0 && !ferror(script);
    }
    bool drawn = written;
    if (written) {
        drawn = run_gnuplot(descriptor);
        for (size_t i = 0; i < PLOTS; i++)
            drawn &= settle_plot(&plots[i]);
    } else {
        MOERT_WARN("no plots: no room for a script for gnuplot: %s", strerror(errno));
    }
    if (script != NULL)
        fclose(script);
    else
        moert_close_files(&descriptor, 1);
    return drawn;
}

moert_status moert_metrics_plot(const char *path, bool *drawn) {
    const size_t ending = moert_text_ends_with(path, ".jsonl") ? strlen(".jsonl") : 0;
    plot plots[PLOTS] = {{NULL, NULL}};
    mode_t mode;
    char *stem;
    *drawn = false;
    MOERT_TRY(moert_file_mode(path, true, &mode));
    if (mode != 0 && !S_ISREG(mode))
        return MOERT_OK; /* a device or pipe cannot be read again */
    MOERT_TRY(moert_text_path(&stem, "%.*s", (int)(strlen(path) - ending), path));
    moert_status status = name_plots(stem, plots);
    FILE *lines = status == MOERT_OK ? fopen(path, "re") : NULL;
    if (lines != NULL) {
        for (size_t i = 0; i < PLOTS; i++) /* what an interrupted run has left */
            unlink(plots[i].temporary);
        *drawn = draw(lines, plots);
        fclose(lines);
    } else if (status == MOERT_OK) {
        status = MOERT_FAIL(ERROR_IO, "cannot read %s: %s", path, strerror(errno));
    }
    for (size_t i = 0; i < PLOTS; i++)
        MOERT_FREE(plots[i].path, plots[i].temporary);
    free(stem);
    return status;
}
