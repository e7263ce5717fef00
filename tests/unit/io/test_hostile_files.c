// run: check=1 all=1san device=0
/* The reader refuses malformed, truncated and damaged safetensors files, and never crashes. */

#include "base/memory.h"
#include "base/rng.h"
#include "io/durable.h"
#include "io/safetensors.h"
#include "support/files.h"

#define CASE "case.safetensors"

static void assert_refused(const char *path, moert_status expected, const char *part,
                           const char *what) {
    moert_tensors *tensors = NULL;
    moert_status status = moert_tensors_open(path, &tensors);
    const char *message = moert_last_error();
    if (status != expected || strstr(message, part) == NULL || strstr(message, path) == NULL)
        fail_msg("%s: %s: '%s' does not say '%s'", what, moert_status_name(status), message, part);
    assert_null(tensors);
}

#define ENTRY(name, type, shape, offsets)                                                          \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(test_malformed_headers_are_refused_with_file_and_tensor) {
    static const struct {
        /* part: expected in the message; the data after the header has 8 bytes */
        const char *header, *part;
    } rows[] = {
        {"", "'{'"},
        {" {}", "'{'"},
        {"[]", "'{'"},
        {"{", "JSON"},
        {"{}x", "JSON"},
        {"{\"a\":1e999}", "JSON"},
        {"{\"a\\u0000\":{}}", "JSON"},
        {"{\"\xff\":{}}", "JSON"},
        {"{}", "8 bytes of data, but its tensors end at byte 0"},
        {"{\"a\":7}", "'a'"},
        {"{\"a\":{}}", "dtype"},
        {"{\"a\":{\"dtype\":4}}", "dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", "shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "data_offsets"},
        {"{" ENTRY("a", "F31", "[2]", "[0,8]") "}", "unknown dtype 'F31' (known: F64"},
        {"{" ENTRY("a", "F32", "[-2]", "[0,8]") "}", "negative value -2"},
        {"{" ENTRY("a", "F32", "[2.0]", "[0,8]") "}", "no integer"},
        {"{" ENTRY("a", "F32", "[2,\"1\"]", "[0,8]") "}", "no integer"},
        {"{" ENTRY("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", "limit 8"},
        {"{" ENTRY("a", "F32", "[4294967296,4294967296]", "[0,8]") "}", "overflows"},
        {"{" ENTRY("a", "F64", "[4611686018427387904]", "[0,0]") "}", "overflows"},
        {"{" ENTRY("a", "F32", "[99999999999999999999]", "[0,8]") "}", "JSON"},
        {"{" ENTRY("a", "F32", "[2]", "[0]") "}", "data_offsets"},
        {"{" ENTRY("a", "F32", "[2]", "[0,8,8]") "}", "data_offsets"},
        {"{" ENTRY("a", "F32", "[2]", "[8,0]") "}", "[8, 0)"},
        {"{" ENTRY("a", "F32", "[2]", "[-8,0]") "}", "-8"},
        {"{" ENTRY("a", "F32", "[2]", "[1,9]") "}", "not within the 8 bytes"},
        {"{" ENTRY("a", "F32", "[1]", "[0,9223372036854775807]") "}", "not within"},
        {"{" ENTRY("a", "F32", "[1]", "[0,8]") "}", "needs 4 bytes, but data_offsets give 8"},
        {"{" ENTRY("a", "F32", "[2]", "[0,8]") "," ENTRY("a", "F32", "[2]", "[0,8]") "}", "JSON"},
        {"{" ENTRY("a", "F32", "[2]", "[0,8]") "," ENTRY("b", "F32", "[1]", "[4,8]") "}",
         "'b': begins at byte 4 of the data, inside 'a'"},
        {"{" ENTRY("a", "F32", "[2]", "[0,8]") "," ENTRY("b", "F32", "[0]", "[4,4]") "}", "inside"},
        {"{" ENTRY("a", "F32", "[1]", "[4,8]") "}", "hole"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "}", "end at byte 4"},
        {"{\"__metadata__\":[]," ENTRY("a", "F32", "[2]", "[0,8]") "}", "__metadata__"},
        {"{\"__metadata__\":{\"k\":1}," ENTRY("a", "F32", "[2]", "[0,8]") "}", "'k'"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        assert_refused(write_tensors(CASE, rows[i].header, "12345678", 8), MOERT_ERROR_FORMAT,
                       rows[i].part, rows[i].header);
    }
}

TEST(test_a_header_longer_than_its_limit_or_file_is_refused) {
    unsigned char image[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'};
    assert_refused(write_file(CASE, image, sizeof image), MOERT_ERROR_FORMAT,
                   "above the limit 100000000", "huge");
    memset(image, 0, 8);
    image[0] = 9;
    assert_refused(write_file(CASE, image, sizeof image), MOERT_ERROR_FORMAT,
                   "claims 9 bytes, but only 8", "one too long");
}

static const char sound_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"}," ENTRY("weight", "F32", "[2,3]", "[0,24]") "," ENTRY(
        "bias", "BF16", "[2]", "[24,28]") "," ENTRY("empty", "I64", "[0,7]", "[28,28]") "}    ";

TEST(test_a_file_truncated_anywhere_is_refused) {
    unsigned char image[1024], data[28] = {0};
    size_t bytes = compose_tensors(image, sound_header, data, sizeof data);
    moert_tensors *tensors;
    const char *file = write_file(CASE, image, bytes);
    ASSERT_OK(moert_tensors_open(file, &tensors));
    moert_tensors_close(tensors);
    for (size_t length = 0; length < bytes; length++) {
        assert_refused(write_file(CASE, image, length), MOERT_ERROR_FORMAT, "", "truncated");
    }
}

/* Reads everything in an opened file, so that sanitizers see each access. */
static void touch_all(const moert_tensors *tensors) {
    for (size_t i = 0; i < moert_tensors_count(tensors); i++) {
        const moert_tensor *tensor = moert_tensors_at(tensors, i);
        float values[64];
        int32_t integers[64];
        assert_ptr_equal(moert_tensors_find(tensors, tensor->name), tensor);
        if (tensor->elements > 64)
            continue;
        moert_tensor_read_f32(tensor, 0, tensor->elements, values);
        moert_tensor_read_i32(tensor, 0, tensor->elements, integers);
    }
}

TEST(test_thousands_of_damaged_headers_never_crash) {
    static const char alphabet[] = "0123456789-+.eE[]{}\",:\\ FIUB_au\n";
    unsigned char sound[1024], image[1024], data[28] = {0};
    size_t bytes = compose_tensors(sound, sound_header, data, sizeof data), refused = 0;
    enum { CASES = 4000 };
    for (size_t i = 0; i < CASES; i++) {
        moert_tensors *tensors = NULL;
        memcpy(image, sound, bytes);
        for (size_t hit = 0; hit <= i % 4; hit++) {
            moert_random random = moert_rng_block(7, i, hit);
            size_t at = random.word[0] % (bytes - sizeof data);
            if (random.word[1] % 3 == 0)
                image[at] ^= (unsigned char)(1U << random.word[2] % 8);
            else if (at >= 8)
                image[at] = (unsigned char)alphabet[random.word[2] % (sizeof alphabet - 1)];
        }
        const char *file = write_file(CASE, image, bytes);
        if (moert_tensors_open(file, &tensors) == MOERT_OK) {
            touch_all(tensors);
            moert_tensors_close(tensors);
        } else {
            refused++;
            assert_non_null(strstr(moert_last_error(), file));
        }
    }
    assert_true(refused > CASES / 2);
}

TESTS(make_test_directory, remove_test_directory)
