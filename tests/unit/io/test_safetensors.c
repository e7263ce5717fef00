// run: check=1 all=1san device=0
/* Safetensors. Reading: golden files, conversions, and the refusal of malformed and truncated files
 * (`make fuzz TARGET=safetensors` damages files at random). Writing: tensors in pieces, and
 * shards. */
#include <errno.h>

#include "base/dtype.h"
#include "io/durable.h"
#include "support/files.h"

#define ENTRY(name, type, shape, offsets)                                                          \
    "'" name "':{'dtype':'" type "','shape':" shape ",'data_offsets':" offsets "}"

/* Writes a file with this header, in which ' stands for ", and this data; returns the file's
 * path. */
static const char *write_case(const char *header, const void *data, size_t bytes) {
    const uint64_t length = strlen(header); /* the file is little-endian */
    char *image = test_alloc(8 + length + bytes);
    memcpy(image, &length, 8);
    for (size_t i = 0; i < length; i++)
        image[8 + i] = header[i] == '\'' ? '"' : header[i];
    memcpy(image + 8 + length, data, bytes);
    return write_file("case.safetensors", image, 8 + length + bytes);
}

/* ---- golden files; golden_layer, golden_model and golden_ops read all of them ---- */

TEST(test_golden_files_open_with_their_names_and_shapes) {
    static const struct {
        const char *path;
        size_t count;
        const char *name; /* name of a float32 tensor */
        size_t rank, shape[3];
    } rows[] = {
        {"layer/qwen3_moe-a/model.safetensors", 25, "model.layers.0.mlp.gate.weight", 2, {8, 64}},
        {"layer/gpt_oss-a", 6, "model.layers.0.mlp.experts.gate_up_proj", 3, {8, 64, 192}},
        {"model/mixtral-tiny-aux/grads_step0.safetensors", 65, "grad.lm_head.weight", 2, {256, 64}},
        {"model/qwen3-tiny", 117, "model.layers.1.self_attn.q_norm.weight", 1, {32}},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const char *path = titled("tests/golden/%s", rows[i].path);
        const moert_tensor *tensor;
        moert_tensors *tensors = open_tensors(path);
        assert_int_equal(moert_tensors_count(tensors), rows[i].count);
        ASSERT_OK(moert_tensors_get(tensors, rows[i].name, rows[i].rank, rows[i].shape, &tensor));
        assert_int_equal(tensor->type, MOERT_FILE_F32);
        assert_int_equal(tensor->bytes, tensor->elements * moert_file_type_bytes(tensor->type));
        assert_non_null(strstr(tensor->file, path));
        for (size_t j = 1; j < rows[i].count; j++)
            assert_true(strcmp(moert_tensors_at(tensors, j - 1)->name,
                               moert_tensors_at(tensors, j)->name) < 0);
    }
}

/* ---- elements ---- */

/* The first tensor has one byte, so that all others are unaligned. */
TEST(test_floats_of_every_type_are_read_unaligned) {
    const double doubles[] = {1.0 + 0x1p-24, 1.0 + 0x3p-24, -1e-320, INFINITY};
    const float floats[] = {3.5f, -0.0f};
    const uint16_t halves[] = {0x3c00, 0x0001, 0x83ff, 0x7bff, 0xfc00, 0x7e01, 0x8000, 0x0400};
    const uint16_t brains[] = {0x3f80, 0x0001, 0xff80};
    const file_tensor stored[] = {{{"a", MOERT_FILE_U8, 1, {1}}, ""},
                                  {{"b", MOERT_FILE_BF16, 1, {3}}, brains},
                                  {{"d", MOERT_FILE_F64, 1, {4}}, doubles},
                                  {{"f", MOERT_FILE_F32, 1, {2}}, floats},
                                  {{"h", MOERT_FILE_F16, 1, {8}}, halves}};
    const float want[][8] = {{0.0f},
                             {1.0f, 0x1p-133f, -INFINITY},
                             {1.0f, 1.0f + 0x1p-22f, -0.0f, INFINITY}, /* ties go to even */
                             {3.5f, -0.0f},
                             {1.0f, 0x1p-24f, -0x3ffp-24f, 65504.0f, -INFINITY,
                              moert_float_from_bits(0x7fc02000), -0.0f, 0x1p-14f}};
    float out[8];
    moert_tensors *tensors = open_tensors(write_tensors("floats", stored, MOERT_COUNT(stored)));
    for (size_t i = 1; i < MOERT_COUNT(stored); i++) {
        const moert_tensor *tensor = moert_tensors_find(tensors, stored[i].spec.name);
        ASSERT_OK(moert_tensor_read_f32(tensor, 0, tensor->elements, out));
        assert_same_bits(tensor->name, out, want[i], tensor->elements);
        ASSERT_OK(moert_tensor_read_f32(tensor, 1, 1, out));
        assert_same_bits(tensor->name, out, want[i] + 1, 1);
    }
    const moert_tensor *brain = moert_tensors_find(tensors, "b");
    ASSERT_OK(moert_tensor_read_f32(brain, 3, 0, NULL));
    assert_int_equal(moert_tensor_read_f32(brain, 2, 2, out), MOERT_ERROR_USAGE);
    assert_int_equal(moert_tensor_read_f32(brain, 4, SIZE_MAX, out), MOERT_ERROR_USAGE);
    assert_int_equal(moert_tensor_read_i32(brain, 0, 1, (int32_t *)out), MOERT_ERROR_UNSUPPORTED);
    assert_int_equal(moert_tensor_read_f32(moert_tensors_find(tensors, "a"), 0, 1, out),
                     MOERT_ERROR_UNSUPPORTED);
}

TEST(test_integers_are_read_where_they_fit) {
    const int64_t longs[] = {INT32_MIN, INT32_MAX, (int64_t)INT32_MAX + 1};
    const uint64_t words[] = {7, UINT64_MAX};
    const file_tensor stored[] = {{{"b", MOERT_FILE_I8, 1, {1}}, "\xff"},
                                  {{"l", MOERT_FILE_I64, 1, {3}}, longs},
                                  {{"s", MOERT_FILE_U16, 1, {1}}, "\xff\xff"},
                                  {{"u", MOERT_FILE_U64, 1, {2}}, words},
                                  {{"w", MOERT_FILE_U32, 1, {1}}, "\xff\xff\xff\xff"}};
    static const struct {
        const char *name;
        size_t first, count;
        int32_t want[2];
        const char *message; /* NULL: they fit */
    } rows[] = {{"b", 0, 1, {-1}, NULL},
                {"l", 0, 2, {INT32_MIN, INT32_MAX}, NULL},
                {"l", 0, 3, {0}, "element 2 is 2147483648"},
                {"s", 0, 1, {65535}, NULL},
                {"u", 0, 1, {7}, NULL},
                {"u", 1, 1, {0}, "element 1"},
                {"w", 0, 1, {0}, "element 0"}};
    moert_tensors *tensors = open_tensors(write_tensors("integers", stored, MOERT_COUNT(stored)));
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const moert_tensor *tensor = moert_tensors_find(tensors, rows[i].name);
        int32_t out[3] = {0};
        const moert_status status =
            moert_tensor_read_i32(tensor, rows[i].first, rows[i].count, out);
        if (rows[i].message == NULL)
            ASSERT_OK(status);
        else
            ASSERT_FAILS(status, MOERT_ERROR_FORMAT, rows[i].message);
        /* a failure leaves the output unchanged */
        assert_memory_equal(out, rows[i].want, sizeof rows[i].want);
    }
}

TEST(test_empty_tensors_and_scalars_are_legal) {
    static const char header[] = "{" ENTRY("none", "F32", "[0,4]", "[0,0]") "," ENTRY(
        "one", "F32", "[]", "[0,4]") "," ENTRY("last", "F32", "[0]", "[4,4]") "}  ";
    const moert_tensor *tensor;
    moert_tensors *tensors = open_tensors(write_case(header, "abcd", 4));
    assert_int_equal(moert_tensors_find(tensors, "none")->elements, 0);
    ASSERT_FAILS(moert_tensors_get(tensors, "ones", 0, NULL, &tensor), MOERT_ERROR_MISMATCH,
                 "'one'"); /* the nearest */
    ASSERT_OK(moert_tensors_get(tensors, "one", 0, NULL, &tensor));
    assert_int_equal(tensor->elements, 1);
    assert_null(moert_tensors_at(tensors, 3));
    tensors = open_tensors(write_case("{}", "", 0));
    assert_int_equal(moert_tensors_count(tensors), 0);
    assert_int_equal(moert_tensors_get(tensors, "one", 0, NULL, &tensor), MOERT_ERROR_MISMATCH);
}

/* ---- malformed and truncated files ---- */

static void assert_refused(const char *path, const char *part) {
    moert_tensors *tensors = NULL;
    ASSERT_FAILS(moert_tensors_open(path, &tensors), MOERT_ERROR_FORMAT, part);
    assert_non_null(strstr(moert_last_error(), path));
    assert_null(tensors);
}

TEST(test_malformed_headers_are_refused_with_file_and_tensor) {
    static const struct {
        /* part: part of the expected message. Each file has 8 bytes of data after the header */
        const char *header, *part;
    } rows[] = {
        {"", "'{'"},
        {" {}", "'{'"},
        {"[]", "'{'"},
        {"{", "JSON"},
        {"{}x", "JSON"},
        {"{'a':1e999}", "JSON"},
        {"{'a\\u0000':{}}", "JSON"},
        {"{'\xff':{}}", "JSON"},
        {"{}", "8 bytes of data, but its tensors end at byte 0"},
        {"{'a':7}", "'a'"},
        {"{'a':{}}", "dtype"},
        {"{'a':{'dtype':4}}", "dtype"},
        {"{'a':{'dtype':'F32','shape':2,'data_offsets':[0,8]}}", "shape"},
        {"{'a':{'dtype':'F32','shape':[2]}}", "data_offsets"},
        {"{" ENTRY("a", "F31", "[2]", "[0,8]") "}", "unknown dtype 'F31' (known: F64"},
        {"{" ENTRY("a", "F32", "[-2]", "[0,8]") "}", "negative value -2"},
        {"{" ENTRY("a", "F32", "[2.0]", "[0,8]") "}", "no integer"},
        {"{" ENTRY("a", "F32", "[2,'1']", "[0,8]") "}", "no integer"},
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
        {"{'__metadata__':[]," ENTRY("a", "F32", "[2]", "[0,8]") "}", "__metadata__"},
        {"{'__metadata__':{'k':1}," ENTRY("a", "F32", "[2]", "[0,8]") "}", "'k'"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++)
        assert_refused(write_case(rows[i].header, "12345678", 8), rows[i].part);
}

TEST(test_a_header_longer_than_its_limit_or_file_is_refused) {
    assert_refused(write_file("case.safetensors", "\xff\xff\xff\xff\xff\xff\xff\xff{}      ", 16),
                   "above the limit 100000000");
    assert_refused(write_file("case.safetensors", "\t\0\0\0\0\0\0\0{}      ", 16),
                   "claims 9 bytes, but only 8");
}

TEST(test_a_file_truncated_anywhere_is_refused) {
    static const char header[] =
        "{'__metadata__':{'format':'pt'}," ENTRY("weight", "F32", "[2,3]", "[0,24]") "," ENTRY(
            "bias", "BF16", "[2]", "[24,28]") "," ENTRY("empty", "I64", "[0,7]", "[28,28]") "}    ";
    const char *path = write_case(header, (const char[28]){0}, 28);
    size_t bytes;
    const char *image = read_file(path, &bytes);
    open_tensors(path);
    for (size_t length = 0; length < bytes; length++)
        assert_refused(write_file("case.safetensors", image, length), "");
}

/* ---- writing in pieces (tests/e2e/bad_input.sh tests a full disk) ---- */

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
    size_t bytes;
    const char *path = in_directory("whole.safetensors");
    write_whole(path);
    tensors = open_tensors(path);
    assert_int_equal(moert_tensors_count(tensors), 4);
    assert_non_null(strstr(read_file(path, &bytes) + sizeof(uint64_t),
                           "\"__metadata__\":{\"format\":\"pt\",\"step\":\"12\"}"));
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
    open_tensors("tests/golden/layer/olmoe-a"); /* without metadata */
    moert_tensors_close(NULL);
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
    assert_int_equal(system(titled("cmp %s %s", whole, pieces)), 0);
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
                {{"a", MOERT_FILE_F32, 2, {SIZE_MAX, 2}}, "too large"},
                {{"a", MOERT_FILE_U8, 1, {INT64_MAX / 2}}, "too large"}};
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
    ASSERT_FAILS(moert_writer_put(writer, "w", 23, 2, weight()), MOERT_ERROR_USAGE, "24 elements");
    ASSERT_FAILS(moert_writer_put(writer, "w", 25, SIZE_MAX, weight()), MOERT_ERROR_USAGE,
                 "exceed");
    ASSERT_OK(moert_writer_close(writer));
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
