/*
 * The reference backend of ops: every operand turned to float32 on the host, then the formulas of
 * moert/ops.h as loops. Slow; what the other backends are held to.
 */
#include "op/reference/op.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

/* ---- workspace ---- */

static void destroy(moert_op *op) {
    moert_op_host *host = op->state;
    float *const all[] = {host->x, host->y, host->weight, host->acc};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    free(host);
}

static moert_status add_array(moert_op *op, bool wanted, size_t floats, float **array) {
    if (!wanted)
        return MOERT_OK;
    op->workspace_bytes += floats * sizeof(float);
    return MOERT_NEW_ARRAY(array, floats);
}

static moert_status create(moert_op *op) {
    const moert_op_options *o = &op->options;
    const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD;
    moert_op_host *host;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&host));
    op->state = host;
    MOERT_TRY_OR(undo, add_array(op, op->x.input, o->rows * o->k, &host->x));
    MOERT_TRY_OR(undo, add_array(op, op->y.input, o->rows * o->n, &host->y));
    MOERT_TRY_OR(undo, add_array(op, true, o->n * o->k, &host->weight));
    MOERT_TRY_OR(undo, add_array(op, !wgrad, o->rows * (op->y.input ? o->k : o->n), &host->acc));
    return MOERT_OK;
undo:
    destroy(op);
    return status;
}

/* ---- operands ---- */

static void load_rows(const moert_op *op, const moert_op_maps *maps, const moert_op_rows *rows,
                      moert_op_buffer which, float *to) {
    const moert_op_options *o = &op->options;
    const moert_operand *operand = which == MOERT_OP_BUFFER_x ? &o->x : &o->y;
    for (size_t r = 0; r < maps->rows; r++) {
        const size_t slot = rows->gathered ? maps->gather[r] : r;
        for (size_t j = 0; j < rows->width; j++)
            to[r * rows->width + j] =
                slot < o->rows ? moert_op_load(maps->at[which], operand->type,
                                               slot / rows->divisor * (size_t)operand->stride + j)
                               : 0.0f;
    }
}

static float beta_of(const moert_op *op, const moert_op_maps *maps, size_t g) {
    const float *betas = maps->at[MOERT_OP_BUFFER_beta];
    return betas != NULL ? betas[g] : op->options.accumulate ? 1.0f : 0.0f;
}

/* alpha acc, the bias or prob, beta times the old value */
static float finish(const moert_op *op, const moert_op_maps *maps, size_t g, float acc,
                    const float *bias, const float *prob, float old) {
    const float *alphas = maps->at[MOERT_OP_BUFFER_alpha];
    const float alpha = alphas != NULL ? alphas[g] : 1.0f, beta = beta_of(op, maps, g);
    const float v = bias != NULL   ? fmaf(acc, alpha, *bias)
                    : prob != NULL ? acc * alpha * *prob
                                   : acc * alpha;
    return beta != 0.0f ? fmaf(beta, old, v) : v;
}

static void store_row(const moert_op *op, const moert_op_maps *maps, size_t g, size_t r) {
    const moert_op_host *host = op->state;
    const moert_op_options *o = &op->options;
    const moert_op_rows *rows = op->x.output ? &op->x : &op->y;
    const moert_operand *operand = op->x.output ? &o->x : &o->y;
    const float *scales = maps->at[MOERT_OP_BUFFER_bias_scale];
    const float *weights = maps->at[MOERT_OP_BUFFER_row_weight];
    const float *probs = maps->at[MOERT_OP_BUFFER_prob];
    float *amax = maps->at[MOERT_OP_BUFFER_amax];
    const size_t slot = rows->gathered ? maps->gather[r] : r;
    void *to = maps->at[op->x.output ? MOERT_OP_BUFFER_x : MOERT_OP_BUFFER_y];
    for (size_t j = 0; slot < o->rows && j < rows->width; j++) {
        const size_t at = slot * (size_t)operand->stride + j;
        float bias = 0.0f;
        if (o->bias)
            bias = moert_op_load(maps->at[MOERT_OP_BUFFER_bias], o->bias_type, g * o->n + j) *
                   (scales != NULL ? scales[r] : 1.0f);
        float v = finish(op, maps, g, host->acc[r * rows->width + j], o->bias ? &bias : NULL,
                         probs != NULL ? &probs[r] : NULL, moert_op_load(to, operand->type, at));
        if (weights != NULL)
            v = moert_op_round(operand->type, v) * moert_op_round(operand->type, weights[slot]);
        moert_op_store(to, operand->type, at, v);
        if (amax != NULL)
            moert_op_raise(&amax[g], v);
    }
}

/* ---- products, of one group ---- */

static void multiply_rows(const moert_op *op, size_t first, size_t end) {
    const moert_op_host *host = op->state;
    const size_t n = op->options.n, k = op->options.k;
    for (size_t m = first; m < end && op->x.input; m++)
        for (size_t j = 0; j < n; j++) {
            float acc = 0.0f;
            for (size_t i = 0; i < k; i++)
                acc = fmaf(host->x[m * k + i], host->weight[j * k + i], acc);
            host->acc[m * n + j] = acc;
        }
    for (size_t m = first; m < end && op->y.input; m++)
        for (size_t i = 0; i < k; i++) {
            float acc = 0.0f;
            for (size_t j = 0; j < n; j++)
                acc = fmaf(host->y[m * n + j], host->weight[j * k + i], acc);
            host->acc[m * k + i] = acc;
        }
}

static void make_weight(const moert_op *op, const moert_op_maps *maps, size_t g, void *weight,
                        size_t base) {
    const moert_op_host *host = op->state;
    const size_t n = op->options.n, k = op->options.k;
    const moert_number type = op->options.weight.type;
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < k; i++) {
            float acc = 0.0f;
            for (size_t m = moert_op_start(maps, g); m < maps->ends[g]; m++)
                acc = fmaf(host->y[m * n + j], host->x[m * k + i], acc);
            const float old = moert_op_load(weight, type, base + j * k + i);
            moert_op_store(weight, type, base + j * k + i,
                           finish(op, maps, g, acc, NULL, NULL, old));
        }
}

/* The same of a group without rows: beta times the old value, whatever alpha is. */
static void make_empty_weight(const moert_op *op, const moert_op_maps *maps, size_t g, void *weight,
                              size_t base) {
    const moert_number type = op->options.weight.type;
    const float beta = beta_of(op, maps, g);
    for (size_t i = base; beta != 1.0f && i < base + op->options.n * op->options.k; i++)
        moert_op_store(weight, type, i,
                       beta != 0.0f ? beta * moert_op_load(weight, type, i) : 0.0f);
}

/* `weight` holds group g from element `base` on. */
static void execute_group(const moert_op *op, const moert_op_maps *maps, size_t g, void *weight,
                          size_t base) {
    const moert_op_host *host = op->state;
    const moert_op_options *o = &op->options;
    if (o->kind == MOERT_OP_GEMM_WGRAD) {
        const bool empty = moert_op_start(maps, g) == maps->ends[g];
        (empty ? make_empty_weight : make_weight)(op, maps, g, weight, base);
        return;
    }
    for (size_t i = 0; i < o->n * o->k; i++)
        host->weight[i] = moert_op_load(weight, o->weight.type, base + i);
    multiply_rows(op, moert_op_start(maps, g), maps->ends[g]);
    if (o->kind == MOERT_OP_GLU)
        moert_op_reference_glu(op, maps, g);
    else if (o->kind == MOERT_OP_DGLU)
        moert_op_reference_dglu(op, maps, g);
    else
        for (size_t r = moert_op_start(maps, g); r < maps->ends[g]; r++)
            store_row(op, maps, g, r);
}

/* ---- execute ---- */

static moert_status check_promise(const moert_op *op, const moert_op_maps *maps) {
    const size_t multiple = moert_max(op->options.row_multiple, 1);
    for (size_t g = 0; g < op->options.groups; g++) {
        const size_t rows = maps->ends[g] - moert_op_start(maps, g);
        if (rows % multiple != 0)
            return MOERT_FAIL(ERROR_USAGE,
                              "%s: group %zu has %zu rows; a multiple of "
                              "row_multiple, %zu",
                              moert_op_kind_name(op->options.kind), g, rows, multiple);
    }
    return MOERT_OK;
}

static moert_status map_all(const moert_op *op, const moert_op_buffers *b, moert_op_maps *maps) {
    moert_op_buffers copy = *b;
    const moert_groups groups = {b->ends, op->options.groups, op->options.rows};
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        MOERT_TRY(moert_map_one(&maps->maps, *moert_op_buffer_at(&copy, i), &maps->at[i]));
    maps->ends = maps->at[MOERT_OP_BUFFER_ends];
    MOERT_TRY(moert_map_one(&maps->maps, op->acc_scale, &maps->acc_scale));
    maps->gather = maps->at[MOERT_OP_BUFFER_gather];
    maps->rows = maps->ends[groups.count - 1];
    MOERT_TRY(moert_check_ends(&groups, maps->ends));
    return check_promise(op, maps);
}

static moert_status execute_discrete(const moert_op *op, const moert_op_maps *maps, size_t g,
                                     const moert_buffer *weight) {
    void *memory;
    MOERT_TRY(moert_buffer_map(weight, &memory));
    execute_group(op, maps, g, memory, 0);
    return moert_buffer_unmap(weight, memory);
}

static moert_status execute(moert_op *op, const moert_op_buffers *b) {
    const moert_op_host *host = op->state;
    const moert_op_options *o = &op->options;
    moert_op_maps maps = {.rows = 0};
    moert_status status = MOERT_OK;
    MOERT_TRY_OR(unmap, map_all(op, b, &maps));
    if (op->x.input)
        load_rows(op, &maps, &op->x, MOERT_OP_BUFFER_x, host->x);
    if (op->y.input)
        load_rows(op, &maps, &op->y, MOERT_OP_BUFFER_y, host->y);
    for (size_t g = 0; g < o->groups; g++)
        if (o->weight.discrete)
            MOERT_TRY_OR(unmap, execute_discrete(op, &maps, g, b->weights[g]));
        else
            execute_group(op, &maps, g, maps.at[MOERT_OP_BUFFER_weight], g * o->n * o->k);
unmap:
    return moert_unmap_all(&maps.maps, status);
}

const moert_op_backend moert_op_backend_reference = {"reference", false,   false, create,
                                                     destroy,     execute, NULL,  NULL};
