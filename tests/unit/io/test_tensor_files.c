// run: check=1 all=1san device=0
/* Writing safetensors in pieces, and reading sharded directories. */
#include <errno.h>

#include "io/durable.h"
#include "support/files.h"

static const moert_tensor_spec specs[] = {
    {"w", MOERT_FILE_F32, 2, {6, 4}},
    {"b\"ias\xc3\xa9", MOERT_FILE_BF16, 1, {3}},
    {"scalar", MOERT_FILE_F64, 0, {0}},
    {"none", MOERT_FILE_I32, 2, {0, 9}},
};
static const char *const metadata[] = {"format", "pt", "step", "12", NULL};
static const uint16_t bias[] = {0x3f80, 0x4000, 0xc040};
static const double scalar = 0.1;

static const float *weight(void) {
    return random_floats(24, 3.0f, 1);
}

static void write_whole(const char *path) {
    moert_tensor_writer *writer;
    ASSERT_OK(moert_writer_open(path, specs, 4, metadata, true, &writer));
    ASSERT_OK(moert_writer_put(writer, "w", 0, 24, weight()));
    ASSERT_OK(moert_writer_put(writer, specs[1].name, 0, 3, bias));
    ASSERT_OK(moert_writer_put(writer, "scalar", 0, 1, &scalar));
    ASSERT_OK(moert_writer_put(writer, "none", 0, 0, NULL));
    ASSERT_OK(moert_writer_close(writer));
}

TEST(test_written_tensors_are_read_back) {
    moert_tensors *tensors;
    const moert_tensor *tensor;
    float values[24];
    const char *path = in_directory("whole.safetensors");
    write_whole(path);
    tensors = open_tensors(path);
    assert_int_equal(moert_tensors_count(tensors), 4);
    assert_string_equal(moert_tensors_metadata(tensors, "step"), "12");
    for (size_t i = 0; i < 4; i++) {
        ASSERT_OK(
            moert_tensors_get(tensors, specs[i].name, specs[i].rank, specs[i].shape, &tensor));
        assert_int_equal(tensor->type, specs[i].type);
    }
    tensor = moert_tensors_find(tensors, "w");
    ASSERT_OK(moert_tensor_read_f32(tensor, 0, 24, values));
    assert_same_bits("w", values, weight(), 24);
    assert_memory_equal(moert_tensors_find(tensors, specs[1].name)->data, bias, sizeof bias);
    assert_memory_equal(moert_tensors_find(tensors, "scalar")->data, &scalar, sizeof scalar);
    moert_writer_close(NULL);
}

TEST(test_two_writers_of_pieces_give_the_bytes_of_one) {
    const char *whole = in_directory("one.safetensors"), *pieces = in_directory("two.safetensors");
    const moert_tensor_spec specs_reversed[] = {specs[3], specs[2], specs[1], specs[0]};
    moert_tensor_writer *first, *second;
    write_whole(whole);
    ASSERT_OK(moert_writer_open(pieces, specs_reversed, 4, metadata, true, &first));
    ASSERT_OK(moert_writer_open(pieces, specs, 4, metadata, false, &second));
    ASSERT_OK(moert_writer_put(second, "w", 17, 7, weight() + 17));
    ASSERT_OK(moert_writer_put(first, "w", 0, 5, weight()));
    ASSERT_OK(moert_writer_put(second, "scalar", 0, 1, &scalar));
    ASSERT_OK(moert_writer_put(first, specs[1].name, 1, 2, bias + 1));
    ASSERT_OK(moert_writer_close(first));
    ASSERT_OK(moert_writer_put(second, "w", 5, 12, weight() + 5));
    ASSERT_OK(moert_writer_put(second, specs[1].name, 0, 1, bias));
    ASSERT_OK(moert_writer_close(second));
    size_t bytes, same;
    const char *expected = read_file(whole, &bytes), *got = read_file(pieces, &same);
    assert_int_equal(same, bytes);
    assert_memory_equal(got, expected, bytes);
}

TEST(test_the_header_is_a_multiple_of_8_bytes_in_the_order_of_names) {
    static const file_tensor two[] = {{{"z", MOERT_FILE_U8, 1, {3}}, "xyz"},
                                      {{"a", MOERT_FILE_F16, 1, {2}}, "abcd"}};
    static const char expected[] =
        "\x70\0\0\0\0\0\0\0"
        "{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]},"
        "\"z\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]}}      abcdxyz";
    size_t bytes;
    const char *content = read_file(write_tensors("order.safetensors", two, 2), &bytes);
    assert_int_equal(bytes, sizeof expected - 1);
    assert_memory_equal(content, expected, bytes);
}

TEST(test_a_writer_replaces_a_file_that_is_still_mapped) {
    moert_tensors *tensors;
    moert_tensor_writer *writer;
    const char *path = in_directory("mapped.safetensors");
    write_whole(path);
    tensors = open_tensors(path);
    ASSERT_OK(moert_writer_open(path, specs, 1, NULL, true, &writer));
    ASSERT_OK(moert_writer_close(writer));
    assert_memory_equal(moert_tensors_find(tensors, "w")->data, weight(), 24 * sizeof(float));
}

TEST(test_wrong_specs_and_pieces_are_refused) {
    static const struct {
        moert_tensor_spec spec;
        const char *part;
    } rows[] = {{{"b", MOERT_FILE_F32, 1, {1}}, "twice"},
                {{"a", MOERT_FILE_F32, 9, {1}}, "limit 8"},
                {{"__metadata__", MOERT_FILE_F32, 1, {1}}, "__metadata__"},
                {{"a\xff", MOERT_FILE_F32, 1, {1}}, "UTF-8"},
                {{"a", MOERT_FILE_F32, 2, {SIZE_MAX, 2}}, "overflows"},
                {{"a", MOERT_FILE_U8, 1, {INT64_MAX / 2}}, "overflows"}};
    static const char *const twice[] = {"k", "1", "k", "2", NULL};
    moert_tensor_writer *writer;
    const char *path = in_directory("wrong.safetensors");
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const moert_tensor_spec two[] = {rows[i].spec, {"b", MOERT_FILE_F32, 1, {1}}};
        ASSERT_FAILS(moert_writer_open(path, two, 2, NULL, true, &writer), MOERT_ERROR_USAGE,
                     rows[i].part);
    }
    ASSERT_FAILS(moert_writer_open(path, specs, 1, twice, true, &writer), MOERT_ERROR_USAGE, "'k'");
    ASSERT_FAILS(moert_writer_open(path, specs, 4, NULL, false, &writer), MOERT_ERROR_IO, path);
    ASSERT_FAILS(moert_writer_open(in_directory("no/x"), specs, 4, NULL, true, &writer),
                 MOERT_ERROR_IO, strerror(ENOENT));
    write_whole(path);
    ASSERT_FAILS(moert_writer_open(path, specs, 3, metadata, false, &writer), MOERT_ERROR_MISMATCH,
                 path);
    ASSERT_OK(moert_writer_open(path, specs, 4, metadata, false, &writer));
    ASSERT_FAILS(moert_writer_put(writer, "v", 0, 1, &scalar), MOERT_ERROR_USAGE, "'v'");
    ASSERT_FAILS(moert_writer_put(writer, "w", 23, 2, weight()), MOERT_ERROR_USAGE, "its 24");
    ASSERT_FAILS(moert_writer_put(writer, "w", 25, SIZE_MAX, weight()), MOERT_ERROR_USAGE, "its");
    ASSERT_OK(moert_writer_close(writer));
}

TEST(test_a_file_that_does_not_fit_is_an_error_with_its_reason) {
    moert_tensor_writer *writer;
    limit_files(64);
    moert_status status =
        moert_writer_open(in_directory("big.safetensors"), specs, 4, metadata, true, &writer);
    limit_files(RLIM_INFINITY);
    ASSERT_FAILS(status, MOERT_ERROR_IO, strerror(EFBIG));
}

/* ---- shards ---- */

#define INDEX_NAME "sharded/model.safetensors.index.json"

static void write_shards(const char *index) {
    ASSERT_OK(moert_make_directories(in_directory("sharded")));
    write_tensors("sharded/1.safetensors",
                  &(file_tensor){{"a", MOERT_FILE_F32, 1, {1}}, &(float){1.0f}}, 1);
    write_tensors("sharded/2.safetensors",
                  &(file_tensor){{"b", MOERT_FILE_F32, 1, {1}}, &(float){2.0f}}, 1);
    write_json(INDEX_NAME, index);
}

TEST(test_a_sharded_directory_gives_the_tensors_of_its_index) {
    moert_tensors *tensors;
    write_shards(
        "{'metadata':{'total_size':8},'weight_map':{'b':'2.safetensors','a':'1.safetensors'}}");
    const char *paths[] = {in_directory("sharded"), in_directory(INDEX_NAME)};
    for (size_t i = 0; i < 2; i++) {
        float value;
        tensors = open_tensors(paths[i]);
        assert_int_equal(moert_tensors_count(tensors), 2);
        const moert_tensor *tensor = moert_tensors_find(tensors, "b");
        assert_non_null(strstr(tensor->file, "sharded/2.safetensors"));
        ASSERT_OK(moert_tensor_read_f32(tensor, 0, 1, &value));
        assert_true(value == 2.0f);
        assert_string_equal(moert_tensors_at(tensors, 0)->name, "a");
    }
    write_shards("{'weight_map':{'b':'2.safetensors'}}");
    tensors = open_tensors(in_directory("sharded"));
    assert_int_equal(moert_tensors_count(tensors), 1);
}

TEST(test_a_wrong_index_is_refused_with_tensor_and_shard) {
    static const struct {
        const char *index;
        moert_status status;
        const char *part;
    } rows[] = {
        {"{", MOERT_ERROR_FORMAT, "JSON"},
        {"{}", MOERT_ERROR_FORMAT, "weight_map"},
        {"{'weight_map':[]}", MOERT_ERROR_FORMAT, "weight_map"},
        {"{'weight_map':{'a':1}}", MOERT_ERROR_FORMAT, "'a'"},
        {"{'weight_map':{'a':''}}", MOERT_ERROR_FORMAT, "'a'"},
        {"{'weight_map':{'a':'../1.safetensors'}}", MOERT_ERROR_FORMAT, "../1.safetensors"},
        {"{'weight_map':{'a':'..\\\\1.safetensors'}}", MOERT_ERROR_FORMAT, "'a'"},
        {"{'weight_map':{'a':'..'}}", MOERT_ERROR_IO, "regular file"},
        {"{'weight_map':{'a':'3.safetensors'}}", MOERT_ERROR_IO, "sharded/3.safetensors"},
        {"{'weight_map':{'a':'1.safetensors','c':'2.safetensors'}}", MOERT_ERROR_FORMAT,
         "'c' is not in the shard 2.safetensors"},
        {"{'weight_map':{'a':'1.safetensors','a':'2.safetensors'}}", MOERT_ERROR_FORMAT, "JSON"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_tensors *tensors;
        write_shards(rows[i].index);
        ASSERT_FAILS(moert_tensors_open(in_directory("sharded"), &tensors), rows[i].status,
                     rows[i].part);
        assert_non_null(strstr(moert_last_error(), in_directory("sharded")));
    }
}

TESTS(make_test_directory, remove_test_directory)
