/*
 * compare: compares the files that a program wrote with golden files, for the end-to-end tests.
 *
 *   compare tensors --expected E.safetensors --actual A.safetensors [--only NAME]
 *   compare largest --expected E.safetensors --actual A.safetensors [--only NAME | --except NAME]
 *   compare bytes --expected E.safetensors --actual A.safetensors [--only NAME | --except NAME]
 *   compare curve --expected curve.json --metrics metrics.jsonl [--aux]
 *
 * tensors: the relative error of a tensor is the norm of the difference over the norm of the
 * expected tensor. largest: the largest difference over the largest finite expected magnitude;
 * infinities must be equal. bytes: the bytes must be equal, the dtypes need not be. curve: the
 * relative error of each step. The exit code is 0 if every error is within --tolerance, 1 if not, 2
 * after a failure.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/memory.h"
#include "io/safetensors.h"
#include "tools/common/options.h"
#include "train/metrics.h"

enum { LINE_BYTES = 4096 };
static const double zero_norm = 1e-12; /* the largest norm that counts as 0 if 0 is expected */

static const char *expected_path, *actual_path, *metrics_path, *only, *except;
static double tolerance;
static bool with_aux, by_bytes, by_largest;

static const moert_option options[] = {
    {"expected", MOERT_OPTION_STRING, &expected_path, NULL, NULL,
     "golden safetensors file or curve"},
    {"actual", MOERT_OPTION_STRING, &actual_path, NULL, NULL, "safetensors file to check"},
    {"only", MOERT_OPTION_STRING, &only, NULL, NULL,
     "compare only this tensor; default all expected ones"},
    {"except", MOERT_OPTION_STRING, &except, NULL, NULL, "a tensor not to compare"},
    {"metrics", MOERT_OPTION_STRING, &metrics_path, NULL, NULL, "JSON lines to check"},
    {"tolerance", MOERT_OPTION_FLOAT, &tolerance, "2e-5", "0..", "largest relative error"},
    {"aux", MOERT_OPTION_FLAG, &with_aux, NULL, NULL, "also compare the auxiliary loss"},
};
enum { OPTIONS = MOERT_COUNT(options) };

/* The largest error so far, and its place. */
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

static moert_status compare_tensor(const moert_tensor *want, const moert_tensors *actual,
                                   worst *w) {
    const char *name = want->name;
    const moert_tensor *got;
    float *values;
    MOERT_TRY(moert_tensors_get(actual, name, want->rank, want->shape, &got));
    MOERT_TRY(moert_alloc(&values, 2 * want->elements, sizeof *values));
    moert_status status = moert_tensor_read_f32(want, 0, want->elements, values);
    if (status == MOERT_OK)
        status = moert_tensor_read_f32(got, 0, want->elements, values + want->elements);
    if (status == MOERT_OK)
        judge(w,
              (by_largest ? largest_distance : distance)(values, values + want->elements,
                                                         want->elements),
              name);
    free(values);
    return status;
}

static moert_status compare_bytes(const moert_tensor *want, const moert_tensors *actual, worst *w) {
    const moert_tensor *got;
    char where[160];
    size_t at = 0;
    MOERT_TRY(moert_tensors_get(actual, want->name, want->rank, want->shape, &got));
    if (got->bytes != want->bytes)
        return MOERT_FAIL(ERROR_MISMATCH, "%s has %zu bytes, not %zu", want->name, got->bytes,
                          want->bytes);
    const unsigned char *a = want->data, *b = got->data;
    while (at < want->bytes && a[at] == b[at])
        at++;
    snprintf(where, sizeof where, at < want->bytes ? "%s, byte %zu" : "%s", want->name, at);
    judge(w, at < want->bytes ? INFINITY : 0.0, where);
    return MOERT_OK;
}

static bool is_wanted(const char *name) {
    return (only == NULL || strcmp(only, name) == 0) &&
           (except == NULL || strcmp(except, name) != 0);
}

static moert_status compare_tensors(worst *w) {
    moert_tensors *expected = NULL, *actual = NULL;
    moert_status status;
    if (expected_path == NULL || actual_path == NULL)
        return MOERT_FAIL(ERROR_USAGE, "compare tensors needs --expected and --actual");
    MOERT_TRY_OR(done, moert_tensors_open(expected_path, &expected));
    MOERT_TRY_OR(done, moert_tensors_open(actual_path, &actual));
    for (size_t i = 0; i < moert_tensors_count(expected); i++) {
        const moert_tensor *want = moert_tensors_at(expected, i);
        if (is_wanted(want->name))
            MOERT_TRY_OR(done, by_bytes ? compare_bytes(want, actual, w)
                                        : compare_tensor(want, actual, w));
    }
done:
    moert_tensors_close(actual);
    moert_tensors_close(expected);
    return status;
}

/* ---- curves ---- */

static moert_status compare_field(const json_t *curve, const char *key, const char *line,
                                  const char *field, size_t step, worst *w) {
    const json_t *value = json_array_get(json_object_get(curve, key), step);
    double got, want = json_number_value(value);
    char where[64];
    if (!json_is_number(value))
        return MOERT_FAIL(ERROR_FORMAT, "%s has no '%s' of step %zu", expected_path, key, step);
    if (!moert_metrics_field(line, field, &got))
        return MOERT_FAIL(ERROR_FORMAT, "%s has no finite '%s' of step %zu", metrics_path, field,
                          step);
    snprintf(where, sizeof where, "%s of step %zu", field, step);
    judge(w, fabs(got - want) / fabs(want), where);
    return MOERT_OK;
}

static moert_status compare_step(const json_t *curve, const char *line, size_t step, worst *w) {
    double number;
    if (!moert_metrics_field(line, "step", &number) || number != (double)step)
        return MOERT_FAIL(ERROR_FORMAT, "line %zu of %s is not of step %zu", step + 1, metrics_path,
                          step);
    MOERT_TRY(compare_field(curve, "ce", line, "loss", step, w));
    MOERT_TRY(compare_field(curve, "grad_norm", line, "grad_norm", step, w));
    return with_aux ? compare_field(curve, "aux", line, "aux_loss", step, w) : MOERT_OK;
}

static moert_status compare_lines(const json_t *curve, FILE *metrics, worst *w) {
    size_t steps = json_array_size(json_object_get(curve, "ce")), step = 0;
    char line[LINE_BYTES];
    for (; fgets(line, sizeof line, metrics) != NULL; step++)
        MOERT_TRY(compare_step(curve, line, step, w));
    if (step != steps || steps == 0)
        return MOERT_FAIL(ERROR_MISMATCH, "%s has %zu steps, %s has %zu", metrics_path, step,
                          expected_path, steps);
    return MOERT_OK;
}

static moert_status compare_curve(worst *w) {
    json_error_t error;
    if (expected_path == NULL || metrics_path == NULL)
        return MOERT_FAIL(ERROR_USAGE, "compare curve needs --expected and --metrics");
    json_t *curve = json_load_file(expected_path, 0, &error);
    if (curve == NULL)
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s", expected_path, error.text);
    FILE *metrics = fopen(metrics_path, "r");
    moert_status status = metrics != NULL ? compare_lines(curve, metrics, w)
                                          : MOERT_FAIL(ERROR_IO, "cannot read %s", metrics_path);
    if (metrics != NULL)
        fclose(metrics);
    json_decref(curve);
    return status;
}

int main(int argc, char **argv) {
    bool help = false, curve = argc > 1 && strcmp(argv[1], "curve") == 0;
    worst w = {0};
    by_bytes = argc > 1 && strcmp(argv[1], "bytes") == 0;
    by_largest = argc > 1 && strcmp(argv[1], "largest") == 0;
    if (argc < 2 || (!curve && !by_bytes && !by_largest && strcmp(argv[1], "tensors") != 0)) {
        fputs("usage: compare tensors|largest|bytes|curve --expected FILE ...\n", stderr);
        return 2;
    }
    moert_status status = moert_options_parse(options, OPTIONS, argc - 1, argv + 1, &help);
    if (status == MOERT_OK && help) {
        moert_options_usage(stdout, "compare tensors|largest|bytes|curve [OPTION...]",
                            "Compares results with golden files.", options, OPTIONS);
        return 0;
    }
    if (status == MOERT_OK)
        status = curve ? compare_curve(&w) : compare_tensors(&w);
    if (status != MOERT_OK) {
        fprintf(stderr, "compare: %s\n", moert_last_error());
        return 2;
    }
    printf("worst %.3g of %zu (%s)\n", w.error, w.compared,
           w.compared > 0 ? w.where : "nothing to compare");
    return w.failed > 0 || w.compared == 0 ? 1 : 0;
}
