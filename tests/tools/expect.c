/*
 * expect: computes the results of moert-op's grouped GEMMs from a file of float32 tensors, in
 * float64, with loops that follow the formulas; for the end-to-end tests.
 *
 *   expect fprop|dgrad|wgrad|glu|dglu|quant IN OUT [none|x|y TOPK | swiglu|geglu RUN]
 *
 * Gate and up alternate in runs of RUN columns. Results are float32.
 */
#include <math.h>

#include "io/safetensors.h"
#include "tools/check.h"

enum { MOST = 8, NAME = 32 };

typedef struct matrix {
    size_t rank, shape[3], elements;
    double *at; /* NULL: the file has no such tensor */
} matrix;

static moert_tensors *input;
static struct {
    moert_tensor_spec spec;
    matrix values;
} results[MOST];
static size_t result_count;
static size_t topk, run;
static char permute;
static bool geglu;

static matrix load(const char *name) {
    const moert_tensor *tensor = moert_tensors_find(input, name);
    matrix m = {.rank = 0};
    float *values;
    if (tensor == NULL)
        return m;
    m.rank = tensor->rank;
    m.elements = tensor->elements;
    memcpy(m.shape, tensor->shape, m.rank * sizeof m.shape[0]);
    check(MOERT_NEW_ARRAY(&m.at, m.elements));
    check(MOERT_NEW_ARRAY(&values, m.elements));
    if (tensor->type == MOERT_FILE_I32) {
        check(moert_tensor_read_i32(tensor, 0, m.elements, (int32_t *)values));
        for (size_t i = 0; i < m.elements; i++)
            m.at[i] = ((int32_t *)values)[i];
    } else {
        check(moert_tensor_read_f32(tensor, 0, m.elements, values));
        for (size_t i = 0; i < m.elements; i++)
            m.at[i] = values[i];
    }
    free(values);
    return m;
}

/* Adds a result that begins with the file's values for it, or with zeros. */
static double *result(const char *name, size_t rank, size_t a, size_t b, size_t c) {
    matrix old = load(name);
    const size_t elements = a * (rank > 1 ? b : 1) * (rank > 2 ? c : 1);
    results[result_count].spec = (moert_tensor_spec){name, MOERT_FILE_F32, rank, {a, b, c}};
    if (old.at == NULL)
        check(MOERT_NEW_ARRAY(&old.at, elements));
    old.elements = elements;
    results[result_count].values = old;
    return results[result_count++].values.at;
}

static void write_results(const char *path) {
    moert_tensor_spec specs[MOST];
    moert_tensor_writer *writer;
    for (size_t i = 0; i < result_count; i++)
        specs[i] = results[i].spec;
    check(moert_writer_open(path, specs, result_count, NULL, true, &writer));
    for (size_t i = 0; i < result_count; i++) {
        const matrix *m = &results[i].values;
        float *values;
        check(MOERT_NEW_ARRAY(&values, m->elements));
        for (size_t j = 0; j < m->elements; j++)
            values[j] = (float)m->at[j];
        check(moert_writer_put(writer, specs[i].name, 0, m->elements, values));
        free(values);
        free(m->at);
    }
    check(moert_writer_close(writer));
}

/* Element i, or `otherwise` if there is no such tensor. */
static double value(matrix m, size_t i, double otherwise) {
    return m.at != NULL ? m.at[i] : otherwise;
}

static size_t group_start(matrix ends, size_t g) {
    return g > 0 ? (size_t)ends.at[g - 1] : 0;
}

/* ---- plain GEMMs ---- */

static void gemm(char kind) { /* f: forward, d: dgrad, w: wgrad */
    const matrix ends = load("ends"), x = load("x"), w = load("weight"), y = load("y");
    const matrix alpha = load("alpha"), beta = load("beta"), bias = load("bias");
    const matrix scale = load("bias_scale"), gather = load("gather"),
                 row_weight = load("row_weight");
    const size_t groups = ends.elements, n = kind == 'w' ? y.shape[1] : w.shape[1];
    const size_t k = kind == 'd' ? w.shape[2] : x.shape[1];
    const size_t rows = gather.at != NULL ? gather.elements : kind == 'f' ? x.shape[0] : y.shape[0];
    double *out = kind == 'f'   ? result("y", 2, rows, n, 0)
                  : kind == 'd' ? result("x", 2, rows, k, 0)
                                : result("weight", 3, groups, n, k);
    const size_t wide = kind == 'f' ? n : k;
    for (size_t g = 0; g < groups; g++) {
        for (size_t i = 0; kind == 'w' && i < n * k; i++)
            out[g * n * k + i] *= value(beta, g, 0.0);
        for (size_t r = group_start(ends, g); r < (size_t)ends.at[g]; r++) {
            const size_t slot = (size_t)value(gather, r, (double)r);
            const size_t xr = permute != 'x' ? r : kind == 'd' ? slot : slot / topk;
            const size_t yr = permute == 'y' ? slot : r;
            for (size_t i = 0; kind == 'w' && i < n * k; i++)
                out[g * n * k + i] +=
                    value(alpha, g, 1.0) * y.at[yr * n + i / k] * x.at[xr * k + i % k];
            for (size_t i = 0; kind != 'w' && i < wide; i++) {
                double sum = 0.0, *to = &out[(kind == 'f' ? yr : xr) * wide + i];
                for (size_t j = 0; j < (kind == 'f' ? k : n); j++)
                    sum += kind == 'f' ? x.at[xr * k + j] * w.at[(g * n + i) * k + j]
                                       : y.at[yr * n + j] * w.at[(g * n + j) * k + i];
                sum = sum * value(alpha, g, 1.0) + value(beta, g, 0.0) * *to;
                sum += bias.at != NULL ? bias.at[g * n + i] * value(scale, r, 1.0) : 0.0;
                *to = sum * value(row_weight, slot, 1.0);
            }
        }
    }
}

/* ---- GLU, dGLU and quant, with cuDNN's names ---- */

static void raise_to(double *most, double v) {
    *most = fmax(*most, fabs(v));
}

/* The column of gate i; that of up i is `run` columns later. */
static size_t gate_column(size_t i) {
    return i / run * 2 * run + i % run;
}

static void forward(bool glu) {
    const matrix ends = load("padded_offsets"), a = load("a"), b = load("b");
    const matrix alpha = load("alpha"), bias = load("bias"), prob = load("prob");
    const size_t m = a.shape[0], k = a.shape[1], n = b.shape[1], wide = glu ? n / 2 : n;
    double *c = glu ? result("c", 2, m, n, 0) : NULL, *d = result("d", 2, m, wide, 0);
    double *amax = result("amax", 1, ends.elements, 0, 0), v[2048];
    for (size_t g = 0; g < ends.elements; g++) {
        amax[g] = -INFINITY;
        for (size_t r = group_start(ends, g); r < (size_t)ends.at[g]; r++) {
            const double p = value(prob, r, 1.0);
            for (size_t j = 0; j < n; j++) {
                double sum = 0.0;
                for (size_t i = 0; i < k; i++)
                    sum += a.at[r * k + i] * b.at[(g * n + j) * k + i];
                v[j] = sum * value(alpha, g, 1.0) + value(bias, g * n + j, 0.0);
                if (glu)
                    c[r * n + j] = v[j];
                else if (bias.at != NULL)
                    v[j] += (p - 1.0) * bias.at[g * n + j];
                else
                    v[j] *= p;
            }
            for (size_t i = 0; i < wide; i++) {
                double gate = glu ? v[gate_column(i)] : 0.0,
                       up = glu ? v[gate_column(i) + run] : 0.0;
                if (geglu) {
                    gate = fmin(gate, 7.0);
                    up = fmin(fmax(up, -7.0), 7.0) + 1.0;
                }
                const double sigmoid = 1.0 / (1.0 + exp(geglu ? -1.702 * gate : -gate));
                d[r * wide + i] = glu ? p * gate * sigmoid * up : v[i];
                raise_to(&amax[g], d[r * wide + i]);
            }
        }
    }
}

static void backward(void) {
    const matrix ends = load("padded_offsets"), a = load("a"), b = load("b"), c = load("c");
    const matrix alpha = load("alpha"), beta = load("beta"), prob = load("prob");
    const size_t m = a.shape[0], n = a.shape[1], wide = b.shape[1];
    double *d = result("d", 2, m, 2 * wide, 0), *dprob = result("dprob", 1, m, 0, 0);
    double *dbias = result("dbias", 2, ends.elements, 2 * wide, 0);
    double *amax = result("amax", 2, ends.elements, 2, 0);
    const double slope = geglu ? 1.702 : 1.0;
    for (size_t g = 0; g < ends.elements; g++) {
        const double scale = geglu ? 1.0 : value(alpha, g, 1.0),
                     of_c = geglu ? 1.0 : value(beta, g, 1.0);
        amax[2 * g] = amax[2 * g + 1] = -INFINITY;
        for (size_t r = group_start(ends, g); r < (size_t)ends.at[g]; r++)
            for (size_t i = 0; i < wide; i++) {
                const size_t at = gate_column(i);
                double gate = of_c * c.at[r * 2 * wide + at], q = 0.0;
                double up = of_c * c.at[r * 2 * wide + at + run];
                for (size_t j = 0; j < n; j++)
                    q += scale * scale * a.at[r * n + j] * b.at[(g * wide + i) * n + j];
                const bool gate_counts = !geglu || gate <= 7.0,
                           up_counts = !geglu || fabs(up) <= 7.0;
                if (geglu) {
                    gate = fmin(gate, 7.0);
                    up = fmin(fmax(up, -7.0), 7.0) + 1.0;
                }
                const double s = 1.0 / (1.0 + exp(-slope * gate)), p = value(prob, r, 1.0);
                const double dg =
                    gate_counts ? q * p * up * s * (1.0 + slope * gate * (1.0 - s)) : 0.0;
                const double du = up_counts ? q * p * gate * s : 0.0;
                d[r * 2 * wide + at] = dg;
                d[r * 2 * wide + at + run] = du;
                dprob[r] += q * up * gate * s;
                dbias[g * 2 * wide + at] += dg;
                dbias[g * 2 * wide + at + run] += du;
                raise_to(&amax[2 * g], dg);
                raise_to(&amax[2 * g + 1], du);
            }
    }
}

int main(int argc, char **argv) {
    const char *op = argc > 3 ? argv[1] : "";
    const bool has_run = argc > 5;
    permute = has_run ? argv[4][0] : 'n';
    geglu = permute == 'g';
    topk = run = has_run ? strtoul(argv[5], NULL, 10) : 1;
    if (argc < 4)
        return fputs("usage: expect OP IN OUT [PERMUTE TOPK | ACTIVATION RUN]\n", stderr), 2;
    check(moert_tensors_open(argv[2], &input));
    if (strcmp(op, "dglu") == 0)
        backward();
    else if (strcmp(op, "glu") == 0 || strcmp(op, "quant") == 0)
        forward(op[0] == 'g');
    else
        gemm(op[0]);
    write_results(argv[3]);
    moert_tensors_close(input);
    return 0;
}
