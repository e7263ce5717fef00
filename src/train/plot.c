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

/* STEM-KIND.svg, and its temporary name while gnuplot draws it. */
#define DRAWN   "%s-%s.svg"
#define DRAWING DRAWN ".tmp"

static void put_output(FILE *script, const char *stem, const char *kind, const char *label) {
    char *name = moert_text_format(DRAWING, stem, kind);
    fputs("set output ", script);
    put_quoted(script, name != NULL ? name : "plot.svg");
    fprintf(script, "\nset ylabel '%s'\n", label);
    free(name);
}

static void put_script(FILE *script, FILE *lines, const char *stem) {
    size_t losses = put_series(script, lines, "loss");
    size_t heldout = put_series(script, lines, "heldout_loss");
    size_t loads = put_series(script, lines, "expert_load");
    fputs("set terminal svg size 900,500 background 'white'\nset grid\nset xlabel 'step'\n",
          script);
    if (losses > 0) {
        put_output(script, stem, "loss", "loss");
        fprintf(script, "plot $loss with lines title 'training'%s\n",
                heldout > 0 ? ", $heldout_loss with linespoints pointtype 7 title 'held out'" : "");
    }
    if (loads > 0) {
        put_output(script, stem, "load", "busiest expert / mean");
        fputs("plot $expert_load with lines notitle\n", script);
    }
}

/* Runs the script in an open file. If gnuplot fails, warns with the first line of its output. */
static void run_gnuplot(int script) {
    char command[128], output[200] = "", line[200];
    snprintf(command, sizeof command, "gnuplot /proc/self/fd/%d 2>&1", script);
    FILE *pipe = popen(command, "r");
    if (pipe == NULL) {
        MOERT_WARN("no plots: cannot run gnuplot: %s", strerror(errno));
        return;
    }
    while (fgets(line, sizeof line, pipe) != NULL)
        if (output[0] == '\0' && line[strspn(line, " \t\r\n")] != '\0')
            memcpy(output, line, sizeof output);
    int code = pclose(pipe);
    output[strcspn(output, "\n")] = '\0';
    if (code == -1 || !WIFEXITED(code) || WEXITSTATUS(code) != 0)
        MOERT_WARN("no plots: gnuplot failed%s%s", output[0] != '\0' ? ": " : "", output);
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

static const char *const kinds[] = {"loss", "load"};

/* Removes what an interrupted run has left. */
static void remove_drawings(const char *stem) {
    for (size_t i = 0; i < MOERT_COUNT(kinds); i++) {
        char *drawing = moert_text_format(DRAWING, stem, kinds[i]);
        if (drawing != NULL)
            unlink(drawing);
        free(drawing);
    }
}

/* Renames a finished drawing. Checks it first, since gnuplot does not report a full disk. */
static void settle_plot(const char *stem, const char *kind) {
    char *drawing = moert_text_format(DRAWING, stem, kind),
         *drawn = moert_text_format(DRAWN, stem, kind);
    if (drawing != NULL && drawn != NULL && access(drawing, F_OK) == 0) {
        const moert_status whole =
            is_whole(drawing) ? MOERT_OK
                              : MOERT_FAIL(ERROR_IO, "%s could not be written whole", drawn);
        if (moert_durable_settle(drawing, drawn, whole) != MOERT_OK)
            MOERT_WARN("no plot: %s", moert_last_error());
    }
    MOERT_FREE(drawing, drawn);
}

/* Draws the plots from the file `lines`. The script is in memory, so that a killed run leaves no
 * file. */
static void draw(FILE *lines, const char *stem) {
    int descriptor = memfd_create("moert-plot", 0); /* gnuplot inherits it */
    FILE *script = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
    bool written = script != NULL;
    if (written) {
        put_script(script, lines, stem);
        written = fflush(script) == 0 && !ferror(script);
    }
    if (written) {
        run_gnuplot(descriptor);
        for (size_t i = 0; i < MOERT_COUNT(kinds); i++)
            settle_plot(stem, kinds[i]);
    } else {
        MOERT_WARN("no plots: no room for a script for gnuplot: %s", strerror(errno));
    }
    if (script != NULL)
        fclose(script);
    else
        moert_close_files(&descriptor, 1);
}

moert_status moert_metrics_plot(const char *path) {
    struct stat info;
    char *stem;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return MOERT_OK; /* a device or pipe cannot be read again */
    const size_t ending = moert_text_ends_with(path, ".jsonl") ? strlen(".jsonl") : 0;
    MOERT_TRY(moert_text_path(&stem, "%.*s", (int)(strlen(path) - ending), path));
    FILE *lines = fopen(path, "re");
    moert_status status = MOERT_OK;
    if (lines == NULL) {
        status = MOERT_FAIL(ERROR_IO, "cannot read %s: %s", path, strerror(errno));
    } else {
        remove_drawings(stem);
        draw(lines, stem);
        fclose(lines);
    }
    free(stem);
    return status;
}
