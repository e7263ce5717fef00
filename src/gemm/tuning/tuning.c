/* Reads and ranks tuning rows, looks choices up, and appends measured rows to the file. */
#include "gemm/tuning/tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"
#include "base/files.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "device/cache.h"
#include "device/source.h"
#include "io/durable.h"

enum { MOST_FILE_BYTES = 16 << 20, LINE_BYTES = 640 };

typedef struct entry {
    moert_tuning_row row;
    bool remembered; /* a measured row, from the file or by this process */
    unsigned line;   /* line in the row's file; 0 if this process measured the row */
    uint64_t rank;   /* sort key, highest first */
} entry;

static entry *entries;
static size_t entry_count, entry_room;
static bool loaded;

/* ---- rank ---- */

/* How specific a range is: 0 for any size, 1 for a range, 2 for one size. */
static uint64_t precision(const moert_tuning_range *range) {
    return range->low == 0 ? 0 : range->low == range->high ? 2 : 1;
}

static uint64_t rank_of(const entry *e, size_t order) {
    const moert_tuning_row *row = &e->row;
    const uint64_t shape = precision(&row->n) + precision(&row->k) + precision(&row->rows);
    const uint64_t kind = (uint64_t)(row->operation >= 0) + (uint64_t)(row->type >= 0);
    return (uint64_t)row->level << 60 | (uint64_t)e->remembered << 59 | shape << 52 | kind << 48 |
           (uint64_t)strlen(row->pattern) << 40 | (uint64_t)order;
}

static int compare_entries(const void *a, const void *b) {
    const uint64_t first = ((const entry *)a)->rank, second = ((const entry *)b)->rank;
    return first < second ? 1 : first > second ? -1 : 0;
}

/* Appends an entry. Of rows with equal rank the later row is used. The caller sorts afterwards. */
static moert_status add(const moert_tuning_row *row, bool remembered, unsigned line) {
    MOERT_TRY(MOERT_GROW(&entries, &entry_room, entry_count + 1));
    entry *e = &entries[entry_count];
    *e = (entry){*row, remembered, line, 0};
    e->rank = rank_of(e, entry_count++);
    return MOERT_OK;
}

static void sort(void) {
    qsort(entries, entry_count, sizeof *entries, compare_entries);
}

/* ---- reading ---- */

/* Replaces all but printable ASCII characters, so that a file's binary data do not reach the
 * terminal. */
static void make_printable(char *text) {
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < ' ' || (unsigned char)*text > '~')
            *text = '?';
}

/* Adds the rows of a text, and changes the text. Skips a last line without a line feed, since
 * another process may be writing that line. */
static void read_rows(char *text, const char *name, bool remembered) {
    char problem[160], first[160] = "";
    unsigned number = 0, first_line = 0, bad = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        moert_tuning_row row;
        bool empty;
        *end = '\0';
        number++;
        if (moert_tuning_parse(line, &row, &empty, problem)) {
            if (!empty && add(&row, remembered, number) != MOERT_OK)
                return;
        } else if (bad++ == 0) {
            first_line = number;
            memcpy(first, problem, sizeof first);
        }
    }
    make_printable(first);
    if (bad > 0)
        MOERT_WARN("%s:%u: %s; skipped %u row%s of tuning, so GEMMs may be slower", name,
                   first_line, first, bad, bad > 1 ? "s" : "");
}

static void read_built_in(void) {
    char *text;
    if (moert_kernel_source("gemm/tuning.txt", &text) != MOERT_OK) {
        MOERT_WARN("no built-in tuning rows are used: %s", moert_last_error());
        return;
    }
    read_rows(text, "tuning.txt", false);
    free(text);
}

static void read_remembered(void) {
    char *path = moert_tuning_file(), *text;
    if (path != NULL && access(path, F_OK) == 0) {
        if (moert_read_text(path, MOST_FILE_BYTES, &text) == MOERT_OK) {
            read_rows(text, path, true);
            free(text);
        } else {
            MOERT_WARN("no measured tuning rows are used: %s", moert_last_error());
        }
    }
    free(path);
}

static void load(void) {
    if (loaded)
        return;
    loaded = true;
    read_built_in();
    read_remembered();
    sort();
}

void moert_tuning_reload(void) {
    loaded = false;
    entry_count = 0;
}

char *moert_tuning_file(void) {
    const moert_config *config = moert_config_get();
    if (config->tune == MOERT_TUNE_OFF)
        return NULL;
    return config->tune_file[0] != '\0' ? strdup(config->tune_file)
                                        : moert_cache_file("tuning.txt");
}

/* ---- looking up ---- */

moert_choices moert_tuning_find(const moert_device *device, const moert_tuning_key *key) {
    const moert_device_info *info = moert_device_describe(device);
    moert_choices found = {0};
    load();
    for (size_t i = 0; i < entry_count; i++) {
        const moert_tuning_row *row = &entries[i].row;
        if (!moert_tuning_matches(row, info, key))
            continue;
        bool whole = true;
#define CHOICE_FROM_ROW(name, low, high, multiple, standard)                                       \
    found.name = found.name != 0 ? found.name : row->choices.name;                                 \
    whole &= found.name != 0;
        MOERT_CHOICE_TABLE(CHOICE_FROM_ROW)
#undef CHOICE_FROM_ROW
        if (whole)
            break;
    }
#define CHOICE_STANDARD(name, low, high, multiple, standard)                                       \
    found.name = found.name != 0 ? found.name : (standard);
    MOERT_CHOICE_TABLE(CHOICE_STANDARD)
#undef CHOICE_STANDARD
    return found;
}

bool moert_tuning_survey(const moert_device *device, const moert_tuning_key *key, size_t index,
                         moert_tuning_report *report) {
    const moert_device_info *info = moert_device_describe(device);
    load();
    for (size_t i = 0; i < entry_count; i++) {
        const entry *e = &entries[i];
        if (!moert_tuning_matches(&e->row, info, key) || index-- > 0)
            continue;
        char *path = e->remembered ? moert_tuning_file() : NULL;
        moert_tuning_print(&e->row, report->row, sizeof report->row);
        snprintf(report->place, sizeof report->place, "%s:%u",
                 !e->remembered ? "kernels/gemm/tuning.txt"
                 : path != NULL ? path
                                : "",
                 e->line);
        free(path);
        return true;
    }
    return false;
}

size_t moert_tuning_remembered(void) {
    size_t count = 0;
    load();
    for (size_t i = 0; i < entry_count; i++)
        count += entries[i].remembered;
    return count;
}

/* ---- remembering ---- */

/* Appends a line to the file of measured rows. Does nothing if moert_tuning_file() gives NULL. */
static moert_status append_line(const char *line) {
    char *path = moert_tuning_file();
    const moert_status status = path != NULL ? moert_file_append(path, line) : MOERT_OK;
    free(path);
    return status;
}

/* [2^i, 2^(i+1) - 1], the range that holds `size`. */
static moert_tuning_range octave(size_t size) {
    size_t low = 1;
    while (low <= size / 2)
        low *= 2;
    return (moert_tuning_range){low, 2 * low - 1};
}

moert_status moert_tuning_remember(const moert_device *device, moert_tuning_level level,
                                   const moert_tuning_key *key, const moert_choices *choices,
                                   const char *comment) {
    const moert_device_info *info = moert_device_describe(device);
    const char *who = level == MOERT_TUNING_DEVICE   ? info->name
                      : level == MOERT_TUNING_FAMILY ? moert_tuning_family(info)
                      : level == MOERT_TUNING_VENDOR ? info->vendor
                                                     : "";
    char text[LINE_BYTES - 200], line[LINE_BYTES];
    moert_tuning_row row = {.level = level,
                            .operation = (int)key->operation,
                            .type = (int)key->type,
                            .n = {key->n, key->n},
                            .k = {key->k, key->k},
                            .rows = {0, SIZE_MAX},
                            .choices = *choices};
    snprintf(row.pattern, sizeof row.pattern, "%.*s", (int)strcspn(who, "\""), who);
    if (key->rows > 0)
        row.rows = octave(key->rows);
    load();
    MOERT_TRY(add(&row, true, 0));
    sort();
    moert_tuning_print(&row, text, sizeof text);
    snprintf(line, sizeof line, "%s # %.180s\n", text, comment);
    return append_line(line);
}
