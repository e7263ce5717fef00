/* Reads and writes files that describe machines; predicts the times of GEMMs. */
#include "bench/predict/machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

/* ---- fields ---- */

static moert_status bad(const char *path, const char *field, const char *why) {
    return MOERT_FAIL(ERROR_FORMAT, "%s: '%s' %s", path, field, why);
}

/* Reads a number >= 0, or > 0 with `positive`. If the number is missing, uses `standard`; if
 * `standard` is NAN, a missing number is an error. */
static moert_status read_number(const char *path, const json_t *object, const char *field,
                                double standard, bool positive, double *value) {
    const json_t *found = json_object_get(object, field);
    if (found == NULL && !isnan(standard)) {
        *value = standard;
        return MOERT_OK;
    }
    if (!json_is_number(found))
        return bad(path, field, found == NULL ? "is missing" : "is not a number");
    *value = json_number_value(found);
    return *value > 0.0 || (*value == 0.0 && !positive) ? MOERT_OK
                                                        : bad(path, field, "must be positive");
}

static moert_status read_line(const char *path, const json_t *root, const char *field,
                              bench_line *line) {
    const json_t *object = json_object_get(root, field);
    if (!json_is_object(object))
        return bad(path, field, "must be an object with us and gbps");
    MOERT_TRY(read_number(path, object, "us", NAN, false, &line->us));
    return read_number(path, object, "gbps", NAN, true, &line->gbps);
}

static moert_status read_text(const char *path, const json_t *object, const char *field, char *text,
                              size_t bytes) {
    const char *found = json_string_value(json_object_get(object, field));
    if (found == NULL)
        return bad(path, field, "must be a text");
    if (strlen(found) >= bytes)
        return bad(path, field, "is too long");
    snprintf(text, bytes, "%s", found);
    return MOERT_OK;
}

static moert_status read_rate(const char *path, const json_t *object, bench_machine *m) {
    bench_gemm_rate rate;
    double n, k;
    MOERT_TRY(read_text(path, object, "op", rate.op, sizeof rate.op));
    MOERT_TRY(read_text(path, object, "type", rate.type, sizeof rate.type));
    MOERT_TRY(read_number(path, object, "n", NAN, true, &n));
    MOERT_TRY(read_number(path, object, "k", NAN, true, &k));
    MOERT_TRY(read_number(path, object, "rows", NAN, true, &rate.rows));
    MOERT_TRY(read_number(path, object, "gflops", NAN, true, &rate.gflops));
    rate.n = (size_t)n;
    rate.k = (size_t)k;
    return bench_machine_add(m, &rate);
}

static moert_status read_fields(const char *path, const json_t *root, bench_machine *m) {
    const json_t *rates = json_object_get(root, "gemm"), *rate;
    size_t i;
    MOERT_TRY(read_text(path, root, "name", m->name, sizeof m->name));
    MOERT_TRY(read_text(path, root, "source", m->source, sizeof m->source));
#define READ_NUMBER(field, standard, help)                                                         \
    MOERT_TRY(read_number(path, root, #field, standard, (standard) != 0.0, &m->field));
    BENCH_MACHINE_NUMBERS(READ_NUMBER)
#undef READ_NUMBER
#define READ_LINE(field, help) MOERT_TRY(read_line(path, root, #field, &m->field));
    BENCH_MACHINE_LINES(READ_LINE)
#undef READ_LINE
    m->pipelined = json_is_true(json_object_get(root, "pipelined"));
    m->linked = json_is_true(json_object_get(root, "linked"));
    if (!json_is_array(rates) || json_array_size(rates) == 0)
        return bad(path, "gemm", "must be an array of rates");
    json_array_foreach(rates, i, rate) {
        MOERT_TRY(read_rate(path, rate, m));
    }
    return MOERT_OK;
}

moert_status bench_machine_read(const char *path, bench_machine *machine) {
    enum { LIMIT_BYTES = 1 << 20 };
    json_t *root;
    *machine = (bench_machine){.gemms = 0};
    MOERT_TRY(moert_json_read(path, "it", LIMIT_BYTES, &root));
    moert_status status = read_fields(path, root, machine);
    json_decref(root);
    return status;
}

moert_status bench_machine_write(const bench_machine *m, const char *path) {
    json_t *root = json_pack("{ss ss sb sb}", "name", m->name, "source", m->source, "pipelined",
                             m->pipelined, "linked", m->linked);
    json_t *rates = json_array();
#define WRITE_NUMBER(field, standard, help)                                                        \
    if (m->field > 0.0 || (standard) == 0.0)                                                       \
        json_object_set_new(root, #field, json_real(m->field));
    BENCH_MACHINE_NUMBERS(WRITE_NUMBER)
#undef WRITE_NUMBER
#define WRITE_LINE(field, help)                                                                    \
    json_object_set_new(root, #field,                                                              \
                        json_pack("{sf sf}", "us", m->field.us, "gbps", m->field.gbps));
    BENCH_MACHINE_LINES(WRITE_LINE)
#undef WRITE_LINE
    for (size_t i = 0; i < m->gemms; i++) {
        const bench_gemm_rate *r = &m->gemm[i];
        json_array_append_new(rates, json_pack("{ss ss sI sI sf sf}", "op", r->op, "type", r->type,
                                               "n", (json_int_t)r->n, "k", (json_int_t)r->k, "rows",
                                               r->rows, "gflops", r->gflops));
    }
    json_object_set_new(root, "gemm", rates);
    const moert_status status =
        moert_json_write(path, root, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    json_decref(root);
    return status;
}

void bench_machine_free(bench_machine *machine) {
    free(machine->gemm);
    machine->gemm = NULL;
    machine->gemms = 0;
}

moert_status bench_machine_add(bench_machine *machine, const bench_gemm_rate *rate) {
    bench_gemm_rate *grown =
        /* a machine has only dozens of rates */
        realloc(machine->gemm, (machine->gemms + 1) * sizeof *grown);
    if (grown == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "no memory for %zu GEMM rates", machine->gemms + 1);
    machine->gemm = grown;
    grown[machine->gemms++] = *rate;
    return MOERT_OK;
}

/* ---- rates ---- */

static bool is_of(const bench_gemm_rate *rate, const char *op, const char *type) {
    return strcmp(rate->op, op) == 0 && strcmp(rate->type, type) == 0;
}

static double distance(const bench_gemm_rate *rate, double n, double k) {
    return fabs(log((double)rate->n / n)) + fabs(log((double)rate->k / k));
}

static const bench_gemm_rate *nearest(const bench_machine *m, const char *op, const char *type,
                                      double n, double k) {
    const bench_gemm_rate *best = NULL;
    for (size_t i = 0; i < m->gemms; i++)
        if (is_of(&m->gemm[i], op, type) &&
            (best == NULL || distance(&m->gemm[i], n, k) < distance(best, n, k)))
            best = &m->gemm[i];
    return best;
}

/* Returns the rate of a GEMM of the shape of `like` with `rows` rows per group. Interpolates in the
 * logarithm of the rows; outside of the measured rows, returns the nearest rate. */
static double rate_at(const bench_machine *m, const bench_gemm_rate *like, double rows) {
    const bench_gemm_rate *below = NULL, *above = NULL;
    for (size_t i = 0; i < m->gemms; i++) {
        const bench_gemm_rate *r = &m->gemm[i];
        if (!is_of(r, like->op, like->type) || r->n != like->n || r->k != like->k)
            continue;
        if (r->rows <= rows && (below == NULL || r->rows > below->rows))
            below = r;
        if (r->rows >= rows && (above == NULL || r->rows < above->rows))
            above = r;
    }
    if (below == NULL || above == NULL || above->rows == below->rows)
        return below != NULL ? below->gflops : above->gflops;
    const double at = log(rows / below->rows) / log(above->rows / below->rows);
    return below->gflops + at * (above->gflops - below->gflops);
}

moert_status bench_machine_gemm(const bench_machine *m, const bench_predict_gemm *p,
                                double *seconds) {
    const double groups = p->groups, rows = p->rows, n = p->n, k = p->k;
    const bench_gemm_rate *like = nearest(m, p->op, p->type, n, k);
    const double of_group = rows / groups;
    if (like == NULL)
        return MOERT_FAIL(ERROR_USAGE, "machine '%s' has no measured rate for a %s GEMM in %s",
                          m->name, p->op, p->type);
    const double bytes = strcmp(p->type, "bf16") == 0 ? 2.0 : 4.0;
    const double computed = groups * m->tile_rows * ceil(of_group / m->tile_rows);
    const double compute = 2e-9 * computed * n * k / rate_at(m, like, of_group);
    const double moved = bytes * groups * n * k + bytes * rows * (n + k);
    *seconds = fmax(compute, moved / (m->copy_gbps * 1e9));
    return MOERT_OK;
}
