// run: check=1 all=1san
/* Grouped GEMM ops on the tensor cores of an NVIDIA GPU, if there is one: exact results of small
 * integers for any groups and epilogue, and the same bits in every run, whatever other rows are in
 * the batch. For any payload, ops on MXFP8, MXFP4 and NVFP4 operands have the bits of ops on the
 * same values in bf16. */
#include "base/dtype.h"
#include "base/rng.h"
#include "support/op/exact.h"

enum { KINDS = 3, LAYOUTS = 3 };
#define F32  MOERT_DTYPE_F32
#define F16  MOERT_DTYPE_F16
#define BF16 MOERT_DTYPE_BF16

/* The shapes have: a very small GEMM; all groups empty; whole tiles; sizes one above or below a
 * tile; K that ends within a scaled block, a step or a word; empty groups and rows past the end;
 * groups of a few rows; more tiles than work-groups. Shapes for quantized operands are small,
 * because the reference backend is slow. */
static const ops_shape shapes[] = {
    {8, 8, 1, 1, 0, {1}},
    {16, 32, 0, 2, 0, {0, 0}},
    {256, 128, 128, 1, 0, {128}},
    {264, 136, 130, 2, 0, {129, 130}},
    {248, 112, 127, 3, 0, {0, 127, 127}},
    {264, 320, 460, 5, 0, {0, 150, 151, 151, 413}},
    {72, 1048, 200, 4, 0, {64, 128, 167, 190}},
    {520, 272, 150, 3, 0, {5, 5, 150}},
    {48, 64, 60, 36, 0, OPS_SINGLE_ROWS},
    /* With these shapes, idle warps decode the payloads during the GEMM. The shapes have K of 4
     * blocks and of multiples of 4 blocks, n of whole blocks, and odd numbers of groups and
     * columns. */
    {264, 384, 130, 2, 0, {129, 130}},
    {96, 1152, 300, 4, 0, {64, 128, 227, 290}},
    {520, 256, 150, 3, 0, {5, 5, 150}},
    {776, 128, 60, 36, 0, OPS_SINGLE_ROWS},
    {288, 256, 300, 2, 0, {130, 299}},
    /* only for plain operands: many tiles; strides; more tiles than compute units; K below 64 */
    {512, 320, 900, 5, 0, {0, 300, 301, 301, 813}},
    {136, 1048, 700, 4, 8, {64, 128, 427, 690}},
    {1032, 520, 640, 3, 24, {5, 5, 640}},
    {136, 152, 200, 4, 8, {64, 128, 128, 190}},
    {8, 72, 17100, 3, 0, {5, 17090, 17095}},
    {8520, 8, 20, 2, 0, {13, 19}},
    {248, 56, 127, 3, 0, {0, 127, 127}},
};
/* MOST_PRODUCTS: the most multiplications that a check makes on the host */
enum { SHAPES = MOERT_COUNT(shapes), MOST_PRODUCTS = 8000000 };
enum {
    RANDOM_SHAPE = 6,
    EPILOGUE_SHAPE = 9,
    DECODED_SHAPE = 10,
    WHOLE_SHAPE = 13,
    QUANTIZED_SHAPES = 14,
    MANY_TILES = QUANTIZED_SHAPES,
    STRIDED_SHAPE = 17
};

static moert_op_options describe(const ops_shape *s, moert_op_kind kind, moert_dtype type) {
    moert_op_options o = ops_sized(kind, s->groups, s->rows, s->n, s->k);
    o.x = (moert_operand){.type = type, .stride = (ptrdiff_t)(s->k + s->padding)};
    o.y = (moert_operand){.type = type, .stride = (ptrdiff_t)(s->n + s->padding)};
    o.weight.type = type;
    return o;
}

TEST(test_every_orientation_is_exact_for_every_split_of_the_rows) {
    if (!has_tensor_cores("skipped"))
        return;
    for (size_t i = 0; i < SHAPES * KINDS * 2; i++) {
        const ops_shape *s = &shapes[i / 2 / KINDS];
        const moert_op_options o =
            describe(s, (moert_op_kind)(i / 2 % KINDS), i % 2 ? MOERT_DTYPE_F16 : MOERT_DTYPE_BF16);
        ops_check_on("nvidia", "exact", &o, s->ends, 0.0);
    }
}

/* ---- epilogues ---- */

static const struct variant {
    moert_dtype result;
    unsigned switches;
    moert_dtype bias;
} variants[] = {
    {F32, 0, F32},
    {F32, OPS_accumulate, F32},
    {BF16, OPS_accumulate | OPS_alpha, F32},
    {F16, OPS_alpha | OPS_beta, F32},
    {F32, OPS_alpha | OPS_beta | OPS_amax, F32},
    {F16, OPS_prob | OPS_amax, F32},
    {BF16, OPS_alpha | OPS_prob, F32},
    {F32, OPS_bias, F32},
    {BF16, OPS_bias | OPS_bias_scale | OPS_amax, BF16},
    {F32, OPS_alpha | OPS_beta | OPS_bias | OPS_bias_scale, F16},
};
enum { VARIANTS = MOERT_COUNT(variants) };

/* Returns false if ops of this kind do not have one of the variant's switches. */
static bool add_variant(moert_op_options *o, const struct variant *v) {
    if ((o->kind != MOERT_OP_GEMM_FORWARD && (v->switches & OPS_bias) != 0) ||
        (o->kind == MOERT_OP_GEMM_WGRAD && (v->switches & (OPS_prob | OPS_amax)) != 0) ||
        (o->rows == 0 && (v->switches & OPS_beta) != 0))
        return false;
    ops_switch_on(o, v->switches);
    ops_result(o)->type = v->result;
    o->bias_type = v->bias;
    return true;
}

TEST(test_epilogues_are_exact) {
    if (!has_tensor_cores("skipped"))
        return;
    for (size_t i = 0; i < SHAPES * KINDS * VARIANTS; i++) {
        const ops_shape *s = &shapes[i / VARIANTS / KINDS];
        moert_op_options o = describe(s, (moert_op_kind)(i / VARIANTS % KINDS),
                                      i % 2 ? MOERT_DTYPE_F16 : MOERT_DTYPE_BF16);
        if (s->rows * s->n * s->k > MOST_PRODUCTS || !add_variant(&o, &variants[i % VARIANTS]))
            continue;
        ops_check_on("nvidia", "exact", &o, s->ends, 0.0);
    }
}

/* ---- GLU ---- */

/* The layouts of gate and up. width: the width I; shape: the index of the shape that gives the rows
 * and K */
static const struct layout {
    size_t width, shape;
} layouts[] = {{8, 0},   {32, STRIDED_SHAPE}, {96, 3}, {128, 2}, {136, STRIDED_SHAPE},
               {264, 3}, {1056, 4},           {520, 8}};
static const struct recipe {
    size_t run; /* consecutive columns of gate or up; 0: gate and up are the two halves of a row */
    bool linear_first;
    unsigned switches;
    moert_dtype operands, d, bias;
    bool save_c;
    moert_dtype c;
    moert_glu_form form;
} recipes[] = {
    {0, false, OPS_prob, BF16, F32, F32, true, F32, MOERT_GLU_SWIGLU},
    {0, true, OPS_bias | OPS_prob, F16, F16, F16, false, F32, {false, 5.0f, 1.0f, 0.0f, 0}},
    {0,
     false,
     OPS_alpha | OPS_bias | OPS_amax,
     BF16,
     BF16,
     BF16,
     true,
     BF16,
     {false, 7.0f, 1.702f, 1.0f, 0}},
    {1, false, OPS_bias | OPS_prob | OPS_amax, BF16, F32, F32, true, F16, MOERT_GLU_GPT_OSS},
    {1, true, 0, BF16, BF16, F32, false, F32, MOERT_GLU_SWIGLU},
    {8, true, OPS_alpha | OPS_bias, BF16, F32, BF16, true, BF16, {false, 5.0f, 1.0f, 0.0f, 0}},
    {32, false, OPS_prob, BF16, BF16, F32, true, BF16, MOERT_GLU_SWIGLU},
};
enum {
    GLU_LAYOUTS = MOERT_COUNT(layouts),
    GLU_CASES = GLU_LAYOUTS * MOERT_COUNT(recipes),
};

static moert_op_options glu_case(size_t i) {
    const struct layout *at = &layouts[i % GLU_LAYOUTS];
    const struct recipe *r = &recipes[i / GLU_LAYOUTS];
    ops_shape s = shapes[at->shape];
    s.n = 2 * at->width;
    moert_op_options o = describe(&s, MOERT_OP_GLU, r->operands);
    o.y = (moert_operand){.type = MOERT_DTYPE_F32};
    o.glu = r->form;
    o.interleave = r->run;
    o.linear_first = r->linear_first;
    o.d = (moert_operand){.type = r->d, .stride = (ptrdiff_t)(at->width + s.padding)};
    o.c = (moert_operand){.type = r->c, .stride = (ptrdiff_t)(s.n + s.padding)};
    o.save_c = r->save_c;
    o.bias_type = r->bias;
    ops_switch_on(&o, r->switches);
    return o;
}

TEST(test_a_glu_follows_its_gemm_in_every_layout) {
    if (!has_tensor_cores("skipped"))
        return;
    for (size_t i = 0; i < GLU_CASES; i++) {
        moert_op_options o = glu_case(i);
        if (o.interleave > 0 && o.n % (2 * o.interleave) != 0)
            continue;
        ops_check_on("nvidia", titled("GLU case %zu", i), &o,
                     shapes[layouts[i % GLU_LAYOUTS].shape].ends, 0.0);
    }
}

/* ---- bits ---- */

TEST(test_a_row_has_the_same_bits_with_any_other_rows) {
    if (!has_tensor_cores("skipped"))
        return;
    static const moert_op_kind kinds[] = {MOERT_OP_GEMM_FORWARD, MOERT_OP_GEMM_DGRAD, MOERT_OP_GLU};
    static const uint32_t ranges[][2] = {{0, 1}, {7, 65}, {127, 173}, {299, 1}};
    for (size_t i = 0; i < 3; i++) {
        const ops_shape s = {272, 1048, 300, 1, 0, {300}};
        moert_op_options o = describe(&s, kinds[i], MOERT_DTYPE_BF16);
        *(kinds[i] == MOERT_OP_GEMM_DGRAD ? &o.x : &o.y) = (moert_operand){.stride = 0};
        o.prob = true;
        const ops_bytes start = ops_bytes_make(&o, s.ends, OPS_NORMAL);
        ops_bytes whole = ops_bytes_copy(&start);
        ops_bytes_execute("nvidia", &whole);
        for (size_t r = 0; r < MOERT_COUNT(ranges); r++) {
            const uint32_t rows = o.rows = ranges[r][1];
            ops_bytes alone = ops_bytes_make(&o, &rows, OPS_NORMAL);
            ops_copy_rows(&(ops_pair){&alone, &start, 0, 0, rows, ranges[r][0]});
            ops_bytes_execute("nvidia", &alone);
            ops_assert_same_rows("alone", &(ops_pair){&alone, &whole, 0, 0, rows, ranges[r][0]});
        }
    }
}

/* ---- quantized operands ---- */

enum { FORMATS = MOERT_FORMAT_NVFP4 + 1 }; /* all formats except FP8_BLOCK */

/* Describes an op whose operands both have blocks along the reduction index. A dgrad's weights may
 * be stored transposed. */
static moert_op_options describe_quantized(const ops_shape *s, moert_op_kind kind,
                                           moert_format format, size_t layout, moert_dtype result) {
    moert_op_options o =
        ops_gemm(kind, ops_scaled(format, MOERT_AXIS_ROW, layout), s->groups, s->rows, s->n, s->k);
    ops_result(&o)->type = result;
    o.weight.how.transposed = kind == MOERT_OP_GEMM_DGRAD && layout == 1;
    return o;
}

/* Maps case i to a format of a kind. A dgrad decodes payloads like the other kinds, so it runs only
 * two formats, to build fewer programs. */
static size_t of_kind(moert_op_kind kind, size_t i) {
    return kind == MOERT_OP_GEMM_DGRAD ? i % 2 * (FORMATS - 1) : i % FORMATS;
}

TEST(test_quantized_operands_are_exact_for_every_split_of_the_rows) {
    if (!has_tensor_cores("skipped"))
        return;
    /* each kind and shape runs one format here; later tests run more formats on fewer shapes */
    for (size_t i = 0; i < QUANTIZED_SHAPES * KINDS; i++) {
        const ops_shape *s = &shapes[i % QUANTIZED_SHAPES];
        const moert_op_kind kind = (moert_op_kind)(i / QUANTIZED_SHAPES);
        const size_t format = of_kind(kind, i);
        moert_op_options o = describe_quantized(s, kind, (moert_format)format,
                                                i / FORMATS % LAYOUTS, MOERT_DTYPE_F32);
        if ((moert_format)format == MOERT_FORMAT_NVFP4) {
            ops_first_operand(&o)->global = ops_second_operand(&o)->global = true;
            ops_first_operand(&o)->how.group_scales = i % 5 < 2;
        }
        ops_check_on("nvidia", "exact", &o, s->ends, 0.0);
    }
}

TEST(test_a_quantized_operand_multiplies_a_plain_one_or_another_format) {
    if (!has_tensor_cores("skipped"))
        return;
    static const size_t some[] = {2, 3, 9};
    for (size_t i = 0; i < MOERT_COUNT(some) * KINDS * 3; i++) {
        const ops_shape *s = &shapes[some[i / 3 / KINDS]];
        const size_t format = i % (KINDS * 3) % FORMATS;
        moert_op_options o =
            describe_quantized(s, (moert_op_kind)(i / 3 % KINDS), (moert_format)format,
                               i / 2 % LAYOUTS, MOERT_DTYPE_F32);
        if (i % 3 == 0)
            *ops_first_operand(&o) = (moert_operand){.type = MOERT_DTYPE_BF16};
        else if (i % 3 == 1)
            *ops_second_operand(&o) = (moert_operand){.type = MOERT_DTYPE_BF16};
        else
            ops_second_operand(&o)->how.format = (moert_format)((format + 1) % FORMATS);
        ops_check_on("nvidia", "exact", &o, s->ends, 0.0);
    }
}

TEST(test_epilogues_of_quantized_operands_are_exact) {
    if (!has_tensor_cores("skipped"))
        return;
    /* the five cases: a quantized result; alpha and bias; prob and amax; alpha and beta; a result
     * in bf16 */
    for (size_t i = 0; i < 5; i++) {
        const ops_shape *s = &shapes[EPILOGUE_SHAPE];
        moert_op_options o =
            describe_quantized(s, MOERT_OP_GEMM_FORWARD, (moert_format)(i % FORMATS), i,
                               i == 4 ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32);
        o.alpha = i % 2;
        o.beta = i == 3;
        o.bias = i == 1;
        o.prob = o.amax = i == 2;
        if (i == 0)
            o.y = ops_scaled((moert_format)(i % FORMATS), MOERT_AXIS_ROW, 0);
        ops_check_on("nvidia", "exact", &o, s->ends, 0.0);
    }
}

/* ---- any payload ---- */

static bool is_nan(moert_dtype type, unsigned bits) {
    return isnan(moert_dtype_decode(type, bits));
}

/* Fills payloads with random bytes without NaN, and scales with values for which all products are
 * normal numbers. */
static void fill_random(ops_bytes *data, moert_op_buffer payload, moert_op_buffer scale,
                        moert_format format) {
    const moert_dtype element = moert_format_element(format);
    const bool bytes = moert_dtype_bits(element) == 8, nvfp4 = format == MOERT_FORMAT_NVFP4;
    for (size_t i = 0; i < data->bytes[payload]; i++) {
        const unsigned bits = (unsigned)(256.0 * moert_rng_uniform(payload, 0, i));
        data->at[payload][i] = (unsigned char)(bytes && is_nan(element, bits) ? 1 : bits);
    }
    for (size_t i = 0; i < data->bytes[scale]; i++) {
        const double uniform = moert_rng_uniform(scale, 1, i);
        const unsigned bits = (unsigned)(nvfp4 ? 256.0 * uniform : 90.0 + 60.0 * uniform);
        data->at[scale][i] = (unsigned char)(nvfp4 && is_nan(MOERT_DTYPE_E4M3, bits) ? 1 : bits);
    }
}

static void fill_operands(ops_bytes *data) {
    const moert_op *op = &data->shape;
    for (size_t i = 0; i < op->quantized_count; i++)
        if (!op->quantized[i].result)
            fill_random(data, op->quantized[i].payload, op->quantized[i].scale,
                        op->quantized[i].how.format);
}

/* Returns the same op on bf16 operands that have the values of the payloads. */
static ops_bytes as_bf16(const ops_bytes *quantized) {
    moert_op_options o = quantized->shape.options;
    *ops_first_operand(&o) = *ops_second_operand(&o) = (moert_operand){.type = MOERT_DTYPE_BF16};
    const ops_bytes values = ops_bytes_decode(quantized);
    ops_bytes narrow = ops_bytes_make(&o, ops_bytes_ends(quantized), OPS_EXACT);
    for (size_t i = 0; i < quantized->shape.quantized_count; i++) {
        const moert_op_buffer which = quantized->shape.quantized[i].payload;
        for (size_t j = 0; j < narrow.bytes[which] / sizeof(uint16_t); j++)
            ops_bytes_put(&narrow, which, j, (double)ops_floats(&values, which)[j]);
    }
    return narrow;
}

static void check_as_bf16(const moert_op_options *o, const uint32_t *ends,
                          void (*change)(ops_bytes *)) {
    ops_bytes got = ops_bytes_make(o, ends, OPS_EXACT);
    const moert_op_buffer result = ops_result_buffer(o->kind);
    fill_operands(&got);
    if (change != NULL)
        change(&got);
    ops_bytes want = as_bf16(&got);
    ops_bytes_execute("nvidia", &got);
    ops_bytes_execute("nvidia", &want);
    assert_same_bits(ops_title(o), ops_floats(&got, result), ops_floats(&want, result),
                     got.bytes[result] / sizeof(float));
}

TEST(test_any_payload_gives_the_bits_of_the_same_values_in_bf16) {
    if (!has_tensor_cores("skipped"))
        return;
    static const size_t some[] = {RANDOM_SHAPE, DECODED_SHAPE, WHOLE_SHAPE};
    for (size_t i = 0; i < FORMATS * KINDS * 3; i++) {
        const ops_shape *s = &shapes[some[i % 3]];
        const moert_op_kind kind = (moert_op_kind)(i / 3 % KINDS);
        const moert_op_options o =
            describe_quantized(s, kind, (moert_format)of_kind(kind, i / 3 / KINDS % FORMATS),
                               (i + i / 3) % LAYOUTS, MOERT_DTYPE_F32);
        check_as_bf16(&o, s->ends, NULL);
    }
}

/* Puts special values into each operand: NaN or infinity in the payload, NaN as a scale, and a very
 * large or very small scale. */
static void put_special(ops_bytes *data) {
    const moert_op *op = &data->shape;
    for (size_t i = 0; i < op->quantized_count; i++) {
        const moert_op_quantized *q = &op->quantized[i];
        const bool e4m3 = q->how.format == MOERT_FORMAT_MXFP8_E4M3;
        const size_t far = data->bytes[q->payload] * 2 / 3 + i * 40,
                     scale = data->bytes[q->scale] / 3 + i * 5;
        data->at[q->payload][far] = e4m3                                       ? 0x7F
                                    : q->how.format == MOERT_FORMAT_MXFP8_E5M2 ? 0xFC
                                                                               : 0x7F;
        data->at[q->scale][scale] = q->how.format == MOERT_FORMAT_NVFP4 ? 0xFF : 255;
        if (i == 0 && q->how.format != MOERT_FORMAT_NVFP4)
            data->at[q->scale][scale * 2] = 215;
        if (i == 1 && q->how.format != MOERT_FORMAT_NVFP4)
            data->at[q->scale][scale * 2] = 30;
    }
}

TEST(test_special_values_and_scales_give_the_bits_of_bf16) {
    if (!has_tensor_cores("skipped"))
        return;
    for (size_t i = 0; i < FORMATS; i++) {
        const moert_op_options o = describe_quantized(&shapes[DECODED_SHAPE], MOERT_OP_GEMM_FORWARD,
                                                      (moert_format)i, 0, MOERT_DTYPE_F32);
        check_as_bf16(&o, shapes[DECODED_SHAPE].ends, put_special);
    }
}

/* ---- repetition and refusals ---- */

TEST(test_results_repeat_bit_for_bit) {
    if (!has_tensor_cores("skipped"))
        return;
    for (size_t i = 0; i < KINDS + FORMATS; i++) {
        const bool plain = i < KINDS;
        const ops_shape *s = &shapes[plain ? MANY_TILES : DECODED_SHAPE];
        const moert_op_options o =
            plain ? describe(s, (moert_op_kind)i, MOERT_DTYPE_BF16)
                  : describe_quantized(s, MOERT_OP_GEMM_FORWARD, (moert_format)(i - KINDS), 0,
                                       MOERT_DTYPE_F32);
        ops_bytes data = ops_bytes_make(&o, s->ends, plain ? OPS_NORMAL : OPS_EXACT);
        fill_operands(&data);
        ops_bytes_check_repeats("nvidia", &data, plain ? 20 : 4);
    }
}

TEST(test_unsupported_ops_are_refused_and_left_to_other_backends) {
    ops_check_fallback("nvidia", describe(&shapes[0], MOERT_OP_GEMM_FORWARD, MOERT_DTYPE_F32),
                       "takes");
    moert_op_options o = describe_quantized(&shapes[3], MOERT_OP_GEMM_FORWARD,
                                            MOERT_FORMAT_MXFP8_E4M3, 0, MOERT_DTYPE_BF16);
    o.weight = ops_scaled(MOERT_FORMAT_FP8_BLOCK, MOERT_AXIS_TILE, 0);
    ops_check_fallback("nvidia", o,
                       has_tensor_cores("skipped") ? "takes only fp8-block in both"
                                                   : "takes only GPUs");
}

int main(void) {
    return run_tensor_forms(__FILE__);
}
