// run: check=1 all=1san
/* Descriptions and buffers that are refused; creating, executing, recording and destroying an
 * op. */
#include "base/memory.h"
#include "moert/quantize.h"
#include "support/op/run.h"

static const moert_op_kind forward = MOERT_OP_GEMM_FORWARD, dgrad = MOERT_OP_GEMM_DGRAD;
static const moert_op_kind wgrad = MOERT_OP_GEMM_WGRAD, gated = MOERT_OP_GLU, dglu = MOERT_OP_DGLU;
static const moert_status usage = MOERT_ERROR_USAGE, unsupported = MOERT_ERROR_UNSUPPORTED;

static moert_op_options base(moert_op_kind kind) {
    return ops_sized(kind, 2, 4, 64, 32);
}

TEST(test_a_wrong_field_is_named_with_its_value) {
    OPS_REFUSED(base(forward), usage, "size is 8", o.size = 8);
    OPS_REFUSED(base(forward), usage, "kind is 77", o.kind = (moert_op_kind)77);
    OPS_REFUSED(base(forward), usage, "n is 0", o.n = 0);
    OPS_REFUSED(base(forward), usage, "k is 0", o.k = 0);
    OPS_REFUSED(base(forward), unsupported, "rows is 2147483648", o.rows = (size_t)1 << 31);
    OPS_REFUSED(base(forward), unsupported, "groups is 1099511627776", o.groups = (size_t)1 << 40);
    OPS_REFUSED(base(forward), unsupported, "backend is 'quantum'", o.backend = "quantum");
    OPS_REFUSED(base(forward), unsupported, "x.type is e2m1", o.x.type = MOERT_DTYPE_E2M1);
    OPS_REFUSED(base(forward), usage, "y.type is dtype 99", o.y.type = (moert_dtype)99);
    OPS_REFUSED(base(forward), unsupported, "weight.type is bf16",
                o.weight.type = MOERT_DTYPE_BF16);
    OPS_REFUSED(base(wgrad), unsupported, "y.type is f16", o.y.type = MOERT_DTYPE_F16);
    OPS_REFUSED(base(dgrad), unsupported, "weight.type is e2m1", o.weight.type = MOERT_DTYPE_E2M1);
    OPS_REFUSED(base(forward), usage, "x.stride is -32", o.x.stride = -32);
    OPS_REFUSED(base(forward), usage, "y.stride is 63", o.y.stride = 63);
    OPS_REFUSED(base(forward), unsupported, "weight.stride is 33", o.weight.stride = 33);
    OPS_REFUSED(base(forward), unsupported, "x.discrete is true", o.x.discrete = true);
    OPS_REFUSED(base(dgrad), unsupported, "bias is true", o.bias = true);
    OPS_REFUSED(base(forward), usage, "bias_scale is true", o.bias_scale = true);
    OPS_REFUSED(base(wgrad), unsupported, "prob is true", o.prob = true);
    OPS_REFUSED(base(wgrad), unsupported, "amax is true", o.amax = true);
    OPS_REFUSED(base(gated), unsupported, "accumulate is true", o.accumulate = true);
    OPS_REFUSED(base(gated), unsupported, "dbias is true", o.dbias = true);
    OPS_REFUSED(base(dglu), unsupported, "save_c is true", o.save_c = true);
    OPS_REFUSED(base(forward), usage, "permute is 3", o.permute = (moert_op_permute)3);
    OPS_REFUSED(base(gated), unsupported, "permute is y", o.permute = MOERT_OP_PERMUTE_Y);
    OPS_REFUSED(base(dglu), unsupported, "permute is x", o.permute = MOERT_OP_PERMUTE_X);
    OPS_REFUSED(base(forward), usage, "row_weight is true", o.row_weight = true);
    OPS_REFUSED(base(gated), unsupported, "interleave is 16", o.interleave = 16);
    OPS_REFUSED(base(gated), usage, "glu.limit is 0", o.glu.limit = 0.0f);
    OPS_REFUSED(base(gated), usage, "n is 63", o.n = 63);
    OPS_REFUSED(base(gated), unsupported, "d.type is e2m1", o.d.type = MOERT_DTYPE_E2M1);
    OPS_REFUSED(base(dglu), usage, "c.stride is 63", o.c.stride = 63);
}

TEST(test_fields_that_do_not_go_together_are_refused) {
    OPS_REFUSED(base(forward), usage, "accumulate is true", o.beta = o.accumulate = true);
    OPS_REFUSED(base(dgrad), usage, "prob is true; false with beta", o.prob = o.beta = true);
    OPS_REFUSED(base(forward), usage, "prob is true; false with beta or accumulate",
                o.prob = o.accumulate = true);
    OPS_REFUSED(base(forward), usage, "prob is true; false with bias; bias_scale",
                o.prob = o.bias = true);
    OPS_REFUSED(base(forward), usage, "topk is 0", (o.permute = MOERT_OP_PERMUTE_X, o.topk = 0));
    OPS_REFUSED(base(gated), usage, "n is 96; a multiple of 64", (o.n = 96, o.interleave = 32));
    OPS_REFUSED(base(dglu), usage, "2k is 40; a multiple of 16", (o.k = 20, o.interleave = 8));
    OPS_REFUSED(base(forward), unsupported, "bias_type is e4m3",
                (o.bias = true, o.bias_type = MOERT_DTYPE_E4M3));
    OPS_REFUSED(base(gated), usage, "interleave is 8",
                (o.glu.interleaved = true, o.interleave = 8));
}

/* ---- buffers ---- */

static moert_op_buffers make_buffers(void) {
    const uint32_t ends[] = {1, 4};
    float *zeros = test_alloc(2 * 64 * 32 * sizeof *zeros);
    moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    buffers.ends = upload(ends, sizeof ends);
    buffers.x = upload(zeros, 4 * 32 * sizeof(float));
    buffers.weight = upload(zeros, 2 * 64 * 32 * sizeof(float));
    buffers.y = upload(zeros, 4 * 64 * sizeof(float));
    return buffers;
}

TEST(test_buffers_must_be_those_of_the_description) {
    const moert_op_options o = base(forward);
    const moert_op_buffers good = make_buffers();
    moert_buffer *small = test_buffer(4), *weight = good.weight;
    const struct {
        moert_op_buffer which;
        moert_buffer *buffer;
        const char *text;
    } wrong[] = {{MOERT_OP_BUFFER_ends, NULL, "ends is NULL"},
                 {MOERT_OP_BUFFER_y, NULL, "y is NULL"},
                 {MOERT_OP_BUFFER_x, small, "x has 4 bytes; 4 lines of 32"},
                 {MOERT_OP_BUFFER_weight, small, "weight has 4 bytes"},
                 {MOERT_OP_BUFFER_alpha, good.ends, "alpha is given"},
                 {MOERT_OP_BUFFER_gather, good.ends, "gather is given"}};
    moert_op *op = ops_open(&o);
    ASSERT_OK(moert_op_execute(op, &good));
    for (size_t i = 0; i < MOERT_COUNT(wrong); i++) {
        moert_op_buffers buffers = good;
        *moert_op_buffer_at(&buffers, wrong[i].which) = wrong[i].buffer;
        ASSERT_FAILS(moert_op_execute(op, &buffers), usage, wrong[i].text);
    }
    moert_op_buffers buffers = good;
    buffers.size = 3;
    ASSERT_FAILS(moert_op_execute(op, &buffers), usage, "moert_op_buffers.size is 3");
    buffers = good;
    buffers.weights = &weight;
    ASSERT_FAILS(moert_op_execute(op, &buffers), usage, "weights is given");
}

TEST(test_too_many_discrete_weights_are_refused) {
    OPS_REFUSED(base(forward), unsupported, "groups is 65537; at most 65536",
                (o.weight.discrete = true, o.groups = 65537));
}

TEST(test_every_discrete_weight_must_be_there) {
    moert_op_options o = base(forward);
    moert_op_buffers buffers = make_buffers();
    moert_buffer *weights[] = {buffers.weight, NULL};
    o.weight.discrete = true;
    moert_op *op = ops_open(&o);
    buffers.weight = NULL;
    ASSERT_FAILS(moert_op_execute(op, &buffers), usage, "weights is NULL");
    buffers.weights = weights;
    ASSERT_FAILS(moert_op_execute(op, &buffers), usage, "weights[1] is NULL");
    weights[1] = test_buffer(4);
    ASSERT_FAILS(moert_op_execute(op, &buffers), usage, "weights[1] has 4 bytes");
    weights[1] = weights[0];
    ASSERT_OK(moert_op_execute(op, &buffers));
}

TEST(test_the_reference_finds_ends_that_decrease) {
    const uint32_t ends[] = {3, 2};
    moert_op_options o = base(forward);
    moert_op_buffers buffers = make_buffers();
    o.backend = "reference";
    ASSERT_OK(moert_buffer_write(buffers.ends, 0, ends, sizeof ends));
    ASSERT_FAILS(moert_op_once(test_device, &o, &buffers), usage, "group 1");
}

/* ---- quantized operands ---- */

TEST(test_the_type_of_a_quantized_operand_is_ignored) {
    moert_op_options o = base(forward);
    o.x.how = o.weight.how = (moert_quantizer)MOERT_QUANTIZER_INIT;
    o.x.type = o.weight.type = (moert_dtype)77;
    for (int discrete = 0; discrete < 2; discrete++) {
        o.weight.discrete = discrete;
        moert_op *op = ops_open(&o);
        ASSERT_OK(moert_op_compile(op));
        assert_int_equal(moert_op_buffer_bytes(op, "x"), 4 * 32);
    }
}

TEST(test_a_quantized_op_without_memory_for_its_gemm_is_refused) {
    moert_op_options o = base(forward);
    o.x.how = o.weight.how = (moert_quantizer)MOERT_QUANTIZER_INIT;
    o.alpha = true; /* with alpha, the GEMM's result needs a separate buffer */
    o.groups = o.k = 1;
    o.rows = o.n = 1 << 24;
    for (size_t i = 0; i < 2; i++) {
        o.backend = i == 0 ? "reference" : "portable";
        ops_check_refused(&o, MOERT_ERROR_MEMORY, "bytes");
    }
}

/* ---- backends, moert_op_once() and recordings ---- */

static const char *backend_of(const char *requested, const char *variable, bool fallback) {
    moert_op_options o = base(forward);
    set_variable("MOERT_BACKEND", variable);
    o.backend = requested;
    o.fallback = fallback;
    const char *name = moert_op_backend_name(ops_open(&o));
    set_variable("MOERT_BACKEND", NULL);
    return name;
}

TEST(test_backends_are_chosen_by_name_or_automatically) {
    assert_string_equal(backend_of(NULL, NULL, false), "portable");
    assert_string_equal(backend_of("auto", "reference", false), "reference");
    assert_string_equal(backend_of("reference", "portable", false), "reference");
    assert_string_equal(backend_of("quantum", NULL, true), "portable");

    /* tensor cores do not multiply float32: the nvidia backend is refused, whether an option or a
     * variable names it */
    const char *const refused = "backend is 'nvidia', which takes ";
    const moert_op_options o = base(forward);
    set_variable("MOERT_BACKEND", "nvidia");
    ops_check_refused(&o, unsupported, refused);
    set_variable("MOERT_BACKEND", NULL);
    ops_check_fallback("nvidia", o, refused);
    assert_string_equal(backend_of(NULL, "nvidia", true), "portable");
}

TEST(test_one_call_does_what_an_op_does) {
    const moert_op_options o = base(forward);
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

TEST(test_a_replay_computes_on_the_present_contents_of_its_buffers) {
    moert_op_options o = base(forward);
    moert_op_buffers buffers = make_buffers();
    float x[4 * 32], y[4 * 64], weight[2 * 64 * 32];
    moert_op_recording *recording;
    o.accumulate = true; /* with accumulate, the op is a GEMM and a separate epilogue */
    moert_op *op = ops_open(&o);
    const moert_status status = moert_op_record(op, &buffers, &recording);
    if (status == unsupported)
        SKIP("the device's driver records no commands");
    ASSERT_OK(status);
    for (size_t i = 0; i < 2 * 64 * 32; i++)
        x[i % (4 * 32)] = weight[i] = 0.5f;
    ASSERT_OK(moert_buffer_write(buffers.x, 0, x, sizeof x));
    ASSERT_OK(moert_buffer_write(buffers.weight, 0, weight, sizeof weight));
    moert_op_buffers others = buffers; /* buffers of an execute before the replay */
    others.y = buffers.weight;
    others.weight = others.x = make_buffers().weight;
    ASSERT_OK(moert_op_execute(op, &others));
    ASSERT_OK(moert_buffer_write(buffers.weight, 0, weight, sizeof weight));
    for (size_t i = 0; i < 3; i++)
        ASSERT_OK(moert_op_replay(recording));
    ASSERT_OK(moert_op_execute(op, &buffers));
    download_into(buffers.y, y, sizeof y);
    for (size_t i = 0; i < 4 * 64; i++)
        assert_true(y[i] == 4 * 8.0f);
    moert_op_recording_destroy(recording);
    moert_op_recording_destroy(NULL);
}

TEST(test_the_reference_backend_cannot_be_recorded) {
    moert_op_options o = base(forward);
    moert_op_buffers buffers = make_buffers();
    moert_op_recording *recording;
    o.backend = "reference";
    moert_op *op = ops_open(&o);
    ASSERT_FAILS(moert_op_record(op, &buffers, &recording), unsupported, "reference");
}

TEST(test_empty_problems_need_no_buffers) {
    moert_op_options o = base(forward);
    const moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    o.groups = 0;
    o.rows = 0;
    for (moert_op_kind kind = 0; kind < MOERT_OP_KINDS; kind++) {
        o.kind = kind;
        moert_op *op = ops_open(&o);
        ASSERT_OK(moert_op_compile(op));
        ASSERT_OK(moert_op_execute(op, &buffers));
    }
    assert_null(moert_op_kind_name(MOERT_OP_KINDS));
}

/* ---- workspace ---- */

/* An op whose operands are bf16, with a quantized weight, needs a workspace of several parts. */
static moert_op_options with_workspace(void) {
    moert_op_options o = base(forward);
    o.weight.how = (moert_quantizer)MOERT_QUANTIZER_INIT;
    return o;
}

TEST(test_a_check_tells_the_backend_and_the_workspace) {
    moert_op_options o = with_workspace();
    const char *backend = NULL;
    size_t bytes = 0;
    ASSERT_OK(moert_op_check(test_device, &o, &backend, &bytes));
    moert_op *op = ops_open(&o);
    assert_string_equal(backend, moert_op_backend_name(op));
    assert_true(bytes >= moert_op_workspace_bytes(op) ||
                strcmp(backend, "reference") == 0); /* each part is rounded up */
    o.n = 0;
    ASSERT_FAILS(moert_op_check(test_device, &o, &backend, &bytes), usage, "n is 0");
    ASSERT_FAILS(moert_op_check(NULL, &o, NULL, NULL), usage, "device is NULL");
    o = with_workspace();
    ASSERT_OK(moert_op_check(test_device, &o, NULL, NULL));
}

TEST(test_an_op_in_the_callers_workspace_has_the_same_bits) {
    moert_op_options o = with_workspace();
    const uint32_t ends[] = {3, 8};
    size_t bytes;
    o.groups = 2;
    o.rows = 8;
    o.n = 32;
    o.k = 64;
    o.prob = true; /* is applied after the GEMM, whose sums are in the workspace */
    float *x = random_floats(o.rows * o.k, 1.0f, 1),
          *w = random_floats(o.groups * o.n * o.k, 1.0f, 2);
    moert_quantize q = MOERT_QUANTIZE_INIT;
    q.groups.rows = o.groups * o.n;
    q.columns = o.k;
    q.x = upload_floats(w, o.groups * o.n * o.k);
    q.q = test_buffer(o.groups * o.n * o.k);
    q.scale = test_buffer(o.groups * o.n * o.k / 32);
    ASSERT_OK(moert_quantize_run(&q));
    moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    buffers.ends = upload(ends, sizeof ends);
    buffers.x = upload_floats(x, o.rows * o.k);
    buffers.weight = q.q;
    buffers.weight_scale = q.scale;
    buffers.prob = upload_floats(random_floats(o.rows, 1.0f, 4), o.rows);
    buffers.y = unset_floats(o.rows * o.n);
    ASSERT_OK(moert_op_once(test_device, &o, &buffers));
    const float *wanted = download_floats(buffers.y, o.rows * o.n);
    o.caller_workspace = true;
    ASSERT_OK(moert_op_check(test_device, &o, NULL, &bytes));
    moert_op *op = ops_open(&o);
    assert_int_equal(moert_op_buffer_bytes(op, "workspace"), bytes);
    assert_true(bytes > 0);
    for (size_t i = 0; i < 3;
         i++) { /* in two workspaces, each of which was used otherwise before */
        buffers.workspace =
            i != 1 ? upload(random_floats(bytes / 4, 1e30f, 3), bytes) : test_buffer(bytes);
        buffers.y = unset_floats(o.rows * o.n);
        ASSERT_OK(moert_op_execute(op, &buffers));
        ASSERT_OK(moert_op_execute(op, &buffers));
        assert_same_bits_in("y", buffers.y, wanted, o.rows * o.n);
    }
    buffers.workspace = test_buffer(bytes - 1);
    ASSERT_FAILS(moert_op_execute(op, &buffers), usage, "buffer workspace has");
    buffers.workspace = NULL;
    ASSERT_FAILS(moert_op_execute(op, &buffers), usage, "buffer workspace is NULL");
    moert_op_recording *recording;
    ASSERT_FAILS(moert_op_record(op, &buffers, &recording), unsupported,
                 "caller_workspace is true");
}

TEST(test_missing_arguments_are_named) {
    const moert_op_options options = base(forward);
    const moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    moert_op *op = NULL;
    ASSERT_FAILS(moert_op_create(NULL, &options, &op), usage, "device is NULL");
    ASSERT_FAILS(moert_op_create(test_device, NULL, &op), usage, "moert_op_options is NULL");
    ASSERT_FAILS(moert_op_create(test_device, &options, NULL), usage, "op is NULL");
    ASSERT_FAILS(moert_op_execute(NULL, &buffers), usage, "op is NULL");
    ASSERT_OK(moert_op_create(test_device, &options, &op));
    ASSERT_FAILS(moert_op_execute(op, NULL), usage, "moert_op_buffers is NULL");
    moert_op_destroy(op);
    assert_int_equal(moert_op_workspace_bytes(NULL), 0);
}

TESTS(open_test_device, close_test_device)
