/* The GLU of the reference backend, as the epilogue of a GEMM and as a separate call. */
#include <math.h>

#include "args/activations.h"
#include "base/elementary.h"
#include "gemm/reference/host.h"

/* Limits a value from above; a NaN stays NaN. */
static float at_most(float x, float limit) {
    return x > limit ? limit : x;
}

static float at_least(float x, float limit) {
    return x < limit ? limit : x;
}

static float sigmoid(float x) {
    return 1.0f / (1.0f + (float)moert_exp(-(double)x));
}

MOERT_ACTIVATE(float, sigmoid)

/* The columns of v that hold the gate and the up of result j. */
static size_t gate_at(const moert_glu *glu, size_t j) {
    return j / glu->run * 2 * glu->run + j % glu->run + (glu->linear_first ? glu->run : 0);
}

static size_t up_at(const moert_glu *glu, size_t j) {
    return j / glu->run * 2 * glu->run + j % glu->run + (glu->linear_first ? 0 : glu->run);
}

static float of(const float *values, size_t i) {
    return values != NULL ? values[i] : 1.0f;
}

static float clamp(float x, float limit) {
    return at_least(at_most(x, limit), -limit);
}

/* The gate and the up of result j, times beta; the row of v begins at element `row`. */
typedef struct pair {
    float gate, up;
} pair;

static pair load_pair(const moert_glu *glu, const void *v, size_t row, size_t j, float beta) {
    return (pair){beta * moert_host_load(v, glu->from, row + gate_at(glu, j)),
                  beta * moert_host_load(v, glu->from, row + up_at(glu, j))};
}

/* The gradients of one result with respect to its gate, its up and prob. gradient_of() computes
 * these gradients at the pair `x` from `q`, the gradient of the result. */
typedef struct gradient {
    float gate, up, prob;
} gradient;

static gradient gradient_of(const moert_glu_form *form, pair x, float q, float prob) {
    const float linear = clamp(x.up, form->limit) + form->offset;
    float dg;
    const float act = activate(at_most(x.gate, form->limit), form->alpha, form->activation,
                               q * prob * linear, &dg);
    const float du = q * prob * act;
    return (gradient){x.gate > form->limit ? 0.0f : dg,
                      x.up > form->limit || x.up < -form->limit ? 0.0f : du, q * linear * act};
}

/* ---- forward ---- */

/* Computes v at a column, and stores the value if v is kept. */
static float pre_activation(const moert_host_gemm *host, size_t g, size_t r, size_t column) {
    const moert_gemm *gemm = host->gemm;
    const float acc = host->arrays->acc[r * gemm->n + column], alpha = of(host->alpha, g);
    float v = acc * alpha;
    if (host->bias != NULL)
        v = fmaf(acc, alpha,
                 moert_host_load(host->bias, gemm->more->bias_type, g * gemm->n + column));
    if (host->y != NULL)
        moert_host_store(host->y, gemm->y.type, r * gemm->y.stride + column, v);
    return v;
}

void moert_host_glu(const moert_host_gemm *host, size_t g) {
    const moert_glu *glu = &host->gemm->glu;
    const moert_glu_form form = glu->form;
    for (size_t r = moert_host_start(host, g); r < host->ends[g]; r++)
        for (size_t j = 0; j < glu->width; j++) {
            const float gate = pre_activation(host, g, r, gate_at(glu, j));
            const float up = pre_activation(host, g, r, up_at(glu, j));
            float slope;
            const float d =
                activate(at_most(gate, form.limit), form.alpha, form.activation, 0.0f, &slope) *
                (clamp(up, form.limit) + form.offset) * of(host->glu_prob, r);
            moert_host_store(host->h, glu->type, r * glu->ldh + j, d);
            if (host->amax != NULL)
                moert_host_raise(&host->amax[g], d);
        }
}

/* ---- backward ---- */

/* The gradient for result j of row r. */
static gradient differentiate(const moert_host_gemm *host, size_t g, size_t r, size_t j) {
    const moert_glu *glu = &host->gemm->glu;
    const float alpha = of(host->alpha, g), acc = host->arrays->acc[r * glu->width + j];
    const pair x = load_pair(glu, host->v, r * glu->ldv, j, of(host->beta, g));
    const float q = alpha * alpha * (host->acc_scale != NULL ? acc * host->acc_scale[g] : acc);
    return gradient_of(&glu->form, x, q, of(host->glu_prob, r));
}

/* Adds to dbias for the gate and the up of result j, rows in order. */
static void add_dbias(const moert_host_gemm *host, size_t g, size_t j) {
    const moert_glu *glu = &host->gemm->glu;
    const size_t base = g * 2 * glu->width, gate = base + gate_at(glu, j),
                 up = base + up_at(glu, j);
    const moert_dtype type = host->gemm->more->bias_type;
    float dg = 0.0f, du = 0.0f;
    if (host->dbias == NULL || moert_host_start(host, g) == host->ends[g])
        return;
    for (size_t r = moert_host_start(host, g); r < host->ends[g]; r++) {
        const gradient d = differentiate(host, g, r, j);
        dg += d.gate;
        du += d.up;
    }
    moert_host_store(host->dbias, type, gate, moert_host_load(host->dbias, type, gate) + dg);
    moert_host_store(host->dbias, type, up, moert_host_load(host->dbias, type, up) + du);
}

void moert_host_dglu(const moert_host_gemm *host, size_t g) {
    const moert_glu *glu = &host->gemm->glu;
    for (size_t j = 0; j < glu->width; j++)
        add_dbias(host, g, j);
    for (size_t r = moert_host_start(host, g); r < host->ends[g]; r++) {
        const size_t row = r * glu->ldh;
        float sum = 0.0f;
        for (size_t j = 0; j < glu->width; j++) {
            const gradient d = differentiate(host, g, r, j);
            moert_host_store(host->dv, glu->type, row + gate_at(glu, j), d.gate);
            moert_host_store(host->dv, glu->type, row + up_at(glu, j), d.up);
            sum += d.prob;
            if (host->amax != NULL) {
                moert_host_raise(&host->amax[2 * g], d.gate);
                moert_host_raise(&host->amax[2 * g + 1], d.up);
            }
        }
        if (host->dprob != NULL)
            host->dprob[r] += sum;
    }
}

/* ---- as a separate call ---- */

static moert_status glu_forward(const moert_glu *glu) {
    const moert_glu_form form = glu->form;
    moert_mapping maps;
    const float *prob;
    void *v, *h;
    MOERT_TRY(MOERT_MAP(&maps, {glu->v, &v}, {glu->prob, &prob}, {glu->h, &h}));
    for (size_t m = glu->first_row; m < glu->rows; m++)
        for (size_t j = 0; j < glu->width; j++) {
            const pair x = load_pair(glu, v, m * 2 * glu->width, j, 1.0f);
            float slope;
            const float act =
                activate(at_most(x.gate, form.limit), form.alpha, form.activation, 0.0f, &slope);
            moert_host_store(h, glu->type, m * glu->width + j,
                             of(prob, m * glu->prob_stride) *
                                 (clamp(x.up, form.limit) + form.offset) * act);
        }
    return moert_unmap_all(&maps, MOERT_OK);
}

static moert_status glu_backward(const moert_glu *glu) {
    moert_mapping maps;
    const float *prob;
    float *dprob;
    void *v, *dh, *dv;
    MOERT_TRY(MOERT_MAP(&maps, {glu->v, &v}, {glu->prob, &prob}, {glu->dh, &dh}, {glu->dv, &dv},
                        {glu->dprob, &dprob}));
    for (size_t m = glu->first_row; m < glu->rows; m++) {
        const size_t row = m * 2 * glu->width, at = m * glu->prob_stride;
        float sum = 0.0f;
        for (size_t j = 0; j < glu->width; j++) {
            const float q = moert_host_load(dh, glu->from, m * glu->width + j);
            const gradient d =
                gradient_of(&glu->form, load_pair(glu, v, row, j, 1.0f), q, of(prob, at));
            moert_host_store(dv, glu->type, row + gate_at(glu, j), d.gate);
            moert_host_store(dv, glu->type, row + up_at(glu, j), d.up);
            sum += d.prob;
        }
        if (dprob != NULL)
            dprob[at] = sum;
    }
    return moert_unmap_all(&maps, MOERT_OK);
}

moert_status moert_reference_glu(const moert_glu *glu, bool backward) {
    return backward ? glu_backward(glu) : glu_forward(glu);
}
