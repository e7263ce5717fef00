/* Writes HTML and SVG. */
#include "tools/report/markup.h"

#include <stdarg.h>
#include <stdlib.h>

#include "base/text.h"

moert_status moert_markup_start(moert_markup *m) {
    *m = (moert_markup){0};
    m->stream = open_memstream(&m->text, &m->bytes);
    return m->stream != NULL ? MOERT_OK : MOERT_FAIL(ERROR_MEMORY, "no room for a page");
}

moert_status moert_markup_finish(moert_markup *m, char **text) {
    moert_markup_close(m, m->depth);
    const bool failed = m->failed || ferror(m->stream) != 0;
    if (fclose(m->stream) != 0 || failed) {
        free(m->text);
        return MOERT_FAIL(ERROR_MEMORY, "no room for a page of %zu bytes", m->bytes);
    }
    *text = m->text;
    return MOERT_OK;
}

static void put_tag(moert_markup *m, const char *name, const char *attributes, va_list arguments,
                    const char *end) {
    fprintf(m->stream, "\n<%s ", name);
    vfprintf(m->stream, attributes, arguments);
    fputs(end, m->stream);
}

static void push(moert_markup *m, const char *name) {
    if (m->depth < MOERT_MARKUP_DEPTH)
        m->open[m->depth++] = name;
    else
        m->failed = true;
}

void moert_markup_open(moert_markup *m, const char *name, const char *attributes, ...) {
    va_list arguments;
    va_start(arguments, attributes);
    put_tag(m, name, attributes, arguments, ">");
    va_end(arguments);
    push(m, name);
}

void moert_markup_begin(moert_markup *m, const char *name) {
    fprintf(m->stream, "\n<%s>", name);
    push(m, name);
}

void moert_markup_close(moert_markup *m, size_t count) {
    while (count-- > 0 && m->depth > 0)
        fprintf(m->stream, "</%s>", m->open[--m->depth]);
}

void moert_markup_leaf(moert_markup *m, const char *name, const char *attributes, ...) {
    va_list arguments;
    va_start(arguments, attributes);
    put_tag(m, name, attributes, arguments, "/>");
    va_end(arguments);
}

/* ---- text ---- */

/* The bytes of the UTF-8 character at `at`; 0 if XML does not allow it. */
static size_t character_bytes(const unsigned char *at) {
    /* the first lead bytes of characters of 2, 3 and 4 bytes; the first byte above all leads */
    static const unsigned char lead[] = {0xC2, 0xE0, 0xF0, 0xF5};
    if (at[0] < 0x80)
        return at[0] >= ' ' || at[0] == '\n' || at[0] == '\t' ? 1 : 0;
    size_t bytes = at[0] < lead[0]   ? 0
                   : at[0] < lead[1] ? 2
                   : at[0] < lead[2] ? 3
                   : at[0] < lead[3] ? 4
                                     : 0;
    for (size_t i = 1; i < bytes; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    const unsigned second = bytes > 1 ? at[1] : 0;
    const bool overlong = (at[0] == 0xE0 && second < 0xA0) || (at[0] == 0xF0 && second < 0x90);
    const bool foreign = (at[0] == 0xED && second > 0x9F) || (at[0] == 0xF4 && second > 0x8F) ||
                         (at[0] == 0xEF && second == 0xBF && at[2] >= 0xBE);
    return overlong || foreign ? 0 : bytes;
}

static void put_escaped(FILE *stream, const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    while (*at != '\0') {
        const size_t bytes = character_bytes(at);
        if (*at == '<' || *at == '>' || *at == '&' || *at == '"')
            fprintf(stream, "&#%d;", *at);
        else if (bytes > 0)
            fwrite(at, 1, bytes, stream);
        else
            fputc('?', stream);
        at += bytes > 0 ? bytes : 1;
    }
}

static void put_text(moert_markup *m, const char *format, va_list arguments) {
    char *text = moert_text_format_list(format, arguments);
    if (text == NULL) {
        m->failed = true;
        return;
    }
    put_escaped(m->stream, text);
    free(text);
}

void moert_markup_text(moert_markup *m, const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    put_text(m, text, arguments);
    va_end(arguments);
}

void moert_markup_element(moert_markup *m, const char *name, const char *attributes,
                          const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    if (attributes[0] == '\0')
        moert_markup_begin(m, name);
    else
        moert_markup_open(m, name, "%s", attributes);
    put_text(m, text, arguments);
    moert_markup_close(m, 1);
    va_end(arguments);
}

void moert_markup_raw(moert_markup *m, const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    vfprintf(m->stream, text, arguments);
    va_end(arguments);
}
