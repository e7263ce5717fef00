/* The problems of gemm.h, their buffers, and runs on the device. */
#include "support/gemm/gemm.h"

#include <xxhash.h>

#include "base/dtype.h"
#include "device/buffer.h"
#include "device/queue.h"
#include "device/share.h"
#include "gemm/backend.h"
#include "io/durable.h"
#include "support/files.h"

const char *const operation_names[] = {"forward", "dgrad", "wgrad", "bias_grad"};

const problem gemm_problems[] = {
    {.n = 16, .k = 16, .rows = 0, .groups = 2, .ends = {0, 0}},
    {.n = 33, .k = 40, .rows = 5, .groups = 3, .ends = {0, 0, 0}},
    {.n = 1, .k = 1, .rows = 1, .groups = 1, .ends = {1}, .bias = true},
    {.n = 17, .k = 15, .rows = 1, .groups = 4, .ends = {0, 0, 1, 1}, .bias = true},
    {.n = 32, .k = 32, .rows = 24, .groups = 3, .ends = {8, 16, 24}},
    {.n = 31, .k = 33, .rows = 23, .groups = 4, .ends = {0, 7, 7, 20}, .bias = true},
    {.n = 40, .k = 40, .rows = 30, .groups = 3, .ends = {0, 30, 30}, .pad_x = 3, .pad_y = 5},
    {.n = 64, .k = 96, .rows = 50, .groups = 5, .ends = {9, 9, 25, 26, 43}, .accumulate = true},
    {.n = 96, .k = 31, .rows = 21, .groups = 2, .ends = {0, 17}, .accumulate = true, .pad_y = 1},
    {.n = 15, .k = 17, .rows = 40, .groups = 3, .ends = {3, 20, 39}, .shared = true, .bias = true},
    {.n = 17, .k = 64, .rows = 9, .groups = 2, .ends = {4, 8}, .y_column = 5, .pad_y = 2},
    {.n = 1, .k = 40, .rows = 19, .groups = 2, .ends = {10, 18}, .y_column = 1, .shared = true},
    {.n = 1025, .k = 16, .rows = 10, .groups = 2, .ends = {1, 9}, .accumulate = true},
    {.n = 33, .k = 1025, .rows = 18, .groups = 2, .ends = {1, 18}, .bias = true, .pad_x = 7},
    {.n = 40, .k = 2100, .rows = 9, .groups = 1, .ends = {9}, .accumulate = true},
    {.n = 20, .k = 33, .rows = 1200, .groups = 3, .ends = {1, 1100, 1199}, .bias = true},
    {.n = 33, .k = 31, .rows = 26, .groups = 4, .ends = {1, 8, 16, 25}, .bias = true},
    {.n = 65, .k = 63, .rows = 17, .groups = 3, .ends = {0, 17, 17}, .accumulate = true},
    {.n = 600, .k = 130, .rows = 11, .groups = 1, .ends = {11}, .shared = true},
    {.n = 132, .k = 260, .rows = 150, .groups = 3, .ends = {70, 71, 149}, .accumulate = true},
};
const size_t gemm_problem_count = MOERT_COUNT(gemm_problems);

const way gemm_ways[] = {
    [REFERENCE_F32] = {"reference", "reference", .type = MOERT_DTYPE_F32},
    [PORTABLE_F32] = {"portable", "portable", .type = MOERT_DTYPE_F32},
    [PREPACKED_F32] = {"prepacked", "portable", .type = MOERT_DTYPE_F32, .prepacked = true},
    [REFERENCE_BF16] = {"bf16 reference", "reference", .type = MOERT_DTYPE_BF16},
    [PORTABLE_BF16] = {"bf16 portable", "portable", .type = MOERT_DTYPE_BF16},
    [PREPACKED_BF16] = {"bf16 prepacked", "portable", .type = MOERT_DTYPE_BF16, .prepacked = true},
    [REFERENCE_WIDENED] = {"bf16 one by one", "reference", .type = MOERT_DTYPE_BF16,
                           .bf16 = "widened"},
    {"bf16 widened", "portable", .type = MOERT_DTYPE_BF16, .bf16 = "widened"},
    {"bf16 widened, prepacked", "portable", .type = MOERT_DTYPE_BF16, .prepacked = true,
     .bf16 = "widened"},
    [REFERENCE_TILES] = {"bf16 tiles, reference", "reference", .type = MOERT_DTYPE_BF16,
                         .bf16 = "tiles"},
    {"bf16 tiles", "portable", .type = MOERT_DTYPE_BF16, .bf16 = "tiles"},
    {"bf16 tiles, prepacked", "portable", .type = MOERT_DTYPE_BF16, .prepacked = true,
     .bf16 = "tiles"},
};
const size_t gemm_way_count = MOERT_COUNT(gemm_ways);

bool is_reference(const way *by) {
    return strcmp(by->backend, "reference") == 0;
}

way reference_of(way by) {
    by.name = by.backend = "reference";
    by.prepacked = false;
    return by;
}

/* ---- buffers ---- */

static const moert_op_buffer X = MOERT_OP_BUFFER_x, WEIGHT = MOERT_OP_BUFFER_weight,
                             BIAS = MOERT_OP_BUFFER_bias, H = MOERT_OP_BUFFER_d;

void round_data(ops_bytes *data, moert_op_buffer which, moert_dtype type) {
    ops_bytes narrow = *data;
    narrow.shape.needs[which].type = type;
    narrow.bytes[which] = ops_bytes_count(data, which) * moert_dtype_bits(type) / 8;
    narrow.at[which] = test_alloc(narrow.bytes[which]);
    for (size_t i = 0; i < ops_bytes_count(data, which); i++)
        ops_bytes_put(&narrow, which, i, ops_bytes_get(data, which, i));
    *data = narrow;
}

/* y, or the v of a GLU */
static moert_op_buffer y_of(const ops_bytes *data) {
    return moert_op_has_glu(&data->shape) ? MOERT_OP_BUFFER_c : MOERT_OP_BUFFER_y;
}

ops_bytes make_data(const problem *p, operation op, const way *by, ops_values values) {
    const bool glu = op == FORWARD && p->gate != NULL, ones = op == BIAS_GRAD;
    moert_op_options o = ops_sized(glu    ? MOERT_OP_GLU
                                   : ones ? MOERT_OP_GEMM_WGRAD
                                          : (moert_op_kind)op,
                                   p->groups, p->rows, p->n, ones ? 1 : p->k);
    o.x.stride = (ptrdiff_t)(o.k + (ones ? 0 : p->pad_x));
    o.y.stride = glu ? 0 : (ptrdiff_t)(p->y_column + p->n + p->pad_y);
    o.bias = p->bias && op == FORWARD;
    o.accumulate = p->accumulate && op != FORWARD;
    o.save_c = glu;
    o.prob = glu && p->gate->prob_stride > 0;
    if (glu)
        o.glu = p->gate->form;
    ops_bytes data = ops_bytes_make(&o, p->ends, values);
    const size_t weight = data.bytes[WEIGHT] / p->groups, bias = data.bytes[BIAS] / p->groups;
    for (size_t g = 1; p->shared && op <= DGRAD && g < p->groups; g++) {
        memcpy(data.at[WEIGHT] + g * weight, data.at[WEIGHT], weight);
        memcpy(data.at[BIAS] + g * bias, data.at[BIAS], bias);
    }
    for (size_t r = 0; ones && r < p->rows; r++)
        ops_floats(&data, X)[r] = 1.0f;
    round_data(&data, X, op == DGRAD ? by->result : by->type);
    round_data(&data, y_of(&data), op == FORWARD ? by->result : by->type);
    round_data(&data, H, by->h);
    return data;
}

results results_of(const ops_bytes *data) {
    const moert_op_buffer which = data->shape.options.kind == MOERT_OP_GLU
                                      ? y_of(data)
                                      : ops_result_buffer(data->shape.options.kind);
    return (results){which, ops_floats(data, which), ops_bytes_count(data, which),
                     data->shape.needs[which].stride};
}

/* Returns a copy of a buffer's bytes, preceded by `before` bytes of NaN. */
static unsigned char *shifted(const ops_bytes *data, moert_op_buffer which, size_t before) {
    unsigned char *all = test_alloc(before + data->bytes[which]);
    memset(all, 0xFF, before);
    memcpy(all + before, data->at[which], data->bytes[which]);
    return all;
}

static moert_buffer *upload_part(const ops_bytes *data, moert_op_buffer which) {
    return upload(data->at[which], data->bytes[which]);
}

static size_t bytes_before_y(const problem *p, const ops_bytes *data) {
    return p->y_column * moert_dtype_bits(data->shape.needs[y_of(data)].type) / 8;
}

moert_gemm upload_gemm(const problem *p, const ops_bytes *data) {
    const moert_op_options *o = &data->shape.options;
    const size_t ldy = p->y_column + p->n + p->pad_y, before = bytes_before_y(p, data);
    const size_t one = o->n * o->k * sizeof(float);
    unsigned char *weight = shifted(data, WEIGHT, 0);
    /* all groups share a weight, so only the first group's weight is read */
    if (p->shared && o->kind != MOERT_OP_GEMM_WGRAD)
        memset(weight + one, 0xFF, data->bytes[WEIGHT] - one);
    return (moert_gemm){
        .groups = {upload(p->ends, p->groups * sizeof *p->ends), p->groups, p->rows,
                   .shared = p->shared},
        .n = o->n,
        .k = o->k,
        .x = {.buffer = upload_part(data, X), .stride = p->pad_x > 0 ? (size_t)o->x.stride : 0},
        .weight = {.buffer = upload(weight, data->bytes[WEIGHT])},
        .y = {.buffer = upload(shifted(data, y_of(data), before), before + data->bytes[y_of(data)]),
              .stride = ldy > p->n ? ldy : 0,
              .first = p->y_column},
    };
}

/* ---- runs ---- */

/* Sets *groups to the groups `first` and first + 1, or to `first` alone if it is the last group. */
static void take_part(const problem *p, size_t first, moert_row_groups *groups) {
    groups->first = first;
    groups->end = first + 2 < p->groups ? first + 2 : p->groups;
    groups->first_row = ops_group_start(p->ends, first);
    groups->end_row = p->ends[groups->end - 1];
}

/* Returns addresses for the rows of a bf16 result, which are the rows of `target` in reverse
 * order. */
static moert_buffer *scatter(size_t rows, size_t width, moert_buffer *target) {
    uint64_t *address = test_alloc((rows + 1) * sizeof *address), first;
    ASSERT_OK(moert_buffer_address(target, &first));
    for (size_t m = 0; m < rows; m++)
        address[m] = is_lost(m) ? 0 : first + (rows - 1 - m) * width * sizeof(uint16_t);
    return upload(address, (rows + 1) * sizeof *address);
}

/* Copies the scattered rows back into a bf16 result. Rows without an address stay as they were. */
static void gather(const moert_buffer *target, size_t rows, size_t width, uint16_t *result) {
    const size_t count = (rows + 1) * width;
    uint16_t *bf16 = download(target, count * sizeof *bf16), unset = bf16[count - 1];
    for (size_t m = 0; m < rows; m++)
        for (size_t i = 0; i < width; i++) {
            const uint16_t value = bf16[(rows - 1 - m) * width + i];
            if (value == unset)
                continue;
            assert_false(is_lost(m));
            result[m * width + i] = value;
        }
}

/* Prepacks the weight of a forward or dgrad. */
static moert_panels *pack(const moert_gemm *gemm, const way *by) {
    const moert_panels_shape shape = {.groups = gemm->groups.shared ? 1 : gemm->groups.count,
                                      .n = gemm->n,
                                      .k = gemm->k,
                                      .use = moert_panels_use_of(gemm),
                                      .type = moert_gemm_type(gemm)};
    moert_panels *panels = NULL;
    ASSERT_OK(moert_panels_create_with(test_device, &shape,
                                       by->panels != NULL ? by->panels : by->choices, &panels));
    ASSERT_OK(moert_panels_fill(panels, gemm->weight.buffer));
    return panels;
}

/* The GLU of a problem on the device. Floats between the probs are NaN. */
static moert_glu upload_glu(const problem *p, const way *by, const ops_bytes *data) {
    const size_t stride = p->gate->prob_stride, probs = p->rows * stride;
    float *prob = test_alloc(probs * sizeof *prob);
    for (size_t i = 0; i < probs; i++)
        prob[i] = i % stride == 0 ? ops_floats(data, MOERT_OP_BUFFER_prob)[i / stride] : NAN;
    return (moert_glu){.form = p->gate->form,
                       .prob = stride > 0 ? upload_floats(prob, probs) : NULL,
                       .prob_stride = stride > 1 ? stride : 0,
                       .type = by->h,
                       .h = upload_part(data, H)};
}

/* Launches the GEMM in one or more calls, and waits for the calls on the second queue. */
static void launch(const problem *p, const way *by, moert_gemm *gemm) {
    const moert_gemm_more *const given = gemm->more;
    moert_gemm_more more = given != NULL ? *given : (moert_gemm_more){.row_multiple = 0};
    gemm->more = &more;
    moert_device_reserve_units(test_device, by->spared);
    for (size_t g = 0; g < (by->parts ? p->groups : 1); g += 2) {
        if (by->parts)
            take_part(p, g, &gemm->groups);
        ASSERT_OK(moert_gemm_run(gemm));
    }
    /* spared units must not read what the caller may have freed */
    memset(&more, 0xFF, sizeof more);
    gemm->more = given;
    ASSERT_OK(moert_device_use_queue(test_device, true));
    ASSERT_OK(moert_device_run_shared(test_device));
    ASSERT_OK(moert_device_use_queue(test_device, false));
    moert_device_reserve_units(test_device, 0);
}

void run_gemm(const problem *p, operation op, const way *by, ops_bytes *data) {
    moert_buffer *bias = p->bias ? upload_part(data, BIAS) : NULL, *scratch = NULL;
    const results result = results_of(data);
    moert_buffer *target = by->runs > 0 ? unset_bf16((p->rows + 1) * result.stride) : NULL;
    set_variable("MOERT_BACKEND", by->backend);
    set_variable("MOERT_BF16", by->bf16);
    const unsigned char *h = shifted(data, H, 0);
    const size_t one_weight = data->bytes[WEIGHT] / p->groups;
    moert_gemm gemm = upload_gemm(p, data);
    moert_gemm_more more = {.split = by->split ? &scratch : NULL, .choices = by->choices};
    moert_gemm_set(&gemm, (moert_gemm_kind)op, by->type);
    if (op <= DGRAD)
        (op == FORWARD ? &gemm.y : &gemm.x)->type = by->result;
    gemm.epilogue.addend = moert_accumulate(data->shape.options.accumulate);
    gemm.bias = op == BIAS_GRAD ? gemm.weight.buffer : bias;
    gemm.more = &more;
    if (p->gate != NULL)
        gemm.glu = upload_glu(p, by, data);
    gemm.glu.gated = p->gate != NULL && !by->separate ? MOERT_GATED : MOERT_UNGATED;
    gemm.glu.drop_v = by->drop_v;
    moert_panels *panels = by->prepacked && op <= DGRAD ? pack(&gemm, by) : NULL;
    gemm.panels = panels;
    gemm.groups.runs = by->runs;
    if (by->runs > 0)
        more.places = scatter(p->rows, result.stride, target);
    launch(p, by, &gemm);
    if (p->gate != NULL && by->separate) {
        gemm.glu.rows = ops_group_start(p->ends, p->groups);
        gemm.glu.width = p->n / 2;
        gemm.glu.v = gemm.y.buffer;
        ASSERT_OK(moert_glu_forward(&gemm.glu));
    }
    const size_t before = bytes_before_y(p, data), used = ops_group_start(p->ends, p->groups);
    const unsigned char *y = download(gemm.y.buffer, before + data->bytes[y_of(data)]);
    for (size_t i = 0; i < before; i++)
        assert_int_equal(y[i], 0xFF);
    memcpy(data->at[y_of(data)], y + before, data->bytes[y_of(data)]);
    download_into(gemm.x.buffer, data->at[X], data->bytes[X]);
    if (op <= DGRAD && p->shared)
        ASSERT_OK(moert_buffer_read(gemm.weight.buffer, 0, data->at[WEIGHT], one_weight));
    else
        download_into(gemm.weight.buffer, data->at[WEIGHT], data->bytes[WEIGHT]);
    if (bias != NULL)
        download_into(bias, data->at[BIAS], data->bytes[BIAS]);
    if (p->gate != NULL) {
        const size_t end = p->rows > 0 ? used * (data->bytes[H] / p->rows) : 0;
        download_into(gemm.glu.h, data->at[H], data->bytes[H]);
        memcpy(data->at[H] + end, h + end, data->bytes[H] - end);
    }
    if (by->runs > 0)
        gather(target, p->rows, result.stride, (uint16_t *)(void *)result.data);
    moert_panels_destroy(panels);
    set_variable("MOERT_BF16", NULL);
}

ops_bytes run_new(const problem *p, operation op, const way *by) {
    ops_bytes data = make_data(p, op, by, OPS_WIDE);
    run_gemm(p, op, by, &data);
    return data;
}

ops_bytes run_alone(const problem *whole, operation op, const way *by, const ops_bytes *data,
                    size_t first, size_t count) {
    problem p = *whole;
    p.rows = p.ends[0] = (uint32_t)count;
    p.groups = 1;
    ops_bytes alone = make_data(&p, op, by, OPS_WIDE);
    ops_copy_rows(&(ops_pair){&alone, data, 0, 0, count, first});
    run_gemm(&p, op, by, &alone);
    return alone;
}

/* ---- checks ---- */

static const char *title_of(const problem *p, operation op, const way *by) {
    return titled("[%zu,%zu,%zu], %s, %s", p->rows, p->n, p->k, operation_names[op], by->name);
}

void check_gemm(const problem *p, operation op, const way *by, ops_bytes *data, double bound) {
    const ops_bytes before = ops_bytes_copy(data);
    ops_bytes operands = ops_bytes_copy(data);
    if (op <= DGRAD)
        round_data(&operands, WEIGHT, by->type);
    const ops_exact want = ops_exact_of(&operands, 0.0);
    /* the bound is relative to the sum of the magnitudes of an element's addends */
    for (size_t i = 0; i < MOERT_OP_BUFFERS; i++)
        for (size_t e = 0; i != MOERT_OP_BUFFER_ends && e < ops_bytes_count(&operands, i); e++)
            ops_bytes_put(&operands, i, e, fabs(ops_bytes_get(&operands, i, e)));
    const ops_exact size = ops_exact_of(&operands, 0.0);
    for (size_t i = 0; bound > 0.0 && i < want.lines * want.width; i++)
        want.slack[i] = bound * size.result[i];
    run_gemm(p, op, by, data);
    data->shape.options.save_c &= !by->drop_v; /* the content of c is unspecified */
    ops_check_results(title_of(p, op, by), &before, data, &want);
}

void check_run(const problem *p, operation op, const way *by, const ops_bytes *want) {
    const ops_bytes got = run_new(p, op, by);
    ops_assert_same(title_of(p, op, by), &got, want, true);
}

void check_parts(const problem *p, operation op, const way *by) {
    const ops_bytes whole = run_new(p, op, by);
    way parts = *by;
    parts.parts = true;
    check_run(p, op, &parts, &whole);
}

void check_company(const problem *whole, const way *by, const size_t (*ranges)[2], size_t count) {
    for (operation op = FORWARD; op <= DGRAD; op++) {
        const ops_bytes start = make_data(whole, op, by, OPS_WIDE), all = run_new(whole, op, by);
        for (size_t i = 0; i < count; i++) {
            ops_bytes alone = run_alone(whole, op, by, &start, ranges[i][0], ranges[i][1]);
            ops_assert_same_rows(operation_names[op],
                                 &(ops_pair){&alone, &all, 0, 0, ranges[i][1], ranges[i][0]});
        }
    }
}

/* ---- threads ---- */

uint64_t hash_data(const ops_bytes *data, uint64_t hash) {
    for (size_t i = 0; i < MOERT_OP_BUFFERS; i++)
        hash = XXH3_64bits_withSeed(data->at[i], data->bytes[i], hash);
    return hash;
}

void check_threads(void) {
    char *path = realpath("/proc/self/exe", NULL), digest[3][32];
    for (int threads = 1; threads <= 3; threads++) {
        /* no check for leaks: a leak in a library would end the process before it writes its
         * output */
        FILE *pipe = popen(titled("ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 "
                                  "POCL_MAX_PTHREAD_COUNT=%d '%s' digest",
                                  threads, path),
                           "r");
        assert_non_null(pipe);
        assert_non_null(fgets(digest[threads - 1], sizeof digest[0], pipe));
        assert_int_equal(pclose(pipe), 0);
        assert_string_equal(digest[threads - 1], digest[0]);
    }
    free(path);
}

int run_with_digest(const char *file, int count, char **words, uint64_t (*digest)(void)) {
    if (count != 2 || strcmp(words[1], "digest") != 0)
        return run_file(file, open_test_device, close_test_device);
    if (open_test_device(NULL) != 0)
        return 1;
    printf("%016llx\n", (unsigned long long)digest());
    return close_test_device(NULL);
}

const gate gates[GATES] = {{MOERT_GLU_SWIGLU, 0},
                           {{true, INFINITY, 1.0f, 0.0f, 0}, 1},
                           {MOERT_GLU_GPT_OSS, 3},
                           {{false, 2.0f, 1.702f, 1.0f, 0}, 1}};

/* ---- tuning ---- */

const moert_choices standard_choices = {4, 1024, 512, 8, 2, 4096};

int forget_tuning(void **state) {
    static const char *const unset[] = {"MOERT_TUNE", "MOERT_BACKEND", "MOERT_KERNEL_DIR"};
    (void)state;
    ASSERT_OK(moert_remove_tree(in_directory("rows")));
    set_variable("MOERT_TUNE_FILE", in_directory("rows"));
    for (size_t i = 0; i < MOERT_COUNT(unset); i++)
        set_variable(unset[i], NULL);
    moert_tuning_reload();
    return 0;
}
