/* The problems of gemm.h, their host arrays, and runs on the device. */
#include "support/gemm/gemm.h"

#include "base/dtype.h"
#include "base/memory.h"
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

way reference_of(way by) {
    by.name = by.backend = "reference";
    by.prepacked = false;
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
    a.h_count = p->gate != NULL ? used * p->n / 2 : 0;
    a.h = filled(p->rows * p->n / 2, integers, 6);
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

/* Prepacks the weight of a forward or dgrad. */
static moert_prepacked *pack(const moert_gemm *gemm, const way *by) {
    const moert_prepacked_shape shape = {.groups = gemm->shared_weight ? 1 : gemm->groups.count,
                                         .n = gemm->n,
                                         .k = gemm->k,
                                         .use = moert_prepacked_use_of(gemm),
                                         .type = gemm->type};
    moert_prepacked *prepacked = NULL;
    ASSERT_OK(moert_tuning_force(by->panels != NULL ? by->panels : by->choices));
    ASSERT_OK(moert_prepacked_create(test_device, &shape, &prepacked));
    ASSERT_OK(moert_tuning_force(by->choices));
    ASSERT_OK(moert_prepacked_fill(prepacked, gemm->weight));
    return prepacked;
}

/* The GLU of a problem on the device. Floats between the probs are NaN. */
static moert_glu upload_glu(const problem *p, const way *by, const arrays *a) {
    const size_t stride = p->gate->prob_stride, probs = p->rows * stride;
    float *prob = test_alloc(probs * sizeof *prob);
    for (size_t i = 0; i < probs; i++)
        prob[i] = i % stride == 0 ? (float)random_once(moert_rng_normal, 1, 5, i) : NAN;
    return (moert_glu){.form = p->gate->form,
                       .prob = stride > 0 ? upload_floats(prob, probs) : NULL,
                       .prob_stride = stride > 1 ? stride : 0,
                       .type = by->h,
                       .h = upload_as(a->h, p->rows * p->n / 2, by->h)};
}

void run_gemm(const problem *p, operation op, const way *by, arrays *a) {
    set_variable("MOERT_BACKEND", by->backend);
    set_variable("MOERT_BF16", by->bf16);
    ASSERT_OK(moert_tuning_force(by->choices));
    const moert_dtype x_type = op == FORWARD || op == WGRAD ? by->type : by->result;
    const moert_dtype y_type = op != FORWARD ? by->type : by->result;
    moert_buffer *bias = upload_floats(a->bias, a->bias_count), *scratch = NULL;
    moert_gemm gemm = upload_gemm(p, a, x_type, y_type);
    gemm.kind = (moert_gemm_kind)op;
    gemm.type = by->type;
    gemm.result = op <= DGRAD ? by->result : MOERT_DTYPE_F32;
    gemm.accumulate = p->accumulate && op != FORWARD;
    gemm.bias = p->bias || op == BIAS_GRAD ? bias : NULL;
    gemm.split = by->split ? &scratch : NULL;
    if (p->gate != NULL)
        gemm.glu = upload_glu(p, by, a);
    gemm.gated = p->gate != NULL && !by->separate ? MOERT_GATED : MOERT_UNGATED;
    gemm.drop_v = by->drop_v;
    moert_prepacked *prepacked = by->prepacked && op <= DGRAD ? pack(&gemm, by) : NULL;
    gemm.prepacked = prepacked;
    moert_device_reserve_units(test_device, by->spared);
    lines scattered = {0};
    if (by->runs > 0)
        gemm.scatter = scatter(p->rows, results_of(p, op, a).stride, by->runs, &scattered);
    for (size_t g = 0; g < (by->parts ? p->groups : 1); g += 2) {
        gemm.part = by->parts ? part_of(p, g) : (moert_part){0};
        ASSERT_OK(moert_gemm_run(&gemm));
    }
    ASSERT_OK(moert_device_use_queue(test_device, true));
    ASSERT_OK(moert_device_run_shared(test_device));
    ASSERT_OK(moert_device_use_queue(test_device, false));
    moert_device_reserve_units(test_device, 0);
    if (p->gate != NULL && by->separate) {
        gemm.glu.rows = start_of(p, p->groups);
        gemm.glu.width = p->n / 2;
        gemm.glu.v = gemm.y;
        ASSERT_OK(moert_glu_forward(&gemm.glu));
    }
    download_as(gemm.x, a->x, a->x_count, x_type);
    download_as(gemm.y, a->y, a->y_count, y_type);
    download_into(gemm.weight, a->weight, a->weight_count * sizeof(float));
    download_into(bias, a->bias, a->bias_count * sizeof(float));
    if (p->gate != NULL)
        download_as(gemm.glu.h, a->h, p->rows * p->n / 2, by->h);
    if (by->runs > 0)
        gather(&scattered, results_of(p, op, a).data);
    moert_prepacked_destroy(prepacked);
    ASSERT_OK(moert_tuning_force(NULL));
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
