// run: check=1 all=1san
/* Ops with quantized operands have the bits of the float32 op on the operands' values, on both
 * backends, for any split of the rows. */
#include <malloc.h>

#include "device/device.h"
#include "support/op/exact.h"

enum { FORMATS = 5, AXES = 3, LAYOUTS = 3 };

/* ---- operands ---- */

static void add_globals(moert_operand *operand, bool by_groups) {
    operand->global = operand->how.format == MOERT_FORMAT_NVFP4;
    operand->how.group_scales = operand->global && by_groups;
}

/* Describes case i of the quantized ops. The cases have every kind, with every format and axis of
 * the first operand; the other settings vary with i. */
static moert_op_options operand_case(size_t i) {
    const size_t format = i / MOERT_OP_KINDS % FORMATS, axis = i / MOERT_OP_KINDS / FORMATS % AXES;
    const size_t variant = i / MOERT_OP_KINDS / FORMATS / AXES;
    moert_op_options o = ops_usual((moert_op_kind)(i % MOERT_OP_KINDS));
    moert_operand *first = ops_first_operand(&o), *second = ops_second_operand(&o);
    *first = ops_scaled((moert_format)format, (moert_axis)axis, variant + format);
    *second = ops_scaled((moert_format)((format + variant) % FORMATS),
                         (moert_axis)((axis + variant / 2) % AXES), variant + axis + 1);
    first->how.transposed = variant % 2 == 1 && axis == MOERT_AXIS_COLUMN;
    second->how.transposed =
        variant % 2 == 1 && (second == &o.y ? second->how.axis == MOERT_AXIS_COLUMN
                                            : second->how.axis != MOERT_AXIS_TILE ||
                                                  second->how.format == MOERT_FORMAT_FP8_BLOCK);
    if (second == &o.weight && second->how.transposed && second->scales != MOERT_SCALES_LINEAR)
        second->scales = MOERT_SCALES_TILED;
    o.weight.discrete = variant / 2 % 2 == 1;
    if (variant % 3 != 2) {
        add_globals(first, variant == 0);
        add_globals(second, variant == 3);
    }
    o.alpha = variant != 1;
    if (o.kind == MOERT_OP_DGLU && variant == 3)
        o.glu = (moert_glu_form){false, 7.0f, 1.702f, 1.0f, 0}; /* this GLU form ignores alpha */
    o.dprob = o.dbias = o.kind == MOERT_OP_DGLU;
    return o;
}

TEST(test_quantized_operands_multiply_as_their_values) {
    for (size_t i = 0; i < (size_t)MOERT_OP_KINDS * FORMATS * AXES * 4; i++) {
        const moert_op_options o = operand_case(i);
        ops_check(titled("case %zu", i), &o, ops_usual_ends, 0.0);
    }
}

TEST(test_one_operand_may_be_plain) {
    for (moert_op_kind kind = 0; kind < MOERT_OP_KINDS; kind++) {
        moert_op_options o = ops_usual(kind);
        ops_first_operand(&o)->type = MOERT_DTYPE_BF16;
        *ops_second_operand(&o) = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_ROW, 1);
        ops_check("bf16 and mxfp4", &o, ops_usual_ends, 0.0);
        o = ops_usual(kind);
        *ops_first_operand(&o) = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_ROW, 0);
        ops_second_operand(&o)->type = MOERT_DTYPE_E4M3;
        ops_check("nvfp4 and e4m3", &o, ops_usual_ends, 0.0);
    }
}

TEST(test_gathered_rows_are_dequantized_as_one_group) {
    for (size_t i = 0; i < (size_t)MOERT_OP_KINDS * FORMATS * 2; i++) {
        moert_op_options o = ops_usual((moert_op_kind)(i % MOERT_OP_KINDS));
        const moert_axis axis =
            i / MOERT_OP_KINDS / FORMATS == 0 ? MOERT_AXIS_ROW : MOERT_AXIS_TILE;
        *ops_first_operand(&o) = ops_scaled((moert_format)(i / MOERT_OP_KINDS % FORMATS), axis, i);
        o.permute = ops_first_operand(&o) == &o.x ? MOERT_OP_PERMUTE_X : MOERT_OP_PERMUTE_Y;
        o.topk = 4;
        ops_check("gathered", &o, ops_usual_ends, 0.0);
    }
}

TEST(test_global_scales_multiply_alpha) {
    for (size_t i = 0; i < (size_t)MOERT_OP_DGLU * BACKENDS; i++) { /* all kinds except dGLU */
        moert_op_options o = ops_usual((moert_op_kind)(i / BACKENDS));
        moert_operand *first = ops_first_operand(&o), *second = ops_second_operand(&o);
        *first = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_ROW, 0);
        *second = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_ROW, 1);
        o.alpha = true;
        ops_bytes got = ops_bytes_make(&o, ops_usual_ends, OPS_EXACT),
                  want = ops_bytes_decode(&got);
        first->global = second->global = first->how.group_scales = true;
        ops_bytes with = ops_bytes_make(&o, ops_usual_ends, OPS_EXACT);
        float *alpha = ops_floats(&want, MOERT_OP_BUFFER_alpha);
        float *by_groups =
            ops_floats(&with, first == &o.x ? MOERT_OP_BUFFER_x_global : MOERT_OP_BUFFER_y_global);
        float *one = ops_floats(&with, second == &o.y ? MOERT_OP_BUFFER_y_global
                                                      : MOERT_OP_BUFFER_weight_global);
        one[0] = 0.3f;
        for (size_t g = 0; g < OPS_GROUPS; g++) {
            ops_floats(&with, MOERT_OP_BUFFER_alpha)[g] = 1.7f + 0.1f * (float)g;
            by_groups[g] = 0.7f - 0.2f * (float)g;
            alpha[g] = (1.7f + 0.1f * (float)g) * (by_groups[g] * one[0]);
        }
        ops_bytes_execute(backends[i % BACKENDS], &want);
        ops_bytes_execute(backends[i % BACKENDS], &with);
        ops_bytes_compare("folded", &with, &want);
    }
}

/* Groups 0, 2 and 5 have no rows, so the test expects that their global scales have no effect. */
TEST(test_a_global_scale_of_no_rows_does_not_count) {
    for (size_t i = 0; i < BACKENDS; i++) {
        moert_op_options o = ops_usual(MOERT_OP_GEMM_WGRAD);
        o.x = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_COLUMN, 0);
        add_globals(&o.x, true);
        ops_bytes data = ops_bytes_make(&o, ops_usual_ends, OPS_EXACT);
        ops_floats(&data, MOERT_OP_BUFFER_x_global)[2] = INFINITY;
        ops_floats(&data, MOERT_OP_BUFFER_x_global)[5] = NAN;
        ops_exact_run("no rows", backends[i], &data, 0.0);
    }
}

/* ---- groups ---- */

TEST(test_any_split_of_the_rows_is_right) {
    static const struct split {
        size_t rows, multiple;
        uint32_t ends[OPS_GROUPS];
    } splits[] = {{0, 0, {0}},
                  {9, 0, {0}},
                  {6, 0, {1, 2, 3, 4, 5, 6}},
                  {300, 0, {300, 300, 300, 300, 300, 300}},
                  {384, 128, {0, 128, 128, 256, 256, 384}},
                  {512, 128, {0, 256, 256, 256, 384, 384}},
                  {200, 32, {32, 96, 96, 192, 192, 192}},
                  {161, 1, {0, 31, 63, 64, 160, 161}}};
    for (size_t i = 0; i < MOERT_COUNT(splits) * LAYOUTS; i++) {
        const struct split *s = &splits[i / LAYOUTS];
        moert_op_options o = ops_usual(MOERT_OP_GEMM_FORWARD);
        o.rows = s->rows;
        o.row_multiple = s->multiple;
        o.x = ops_scaled(MOERT_FORMAT_MXFP8_E4M3, MOERT_AXIS_COLUMN, i);
        o.y = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_ROW, i);
        o.column = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_COLUMN, i);
        ops_check("splits", &o, s->ends, 0.0);
        o.kind = MOERT_OP_GEMM_WGRAD;
        o.x = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_COLUMN, i);
        o.y = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_COLUMN, i + 1);
        o.column = (moert_operand){.type = MOERT_DTYPE_F32};
        o.x.how.transposed = true;
        ops_check("splits", &o, s->ends, 0.0);
    }
}

/* If ends are no multiples of row_multiple, scales may not fit their buffer. The portable backend
 * leaves out the operands that do not fit. The reference backend reports the error before it writes
 * anything. */
TEST(test_ends_that_break_row_multiple_stay_within_the_buffers) {
    for (size_t i = 0; i < LAYOUTS; i++) {
        moert_op_options o = ops_usual(MOERT_OP_GEMM_FORWARD);
        o.row_multiple = 128;
        o.x = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_COLUMN, i);
        o.y = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_COLUMN, i);
        o.column = ops_scaled(MOERT_FORMAT_MXFP8_E5M2, MOERT_AXIS_COLUMN, i);
        ops_bytes data = ops_bytes_make(&o, ops_usual_ends, OPS_EXACT);
        ops_bytes_execute("portable", &data); /* the execute checks the guards of all buffers */
        data = ops_bytes_make(&o, ops_usual_ends, OPS_EXACT);
        moert_op_buffers buffers = ops_bytes_upload(&data);
        o.backend = "reference";
        moert_op *op = ops_open(&o);
        ASSERT_FAILS(moert_op_execute(op, &buffers), MOERT_ERROR_USAGE,
                     "gemm_forward: group 1 has 33 rows; expected a multiple of row_multiple, 128");
        ops_bytes_download(&data, &buffers);
        for (size_t at = 0; at < data.bytes[MOERT_OP_BUFFER_y]; at++)
            assert_int_equal(data.at[MOERT_OP_BUFFER_y][at], OPS_UNSET);
    }
}

/* Every element is 1, so each element of a weight gradient is the number of rows of its group. The
 * buffer of x's scales has room for only two of three blocks, or for one of three tiles. */
TEST(test_operands_without_room_count_as_zeros) {
    static const uint32_t ends[] = {20, 40, 64};
    for (size_t tiled = 0; tiled < 2; tiled++) {
        moert_op_options o = ops_sized(MOERT_OP_GEMM_WGRAD, 3, 64, 72, 136);
        o.row_multiple = tiled ? 128 : 32;
        o.x = ops_scaled(MOERT_FORMAT_MXFP8_E4M3, MOERT_AXIS_COLUMN, tiled);
        ops_bytes data = ops_bytes_make(&o, ends, OPS_EXACT);
        memset(data.at[MOERT_OP_BUFFER_x], 0x38, data.bytes[MOERT_OP_BUFFER_x]);
        memset(data.at[MOERT_OP_BUFFER_x_scale], 127, data.bytes[MOERT_OP_BUFFER_x_scale]);
        for (size_t i = 0; i < o.rows * o.n; i++)
            ops_floats(&data, MOERT_OP_BUFFER_y)[i] = 1.0f;
        /* malloc fills new memory with large numbers, also for a CPU device */
        mallopt(M_PERTURB, 1);
        ops_bytes_execute("portable", &data);
        mallopt(M_PERTURB, 0);
        for (size_t i = 0; i < 3 * o.n * o.k; i++) {
            const float want = i / (o.n * o.k) < (tiled ? 1 : 2) ? 20.0f : 0.0f;
            const float got = ops_floats(&data, MOERT_OP_BUFFER_weight)[i];
            /* the scale byte 0 means 2^-127, so results may be tiny instead of 0 */
            if (!(fabsf(got - want) < 1e-30f))
                fail_msg("weight[%zu] is %g, not %g", i, (double)got, (double)want);
        }
    }
}

/* ---- recordings ---- */

TEST(test_a_recording_serves_other_splits_and_values) {
    const uint32_t none[OPS_GROUPS] = {0};
    moert_op_options o = ops_usual(MOERT_OP_GLU);
    moert_op_recording *recording;
    o.x = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_COLUMN, MOERT_SCALES_TILED);
    o.x.how.transposed = true;
    o.weight = ops_scaled(MOERT_FORMAT_NVFP4, MOERT_AXIS_ROW, MOERT_SCALES_TILED);
    o.weight.how.transposed = o.weight.discrete = true;
    o.d = ops_scaled(MOERT_FORMAT_MXFP4, MOERT_AXIS_ROW, MOERT_SCALES_TILED_WHOLE);
    o.column = ops_scaled(MOERT_FORMAT_MXFP8_E4M3, MOERT_AXIS_COLUMN, MOERT_SCALES_TILED);
    add_globals(&o.x, false);
    add_globals(&o.weight, true);
    ops_bytes got = ops_bytes_make(&o, ops_usual_ends, OPS_EXACT), want = ops_bytes_decode(&got);
    moert_op_buffers buffers = ops_bytes_upload(&got);
    moert_op *op = ops_open(&o);
    ASSERT_OK(moert_buffer_write(buffers.ends, 0, none, sizeof none));
    const moert_status status = moert_op_record(op, &buffers, &recording);
    if (status == MOERT_OK) {
        ASSERT_OK(moert_op_replay(recording));
        ASSERT_OK(moert_buffer_write(buffers.ends, 0, ops_usual_ends, sizeof ops_usual_ends));
        ASSERT_OK(moert_op_replay(recording));
        ASSERT_OK(moert_op_replay(recording));
        moert_op_recording_destroy(recording);
    }
    ops_bytes_download(&got, &buffers);
    ops_bytes_execute("portable", &want);
    if (status == MOERT_OK)
        ops_bytes_compare("replayed", &got, &want);
    if (status == MOERT_ERROR_UNSUPPORTED)
        SKIP("the device's driver records no commands");
    assert_int_equal(status, MOERT_OK);
}

/* ---- workspace ---- */

/* In CPU form, the portable backend decodes weights during the GEMM. The backend needs workspace
 * only for scales that it copies out of tiles. */
TEST(test_a_quantized_weight_is_not_copied) {
    enum { G = 3, N = 96, K = 160, WEIGHT_BYTES = G * N * K };
    const bool copies = moert_device_describe(test_device)->gpu_form;
    for (unsigned i = 0; i < 5 * 3 * 2 * 2 * 2; i++) {
        const moert_format format = (moert_format)(i % 5);
        const moert_axis axis = (moert_axis)(i / 5 % 3);
        const bool tiled = i / 30 % 2 == 1 && format != MOERT_FORMAT_FP8_BLOCK;
        moert_op_options o =
            ops_sized(i / 60 == 1 ? MOERT_OP_GEMM_DGRAD : MOERT_OP_GEMM_FORWARD, G, 8, N, K);
        o.weight.how = (moert_quantizer){.size = sizeof o.weight.how, .format = format};
        o.weight.how.axis = axis;
        o.weight.how.transposed =
            i / 15 % 2 == 1 && (axis != MOERT_AXIS_TILE || format == MOERT_FORMAT_FP8_BLOCK);
        o.weight.discrete = i % 7 == 0;
        o.weight.scales = tiled ? MOERT_SCALES_TILED : MOERT_SCALES_LINEAR;
        set_variable("MOERT_BACKEND", "portable");
        moert_op *op = ops_open(&o);
        if (copies)
            assert_true(moert_op_workspace_bytes(op) >= WEIGHT_BYTES * sizeof(float));
        else
            assert_in_range(moert_op_workspace_bytes(op), 0, tiled ? WEIGHT_BYTES / 8 : 0);
        set_variable("MOERT_BACKEND", "reference");
        op = ops_open(&o);
        assert_true(moert_op_workspace_bytes(op) >= WEIGHT_BYTES * sizeof(float));
    }
}

TESTS(open_test_device, close_test_device)
