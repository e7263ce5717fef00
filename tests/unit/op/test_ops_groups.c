// run: check=1 all=1san
/* GLU and dGLU ops, plain and quantized, and plain GEMMs. A group gives the same bytes with
 * discrete weights, in an op of only that group, and padded with garbage rows of prob 0. This holds
 * wherever the group's tiles of scales lie. */
#include "base/memory.h"
#include "base/dtype.h"
#include "support/op/bytes.h"

static const moert_format formats[] = {MOERT_FORMAT_MXFP8_E4M3, MOERT_FORMAT_NVFP4,
                                       MOERT_FORMAT_MXFP4, MOERT_FORMAT_MXFP8_E5M2};
enum { FORMATS = 4 };

/* ---- parts of two ops ---- */

/* An action on the bits `mask` of a byte of one op and of the corresponding byte of another op. */
typedef bool (*byte_action)(unsigned char *to, const unsigned char *from, unsigned mask);

static bool copy(unsigned char *to, const unsigned char *from, unsigned mask) {
    *to = (unsigned char)((*to & ~mask) | (*from & mask));
    return true;
}

static bool same(unsigned char *to, const unsigned char *from, unsigned mask) {
    return (*to & mask) == (*from & mask);
}

/* Corresponding rows of two ops: the first `rows` rows of group g in `many`, and all rows of group
 * h in `few`. */
typedef struct pair {
    ops_bytes *few;
    const ops_bytes *many;
    size_t h, g, rows;
} pair;

static bool each_byte(const pair *p, moert_op_buffer which, size_t to, size_t from, size_t bytes,
                      byte_action act) {
    bool all = true;
    for (size_t i = 0; i < bytes; i++)
        all = act(p->few->at[which] + to + i, p->many->at[which] + from + i, 0xFF) && all;
    return all;
}

static bool each_element(const pair *p, const ops_operand *a, byte_action act) {
    const ops_operand b = ops_find(&p->many->shape, ops_bytes_ends(p->many), a->payload);
    const size_t lines = a->weight ? a->ends[0] : p->rows;
    bool all = true;
    for (size_t line = 0; line < lines; line++)
        for (size_t j = 0; j < a->columns; j++) {
            const ops_place to = ops_locate(a, p->h, line, j), from = ops_locate(&b, p->g, line, j);
            const bool halves = moert_format_element_bits(a->as.how.format) == 4;
            assert_int_equal(to.shift, from.shift);
            all = act(p->few->at[a->payload] + to.byte, p->many->at[a->payload] + from.byte,
                      halves ? 0xFu << to.shift : 0xFF) &&
                  act(p->few->at[a->scale] + to.scale, p->many->at[a->scale] + from.scale, 0xFF) &&
                  all;
        }
    return all;
}

static const struct {
    moert_op_buffer which;
    /* MATRIX: rows, or a quantized matrix; PER_ROW: one value per row; GROUPED: an equal part per
     * group */
    enum { MATRIX, PER_ROW, GROUPED } by;
} buffers[] = {
    {MOERT_OP_BUFFER_x, MATRIX},         {MOERT_OP_BUFFER_y, MATRIX},
    {MOERT_OP_BUFFER_c, MATRIX},         {MOERT_OP_BUFFER_d, MATRIX},
    {MOERT_OP_BUFFER_column, MATRIX},    {MOERT_OP_BUFFER_weight, GROUPED},
    {MOERT_OP_BUFFER_prob, PER_ROW},     {MOERT_OP_BUFFER_dprob, PER_ROW},
    {MOERT_OP_BUFFER_alpha, GROUPED},    {MOERT_OP_BUFFER_beta, GROUPED},
    {MOERT_OP_BUFFER_bias, GROUPED},     {MOERT_OP_BUFFER_x_global, GROUPED},
    {MOERT_OP_BUFFER_y_global, GROUPED}, {MOERT_OP_BUFFER_weight_global, GROUPED},
    {MOERT_OP_BUFFER_amax, GROUPED},     {MOERT_OP_BUFFER_dbias, GROUPED},
};

/* Applies `act` to the group's part of buffer i. */
static bool each_of(const pair *p, size_t i, byte_action act) {
    const moert_op_buffer which = buffers[i].which;
    const moert_op_need *need = &p->few->shape.needs[which];
    const size_t value_bytes = moert_dtype_bits(need->type) / 8;
    const bool each = buffers[i].by == PER_ROW;
    const size_t row = each ? value_bytes : need->stride * value_bytes,
                 width = each ? value_bytes : need->width * value_bytes;
    const size_t to = ops_group_start(ops_bytes_ends(p->few), p->h),
                 from = ops_group_start(ops_bytes_ends(p->many), p->g);
    const size_t part = p->few->bytes[which] / p->few->shape.options.groups;
    bool all = true;
    for (size_t q = 0; q < p->few->shape.quantized_count; q++)
        if (p->few->shape.quantized[q].payload == which) {
            const ops_operand a = ops_find(&p->few->shape, ops_bytes_ends(p->few), which);
            return each_element(p, &a, act);
        }
    if (buffers[i].by == GROUPED)
        return each_byte(p, which, p->h * part, p->g * part, part, act);
    for (size_t r = 0; r < p->rows; r++)
        all = each_byte(p, which, (to + r) * row, (from + r) * row, width, act) && all;
    return all;
}

/* Applies `act` to the group's part of every buffer that the ops have. */
static void each(const char *title, pair p, byte_action act) {
    for (size_t i = 0; i < MOERT_COUNT(buffers); i++)
        if (p.few->bytes[buffers[i].which] > 0 && !each_of(&p, i, act))
            fail_msg("%s: %s of group %zu differs", title, moert_op_buffer_name(buffers[i].which),
                     p.g);
}

/* ---- ops ---- */

/* A quantized op with every option that its kind allows. */
static moert_op_options describe(size_t kind, size_t format, size_t groups, size_t rows,
                                 moert_format column) {
    moert_op_options o = ops_gemm((moert_op_kind)kind, ops_scaled_by_groups(formats[format]),
                                  groups, rows, 144, 160);
    ops_add_everything(&o);
    o.d = ops_scaled(formats[format], MOERT_AXIS_ROW, MOERT_SCALES_TILED);
    o.column = ops_scaled(column, MOERT_AXIS_COLUMN, MOERT_SCALES_TILED);
    return o;
}

/* A plain op with every option that its case allows. */
static moert_op_options case_of(size_t i) {
    moert_op_options o = ops_glu_case(i % 2 ? MOERT_OP_DGLU : MOERT_OP_GLU, i / 2);
    const bool glu = o.kind == MOERT_OP_GLU;
    o.save_c = glu;
    o.bias = glu && i / 2 % 3 == 1;
    o.dprob = o.dbias = !glu;
    o.beta = !glu && i / 2 % 2 == 1;
    o.weight.discrete = false;
    return o;
}

static bool is_plain(moert_op_options o) {
    return ops_first_operand(&o)->how.size == 0;
}

static ops_bytes make(const moert_op_options *o, const uint32_t *ends) {
    return ops_bytes_make(o, ends, is_plain(*o) ? OPS_NORMAL : OPS_EXACT);
}

/* ---- single groups ---- */

static void check_alone(const char *title, const char *backend, moert_op_options o,
                        const uint32_t *ends) {
    const size_t groups = o.groups, before = owned_count();
    ops_bytes start = make(&o, ends), all = make(&o, ends);
    ops_bytes_execute(backend, &all);
    o.weight.discrete = true;
    ops_bytes discrete = make(&o, ends);
    ops_bytes_execute(backend, &discrete);
    ops_assert_same(title, &discrete, &all, false);
    o.weight.discrete = !is_plain(o);
    o.groups = 1;
    for (size_t g = 0; g < groups; g++) {
        const uint32_t rows = ends[g] - (uint32_t)ops_group_start(ends, g);
        each(titled("%s, discrete", title), (pair){&discrete, &all, g, g, rows}, same);
        o.rows = rows;
        ops_bytes alone = make(&o, &rows);
        each(title, (pair){&alone, &start, 0, g, rows}, copy);
        ops_bytes_execute(backend, &alone);
        each(titled("%s, alone", title), (pair){&alone, &all, 0, g, rows}, same);
    }
    release_since(before);
}

TEST(test_a_group_alone_has_the_bytes_that_it_has_among_others) {
    static const uint32_t ends[] = {0, 1, 32, 159, 287, 416, 716};
    for (size_t i = 0; i < (size_t)FORMATS * 2; i++)
        check_alone(moert_format_name(formats[i % FORMATS]), "portable",
                    describe(MOERT_OP_GLU + i / FORMATS, i % FORMATS, MOERT_COUNT(ends), 720,
                             formats[(i + 1) % FORMATS]),
                    ends);
}

TEST(test_stacked_discrete_and_single_groups_have_the_same_bits) {
    for (size_t i = 0; i < OPS_GLU_CASES * 2; i++)
        check_alone(titled("case %zu", i), backends[i % 5 != 0], case_of(i), ops_glu_ends);
    for (moert_op_kind kind = MOERT_OP_GEMM_FORWARD; kind <= MOERT_OP_GEMM_DGRAD; kind++) {
        static const uint32_t ends[] = {7, 32, 57};
        moert_op_options o = ops_sized(kind, 3, 60, 144, 200);
        o.x.type = o.y.type = o.weight.type = MOERT_DTYPE_BF16;
        check_alone("GEMM", "portable", o, ends);
    }
}

/* ---- padding ---- */

/* Fills row r of an input with garbage. */
static void spoil(ops_bytes *data, moert_op_buffer which, size_t r) {
    const size_t stride = data->shape.needs[which].stride;
    for (size_t j = 0; data->bytes[which] > 0 && j < stride; j++)
        ops_bytes_put(data, which, r * stride + j, j % 2 ? -104.0 : 96.0);
}

/* Pads the groups with rows of finite garbage and prob 0. Checks that the padding rows give zeros,
 * and that the other rows do not change. */
static void check_padded(const char *title, const char *backend, moert_op_options o,
                         const uint32_t *tight, const uint32_t *wide) {
    const size_t before = owned_count();
    ops_bytes few = make(&o, tight);
    o.rows = wide[o.groups - 1];
    ops_bytes many = make(&o, wide);
    const moert_op_need *d = &many.shape.needs[MOERT_OP_BUFFER_d];
    for (size_t g = 0; g < o.groups; g++) {
        const size_t rows = tight[g] - ops_group_start(tight, g);
        each(title, (pair){&few, &many, g, g, rows}, copy);
        for (size_t r = ops_group_start(wide, g) + rows; r < wide[g]; r++) {
            ops_floats(&many, MOERT_OP_BUFFER_prob)[r] = 0.0f;
            for (moert_op_buffer i = MOERT_OP_BUFFER_x; is_plain(o) && i < MOERT_OP_BUFFER_d; i++)
                if (i != MOERT_OP_BUFFER_weight)
                    spoil(&many, i, r);
        }
    }
    ops_bytes_execute(backend, &few);
    ops_bytes_execute(backend, &many);
    for (size_t g = 0; g < o.groups; g++) {
        const size_t rows = tight[g] - ops_group_start(tight, g);
        each(title, (pair){&few, &many, g, g, rows}, same);
        for (size_t r = ops_group_start(wide, g) + rows; is_plain(o) && r < wide[g]; r++)
            for (size_t j = 0; j < d->width; j++)
                assert_true(ops_bytes_get(&many, MOERT_OP_BUFFER_d, r * d->stride + j) == 0.0);
    }
    release_since(before);
}

TEST(test_padding_rows_of_prob_0_change_nothing) {
    static const uint32_t tight[] = {5, 5, 38, 100}, whole_blocks[] = {32, 32, 96, 160};
    uint32_t wide[OPS_GLU_GROUPS], end = 0;
    for (size_t i = 0; i < (size_t)FORMATS * 2; i++)
        check_padded(
            moert_format_name(formats[i % FORMATS]), backends[i % 2],
            describe(MOERT_OP_GLU + i / FORMATS, i % FORMATS, 4, 160, MOERT_FORMAT_MXFP8_E4M3),
            tight, whole_blocks);
    for (size_t g = 0; g < OPS_GLU_GROUPS; g++)
        wide[g] = end +=
            (uint32_t)moert_round_up(ops_glu_ends[g] - ops_group_start(ops_glu_ends, g), 16);
    for (size_t i = 0; i < OPS_GLU_CASES * 2; i++) {
        moert_op_options o = case_of(i);
        o.prob = true;
        check_padded(titled("case %zu", i), backends[i % 5 != 0], o, ops_glu_ends, wide);
    }
}

TESTS(open_test_device, close_test_device)
