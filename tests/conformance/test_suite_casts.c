// run: check=1 night=1
/*
 * TransformerEngine's tables of casts: MXFP8 in blocks of 1 x 32, 32 x 1 and 32 x 32, NVFP4, also
 * in groups. Every byte must equal the oracle's. TransformerEngine allows small differences in
 * MXFP8. Other tests: test_quantize has torchao's bytes and limits on noise, test_swizzle torchao's
 * tiled scales, test_glu TransformerEngine's gated SwiGLU.
 */
#include "base/dtype.h"
#include "support/quant/quantize_oracle.h"
#include "support/suite.h"

static const moert_dtype sources[] = {MOERT_DTYPE_F32, MOERT_DTYPE_BF16, MOERT_DTYPE_F16};
enum { SOURCES = 3, AXES = 3, SMALL = 32 * 1024, BLOCKS = 1024 };

typedef struct shape {
    size_t rows, columns;
    bool slow;
} shape;

/* Checks every block of small matrices on both backends, and some blocks of large ones on the fast
 * backend. */
static void check(const char *what, moert_dtype source, const moert_quantizer *how,
                  const matrix *m) {
    const bool small = m->rows * m->columns <= SMALL;
    for (size_t b = 0; b < (small ? 2 : 1); b++) {
        const size_t before = owned_count();
        const char *title = titled("%s, %zu x %zu of %s, axis %d, %s", what, m->rows, m->columns,
                                   moert_dtype_name(source), (int)how->axis, suite_backends[b]);
        quantized z = quantize_as((quantized_form){.source = source}, suite_backends[b], how, m);
        oracle_check_quantized(title, how, NULL, m, &z, small ? SIZE_MAX - 1 : BLOCKS);
        release_since(before);
    }
}

/* ---- fills ---- */

/* The first fills are those of MXFP8: uniform in [-2, 1); zeros; below, within or above the normal
 * range of the element dtype. The other fills: the largest value; both sides of every rounding
 * boundary of NVFP4; a line from -12 to 12. */
typedef enum fill {
    UNIFORM,
    ZEROS,
    SUBNORMAL,
    NORMAL,
    PAST_MAX,
    OF_MXFP8,
    LARGEST = OF_MXFP8,
    BOUNDARIES,
    LINE,
    FILLS
} fill;

/* Makes n values of a source dtype. */
static void make(fill kind, moert_dtype source, moert_dtype element, float *x, size_t n) {
    static const float thresholds[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f};
    const float largest = moert_dtype_largest(element), most = moert_dtype_largest(source);
    const float least = element == MOERT_DTYPE_E5M2 ? 0x1p-14f : 0x1p-6f;
    for (size_t i = 0; i < n; i++) {
        const float u = suite_uniform(kind, i), sign = suite_bits(9, i) & 1 ? -1.0f : 1.0f;
        const float at = thresholds[i / 2 % 8],
                    eps = at * (source == MOERT_DTYPE_F32 ? 0x1p-23f : 0x1p-7f),
                    near = (i / 16 % 2 ? -1.0f : 1.0f) * (i % 2 ? at + eps : at - eps / 2);
        const float values[FILLS] = {[UNIFORM] = 3.0f * u - 2.0f,
                                     [SUBNORMAL] = sign * least * u,
                                     [NORMAL] = sign * (least + (largest - least) * u),
                                     [PAST_MAX] = sign * fminf(largest * (1.0f + 15.0f * u), most),
                                     [LARGEST] = most,
                                     [BOUNDARIES] = i % 32 == 0 ? 6.0f : near,
                                     [LINE] = -12.0f + 24.0f * (float)(i % 4099) / 4098};
        x[i] = round_to(source, values[kind]);
    }
}

/* ---- MXFP8 ---- */

/* From index GATED on, the shapes are those of the results and gradients of gated SwiGLU. */
enum { GATED = 9 };
static const shape mxfp8_shapes[] = {
    {1, 16, false},     {16, 48, false},    {65, 80, false},    {127, 400, false},
    {128, 128, false},  {993, 512, false},  {256, 1024, false}, {16 * 8 * 4, 512, false},
    {8192, 7168, true}, {1, 32, false},     {1, 64, false},     {16, 64, false},
    {16, 128, false},   {65, 96, false},    {65, 192, false},   {128, 256, false},
    {256, 256, false},  {256, 512, false},  {993, 1024, false}, {768, 1024, false},
    {768, 2048, false}, {8192, 128, false}, {8192, 256, false}, {577, 1632, false},
    {577, 3264, false},
};

TEST(test_mxfp8_has_the_bytes_of_the_oracle_for_every_shape_type_and_fill) {
    for (size_t i = 0; i < MOERT_COUNT(mxfp8_shapes); i++) {
        const shape *s = &mxfp8_shapes[i];
        if (suite_skips(s->slow))
            continue;
        float *x = test_alloc(s->rows * s->columns * sizeof *x);
        for (size_t k = 0; k < (size_t)SOURCES * 2 * OF_MXFP8; k++) {
            const moert_dtype source = sources[k % SOURCES];
            const moert_format format =
                k / SOURCES % 2 == 0 ? MOERT_FORMAT_MXFP8_E4M3 : MOERT_FORMAT_MXFP8_E5M2;
            const fill kind = (fill)(k / SOURCES / 2);
            /* large matrices occur with every dtype, format and fill, but not with every
             * combination */
            if (s->rows * s->columns > SMALL && (i < GATED ? k % 7 != 0 : k != 0 && k != SOURCES))
                continue;
            make(kind, source, moert_format_element(format), x, s->rows * s->columns);
            const matrix m = {.x = x, .rows = s->rows, .columns = s->columns};
            for (size_t a = 0; a < AXES; a++)
                check(moert_format_name(format), source,
                      &HOW(.format = format, .axis = (moert_axis)a), &m);
        }
        release_owned();
    }
}

/* ---- NVFP4 ---- */

static const shape nvfp4_shapes[] = {
    {32, 32, false},    {32, 64, false},   {64, 32, false},     {64, 96, false},
    {128, 128, false},  {256, 256, false}, {512, 512, false},   {1024, 1024, false},
    {2048, 2048, true}, {128, 256, false}, {8192, 128, false},  {2048, 160, false},
    {256, 1024, false}, {512, 512, false}, {1024, 16384, true}, {4096, 13312, true},
    {256, 272, false},  {304, 304, false}, {320, 256, false},   {4096, 4096, true},
    {8192, 8192, true},
};

/* All shapes have uniform values; one shape also has every other fill. Checks blocks along rows,
 * transposed blocks along columns (for a second operand) and square blocks (for a weight). */
TEST(test_nvfp4_has_the_bytes_of_the_oracle_for_every_shape) {
    const moert_quantizer hows[AXES] = {
        HOW(.format = MOERT_FORMAT_NVFP4),
        HOW(.format = MOERT_FORMAT_NVFP4, .axis = MOERT_AXIS_COLUMN, .transposed = true),
        HOW(.format = MOERT_FORMAT_NVFP4, .axis = MOERT_AXIS_TILE)};
    for (size_t i = 0; i < MOERT_COUNT(nvfp4_shapes); i++) {
        const shape *s = &nvfp4_shapes[i];
        if (suite_skips(s->slow))
            continue;
        const size_t n = s->rows * s->columns, fills = n == 128 * 128 ? FILLS : 1;
        float *x = test_alloc(n * sizeof *x);
        const matrix m = {.x = x, .rows = s->rows, .columns = s->columns};
        for (size_t k = 0; k < (s->slow ? 2 : SOURCES) * fills; k++) {
            const moert_dtype source = sources[k / fills];
            make((fill)(k % fills), source, MOERT_DTYPE_E4M3, x, n);
            for (size_t a = 0; a < AXES; a++)
                check(titled("fill %zu", k % fills), source, &hows[a], &m);
        }
        release_owned();
    }
}

/* ---- groups ---- */

enum { GROUPS = 4 };

/* The ends of the groups, in eighths of the rows. The cases are: equal groups; an empty first,
 * middle or last group; only empty groups; all rows in one group; uneven groups. */
static const unsigned splits[][GROUPS] = {
    {2, 4, 6, 8}, {0, 3, 5, 8}, {3, 3, 4, 8}, {2, 5, 8, 8}, {0, 0, 0, 0},
    {8, 8, 8, 8}, {1, 2, 3, 8}, {0, 0, 1, 8}, {1, 4, 6, 7}, {1, 1, 2, 5},
};
enum { SPLITS = MOERT_COUNT(splits) };

static const shape grouped_shapes[] = {
    {0, 512, false},    {1024, 320, false},  {256, 1024, false},   {1024, 256, false},
    {8192, 1024, true}, {16384, 8192, true}, {16384, 16384, true},
};

/* Every group has a separate amax; rows may follow the last group ("paged stashing" in
 * TransformerEngine). Values have few bits, so the sums of a rotation are exact in any order. */
TEST(test_groups_are_quantized_separately_wherever_empty_groups_are) {
    const moert_quantizer nvfp4 = HOW(.format = MOERT_FORMAT_NVFP4, .group_scales = true);
    /* the three quantizers: blocks along rows, along rotated columns, and in tiles */
    moert_quantizer hows[AXES] = {nvfp4, nvfp4, nvfp4};
    hows[1].axis = MOERT_AXIS_COLUMN;
    hows[1].transposed = hows[1].hadamard = true;
    hows[2].axis = MOERT_AXIS_TILE;
    for (size_t i = 0; i < MOERT_COUNT(grouped_shapes); i++) {
        const shape *s = &grouped_shapes[i];
        if (suite_skips(s->slow))
            continue;
        const size_t n = s->rows * s->columns;
        float *x = test_alloc(n * sizeof *x);
        for (size_t k = 0; k < n; k++)
            x[k] = (float)((int)(suite_bits(5, k) % 255) - 127) / 32.0f;
        for (size_t k = s->slow ? 8 : 0; k < SPLITS; k++) {
            uint32_t ends[GROUPS];
            for (size_t g = 0; g < GROUPS; g++)
                ends[g] = (uint32_t)(s->rows / 8 * splits[k][g]);
            const matrix m = {x, s->rows, s->columns, ends, GROUPS};
            for (size_t a = 0; a < (n <= (size_t)8192 * 1024 ? AXES : 1); a++)
                check("groups", MOERT_DTYPE_BF16, &hows[a], &m);
        }
        release_owned();
    }
}

TESTS(open_test_device, close_test_device)
