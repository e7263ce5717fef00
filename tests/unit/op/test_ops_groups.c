// run: check=1 all=1san
/* GLU and dGLU ops, plain and quantized, and plain GEMMs. A group gives the same bytes with
 * discrete weights, in an op of only that group, and padded with garbage rows of prob 0. This holds
 * wherever the group's tiles of scales lie. */
#include "base/memory.h"
#include "support/op/bytes.h"

static const moert_format formats[] = {MOERT_FORMAT_MXFP8_E4M3, MOERT_FORMAT_NVFP4,
                                       MOERT_FORMAT_MXFP4, MOERT_FORMAT_MXFP8_E5M2};
enum { FORMATS = 4 };

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
    const size_t before = owned_count();
    const ops_bytes start = make(&o, ends);
    ops_bytes all = ops_bytes_copy(&start);
    ops_bytes_execute(backend, &all);
    o.weight.discrete = true;
    ops_bytes discrete = make(&o, ends);
    ops_bytes_execute(backend, &discrete);
    ops_assert_same(title, &discrete, &all, false);
    for (size_t g = 0; g < o.groups; g++) /* also the weights */
        ops_assert_same_rows(
            titled("%s, discrete", title),
            &(ops_pair){&discrete, &all, g, g, ends[g] - ops_group_start(ends, g), 0});
    o.weight.discrete = !is_plain(o);
    ops_check_alone(title, backend, o, &start, &all);
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
        ops_copy_rows(&(ops_pair){&few, &many, g, g, rows, 0});
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
        ops_assert_same_rows(title, &(ops_pair){&few, &many, g, g, rows, 0});
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
