/* The problems of bench_gemm: their data, their calls, and their check against float64. */
#include "bench/gemm/gemm.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "bench/common/pattern.h"
#include "device/buffer.h"

enum { ALIGNMENT = 4096, STREAM_X = 1, STREAM_Y, STREAM_WEIGHT };

const char *bench_op_name(moert_op_kind op) {
    static const char *const names[] = {[MOERT_OP_GEMM_FORWARD] = "fprop",
                                        [MOERT_OP_GEMM_DGRAD] = "dgrad",
                                        [MOERT_OP_GEMM_WGRAD] = "wgrad",
                                        [MOERT_OP_GLU] = "glu"};
    return names[op];
}

static moert_status fill(uint64_t seed, uint64_t stream, size_t count, float **values) {
    const size_t bytes = moert_round_up(count * sizeof(float), ALIGNMENT);
    *values = aligned_alloc(ALIGNMENT, bytes);
    if (*values == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "no memory for %zu bytes", bytes);
    for (size_t i = 0; i < count; i += 4) {
        const moert_random random = moert_rng_block(seed, stream, i / 4);
        for (size_t j = 0; j < 4 && i + j < count; j++)
            (*values)[i + j] = (float)((int32_t)random.word[j] >> 8) * 0x1p-23f;
    }
    return MOERT_OK;
}

/* Uploads values as float32 or rounded to bf16. */
static moert_status upload(moert_device *device, moert_dtype type, const float *values,
                           size_t count, moert_buffer **buffer) {
    if (type == MOERT_DTYPE_F32)
        return bench_upload(device, values, count * sizeof(float), buffer);
    uint16_t *rounded_values;
    MOERT_TRY(MOERT_NEW_ARRAY(&rounded_values, count));
    for (size_t i = 0; i < count; i++)
        rounded_values[i] = (uint16_t)moert_dtype_encode(type, values[i]);
    const moert_status status =
        bench_upload(device, rounded_values, count * sizeof *rounded_values, buffer);
    free(rounded_values);
    return status;
}

moert_status bench_problem_create(moert_device *device, const bench_shape *shape, moert_dtype type,
                                  bool ragged, uint64_t seed, bench_problem **problem) {
    moert_status status;
    bench_problem *p;
    MOERT_TRY(MOERT_NEW(&p));
    *p = (bench_problem){
        .shape = *shape, .type = type, .ragged = ragged, .rows = shape->experts * shape->rows};
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&p->ends, shape->experts));
    bench_divide_rows(p->rows, shape->experts, ragged, 1, seed, p->ends);
    const size_t xs = p->rows * shape->k, ys = p->rows * shape->n;
    const size_t weights = shape->experts * shape->n * shape->k;
    MOERT_TRY_OR(fail, fill(seed, STREAM_X, xs, &p->x));
    MOERT_TRY_OR(fail, fill(seed, STREAM_Y, ys, &p->y));
    MOERT_TRY_OR(fail, fill(seed, STREAM_WEIGHT, weights, &p->weight));
    MOERT_TRY_OR(fail, bench_upload(device, p->ends, shape->experts * 4, &p->ends_buffer));
    MOERT_TRY_OR(fail, upload(device, type, p->x, xs, &p->x_buffer));
    MOERT_TRY_OR(fail, upload(device, type, p->y, ys, &p->y_buffer));
    MOERT_TRY_OR(fail, upload(device, MOERT_DTYPE_F32, p->weight, weights, &p->weight_buffer));
    *problem = p;
    return MOERT_OK;
fail:
    bench_problem_destroy(p);
    return status;
}

void bench_problem_destroy(bench_problem *p) {
    if (p == NULL)
        return;
    MOERT_DESTROY(p->ends_buffer, p->x_buffer, p->y_buffer, p->weight_buffer);
    MOERT_FREE(p->ends, p->x, p->y, p->weight, p);
}

double bench_problem_flops(const bench_problem *p) {
    return 2.0 * (double)p->rows * (double)p->shape.n * (double)p->shape.k;
}

static moert_op_options describe(const bench_problem *p, moert_op_kind op) {
    return (moert_op_options){
        .kind = op, .groups = p->shape.experts, .rows = p->rows, .n = p->shape.n, .k = p->shape.k};
}

size_t bench_result_count(const bench_problem *p, moert_op_kind op) {
    const moert_op_options o = describe(p, op);
    size_t count = 1;
    for (const char *shape = moert_op_shape(&o, moert_op_roles_of(o.kind).result); *shape != '\0';
         shape++)
        count *= moert_op_size(&o, *shape);
    return count;
}

moert_status bench_run_create(const bench_problem *p, moert_op_kind op, bool prepacked,
                              bench_run *run) {
    moert_device *device = moert_buffer_device(p->x_buffer);
    const size_t bytes = bench_result_count(p, op) * sizeof(float);
    moert_status status;
    *run = (bench_run){.problem = p, .op = op};
    MOERT_TRY_OR(fail, bench_upload(device, NULL, bytes, &run->result));
    if (op == MOERT_OP_GLU)
        MOERT_TRY_OR(
            fail, moert_buffer_create(device, p->rows * p->shape.n * sizeof(float), &run->between));
    run->gemm = (moert_gemm){
        .groups = {p->ends_buffer, p->shape.experts, p->rows},
        .n = p->shape.n,
        .k = p->shape.k,
        .x = {.buffer = op == MOERT_OP_GEMM_DGRAD ? run->result : p->x_buffer},
        .weight = {.buffer = op == MOERT_OP_GEMM_WGRAD ? run->result : p->weight_buffer},
        .y = {.buffer = op == MOERT_OP_GEMM_FORWARD ? run->result
                        : op == MOERT_OP_GLU        ? run->between
                                                    : p->y_buffer},
        .glu = {.gated = op == MOERT_OP_GLU ? MOERT_GATED : MOERT_UNGATED,
                .form = MOERT_GLU_SWIGLU,
                .h = run->result}};
    moert_gemm_set(&run->gemm, moert_op_roles_of(op).gemm, p->type);
    const moert_panels_shape shape = {p->shape.experts, p->shape.n, p->shape.k,
                                      moert_panels_use_of(&run->gemm), p->type};
    if (prepacked && op != MOERT_OP_GEMM_WGRAD)
        MOERT_TRY_OR(fail, moert_panels_create(device, &shape, &run->panels));
    if (run->panels != NULL)
        MOERT_TRY_OR(fail, moert_panels_fill(run->panels, p->weight_buffer));
    run->gemm.panels = run->panels;
    return MOERT_OK;
fail:
    bench_run_destroy(run);
    return status;
}

void bench_run_destroy(bench_run *run) {
    MOERT_DESTROY(run->result, run->between);
    moert_panels_destroy(run->panels);
    *run = (bench_run){0};
}

/* Returns an element of x, y or weight, rounded to the problem's dtype. */
static double value(const void *of, moert_op_buffer which, size_t e, size_t line, size_t column) {
    const bench_problem *p = of;
    const bool x = which == MOERT_OP_BUFFER_x, weight = which == MOERT_OP_BUFFER_weight;
    const size_t first = weight ? e * p->shape.n : e > 0 ? p->ends[e - 1] : 0;
    const float *matrix = x ? p->x : weight ? p->weight : p->y;
    const float v = matrix[(first + line) * (x || weight ? p->shape.k : p->shape.n) + column];
    return p->type == MOERT_DTYPE_F32
               ? (double)v
               : (double)moert_dtype_decode(p->type, moert_dtype_encode(p->type, v));
}

moert_status bench_problem_check(const bench_problem *p, moert_op_kind op,
                                 const moert_buffer *buffer, const float *memory, size_t *wrong) {
    const bench_check check = {
        .op = describe(p, op), .ends = p->ends, .value = value, .of = p, .slack = 1e-5};
    return bench_count_wrong(&check, buffer, memory, wrong);
}
