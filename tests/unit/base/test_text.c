// run: check=1 device=0
/* Texts of users, such as file names, in files of UTF-8 and JSON. */
#include <jansson.h>

#include "base/text.h"
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
        {"\xc0\xaf", "%C0%AF"},               /* too long a form */
        {"\xed\xa0\x80", "%ED%A0%80"},        /* half of a surrogate pair */
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

TESTS(NULL, NULL)
