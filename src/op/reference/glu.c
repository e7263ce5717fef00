/* The GLU of the reference backend's ops, column by column. */
#include <math.h>

#include "op/reference/op.h"

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

/* Columns of gate and up of result j. */
static size_t gate_at(const moert_op *op, size_t j) {
    return j / op->run * 2 * op->run + j % op->run + (op->options.linear_first ? op->run : 0);
}

static size_t up_at(const moert_op *op, size_t j) {
    return j / op->run * 2 * op->run + j % op->run + (op->options.linear_first ? 0 : op->run);
}

static float of_row(const moert_op_maps *maps, moert_op_buffer which, size_t r) {
    const float *values = maps->at[which];
    return values != NULL ? values[r] : 1.0f;
}

/* ---- forward ---- */

/* v at a column; also stores c. */
static float pre_activation(const moert_op *op, const moert_op_maps *maps, size_t g, size_t r,
                            size_t column) {
    const moert_op_host *host = op->state;
    const moert_op_options *o = &op->options;
    const float acc = host->acc[r * o->n + column], alpha = of_row(maps, MOERT_OP_BUFFER_alpha, g);
    void *c = maps->at[MOERT_OP_BUFFER_c];
    float v = acc * alpha;
    if (o->bias)
        v = fmaf(acc, alpha,
                 moert_op_load(maps->at[MOERT_OP_BUFFER_bias], o->bias_type, g * o->n + column));
    if (c != NULL)
        moert_op_store(c, o->c.type, r * (size_t)o->c.stride + column, v);
    return v;
}

void moert_op_reference_glu(const moert_op *op, const moert_op_maps *maps, size_t g) {
    const moert_op_options *o = &op->options;
    const moert_glu_form form = o->glu;
    float *amax = maps->at[MOERT_OP_BUFFER_amax];
    for (size_t r = moert_op_start(maps, g); r < maps->ends[g]; r++)
        for (size_t j = 0; j < op->glu_width; j++) {
            const float gate = pre_activation(op, maps, g, r, gate_at(op, j));
            const float up = pre_activation(op, maps, g, r, up_at(op, j));
            const float gc = at_most(gate, form.limit);
            const float uc = at_least(at_most(up, form.limit), -form.limit);
            const float d = gc * sigmoid(form.alpha * gc) * (uc + form.offset) *
                            of_row(maps, MOERT_OP_BUFFER_prob, r);
            moert_op_store(maps->at[MOERT_OP_BUFFER_d], o->d.type, r * (size_t)o->d.stride + j, d);
            if (amax != NULL)
                moert_op_raise(&amax[g], d);
        }
}

/* ---- backward ---- */

typedef struct gradient {
    float gate, up, prob;
} gradient;

/* Of result j of row r. */
static gradient differentiate(const moert_op *op, const moert_op_maps *maps, size_t g, size_t r,
                              size_t j) {
    const moert_op_host *host = op->state;
    const moert_op_options *o = &op->options;
    const moert_glu_form form = o->glu;
    const bool scaled = moert_op_dglu_scales(op);
    const float alpha = scaled ? of_row(maps, MOERT_OP_BUFFER_alpha, g) : 1.0f;
    const float beta = scaled ? of_row(maps, MOERT_OP_BUFFER_beta, g) : 1.0f;
    const float prob = of_row(maps, MOERT_OP_BUFFER_prob, r);
    const size_t row = r * (size_t)o->c.stride;
    const void *c = maps->at[MOERT_OP_BUFFER_c];
    const float gate = beta * moert_op_load(c, o->c.type, row + gate_at(op, j));
    const float up = beta * moert_op_load(c, o->c.type, row + up_at(op, j));
    const float gc = at_most(gate, form.limit), s = sigmoid(form.alpha * gc), act = gc * s;
    const float linear = at_least(at_most(up, form.limit), -form.limit) + form.offset;
    const float acc = host->acc[r * op->glu_width + j];
    const float q = alpha * alpha * (maps->acc_scale != NULL ? acc * maps->acc_scale[g] : acc);
    const float dg = q * prob * linear * s * (1.0f + form.alpha * gc * (1.0f - s));
    const float du = q * prob * act;
    return (gradient){gate > form.limit ? 0.0f : dg,
                      up > form.limit || up < -form.limit ? 0.0f : du, q * linear * act};
}

/* dbias of one column: rows in order. */
static void add_dbias(const moert_op *op, const moert_op_maps *maps, size_t g, size_t j) {
    const size_t base = g * 2 * op->glu_width, gate = base + gate_at(op, j),
                 up = base + up_at(op, j);
    const moert_number type = op->options.bias_type;
    void *dbias = maps->at[MOERT_OP_BUFFER_dbias];
    float dg = 0.0f, du = 0.0f;
    if (dbias == NULL || moert_op_start(maps, g) == maps->ends[g])
        return;
    for (size_t r = moert_op_start(maps, g); r < maps->ends[g]; r++) {
        const gradient d = differentiate(op, maps, g, r, j);
        dg += d.gate;
        du += d.up;
    }
    moert_op_store(dbias, type, gate, moert_op_load(dbias, type, gate) + dg);
    moert_op_store(dbias, type, up, moert_op_load(dbias, type, up) + du);
}

void moert_op_reference_dglu(const moert_op *op, const moert_op_maps *maps, size_t g) {
    const moert_op_options *o = &op->options;
    float *amax = maps->at[MOERT_OP_BUFFER_amax], *dprob = maps->at[MOERT_OP_BUFFER_dprob];
    void *out = maps->at[MOERT_OP_BUFFER_d];
    for (size_t j = 0; j < op->glu_width; j++)
        add_dbias(op, maps, g, j);
    for (size_t r = moert_op_start(maps, g); r < maps->ends[g]; r++) {
        const size_t row = r * (size_t)o->d.stride;
        float sum = 0.0f;
        for (size_t j = 0; j < op->glu_width; j++) {
            const gradient d = differentiate(op, maps, g, r, j);
            moert_op_store(out, o->d.type, row + gate_at(op, j), d.gate);
            moert_op_store(out, o->d.type, row + up_at(op, j), d.up);
            sum += d.prob;
            if (amax != NULL) {
                moert_op_raise(&amax[2 * g], d.gate);
                moert_op_raise(&amax[2 * g + 1], d.up);
            }
        }
        if (dprob != NULL)
            dprob[r] += sum;
    }
}
