/*
 * Writes HTML and SVG that an XML parser accepts: elements close in order, text is escaped. Names
 * and attributes are the program's own and written as they are; what comes from outside is text.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/error.h"

enum { MOERT_MARKUP_DEPTH = 32 };

typedef struct moert_markup {
    FILE *stream; /* of `text` */
    char *text;
    size_t bytes, depth;
    const char *open[MOERT_MARKUP_DEPTH];
    bool failed;
} moert_markup;

#define MOERT_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* Errors: ERROR_MEMORY. */
moert_status moert_markup_start(moert_markup *m);
/* The text, to be freed, of which every element is closed. Ends the writing, also when it fails.
 * Errors: ERROR_MEMORY. */
moert_status moert_markup_finish(moert_markup *m, char **text);

/* <name>; `name` is a literal. */
void moert_markup_begin(moert_markup *m, const char *name);
/* <name attributes>, by printf rules. */
void moert_markup_open(moert_markup *m, const char *name, const char *attributes, ...)
    MOERT_PRINTF(3, 4);
/* Closes the innermost `count` elements. */
void moert_markup_close(moert_markup *m, size_t count);
/* <name attributes/> */
void moert_markup_leaf(moert_markup *m, const char *name, const char *attributes, ...)
    MOERT_PRINTF(3, 4);
/* Text by printf rules, escaped; characters that XML does not have become '?'. */
void moert_markup_text(moert_markup *m, const char *text, ...) MOERT_PRINTF(2, 3);
/* <name attributes>text</name>, the text by printf rules, escaped; "" for no attributes. */
void moert_markup_element(moert_markup *m, const char *name, const char *attributes,
                          const char *text, ...) MOERT_PRINTF(4, 5);
/* The program's own text by printf rules, as it is: styles, the points of a line. */
void moert_markup_raw(moert_markup *m, const char *text, ...) MOERT_PRINTF(2, 3);
