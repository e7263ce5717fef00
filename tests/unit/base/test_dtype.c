// run: check=1 all=1san device=0
/* Conversion of single values to and from the small dtypes: every bit pattern, every midpoint
 * between neighbours, and values beyond the largest. */
#include <float.h>

#include "base/dtype.h"
#include "support/test.h"

static const moert_dtype types[] = {MOERT_DTYPE_F16, MOERT_DTYPE_BF16, MOERT_DTYPE_E4M3,
                                    MOERT_DTYPE_E5M2, MOERT_DTYPE_E2M1};
enum { TYPES = MOERT_COUNT(types) };

static void check_bits(moert_dtype type, float x, uint32_t want) {
    const uint32_t got = moert_dtype_encode(type, x);
    if (got != want)
        fail_msg("%s of %.9g (%a) is 0x%x, not 0x%x", moert_dtype_name(type), (double)x, (double)x,
                 got, want);
}

static uint32_t sign_of(moert_dtype type) {
    return 1u << (moert_dtype_bits(type) - 1);
}

/* The bits of the largest finite value. */
static uint32_t largest_bits(moert_dtype type) {
    uint32_t bits = sign_of(type) - 1;
    while (!isfinite(moert_dtype_decode(type, bits)))
        bits--;
    return bits;
}

TEST(test_bit_patterns_have_the_values_of_the_standards) {
    const float e2m1[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    for (uint32_t bits = 0; bits < 8; bits++) {
        assert_true(moert_dtype_decode(MOERT_DTYPE_E2M1, bits) == e2m1[bits]);
        assert_true(moert_dtype_decode(MOERT_DTYPE_E2M1, bits | 8) == -e2m1[bits]);
    }
    const struct {
        moert_dtype type;
        uint32_t bits;
        double value;
    } samples[] = {
        {MOERT_DTYPE_E4M3, 0x01, 0x1p-9},     {MOERT_DTYPE_E4M3, 0x07, 7 * 0x1p-9},
        {MOERT_DTYPE_E4M3, 0x08, 0x1p-6},     {MOERT_DTYPE_E4M3, 0x38, 1},
        {MOERT_DTYPE_E4M3, 0x7E, 448},        {MOERT_DTYPE_E4M3, 0xFE, -448},
        {MOERT_DTYPE_E5M2, 0x01, 0x1p-16},    {MOERT_DTYPE_E5M2, 0x04, 0x1p-14},
        {MOERT_DTYPE_E5M2, 0x3C, 1},          {MOERT_DTYPE_E5M2, 0x7B, 57344},
        {MOERT_DTYPE_E5M2, 0x7C, INFINITY},   {MOERT_DTYPE_F16, 0x0001, 0x1p-24},
        {MOERT_DTYPE_F16, 0x3C00, 1},         {MOERT_DTYPE_F16, 0x7BFF, 65504},
        {MOERT_DTYPE_F16, 0xFC00, -HUGE_VAL}, {MOERT_DTYPE_BF16, 0x0001, 0x1p-133},
        {MOERT_DTYPE_BF16, 0x3F80, 1},        {MOERT_DTYPE_BF16, 0x7F80, INFINITY},
    };
    for (size_t i = 0; i < MOERT_COUNT(samples); i++)
        assert_true((double)moert_dtype_decode(samples[i].type, samples[i].bits) ==
                    samples[i].value);
    assert_true(isnan(moert_dtype_decode(MOERT_DTYPE_E4M3, 0x7F)));
    assert_true(isnan(moert_dtype_decode(MOERT_DTYPE_E4M3, 0xFF)));
    for (uint32_t bits = 0x7D; bits < 0x80; bits++)
        assert_true(isnan(moert_dtype_decode(MOERT_DTYPE_E5M2, bits)));
}

TEST(test_bit_patterns_round_trip_and_values_between_go_to_the_nearest_or_even) {
    for (size_t t = 0; t < TYPES; t++) {
        const uint32_t sign = sign_of(types[t]), last = largest_bits(types[t]);
        for (uint32_t bits = 0; bits <= last; bits++) {
            const float low = moert_dtype_decode(types[t], bits);
            check_bits(types[t], low, bits);
            check_bits(types[t], -low, bits | sign);
            if (bits == last)
                break;
            const float high = moert_dtype_decode(types[t], bits + 1);
            const float middle = (float)(((double)low + (double)high) / 2);
            const uint32_t even = bits + bits % 2;
            assert_true(low < high);
            check_bits(types[t], middle, even);
            check_bits(types[t], -middle, even | sign);
            check_bits(types[t], nextafterf(middle, 0), bits);
            check_bits(types[t], nextafterf(middle, INFINITY), bits + 1);
            check_bits(types[t], nextafterf(low, INFINITY), bits);
            check_bits(types[t], nextafterf(high, 0), bits + 1);
        }
    }
}

TEST(test_large_values_saturate_or_overflow) {
    const float large[] = {464.0f, 465.0f, 1e9f, FLT_MAX, INFINITY};
    for (size_t i = 0; i < 5; i++) {
        check_bits(MOERT_DTYPE_E4M3, large[i], 0x7E);
        check_bits(MOERT_DTYPE_E4M3, -large[i], 0xFE);
        check_bits(MOERT_DTYPE_E2M1, large[i], 0x7);
        check_bits(MOERT_DTYPE_E2M1, -large[i], 0xF);
        check_bits(MOERT_DTYPE_E5M2, large[i] * 128, 0x7B);
        check_bits(MOERT_DTYPE_E5M2, -large[i] * 128, 0xFB);
    }
    check_bits(MOERT_DTYPE_F16, 65519.996f, 0x7BFF);
    check_bits(MOERT_DTYPE_F16, 65520.0f, 0x7C00);
    check_bits(MOERT_DTYPE_F16, -INFINITY, 0xFC00);
    check_bits(MOERT_DTYPE_BF16, moert_float_from_bits(0x7F7F7FFF), 0x7F7F);
    check_bits(MOERT_DTYPE_BF16, moert_float_from_bits(0x7F7F8000), 0x7F80);
    check_bits(MOERT_DTYPE_BF16, -FLT_MAX, 0xFF80);
}

TEST(test_nans_have_one_bit_pattern_and_zeros_keep_their_sign) {
    const uint32_t patterns[] = {0x7E00, 0x7FC0, 0x7F, 0x7F, 0x7};
    const float nans[] = {NAN, -NAN, moert_float_from_bits(0x7F800001),
                          moert_float_from_bits(0xFFFFFFFF)};
    for (size_t t = 0; t < TYPES; t++) {
        for (size_t i = 0; i < 4; i++)
            check_bits(types[t], nans[i], patterns[t]);
        check_bits(types[t], 0.0f, 0);
        check_bits(types[t], -0.0f, sign_of(types[t]));
        check_bits(types[t], -FLT_TRUE_MIN, sign_of(types[t]));
        assert_true(signbit(moert_dtype_decode(types[t], sign_of(types[t]))));
    }
    assert_int_equal(moert_float_bits(moert_dtype_decode(MOERT_DTYPE_E4M3, 0xFF)), 0x7FC00000);
}

TEST(test_bridge_rounding_rounds_half_steps_down) {
    for (uint32_t i = 0; i <= 0x40E00000 - 0x3E000000; i += 997) { /* 0.125 to 7 */
        const float x = moert_float_from_bits(0x3E000000 + i);
        const bool lower =
            (x > 2.5f && x < 2.75f) || (x >= 3.5f && x < 3.75f) || (x > 5.0f && x <= 5.25f);
        const uint32_t nearest = moert_dtype_encode(MOERT_DTYPE_E2M1, x);
        assert_int_equal(moert_dtype_encode_bridge(x), nearest - (lower ? 1 : 0));
        assert_int_equal(moert_dtype_encode_bridge(-x), (nearest - (lower ? 1 : 0)) | 8);
    }
    const float at[] = {2.5f, 2.75f, 3.5f, 3.75f, 5.0f, 5.25f, 0.25f, 0.75f, 1.25f, 1.75f};
    const uint32_t patterns[] = {4, 5, 5, 6, 6, 6, 0, 2, 2, 4};
    for (size_t i = 0; i < 10; i++)
        assert_int_equal(moert_dtype_encode_bridge(at[i]), patterns[i]);
    assert_int_equal(moert_dtype_encode_bridge(INFINITY), 7);
    assert_int_equal(moert_dtype_encode_bridge(NAN), 7);
}

TEST(test_stochastic_rounding_is_unbiased_over_all_random_bits) {
    for (int i = -1536; i <= 1536; i++) { /* x from -6 to 6, in steps that 8 random bits resolve */
        const float x = (float)i / 256.0f;
        double sum = 0;
        for (unsigned random = 0; random < 256; random++)
            sum += (double)moert_dtype_decode(MOERT_DTYPE_E2M1,
                                              moert_dtype_encode_stochastic(x, (uint8_t)random));
        /* from 4 on, where a step is 2, 8 bits do not resolve odd i */
        assert_within(sum / 256, (double)x, fabsf(x) > 4.0f && i % 2 != 0 ? 1.0 / 256 : 0.0);
    }
    assert_int_equal(moert_dtype_encode_stochastic(5.0f, 0), 6);
    assert_int_equal(moert_dtype_encode_stochastic(5.0f, 127), 6);
    assert_int_equal(moert_dtype_encode_stochastic(5.0f, 128), 7);
    assert_int_equal(moert_dtype_encode_stochastic(-1.9f, 255), 0xC);
    assert_int_equal(moert_dtype_encode_stochastic(INFINITY, 255), 7);
    assert_int_equal(moert_dtype_encode_stochastic(NAN, 0), 7);
}

TEST(test_powers_of_two_round_up_or_down_from_every_neighbour) {
    for (unsigned b = 0; b < 255; b++) {
        const float power = moert_e8m0_decode((uint8_t)b);
        const float above = nextafterf(power, INFINITY), below = nextafterf(power, 0);
        assert_true((double)power == ldexp(1.0, (int)b - 127));
        assert_true((double)moert_e8m0_inverse((uint8_t)b) * (double)power == 1.0);
        assert_int_equal(moert_e8m0_ceil(power), b);
        assert_int_equal(moert_e8m0_ceil(above), b < 254 ? b + 1 : 254);
        assert_int_equal(moert_e8m0_ceil(below), b);
        assert_int_equal(moert_e8m0_floor(power, 0), b);
        assert_int_equal(moert_e8m0_floor(above, 0), b);
        assert_int_equal(moert_e8m0_floor(below, 0), b > 0 ? b - 1 : 0);
        assert_int_equal(moert_e8m0_floor(power, 8), b > 8 ? b - 8 : 0);
    }
    assert_true(isnan(moert_e8m0_decode(255)) && isnan(moert_e8m0_inverse(255)));
    assert_int_equal(moert_e8m0_ceil(0), 0);
    assert_int_equal(moert_e8m0_ceil(FLT_TRUE_MIN), 0);
    assert_int_equal(moert_e8m0_ceil(INFINITY), 254);
    assert_int_equal(moert_e8m0_ceil(NAN), 255);
    assert_int_equal(moert_e8m0_floor(0, 8), 0);
    assert_int_equal(moert_e8m0_floor(FLT_TRUE_MIN, 0), 0);
    assert_int_equal(moert_e8m0_floor(INFINITY, 8), 247);
    assert_int_equal(moert_e8m0_floor(NAN, 8), 255);
}

TESTS(NULL, NULL)
