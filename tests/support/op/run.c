/* Runs op objects on host arrays. */
#include "support/op/run.h"

#include "base/rng.h"

enum { SEED = 29 };

static bool is_index(moert_op_buffer which) {
    return which == MOERT_OP_BUFFER_ends || which == MOERT_OP_BUFFER_gather;
}

/* Returns element i of alpha, beta, prob or bias_scale. Values have few bits, so that products are
 * exact. */
static float few_bits(moert_op_buffer which, size_t i) {
    static const float alphas[] = {1.0f, -1.5f, 0.5f, 0.0f, 2.0f, -1.0f};
    static const float betas[] = {1.0f, 0.0f, -0.5f, 2.0f};
    static const float probs[] = {0.5f, 1.0f, 0.0f, -2.0f, 0.75f};
    if (which == MOERT_OP_BUFFER_alpha)
        return alphas[i % 6];
    return which == MOERT_OP_BUFFER_beta ? betas[i % 4] : probs[i % 5];
}

static float value_of(const ops_data *data, moert_op_buffer which, size_t i, bool integers) {
    switch (which) {
    case MOERT_OP_BUFFER_alpha:
    case MOERT_OP_BUFFER_beta:
    case MOERT_OP_BUFFER_bias_scale:
    case MOERT_OP_BUFFER_prob:
        return few_bits(which, i);
    case MOERT_OP_BUFFER_amax:
        return -INFINITY;
    case MOERT_OP_BUFFER_row_weight:
        return (float)random_once(moert_rng_uniform, SEED, which, i);
    default:
        if (integers)
            return floorf(5.0f * (float)random_once(moert_rng_uniform, SEED, which, i)) - 2.0f;
        return round_to(data->shape.needs[which].type,
                        random_once(moert_rng_normal, SEED, which, i));
    }
}

/* Makes a random permutation, which differs from its inverse. */
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

static void guard_rows(ops_data *data, moert_op_buffer which, bool past_end) {
    const moert_op_need *need = &data->shape.needs[which];
    const size_t groups = data->shape.options.groups, used = ops_start(data, groups);
    for (size_t i = 0; i < data->count[which]; i++)
        if (i % need->stride >= need->width || (past_end && i / need->stride >= used))
            data->at[which][i] = NAN;
}

static void fill(ops_data *data, moert_op_buffer which, const uint32_t *ends, bool integers) {
    const size_t count = data->count[which];
    data->at[which] = test_alloc(count * sizeof(float));
    if (which == MOERT_OP_BUFFER_ends && count > 0)
        memcpy(data->at[which], ends, count * sizeof *ends);
    else if (which == MOERT_OP_BUFFER_gather)
        permute(ops_gather(data), count);
    else
        for (size_t i = 0; i < count; i++)
            data->at[which][i] = value_of(data, which, i, integers);
    if (which == MOERT_OP_BUFFER_x)
        guard_rows(data, which, !data->shape.x.gathered);
    if (which == MOERT_OP_BUFFER_y)
        guard_rows(data, which, !data->shape.y.gathered);
    if (which == MOERT_OP_BUFFER_c || which == MOERT_OP_BUFFER_d)
        guard_rows(data, which, true);
}

ops_data ops_make(const moert_op_options *options, const uint32_t *ends, bool integers) {
    ops_data data = {.count = {0}};
    ASSERT_OK(moert_op_describe(options, &data.shape));
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        const moert_op_need *need = &data.shape.needs[i];
        if (need->needed || i == MOERT_OP_BUFFER_weight)
            data.count[i] = need->lines * need->stride;
        fill(&data, i, ends, integers);
    }
    return data;
}

ops_data ops_copy(const ops_data *data) {
    ops_data copy = *data;
    for (size_t i = 0; i < MOERT_OP_BUFFERS; i++) {
        copy.at[i] = test_alloc(data->count[i] * sizeof(float));
        memcpy(copy.at[i], data->at[i], data->count[i] * sizeof(float));
    }
    return copy;
}

/* ---- on the device ---- */

ops_bytes ops_encode(const ops_data *data) {
    ops_bytes bytes = {.shape = data->shape};
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        bytes.bytes[i] = data->count[i] * moert_dtype_bits(data->shape.needs[i].type) / 8;
        bytes.at[i] = test_alloc(bytes.bytes[i]);
        for (size_t e = 0; !is_index(i) && e < data->count[i]; e++)
            ops_bytes_put(&bytes, i, e, (double)data->at[i][e]);
        if (is_index(i))
            memcpy(bytes.at[i], data->at[i], bytes.bytes[i]);
    }
    return bytes;
}

void ops_execute(const char *backend, ops_data *data, size_t times) {
    ops_bytes bytes = ops_encode(data);
    ops_bytes_repeat(backend, &bytes, times);
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        for (size_t e = 0; !is_index(i) && e < data->count[i]; e++)
            data->at[i][e] = (float)ops_bytes_get(&bytes, i, e);
}

/* ---- the GEMM in float64 ---- */

static double beta_of(const ops_data *data, size_t g) {
    const moert_op_options *o = &data->shape.options;
    return o->beta ? (double)data->at[MOERT_OP_BUFFER_beta][g] : o->accumulate ? 1.0 : 0.0;
}

static double finish(const ops_data *data, size_t g, double acc, double bias, double prob,
                     float old) {
    const float *alpha = data->at[MOERT_OP_BUFFER_alpha];
    const moert_op_options *o = &data->shape.options;
    const double b = beta_of(data, g);
    const double scaled = (o->alpha ? (double)alpha[g] : 1.0) * acc;
    /* adding a bias of 0 would turn -0 into 0 */
    const double v = o->bias ? scaled + bias : scaled * prob;
    return b == 0.0 ? v : v + b * (double)old;
}

/* Returns element j of row r of an input; rows are counted in the order of the groups. */
static double element(const ops_data *data, moert_op_buffer which, size_t r, size_t j) {
    const moert_op_rows *rows = which == MOERT_OP_BUFFER_x ? &data->shape.x : &data->shape.y;
    const size_t slot = rows->gathered ? ops_gather(data)[r] : r;
    return (double)data->at[which][slot / rows->divisor * data->shape.needs[which].stride + j];
}

static void expect_row(ops_data *data, size_t g, size_t r) {
    const moert_op_options *o = &data->shape.options;
    const bool forward = data->shape.y.output;
    const moert_op_buffer which = forward ? MOERT_OP_BUFFER_y : MOERT_OP_BUFFER_x;
    const moert_op_need *need = &data->shape.needs[which];
    const bool gathered = forward ? data->shape.y.gathered : data->shape.x.gathered;
    const size_t slot = gathered ? ops_gather(data)[r] : r;
    for (size_t j = 0; j < need->width; j++) {
        float *to = &data->at[which][slot * need->stride + j];
        double acc = 0.0, bias = 0.0, v;
        for (size_t i = 0; i < (forward ? o->k : o->n); i++)
            acc += element(data, forward ? MOERT_OP_BUFFER_x : MOERT_OP_BUFFER_y, r, i) *
                   (double)ops_weight(
                       data)[forward ? (g * o->n + j) * o->k + i : (g * o->n + i) * o->k + j];
        if (o->bias)
            bias = (double)data->at[MOERT_OP_BUFFER_bias][g * o->n + j];
        if (o->bias_scale)
            bias *= (double)data->at[MOERT_OP_BUFFER_bias_scale][r];
        v = finish(data, g, acc, bias, o->prob ? (double)data->at[MOERT_OP_BUFFER_prob][r] : 1.0,
                   *to);
        if (o->row_weight)
            v = (double)round_to(need->type, v) *
                (double)round_to(need->type, (double)data->at[MOERT_OP_BUFFER_row_weight][slot]);
        *to = round_to(need->type, v);
        if (o->amax)
            data->at[MOERT_OP_BUFFER_amax][g] =
                fmaxf(data->at[MOERT_OP_BUFFER_amax][g], (float)fabs(v));
    }
}

static void expect_weight(ops_data *data, size_t g) {
    const moert_op_options *o = &data->shape.options;
    for (size_t j = 0; j < o->n; j++)
        for (size_t i = 0; i < o->k; i++) {
            float *to = &ops_weight(data)[(g * o->n + j) * o->k + i];
            double acc = 0.0;
            for (size_t r = ops_start(data, g); r < ops_ends(data)[g]; r++)
                acc +=
                    element(data, MOERT_OP_BUFFER_y, r, j) * element(data, MOERT_OP_BUFFER_x, r, i);
            /* alpha does not apply to an empty group */
            const bool empty = ops_start(data, g) == ops_ends(data)[g];
            const double b = beta_of(data, g), left = b == 0.0 ? 0.0 : b * (double)*to;
            *to = round_to(o->weight.type, empty ? left : finish(data, g, acc, 0.0, 1.0, *to));
        }
}

void ops_expect_gemm(ops_data *data) {
    for (size_t g = 0; g < data->shape.options.groups; g++) {
        if (data->shape.options.kind == MOERT_OP_GEMM_WGRAD)
            expect_weight(data, g);
        else
            for (size_t r = ops_start(data, g); r < ops_ends(data)[g]; r++)
                expect_row(data, g, r);
    }
}

void ops_check_gemm(const char *backend, const moert_op_options *options, const uint32_t *ends) {
    ops_data got = ops_make(options, ends, true), want = ops_copy(&got);
    ops_expect_gemm(&want);
    ops_execute(backend, &got, 1);
    ops_compare(titled("%s, %s", ops_title(options), backend), &got, &want);
}

void ops_check_fallback(const char *backend, moert_op_options options, const char *text) {
    options.backend = backend;
    ops_check_refused(&options, MOERT_ERROR_UNSUPPORTED, text);
    options.fallback = true;
    assert_string_equal(moert_op_backend_name(ops_open(&options)), "portable");
}

void ops_compare(const char *title, const ops_data *got, const ops_data *want) {
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        assert_same_bits(titled("%s: %s", title, moert_op_buffer_name(i)), got->at[i], want->at[i],
                         got->count[i]);
}
