/*
 * The reference backend: converts every operand to float32 on the host and computes the formulas of
 * gemm/gemm.h and moert/ops.h in plain loops. Slow; tests compare the other backends with it.
 */
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "gemm/reference/host.h"

/* ---- workspace ---- */

static bool reads_x(const moert_gemm *gemm) {
    return gemm->kind == MOERT_GEMM_FORWARD || gemm->kind == MOERT_GEMM_WGRAD;
}

static bool reads_y(const moert_gemm *gemm) {
    return gemm->kind != MOERT_GEMM_FORWARD;
}

static bool reads_weight(const moert_gemm *gemm) {
    return gemm->kind == MOERT_GEMM_FORWARD || gemm->kind == MOERT_GEMM_DGRAD;
}

static void release(moert_workspace *work) {
    moert_host_arrays *arrays = work->state;
    if (arrays == NULL)
        return;
    free(arrays->x);
    free(arrays->y);
    free(arrays->weight);
    free(arrays->acc);
    free(arrays);
    work->state = NULL;
}

static moert_status reserve(moert_device *device, const moert_gemm *gemm, moert_workspace *work) {
    const size_t m = gemm->groups.rows;
    const bool wgrad = !reads_weight(gemm);
    moert_host_arrays *arrays;
    (void)device;
    MOERT_TRY(MOERT_NEW(&arrays));
    work->state = arrays;
    const struct {
        bool wanted;
        size_t floats;
        float **array;
    } parts[] = {{reads_x(gemm), m * gemm->k, &arrays->x},
                 {reads_y(gemm), m * gemm->n, &arrays->y},
                 {gemm->kind != MOERT_GEMM_BIAS_GRAD, gemm->n * gemm->k, &arrays->weight},
                 {!wgrad, m * (reads_y(gemm) ? gemm->k : gemm->n), &arrays->acc}};
    for (size_t i = 0; i < MOERT_COUNT(parts); i++) {
        if (!parts[i].wanted)
            continue;
        if (work->from == MOERT_WORKSPACE_COUNTED)
            continue;
        if (work->from == MOERT_WORKSPACE_ALLOCATED) /* an arena has device memory only */
            work->bytes += parts[i].floats * sizeof(float);
        MOERT_TRY(MOERT_NEW_ARRAY(parts[i].array, parts[i].floats));
    }
    return MOERT_OK;
}

/* ---- operands ---- */

/* Rows of x or y as an operand. */
typedef struct rows {
    const void *memory;
    moert_dtype type;
    size_t width, stride, first, divisor;
    const uint32_t *gather;
} rows;

static void load_rows(const moert_host_gemm *host, const rows *from, float *to) {
    const size_t most = host->gemm->groups.rows;
    for (size_t r = 0; r < host->rows; r++) {
        const size_t slot = from->gather != NULL ? from->gather[r] : r;
        const size_t row = slot / from->divisor * from->stride + from->first;
        for (size_t j = 0; j < from->width; j++)
            to[r * from->width + j] =
                slot < most ? moert_host_load(from->memory, from->type, row + j) : 0.0f;
    }
}

static void load_operands(const moert_host_gemm *host) {
    const moert_gemm *gemm = host->gemm;
    const moert_dtype f32 = MOERT_DTYPE_F32;
    const bool gathers = host->x_gather != NULL;
    const rows x = {host->x, gemm->more->wide_x ? f32 : gemm->type, gemm->k,       gemm->ldx,
                    0,       gathers ? gemm->more->divisor : 1,     host->x_gather};
    const rows y = {
        host->y,       gemm->more->wide_y ? f32 : gemm->type, gemm->n, gemm->ldy, gemm->y_column, 1,
        host->y_gather};
    if (reads_x(gemm))
        load_rows(host, &x, host->arrays->x);
    if (reads_y(gemm))
        load_rows(host, &y, host->arrays->y);
}

/* Loads the weight of a group, which begins at element `base`. With a workspace the weight is
 * stored in the operands' type or, if it is wide, in float32. Without a workspace it is stored in
 * float32, and this function rounds it to the operands' type. */
static void load_weight(const moert_host_gemm *host, const void *weight, size_t base) {
    const moert_gemm *gemm = host->gemm;
    const bool typed = gemm->more->workspace != NULL && !gemm->more->wide_weight;
    const moert_dtype stored = typed ? gemm->type : MOERT_DTYPE_F32;
    const moert_dtype rounded = gemm->more->workspace != NULL ? MOERT_DTYPE_F32 : gemm->type;
    for (size_t i = 0; i < gemm->n * gemm->k; i++)
        host->arrays->weight[i] =
            moert_host_round(rounded, moert_host_load(weight, stored, base + i));
}

static float beta_of(const moert_host_gemm *host, size_t g) {
    return host->beta != NULL ? host->beta[g] : host->gemm->more->epilogue.add ? 1.0f : 0.0f;
}

/* The epilogue: acc * alpha, plus the bias or times prob, plus beta times the old value. */
static float finish(const moert_host_gemm *host, size_t g, float acc, const float *bias,
                    const float *prob, float old) {
    const float alpha = host->alpha != NULL ? host->alpha[g] : 1.0f, beta = beta_of(host, g);
    const float v = bias != NULL   ? fmaf(acc, alpha, *bias)
                    : prob != NULL ? acc * alpha * *prob
                                   : acc * alpha;
    return beta != 0.0f ? fmaf(beta, old, v) : v;
}

/* ---- the GEMM of one group ---- */

/* A sum of products. Each product is added with one rounding. In the order of AMX
 * (kernels/gemm/amx.h), products are added alternately to two halves, and the halves to the sum
 * after every 16 pairs. */
typedef struct chain {
    bool tiled;       /* sum in the order of AMX */
    unsigned pending; /* number of products in the halves */
    float sum, half[2];
} chain;

static float chain_sum(const chain *c) {
    return c->pending > 0 ? c->sum + (c->half[0] + c->half[1]) : c->sum;
}

static void add_product(chain *c, float a, float b) {
    if (!c->tiled) {
        c->sum = fmaf(a, b, c->sum);
        return;
    }
    float *half = &c->half[c->pending % 2];
    *half = fmaf(a, b, *half);
    if (++c->pending == 32)
        *c = (chain){.tiled = true, .sum = chain_sum(c)};
}

/* A chain in the order in which the device in use sums, so that tests can compare bits. */
static chain begin_chain(const moert_gemm *gemm, float start) {
    const moert_device *device = moert_buffer_device(gemm->groups.ends);
    const bool tiled =
        gemm->more->workspace == NULL && moert_dot_of(device, gemm->type) == MOERT_DOT_TILE;
    return (chain){.tiled = tiled, .sum = start};
}

/* Index of element j of row r in the result of forward or dgrad. */
static size_t result_at(const moert_gemm *gemm, size_t r, size_t j) {
    return gemm->kind == MOERT_GEMM_DGRAD ? r * gemm->ldx + j : r * gemm->ldy + gemm->y_column + j;
}

static void *result_of(const moert_host_gemm *host) {
    return host->gemm->kind == MOERT_GEMM_DGRAD ? host->x : host->y;
}

static void multiply_rows(const moert_host_gemm *host, size_t g) {
    const moert_gemm *gemm = host->gemm;
    const moert_host_arrays *at = host->arrays;
    const bool forward = gemm->kind == MOERT_GEMM_FORWARD;
    const size_t width = forward ? gemm->n : gemm->k, reduction = forward ? gemm->k : gemm->n;
    const float *from = forward ? at->x : at->y;
    for (size_t m = moert_host_start(host, g); m < host->ends[g]; m++)
        for (size_t j = 0; j < width; j++) {
            chain c =
                begin_chain(gemm, gemm->accumulate ? moert_host_load(result_of(host), gemm->result,
                                                                     result_at(gemm, m, j))
                                                   : 0.0f);
            for (size_t i = 0; i < reduction; i++)
                add_product(&c, from[m * reduction + i],
                            at->weight[forward ? j * gemm->k + i : i * gemm->k + j]);
            at->acc[m * width + j] = chain_sum(&c);
        }
}

static void store_row(const moert_host_gemm *host, size_t g, size_t r) {
    const moert_gemm *gemm = host->gemm;
    const bool forward = gemm->kind == MOERT_GEMM_FORWARD;
    const size_t width = forward ? gemm->n : gemm->k;
    const uint32_t *gather = forward ? host->y_gather : host->x_gather;
    const size_t slot = gather != NULL ? gather[r] : r;
    void *to = result_of(host);
    for (size_t j = 0; slot < gemm->groups.rows && j < width; j++) {
        const size_t at = result_at(gemm, slot, j);
        float bias = 0.0f;
        if (forward && host->bias != NULL)
            bias = moert_host_load(host->bias, gemm->more->epilogue.bias_type,
                                   (gemm->shared_weight ? 0 : g) * gemm->n + j) *
                   (host->bias_scale != NULL ? host->bias_scale[r] : 1.0f);
        float v = finish(
            host, g, host->arrays->acc[r * width + j], forward && host->bias != NULL ? &bias : NULL,
            host->prob != NULL ? &host->prob[r] : NULL, moert_host_load(to, gemm->result, at));
        if (host->row_weight != NULL)
            v = moert_host_round(gemm->result, v) *
                moert_host_round(gemm->result, host->row_weight[slot]);
        moert_host_store(to, gemm->result, at, v);
        if (host->amax != NULL)
            moert_host_raise(&host->amax[g], v);
    }
}

/* wgrad. */
static void make_weight(const moert_host_gemm *host, size_t g, void *weight, size_t base) {
    const moert_gemm *gemm = host->gemm;
    const float *x = host->arrays->x, *y = host->arrays->y;
    const size_t n = gemm->n, k = gemm->k;
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < k; i++) {
            const size_t at = base + j * k + i;
            const float old = moert_host_load(weight, gemm->result, at);
            chain c = begin_chain(gemm, gemm->accumulate ? old : 0.0f);
            for (size_t m = moert_host_start(host, g); m < host->ends[g]; m++)
                add_product(&c, y[m * n + j], x[m * k + i]);
            moert_host_store(weight, gemm->result, at,
                             finish(host, g, chain_sum(&c), NULL, NULL, old));
        }
}

/* wgrad of a group without rows: beta times the old value, even if alpha is NaN. */
static void make_empty_weight(const moert_host_gemm *host, size_t g, void *weight, size_t base) {
    const moert_gemm *gemm = host->gemm;
    const float beta = gemm->accumulate ? 1.0f : beta_of(host, g);
    for (size_t i = base; beta != 1.0f && i < base + gemm->n * gemm->k; i++)
        moert_host_store(weight, gemm->result, i,
                         beta != 0.0f ? beta * moert_host_load(weight, gemm->result, i) : 0.0f);
}

/* bias_grad. */
static void make_bias(const moert_host_gemm *host, size_t g) {
    const moert_gemm *gemm = host->gemm;
    for (size_t n = 0; n < gemm->n; n++) {
        float *out = &((float *)host->bias)[g * gemm->n + n], sum = gemm->accumulate ? *out : 0.0f;
        for (size_t m = moert_host_start(host, g); m < host->ends[g]; m++)
            sum += host->arrays->y[m * gemm->n + n];
        *out = sum;
    }
}

/* Forward or dgrad; the group's weight begins at element `base`. */
static void run_rows(const moert_host_gemm *host, size_t g, const void *weight, size_t base) {
    const moert_gemm *gemm = host->gemm;
    load_weight(host, weight, base);
    multiply_rows(host, g);
    if (gemm->more->workspace != NULL && gemm->gated == MOERT_GATED)
        moert_host_glu(host, g);
    else if (gemm->gated == MOERT_GATED_BACKWARD)
        moert_host_dglu(host, g);
    else
        for (size_t r = moert_host_start(host, g); r < host->ends[g]; r++)
            store_row(host, g, r);
}

/* The weight of group g begins at element `base` of `weight`. */
static void run_group(const moert_host_gemm *host, size_t g, void *weight, size_t base) {
    const moert_gemm_kind kind = host->gemm->kind;
    if (kind == MOERT_GEMM_BIAS_GRAD)
        make_bias(host, g);
    else if (kind != MOERT_GEMM_WGRAD)
        run_rows(host, g, weight, base);
    else if (moert_host_start(host, g) == host->ends[g])
        make_empty_weight(host, g, weight, base);
    else
        make_weight(host, g, weight, base);
}

/* ---- the backend ---- */

/* Checks row_multiple. */
static moert_status check_promise(const moert_host_gemm *host) {
    const size_t multiple = moert_max(host->gemm->more->row_multiple, 1);
    for (size_t g = 0; g < host->gemm->groups.count; g++) {
        const size_t count = host->ends[g] - moert_host_start(host, g);
        if (count % multiple != 0)
            return MOERT_FAIL(ERROR_USAGE,
                              "%s: group %zu has %zu rows; a multiple of row_multiple, %zu",
                              moert_gemm_name(host->gemm), g, count, multiple);
    }
    return MOERT_OK;
}

static moert_status map_all(moert_host_gemm *host) {
    const moert_gemm *gemm = host->gemm;
    const moert_epilogue *e = &gemm->more->epilogue;
    const moert_glu *u = &gemm->glu;
    const bool gated = gemm->more->workspace != NULL && gemm->gated;
    const moert_mapped parts[] = {
        {gemm->groups.ends, &host->ends},
        {gemm->more->x_gather, &host->x_gather},
        {gemm->more->y_gather, &host->y_gather},
        {gemm->kind != MOERT_GEMM_BIAS_GRAD ? gemm->x : NULL, &host->x},
        {gemm->kind != MOERT_GEMM_BIAS_GRAD ? gemm->weight : NULL, &host->weight},
        {gemm->y, &host->y},
        {gemm->bias, &host->bias},
        {e->alpha, &host->alpha},
        {e->beta, &host->beta},
        {e->bias_scale, &host->bias_scale},
        {e->row_weight, &host->row_weight},
        {e->prob, &host->prob},
        {e->acc_scale, &host->acc_scale},
        {e->amax, &host->amax},
        {gated ? u->prob : NULL, &host->glu_prob},
        {gated ? u->v : NULL, &host->v},
        {gated ? u->h : NULL, &host->h},
        {gated ? u->dv : NULL, &host->dv},
        {gated ? u->dprob : NULL, &host->dprob},
        {gated ? u->dbias : NULL, &host->dbias},
    };
    MOERT_TRY(moert_map_all(&host->maps, parts, MOERT_COUNT(parts)));
    host->rows = host->ends[gemm->groups.count - 1];
    MOERT_TRY(moert_check_ends(&gemm->groups, host->ends));
    return check_promise(host);
}

static moert_status run_discrete(const moert_host_gemm *host, size_t g) {
    const moert_buffer *weight = host->gemm->more->weights[g];
    void *memory;
    MOERT_TRY(moert_buffer_map(weight, &memory));
    run_group(host, g, memory, 0);
    return moert_buffer_unmap(weight, memory);
}

static moert_status run_mapped(const moert_gemm *gemm, moert_workspace *work) {
    moert_host_gemm host = {.gemm = gemm, .arrays = work->state};
    const moert_part part = moert_part_of(gemm);
    moert_status status = MOERT_OK;
    MOERT_TRY_OR(unmap, map_all(&host));
    load_operands(&host);
    for (size_t g = part.first; g < part.end; g++)
        if (gemm->more->discrete)
            MOERT_TRY_OR(unmap, run_discrete(&host, g));
        else
            run_group(&host, g, host.weight, (gemm->shared_weight ? 0 : g) * gemm->n * gemm->k);
unmap:
    return moert_unmap_all(&host.maps, status);
}

/* Applies the GLU to the rows before the last end. */
static moert_status run_glu(const moert_gemm *gemm) {
    moert_glu glu = gemm->glu;
    uint32_t end;
    MOERT_TRY(moert_buffer_read(gemm->groups.ends, (moert_part_of(gemm).end - 1) * sizeof end, &end,
                                sizeof end));
    glu.rows = end;
    return moert_reference_glu(&glu, false);
}

static moert_status run(const moert_gemm *gemm) {
    moert_workspace own = {0};
    if (gemm->more->workspace != NULL)
        return run_mapped(gemm, gemm->more->workspace);
    moert_status status = reserve(moert_buffer_device(gemm->groups.ends), gemm, &own);
    if (status == MOERT_OK)
        status = run_mapped(gemm, &own);
    release(&own);
    MOERT_TRY(status);
    return gemm->gated ? run_glu(gemm) : MOERT_OK;
}

static const char *supports(const moert_device *device, const moert_gemm *gemm) {
    (void)device;
    if (gemm == NULL)
        return NULL;
    if (gemm->more->x_quantized != NULL || gemm->more->y_quantized != NULL ||
        gemm->more->weight_quantized != NULL)
        return "operands that are dequantized";
    if (gemm->scatter.runs > 0)
        return "results without scatter";
    return gemm->more->workspace != NULL || moert_gemm_is_plain(gemm) ? NULL : MOERT_PLAIN_GEMMS;
}

const moert_backend moert_backend_reference = {.name = "reference",
                                               .supports = supports,
                                               .run = run,
                                               .glu = moert_reference_glu,
                                               .reserve = reserve,
                                               .release = release};
