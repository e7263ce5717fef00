/*
 * compare: compares the files that a program wrote with golden files, for the end-to-end tests.
 *
 *   compare tensors --expected E.safetensors --actual A.safetensors [--only NAME]
 *   compare largest --expected E.safetensors --actual A.safetensors [--only NAME | --except NAME]
 *   compare bytes --expected E.safetensors --actual A.safetensors [--only NAME | --except NAME]
 *   compare curve --expected curve.json --metrics metrics.jsonl [--aux]
 *
 * tensors: a tensor's error is the norm of the difference divided by the norm of the expected
 * tensor. largest: the error is the largest difference divided by the largest finite expected
 * magnitude; infinities must be equal. bytes: the bytes must be equal, the dtypes may differ.
 * curve: the relative error of each step. The exit code is 0 if every error is within --tolerance,
 * otherwise 1.
 */
#include <math.h>

#include <jansson.h>

#include "io/safetensors.h"
#include "tools/check.h"
#include "tools/common/options.h"

enum { LINE_BYTES = 4096 };
/* if the expected norm is 0, the actual norm may be at most this */
static const double zero_norm = 1e-12;

static const char *expected_path, *actual_path, *metrics_path, *only, *except;
static double tolerance;
static bool with_aux, by_bytes, by_largest;

static const moert_option options[] = {
    {"expected", MOERT_OPTION_STRING, &expected_path, NULL, "FILE",
     "golden safetensors file or curve"},
    {"actual", MOERT_OPTION_STRING, &actual_path, NULL, "FILE", "safetensors file to check"},
    {"only", MOERT_OPTION_STRING, &only, NULL, NULL,
     "compare only this tensor; default all expected ones"},
    {"except", MOERT_OPTION_STRING, &except, NULL, NULL, "a tensor not to compare"},
    {"metrics", MOERT_OPTION_STRING, &metrics_path, NULL, "FILE", "JSON lines to check"},
    {"tolerance", MOERT_OPTION_FLOAT, &tolerance, "2e-5", "0..", "largest relative error"},
    {"aux", MOERT_OPTION_FLAG, &with_aux, NULL, NULL, "also compare the auxiliary loss"},
};
enum { OPTIONS = MOERT_COUNT(options) };

/* The largest error so far, and the place where it occurred. */
typedef struct worst {
    double error;
    char where[160];
    size_t compared, failed;
} worst;

static void judge(worst *w, double error, const char *where) {
    w->compared++;
    if (!(error <= tolerance)) { /* true for NaN */
        w->failed++;
        printf("%s: relative error %.3g exceeds %.3g\n", where, error, tolerance);
    }
    if (!(error <= w->error)) {
        w->error = error;
        snprintf(w->where, sizeof w->where, "%s", where);
    }
}

/* ---- tensors ---- */

static double distance(const float *want, const float *got, size_t count) {
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < count; i++) {
        double d = (double)got[i] - (double)want[i];
        difference += d * d;
        norm += (double)want[i] * (double)want[i];
    }
    if (norm == 0.0)
        return sqrt(difference) <= zero_norm ? 0.0 : INFINITY;
    return sqrt(difference / norm);
}

static double largest_distance(const float *want, const float *got, size_t count) {
    double difference = 0.0, largest = 0.0;
    for (size_t i = 0; i < count; i++) {
        const double d = want[i] == got[i] ? 0.0 : fabs((double)got[i] - (double)want[i]);
        if (d > difference || isnan(d)) /* once NaN, the largest difference stays NaN */
            difference = d;
        if (isfinite(want[i]))
            largest = fmax(largest, fabs((double)want[i]));
    }
    return difference == 0.0 ? 0.0 : difference / largest;
}

static void compare_tensor(const moert_tensor *want, const moert_tensor *got, worst *w) {
    const size_t count = want->elements;
    float *values;
    check(moert_alloc(&values, 2 * count, sizeof *values));
    check(moert_tensor_read_f32(want, 0, count, values));
    check(moert_tensor_read_f32(got, 0, count, values + count));
    judge(w, (by_largest ? largest_distance : distance)(values, values + count, count), want->name);
    free(values);
}

static void compare_bytes(const moert_tensor *want, const moert_tensor *got, worst *w) {
    const unsigned char *a = want->data, *b = got->data;
    char where[160];
    size_t at = 0;
    if (got->bytes != want->bytes)
        check(MOERT_FAIL(ERROR_MISMATCH, "%s has %zu bytes, not %zu", want->name, got->bytes,
                         want->bytes));
    while (at < want->bytes && a[at] == b[at])
        at++;
    snprintf(where, sizeof where, at < want->bytes ? "%s, byte %zu" : "%s", want->name, at);
    judge(w, at < want->bytes ? INFINITY : 0.0, where);
}

static void compare_tensors(worst *w) {
    moert_tensors *expected, *actual;
    check(moert_tensors_open(expected_path, &expected));
    check(moert_tensors_open(actual_path, &actual));
    for (size_t i = 0; i < moert_tensors_count(expected); i++) {
        const moert_tensor *want = moert_tensors_at(expected, i), *got;
        if ((only != NULL && strcmp(only, want->name) != 0) ||
            (except != NULL && strcmp(except, want->name) == 0))
            continue;
        check(moert_tensors_get(actual, want->name, want->rank, want->shape, &got));
        (by_bytes ? compare_bytes : compare_tensor)(want, got, w);
    }
    moert_tensors_close(actual);
    moert_tensors_close(expected);
}

/* ---- curves ---- */

/* Finds the number of `field` in a line of metrics.jsonl; returns false if the field is absent or
 * null. */
static bool find_number(const char *line, const char *field, double *value) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\": ", field);
    const char *at = strstr(line, key);
    if (at == NULL)
        return false;
    char *end;
    at += strlen(key);
    double number = strtod(at, &end);
    if (end == at || !isfinite(number))
        return false;
    *value = number;
    return true;
}

static void compare_field(const json_t *curve, const char *key, const char *line, const char *field,
                          size_t step, worst *w) {
    const json_t *value = json_array_get(json_object_get(curve, key), step);
    double got;
    char where[64];
    if (!json_is_number(value))
        check(MOERT_FAIL(ERROR_FORMAT, "%s has no '%s' of step %zu", expected_path, key, step));
    if (!find_number(line, field, &got))
        check(MOERT_FAIL(ERROR_FORMAT, "%s has no finite '%s' of step %zu", metrics_path, field,
                         step));
    snprintf(where, sizeof where, "%s of step %zu", field, step);
    const double want = json_number_value(value);
    judge(w, fabs(got - want) / fabs(want), where);
}

static void compare_curve(worst *w) {
    static const char *const fields[][2] = {
        {"ce", "loss"}, {"grad_norm", "grad_norm"}, {"aux", "aux_loss"}};
    json_t *curve = json_load_file(expected_path, 0, NULL);
    FILE *metrics = fopen(metrics_path, "r");
    char line[LINE_BYTES];
    double number;
    size_t step = 0;
    if (curve == NULL || metrics == NULL)
        check(MOERT_FAIL(ERROR_IO, "cannot read %s", curve == NULL ? expected_path : metrics_path));
    const size_t steps = json_array_size(json_object_get(curve, "ce"));
    for (; fgets(line, sizeof line, metrics) != NULL; step++) {
        if (!find_number(line, "step", &number) || number != (double)step)
            check(MOERT_FAIL(ERROR_FORMAT, "line %zu of %s is not of step %zu", step + 1,
                             metrics_path, step));
        for (size_t i = 0; i < (with_aux ? 3 : 2); i++)
            compare_field(curve, fields[i][0], line, fields[i][1], step, w);
    }
    if (step != steps || steps == 0)
        check(MOERT_FAIL(ERROR_MISMATCH, "%s has %zu steps, %s has %zu", metrics_path, step,
                         expected_path, steps));
    fclose(metrics);
    json_decref(curve);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    const bool curve = strcmp(how, "curve") == 0;
    bool help;
    worst w = {0};
    by_bytes = strcmp(how, "bytes") == 0;
    by_largest = strcmp(how, "largest") == 0;
    if (!curve && !by_bytes && !by_largest && strcmp(how, "tensors") != 0)
        return fputs("usage: compare tensors|largest|bytes|curve --expected FILE ...\n", stderr), 2;
    check(moert_options_parse(options, OPTIONS, argc - 1, argv + 1, &help));
    if (expected_path == NULL || (curve ? metrics_path : actual_path) == NULL)
        check(MOERT_FAIL(ERROR_USAGE, "compare %s needs --expected and %s", how,
                         curve ? "--metrics" : "--actual"));
    (curve ? compare_curve : compare_tensors)(&w);
    printf("worst %.3g of %zu (%s)\n", w.error, w.compared,
           w.compared > 0 ? w.where : "nothing to compare");
    return w.failed > 0 || w.compared == 0 ? 1 : 0;
}
