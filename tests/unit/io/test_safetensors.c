// run: check=1 all=1san device=0
/* Reading safetensors: the golden files, lookup and conversions. */
#include <limits.h>

#include "base/memory.h"
#include "io/durable.h"
#include "io/safetensors.h"
#include "support/files.h"

/* ---- golden files ---- */

static const struct {
    const char *path;
    size_t count;
    const char *name; /* name of a float32 tensor */
    size_t rank, shape[3];
} golden_files[] = {
    {"layer/mixtral-a/model.safetensors",
     25,
     "model.layers.0.block_sparse_moe.experts.7.w2.weight",
     2,
     {64, 96}},
    {"layer/mixtral-skew", 25, "model.layers.0.block_sparse_moe.gate.weight", 2, {8, 32}},
    {"layer/deepseek_v3-a", 29, "model.layers.0.mlp.gate.e_score_correction_bias", 1, {8}},
    {"layer/deepseek_v3-skew/expected.safetensors", 30, "y", 2, {33, 32}},
    {"layer/gpt_oss-a", 6, "model.layers.0.mlp.experts.gate_up_proj", 3, {8, 64, 192}},
    {"layer/gpt_oss-skew/input.safetensors", 2, "dy", 2, {33, 32}},
    {"layer/olmoe-a/expected.safetensors", 27, "dx", 2, {48, 64}},
    {"layer/qwen3_moe-a", 25, "model.layers.0.mlp.experts.0.up_proj.weight", 2, {96, 64}},
    {"model/mixtral-tiny", 65, "model.embed_tokens.weight", 2, {256, 64}},
    {"model/mixtral-tiny-aux/grads_step0.safetensors", 65, "grad.lm_head.weight", 2, {256, 64}},
    {"model/qwen3-tiny", 117, "model.layers.1.self_attn.q_norm.weight", 1, {32}},
    {"quant/mxfp8-e4m3-rceil-edge-40x96.safetensors", 4, "x", 2, {40, 96}},
    {"ops/wgrad-mxfp8-H160-I192-128_0_256.safetensors", 8, "wgrad", 3, {3, 160, 192}},
};

TEST(test_golden_files_open_with_their_names_and_shapes) {
    for (size_t i = 0; i < MOERT_COUNT(golden_files); i++) {
        char path[256];
        const moert_tensor *tensor;
        snprintf(path, sizeof path, "tests/golden/%s", golden_files[i].path);
        moert_tensors *tensors = open_tensors(path);
        assert_int_equal(moert_tensors_count(tensors), golden_files[i].count);
        ASSERT_OK(moert_tensors_get(tensors, golden_files[i].name, golden_files[i].rank,
                                    golden_files[i].shape, &tensor));
        assert_int_equal(tensor->type, MOERT_FILE_F32);
        assert_int_equal(tensor->bytes, tensor->elements * moert_file_type_bytes(tensor->type));
        assert_non_null(strstr(tensor->file, path));
        for (size_t j = 1; j < golden_files[i].count; j++)
            assert_true(strcmp(moert_tensors_at(tensors, j - 1)->name,
                               moert_tensors_at(tensors, j)->name) < 0);
    }
}

TEST(test_metadata_is_found_by_key) {
    moert_tensors *tensors = open_tensors("tests/golden/model/qwen3-tiny");
    assert_string_equal(moert_tensors_metadata(tensors, "format"), "pt");
    assert_null(moert_tensors_metadata(tensors, "absent"));
    tensors = open_tensors("tests/golden/layer/olmoe-a");
    assert_null(moert_tensors_metadata(tensors, "format"));
    moert_tensors_close(NULL);
}

TEST(test_get_names_the_nearest_tensor_or_both_shapes) {
    const moert_tensor *tensor;
    size_t shape[] = {64, 96};
    moert_tensors *tensors = open_tensors("tests/golden/layer/olmoe-a");
    assert_null(moert_tensors_find(tensors, "model.layers.0.mlp.gates.weight"));
    ASSERT_FAILS(moert_tensors_get(tensors, "model.layers.0.mlp.gates.weight", 2, shape, &tensor),
                 MOERT_ERROR_MISMATCH, "'model.layers.0.mlp.gate.weight'");
    ASSERT_FAILS(moert_tensors_get(tensors, "model.layers.0.mlp.gate.weight", 2, shape, &tensor),
                 MOERT_ERROR_MISMATCH, "[8, 64], not [64, 96]");
}

/* ---- elements ---- */

TEST(test_floats_of_every_type_are_read_unaligned) {
    /* the first tensor has one byte, so that all other tensors are unaligned */
    static const char header[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"d\":{\"dtype\":\"F64\",\"shape\":[4],\"data_offsets\":[1,33]},"
        "\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[33,41]},"
        "\"h\":{\"dtype\":\"F16\",\"shape\":[8],\"data_offsets\":[41,57]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[57,63]}}";
    const double doubles[] = {1.0 + 0x1p-24, 1.0 + 0x3p-24, -1e-320, INFINITY};
    const float floats[] = {3.5f, -0.0f};
    const uint16_t halves[] = {0x3c00, 0x0001, 0x83ff, 0x7bff, 0xfc00, 0x7e01, 0x8000, 0x0400};
    const uint16_t brains[] = {0x3f80, 0x0001, 0xff80};
    unsigned char data[63] = {0};
    memcpy(data + 1, doubles, 32);
    memcpy(data + 33, floats, 8);
    memcpy(data + 41, halves, 16);
    memcpy(data + 57, brains, 6);
    const char *file = write_tensors("case.safetensors", header, data, sizeof data);
    float out[8];
    moert_tensors *tensors = open_tensors(file);
    ASSERT_OK(moert_tensor_read_f32(moert_tensors_find(tensors, "d"), 0, 4, out));
    assert_true(out[0] == 1.0f && out[1] == 1.0f + 0x1p-22f); /* ties go to even */
    assert_true(out[2] == 0.0f && signbit(out[2]) && isinf(out[3]));
    ASSERT_OK(moert_tensor_read_f32(moert_tensors_find(tensors, "f"), 1, 1, out));
    assert_true(out[0] == 0.0f && signbit(out[0]));
    const moert_tensor *half = moert_tensors_find(tensors, "h");
    ASSERT_OK(moert_tensor_read_f32(half, 0, 8, out));
    assert_true(out[0] == 1.0f && out[1] == 0x1p-24f && out[2] == -0x3ffp-24f);
    assert_true(out[3] == 65504.0f && out[4] == -INFINITY && isnan(out[5]));
    assert_true(out[6] == 0.0f && signbit(out[6]) && out[7] == 0x1p-14f);
    const moert_tensor *brain = moert_tensors_find(tensors, "b");
    ASSERT_OK(moert_tensor_read_f32(brain, 0, 3, out));
    assert_true(out[0] == 1.0f && out[1] == 0x1p-133f && out[2] == -INFINITY);
    ASSERT_OK(moert_tensor_read_f32(brain, 3, 0, NULL));
    assert_int_equal(moert_tensor_read_f32(brain, 2, 2, out), MOERT_ERROR_USAGE);
    assert_int_equal(moert_tensor_read_f32(brain, 4, SIZE_MAX, out), MOERT_ERROR_USAGE);
    assert_int_equal(moert_tensor_read_f32(moert_tensors_find(tensors, "a"), 0, 1, out),
                     MOERT_ERROR_UNSUPPORTED);
    assert_int_equal(moert_tensor_read_i32(brain, 0, 1, (int32_t *)out), MOERT_ERROR_UNSUPPORTED);
}

TEST(test_integers_are_read_where_they_fit) {
    static const char header[] =
        "{\"b\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"l\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[1,25]},"
        "\"u\":{\"dtype\":\"U64\",\"shape\":[2],\"data_offsets\":[25,41]},"
        "\"w\":{\"dtype\":\"U32\",\"shape\":[1],\"data_offsets\":[41,45]},"
        "\"s\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[45,47]}}";
    const int64_t longs[] = {INT32_MIN, INT32_MAX, (int64_t)INT32_MAX + 1};
    const uint64_t words[] = {7, UINT64_MAX};
    unsigned char data[47];
    memset(data, 0xff, sizeof data);
    memcpy(data + 1, longs, 24);
    memcpy(data + 25, words, 16);
    const char *file = write_tensors("case.safetensors", header, data, sizeof data);
    int32_t out[3] = {5, 5, 5};
    moert_tensors *tensors = open_tensors(file);
    const moert_tensor *tensor = moert_tensors_find(tensors, "l");
    ASSERT_FAILS(moert_tensor_read_i32(tensor, 0, 3, out), MOERT_ERROR_FORMAT,
                 "element 2 is 2147483648");
    assert_int_equal(out[0], 5); /* a failure leaves the output unchanged */
    ASSERT_OK(moert_tensor_read_i32(tensor, 0, 2, out));
    assert_true(out[0] == INT32_MIN && out[1] == INT32_MAX);
    tensor = moert_tensors_find(tensors, "u");
    assert_int_equal(moert_tensor_read_i32(tensor, 1, 1, out), MOERT_ERROR_FORMAT);
    ASSERT_OK(moert_tensor_read_i32(tensor, 0, 1, out));
    assert_int_equal(out[0], 7);
    ASSERT_OK(moert_tensor_read_i32(moert_tensors_find(tensors, "b"), 0, 1, out));
    assert_int_equal(out[0], -1);
    ASSERT_OK(moert_tensor_read_i32(moert_tensors_find(tensors, "s"), 0, 1, out));
    assert_int_equal(out[0], 65535);
    tensor = moert_tensors_find(tensors, "w");
    assert_int_equal(moert_tensor_read_i32(tensor, 0, 1, out), MOERT_ERROR_FORMAT);
}

TEST(test_empty_tensors_and_scalars_are_legal) {
    const char *file =
        write_tensors("case.safetensors",
                      "{\"none\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[0,0]},"
                      "\"one\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                      "\"last\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}}  ",
                      "abcd", 4);
    const moert_tensor *tensor;
    moert_tensors *tensors = open_tensors(file);
    assert_int_equal(moert_tensors_find(tensors, "none")->elements, 0);
    ASSERT_OK(moert_tensors_get(tensors, "one", 0, NULL, &tensor));
    assert_int_equal(tensor->elements, 1);
    assert_null(moert_tensors_at(tensors, 3));
    file = write_tensors("case.safetensors", "{}", NULL, 0);
    tensors = open_tensors(file);
    assert_int_equal(moert_tensors_count(tensors), 0);
    assert_int_equal(moert_tensors_get(tensors, "one", 0, NULL, &tensor), MOERT_ERROR_MISMATCH);
}

TESTS(make_test_directory, remove_test_directory)
