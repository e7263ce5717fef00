// run: np=1 sanitize=1
/* Descriptions and buffers that are refused, and the life of an op. */
#include "base/memory.h"
#include "support/op/run.h"

static moert_op_options base(moert_op_kind kind) {
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    o.kind = kind;
    o.groups = 2;
    o.rows = 4;
    o.n = 64;
    o.k = 32;
    return o;
}

static void refused(const moert_op_options *options, moert_status status, const char *field,
                    const char *value) {
    moert_op *op = NULL;
    ASSERT_FAILS(moert_op_create(test_device, options, &op), status, field);
    ASSERT_FAILS(moert_op_create(test_device, options, &op), status, value);
    assert_null(op);
}

/* A description with one wrong field is refused by that field's name and value. */
#define REFUSED(kind, status, member, value, field, text)                                          \
    do {                                                                                           \
        moert_op_options wrong_ = base(kind);                                                      \
        wrong_.member = (value);                                                                   \
        refused(&wrong_, (status), (field), (text));                                               \
    } while (0)

TEST(test_a_wrong_field_is_named_with_its_value) {
    const moert_op_kind forward = MOERT_OP_GEMM_FORWARD, dgrad = MOERT_OP_GEMM_DGRAD;
    const moert_op_kind wgrad = MOERT_OP_GEMM_WGRAD, gated = MOERT_OP_GLU, dglu = MOERT_OP_DGLU;
    const moert_status usage = MOERT_ERROR_USAGE, unsupported = MOERT_ERROR_UNSUPPORTED;
    REFUSED(forward, usage, size, 8, "size", "8");
    REFUSED(forward, usage, kind, (moert_op_kind)77, "kind", "77");
    REFUSED(forward, usage, n, 0, "n is", "0");
    REFUSED(forward, usage, k, 0, "k is", "0");
    REFUSED(forward, unsupported, rows, (size_t)1 << 31, "rows", "2147483648");
    REFUSED(forward, unsupported, groups, (size_t)1 << 40, "groups", "1099511627776");
    REFUSED(forward, unsupported, backend, "quantum", "backend", "quantum");
    REFUSED(forward, unsupported, x.type, MOERT_NUMBER_E2M1, "x.type", "e2m1");
    REFUSED(forward, usage, y.type, (moert_number)99, "y.type", "99");
    REFUSED(forward, unsupported, weight.type, MOERT_NUMBER_BF16, "weight.type", "bf16");
    REFUSED(wgrad, unsupported, y.type, MOERT_NUMBER_F16, "y.type", "f16");
    REFUSED(dgrad, unsupported, weight.type, MOERT_NUMBER_E2M1, "weight.type", "e2m1");
    REFUSED(forward, usage, x.stride, -32, "x.stride", "-32");
    REFUSED(forward, usage, y.stride, 63, "y.stride", "63");
    REFUSED(forward, unsupported, weight.stride, 33, "weight.stride", "33");
    REFUSED(forward, unsupported, x.discrete, true, "x.discrete", "true");
    REFUSED(dgrad, unsupported, bias, true, "bias", "true");
    REFUSED(forward, usage, bias_scale, true, "bias_scale", "true");
    REFUSED(wgrad, unsupported, prob, true, "prob", "true");
    REFUSED(wgrad, unsupported, amax, true, "amax", "true");
    REFUSED(gated, unsupported, accumulate, true, "accumulate", "true");
    REFUSED(gated, unsupported, dbias, true, "dbias", "true");
    REFUSED(dglu, unsupported, save_c, true, "save_c", "true");
    REFUSED(forward, usage, permute, (moert_op_permute)3, "permute", "3");
    REFUSED(gated, unsupported, permute, MOERT_OP_PERMUTE_Y, "permute", "y");
    REFUSED(dglu, unsupported, permute, MOERT_OP_PERMUTE_X, "permute", "x");
    REFUSED(forward, usage, row_weight, true, "row_weight", "true");
    REFUSED(gated, unsupported, interleave, 16, "interleave", "16");
    REFUSED(gated, usage, glu.limit, 0.0f, "glu.limit", "0");
    REFUSED(gated, usage, n, 63, "n is", "63");
    REFUSED(gated, unsupported, d.type, MOERT_NUMBER_E2M1, "d.type", "e2m1");
    REFUSED(dglu, usage, c.stride, 63, "c.stride", "63");
}

TEST(test_fields_that_do_not_go_together_are_refused) {
    moert_op_options o = base(MOERT_OP_GEMM_FORWARD);
    o.beta = o.accumulate = true;
    refused(&o, MOERT_ERROR_USAGE, "accumulate", "true");
    o = base(MOERT_OP_GEMM_DGRAD);
    o.prob = o.beta = true;
    refused(&o, MOERT_ERROR_USAGE, "prob", "beta");
    o = base(MOERT_OP_GEMM_FORWARD);
    o.prob = o.accumulate = true;
    refused(&o, MOERT_ERROR_USAGE, "prob", "accumulate");
    o = base(MOERT_OP_GEMM_FORWARD);
    o.prob = o.bias = true;
    refused(&o, MOERT_ERROR_USAGE, "prob", "bias_scale");
    o = base(MOERT_OP_GEMM_FORWARD);
    o.permute = MOERT_OP_PERMUTE_X;
    o.topk = 0;
    refused(&o, MOERT_ERROR_USAGE, "topk", "0");
    o = base(MOERT_OP_GLU);
    o.n = 96; /* not a multiple of 64 */
    o.interleave = 32;
    refused(&o, MOERT_ERROR_USAGE, "n is 96", "a multiple of 64");
    o = base(MOERT_OP_DGLU);
    o.k = 20;
    o.interleave = 8;
    refused(&o, MOERT_ERROR_USAGE, "2k is 40", "a multiple of 16");
    o = base(MOERT_OP_GEMM_FORWARD);
    o.bias = true;
    o.bias_type = MOERT_NUMBER_E4M3;
    refused(&o, MOERT_ERROR_UNSUPPORTED, "bias_type", "e4m3");
    o = base(MOERT_OP_GLU);
    o.glu.interleaved = true;
    o.interleave = 8;
    refused(&o, MOERT_ERROR_USAGE, "interleave", "8");
}

/* ---- buffers ---- */

typedef struct fixture {
    moert_buffer *ends, *x, *weight, *y, *small, *scratch;
    moert_op_buffers buffers;
} fixture;

static fixture make_fixture(void) {
    const uint32_t ends[] = {1, 4};
    float *zeros = test_alloc(2 * 64 * 32 * sizeof *zeros);
    fixture f = {.ends = upload(ends, sizeof ends),
                 .x = upload(zeros, 4 * 32 * sizeof(float)),
                 .weight = upload(zeros, 2 * 64 * 32 * sizeof(float)),
                 .y = upload(zeros, 4 * 64 * sizeof(float)),
                 .scratch = upload(zeros, 2 * 64 * 32 * sizeof(float)),
                 .buffers = MOERT_OP_BUFFERS_INIT};
    f.small = test_buffer(4);
    f.buffers.ends = f.ends;
    f.buffers.x = f.x;
    f.buffers.weight = f.weight;
    f.buffers.y = f.y;
    return f;
}

TEST(test_buffers_must_be_those_of_the_description) {
    const moert_op_options o = base(MOERT_OP_GEMM_FORWARD);
    fixture f = make_fixture();
    const struct {
        moert_op_buffer which;
        moert_buffer *buffer;
        const char *text;
    } wrong[] = {{MOERT_OP_BUFFER_ends, NULL, "ends is NULL"},
                 {MOERT_OP_BUFFER_y, NULL, "y is NULL"},
                 {MOERT_OP_BUFFER_x, f.small, "x has 4 bytes; 4 lines of 32"},
                 {MOERT_OP_BUFFER_weight, f.small, "weight has 4 bytes"},
                 {MOERT_OP_BUFFER_alpha, f.ends, "alpha is given"},
                 {MOERT_OP_BUFFER_gather, f.ends, "gather is given"}};
    moert_op *op;
    ASSERT_OK(moert_op_create(test_device, &o, &op));
    ASSERT_OK(moert_op_execute(op, &f.buffers));
    for (size_t i = 0; i < MOERT_COUNT(wrong); i++) {
        moert_op_buffers buffers = f.buffers;
        *moert_op_buffer_at(&buffers, wrong[i].which) = wrong[i].buffer;
        ASSERT_FAILS(moert_op_execute(op, &buffers), MOERT_ERROR_USAGE, wrong[i].text);
    }
    moert_op_buffers buffers = f.buffers;
    buffers.size = 3;
    ASSERT_FAILS(moert_op_execute(op, &buffers), MOERT_ERROR_USAGE, "size of the buffers is 3");
    buffers = f.buffers;
    buffers.weights = &f.weight;
    ASSERT_FAILS(moert_op_execute(op, &buffers), MOERT_ERROR_USAGE, "weights is given");
    moert_op_destroy(op);
}

TEST(test_discrete_weights_are_not_too_many) {
    moert_op_options o = base(MOERT_OP_GEMM_FORWARD);
    moert_op *op = NULL;
    o.weight.discrete = true;
    o.groups = 65537;
    ASSERT_FAILS(moert_op_create(test_device, &o, &op), MOERT_ERROR_UNSUPPORTED,
                 "groups is 65537; at most 65536");
    assert_null(op);
}

TEST(test_every_discrete_weight_must_be_there) {
    moert_op_options o = base(MOERT_OP_GEMM_FORWARD);
    fixture f = make_fixture();
    moert_buffer *weights[] = {f.weight, NULL};
    moert_op *op;
    o.weight.discrete = true;
    ASSERT_OK(moert_op_create(test_device, &o, &op));
    f.buffers.weight = NULL;
    ASSERT_FAILS(moert_op_execute(op, &f.buffers), MOERT_ERROR_USAGE, "weights is NULL");
    f.buffers.weights = weights;
    ASSERT_FAILS(moert_op_execute(op, &f.buffers), MOERT_ERROR_USAGE, "weights[1] is NULL");
    weights[1] = f.small;
    ASSERT_FAILS(moert_op_execute(op, &f.buffers), MOERT_ERROR_USAGE, "weights[1] has 4 bytes");
    weights[1] = f.weight;
    ASSERT_OK(moert_op_execute(op, &f.buffers));
    moert_op_destroy(op);
}

TEST(test_the_reference_finds_ends_that_decrease) {
    const uint32_t ends[] = {3, 2};
    moert_op_options o = base(MOERT_OP_GEMM_FORWARD);
    fixture f = make_fixture();
    o.backend = "reference";
    ASSERT_OK(moert_buffer_write(f.ends, 0, ends, sizeof ends));
    ASSERT_FAILS(moert_op_once(test_device, &o, &f.buffers), MOERT_ERROR_USAGE, "group 1");
}

/* ---- quantised operands ---- */

TEST(test_the_type_of_a_quantised_operand_is_ignored) {
    moert_op_options o = base(MOERT_OP_GEMM_FORWARD);
    moert_op *op;
    o.x.how = o.weight.how = (moert_quantizer)MOERT_QUANTIZER_INIT;
    o.x.type = o.weight.type = (moert_number)77;
    for (int discrete = 0; discrete < 2; discrete++) {
        o.weight.discrete = discrete;
        ASSERT_OK(moert_op_create(test_device, &o, &op));
        ASSERT_OK(moert_op_compile(op));
        assert_int_equal(moert_op_buffer_bytes(op, "x"), 4 * 32);
        moert_op_destroy(op);
    }
}

TEST(test_a_quantised_op_without_memory_for_its_product_is_refused) {
    moert_op_options o = base(MOERT_OP_GEMM_FORWARD);
    moert_op *op = NULL;
    o.x.how = o.weight.how = (moert_quantizer)MOERT_QUANTIZER_INIT;
    o.alpha = true; /* the product has a place of its own */
    o.groups = o.k = 1;
    o.rows = o.n = 1 << 24;
    for (size_t i = 0; i < 2; i++) {
        o.backend = i == 0 ? "reference" : "portable";
        ASSERT_FAILS(moert_op_create(test_device, &o, &op), MOERT_ERROR_MEMORY, "bytes");
        assert_null(op);
    }
}

/* ---- backends and the short form ---- */

static const char *backend_of(const char *asked, const char *variable, bool fallback) {
    moert_op_options o = base(MOERT_OP_GEMM_FORWARD);
    moert_op *op;
    set_variable("MOERT_BACKEND", variable);
    o.backend = asked;
    o.fallback = fallback;
    ASSERT_OK(moert_op_create(test_device, &o, &op));
    const char *name = moert_op_backend_name(op);
    moert_op_destroy(op);
    set_variable("MOERT_BACKEND", NULL);
    return name;
}

TEST(test_backends_are_taken_by_name_or_automatically) {
    assert_string_equal(backend_of(NULL, NULL, false), "portable");
    assert_string_equal(backend_of("auto", "reference", false), "reference");
    assert_string_equal(backend_of("reference", "portable", false), "reference");
    assert_string_equal(backend_of("quantum", NULL, true), "portable");

    /* tensor cores do not multiply float32, whoever names them and wherever */
    const char *const refused = "backend is 'nvidia', which takes ";
    moert_op_options o = base(MOERT_OP_GEMM_FORWARD);
    moert_op *op;
    set_variable("MOERT_BACKEND", "nvidia");
    ASSERT_FAILS(moert_op_create(test_device, &o, &op), MOERT_ERROR_UNSUPPORTED, refused);
    set_variable("MOERT_BACKEND", NULL);
    o.backend = "nvidia";
    ASSERT_FAILS(moert_op_create(test_device, &o, &op), MOERT_ERROR_UNSUPPORTED, refused);
    assert_string_equal(backend_of("nvidia", NULL, true), "portable");
    assert_string_equal(backend_of(NULL, "nvidia", true), "portable");
}

TEST(test_one_call_does_what_an_op_does) {
    const moert_op_options o = base(MOERT_OP_GEMM_FORWARD);
    const uint32_t ends[] = {1, 4};
    ops_data want = ops_make(&o, ends, false), start = ops_copy(&want);
    moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    ops_execute("portable", &want, 1);
    buffers.ends = upload(ends, sizeof ends);
    buffers.x = upload(start.at[MOERT_OP_BUFFER_x], start.count[MOERT_OP_BUFFER_x] * sizeof(float));
    buffers.weight =
        upload(ops_weight(&start), start.count[MOERT_OP_BUFFER_weight] * sizeof(float));
    buffers.y = unset_floats(start.count[MOERT_OP_BUFFER_y]);
    ASSERT_OK(moert_op_once(test_device, &o, &buffers));
    download_into(buffers.y, start.at[MOERT_OP_BUFFER_y],
                  start.count[MOERT_OP_BUFFER_y] * sizeof(float));
    ops_compare("one call", &start, &want);
    moert_op_destroy(NULL);
}

TEST(test_a_recording_computes_again_on_what_its_buffers_hold) {
    moert_op_options o = base(MOERT_OP_GEMM_FORWARD);
    fixture f = make_fixture();
    float x[4 * 32], y[4 * 64], weight[2 * 64 * 32];
    moert_op *op;
    moert_op_recording *recording;
    o.accumulate = true; /* a product and an epilogue */
    ASSERT_OK(moert_op_create(test_device, &o, &op));
    const moert_status status = moert_op_record(op, &f.buffers, &recording);
    if (status == MOERT_ERROR_UNSUPPORTED) {
        moert_op_destroy(op);
        skip();
    }
    ASSERT_OK(status);
    for (size_t i = 0; i < 2 * 64 * 32; i++)
        x[i % (4 * 32)] = weight[i] = 0.5f;
    ASSERT_OK(moert_buffer_write(f.x, 0, x, sizeof x));
    ASSERT_OK(moert_buffer_write(f.weight, 0, weight, sizeof weight));
    moert_op_buffers others = f.buffers; /* arguments of launches in between */
    others.y = f.weight;
    others.weight = others.x = f.scratch;
    ASSERT_OK(moert_op_execute(op, &others));
    ASSERT_OK(moert_buffer_write(f.weight, 0, weight, sizeof weight));
    for (size_t i = 0; i < 3; i++)
        ASSERT_OK(moert_op_replay(recording));
    ASSERT_OK(moert_op_execute(op, &f.buffers));
    download_into(f.y, y, sizeof y);
    for (size_t i = 0; i < 4 * 64; i++)
        assert_true(y[i] == 4 * 8.0f);
    moert_op_recording_destroy(recording);
    moert_op_recording_destroy(NULL);
    moert_op_destroy(op);
}

TEST(test_the_reference_backend_cannot_be_recorded) {
    moert_op_options o = base(MOERT_OP_GEMM_FORWARD);
    fixture f = make_fixture();
    moert_op *op;
    moert_op_recording *recording;
    o.backend = "reference";
    ASSERT_OK(moert_op_create(test_device, &o, &op));
    ASSERT_FAILS(moert_op_record(op, &f.buffers, &recording), MOERT_ERROR_UNSUPPORTED, "reference");
    moert_op_destroy(op);
}

TEST(test_empty_problems_need_no_buffers) {
    moert_op_options o = base(MOERT_OP_GEMM_FORWARD);
    const moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    o.groups = 0;
    o.rows = 0;
    for (moert_op_kind kind = 0; kind < MOERT_OP_KINDS; kind++) {
        moert_op *op;
        o.kind = kind;
        ASSERT_OK(moert_op_create(test_device, &o, &op));
        ASSERT_OK(moert_op_compile(op));
        ASSERT_OK(moert_op_execute(op, &buffers));
        moert_op_destroy(op);
    }
    assert_null(moert_op_kind_name(MOERT_OP_KINDS));
}

TESTS(open_test_device, close_test_device)
