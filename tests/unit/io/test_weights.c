// run: check=1 all=1san device=0
/* Weights in low precision: every value is compared with its definition; files that lack tensors or
 * contradict themselves are refused. */
#include "base/dtype.h"
#include "io/weights.h"
#include "support/files.h"

/* Finds the weight "w" of this shape in a file with these tensors. */
static moert_weight find(const file_tensor *parts, size_t count, size_t rank, const size_t *shape) {
    moert_weight weight;
    ASSERT_OK(moert_weight_find(open_tensors(write_tensors("weights.safetensors", parts, count)),
                                "w", rank, shape, &weight));
    return weight;
}

/* ---- FP8: w[130,300], whose last blocks are partial ---- */

enum { N = 130, K = 300 };
static const size_t matrix[] = {N, K};
static uint8_t fp8_payload[N * K];
static float fp8_scales[2 * 3] = {0.5f, 3.0f, 0x1p-20f, 0.1f, 7e5f, 1.0f};

static const file_tensor fp8[] = {{{"w", MOERT_FILE_F8_E4M3, 2, {N, K}}, fp8_payload},
                                  {{"w_scale_inv", MOERT_FILE_F32, 2, {2, 3}}, fp8_scales}};

static void fill_fp8(void) {
    for (size_t i = 0; i < N * K; i++)
        /* no byte is a NaN */
        fp8_payload[i] = (uint8_t)((i * 7 + i / K) % 254 % 127 + i % 2 * 128);
}

TEST(test_an_fp8_weight_is_its_payload_times_the_scales_of_its_blocks) {
    static float values[N * K], piece[500];
    uint16_t bf16[MOERT_COUNT(fp8_scales)];
    const file_tensor rounded[] = {fp8[0], {{"w_scale_inv", MOERT_FILE_BF16, 2, {2, 3}}, bf16}};
    fill_fp8();
    for (size_t i = 0; i < MOERT_COUNT(bf16); i++)
        bf16[i] = (uint16_t)moert_dtype_encode(MOERT_DTYPE_BF16, fp8_scales[i]);
    for (size_t scales = 0; scales < 2; scales++) {
        const moert_dtype type = scales == 0 ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16;
        const moert_weight weight = find(scales == 0 ? fp8 : rounded, 2, 2, matrix);
        ASSERT_OK(moert_weight_read(&weight, 0, N * K, values));
        for (size_t i = 0; i < N * K; i++) {
            const float scale = round_to(type, (double)fp8_scales[i / K / 128 * 3 + i % K / 128]);
            assert_true(values[i] == moert_dtype_decode(MOERT_DTYPE_E4M3, fp8_payload[i]) * scale);
        }
        ASSERT_OK(moert_weight_read(&weight, 127 * K + 100, 500, piece));
        assert_memory_equal(piece, values + 127 * K + 100, sizeof piece);
        ASSERT_OK(moert_weight_read(&weight, N * K, 0, piece));
        assert_int_equal(moert_weight_read(&weight, N * K - 1, 2, piece), MOERT_ERROR_USAGE);
    }
}

/* ---- MXFP4: w[2,64,3], stored as [2,3,64] ---- */

enum { E = 2, ROWS = 3, COLUMNS = 64, FUSED = E * ROWS * COLUMNS };
static const size_t fused[] = {E, COLUMNS, ROWS}, partial[] = {E, COLUMNS + 1, ROWS};
static uint8_t mxfp4_payload[FUSED / 2];
static uint8_t mxfp4_scales[FUSED / 32] = {127, 128, 120, 0, 1, 130, 252, 126, 7, 200, 119, 127};

static const file_tensor mxfp4[] = {
    {{"w_blocks", MOERT_FILE_U8, 4, {E, ROWS, 2, 16}}, mxfp4_payload},
    {{"w_scales", MOERT_FILE_U8, 3, {E, ROWS, 2}}, mxfp4_scales}};

static void fill_mxfp4(void) {
    for (size_t i = 0; i < FUSED / 2; i++)
        mxfp4_payload[i] = (uint8_t)(i * 37 + 11);
}

TEST(test_an_mxfp4_weight_is_its_payload_times_powers_of_two) {
    static const float e2m1[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    float values[FUSED], piece[70];
    fill_mxfp4();
    const moert_weight weight = find(mxfp4, 2, 3, fused);
    assert_true(weight.transposed);
    ASSERT_OK(moert_weight_read(&weight, 0, FUSED, values));
    for (size_t i = 0; i < FUSED; i++) {
        const unsigned code = mxfp4_payload[i / 2] >> (i % 2 * 4) & 15;
        const float value = ldexpf(e2m1[code % 8], mxfp4_scales[i / 32] - 127);
        assert_true(fabsf(values[i]) == value);
        assert_int_equal(signbit(values[i]) != 0, code / 8);
    }
    ASSERT_OK(moert_weight_read(&weight, 95, 70, piece));
    assert_memory_equal(piece, values + 95, sizeof piece);
    assert_int_equal(moert_weight_read(&weight, FUSED, 1, piece), MOERT_ERROR_USAGE);
}

TEST(test_a_plain_tensor_takes_precedence_over_blocks_of_its_name) {
    static const float plain[FUSED] = {[5] = 2.5f};
    const file_tensor parts[] = {
        mxfp4[0], mxfp4[1], {{"w", MOERT_FILE_F32, 3, {E, COLUMNS, ROWS}}, plain}};
    float values[FUSED];
    const moert_weight weight = find(parts, 3, 3, fused);
    assert_false(weight.transposed);
    ASSERT_OK(moert_weight_read(&weight, 0, FUSED, values));
    assert_memory_equal(values, plain, sizeof plain);
}

/* ---- files that lack or contradict a tensor ---- */

/* Checks that finding the weight, or reading `count` values of it, fails with this message. */
static void assert_refused(const file_tensor *parts, const size_t *shape, size_t first,
                           size_t count, moert_status expected, const char *message) {
    static float values[N * K];
    const moert_tensors *tensors = open_tensors(write_tensors("weights.safetensors", parts, 2));
    moert_weight weight;
    moert_status status = moert_weight_find(tensors, "w", shape == matrix ? 2 : 3, shape, &weight);
    if (status == MOERT_OK) {
        status = moert_weight_read(&weight, first, count, values);
        assert_non_null(strstr(moert_last_error(), "weights.safetensors"));
    }
    ASSERT_FAILS(status, expected, message);
}

#define SPEC(name, type, ...)                                                                      \
    { name, MOERT_FILE_##type, __VA_ARGS__ }
#define FP8(...)          SPEC("w", __VA_ARGS__)
#define FP8_SCALES(...)   SPEC("w_scale_inv", __VA_ARGS__)
#define MXFP4(...)        SPEC("w_blocks", __VA_ARGS__)
#define MXFP4_SCALES(...) SPEC("w_scales", __VA_ARGS__)
#define OTHER             SPEC("v", U8, 1, {1})
#define MISMATCH          MOERT_ERROR_MISMATCH
#define UNSUPPORTED       MOERT_ERROR_UNSUPPORTED

/* clang-format off */
static const struct broken {
    moert_status status;
    const size_t *shape; /* shape of the requested weight */
    moert_tensor_spec payload, scales;
    const char *message;
} broken[] = {
    {MISMATCH, matrix, FP8(F8_E4M3, 2, {N, K}), OTHER,
     "'w' is F8_E4M3 without its scales: there is no tensor 'w_scale_inv'"},
    {MISMATCH, matrix, FP8(F8_E4M3, 2, {N, K}), FP8_SCALES(F32, 2, {1, 3}),
     "'w_scale_inv' has the shape [1, 3], not [2, 3]"},
    {MISMATCH, matrix, FP8(F8_E4M3, 2, {N, K}), FP8_SCALES(F32, 1, {6}),
     "the shape [6], not [2, 3]"},
    {MISMATCH, matrix, FP8(F8_E4M3, 2, {K, N}), FP8_SCALES(F32, 2, {2, 3}),
     "'w' has the shape [300, 130], not [130, 300]"},
    {UNSUPPORTED, matrix, FP8(F8_E4M3, 2, {N, K}), FP8_SCALES(F16, 2, {2, 3}),
     "'w_scale_inv' is F16; scales of FP8 are read from F32, BF16 and F8_E8M0"},
    {UNSUPPORTED, matrix, FP8(F8_E5M2, 2, {N, K}), FP8_SCALES(F32, 2, {2, 3}),
     "is F8_E5M2 of 2 dimensions; only matrices of F8_E4M3"},
    {UNSUPPORTED, matrix, FP8(BF16, 2, {N, K}), FP8_SCALES(F32, 2, {2, 3}),
     "is BF16 of 2 dimensions; only matrices of F8_E4M3"},
    {MISMATCH, fused, MXFP4(U8, 4, {E, ROWS, 2, 16}), OTHER, "no tensor 'w_scales'"},
    {MISMATCH, fused, OTHER, MXFP4_SCALES(U8, 3, {E, ROWS, 2}), "no tensor 'w_blocks'"},
    {MISMATCH, fused, MXFP4(U8, 4, {E, 2, ROWS, 16}), MXFP4_SCALES(U8, 3, {E, ROWS, 2}),
     "'w_blocks' has the shape [2, 2, 3, 16], not [2, 3, 2, 16]"},
    {MISMATCH, fused, MXFP4(U8, 4, {E, ROWS, 2, 16}), MXFP4_SCALES(U8, 4, {E, ROWS, 2, 1}),
     "'w_scales' has the shape [2, 3, 2, 1], not [2, 3, 2]"},
    {UNSUPPORTED, fused, MXFP4(I8, 4, {E, ROWS, 2, 16}), MXFP4_SCALES(U8, 3, {E, ROWS, 2}),
     "'w_blocks' is I8; packed values are read from U8"},
    {UNSUPPORTED, fused, MXFP4(U8, 4, {E, ROWS, 2, 16}), MXFP4_SCALES(F32, 3, {E, ROWS, 2}),
     "'w_scales' is F32; scales of MXFP4 are read from U8 and F8_E8M0"},
    {UNSUPPORTED, partial, MXFP4(U8, 4, {E, ROWS, 2, 16}), MXFP4_SCALES(U8, 3, {E, ROWS, 2}),
     "'w' has rows of 65 values, not a multiple of its blocks of 32 values"},
};
/* clang-format on */

TEST(test_scales_that_are_missing_or_of_another_shape_or_type_are_refused) {
    static const uint8_t bytes[4 * N * K] = {1};
    for (size_t i = 0; i < MOERT_COUNT(broken); i++) {
        const file_tensor parts[] = {{broken[i].payload, bytes}, {broken[i].scales, bytes}};
        assert_refused(parts, broken[i].shape, 0, 0, broken[i].status, broken[i].message);
    }
}

/* ---- values that are not finite ---- */

TEST(test_a_weight_that_is_not_finite_is_refused_with_its_position) {
    fill_fp8();
    fp8_payload[129 * K + 7] = 0xff;
    assert_refused(fp8, matrix, 0, N * K, MOERT_ERROR_FORMAT,
                   "'w' is nan at [129, 7], by payload 0xff and scale 0.1");
    fill_fp8();
    fp8_scales[2] = INFINITY;
    assert_refused(fp8, matrix, 300, 300, MOERT_ERROR_FORMAT, "at [1, 256], by payload");
    fp8_scales[2] = NAN;
    assert_refused(fp8, matrix, 0, 300, MOERT_ERROR_FORMAT, "is nan at [0, 256]");
    fp8_scales[2] = 1.0f;
    fill_mxfp4();
    const uint8_t kept = mxfp4_scales[9];
    /* block 9 begins at element 288 = 1 * 192 + 1 * 64 + 32 */
    mxfp4_scales[9] = 255;
    assert_refused(mxfp4, fused, 0, FUSED, MOERT_ERROR_FORMAT,
                   "'w_blocks' is nan at [1, 1, 32], by payload");
    mxfp4_scales[9] = 254;
    mxfp4_payload[145] = 0x97; /* element 290 is 6 * 2^127, which overflows */
    mxfp4_payload[144] = 0;
    assert_refused(mxfp4, fused, 192, 192, MOERT_ERROR_FORMAT,
                   "is inf at [1, 1, 34], by payload 0x07 and scale 1.70141e+38");
    mxfp4_scales[9] = kept;
}

TESTS(make_test_directory, remove_test_directory)
