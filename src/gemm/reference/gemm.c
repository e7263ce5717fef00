/* The reference backend: the formulas as loops, on mapped buffers. Slow; what the other backends
 * are held to. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "device/mapping.h"
#include "gemm/backend.h"

/* ---- grouped GEMM ---- */

typedef struct gemm_host {
    const uint32_t *ends;
    void *x, *y; /* floats, as factors also codes */
    float *weight, *bias;
    bool tiled;
    const float *factor[2]; /* of the product, as it takes them */
    float *made[2];         /* those of them that are not where they lie */
} gemm_host;

/* Number i of a row factor of the type. */
static float factor(const void *at, size_t i, moert_number type) {
    if (type == MOERT_NUMBER_F32)
        return ((const float *)at)[i];
    return moert_number_decode(type, ((const uint16_t *)at)[i]);
}

/* Stores number i of a matrix of the type. */
static void put(void *at, size_t i, moert_number type, float x) {
    if (type == MOERT_NUMBER_F32)
        ((float *)at)[i] = x;
    else
        ((uint16_t *)at)[i] = (uint16_t)moert_number_encode(type, x);
}

/* A sum of products: each joins it by a rounding or, in tiles (kernels/gemm/amx.h), joins one of
 * two halves in turn, whose sum joins after every 16 pairs. */
typedef struct chain {
    bool tiled;
    unsigned pending; /* products in the halves */
    float sum, half[2];
} chain;

static chain begin_chain(const gemm_host *host, float start) {
    return (chain){.tiled = host->tiled, .sum = start};
}

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

static moert_status map_gemm(const moert_gemm *gemm, moert_mapping *maps, gemm_host *host) {
    moert_status status;
    *maps = (moert_mapping){.count = 0};
    *host = (gemm_host){.made = {NULL}};
    MOERT_TRY_OR(unmap, moert_map_one(maps, gemm->groups.ends, &host->ends));
    MOERT_TRY_OR(unmap, moert_map_one(maps, gemm->x, &host->x));
    MOERT_TRY_OR(unmap, moert_map_one(maps, gemm->weight, &host->weight));
    MOERT_TRY_OR(unmap, moert_map_one(maps, gemm->bias, &host->bias));
    MOERT_TRY_OR(unmap, moert_map_one(maps, gemm->y, &host->y));
    MOERT_TRY_OR(unmap, moert_check_ends(&gemm->groups, host->ends));
    host->tiled =
        moert_term_of(moert_buffer_device(gemm->groups.ends), gemm->type) == MOERT_TERM_TILE;
    return MOERT_OK;
unmap:
    return moert_unmap_all(maps, status);
}

/* Factor `i` from rows, or with `rounds` from a weight, which is float32. */
static moert_status take_factor(const moert_gemm *gemm, const moert_buffer *buffer, const void *at,
                                bool rounds, size_t i, gemm_host *host) {
    const moert_number type = gemm->type;
    host->factor[i] = at;
    if (type == MOERT_NUMBER_F32 || at == NULL)
        return MOERT_OK;
    const size_t count = moert_buffer_bytes(buffer) / (rounds ? sizeof(float) : sizeof(uint16_t));
    MOERT_TRY(moert_alloc(&host->made[i], count, sizeof(float)));
    for (size_t j = 0; j < count; j++)
        host->made[i][j] =
            moert_number_decode(type, rounds ? moert_number_encode(type, ((const float *)at)[j])
                                             : ((const uint16_t *)at)[j]);
    host->factor[i] = host->made[i];
    return MOERT_OK;
}

static moert_status unmap_gemm(moert_mapping *maps, gemm_host *host, moert_status status) {
    for (size_t i = 0; i < 2; i++)
        free(host->made[i]);
    return moert_unmap_all(maps, status);
}

/* The place of y[m,n]. */
static size_t place(const moert_gemm *gemm, size_t m, size_t n) {
    return m * gemm->ldy + gemm->y_column + n;
}

static size_t start_of(const gemm_host *host, size_t g) {
    return g > 0 ? host->ends[g - 1] : 0;
}

static moert_status run_forward(const moert_gemm *gemm) {
    moert_mapping maps;
    gemm_host at;
    MOERT_TRY(map_gemm(gemm, &maps, &at));
    moert_status status = take_factor(gemm, gemm->x, at.x, false, 0, &at);
    if (status == MOERT_OK)
        status = take_factor(gemm, gemm->weight, at.weight, true, 1, &at);
    const moert_part part = moert_part_of(gemm);
    for (size_t g = part.first; g < part.end && status == MOERT_OK; g++)
        for (size_t m = start_of(&at, g); m < at.ends[g]; m++)
            for (size_t n = 0; n < gemm->n; n++) {
                const size_t line = (gemm->shared_weight ? 0 : g) * gemm->n + n;
                chain c = begin_chain(&at, 0.0f);
                for (size_t k = 0; k < gemm->k; k++)
                    add_product(&c, at.factor[0][m * gemm->ldx + k],
                                at.factor[1][line * gemm->k + k]);
                const float sum = chain_sum(&c);
                ((float *)at.y)[place(gemm, m, n)] = at.bias != NULL ? sum + at.bias[line] : sum;
            }
    return unmap_gemm(&maps, &at, status);
}

static moert_status run_dgrad(const moert_gemm *gemm) {
    moert_mapping maps;
    gemm_host at;
    MOERT_TRY(map_gemm(gemm, &maps, &at));
    moert_status status = take_factor(gemm, gemm->y, at.y, false, 0, &at);
    if (status == MOERT_OK)
        status = take_factor(gemm, gemm->weight, at.weight, true, 1, &at);
    const moert_part part = moert_part_of(gemm);
    for (size_t g = part.first; g < part.end && status == MOERT_OK; g++) {
        const float *weight = at.factor[1] + (gemm->shared_weight ? 0 : g) * gemm->n * gemm->k;
        for (size_t m = start_of(&at, g); m < at.ends[g]; m++)
            for (size_t k = 0; k < gemm->k; k++) {
                float *out = (float *)at.x + m * gemm->ldx + k;
                chain c = begin_chain(&at, gemm->accumulate ? *out : 0.0f);
                for (size_t n = 0; n < gemm->n; n++)
                    add_product(&c, at.factor[0][place(gemm, m, n)], weight[n * gemm->k + k]);
                *out = chain_sum(&c);
            }
    }
    return unmap_gemm(&maps, &at, status);
}

static moert_status run_wgrad(const moert_gemm *gemm) {
    moert_mapping maps;
    gemm_host at;
    MOERT_TRY(map_gemm(gemm, &maps, &at));
    moert_status status = take_factor(gemm, gemm->y, at.y, false, 0, &at);
    if (status == MOERT_OK)
        status = take_factor(gemm, gemm->x, at.x, false, 1, &at);
    for (size_t g = 0; g < gemm->groups.count && status == MOERT_OK; g++)
        for (size_t n = 0; n < gemm->n; n++)
            for (size_t k = 0; k < gemm->k; k++) {
                float *out = &at.weight[(g * gemm->n + n) * gemm->k + k];
                chain c = begin_chain(&at, gemm->accumulate ? *out : 0.0f);
                for (size_t m = start_of(&at, g); m < at.ends[g]; m++)
                    add_product(&c, at.factor[0][place(gemm, m, n)],
                                at.factor[1][m * gemm->ldx + k]);
                *out = chain_sum(&c);
            }
    return unmap_gemm(&maps, &at, status);
}

static moert_status run_bias_grad(const moert_gemm *gemm) {
    moert_mapping maps;
    gemm_host at;
    MOERT_TRY(map_gemm(gemm, &maps, &at));
    for (size_t g = 0; g < gemm->groups.count; g++)
        for (size_t n = 0; n < gemm->n; n++) {
            float *out = &at.bias[g * gemm->n + n], sum = gemm->accumulate ? *out : 0.0f;
            for (size_t m = start_of(&at, g); m < at.ends[g]; m++)
                sum += factor(at.y, place(gemm, m, n), gemm->type);
            *out = sum;
        }
    return moert_unmap_all(&maps, MOERT_OK);
}

/* ---- GLU ---- */

/* Places of gate and up of column j in a row of v. */
static size_t gate_at(const moert_glu *glu, size_t j) {
    return glu->form.interleaved ? 2 * j : j;
}

static size_t up_at(const moert_glu *glu, size_t j) {
    return glu->form.interleaved ? 2 * j + 1 : glu->width + j;
}

/* The limits let NaN pass. */
static float at_most(float x, float limit) {
    return x > limit ? limit : x;
}

static float at_least(float x, float limit) {
    return x < limit ? limit : x;
}

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static moert_status glu_forward(const moert_glu *glu) {
    moert_mapping maps = {.count = 0};
    moert_status status = MOERT_OK;
    const float *prob;
    void *v, *h;
    MOERT_TRY_OR(unmap, moert_map_one(&maps, glu->v, &v));
    MOERT_TRY_OR(unmap, moert_map_one(&maps, glu->prob, &prob));
    MOERT_TRY_OR(unmap, moert_map_one(&maps, glu->h, &h));
    const moert_glu_form form = glu->form;
    for (size_t m = glu->first_row; m < glu->rows; m++) {
        const size_t row = m * 2 * glu->width;
        const float p = prob != NULL ? prob[m * glu->prob_stride] : 1.0f;
        for (size_t j = 0; j < glu->width; j++) {
            const float g = at_most(factor(v, row + gate_at(glu, j), glu->from), form.limit);
            const float up = factor(v, row + up_at(glu, j), glu->from);
            const float u = at_least(at_most(up, form.limit), -form.limit);
            put(h, m * glu->width + j, glu->type,
                p * (u + form.offset) * (g * sigmoid(form.alpha * g)));
        }
    }
unmap:
    return moert_unmap_all(&maps, status);
}

/* Row m of the gradient; returns its dprob. */
static float glu_row_backward(const moert_glu *glu, size_t m, const void *v, float prob,
                              const void *dh, void *dv) {
    const size_t row = m * 2 * glu->width;
    const moert_glu_form form = glu->form;
    float sum = 0.0f;
    for (size_t j = 0; j < glu->width; j++) {
        const float q = factor(dh, m * glu->width + j, glu->from);
        const float g = factor(v, row + gate_at(glu, j), glu->from);
        const float u = factor(v, row + up_at(glu, j), glu->from), gc = at_most(g, form.limit);
        const float up = at_least(at_most(u, form.limit), -form.limit) + form.offset;
        const float s = sigmoid(form.alpha * gc), act = gc * s;
        const float dg = q * prob * up * s * (1.0f + form.alpha * gc * (1.0f - s));
        const float du = u > form.limit || u < -form.limit ? 0.0f : q * prob * act;
        put(dv, row + gate_at(glu, j), glu->type, g > form.limit ? 0.0f : dg);
        put(dv, row + up_at(glu, j), glu->type, du);
        sum += q * up * act;
    }
    return sum;
}

static moert_status glu_backward(const moert_glu *glu) {
    moert_mapping maps = {.count = 0};
    moert_status status = MOERT_OK;
    const float *prob;
    float *dprob;
    void *v, *dh, *dv;
    MOERT_TRY_OR(unmap, moert_map_one(&maps, glu->v, &v));
    MOERT_TRY_OR(unmap, moert_map_one(&maps, glu->prob, &prob));
    MOERT_TRY_OR(unmap, moert_map_one(&maps, glu->dh, &dh));
    MOERT_TRY_OR(unmap, moert_map_one(&maps, glu->dv, &dv));
    MOERT_TRY_OR(unmap, moert_map_one(&maps, glu->dprob, &dprob));
    for (size_t m = glu->first_row; m < glu->rows; m++) {
        const size_t at = m * glu->prob_stride;
        const float sum = glu_row_backward(glu, m, v, prob != NULL ? prob[at] : 1.0f, dh, dv);
        if (dprob != NULL)
            dprob[at] = sum;
    }
unmap:
    return moert_unmap_all(&maps, status);
}

/* ---- the backend ---- */

/* The rows past the last end stay out of the GLU. */
static moert_status run_gated(const moert_gemm *gemm) {
    moert_glu glu = gemm->glu;
    uint32_t end;
    MOERT_TRY(run_forward(gemm));
    MOERT_TRY(
        moert_buffer_read(gemm->groups.ends, (gemm->part.end - 1) * sizeof end, &end, sizeof end));
    glu.rows = end;
    return glu_forward(&glu);
}

static moert_status run(const moert_gemm *gemm) {
    static moert_status (*const runs[])(const moert_gemm *) = {
        [MOERT_GEMM_FORWARD] = run_forward,
        [MOERT_GEMM_DGRAD] = run_dgrad,
        [MOERT_GEMM_WGRAD] = run_wgrad,
        [MOERT_GEMM_BIAS_GRAD] = run_bias_grad,
    };
    return gemm->gated ? run_gated(gemm) : runs[gemm->kind](gemm);
}

static moert_status glu(const moert_glu *what, bool backward) {
    return backward ? glu_backward(what) : glu_forward(what);
}

static const char *supports(const moert_device *device, const moert_gemm *gemm) {
    (void)device;
    return gemm != NULL && (gemm->result != MOERT_NUMBER_F32 || gemm->scatter.runs > 0)
               ? "results in f32"
               : NULL;
}

const moert_backend moert_backend_reference = {
    .name = "reference", .supports = supports, .run = run, .glu = glu};
