// run: check=1 device=0
/* Texts of users, such as file names, in files of UTF-8 and JSON. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "support/files.h"
#include "support/test.h"

TEST(test_any_text_becomes_utf8_that_json_takes_as_it_is) {
    static const struct {
        const char *text, *encoded;
    } rows[] = {
        {"", ""},
        {"corpus/books", "corpus/books"},
        {"b\xc3\xbc"
         "cher \xe6\x9b\xb8 \xf0\x9f\x93\x9a",
         "b\xc3\xbc"
         "cher \xe6\x9b\xb8 \xf0\x9f\x93\x9a"},
        {"bad/\xff\xfe", "bad/%FF%FE"},
        {"\xc3", "%C3"},                      /* cut off */
        {"\xc3(", "%C3("},                    /* no continuation */
        {"\xc0\xaf", "%C0%AF"},               /* overlong encoding of '/' */
        {"\xed\xa0\x80", "%ED%A0%80"},        /* one half of a UTF-16 surrogate pair */
        {"\xf4\x90\x80\x80", "%F4%90%80%80"}, /* above U+10FFFF */
        {"\x80", "%80"},
        {"a\"b\\c\n%\x7f", "a%22b%5Cc%0A%25%7F"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        char *encoded;
        ASSERT_OK(moert_text_encode(rows[i].text, &encoded));
        owned(encoded, free);
        assert_string_equal(encoded, rows[i].encoded);
        json_t *parsed = json_loads(titled("{\"%s\": 1}", encoded), 0, NULL);
        assert_non_null(json_object_get(parsed, encoded));
        json_decref(parsed);
    }
}

/* Writes `count` numbers of 8 bytes; returns the status of closing the stream. */
static moert_status write_numbers(size_t count, moert_text_stream *stream) {
    ASSERT_OK(moert_text_open("numbers", stream));
    for (size_t i = 0; i < count; i++)
        fprintf(stream->file, "%7zu\n", i);
    return moert_text_close(stream);
}

TEST(test_a_text_without_room_is_a_failure_and_a_text_with_room_is_whole) {
    enum { NUMBERS = 8 << 20 };
    moert_text_stream stream;
    limit_memory(16 << 20);
    const moert_status status = write_numbers(NUMBERS, &stream);
    limit_memory(RLIM_INFINITY);
    assert_int_equal(status, MOERT_ERROR_MEMORY);
    assert_string_equal(moert_last_error(), "no memory for numbers");
    assert_null(stream.text);

    ASSERT_OK(write_numbers(NUMBERS / 16, &stream));
    owned(stream.text, free);
    assert_int_equal(stream.bytes, 8 * NUMBERS / 16);
    assert_int_equal(strlen(stream.text), stream.bytes);
    for (size_t i = 0; i < NUMBERS / 16; i++)
        assert_int_equal(strtoul(stream.text + 8 * i, NULL, 10), i);
}

TESTS(NULL, NULL)
