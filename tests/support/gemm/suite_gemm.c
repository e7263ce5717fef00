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

static moert_dtype type_of(const suite_gemm *p, moert_op_buffer which) {
    return which == MOERT_OP_BUFFER_x        ? p->options.x.type
           : which == MOERT_OP_BUFFER_y      ? p->options.y.type
           : which == MOERT_OP_BUFFER_weight ? p->options.weight.type
           : which == MOERT_OP_BUFFER_bias   ? p->options.bias_type
                                             : MOERT_DTYPE_F32;
}

/* The level of element `index` of an operand: the sum of four uniform numbers, 0 to 252. */
static unsigned level(const suite_gemm *p, moert_op_buffer which, size_t index) {
    const uint32_t bits = suite_bits(which, index);
    if (p->signs)
        return MIDDLE - 1 + bits % 3;
    return (bits & 63) + (bits >> 8 & 63) + (bits >> 16 & 63) + (bits >> 24 & 63);
}

/* The value of a level, before it is rounded. */
static float value_of(const suite_gemm *p, unsigned level_of) {
    const float step = p->signs ? 1.0f : 0.1f / 36.95f; /* 36.95: standard deviation of the sum */
    return (float)((int)level_of - MIDDLE) * step;
}

/* Returns the index of an operand's first element in the larger GEMM. */
static size_t first_index(const suite_gemm *p, moert_op_buffer which) {
    const size_t n = p->options.n, k = p->options.k;
    switch (which) {
    case MOERT_OP_BUFFER_x:
        return p->first_row * k;
    case MOERT_OP_BUFFER_y:
        return p->first_row * n;
    case MOERT_OP_BUFFER_weight:
        return p->first_group * n * k;
    case MOERT_OP_BUFFER_bias:
        return p->first_group * n;
    default:
        return p->first_row;
    }
}

static uint32_t encode(moert_dtype type, float value) {
    return type == MOERT_DTYPE_F32 ? moert_float_bits(value) : moert_dtype_encode(type, value);
}

/* Uploads `count` elements of an operand from element `first` on. */
static moert_buffer *upload_operand(const suite_gemm *p, moert_op_buffer which, size_t first,
                                    size_t count) {
    const moert_dtype type = type_of(p, which);
    const size_t bytes = moert_dtype_bits(type) / 8, from = first_index(p, which) + first;
    uint32_t code[LEVELS];
    unsigned char *encoded = test_alloc(count * bytes);
    for (unsigned i = 0; i < LEVELS; i++)
        code[i] = encode(type, value_of(p, i));
    for (size_t i = 0; i < count; i++) /* OpenCL devices are assumed to be little-endian */
        memcpy(encoded + i * bytes, &code[level(p, which, from + i)], bytes);
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
                upload_operand(p, i, 0, shape.needs[i].lines * shape.needs[i].stride);
    buffers.ends = upload(p->ends, groups * sizeof *p->ends);
    if (p->gather != NULL)
        buffers.gather = upload(p->gather, options.rows * sizeof *p->gather);
    for (size_t g = 0; discrete && g < groups; g++)
        weights[g] = upload_operand(p, MOERT_OP_BUFFER_weight, g * elements, elements);
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

/* An element of a result: the promised float32 value before rounding, and the value in float64. */
typedef struct element {
    float chain;
    double exact;
} element;

static float at(const suite_gemm *p, moert_op_buffer which, size_t index) {
    const unsigned of = level(p, which, first_index(p, which) + index);
    return round_to(type_of(p, which), (double)value_of(p, of));
}

static void add(element *e, float a, float b) {
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

static float x_at(const suite_gemm *p, size_t r, size_t i) {
    return at(p, MOERT_OP_BUFFER_x, line_of(p, MOERT_OP_BUFFER_x, r) * p->options.k + i);
}

static float y_at(const suite_gemm *p, size_t r, size_t j) {
    return at(p, MOERT_OP_BUFFER_y, line_of(p, MOERT_OP_BUFFER_y, r) * p->options.n + j);
}

static float weight_at(const suite_gemm *p, size_t g, size_t j, size_t i) {
    return at(p, MOERT_OP_BUFFER_weight, (g * p->options.n + j) * p->options.k + i);
}

/* Computes element (line, column) of the result. row_of: the row of the groups that each line
 * holds. */
static element expect(const suite_gemm *p, const uint32_t *row_of, size_t line, size_t column) {
    const moert_op_options *o = &p->options;
    const outcome result = result_of(p);
    const float old = at(p, result.which, line * result.width + column);
    const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD;
    element e = {0.0f, 0.0};
    size_t g = wgrad ? line / o->n : 0, r = wgrad ? 0 : row_of[line];
    while (!wgrad && g < o->groups && p->ends[g] <= r)
        g++;
    if (g == o->groups) /* not written */
        return (element){old, (double)old};
    if (wgrad)
        for (r = g > 0 ? p->ends[g - 1] : 0; r < p->ends[g]; r++)
            add(&e, y_at(p, r, line % o->n), x_at(p, r, column));
    for (size_t i = 0; o->kind == MOERT_OP_GEMM_FORWARD && i < o->k; i++)
        add(&e, x_at(p, r, i), weight_at(p, g, column, i));
    for (size_t j = 0; o->kind == MOERT_OP_GEMM_DGRAD && j < o->n; j++)
        add(&e, y_at(p, r, j), weight_at(p, g, j, column));
    if (o->bias) {
        const float bias = at(p, MOERT_OP_BUFFER_bias, g * o->n + column);
        const float scale = o->bias_scale ? at(p, MOERT_OP_BUFFER_bias_scale, r) : 1.0f;
        e.chain = fmaf(e.chain, 1.0f, bias * scale);
        e.exact += (double)bias * (double)scale;
    }
    if (o->accumulate)
        e = (element){e.chain + old, e.exact + (double)old};
    return e;
}

void suite_gemm_check(const char *title, const suite_gemm *p, const void *result, size_t samples,
                      double absolute, double relative) {
    const outcome r = result_of(p);
    const size_t bytes = moert_dtype_bits(r.type) / 8, count = r.lines * r.width;
    const double unit = r.type == MOERT_DTYPE_BF16  ? 0x1p-8
                        : r.type == MOERT_DTYPE_F16 ? 0x1p-11
                                                    : 0x1p-24;
    uint32_t *row_of = test_alloc(r.lines * sizeof *row_of);
    for (size_t row = 0; p->options.kind != MOERT_OP_GEMM_WGRAD && row < p->options.rows; row++)
        row_of[line_of(p, r.which, row)] = (uint32_t)row;
    if (samples > count)
        samples = count;
    for (size_t s = 0; s < samples; s++) {
        /* takes one sample from each of `samples` equal stretches, so that every group has some */
        const size_t first = (size_t)((double)count / (double)samples * (double)s);
        const size_t index = first + suite_bits(samples, s) % (count / samples);
        if (index >= count)
            continue;
        uint32_t code = 0;
        memcpy(&code, (const unsigned char *)result + index * bytes, bytes);
        const element want = expect(p, row_of, index / r.width, index % r.width);
        const float got = r.type == MOERT_DTYPE_F32 ? moert_float_from_bits(code)
                                                    : moert_dtype_decode(r.type, code);
        const double bound = absolute + (relative + unit) * fabs(want.exact);
        if (code != encode(r.type, want.chain) || !(fabs((double)got - want.exact) <= bound))
            fail_msg("%s: (%zu, %zu) is %a, not %a (%.9g in float64)", title, index / r.width,
                     index % r.width, (double)got, (double)round_to(r.type, (double)want.chain),
                     want.exact);
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
