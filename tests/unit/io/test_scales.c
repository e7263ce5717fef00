// run: check=1 device=0
/* FP8 weights whose scales are powers of two: scales stored as F8_E8M0 give the same values as
 * scales stored as float32. */
#include "io/weights.h"
#include "support/files.h"

enum { N = 130, K = 257, ROWS = 2, COLUMNS = 3 };

static moert_weight weight_of(moert_file_type type, const void *scales) {
    static uint8_t payload[N * K];
    for (size_t i = 0; i < N * K; i++)
        payload[i] = (uint8_t)(i % 126); /* without NaN */
    const moert_tensor_spec specs[] = {{"w", MOERT_FILE_F8_E4M3, 2, {N, K}},
                                       {"w_scale_inv", type, 2, {ROWS, COLUMNS}}};
    const char *path = in_directory(moert_file_type_text(type));
    moert_tensor_writer *writer;
    moert_weight weight;
    ASSERT_OK(moert_writer_open(path, specs, 2, NULL, true, &writer));
    ASSERT_OK(moert_writer_put(writer, "w", 0, N * K, payload));
    ASSERT_OK(moert_writer_put(writer, "w_scale_inv", 0, ROWS * COLUMNS, scales));
    ASSERT_OK(moert_writer_close(writer));
    ASSERT_OK(moert_weight_find(open_tensors(path), "w", 2, (const size_t[]){N, K}, &weight));
    return weight;
}

TEST(test_scales_in_e8m0_have_the_values_of_their_powers_of_two) {
    static const uint8_t powers[ROWS * COLUMNS] = {127, 126, 130, 120, 1, 140};
    static float as_floats[ROWS * COLUMNS], a[N * K], b[N * K];
    for (size_t i = 0; i < ROWS * COLUMNS; i++)
        as_floats[i] = ldexpf(1.0f, powers[i] - 127);
    const moert_weight e8m0 = weight_of(MOERT_FILE_F8_E8M0, powers),
                       f32 = weight_of(MOERT_FILE_F32, as_floats);
    ASSERT_OK(moert_weight_read(&e8m0, 0, N * K, a));
    ASSERT_OK(moert_weight_read(&f32, 0, N * K, b));
    assert_memory_equal(a, b, sizeof a);
    assert_true(a[1] == 0x1p-9f);
}

TESTS(make_test_directory, remove_test_directory)
