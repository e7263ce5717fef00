/* The grouped GEMMs of suite_gemm.h. */
#include "support/gemm/suite_gemm.h"

#include "support/suite.h"

enum { LEVELS = 256, MIDDLE = 126 };

suite_gemm suite_gemm_of(moert_op_kind kind, moert_dtype type, size_t groups, size_t rows, size_t n,
                         size_t k) {
    suite_gemm p = {.options = MOERT_OP_OPTIONS_INIT};
    p.options.kind = kind;
    p.options.groups = groups;
    p.options.rows = rows;
    p.options.n = n;
    p.options.k = k;
    p.options.x.type = p.options.weight.type = p.options.y.type = p.options.bias_type = type;
    return p;
}

/* ---- operands ---- */

static uint32_t code_of(moert_dtype type, float value) {
    return type == MOERT_DTYPE_F32 ? moert_float_bits(value) : moert_dtype_encode(type, value);
}

static float value_of(moert_dtype type, uint32_t code) {
    return type == MOERT_DTYPE_F32 ? moert_float_from_bits(code) : moert_dtype_decode(type, code);
}

/* The level of element `index` of an operand: the sum of four uniform numbers, 0 to 252. */
static unsigned level(const suite_gemm *p, moert_op_buffer which, size_t index) {
    const uint32_t bits = suite_bits(which, index);
    if (p->signs)
        return MIDDLE - 1 + bits % 3;
    return (bits & 63) + (bits >> 8 & 63) + (bits >> 16 & 63) + (bits >> 24 & 63);
}

/* Fills in the value and the encoding of every level in a dtype. */
static void make_levels(const suite_gemm *p, moert_dtype type, uint32_t *code, float *value) {
    const float step = p->signs ? 1.0f : 0.1f / 36.95f; /* 36.95: standard deviation of the sum */
    for (int i = 0; i < LEVELS; i++) {
        code[i] = code_of(type, (float)(i - MIDDLE) * step);
        value[i] = value_of(type, code[i]);
    }
}

/* Returns the index of an operand's first element in the larger GEMM. */
static size_t first_index(const suite_gemm *p, moert_op_buffer which) {
    const size_t n = p->options.n, k = p->options.k;
    const bool of_groups = which == MOERT_OP_BUFFER_bias || which == MOERT_OP_BUFFER_weight;
    const size_t width = which == MOERT_OP_BUFFER_x                                    ? k
                         : which == MOERT_OP_BUFFER_y || which == MOERT_OP_BUFFER_bias ? n
                         : which == MOERT_OP_BUFFER_weight                             ? n * k
                                                                                       : 1;
    return (of_groups ? p->first_group : p->first_row) * width;
}

static moert_buffer *upload_operand(const suite_gemm *p, moert_op_buffer which, moert_dtype type,
                                    size_t first, size_t count) {
    const size_t bytes = moert_dtype_bits(type) / 8;
    uint32_t code[LEVELS];
    float value[LEVELS];
    unsigned char *encoded = test_alloc(count * bytes);
    make_levels(p, type, code, value);
    for (size_t i = 0; i < count; i++) /* OpenCL devices are assumed to be little-endian */
        memcpy(encoded + i * bytes, &code[level(p, which, first + i)], bytes);
    return upload(encoded, count * bytes);
}

/* ---- a run ---- */

/* The result's buffer, dtype and shape [lines, width]. */
typedef struct outcome {
    moert_op_buffer which;
    moert_dtype type;
    size_t lines, width;
} outcome;

static outcome result_of(const suite_gemm *p) {
    const moert_op_options *o = &p->options;
    switch (o->kind) {
    case MOERT_OP_GEMM_FORWARD:
        return (outcome){MOERT_OP_BUFFER_y, o->y.type, o->rows, o->n};
    case MOERT_OP_GEMM_DGRAD:
        return (outcome){MOERT_OP_BUFFER_x, o->x.type, o->rows, o->k};
    default:
        return (outcome){MOERT_OP_BUFFER_weight, o->weight.type, o->groups * o->n, o->k};
    }
}

static size_t line_bytes(outcome result) {
    return result.width * moert_dtype_bits(result.type) / 8;
}

size_t suite_gemm_bytes(const suite_gemm *p) {
    const outcome result = result_of(p);
    return result.lines * line_bytes(result);
}

void *suite_gemm_run(const char *backend, const suite_gemm *p) {
    moert_op_options options = p->options;
    const size_t groups = options.groups, elements = options.n * options.k;
    const size_t weight_bytes = elements * moert_dtype_bits(options.weight.type) / 8;
    const bool discrete = options.weight.discrete;
    moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    moert_buffer **weights = test_alloc(groups * sizeof *weights);
    moert_op shape, *op;
    options.backend = backend;
    ASSERT_OK(moert_op_describe(&options, &shape));
    for (moert_op_buffer i = MOERT_OP_BUFFER_ends + 1; i < MOERT_OP_BUFFERS; i++)
        if (shape.needs[i].needed && i != MOERT_OP_BUFFER_gather)
            *moert_op_buffer_at(&buffers, i) =
                upload_operand(p, i, shape.needs[i].type, first_index(p, i),
                               shape.needs[i].lines * shape.needs[i].stride);
    buffers.ends = upload(p->ends, groups * sizeof *p->ends);
    if (p->gather != NULL)
        buffers.gather = upload(p->gather, options.rows * sizeof *p->gather);
    for (size_t g = 0; discrete && g < groups; g++)
        weights[g] =
            upload_operand(p, MOERT_OP_BUFFER_weight, options.weight.type,
                           first_index(p, MOERT_OP_BUFFER_weight) + g * elements, elements);
    buffers.weights = discrete ? weights : NULL;
    ASSERT_OK(moert_op_create(test_device, &options, &op));
    ASSERT_OK(moert_op_execute(op, &buffers));
    moert_op_destroy(op);
    const moert_op_buffer which = result_of(p).which;
    unsigned char *result = test_alloc(suite_gemm_bytes(p));
    if (which != MOERT_OP_BUFFER_weight || !discrete)
        download_into(*moert_op_buffer_at(&buffers, which), result, suite_gemm_bytes(p));
    else
        for (size_t g = 0; g < groups; g++)
            download_into(weights[g], result + g * weight_bytes, weight_bytes);
    return result;
}

/* ---- expected results ---- */

/* A GEMM, the value of each level in each operand, and the row of the groups that each result line
 * holds. */
typedef struct expectation {
    const suite_gemm *p;
    outcome result;
    float x[LEVELS], weight[LEVELS], y[LEVELS], old[LEVELS], bias[LEVELS], scale[LEVELS];
    uint32_t *row_of;
    float chain;  /* the promised float32 value before rounding */
    double exact; /* the value in float64 */
} expectation;

static float at(const expectation *e, const float *levels, moert_op_buffer which, size_t index) {
    return levels[level(e->p, which, first_index(e->p, which) + index)];
}

static void add(expectation *e, float a, float b) {
    e->chain = fmaf(a, b, e->chain);
    e->exact += (double)a * (double)b;
}

/* Returns the line of x or y that belongs to row r of the groups. */
static size_t line_of(const suite_gemm *p, moert_op_buffer which, size_t r) {
    const moert_op_options *o = &p->options;
    if (which == MOERT_OP_BUFFER_y)
        return o->permute == MOERT_OP_PERMUTE_Y ? p->gather[r] : r;
    if (o->permute != MOERT_OP_PERMUTE_X)
        return r;
    return o->kind == MOERT_OP_GEMM_DGRAD ? p->gather[r] : p->gather[r] / o->topk;
}

static size_t group_of(const suite_gemm *p, size_t r) {
    size_t g = 0;
    while (g < p->options.groups && p->ends[g] <= r)
        g++;
    return g;
}

static float x_at(const expectation *e, size_t r, size_t i) {
    return at(e, e->x, MOERT_OP_BUFFER_x,
              line_of(e->p, MOERT_OP_BUFFER_x, r) * e->p->options.k + i);
}

static float y_at(const expectation *e, size_t r, size_t j) {
    return at(e, e->y, MOERT_OP_BUFFER_y,
              line_of(e->p, MOERT_OP_BUFFER_y, r) * e->p->options.n + j);
}

static float weight_at(const expectation *e, size_t g, size_t j, size_t i) {
    const size_t n = e->p->options.n, k = e->p->options.k;
    return at(e, e->weight, MOERT_OP_BUFFER_weight, (g * n + j) * k + i);
}

static void add_bias(expectation *e, size_t g, size_t r, size_t j) {
    const moert_op_options *o = &e->p->options;
    const float bias = at(e, e->bias, MOERT_OP_BUFFER_bias, g * o->n + j);
    const float scale = o->bias_scale ? at(e, e->scale, MOERT_OP_BUFFER_bias_scale, r) : 1.0f;
    e->chain = fmaf(e->chain, 1.0f, bias * scale);
    e->exact += (double)bias * (double)scale;
}

/* Computes element (line, column) of the result; false if the op does not write it. */
static bool expect(expectation *e, size_t line, size_t column) {
    const moert_op_options *o = &e->p->options;
    e->chain = 0.0f;
    e->exact = 0.0;
    if (o->kind == MOERT_OP_GEMM_WGRAD) {
        const size_t g = line / o->n, j = line % o->n;
        for (size_t r = g > 0 ? e->p->ends[g - 1] : 0; r < e->p->ends[g]; r++)
            add(e, y_at(e, r, j), x_at(e, r, column));
        return true;
    }
    const size_t r = e->row_of[line], g = group_of(e->p, r);
    if (g == o->groups)
        return false;
    for (size_t i = 0; o->kind == MOERT_OP_GEMM_FORWARD && i < o->k; i++)
        add(e, x_at(e, r, i), weight_at(e, g, column, i));
    for (size_t j = 0; o->kind == MOERT_OP_GEMM_DGRAD && j < o->n; j++)
        add(e, y_at(e, r, j), weight_at(e, g, j, column));
    if (o->bias)
        add_bias(e, g, r, column);
    return true;
}

static void prepare(const suite_gemm *p, expectation *e) {
    const moert_op_options *o = &p->options;
    const outcome result = result_of(p);
    uint32_t code[LEVELS];
    *e = (expectation){
        .p = p, .result = result, .row_of = test_alloc(result.lines * sizeof *e->row_of)};
    make_levels(p, o->x.type, code, e->x);
    make_levels(p, o->weight.type, code, e->weight);
    make_levels(p, o->y.type, code, e->y);
    make_levels(p, result.type, code, e->old);
    make_levels(p, o->bias_type, code, e->bias);
    make_levels(p, MOERT_DTYPE_F32, code, e->scale);
    for (size_t r = 0; o->kind != MOERT_OP_GEMM_WGRAD && r < o->rows; r++)
        e->row_of[line_of(p, result.which, r)] = (uint32_t)r;
}

static double unit_of(moert_dtype type) {
    return type == MOERT_DTYPE_BF16 ? 0x1p-8 : type == MOERT_DTYPE_F16 ? 0x1p-11 : 0x1p-24;
}

static void check_element(const char *title, expectation *e, size_t index, uint32_t code,
                          double absolute, double relative) {
    const moert_dtype type = e->result.type;
    const size_t width = e->result.width;
    const float old = at(e, e->old, e->result.which, index), got = value_of(type, code);
    const bool written = expect(e, index / width, index % width);
    if (!written || e->p->options.accumulate) {
        e->chain = written ? e->chain + old : old;
        e->exact = written ? e->exact + (double)old : (double)old;
    }
    const double bound = absolute + (relative + unit_of(type)) * fabs(e->exact);
    if (code != code_of(type, e->chain) || !(fabs((double)got - e->exact) <= bound))
        fail_msg("%s: (%zu, %zu) is %a, not %a (%.9g in float64)", title, index / width,
                 index % width, (double)got, (double)value_of(type, code_of(type, e->chain)),
                 e->exact);
}

void suite_gemm_check(const char *title, const suite_gemm *p, const void *result, size_t samples,
                      double absolute, double relative) {
    expectation e;
    prepare(p, &e);
    const size_t bytes = moert_dtype_bits(e.result.type) / 8, count = suite_gemm_bytes(p) / bytes;
    if (samples > count)
        samples = count;
    for (size_t s = 0; s < samples; s++) {
        /* takes one sample from each of `samples` equal stretches, so that every group has some */
        const size_t first = (size_t)((double)count / (double)samples * (double)s);
        const size_t stretch = count / samples;
        const size_t index = first + suite_bits(samples, s) % stretch;
        uint32_t code = 0;
        if (index >= count)
            continue;
        memcpy(&code, (const unsigned char *)result + index * bytes, bytes);
        check_element(title, &e, index, code, absolute, relative);
    }
}

void suite_gemm_check_backends(const char *title, const suite_gemm *p, const void *result,
                               size_t most) {
    const size_t work = p->options.rows * p->options.n * p->options.k;
    if (work <= most && memcmp(suite_gemm_run("reference", p), result, suite_gemm_bytes(p)) != 0)
        fail_msg("%s: the backends differ", title);
}

void suite_gemm_check_parts(const char *title, const suite_gemm *p, const void *result) {
    const bool weight = result_of(p).which == MOERT_OP_BUFFER_weight;
    const size_t line = line_bytes(result_of(p));
    for (size_t g = 0; g < p->options.groups; g++) {
        const size_t start = g > 0 ? p->ends[g - 1] : 0;
        const uint32_t rows = p->ends[g] - (uint32_t)start;
        suite_gemm part = *p;
        part.options.groups = 1;
        part.options.rows = rows;
        part.ends = &rows;
        part.first_row = start;
        part.first_group = g;
        unsigned char *alone = suite_gemm_run("portable", &part);
        const size_t first = weight ? g * p->options.n : start;
        if (memcmp(alone, (const unsigned char *)result + first * line, suite_gemm_bytes(&part)) !=
            0)
            fail_msg("%s: group %zu of %u rows alone has other bits", title, g, rows);
    }
}
