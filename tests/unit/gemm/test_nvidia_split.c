// run: check=1 all=1san
/* Grouped GEMMs of float32 operands that may be split into bf16 parts. On a Hopper GPU, tensor
 * cores compute them about as exactly as a chain of fma. On other devices, and for unaligned rows,
 * the GEMM is a chain of fma. */
#include "base/memory.h"
#include "base/rng.h"
#include "gemm/nvidia/tensor_cores.h"
#include "support/gemm/gemm.h"

static const way split = {.name = "split", .backend = "auto", .split = true};

/* whole tiles of both widths; sizes above or below a tile; partial blocks of K; empty groups and
 * rows past the end; strides, columns of y. The last two problems are unaligned. */
static const problem problems[] = {
    {.n = 8, .k = 4, .rows = 1, .groups = 1, .ends = {1}, .bias = true},
    {.n = 16, .k = 24, .rows = 0, .groups = 2, .ends = {0, 0}},
    {.n = 8, .k = 4096, .rows = 130, .groups = 2, .ends = {60, 130}},
    {.n = 64, .k = 64, .rows = 128, .groups = 1, .ends = {128}},
    {.n = 128, .k = 128, .rows = 129, .groups = 2, .ends = {64, 128}, .bias = true},
    {.n = 256, .k = 200, .rows = 300, .groups = 3, .ends = {70, 135, 290}, .accumulate = true},
    {.n = 264, .k = 72, .rows = 131, .groups = 2, .ends = {129, 130}, .bias = true},
    {.n = 60, .k = 140, .rows = 127, .groups = 3, .ends = {0, 127, 127}, .accumulate = true},
    {.n = 128, .k = 36, .rows = 200, .groups = 5, .ends = {9, 9, 25, 26, 143}, .bias = true},
    {.n = 40, .k = 520, .rows = 190, .groups = 4, .ends = {60, 60, 61, 190}, .pad_x = 4},
    {.n = 24, .k = 40, .rows = 66, .groups = 2, .ends = {1, 65}, .y_column = 16, .pad_y = 8},
    {.n = 40, .k = 48, .rows = 66, .groups = 2, .ends = {1, 65}, .accumulate = true, .y_column = 4},
    {.n = 13, .k = 40, .rows = 66, .groups = 2, .ends = {1, 65}, .y_column = 3, .pad_y = 2},
    {.n = 40, .k = 40, .rows = 30, .groups = 3, .ends = {0, 30, 30}, .pad_x = 3},
};
enum { PROBLEMS = MOERT_COUNT(problems) };

TEST(test_gemms_are_exact_on_small_integers_and_else_within_rounding_of_float32) {
    has_hopper("chains of fma");
    for (size_t i = 0; i < PROBLEMS; i++)
        for (operation op = 0; op < BIAS_GRAD; op++) {
            problem p = problems[i];
            p.shared = true;
            check_exact(&p, op, &split);
            check_near(&p, op, &split, 0x1p-20);
        }
}

/* Integers of up to `bits` bits and either sign. */
static void draw_integers(float *values, size_t count, int bits, uint64_t stream) {
    for (size_t i = 0; i < count; i++)
        values[i] = rintf(ldexpf((float)(2.0 * moert_rng_uniform(2, stream, i) - 1.0), bits));
}

static arrays make_integers(const problem *p, int x_bits, int y_bits, int weight_bits) {
    arrays a = make_arrays(p, true);
    draw_integers(a.x, a.x_count, x_bits, 1);
    draw_integers(a.y, a.y_count, y_bits, 2);
    draw_integers(a.weight, a.weight_count, weight_bits, 3);
    return a;
}

/* All products have 22 bits, so sums of four products are below 2^24 and exact in float32. A lost
 * bit of an operand would change a sum. */
TEST(test_no_bit_of_an_operand_is_lost) {
    static const problem of_four[] = {
        [FORWARD] = {.n = 72, .k = 4, .rows = 131, .groups = 1, .ends = {131}, .shared = true},
        [DGRAD] = {.n = 4, .k = 200, .rows = 131, .groups = 1, .ends = {131}, .shared = true},
        [WGRAD] = {.n = 72, .k = 136, .rows = 13, .groups = 3, .ends = {4, 8, 12}},
    };
    static const int bits[][2] = {{20, 2}, {2, 20}, {11, 11}, {16, 6}, {6, 16}, {13, 9}};
    for (operation op = 0; op < BIAS_GRAD; op++)
        for (size_t i = 0; i < MOERT_COUNT(bits); i++) {
            const problem *p = &of_four[op];
            const int x = bits[i][0], y = bits[i][op == WGRAD], weight = bits[i][1];
            arrays got = make_integers(p, x, y, weight), want = make_integers(p, x, y, weight);
            run_gemm(p, op, &split, &got);
            run_gemm(p, op, &gemm_ways[REFERENCE_F32], &want);
            compare_arrays(titled("%d by %d bits, %s", bits[i][0], bits[i][1], operation_names[op]),
                           &got, &want);
        }
}

/* ---- accuracy ---- */

/* Truncation instead of rounding would bias long sums of one sign towards 0. */
TEST(test_long_sums_are_not_biased) {
    static const problem p = {
        .n = 136, .k = 7168, .rows = 200, .groups = 1, .ends = {200}, .shared = true};
    arrays a = make_arrays(&p, false);
    for (size_t i = 0; i < a.x_count; i++)
        a.x[i] = 1.0f + (float)moert_rng_uniform(3, 1, i);
    for (size_t i = 0; i < a.weight_count; i++)
        a.weight[i] = 1.0f + (float)moert_rng_uniform(3, 2, i);
    const double worst = worst_error(&p, FORWARD, &split, &a);
    print_message("# worst error of sums of 7168 positive products: 2^%.1f\n", log2(worst));
    assert_true(worst <= (moert_nvidia_uses_wgmma(test_device) ? 0x1p-20 : 0x1p-16));
}

/* ---- bits ---- */

static const problem three_groups = {.n = 136,
                                     .k = 328,
                                     .rows = 300,
                                     .groups = 3,
                                     .ends = {40, 157, 300},
                                     .shared = true,
                                     .bias = true};

TEST(test_a_row_has_the_same_bits_with_any_other_rows) {
    static const size_t ranges[][2] = {{0, 1}, {7, 65}, {127, 173}, {299, 1}};
    check_company(&three_groups, &split, ranges, MOERT_COUNT(ranges));
}

/* The rows of the neighbouring groups are NaN and infinite. */
TEST(test_a_group_has_the_same_gradient_with_any_other_groups) {
    const size_t first = three_groups.ends[0], end = three_groups.ends[1];
    arrays all = make_arrays(&three_groups, false);
    for (size_t m = 0; m < three_groups.rows; m++)
        for (size_t i = 0; i < all.ldx && (m < first || m >= end); i++) {
            all.x[m * all.ldx + i] = NAN;
            all.y[m * all.ldy + i % all.ldy] = INFINITY;
        }
    run_gemm(&three_groups, WGRAD, &split, &all);
    const arrays alone = run_alone(&three_groups, WGRAD, &split, first, end - first);
    assert_same_bits("gradient", alone.weight, all.weight + three_groups.n * three_groups.k,
                     three_groups.n * three_groups.k);
}

int main(void) {
    return run_tensor_forms(__FILE__);
}
