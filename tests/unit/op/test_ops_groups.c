// run: np=1 sanitize=1
/* GLU and dGLU ops group by group: stacked, discrete and alone they have the same bits; padding
 * rows that count nothing change nothing. */
#include "support/op/glu.h"

static const char *const backends[] = {"portable", "reference"};
static const moert_op_kind kinds[] = {MOERT_OP_GLU, MOERT_OP_DGLU};

/* Whether a buffer has a line for each row, else its parts are the groups'. */
static bool has_rows(moert_op_buffer which) {
    return which == MOERT_OP_BUFFER_x || which == MOERT_OP_BUFFER_y || which == MOERT_OP_BUFFER_c ||
           which == MOERT_OP_BUFFER_d || which == MOERT_OP_BUFFER_prob ||
           which == MOERT_OP_BUFFER_dprob;
}

static bool has_values(const ops_data *data, moert_op_buffer which) {
    return which != MOERT_OP_BUFFER_ends && which != MOERT_OP_BUFFER_gather &&
           data->count[which] > 0;
}

/* Group g's part of a buffer: `*n` floats from the result on. */
static float *part_of(const ops_data *data, moert_op_buffer which, size_t g, size_t *n) {
    const moert_op_options *o = &data->shape.options;
    const size_t stride = o->rows > 0 ? data->count[which] / o->rows : 0;
    const size_t share = data->count[which] / o->groups;
    *n = has_rows(which) ? (ops_ends(data)[g] - ops_start(data, g)) * stride : share;
    return data->at[which] + (has_rows(which) ? ops_start(data, g) * stride : g * share);
}

/* A GLU or dGLU with everything that its case may have. */
static moert_op_options case_of(size_t kind, size_t i) {
    moert_op_options o = ops_glu_case(kinds[kind], i);
    o.save_c = o.kind == MOERT_OP_GLU;
    o.bias = o.kind == MOERT_OP_GLU && i % 3 == 1;
    o.dprob = o.dbias = o.kind == MOERT_OP_DGLU;
    o.beta = o.kind == MOERT_OP_DGLU && i % 2 == 1;
    o.weight.discrete = false;
    return o;
}

/* Starts dprob and dbias, which are added to. */
static ops_data make(const moert_op_options *o, const uint32_t *ends) {
    ops_data data = ops_make(o, ends, false);
    for (size_t i = 0; i < data.count[MOERT_OP_BUFFER_dprob]; i++)
        data.at[MOERT_OP_BUFFER_dprob][i] = 0.0f;
    for (size_t i = 0; i < data.count[MOERT_OP_BUFFER_dbias]; i++)
        data.at[MOERT_OP_BUFFER_dbias][i] = 0.0f;
    return data;
}

static void compare_alone(const char *backend, const ops_data *start, const ops_data *all,
                          size_t g) {
    moert_op_options o = start->shape.options;
    const uint32_t rows = ops_ends(start)[g] - (uint32_t)ops_start(start, g);
    size_t n, own;
    o.groups = 1;
    o.rows = rows;
    ops_data alone = make(&o, &rows);
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        if (has_values(&alone, i)) {
            const float *part = part_of(start, i, g, &n);
            float *to = part_of(&alone, i, 0, &own);
            assert_int_equal(n, own);
            memcpy(to, part, n * sizeof *part);
        }
    ops_execute(backend, &alone, 1);
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        if (has_values(&alone, i)) {
            const float *part = part_of(all, i, g, &n);
            assert_same_bits(moert_op_buffer_name(i), part_of(&alone, i, 0, &own), part, n);
        }
}

TEST(test_stacked_discrete_and_single_groups_have_the_same_bits) {
    for (size_t i = 0; i < OPS_GLU_CASES * 2; i++) {
        const char *backend = backends[i % 5 == 0];
        moert_op_options o = case_of(i % 2, i / 2);
        ops_data start = make(&o, ops_glu_ends), stacked = ops_copy(&start),
                 discrete = ops_copy(&start);
        ops_execute(backend, &stacked, 1);
        o.weight.discrete = true;
        ASSERT_OK(moert_op_describe(&o, &discrete.shape));
        ops_execute(backend, &discrete, 1);
        ops_compare(titled("case %zu of %s, discrete", i / 2, moert_op_kind_name(o.kind)),
                    &discrete, &stacked);
        for (size_t g = 0; g < OPS_GLU_GROUPS; g++)
            compare_alone(backend, &start, &stacked, g);
    }
}

/* ---- padding ---- */

enum { ALIGNMENT = 16, PADDED_ROWS = 80 };

/* Group g's rows of `plain` to the front of its padded rows; the others are garbage of no
 * weight. */
static void pad(const ops_data *plain, ops_data *wide, moert_op_buffer which, size_t g) {
    size_t n, all;
    const float *from = part_of(plain, which, g, &n);
    float *to = part_of(wide, which, g, &all);
    memcpy(to, from, n * sizeof *from);
    for (size_t i = n; i < all; i++)
        to[i] = which == MOERT_OP_BUFFER_prob ? 0.0f : i % 2 ? -104.0f : 96.0f;
}

/* In front the rows of `plain`; then rows of zeros where d is, and sums that are the same. */
static void compare_padded(const char *title, const ops_data *plain, const ops_data *wide,
                           moert_op_buffer which, size_t g) {
    const moert_op_need *need = &plain->shape.needs[which];
    size_t n, all;
    const float *want = part_of(plain, which, g, &n), *got = part_of(wide, which, g, &all);
    for (size_t i = 0; i < n; i++)
        if (i % need->stride < need->width && !(got[i] == want[i]))
            fail_msg("%s, group %zu: %s[%zu] is %.9g, not %.9g", title, g,
                     moert_op_buffer_name(which), i, (double)got[i], (double)want[i]);
    for (size_t i = n; which == MOERT_OP_BUFFER_d && i < all; i++)
        assert_true(i % need->stride >= need->width || got[i] == 0.0f);
}

TEST(test_padding_rows_of_prob_0_change_nothing) {
    uint32_t ends[OPS_GLU_GROUPS], end = 0;
    for (size_t g = 0; g < OPS_GLU_GROUPS; g++) {
        const uint32_t rows = ops_glu_ends[g] - (g > 0 ? ops_glu_ends[g - 1] : 0);
        ends[g] = end += (rows + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    for (size_t i = 0; i < OPS_GLU_CASES * 2; i++) {
        moert_op_options o = case_of(i % 2, i / 2);
        const char *title = titled("case %zu of %s", i / 2, moert_op_kind_name(o.kind));
        o.prob = true;
        ops_data plain = make(&o, ops_glu_ends);
        o.rows = PADDED_ROWS;
        ops_data wide = make(&o, ends);
        for (moert_op_buffer b = 0; b < MOERT_OP_BUFFERS; b++)
            for (size_t g = 0; has_values(&plain, b) && g < OPS_GLU_GROUPS; g++)
                pad(&plain, &wide, b, g);
        ops_execute(backends[i % 5 == 0], &plain, 1);
        ops_execute(backends[i % 5 == 0], &wide, 1);
        for (moert_op_buffer b = 0; b < MOERT_OP_BUFFERS; b++)
            for (size_t g = 0; has_values(&plain, b) && g < OPS_GLU_GROUPS; g++)
                compare_padded(title, &plain, &wide, b, g);
    }
}

TESTS(open_test_device, close_test_device)
