/*
 * Rows of tuning: what the portable backend's products choose, by device and shape, as lines of
 * text (kernels/gemm/tuning.txt has the grammar and the built-in ones). None of the choices shows
 * in the bits of a result, and each is held within bounds that are safe on every device: a wrong or
 * missing row is slow, never wrong.
 *
 * Rows that were measured on this machine lie in a file (MOERT_TUNE_FILE), where processes append
 * whole lines; of two rows for the same shape the later one is taken. What cannot be read is
 * skipped with a warning.
 */
#pragma once

#include "device/device.h"
#include "moert/formats.h"

/* X(choice, lowest, highest, multiple of, where no row names it); see kernels/gemm/tuning.txt. */
#define MOERT_CHOICE_TABLE(X)                                                                      \
    X(panels, 1, 64, 1, 4)                                                                         \
    X(depth, 16, 4096, 16, 1024)                                                                   \
    X(split, 1, 65536, 1, 512)                                                                     \
    X(lines, 1, 16, 1, 8)                                                                          \
    X(width, 1, 4, 1, 2)                                                                           \
    X(prefetch, 16, 4096, 16, 4096)

/* In a row: 0 is a choice that it does not name. */
typedef struct moert_choices {
#define MOERT_CHOICE_MEMBER(name, low, high, multiple, standard) unsigned name;
    MOERT_CHOICE_TABLE(MOERT_CHOICE_MEMBER)
#undef MOERT_CHOICE_MEMBER
} moert_choices;

#define MOERT_TUNED_TABLE(X)                                                                       \
    X(FORWARD, "forward")                                                                          \
    X(DGRAD, "dgrad")                                                                              \
    X(WGRAD, "wgrad")                                                                              \
    X(PREPACKED_FORWARD, "prepacked_forward")                                                      \
    X(PREPACKED_DGRAD, "prepacked_dgrad")

typedef enum moert_tuned {
#define MOERT_TUNED_ENUM(name, text) MOERT_TUNED_##name,
    MOERT_TUNED_TABLE(MOERT_TUNED_ENUM)
#undef MOERT_TUNED_ENUM
        MOERT_TUNED_OPERATIONS
} moert_tuned;

const char *moert_tuned_name(moert_tuned operation);

/* What rows are looked up by. A size of 0 is not known, and matches only rows for any. */
typedef struct moert_tuning_key {
    moert_tuned operation;
    moert_dtype type;  /* F32 or BF16 */
    size_t n, k, rows; /* rows of a group on average */
} moert_tuning_key;

/* The choices for a product; `measured` = a row for just this device, n, k and rows names some.
 * Reads the rows on first use, then neither allocates nor fails. */
moert_choices moert_tuning_find(const moert_device *device, const moert_tuning_key *key,
                                bool *measured);

/* Until NULL is given every look-up yields these, with `measured`: for those who measure.
 * ERROR_USAGE if one is out of its bounds. */
moert_status moert_tuning_force(const moert_choices *choices);

/* Forgets the rows, so that the next look-up reads them again. */
void moert_tuning_reload(void);

typedef enum moert_tuning_level {
    MOERT_TUNING_DEFAULT,
    MOERT_TUNING_VENDOR,
    MOERT_TUNING_FAMILY,
    MOERT_TUNING_DEVICE
} moert_tuning_level;

/* Adds a row for a device, or all of its family or vendor, and, if there is a file to remember it,
 * appends it there, with `comment` (where it comes from). Rows measured with a tile prepacked before
 * should not name the tile. Errors: ERROR_MEMORY, ERROR_IO (the row serves, but is not in the
 * file). */
moert_status moert_tuning_remember(const moert_device *device, moert_tuning_level level,
                                   const moert_tuning_key *key, const moert_choices *choices,
                                   const char *comment);

/* The file of measured rows, to be freed; NULL if there is none (no cache folder, or MOERT_TUNE is
 * "off"). */
char *moert_tuning_file(void);

/* One of those that kernels/gemm/tuning.txt lists. */
const char *moert_tuning_family(const moert_device_info *info);

/* The rows that a key meets, most telling first: what stands in row number `index` of them and
 * where, such as "tuning.txt:27 (built in)"; false past the last one. */
typedef struct moert_tuning_report {
    char row[256], place[256];
} moert_tuning_report;
bool moert_tuning_survey(const moert_device *device, const moert_tuning_key *key, size_t index,
                         moert_tuning_report *report);

/* Rows that were read from the file, or measured by this process. */
size_t moert_tuning_remembered(void);

/* ---- rows (src/gemm/tuning/row.c) ---- */

typedef struct moert_tuning_range {
    size_t low, high; /* 0, SIZE_MAX = any */
} moert_tuning_range;

typedef struct moert_tuning_row {
    moert_tuning_level level;
    char pattern[128];
    int operation, type; /* -1 = any */
    moert_tuning_range n, k, rows;
    moert_choices choices;
} moert_tuning_row;

/* Reads a line without its comment; false with the reason in problem[160]. `empty` = there is no
 * row in the line, which is fine. */
bool moert_tuning_parse(const char *line, moert_tuning_row *row, bool *empty, char problem[160]);

/* The line of a row, without a line feed, cut off at `bytes`. */
void moert_tuning_print(const moert_tuning_row *row, char *line, size_t bytes);

/* Whether all choices that are named are within their bounds; else the reason in problem[160]. */
bool moert_choices_check(const moert_choices *choices, char problem[160]);

/* The text of the choices that are named, "panels=4 depth=1024 ...". */
void moert_choices_print(const moert_choices *choices, char *text, size_t bytes);

bool moert_tuning_matches(const moert_tuning_row *row, const moert_device_info *info,
                          const moert_tuning_key *key);
