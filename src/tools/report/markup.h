/*
 * Writes HTML and SVG that an XML parser accepts: elements close in order, text is escaped. Names
 * and attributes are not escaped, so they must not come from files; pass such strings as text.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/error.h"

enum { MOERT_MARKUP_DEPTH = 32 };

typedef struct moert_markup {
    FILE *stream; /* writes to `text` */
    char *text;
    size_t bytes, depth;
    const char *open[MOERT_MARKUP_DEPTH];
    bool failed;
} moert_markup;

#define MOERT_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* Errors: ERROR_MEMORY. */
moert_status moert_markup_start(moert_markup *m);
/* Closes all elements and returns the text, which the caller frees. Ends the writing, also on
 * failure. Errors: ERROR_MEMORY. */
moert_status moert_markup_finish(moert_markup *m, char **text);

/* <name>; `name` is a literal. */
void moert_markup_begin(moert_markup *m, const char *name);
/* Writes <name attributes>, with the attributes formatted by printf rules. */
void moert_markup_open(moert_markup *m, const char *name, const char *attributes, ...)
    MOERT_PRINTF(3, 4);
/* Closes the innermost `count` elements. */
void moert_markup_close(moert_markup *m, size_t count);
/* <name attributes/> */
void moert_markup_leaf(moert_markup *m, const char *name, const char *attributes, ...)
    MOERT_PRINTF(3, 4);
/* Text by printf rules, escaped; characters that XML does not allow become '?'. */
void moert_markup_text(moert_markup *m, const char *text, ...) MOERT_PRINTF(2, 3);
/* <name attributes>text</name>, the text by printf rules, escaped; "" for no attributes. */
void moert_markup_element(moert_markup *m, const char *name, const char *attributes,
                          const char *text, ...) MOERT_PRINTF(4, 5);
/* Text by printf rules, not escaped: styles, the points of a line. */
void moert_markup_raw(moert_markup *m, const char *text, ...) MOERT_PRINTF(2, 3);
