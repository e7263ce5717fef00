/* The oracle and the comparisons of gemm.h. */
#include <xxhash.h>

#include "base/memory.h"
#include "support/gemm/gemm.h"

/* ---- the oracle ---- */

/* Element (i, t) of an operand in a sum over t is at[i * line + t * term]. */
typedef struct operand {
    const float *at;
    size_t line, term;
} operand;

static double *rounded(operand o, size_t lines, size_t terms, moert_dtype type) {
    double *values = test_alloc(lines * terms * sizeof *values);
    for (size_t i = 0; i < lines; i++)
        for (size_t t = 0; t < terms; t++)
            values[i * terms + t] = (double)round_to(type, (double)o.at[i * o.line + t * o.term]);
    return values;
}

/* The results of a group: element (i, j) is a sum of `terms` products a(i, t) b(j, t). */
typedef struct products {
    operand a, b;
    size_t lines, columns, terms;
    size_t first; /* the index of element (0, 0) in results_of() */
} products;

static products products_of(const problem *p, operation op, const arrays *a, size_t g) {
    static const float one = 1.0f;
    const size_t n = p->n, k = p->k, first = start_of(p, g), rows = p->ends[g] - first;
    const float *weight = a->weight + (p->shared ? 0 : g * n * k);
    const operand x = {a->x + first * a->ldx, a->ldx, 1}, columns_of_x = {x.at, 1, a->ldx};
    const operand y = {a->y + first * a->ldy + p->y_column, a->ldy, 1},
                  columns_of_y = {y.at, 1, a->ldy};
    const products all[] = {
        [FORWARD] = {x, {weight, k, 1}, rows, n, k, first * a->ldy + p->y_column},
        [DGRAD] = {y, {weight, 1, k}, rows, k, n, first * a->ldx},
        [WGRAD] = {columns_of_y, columns_of_x, n, k, rows, g * n * k},
        [BIAS_GRAD] = {{&one, 0, 0}, columns_of_y, 1, n, rows, g * n},
    };
    return all[op];
}

/* The elements of results_of(). Those that the operation does not write keep their values. */
typedef struct exact {
    double *sum, *size;
} exact;

static exact exact_results(const problem *p, operation op, moert_dtype type, const arrays *a) {
    const results old = results_of(p, op, a);
    exact e = {to_doubles(old.data, old.count), test_alloc(old.count * sizeof(double))};
    for (size_t g = 0; g < p->groups; g++) {
        const products s = products_of(p, op, a, g);
        const size_t owned = owned_count();
        const double *left = rounded(s.a, s.lines, s.terms, type),
                     *right = rounded(s.b, s.columns, s.terms, type);
        for (size_t i = 0; i < s.lines; i++)
            for (size_t j = 0; j < s.columns; j++) {
                double *sum = &e.sum[s.first + i * old.stride + j], *size = e.size + (sum - e.sum);
                if (op == FORWARD)
                    *sum = p->bias ? (double)a->bias[(p->shared ? 0 : g * p->n) + j] : 0.0;
                else if (!p->accumulate)
                    *sum = 0.0;
                *size = fabs(*sum);
                for (size_t t = 0; t < s.terms; t++) {
                    const double product = left[i * s.terms + t] * right[j * s.terms + t];
                    *sum += product;
                    *size += fabs(product);
                }
            }
        release_since(owned);
    }
    return e;
}

void check_exact(const problem *p, operation op, const way *by) {
    arrays want = make_arrays(p, true);
    const results r = results_of(p, op, &want);
    const exact e = exact_results(p, op, by->type, &want);
    for (size_t i = 0; i < r.count; i++)
        r.data[i] = (float)e.sum[i];
    check_run(p, op, by, true, &want);
}

double worst_error(const problem *p, operation op, const way *by, arrays *a) {
    const exact e = exact_results(p, op, by->type, a);
    double worst = 0.0;
    run_gemm(p, op, by, a);
    const results got = results_of(p, op, a);
    for (size_t i = 0; i < got.count; i++) {
        const double error = fabs((double)got.data[i] - e.sum[i]);
        if (isnan(e.sum[i]) ? !isnan(got.data[i]) : !(error <= worst * e.size[i]))
            worst = isfinite(error) && e.size[i] > 0.0 ? error / e.size[i] : INFINITY;
    }
    return worst;
}

void check_near(const problem *p, operation op, const way *by, double bound) {
    arrays a = make_arrays(p, false);
    const double worst = worst_error(p, op, by, &a);
    if (!(worst <= bound))
        fail_msg("[%zu,%zu,%zu], %s: an error of %.3g", p->rows, p->n, p->k, operation_names[op],
                 worst);
}

/* ---- comparisons ---- */

void compare_arrays(const char *title, const arrays *got, const arrays *want) {
    const float *a[] = {got->x, got->weight, got->bias, got->y, got->h};
    const float *b[] = {want->x, want->weight, want->bias, want->y, want->h};
    const size_t counts[] = {got->x_count, got->weight_count, got->bias_count, got->y_count,
                             got->h_count};
    for (size_t i = 0; i < MOERT_COUNT(counts); i++)
        assert_same_bits(titled("%s, array %zu", title, i), a[i], b[i], counts[i]);
}

void check_run(const problem *p, operation op, const way *by, bool integers, const arrays *want) {
    const arrays got = run_new(p, op, by, integers);
    compare_arrays(
        titled("[%zu,%zu,%zu], %s, %s", p->rows, p->n, p->k, operation_names[op], by->name), &got,
        want);
}

void check_parts(const problem *p, operation op, const way *by) {
    const arrays whole = run_new(p, op, by, false);
    way parts = *by;
    parts.parts = true;
    check_run(p, op, &parts, false, &whole);
}

void check_company(const problem *whole, const way *by, const size_t (*ranges)[2], size_t count) {
    for (operation op = FORWARD; op <= DGRAD; op++) {
        const arrays all = run_new(whole, op, by, false);
        const results among = results_of(whole, op, &all);
        for (size_t i = 0; i < count; i++) {
            const arrays alone = run_alone(whole, op, by, ranges[i][0], ranges[i][1]);
            const results rows = results_of(whole, op, &alone);
            assert_same_bits(operation_names[op], rows.data,
                             among.data + ranges[i][0] * among.stride, rows.count);
        }
    }
}

/* ---- threads ---- */

uint64_t hash_arrays(const arrays *a, uint64_t hash) {
    hash = XXH3_64bits_withSeed(a->x, a->x_count * sizeof(float), hash);
    hash = XXH3_64bits_withSeed(a->y, a->y_count * sizeof(float), hash);
    hash = XXH3_64bits_withSeed(a->h, a->h_count * sizeof(float), hash);
    return XXH3_64bits_withSeed(a->weight, a->weight_count * sizeof(float), hash);
}

void check_threads(void) {
    char *path = realpath("/proc/self/exe", NULL), digest[3][32];
    for (int threads = 1; threads <= 3; threads++) {
        /* no check of leaks: where libraries leak, it ends the process before its output is
         * written */
        FILE *pipe = popen(titled("ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 "
                                  "POCL_MAX_PTHREAD_COUNT=%d '%s' digest",
                                  threads, path),
                           "r");
        assert_non_null(pipe);
        assert_non_null(fgets(digest[threads - 1], sizeof digest[0], pipe));
        assert_int_equal(pclose(pipe), 0);
        assert_string_equal(digest[threads - 1], digest[0]);
    }
    free(path);
}

int run_with_digest(const char *file, int count, char **words, uint64_t (*digest)(void)) {
    if (count != 2 || strcmp(words[1], "digest") != 0)
        return run_file(file, open_test_device, close_test_device);
    if (open_test_device(NULL) != 0)
        return 1;
    printf("%016llx\n", (unsigned long long)digest());
    return close_test_device(NULL);
}
