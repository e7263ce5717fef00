/*
 * Tuning rows: lines of text with the tile sizes and other choices of the portable GEMMs, by device
 * and shape. kernels/gemm/tuning.txt has the grammar and the built-in rows. No choice changes the
 * bits of a result, and all are within bounds that are safe on every device. So a wrong or missing
 * row costs time only.
 *
 * Rows measured on this machine are in a file (MOERT_TUNE_FILE), to which processes append whole
 * lines. Of two rows for the same shape, the later row is used. Lines that cannot be parsed are
 * skipped with a warning.
 */
#pragma once

#include "device/device.h"
#include "moert/formats.h"

/* X(choice, lowest, highest, multiple of, default); see kernels/gemm/tuning.txt. */
#define MOERT_CHOICE_TABLE(X)                                                                      \
    X(panels, 1, 64, 1, 4)                                                                         \
    X(depth, 16, 4096, 16, 1024)                                                                   \
    X(split, 1, 65536, 1, 512)                                                                     \
    X(lines, 1, 16, 1, 8)                                                                          \
    X(width, 1, 4, 1, 2)                                                                           \
    X(prefetch, 16, 4096, 16, 4096)

/* In a row, 0 marks a choice that the row does not set. */
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

/* The key of a look-up. A size of 0 is unknown and matches only rows for any size. */
typedef struct moert_tuning_key {
    moert_tuned operation;
    moert_dtype type;  /* F32 or BF16 */
    size_t n, k, rows; /* rows of a group on average */
} moert_tuning_key;

/* The choices for a GEMM. The first call reads the rows; later calls neither allocate nor fail. */
moert_choices moert_tuning_find(const moert_device *device, const moert_tuning_key *key);

/* Makes the next look-up read the rows again. */
void moert_tuning_reload(void);

typedef enum moert_tuning_level {
    MOERT_TUNING_DEFAULT,
    MOERT_TUNING_VENDOR,
    MOERT_TUNING_FAMILY,
    MOERT_TUNING_DEVICE
} moert_tuning_level;

/* Adds a row for a device, its family or its vendor. Unless moert_tuning_file() gives NULL, also
 * appends the row to that file, with `comment`, which tells the row's origin. A row measured with a
 * weight that was already prepacked should not set the tile. Errors: ERROR_MEMORY, ERROR_IO (the
 * row is in use, but not in the file). */
moert_status moert_tuning_remember(const moert_device *device, moert_tuning_level level,
                                   const moert_tuning_key *key, const moert_choices *choices,
                                   const char *comment);

/* The path of the file of measured rows, which the caller frees; NULL without a cache directory or
 * if MOERT_TUNE is "off". */
char *moert_tuning_file(void);

/* The device's family, one of the families that kernels/gemm/tuning.txt lists. */
const char *moert_tuning_family(const moert_device_info *info);

/* Row number `index` of the rows that match a key, highest rank first: the row's text and its
 * place, such as "kernels/gemm/tuning.txt:27"; false past the last row. */
typedef struct moert_tuning_report {
    char row[256], place[256];
} moert_tuning_report;
bool moert_tuning_survey(const moert_device *device, const moert_tuning_key *key, size_t index,
                         moert_tuning_report *report);

/* The number of measured rows: those from the file and those that this process measured. */
size_t moert_tuning_remembered(void);

/* ---- rows (src/gemm/tuning/row.c) ---- */

typedef struct moert_tuning_range {
    size_t low, high; /* any size: low = 0, high = SIZE_MAX */
} moert_tuning_range;

typedef struct moert_tuning_row {
    moert_tuning_level level;
    char pattern[128];
    int operation, type; /* -1 = any */
    moert_tuning_range n, k, rows;
    moert_choices choices;
} moert_tuning_row;

/* Parses a line up to its comment; false with the reason in problem[160]. *empty: the line is legal
 * but holds no row. */
bool moert_tuning_parse(const char *line, moert_tuning_row *row, bool *empty, char problem[160]);

/* Prints the line of a row, without a line feed, truncated to `bytes`. */
void moert_tuning_print(const moert_tuning_row *row, char *line, size_t bytes);

/* Whether all choices that are set are within their bounds; if not, problem[160] gets the
 * reason. */
bool moert_choices_check(const moert_choices *choices, char problem[160]);

/* ERROR_USAGE if a choice is missing or out of bounds. NULL is legal. */
moert_status moert_choices_check_whole(const moert_choices *choices);

/* Prints the choices that are set: "panels=4 depth=1024 ...". */
void moert_choices_print(const moert_choices *choices, char *text, size_t bytes);

bool moert_tuning_matches(const moert_tuning_row *row, const moert_device_info *info,
                          const moert_tuning_key *key);
