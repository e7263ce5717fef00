// run: check=1 night=1
/*
 * Sequences of ops as in training. From torchao: a grouped linear layer with quantized operands,
 * and limits on the ratio of signal to quantization noise. From TransformerEngine: a grouped MLP,
 * quantized and in bfloat16, with hidden sizes 128 and 256, groups of 0, 256, 512 and 768 rows,
 * SwiGLU and clamped GLUs. Every op is compared with float64 on the values of its operands. The
 * final results are compared with the whole sequence in float64; if operands are quantized, the
 * signal-to-noise ratio in decibel is compared with a limit.
 */
#include "support/op/exact.h"
#include "support/suite.h"

typedef struct layer {
    moert_format format;
    moert_nvfp4_rule rule;
    size_t groups, rows, n, k; /* n, k: columns and reduction size of a linear layer's weight */
    const uint32_t *ends;
    const char *backend;
} layer;

/* ---- ops ---- */

static moert_operand scaled(const layer *l, moert_axis axis) {
    moert_operand operand = ops_scaled(l->format, axis, MOERT_SCALES_LINEAR);
    operand.how.nvfp4_rule = l->rule;
    operand.global = operand.how.group_scales = l->format == MOERT_FORMAT_NVFP4;
    return operand;
}

static moert_op_options describe(const layer *l, moert_op_kind kind) {
    return ops_gemm(kind, scaled(l, MOERT_AXIS_ROW), l->groups, l->rows, l->n, l->k);
}

/* Where an operand of an op comes from: float32 values to be rounded, or the bytes of another
 * op. */
typedef struct source {
    moert_op_buffer which;
    const float *values;
    const ops_bytes *from;
    bool column; /* use the result of `from` that is quantized along columns */
} source;

static moert_op_buffer scale_of(const ops_bytes *data, moert_op_buffer which) {
    return ops_find(&data->shape, ops_bytes_ends(data), which).scale;
}

/* Sets all elements of a plain buffer. */
static void put_all(ops_bytes *data, moert_op_buffer which, const float *values) {
    for (size_t i = 0; i < ops_bytes_count(data, which); i++)
        ops_bytes_put(data, which, i, (double)values[i]);
}

static double *get_all(const ops_bytes *data, moert_op_buffer which) {
    const size_t n = ops_bytes_count(data, which);
    double *values = test_alloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = ops_bytes_get(data, which, i);
    return values;
}

static void take(ops_bytes *data, const source *s) {
    if (s->from == NULL) {
        if (data->bytes[scale_of(data, s->which)] > 0)
            ops_bytes_load(data, s->which, s->values);
        else
            put_all(data, s->which, s->values);
        return;
    }
    const bool column = s->column && s->from->bytes[MOERT_OP_BUFFER_column] > 0;
    const moert_op_buffer payload = column ? MOERT_OP_BUFFER_column : MOERT_OP_BUFFER_d;
    const moert_op_buffer to = scale_of(data, s->which), scale = scale_of(s->from, payload);
    assert_int_equal(data->bytes[s->which], s->from->bytes[payload]);
    assert_int_equal(data->bytes[to], s->from->bytes[scale]);
    memcpy(data->at[s->which], s->from->at[payload], data->bytes[s->which]);
    memcpy(data->at[to], s->from->at[scale], data->bytes[to]);
}

/* Executes an op on its operands and compares it with float64 on their values. */
static void execute(const layer *l, const char *title, ops_bytes *data, const source operands[2]) {
    take(data, &operands[0]);
    take(data, &operands[1]);
    ops_exact_run(title, l->backend, data, OPS_NEAR);
}

/* Returns the plain op on the unrounded operands. */
static ops_bytes without_rounding(const ops_bytes *data, const source operands[2]) {
    ops_bytes plain = ops_bytes_decode(data);
    for (size_t i = 0; i < 2; i++)
        memcpy(plain.at[operands[i].which], operands[i].values, plain.bytes[operands[i].which]);
    return plain;
}

/* ---- decibels ---- */

static void assert_above(const char *title, const double *want, const ops_bytes *data,
                         moert_op_buffer which, size_t n, double limit) {
    double signal = 0.0, noise = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double off = ops_bytes_get(data, which, i) - want[i];
        signal += want[i] * want[i];
        noise += off * off;
    }
    suite_assert_above(title, signal, noise, limit);
}

/* ---- a linear layer ---- */

static void check_linear(const layer *l, double limit) {
    const size_t used = l->ends[l->groups - 1];
    float *x = suite_normal(1, l->rows * l->k, 1.0),
          *weight = suite_normal(2, l->groups * l->n * l->k, 1.0),
          *dy = suite_normal(3, l->rows * l->n, 1.0);
    const source sx = {MOERT_OP_BUFFER_x, x, NULL, false},
                 sw = {MOERT_OP_BUFFER_weight, weight, NULL, false},
                 sy = {MOERT_OP_BUFFER_y, dy, NULL, false};
    const struct {
        const char *name;
        source operands[2];
        size_t elements;
    } gemms[] = {{"y", {sx, sw}, used * l->n},
                 {"dx", {sy, sw}, used * l->k},
                 {"dW", {sx, sy}, l->groups * l->n * l->k}};
    for (size_t i = 0; i < 3; i++) {
        const size_t before = owned_count();
        const moert_op_options o = describe(l, (moert_op_kind)i);
        const char *title = titled("%s: %s", gemms[i].name, ops_title(&o));
        ops_bytes data = ops_bytes_make(&o, l->ends, OPS_EXACT);
        execute(l, title, &data, gemms[i].operands);
        const ops_bytes plain = without_rounding(&data, gemms[i].operands);
        assert_above(title, ops_exact_of(&plain, 0.0).result, &data, ops_result_buffer(o.kind),
                     gemms[i].elements, limit);
        release_since(before);
    }
}

/* torchao's limits for y, dx and dW are 27, 25 and 24 decibel in mxfp8, and 16, 14 and 12 decibel
 * in nvfp4. */
TEST(test_a_grouped_linear_layer_keeps_its_signal) {
    static const struct {
        moert_format format;
        moert_nvfp4_rule rule;
        double limit;
    } formats[] = {{MOERT_FORMAT_MXFP8_E4M3, MOERT_NVFP4_TORCHAO, 27.0},
                   {MOERT_FORMAT_NVFP4, MOERT_NVFP4_TORCHAO, 16.0},
                   {MOERT_FORMAT_NVFP4, MOERT_NVFP4_TE, 16.0}};
    static const uint32_t unaligned[] = {64, 256};
    static const struct {
        size_t groups, rows, n, k;
        bool slow;
    } shapes[] = {
        {2, 256, 160, 192, false},    {1, 256, 256, 320, false},    {8, 640, 192, 256, false},
        {16, 1024, 1024, 2048, true}, {8, 4096, 1024, 1024, true},  {1, 1024, 1024, 1024, true},
        {8, 1024, 4096, 1024, true},  {16, 4096, 1024, 4096, true}, {8, 4096, 2048, 2048, true}};
    for (size_t i = 0; i < 3 * MOERT_COUNT(shapes); i++) {
        uint32_t ends[OPS_MOST_GROUPS];
        const size_t s = i / 3;
        if (suite_skips(shapes[s].slow))
            continue;
        suite_split(s, shapes[s].rows, shapes[s].groups, ends);
        const layer l = {.format = formats[i % 3].format,
                         .rule = formats[i % 3].rule,
                         .groups = shapes[s].groups,
                         .rows = shapes[s].rows,
                         .n = shapes[s].n,
                         .k = shapes[s].k,
                         .ends = s == 0 ? unaligned : ends,
                         .backend = suite_backends[s == 0]};
        check_linear(&l, formats[i % 3].limit);
        release_owned();
    }
}

/* ---- an MLP ---- */

enum { GROUPS = 4, M = 1536 };
typedef enum part { GLU, FC2, DGLU, DGRAD, WGRAD1, WGRAD2, PARTS } part;

/* Square experts: x, dy [M,H], w1[2H,H], w2[H,H]. */
typedef struct mlp {
    layer l; /* each part of the MLP sets its own l.n and l.k */
    moert_glu_form form;
    size_t hidden;
    bool bf16; /* bf16 operands instead of the layer's format */
    float *x, *w1, *w2, *dy, *prob;
} mlp;

static mlp make_mlp(layer l, moert_glu_form form, size_t hidden, bool bf16) {
    const double spread = 1.5 / sqrt((double)hidden);
    mlp m = {l, form, hidden, bf16, NULL, NULL, NULL, NULL, NULL};
    const struct {
        float **at;
        size_t count;
        double deviation;
    } arrays[] = {{&m.x, M * hidden, 1.0},
                  {&m.w1, GROUPS * 2 * hidden * hidden, spread},
                  {&m.w2, GROUPS * hidden * hidden, spread},
                  {&m.dy, M * hidden, 1.0},
                  {&m.prob, M, 0.5}};
    for (size_t i = 0; i < MOERT_COUNT(arrays); i++) {
        float *values = *arrays[i].at = suite_normal(i + 1, arrays[i].count, arrays[i].deviation);
        for (size_t k = 0; bf16 && k < arrays[i].count; k++)
            values[k] = round_to(MOERT_DTYPE_BF16, (double)values[k]);
    }
    return m;
}

/* True if an op quantizes its result itself, along rows and columns. NVFP4 needs global scales,
 * which are known only after the op, so a separate call quantizes the float32 results. */
static bool chains(const mlp *m) {
    return m->bf16 || m->l.format != MOERT_FORMAT_NVFP4;
}

static moert_op_options describe_part(const mlp *m, part i, bool plain) {
    static const moert_op_kind kinds[PARTS] = {MOERT_OP_GLU,        MOERT_OP_GEMM_FORWARD,
                                               MOERT_OP_DGLU,       MOERT_OP_GEMM_DGRAD,
                                               MOERT_OP_GEMM_WGRAD, MOERT_OP_GEMM_WGRAD};
    layer l = m->l;
    l.n = i == GLU || i == DGRAD || i == WGRAD1 ? 2 * m->hidden : m->hidden;
    l.k = m->hidden;
    if (!m->bf16)
        return describe(&l, kinds[i]);
    moert_op_options o = ops_sized(kinds[i], GROUPS, M, l.n, l.k);
    const moert_dtype type = plain ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16;
    o.x.type = o.y.type = o.c.type = o.d.type = type;
    o.weight.type = i == WGRAD1 || i == WGRAD2 ? MOERT_DTYPE_F32 : type;
    return o;
}

/* Makes the op for part i of the MLP, without values in its operands. `plain`: the op does not
 * round to bf16. A backward part copies c from the op `forward`. */
static ops_bytes begin(const mlp *m, part i, bool plain, const ops_bytes *forward) {
    const bool glu = i == GLU || i == DGLU;
    moert_op_options o = describe_part(m, i, plain);
    o.interleave = 32;
    o.row_multiple = 256;
    o.glu = m->form;
    o.prob = glu;
    o.save_c = i == GLU;
    o.dprob = i == DGLU;
    if (glu && chains(m) && !m->bf16) {
        o.d = scaled(&m->l, MOERT_AXIS_ROW);
        o.column = scaled(&m->l, MOERT_AXIS_COLUMN);
    }
    ops_bytes data = ops_bytes_make(&o, m->l.ends, OPS_EXACT);
    memset(data.at[MOERT_OP_BUFFER_dprob], 0, data.bytes[MOERT_OP_BUFFER_dprob]);
    if (glu)
        put_all(&data, MOERT_OP_BUFFER_prob, m->prob);
    if (i == DGLU)
        put_all(&data, MOERT_OP_BUFFER_c,
                to_floats(get_all(forward, MOERT_OP_BUFFER_c),
                          ops_bytes_count(&data, MOERT_OP_BUFFER_c)));
    return data;
}

/* Finds the operands of part i. h and dv are results of other parts; if `chained`, their bytes are
 * used unchanged. */
static void find_operands(const mlp *m, part i, const ops_bytes *parts, bool chained,
                          source operands[2]) {
    const bool of_glu = i == FC2 || i == WGRAD2, of_dglu = i == DGRAD || i == WGRAD1;
    const ops_bytes *from = of_glu ? &parts[GLU] : of_dglu ? &parts[DGLU] : NULL;
    source x = {MOERT_OP_BUFFER_x, m->x, NULL, i == WGRAD2};
    source y = {MOERT_OP_BUFFER_y, m->dy, NULL, i == WGRAD1};
    source *const computed = of_glu ? &x : &y;
    if (from != NULL && chained)
        computed->from = from;
    else if (from != NULL)
        computed->values = ops_floats(from, MOERT_OP_BUFFER_d);
    const source weight = {MOERT_OP_BUFFER_weight, i == GLU || i == DGRAD ? m->w1 : m->w2, NULL,
                           false};
    operands[0] = i == DGLU || i == DGRAD ? y : x;
    operands[1] = i == WGRAD1 || i == WGRAD2 ? y : weight;
}

static void run(const mlp *m, ops_bytes *parts) {
    static const char *const names[PARTS] = {"glu", "fc2", "dglu", "dgrad", "wgrad1", "wgrad2"};
    for (part i = GLU; i < PARTS; i++) {
        source operands[2];
        parts[i] = begin(m, i, false, &parts[GLU]);
        find_operands(m, i, parts, chains(m), operands);
        execute(&m->l, names[i], &parts[i], operands);
    }
}

/* Runs the MLP in float64 with plain operands. If the MLP is in bf16, the backward uses the c of
 * the forward in `rounded`. */
static void run_exactly(const mlp *m, const ops_bytes *rounded, ops_bytes *parts) {
    for (part i = GLU; i < PARTS; i++) {
        source operands[2];
        const ops_bytes data = begin(m, i, true, m->bf16 ? &rounded[GLU] : &parts[GLU]);
        find_operands(m, i, parts, false, operands);
        parts[i] = without_rounding(&data, operands);
        const ops_exact exact = ops_exact_of(&parts[i], 0.0);
        put_all(&parts[i], ops_result_buffer(data.shape.options.kind),
                to_floats(exact.result, exact.lines * exact.width));
        if (i == GLU)
            put_all(&parts[i], MOERT_OP_BUFFER_c,
                    to_floats(exact.c, ops_bytes_count(&parts[i], MOERT_OP_BUFFER_c)));
        if (i == DGLU)
            put_all(&parts[i], MOERT_OP_BUFFER_dprob, to_floats(exact.dprob, M));
    }
}

/* Compares the MLP with float64. `limit` is the least signal-to-noise ratio in decibel. In bf16,
 * `limit` is the relative error that up to four successive roundings may cause. */
static void check_mlp(const mlp *m, double limit) {
    static const struct {
        const char *name;
        part from;
        moert_op_buffer which;
    } results[] = {{"c", GLU, MOERT_OP_BUFFER_c}, /* c, h, dv: compared only in bf16 */
                   {"h", GLU, MOERT_OP_BUFFER_d},          {"dv", DGLU, MOERT_OP_BUFFER_d},
                   {"y", FC2, MOERT_OP_BUFFER_y},          {"dprob", DGLU, MOERT_OP_BUFFER_dprob},
                   {"dx", DGRAD, MOERT_OP_BUFFER_x},       {"dW1", WGRAD1, MOERT_OP_BUFFER_weight},
                   {"dW2", WGRAD2, MOERT_OP_BUFFER_weight}};
    ops_bytes rounded[PARTS], exact[PARTS];
    run(m, rounded);
    run_exactly(m, rounded, exact);
    for (size_t i = m->bf16 ? 0 : 3; i < MOERT_COUNT(results); i++) {
        const moert_op_buffer which = results[i].which;
        const ops_bytes *got = &rounded[results[i].from], *want = &exact[results[i].from];
        const bool through = results[i].from == DGRAD || results[i].from == WGRAD1;
        const size_t n = ops_bytes_count(want, which);
        if (m->bf16)
            assert_near(results[i].name, to_floats(get_all(got, which), n), get_all(want, which), n,
                        limit);
        else if (!through || m->form.limit >= 2.0f)
            assert_above(titled("MLP, hidden %zu, %s: %s", m->hidden,
                                moert_format_name(m->l.format), results[i].name),
                         get_all(want, which), got, which, n, limit);
        /* no comparison for a small limit of the GLU: rounding moves values across the limit, where
         * the derivative jumps */
    }
}

/* The derivative of a clamped GLU jumps at its limit; no bf16 value equals one of these limits. */
static const moert_glu_form mlp_forms[] = {
    MOERT_GLU_SWIGLU, {false, 7.0f, 1.702f, 1.0f, 0}, {false, 1.26f, 1.5f, 0.5f, 0}};
static const uint32_t mlp_ends[][GROUPS] = {
    {0, 256, 768, M}, {768, 768, 1024, M}, {512, 1280, M, M}};

TEST(test_a_grouped_mlp_keeps_its_signal) {
    for (size_t i = 0; i < 12; i++) {
        const size_t h = i < 6 ? 128 : 256;
        const bool nvfp4 = i / 3 % 2 == 1;
        if (suite_skips(h > 128 || i % 3 == 2))
            continue;
        const layer l = {.format = nvfp4 ? MOERT_FORMAT_NVFP4 : MOERT_FORMAT_MXFP8_E4M3,
                         .rule = MOERT_NVFP4_TORCHAO,
                         .groups = GROUPS,
                         .rows = M,
                         .ends = mlp_ends[i % 3],
                         .backend = suite_backends[i == 0 || i == 4]};
        const mlp m = make_mlp(l, mlp_forms[i % 3], h, false);
        check_mlp(&m, nvfp4 ? 11.5 : 22.0);
        release_owned();
    }
}

TEST(test_grouped_mlps_agree_with_float64) {
    for (size_t i = 0; i < 6; i++) {
        const size_t h = i < 3 ? 128 : 256;
        if (suite_skips(h > 128))
            break;
        const layer l = {.ends = mlp_ends[i % 3], .backend = suite_backends[i == 0]};
        const mlp m = make_mlp(l, mlp_forms[(i + i / 3) % 3], h, true);
        check_mlp(&m, 0.03);
        release_owned();
    }
}

TESTS(open_test_device, close_test_device)
