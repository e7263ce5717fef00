/* The problems of gemm.h, their host arrays, and runs on the device. */
#include "support/gemm/gemm.h"
#include "base/memory.h"

#include "base/dtype.h"
#include "base/rng.h"
#include "gemm/backend.h"
#include "io/durable.h"
#include "support/files.h"
#include "support/gemm/tuning.h"

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

const way *reference_of(const way *by) {
    while (!is_reference(by))
        by--;
    return by;
}

bool sums_in_tiles(const way *by) {
    set_variable("MOERT_BF16", by->bf16);
    const bool tiled = moert_dot_of(test_device, by->type) == MOERT_DOT_TILE;
    set_variable("MOERT_BF16", NULL);
    return tiled;
}

static float *filled(size_t count, bool integers, uint64_t stream) {
    float *data = test_alloc(count * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = integers ? floorf(9.0f * (float)random_once(moert_rng_uniform, 1, stream, i)) - 4
                           : (float)random_once(moert_rng_normal, 1, stream, i) *
                                 (float)(1u << i % 11) * 0x1p-5f;
    return data;
}

/* Sets elements that a GEMM must neither read nor write to NaN: columns between the rows, and rows
 * past the last end. */
static void guard(float *data, size_t rows, size_t used_rows, size_t stride, size_t first,
                  size_t width) {
    for (size_t m = 0; m < rows; m++)
        for (size_t i = 0; i < stride; i++)
            if (m >= used_rows || i < first || i >= first + width)
                data[m * stride + i] = NAN;
}

arrays make_arrays(const problem *p, bool integers) {
    const size_t used = start_of(p, p->groups);
    arrays a = {.ldx = p->k + p->pad_x, .ldy = p->y_column + p->n + p->pad_y};
    a.x_count = p->rows * a.ldx;
    a.y_count = p->rows * a.ldy;
    a.bias_count = p->groups * p->n; /* a weight shared by all groups uses the first group's part */
    a.weight_count = a.bias_count * p->k;
    a.x = filled(a.x_count, integers, 1);
    a.weight = filled(a.weight_count, integers, 2);
    a.bias = filled(a.bias_count, integers, 3);
    a.y = filled(a.y_count, integers, 4);
    guard(a.x, p->rows, used, a.ldx, 0, p->k);
    guard(a.y, p->rows, used, a.ldy, p->y_column, p->n);
    return a;
}

results results_of(const problem *p, operation op, const arrays *a) {
    const results all[] = {[FORWARD] = {a->y, a->y_count, a->ldy},
                           [DGRAD] = {a->x, a->x_count, a->ldx},
                           [WGRAD] = {a->weight, a->weight_count, p->k},
                           [BIAS_GRAD] = {a->bias, a->bias_count, p->n}};
    return all[op];
}

moert_gemm upload_gemm(const problem *p, const arrays *a, moert_dtype x_type, moert_dtype y_type) {
    return (moert_gemm){
        .groups = {upload(p->ends, p->groups * sizeof *p->ends), p->groups, p->rows},
        .n = p->n,
        .k = p->k,
        .shared_weight = p->shared,
        .x = upload_as(a->x, a->x_count, x_type),
        .weight = upload(a->weight, a->weight_count * sizeof(float)),
        .y = upload_as(a->y, a->y_count, y_type),
        .ldx = p->pad_x > 0 ? a->ldx : 0,
        .ldy = p->y_column + p->pad_y > 0 ? a->ldy : 0,
        .y_column = p->y_column,
    };
}

/* Prepacks the weight of a GEMM. */
static moert_prepacked *pack(const moert_gemm *gemm, moert_prepacked_use use) {
    const moert_prepacked_shape shape = {
        .groups = gemm->shared_weight ? 1 : gemm->groups.count,
        .n = gemm->n,
        .k = gemm->k,
        .use = use,
        .type = gemm->type,
    };
    moert_prepacked *prepacked = NULL;
    ASSERT_OK(moert_prepacked_create(test_device, &shape, &prepacked));
    ASSERT_OK(moert_prepacked_fill(prepacked, gemm->weight));
    return prepacked;
}

/* Returns the part with groups `first` and first + 1, or with only `first` if it is the last
 * group. */
static moert_part part_of(const problem *p, size_t first) {
    const size_t end = first + 2 < p->groups ? first + 2 : p->groups;
    return (moert_part){first, end, start_of(p, first), p->ends[end - 1]};
}

/* A buffer that receives the scattered rows of a bf16 result, in reverse order. */
typedef struct lines {
    moert_buffer *target, *addresses;
    size_t rows, width;
} lines;

static moert_scatter scatter(size_t rows, size_t width, size_t runs, lines *l) {
    uint64_t *address = test_alloc((rows + 1) * sizeof *address), first;
    *l = (lines){unset_bf16((rows + 1) * width), NULL, rows, width};
    ASSERT_OK(moert_buffer_address(l->target, &first));
    for (size_t m = 0; m < rows; m++)
        address[m] = is_lost(m) ? 0 : first + (rows - 1 - m) * width * sizeof(uint16_t);
    l->addresses = upload(address, (rows + 1) * sizeof *address);
    return (moert_scatter){l->addresses, runs};
}

/* Copies the scattered rows back into a result. Rows without an address stay as they were. */
static void gather(const lines *l, float *result) {
    const size_t count = (l->rows + 1) * l->width;
    uint16_t *bf16 = download(l->target, count * sizeof *bf16), unset = bf16[count - 1];
    for (size_t m = 0; m < l->rows; m++)
        for (size_t i = 0; i < l->width; i++) {
            const uint16_t value = bf16[(l->rows - 1 - m) * l->width + i];
            if (value == unset)
                continue;
            assert_false(is_lost(m));
            result[m * l->width + i] = moert_dtype_decode(MOERT_DTYPE_BF16, value);
        }
}

void run_gemm(const problem *p, operation op, const way *by, arrays *a) {
    set_variable("MOERT_BACKEND", by->backend);
    set_variable("MOERT_BF16", by->bf16);
    const moert_dtype x_type = op == FORWARD || op == WGRAD ? by->type : by->result;
    const moert_dtype y_type = op != FORWARD ? by->type : by->result;
    moert_buffer *bias = upload(a->bias, a->bias_count * sizeof(float));
    moert_gemm gemm = upload_gemm(p, a, x_type, y_type);
    gemm.type = by->type;
    gemm.result = op <= DGRAD ? by->result : MOERT_DTYPE_F32;
    gemm.accumulate = p->accumulate && op != FORWARD;
    gemm.bias = p->bias || op == BIAS_GRAD ? bias : NULL;
    moert_buffer *scratch = NULL;
    gemm.split = by->split ? &scratch : NULL;
    moert_prepacked *prepacked =
        by->prepacked && op <= DGRAD
            ? pack(&gemm, op == FORWARD ? MOERT_PREPACKED_FORWARD : MOERT_PREPACKED_DGRAD)
            : NULL;
    gemm.prepacked = prepacked;
    moert_device_reserve_units(test_device, by->spared);
    lines scattered = {0};
    if (by->runs > 0)
        gemm.scatter = scatter(p->rows, results_of(p, op, a).stride, by->runs, &scattered);
    for (size_t g = 0; g < (by->parts ? p->groups : 1); g += 2) {
        gemm.part = by->parts ? part_of(p, g) : (moert_part){0};
        ASSERT_OK(run_as((moert_gemm_kind)op, &gemm));
    }
    ASSERT_OK(moert_device_use_queue(test_device, true));
    ASSERT_OK(moert_device_run_shared(test_device));
    ASSERT_OK(moert_device_use_queue(test_device, false));
    moert_device_reserve_units(test_device, 0);
    download_as(gemm.x, a->x, a->x_count, x_type);
    download_as(gemm.y, a->y, a->y_count, y_type);
    download_into(gemm.weight, a->weight, a->weight_count * sizeof(float));
    download_into(bias, a->bias, a->bias_count * sizeof(float));
    if (by->runs > 0)
        gather(&scattered, results_of(p, op, a).data);
    moert_prepacked_destroy(prepacked);
    set_variable("MOERT_BF16", NULL);
}

arrays run_new(const problem *p, operation op, const way *by, bool integers) {
    arrays a = make_arrays(p, integers);
    run_gemm(p, op, by, &a);
    return a;
}

arrays run_alone(const problem *whole, operation op, const way *by, size_t first, size_t count) {
    problem p = *whole;
    p.rows = p.ends[0] = (uint32_t)count;
    p.groups = 1;
    arrays alone = make_arrays(&p, false), inputs = make_arrays(whole, false);
    memcpy(alone.x, inputs.x + first * inputs.ldx, count * inputs.ldx * sizeof(float));
    memcpy(alone.y, inputs.y + first * inputs.ldy, count * inputs.ldy * sizeof(float));
    run_gemm(&p, op, by, &alone);
    return alone;
}

const gated_run gated_forms[GATED_FORMS] = {
    {MOERT_GLU_SWIGLU, 0, .fused = true},
    {{true, INFINITY, 1.0f, 0.0f, 0}, 1, .fused = true},
    {MOERT_GLU_GPT_OSS, 3, .fused = true},
    {{false, 2.0f, 1.702f, 1.0f, 0}, 1, .fused = true},
};

gated run_gated(const problem *p, const gated_run *how, const way *by, bool integers) {
    const size_t probs = p->rows * how->prob_stride, used = p->ends[p->groups - 1];
    gated g = {make_arrays(p, integers), NULL, p->rows * p->n / 2, used * p->n / 2};
    g.h = test_alloc(g.h_count * sizeof *g.h);
    for (size_t i = 0; i < g.h_count; i++)
        g.h[i] = NAN;
    float *prob = test_alloc(probs * sizeof *prob);
    for (size_t i = 0; i < probs; i++)
        prob[i] = i % how->prob_stride == 0 ? (float)random_once(moert_rng_normal, 1, 5, i) : NAN;
    set_variable("MOERT_BACKEND", by->backend);
    set_variable("MOERT_BF16", by->bf16);
    moert_buffer *weights = upload(prob, probs * sizeof *prob);
    moert_buffer *bias = upload(g.a.bias, g.a.bias_count * sizeof(float));
    moert_gemm run = upload_gemm(p, &g.a, by->type, how->v);
    run.type = by->type;
    run.result = how->v;
    run.bias = p->bias ? bias : NULL;
    run.gated = how->fused;
    run.glu = (moert_glu){.form = how->form,
                          .prob = how->prob_stride > 0 ? weights : NULL,
                          .prob_stride = how->prob_stride > 1 ? how->prob_stride : 0,
                          .type = how->type,
                          .h = upload_as(g.h, g.h_count, how->type)};
    run.drop_v = how->drop_v;
    moert_prepacked *prepacked = by->prepacked ? pack(&run, moert_prepacked_use_of(&run)) : NULL;
    run.prepacked = prepacked;
    for (size_t i = 0; i < (by->parts ? p->groups : 1) && how->fused; i += 2) {
        run.part = by->parts ? part_of(p, i) : (moert_part){0};
        ASSERT_OK(moert_gemm_run(&run));
    }
    if (!how->fused) {
        run.glu.rows = used;
        run.glu.width = p->n / 2;
        run.glu.v = run.y;
        ASSERT_OK(moert_gemm_run(&run));
        ASSERT_OK(moert_glu_forward(&run.glu));
    }
    download_as(run.y, g.a.y, g.a.y_count, how->v);
    download_as(run.glu.h, g.h, g.h_count, how->type);
    moert_prepacked_destroy(prepacked);
    set_variable("MOERT_BF16", NULL);
    return g;
}

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

void digest_by(const char *threads, char digest[32]) {
    char *path = realpath("/proc/self/exe", NULL);
    /* no check of leaks: where libraries leak, it ends the process before its output is written */
    FILE *pipe = popen(titled("ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 POCL_MAX_PTHREAD_COUNT=%s "
                              "'%s' digest",
                              threads, path),
                       "r");
    free(path);
    assert_non_null(pipe);
    assert_non_null(fgets(digest, 32, pipe));
    assert_int_equal(pclose(pipe), 0);
}

int run_with_digest(const char *file, int count, char **words, uint64_t (*digest)(void)) {
    if (count != 2 || strcmp(words[1], "digest") != 0)
        return run_file(file, open_test_device, close_test_device);
    if (open_test_device(NULL) != 0)
        return 1;
    printf("%016llx\n", (unsigned long long)digest());
    return close_test_device(NULL);
}

void compare_arrays(const char *title, const arrays *got, const arrays *want) {
    const float *a[] = {got->x, got->weight, got->bias, got->y};
    const float *b[] = {want->x, want->weight, want->bias, want->y};
    const size_t counts[] = {got->x_count, got->weight_count, got->bias_count, got->y_count};
    for (size_t i = 0; i < 4; i++)
        assert_same_bits(titled("%s, array %zu", title, i), a[i], b[i], counts[i]);
}

void check_run(const problem *p, operation op, const way *by, bool integers, const arrays *want) {
    const arrays got = run_new(p, op, by, integers);
    compare_arrays(
        titled("[%zu,%zu,%zu], %s, %s", p->rows, p->n, p->k, operation_names[op], by->name), &got,
        want);
}

void check_company(const problem *whole, const way *by, const size_t (*ranges)[2], size_t count) {
    for (operation op = FORWARD; op <= DGRAD; op++) {
        const arrays all = run_new(whole, op, by, false);
        const results among = results_of(whole, op, &all);
        for (size_t i = 0; i < count; i++) {
            const arrays alone = run_alone(whole, op, by, ranges[i][0], ranges[i][1]);
            const results rows = results_of(whole, op, &alone);
            assert_same_bits(operation_names[op], rows.data,
                             among.data + ranges[i][0] * among.stride, rows.count);
        }
    }
}
