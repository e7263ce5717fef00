// run: np=1 sanitize=1
/*
 * GLU and dGLU ops with quantised operands and results, group by group: alone, discrete and padded
 * with garbage of prob 0 they have the same bytes, wherever their tiles of scales lie.
 */
#include "base/memory.h"
#include "base/number.h"
#include "support/op/quantized.h"

static const char *const backends[] = {"portable", "reference"};
static const moert_format formats[] = {MOERT_FORMAT_MXFP8_E4M3, MOERT_FORMAT_NVFP4,
                                       MOERT_FORMAT_MXFP4, MOERT_FORMAT_MXFP8_E5M2};
enum { FORMATS = 4 };

static moert_op_options describe(size_t kind, moert_format format, size_t groups, size_t rows) {
    moert_op_options o =
        ops_product((moert_op_kind)kind, ops_scaled_by_groups(format), groups, rows, 144, 160);
    ops_add_everything(&o);
    return o;
}

static const moert_op_buffer by_rows[] = {MOERT_OP_BUFFER_c, MOERT_OP_BUFFER_prob,
                                          MOERT_OP_BUFFER_dprob};
static const moert_op_buffer by_groups[] = {MOERT_OP_BUFFER_alpha,         MOERT_OP_BUFFER_beta,
                                            MOERT_OP_BUFFER_x_global,      MOERT_OP_BUFFER_y_global,
                                            MOERT_OP_BUFFER_weight_global, MOERT_OP_BUFFER_amax,
                                            MOERT_OP_BUFFER_dbias};
static const moert_op_buffer factors[] = {MOERT_OP_BUFFER_x, MOERT_OP_BUFFER_weight,
                                          MOERT_OP_BUFFER_y};
static const moert_op_buffer results[] = {MOERT_OP_BUFFER_d, MOERT_OP_BUFFER_column};

/* What is done with a byte of one op and the one that it is in another. */
typedef bool (*deed)(unsigned char *to, const unsigned char *from, unsigned mask);

static bool copy(unsigned char *to, const unsigned char *from, unsigned mask) {
    *to = (unsigned char)((*to & ~mask) | (*from & mask));
    return true;
}

static bool same(unsigned char *to, const unsigned char *from, unsigned mask) {
    return (*to & mask) == (*from & mask);
}

/* The first rows of group g in `many` and of group h in `few`, which has no more of them. */
typedef struct pair {
    ops_bytes *few;
    const ops_bytes *many;
    size_t h, g, rows;
} pair;

/* `bytes` bytes of a buffer, from the ones given of each. */
static bool each_byte(const pair *p, moert_op_buffer which, size_t to, size_t from, size_t bytes,
                      deed act) {
    bool all = true;
    for (size_t i = 0; i < bytes; i++)
        all = act(p->few->at[which] + to + i, p->many->at[which] + from + i, 0xFF) && all;
    return all;
}

/* Rows of plain numbers. */
static bool each_row(const pair *p, moert_op_buffer which, deed act) {
    const moert_op_need *need = &p->few->shape.needs[which];
    const size_t numbers = need->lines == 1 ? 1 : need->stride;
    const size_t bytes = numbers * (moert_number_bits(need->type) / 8);
    return each_byte(p, which, ops_group_start(ops_bytes_ends(p->few), p->h) * bytes,
                     ops_group_start(ops_bytes_ends(p->many), p->g) * bytes, p->rows * bytes, act);
}

/* The part of a group. */
static bool each_part(const pair *p, moert_op_buffer which, deed act) {
    const size_t part = p->few->bytes[which] / p->few->shape.options.groups;
    return each_byte(p, which, p->h * part, p->g * part, part, act);
}

static bool each_element(const pair *p, moert_op_buffer which, deed act) {
    const ops_operand a = ops_find(&p->few->shape, ops_bytes_ends(p->few), which);
    const ops_operand b = ops_find(&p->many->shape, ops_bytes_ends(p->many), which);
    const size_t lines = a.weight ? a.ends[0] : p->rows;
    bool all = true;
    for (size_t line = 0; line < lines; line++)
        for (size_t j = 0; j < a.columns; j++) {
            const ops_place to = ops_locate(&a, p->h, line, j),
                            from = ops_locate(&b, p->g, line, j);
            const bool halves = moert_format_element_bits(a.as.how.format) == 4;
            assert_int_equal(to.shift, from.shift);
            all = act(p->few->at[which] + to.byte, p->many->at[which] + from.byte,
                      halves ? 0xFu << to.shift : 0xFF) &&
                  act(p->few->at[a.scale] + to.scale, p->many->at[a.scale] + from.scale, 0xFF) &&
                  all;
        }
    return all;
}

/* Does it to what the two have in `buffers`, by rows, groups or elements. */
static void each(const char *title, const pair *p, const moert_op_buffer *buffers, size_t count,
                 bool (*visit)(const pair *, moert_op_buffer, deed), deed act) {
    for (size_t i = 0; i < count; i++)
        if (p->few->bytes[buffers[i]] > 0 && !visit(p, buffers[i], act))
            fail_msg("%s: %s of group %zu differs", title, moert_op_buffer_name(buffers[i]), p->g);
}

static void begin(const pair *p) {
    each("begin", p, factors, MOERT_COUNT(factors), each_element, copy);
    each("begin", p, by_rows, MOERT_COUNT(by_rows), each_row, copy);
    each("begin", p, by_groups, MOERT_COUNT(by_groups), each_part, copy);
}

static void compare(const char *title, const pair *p) {
    each(title, p, results, MOERT_COUNT(results), each_element, same);
    each(title, p, by_rows, MOERT_COUNT(by_rows), each_row, same);
    each(title, p, by_groups, MOERT_COUNT(by_groups), each_part, same);
}

TEST(test_a_group_alone_has_the_bytes_that_it_has_among_others) {
    static const uint32_t ends[] = {0, 1, 32, 159, 287, 416, 716};
    for (size_t i = 0; i < (size_t)FORMATS * 2; i++) {
        moert_op_options o =
            describe(MOERT_OP_GLU + i / FORMATS, formats[i % FORMATS], MOERT_COUNT(ends), 720);
        o.d = ops_scaled(formats[i % FORMATS], MOERT_AXIS_ROW, MOERT_SCALES_TILED);
        o.column = ops_scaled(formats[(i + 1) % FORMATS], MOERT_AXIS_COLUMN, MOERT_SCALES_TILED);
        ops_bytes start = ops_bytes_filled(&o, ends), all = ops_bytes_filled(&o, ends);
        ops_bytes_execute("portable", &all);
        o.weight.discrete = true;
        ops_bytes discrete = ops_bytes_filled(&o, ends);
        ops_bytes_execute("portable", &discrete);
        o.groups = 1;
        for (size_t g = 0; g < MOERT_COUNT(ends); g++) {
            const uint32_t rows = ends[g] - (uint32_t)ops_group_start(ends, g);
            compare("discrete", &(pair){&discrete, &all, g, g, rows});
            o.rows = rows;
            ops_bytes alone = ops_bytes_make(&o, &rows);
            begin(&(pair){&alone, &start, 0, g, rows});
            ops_bytes_execute("portable", &alone);
            compare("alone", &(pair){&alone, &all, 0, g, rows});
        }
    }
}

/* ---- padding ---- */

/* Groups filled up to whole blocks by rows of anything finite, of prob 0: they give zeros, and the
 * others do not notice. */
TEST(test_padding_rows_of_prob_0_change_nothing) {
    static const uint32_t tight[] = {5, 5, 38, 100}, wide[] = {32, 32, 96, 160};
    for (size_t i = 0; i < (size_t)FORMATS * 2; i++) {
        moert_op_options o = describe(MOERT_OP_GLU + i / FORMATS, formats[i % FORMATS], 4, 160);
        o.d = ops_scaled(formats[i % FORMATS], MOERT_AXIS_ROW, MOERT_SCALES_TILED);
        o.column = ops_scaled(MOERT_FORMAT_MXFP8_E4M3, MOERT_AXIS_COLUMN, MOERT_SCALES_TILED);
        ops_bytes few = ops_bytes_filled(&o, tight), many = ops_bytes_filled(&o, wide);
        for (size_t g = 0; g < 4; g++) {
            const size_t rows = tight[g] - ops_group_start(tight, g);
            begin(&(pair){&few, &many, g, g, rows});
            for (size_t r = ops_group_start(wide, g) + rows; r < wide[g]; r++)
                ops_floats(&many, MOERT_OP_BUFFER_prob)[r] = 0.0f;
        }
        ops_bytes_execute(backends[i % 2], &few);
        ops_bytes_execute(backends[i % 2], &many);
        for (size_t g = 0; g < 4; g++)
            compare("padded", &(pair){&few, &many, g, g, tight[g] - ops_group_start(tight, g)});
    }
}

/* ---- workspace ---- */

/* The portable backend decodes weights where it multiplies them, unless in GPU form: it needs room
 * for no more than their scales, out of tiles. */
TEST(test_a_quantised_weight_is_not_copied) {
    enum { G = 3, N = 96, K = 160, WEIGHT_BYTES = G * N * K };
    const bool copies = moert_device_describe(test_device)->gpu_form;
    for (unsigned i = 0; i < 5 * 3 * 2 * 2 * 2; i++) {
        const moert_format format = (moert_format)(i % 5);
        const moert_axis axis = (moert_axis)(i / 5 % 3);
        const bool tiled = i / 30 % 2 == 1 && format != MOERT_FORMAT_FP8_BLOCK;
        moert_op_options o =
            ops_sized(i / 60 == 1 ? MOERT_OP_GEMM_DGRAD : MOERT_OP_GEMM_FORWARD, G, 8, N, K);
        moert_op *op;
        o.weight.how = (moert_quantizer){.size = sizeof o.weight.how, .format = format};
        o.weight.how.axis = axis;
        o.weight.how.transposed =
            i / 15 % 2 == 1 && (axis != MOERT_AXIS_TILE || format == MOERT_FORMAT_FP8_BLOCK);
        o.weight.discrete = i % 7 == 0;
        o.weight.scales = tiled ? MOERT_SCALES_TILED : MOERT_SCALES_LINEAR;
        set_variable("MOERT_BACKEND", "portable");
        ASSERT_OK(moert_op_create(test_device, &o, &op));
        if (copies)
            assert_true(moert_op_workspace_bytes(op) >= WEIGHT_BYTES * sizeof(float));
        else
            assert_in_range(moert_op_workspace_bytes(op), 0, tiled ? WEIGHT_BYTES / 8 : 0);
        moert_op_destroy(op);
        set_variable("MOERT_BACKEND", "reference");
        ASSERT_OK(moert_op_create(test_device, &o, &op));
        assert_true(moert_op_workspace_bytes(op) >= WEIGHT_BYTES * sizeof(float));
        moert_op_destroy(op);
    }
}

TESTS(open_test_device, close_test_device)
