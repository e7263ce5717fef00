/* Test tables, ownership, random values and comparisons (test.h). */
#include "support/test.h"

#include <sys/wait.h>
#include <unistd.h>

#include "base/config.h"
#include "base/rng.h"
#include "base/text.h"

enum { SEED = 17 };
const char *const backends[BACKENDS] = {"reference", "portable"};
static const double gradient_tolerance = 2e-5;
/* inputs have magnitudes of about 1, so tolerances are relative to at least this magnitude */
static const double least_magnitude = 0.01;

bool failed_with(moert_status got, moert_status wanted, const char *text) {
    if (got == wanted && strstr(moert_last_error(), text) != NULL)
        return true;
    print_error("%s, not %s with '%s': %s\n", moert_status_name(got), moert_status_name(wanted),
                text, moert_last_error());
    return false;
}

/* The rows of all TESTs of a program; the linker defines these symbols if there are any. */
extern const test_row *const __start_test_rows[] __attribute__((weak));
extern const test_row *const __stop_test_rows[] __attribute__((weak));

static int by_line(const void *a, const void *b) {
    const test_row *const *first = a, *const *second = b;
    return (*first)->line - (*second)->line;
}

struct CMUnitTest *tests_of_program(size_t *count) {
    *count = (size_t)(__stop_test_rows - __start_test_rows);
    const test_row **rows = test_alloc(*count * sizeof *rows);
    struct CMUnitTest *tests = test_alloc(*count * sizeof *tests);
    memcpy(rows, __start_test_rows, *count * sizeof *rows);
    qsort(rows, *count, sizeof *rows, by_line);
    for (size_t i = 0; i < *count; i++)
        tests[i] = rows[i]->test;
    return tests;
}

int run_file(const char *file, CMFixtureFunction begin, CMFixtureFunction end) {
    const char *slash = strrchr(file, '/');
    size_t count;
    struct CMUnitTest *tests = tests_of_program(&count);
    return run_table(slash != NULL ? slash + 1 : file, tests, count, begin, end);
}

/* ---- objects owned by the running test ---- */

static struct {
    struct {
        void *thing;
        void (*release)(void *);
    } * all;
    size_t count, room;
    size_t before, of_setup; /* values of `count` before and after the setup of the running test */
    const struct CMUnitTest *running;
} mine;

void *own_thing(void *thing, void (*release)(void *)) {
    if (mine.count == mine.room) {
        mine.room = 2 * mine.room + 64;
        mine.all = realloc(mine.all, mine.room * sizeof *mine.all);
        assert_non_null(mine.all);
    }
    mine.all[mine.count].thing = thing;
    mine.all[mine.count++].release = release;
    return thing;
}

void *test_alloc(size_t bytes) {
    void *memory = calloc(1, bytes > 0 ? bytes : 1);
    assert_non_null(memory);
    return owned(memory, free);
}

const char *titled(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = moert_text_format_list(format, arguments);
    va_end(arguments);
    assert_non_null(text);
    return owned(text, free);
}

size_t owned_count(void) {
    return mine.count;
}

void release_since(size_t first) {
    for (; mine.count > first; mine.count--)
        mine.all[mine.count - 1].release(mine.all[mine.count - 1].thing);
}

void release_owned(void) {
    release_since(mine.of_setup);
}

static int begin_test(void **state) {
    mine.running = *state;
    mine.before = mine.count;
    *state = mine.running->initial_state;
    const int failed = mine.running->setup_func != NULL ? mine.running->setup_func(state) : 0;
    mine.of_setup = mine.count;
    return failed;
}

static int end_test(void **state) {
    release_owned();
    const int failed = mine.running->teardown_func != NULL ? mine.running->teardown_func(state) : 0;
    release_since(mine.before);
    return failed;
}

int run_table(const char *name, const struct CMUnitTest *tests, size_t count,
              CMFixtureFunction begin, CMFixtureFunction end) {
    struct CMUnitTest *all = test_alloc(count * sizeof *all);
    for (size_t i = 0; i < count; i++)
        all[i] = (struct CMUnitTest){tests[i].name, tests[i].test_func, begin_test, end_test,
                                     (void *)(uintptr_t)&tests[i]};
    return _cmocka_run_group_tests(name, all, count, begin, end);
}

int start_child(int (*work)(const void *), const void *context) {
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0)
        _exit(work(context));
    assert_true(child > 0);
    return child;
}

int end_of(int child) {
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

long launched_as(const char *open_mpi, const char *mpich) {
    const char *text = getenv(open_mpi) != NULL ? getenv(open_mpi) : getenv(mpich);
    return text != NULL ? strtol(text, NULL, 10) : 0;
}

void set_variable(const char *name, const char *value) {
    if (value != NULL)
        assert_int_equal(setenv(name, value, 1), 0);
    else
        assert_int_equal(unsetenv(name), 0);
    moert_config_reload();
}

/* The values that have been drawn from a random stream so far. */
typedef struct drawn {
    random_draw *draw;
    uint64_t key, stream;
    size_t count;
    double *values; /* [count] */
    struct drawn *next;
} drawn;

double random_once(random_draw *draw, uint64_t key, uint64_t stream, size_t i) {
    static drawn *all;
    drawn *d = all;
    while (d != NULL && (d->stream != stream || d->key != key || d->draw != draw))
        d = d->next;
    if (d == NULL) {
        d = calloc(1, sizeof *d);
        assert_non_null(d);
        *d = (drawn){draw, key, stream, 0, NULL, all};
        all = d;
    }
    if (i >= d->count) {
        const size_t count = i < 2 * d->count ? 2 * d->count : i + 64;
        d->values = realloc(d->values, count * sizeof *d->values);
        assert_non_null(d->values);
        for (; d->count < count; d->count++)
            d->values[d->count] = draw(key, stream, d->count);
    }
    return d->values[i];
}

float *random_floats(size_t n, float scale, uint64_t stream) {
    float *values = test_alloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = scale * (float)(2.0 * moert_rng_uniform(SEED, stream, i) - 1.0);
    return values;
}

float *to_floats(const double *values, size_t n) {
    float *floats = test_alloc(n * sizeof *floats);
    for (size_t i = 0; i < n; i++)
        floats[i] = (float)values[i];
    return floats;
}

double *to_doubles(const float *values, size_t n) {
    double *doubles = test_alloc(n * sizeof *doubles);
    for (size_t i = 0; i < n; i++)
        doubles[i] = (double)values[i];
    return doubles;
}

double *random_doubles(const char *name, size_t n) {
    double *values = test_alloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = (float)moert_rng_normal(SEED, moert_rng_stream(name), i);
    return values;
}

void assert_within(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%.9g is not %.9g within %.3g", got, want, tolerance);
}

void assert_close(const char *what, const float *got, const double *want, size_t n, double absolute,
                  double relative) {
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= fmax(absolute, relative * fabs(want[i]))))
            fail_msg("%s[%zu of %zu] is %.9g, not %.9g", what, i, n, (double)got[i], want[i]);
}

void assert_near(const char *what, const float *got, const double *want, size_t n,
                 double tolerance) {
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += want[i] * want[i];
    const double typical = fmax(least_magnitude, n > 0 ? sqrt(squares / (double)n) : 0);
    assert_close(what, got, want, n, tolerance * typical, tolerance);
}

double relative_difference(const float *a, const float *b, size_t n) {
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)a[i] - (double)b[i];
        difference += d * d;
        norm += (double)a[i] * (double)a[i];
    }
    return sqrt(difference / norm);
}

void assert_same_bits(const char *what, const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s[%zu of %zu] is %.9g (%a), not bit for bit %.9g (%a)", what, i, n,
                     (double)got[i], (double)got[i], (double)want[i], (double)want[i]);
}

void assert_near_in(const char *what, const moert_buffer *got, const double *want, size_t n,
                    double tolerance) {
    assert_near(what, download_floats(got, n), want, n, tolerance);
}

void assert_same_bits_in(const char *what, const moert_buffer *got, const float *want, size_t n) {
    assert_same_bits(what, download_floats(got, n), want, n);
}

void assert_gradient(const char *what, const float *gradient, differentiated of) {
    const double step = 1e-4;
    const size_t n = of.n, stride = of.stride;
    double *value = of.value;
    const size_t samples = (n + stride - 1) / stride;
    float *got = test_alloc(samples * sizeof *got);
    double *want = test_alloc(samples * sizeof *want);
    for (size_t i = 0; i < samples; i++) {
        const double kept = value[i * stride];
        value[i * stride] = kept + step;
        const double above = of.loss(of.context);
        value[i * stride] = kept - step;
        const double below = of.loss(of.context);
        value[i * stride] = kept;
        got[i] = gradient[i * stride];
        want[i] = (above - below) / (2 * step);
    }
    assert_near(what, got, want, samples, gradient_tolerance);
}
