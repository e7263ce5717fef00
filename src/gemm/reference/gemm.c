/*
 * The reference backend: converts every operand to float32 on the host and computes the formulas of
 * gemm/gemm.h and moert/ops.h in plain loops. The reference backend is slow; tests compare the
 * other backends with it.
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
    const bool wgrad = gemm->kind != MOERT_GEMM_FORWARD && gemm->kind != MOERT_GEMM_DGRAD;
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

/* Loads rows of x or y, which are in `memory`. */
static void load_rows(const moert_host_gemm *host, const moert_matrix *from, size_t width,
                      const void *memory, const uint32_t *gather, float *to) {
    const moert_gemm *gemm = host->gemm;
    const size_t divisor = from == &gemm->x && gather != NULL ? gemm->more->divisor : 1;
    for (size_t r = 0; r < host->rows; r++) {
        const size_t slot = gather != NULL ? gather[r] : r;
        const size_t row = slot / divisor * from->stride + from->first;
        for (size_t j = 0; j < width; j++)
            to[r * width + j] =
                slot < gemm->groups.rows ? moert_host_load(memory, from->type, row + j) : 0.0f;
    }
}

static void load_operands(const moert_host_gemm *host) {
    const moert_gemm *gemm = host->gemm;
    if (reads_x(gemm))
        load_rows(host, &gemm->x, gemm->k, host->x, host->x_gather, host->arrays->x);
    if (reads_y(gemm))
        load_rows(host, &gemm->y, gemm->n, host->y, host->y_gather, host->arrays->y);
}

/* Loads the weight of a group, which begins at element `base`. Without a workspace the weight is in
 * float32, and this function rounds it to the operands' type. */
static void load_weight(const moert_host_gemm *host, const void *weight, size_t base) {
    const moert_gemm *gemm = host->gemm;
    const moert_dtype rounded =
        gemm->more->workspace != NULL ? MOERT_DTYPE_F32 : moert_gemm_type(gemm);
    for (size_t i = 0; i < gemm->n * gemm->k; i++)
        host->arrays->weight[i] =
            moert_host_round(rounded, moert_host_load(weight, gemm->weight.type, base + i));
}

static float beta_of(const moert_host_gemm *host, size_t g) {
    if (host->beta != NULL)
        return host->beta[g];
    return host->gemm->epilogue.addend == MOERT_ADDEND_LAST ? 1.0f : 0.0f;
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

/* Whether a chain of sums starts from the old result. */
static bool adds_to_old(const moert_gemm *gemm) {
    return gemm->epilogue.addend == MOERT_ADDEND_FIRST;
}

/* A sum of products. Each product is added with one rounding. In the order of AMX
 * (kernels/gemm/add_amx.h), products are added alternately to two halves, and the halves to the sum
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

/* Begins a chain with the order of sums of the device in use, so that tests can compare bits. */
static chain begin_chain(const moert_gemm *gemm, float start) {
    const moert_device *device = moert_buffer_device(gemm->groups.ends);
    const bool tiled = gemm->more->workspace == NULL &&
                       moert_dot_of(device, moert_gemm_type(gemm)) == MOERT_DOT_TILE;
    return (chain){.tiled = tiled, .sum = start};
}

/* Index of element j of row r in the result of forward or dgrad. */
static size_t result_at(const moert_gemm *gemm, size_t r, size_t j) {
    return gemm->kind == MOERT_GEMM_DGRAD ? r * gemm->x.stride + j
                                          : r * gemm->y.stride + gemm->y.first + j;
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
                begin_chain(gemm, adds_to_old(gemm) ? moert_host_load(result_of(host),
                                                                      moert_gemm_output(gemm)->type,
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
            bias = moert_host_load(host->bias, gemm->more->bias_type,
                                   (gemm->groups.shared ? 0 : g) * gemm->n + j) *
                   (host->bias_scale != NULL ? host->bias_scale[r] : 1.0f);
        float v = finish(host, g, host->arrays->acc[r * width + j],
                         forward && host->bias != NULL ? &bias : NULL,
                         host->prob != NULL ? &host->prob[r] : NULL,
                         moert_host_load(to, moert_gemm_output(gemm)->type, at));
        if (host->row_weight != NULL)
            v = moert_host_round(moert_gemm_output(gemm)->type, v) *
                moert_host_round(moert_gemm_output(gemm)->type, host->row_weight[slot]);
        moert_host_store(to, moert_gemm_output(gemm)->type, at, v);
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
            const float old = moert_host_load(weight, moert_gemm_output(gemm)->type, at);
            chain c = begin_chain(gemm, adds_to_old(gemm) ? old : 0.0f);
            for (size_t m = moert_host_start(host, g); m < host->ends[g]; m++)
                add_product(&c, y[m * n + j], x[m * k + i]);
            moert_host_store(weight, moert_gemm_output(gemm)->type, at,
                             finish(host, g, chain_sum(&c), NULL, NULL, old));
        }
}

/* wgrad of a group without rows: beta times the old value, even if alpha is NaN. */
static void make_empty_weight(const moert_host_gemm *host, size_t g, void *weight, size_t base) {
    const moert_gemm *gemm = host->gemm;
    const float beta = adds_to_old(gemm) ? 1.0f : beta_of(host, g);
    for (size_t i = base; beta != 1.0f && i < base + gemm->n * gemm->k; i++)
        moert_host_store(
            weight, moert_gemm_output(gemm)->type, i,
            beta != 0.0f ? beta * moert_host_load(weight, moert_gemm_output(gemm)->type, i) : 0.0f);
}

/* bias_grad. */
static void make_bias(const moert_host_gemm *host, size_t g) {
    const moert_gemm *gemm = host->gemm;
    for (size_t n = 0; n < gemm->n; n++) {
        float *out = &((float *)host->bias)[g * gemm->n + n], sum = adds_to_old(gemm) ? *out : 0.0f;
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
    if (gemm->more->workspace != NULL && gemm->glu.gated == MOERT_GATED)
        moert_host_glu(host, g);
    else if (gemm->glu.gated == MOERT_GATED_BACKWARD)
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
            return MOERT_FAIL(
                ERROR_USAGE, "%s: group %zu has %zu rows; expected a multiple of row_multiple, %zu",
                moert_gemm_name(host->gemm), g, count, multiple);
    }
    return MOERT_OK;
}

static moert_status map_all(moert_host_gemm *host) {
    const moert_gemm *gemm = host->gemm;
    const moert_gemm_more *e = gemm->more;
    const moert_glu *u = &gemm->glu;
    const bool gated = gemm->more->workspace != NULL && gemm->glu.gated;
    const moert_mapped parts[] = {
        {gemm->groups.ends, &host->ends},
        {gemm->x.gather, &host->x_gather},
        {gemm->y.gather, &host->y_gather},
        {gemm->kind != MOERT_GEMM_BIAS_GRAD ? gemm->x.buffer : NULL, &host->x},
        {gemm->kind != MOERT_GEMM_BIAS_GRAD ? gemm->weight.buffer : NULL, &host->weight},
        {gemm->y.buffer, &host->y},
        {gemm->bias, &host->bias},
        {gemm->epilogue.alpha, &host->alpha},
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
    const moert_groups groups = {gemm->groups.ends, gemm->groups.count, gemm->groups.rows};
    MOERT_TRY(moert_check_ends(&groups, host->ends));
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
    const moert_row_groups part = moert_groups_filled(gemm->groups);
    moert_status status = MOERT_OK;
    MOERT_TRY_OR(unmap, map_all(&host));
    load_operands(&host);
    for (size_t g = part.first; g < part.end; g++)
        if (gemm->more->discrete)
            MOERT_TRY_OR(unmap, run_discrete(&host, g));
        else
            run_group(&host, g, host.weight, (gemm->groups.shared ? 0 : g) * gemm->n * gemm->k);
unmap:
    return moert_unmap_all(&host.maps, status);
}

/* Applies the GLU to the rows before the last end. */
static moert_status run_glu(const moert_gemm *gemm) {
    moert_glu glu = gemm->glu;
    uint32_t end;
    MOERT_TRY(moert_buffer_read(gemm->groups.ends,
                                (moert_groups_filled(gemm->groups).end - 1) * sizeof end, &end,
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
    return gemm->glu.gated ? run_glu(gemm) : MOERT_OK;
}

static const char *supports(const moert_device *device, const moert_gemm *gemm) {
    (void)device;
    if (gemm == NULL)
        return NULL;
    if (gemm->x.quantized != NULL || gemm->y.quantized != NULL || gemm->weight.quantized != NULL)
        return "operands that are dequantized";
    if (gemm->groups.runs > 0)
        return "results without scatter";
    return gemm->more->workspace != NULL || moert_gemm_is_plain(gemm) ? NULL : MOERT_PLAIN_GEMMS;
}

const moert_backend moert_backend_reference = {.name = "reference",
                                               .supports = supports,
                                               .run = run,
                                               .glu = moert_reference_glu,
                                               .reserve = reserve,
                                               .release = release};
