/* Buffers of ops with quantized operands (bytes.h). */
#include "support/op/bytes.h"

#include "base/dtype.h"
#include "base/rng.h"
#include "quant/quantize.h"
#include "support/quant/quantized.h"
#include "support/suite.h"

enum { SEED = 31 };

static ops_operand find(const ops_bytes *data, moert_op_buffer payload) {
    return ops_find(&data->shape, ops_bytes_ends(data), payload);
}

static bool takes(const ops_bytes *data, moert_op_buffer which) {
    const moert_op *op = &data->shape;
    return op->needs[which].needed || (which == MOERT_OP_BUFFER_weight && op->weights.needed) ||
           (which == MOERT_OP_BUFFER_weight_scale && op->weight_scales.needed);
}

/* ---- elements ---- */

double ops_bytes_get(const ops_bytes *data, moert_op_buffer which, size_t i) {
    const moert_dtype type = data->shape.needs[which].type;
    const size_t bytes = moert_dtype_bits(type) / 8;
    uint32_t code = 0;
    if (type == MOERT_DTYPE_F32)
        return (double)ops_floats(data, which)[i];
    memcpy(&code, data->at[which] + i * bytes, bytes);
    return (double)moert_dtype_decode(type, code);
}

void ops_bytes_put(ops_bytes *data, moert_op_buffer which, size_t i, double value) {
    const moert_dtype type = data->shape.needs[which].type;
    const size_t bytes = moert_dtype_bits(type) / 8;
    if (type == MOERT_DTYPE_F32) {
        ops_floats(data, which)[i] = (float)value;
        return;
    }
    const uint32_t code = moert_dtype_encode(type, (float)value);
    memcpy(data->at[which] + i * bytes, &code, bytes);
}

size_t ops_bytes_count(const ops_bytes *data, moert_op_buffer which) {
    return data->bytes[which] * 8 / moert_dtype_bits(data->shape.needs[which].type);
}

/* ---- values ---- */

static float uniform_of(moert_op_buffer which, size_t i) {
    return 4.0f * suite_uniform(which, i) - 2.0f;
}

/* Element i of a plain buffer. */
static double element_of(const ops_bytes *data, moert_op_buffer which, size_t i) {
    if (data->values == OPS_NORMAL || data->values == OPS_WIDE)
        return random_once(moert_rng_normal, SEED, which, i) *
               (data->values == OPS_WIDE ? ldexp(1.0, (int)(i % 11) - 5) : 1.0);
    if (data->values != OPS_EXACT)
        return (double)uniform_of(which, i) * (data->values == OPS_SMALL ? 0.1 : 1.0);
    return floor(5.0 * random_once(moert_rng_uniform, SEED, which, i)) - 2.0;
}

/* Returns element i of a vector. Factors have few bits, so that products are exact. */
static double value_of(const ops_bytes *data, moert_op_buffer which, size_t i) {
    static const double alphas[] = {1.0, -1.5, 0.5, 2.0, 0.0, -0.0},
                        betas[] = {1.0, -0.5, 2.0, 0.5, 0.0},
                        globals[] = {1.0, 2.0, 0.5, 0.25, 4.0},
                        probs[] = {0.5, 1.0, 0.0, -2.0, 0.75};
    const moert_op_field *field = moert_op_field_of(which);
    /* a global scale, which is positive: a negative scale would change the sign of zeros */
    if (field == NULL)
        return globals[(i + which) % MOERT_COUNT(globals)];
    if (field->use == MOERT_OP_RAISE)
        return -INFINITY;
    if (field->use == MOERT_OP_ADD_TO || field->type == MOERT_OP_BIAS)
        return element_of(data, which, i);
    return which == MOERT_OP_BUFFER_norm         ? (double)0.37f
           : which == MOERT_OP_BUFFER_row_weight ? random_once(moert_rng_uniform, SEED, which, i)
           : which == MOERT_OP_BUFFER_alpha      ? alphas[i % MOERT_COUNT(alphas)]
           : which == MOERT_OP_BUFFER_beta       ? betas[i % MOERT_COUNT(betas)]
                                                 : probs[i % MOERT_COUNT(probs)];
}

/* Makes a random permutation that differs from its inverse. */
static void permute(uint32_t *gather, size_t rows) {
    for (size_t r = 0; r < rows; r++)
        gather[r] = (uint32_t)r;
    for (size_t r = rows; r > 1; r--) {
        const size_t other = (size_t)(moert_rng_uniform(SEED, 99, r) * (double)r);
        const uint32_t kept = gather[r - 1];
        gather[r - 1] = gather[other];
        gather[other] = kept;
    }
}

/* Fills those rows of a matrix that the op may read. Some values of c exceed the limits of the GLUs
 * in tests, but no value equals a limit. */
static void fill_rows(ops_bytes *data, moert_op_buffer which, size_t columns, size_t first,
                      size_t end) {
    const size_t stride = data->shape.needs[which].stride;
    for (size_t line = first; line < end; line++)
        for (size_t j = 0; j < columns; j++)
            ops_bytes_put(data, which, line * stride + j,
                          element_of(data, which, line * columns + j) *
                              (which == MOERT_OP_BUFFER_c ? 4.5 : 1.0));
}

/* ---- operands ---- */

static void put_code(const ops_operand *o, unsigned char *at, unsigned shift, uint32_t code) {
    const bool halves = moert_format_element_bits(o->as.how.format) == 4;
    *at = (unsigned char)(halves ? (*at & ~(0xFu << shift)) | code << shift : code);
}

static void put_scale(const ops_operand *o, unsigned char *scales, size_t at, float scale) {
    const bool nvfp4 = o->as.how.format == MOERT_FORMAT_NVFP4;
    if (o->as.how.format == MOERT_FORMAT_FP8_BLOCK)
        memcpy(scales + at * sizeof scale, &scale, sizeof scale);
    else
        scales[at] = nvfp4 ? (unsigned char)moert_dtype_encode(MOERT_DTYPE_E4M3, scale)
                           : moert_e8m0_ceil(scale);
}

/* Returns the scale of an element's block: 0.5 to 4, or 1 or 2 if `spread`. */
static float block_scale(const ops_operand *o, bool spread, size_t g, size_t line, size_t j) {
    const size_t block = moert_format_block(o->as.how.format);
    const moert_axis axis = o->as.how.axis;
    const size_t down = axis == MOERT_AXIS_ROW ? line : line / block;
    const size_t across = axis == MOERT_AXIS_COLUMN ? j : j / block;
    const size_t number = 3 * g + 5 * down + 7 * across + down * across;
    return spread ? (float)(1 + number % 2) : 0.5f * (float)(1u << number % 4);
}

/* Returns the bits of a random element. */
static uint32_t draw(const ops_operand *o, bool spread, size_t at) {
    const int third = (int)(3.0 * random_once(moert_rng_uniform, SEED, o->payload, at));
    return moert_dtype_encode(moert_format_element(o->as.how.format),
                              spread ? uniform_of(o->payload, at) : (float)(third - 1));
}

static void fill_quantized(ops_bytes *data, const ops_operand *o) {
    const bool spread = data->values == OPS_SPREAD;
    const size_t scale_bytes = moert_format_scale_bytes(o->as.how.format);
    for (size_t g = 0; g < o->groups; g++)
        for (size_t line = 0; line < ops_lines(o, g); line++)
            for (size_t j = 0; j < o->columns; j++) {
                const size_t at = (ops_first(o, g) + line) * o->columns + j;
                const ops_place p = ops_locate(o, g, line, j);
                /* if ends are no multiples of row_multiple, there may be no room for this
                 * element */
                if (p.byte >= data->bytes[o->payload] ||
                    (p.scale + 1) * scale_bytes > data->bytes[o->scale])
                    continue;
                put_code(o, data->at[o->payload] + p.byte, p.shift, draw(o, spread, at));
                put_scale(o, data->at[o->scale], p.scale, block_scale(o, spread, g, line, j));
            }
}

/* Whether the op adds to the old values of its result. */
static bool accumulates(const moert_op_options *o) {
    return o->accumulate || (o->beta && o->kind != MOERT_OP_DGLU);
}

static void fill_matrix(ops_bytes *data, moert_op_buffer which) {
    const ops_operand o = find(data, which);
    if (o.result && !accumulates(&data->shape.options)) {
        memset(data->at[o.payload], OPS_UNSET, data->bytes[o.payload]);
        memset(data->at[o.scale], OPS_UNSET, data->bytes[o.scale]);
    } else if (o.as.how.size != 0) {
        fill_quantized(data, &o);
    } else {
        for (size_t g = 0; g < o.groups; g++)
            fill_rows(data, which, o.columns, ops_first(&o, g), ops_end(&o, g));
    }
}

static void fill(ops_bytes *data, moert_op_buffer which) {
    const moert_op_options *o = &data->shape.options;
    const moert_op_matrix *m = moert_op_matrix_of(which);
    if (which == MOERT_OP_BUFFER_workspace || (m != NULL && which == m->scale))
        return; /* scales are filled together with their matrices */
    if (which == MOERT_OP_BUFFER_gather) {
        permute(ops_gather(data), o->rows);
    } else if (which == MOERT_OP_BUFFER_c) {
        if (o->kind == MOERT_OP_DGLU && o->groups > 0)
            fill_rows(data, which, data->shape.needs[which].width, 0,
                      ops_bytes_ends(data)[o->groups - 1]);
    } else if (m != NULL && which == m->payload) {
        fill_matrix(data, which);
    } else {
        for (size_t i = 0; i < ops_bytes_count(data, which); i++)
            ops_bytes_put(data, which, i, value_of(data, which, i));
    }
}

ops_bytes ops_bytes_make(const moert_op_options *options, const uint32_t *ends, ops_values values) {
    ops_bytes data = {.values = values};
    ASSERT_OK(moert_op_describe(options, &data.shape));
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        const bool each = options->weight.discrete &&
                          (i == MOERT_OP_BUFFER_weight || i == MOERT_OP_BUFFER_weight_scale);
        const char *name = moert_op_buffer_name(i);
        data.bytes[i] =
            each ? options->groups * moert_op_buffer_bytes(&data.shape, titled("%ss", name))
                 : moert_op_buffer_bytes(&data.shape, name);
        data.at[i] = test_alloc(data.bytes[i]);
        memset(data.at[i], 0xFF, data.bytes[i]);
    }
    memcpy(data.at[MOERT_OP_BUFFER_ends], ends, data.bytes[MOERT_OP_BUFFER_ends]);
    for (moert_op_buffer i = MOERT_OP_BUFFER_ends + 1; i < MOERT_OP_BUFFERS; i++)
        if (takes(&data, i))
            fill(&data, i);
    return data;
}

ops_bytes ops_bytes_copy(const ops_bytes *data) {
    ops_bytes copy = *data;
    for (size_t i = 0; i < MOERT_OP_BUFFERS; i++) {
        copy.at[i] = test_alloc(data->bytes[i]);
        memcpy(copy.at[i], data->at[i], data->bytes[i]);
    }
    return copy;
}

static float get_scale(const ops_operand *o, const unsigned char *scales, size_t at) {
    float scale;
    if (o->as.how.format == MOERT_FORMAT_FP8_BLOCK)
        memcpy(&scale, scales + at * sizeof scale, sizeof scale);
    else if (o->as.how.format == MOERT_FORMAT_NVFP4)
        scale = moert_dtype_decode(MOERT_DTYPE_E4M3, scales[at]);
    else
        scale = moert_e8m0_decode(scales[at]);
    return scale;
}

/* Dequantizes an operand to float32. */
static void decode_operand(const ops_bytes *data, const ops_operand *o, float *values) {
    const moert_dtype element = moert_format_element(o->as.how.format);
    const float *globals = o->as.global ? ops_floats(data, o->global) : NULL;
    for (size_t g = 0; g < o->groups; g++)
        for (size_t line = 0; line < ops_lines(o, g); line++)
            for (size_t j = 0; j < o->columns; j++) {
                const ops_place p = ops_locate(o, g, line, j);
                const unsigned byte = data->at[o->payload][p.byte];
                const bool halves = moert_format_element_bits(o->as.how.format) == 4;
                float *value = &values[(ops_first(o, g) + line) * o->columns + j];
                *value = moert_dtype_decode(element, halves ? byte >> p.shift & 0xF : byte) *
                         get_scale(o, data->at[o->scale], p.scale);
                if (globals != NULL)
                    *value *= globals[o->as.how.group_scales ? g : 0];
            }
}

static moert_op_options plain_of(const ops_bytes *data) {
    moert_op_options plain = data->shape.options;
    for (size_t i = 0; i < MOERT_OP_MATRICES; i++) {
        moert_operand *operand = moert_op_operand(&plain, moert_op_matrices[i].payload);
        if (operand->how.size != 0)
            *operand = (moert_operand){.type = MOERT_DTYPE_F32, .discrete = operand->discrete};
    }
    plain.row_multiple = 0;
    plain.norm = false;
    return plain;
}

ops_bytes ops_bytes_decode(const ops_bytes *data) {
    moert_op_options options = plain_of(data);
    const moert_op_roles is = moert_op_roles_of(options.kind);
    const moert_op_buffer read[] = {is.first, is.second};
    moert_operand *first = ops_first_operand(&options), *second = ops_second_operand(&options);
    /* if only one operand is quantized, the plain op uses float32, which holds the values of both
     * operands exactly */
    if (second->type != first->type)
        first->type = second->type = MOERT_DTYPE_F32;
    ops_bytes plain = ops_bytes_make(&options, ops_bytes_ends(data), data->values);
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        if (plain.bytes[i] == data->bytes[i] &&
            plain.shape.needs[i].type == data->shape.needs[i].type)
            memcpy(plain.at[i], data->at[i], data->bytes[i]);
    for (size_t i = 0; i < MOERT_COUNT(read); i++) {
        const ops_operand o = find(data, read[i]);
        if (o.as.how.size != 0)
            decode_operand(data, &o, ops_floats(&plain, o.payload));
        else
            for (size_t e = 0; e < ops_bytes_count(data, o.payload); e++)
                ops_bytes_put(&plain, o.payload, e, ops_bytes_get(data, o.payload, e));
    }
    return plain;
}

void ops_bytes_load(ops_bytes *data, moert_op_buffer which, const float *values) {
    const ops_operand o = find(data, which);
    uint32_t ends[OPS_MOST_GROUPS];
    for (size_t g = 0; g < o.groups; g++)
        ends[g] = (uint32_t)ops_end(&o, g);
    assert_true(o.as.scales == MOERT_SCALES_LINEAR && !o.as.how.transposed);
    const matrix m = {values, ends[o.groups - 1], o.columns, ends, o.groups};
    quantized z = quantize("portable", &o.as.how, &m);
    assert_true(z.q_bytes <= data->bytes[which] && z.scale_bytes <= data->bytes[o.scale]);
    memcpy(data->at[which], z.q, z.q_bytes);
    memcpy(data->at[o.scale], z.scale, z.scale_bytes);
    if (o.as.global)
        memcpy(data->at[o.global], z.global, z.globals * sizeof *z.global);
}

/* ---- on the device ---- */

static moert_buffer **upload_parts(const ops_bytes *data, moert_op_buffer which) {
    const size_t groups = data->shape.options.groups, bytes = data->bytes[which] / groups;
    moert_buffer **parts = test_alloc(groups * sizeof *parts);
    for (size_t g = 0; g < groups; g++)
        parts[g] = upload(data->at[which] + g * bytes, bytes);
    return parts;
}

moert_op_buffers ops_bytes_upload(const ops_bytes *data) {
    moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        if (data->shape.needs[i].needed)
            *moert_op_buffer_at(&buffers, i) = upload(data->at[i], data->bytes[i]);
    if (data->shape.weights.needed)
        buffers.weights = upload_parts(data, MOERT_OP_BUFFER_weight);
    if (data->shape.weight_scales.needed)
        buffers.weight_scales = upload_parts(data, MOERT_OP_BUFFER_weight_scale);
    return buffers;
}

static void download_parts(ops_bytes *data, moert_op_buffer which, moert_buffer *const *parts) {
    const size_t groups = data->shape.options.groups, bytes = data->bytes[which] / groups;
    for (size_t g = 0; g < groups; g++)
        download_into(parts[g], data->at[which] + g * bytes, bytes);
}

void ops_bytes_download(ops_bytes *data, const moert_op_buffers *buffers) {
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        moert_buffer *buffer = *moert_op_buffer_at(buffers, i);
        if (buffer != NULL)
            download_into(buffer, data->at[i], data->bytes[i]);
    }
    if (buffers->weights != NULL)
        download_parts(data, MOERT_OP_BUFFER_weight, buffers->weights);
    if (buffers->weight_scales != NULL)
        download_parts(data, MOERT_OP_BUFFER_weight_scale, buffers->weight_scales);
}

static void execute_times(moert_op *op, ops_bytes *data, size_t times) {
    const moert_op_buffers buffers = ops_bytes_upload(data);
    for (size_t i = 0; i < times; i++)
        ASSERT_OK(moert_op_execute(op, &buffers));
    ops_bytes_download(data, &buffers);
}

void ops_bytes_execute_op(moert_op *op, ops_bytes *data) {
    execute_times(op, data, 1);
}

void ops_bytes_execute(const char *backend, ops_bytes *data) {
    ops_bytes_execute_op(ops_open_on(backend, data->shape.options), data);
}

void ops_bytes_check_repeats(const char *backend, const ops_bytes *data, size_t times) {
    moert_op *op = ops_open_on(backend, data->shape.options);
    ops_bytes first = ops_bytes_copy(data);
    ops_bytes_execute(backend, &first);
    for (size_t i = 0; i < times; i++) {
        const size_t before = owned_count();
        ops_bytes again = ops_bytes_copy(data);
        execute_times(op, &again, 1 + i % 3);
        ops_assert_same("again", &again, &first, true);
        release_since(before);
    }
}
