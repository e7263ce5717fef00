/*
 * Shared by all tests: assertions that print the library's message, a device with guarded buffers,
 * random values, comparisons with float64 oracles. files.h has helpers for files, mpi.h for several
 * ranks. A failing assertion ends the running cmocka test.
 */
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "moert/device.h"
#include "moert/formats.h"

/* Checks that the call succeeds. */
#define ASSERT_OK(call)                                                                            \
    do {                                                                                           \
        if ((call) != MOERT_OK)                                                                    \
            fail_msg("%s: %s", #call, moert_last_error());                                         \
    } while (0)

/* Checks that the call fails with this status, and that its message contains this text. */
#define ASSERT_FAILS(call, status, text)                                                           \
    do {                                                                                           \
        if (!failed_with((call), (status), (text)))                                                \
            fail_msg("%s does not fail with '%s'", #call, (text));                                 \
    } while (0)

/* Skips the rest of the running test; tests/run prints why. */
#define SKIP(why)                                                                                  \
    do {                                                                                           \
        print_message("# skipped: %s\n", (why));                                                   \
        skip();                                                                                    \
    } while (0)

/* True if `got` is `wanted` and the last message contains `text`; otherwise prints both. */
bool failed_with(moert_status got, moert_status wanted, const char *text);

/* ---- tests ---- */

/*
 * TEST(name) { ... } defines a test. A program runs its tests in the order of the source. TEST_WITH
 * adds a fixture; `begin` or `end` may be NULL. The test gets the *state that `begin` has set.
 * Before `begin`, *state is `initial` of TEST_ROW.
 */
#define TEST(name)                  TEST_WITH(name, NULL, NULL)
#define TEST_WITH(name, begin, end) TEST_ROW(name, begin, end, NULL)
#define TEST_ROW(name, begin, end, initial)                                                        \
    static void name(void **state);                                                                \
    static const test_row name##_row = {{#name, name, begin, end, initial}, __LINE__};             \
    __attribute__((section("test_rows"), used)) static const test_row *const name##_at =           \
        &name##_row;                                                                               \
    static void name(__attribute__((unused)) void **state)

typedef struct test_row {
    struct CMUnitTest test;
    int line;
} test_row;

/* main(): runs all tests inside this group fixture. */
#define TESTS(begin, end)                                                                          \
    int main(void) {                                                                               \
        return run_file(__FILE__, begin, end);                                                     \
    }
int run_file(const char *file, CMFixtureFunction begin, CMFixtureFunction end);
/* All tests of the program, in the order of the source. */
struct CMUnitTest *tests_of_program(size_t *count);
/* Runs the tests of a table inside a group fixture. */
int run_table(const char *name, const struct CMUnitTest *tests, size_t count,
              CMFixtureFunction begin, CMFixtureFunction end);
/* Runs all tests on the test device. On a Hopper GPU, runs them a second time with GEMMs that use
 * mma.sync. */
int run_tensor_forms(const char *file);

/* ---- ownership ----
 *
 * The running test owns the memory and buffers that test helpers return. When the test ends or
 * fails, they are released in reverse order; callers do not free them. Objects that are created
 * between tests are not released.
 */

/* Returns zeroed memory, never NULL. */
void *test_alloc(size_t bytes);
/* Formats a text as printf does, for titles of comparisons. */
const char *titled(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A buffer on the test device, without a guard. */
moert_buffer *test_buffer(size_t bytes);
/* Makes the running test own `thing`, to be released by release(thing); returns it. `release` may
 * take a pointer to any type, and return anything. */
#define owned(thing, release) own_thing((thing), (void (*)(void *))(void (*)(void))(release))
void *own_thing(void *thing, void (*release)(void *));
moert_buffer *owned_buffer(moert_buffer *buffer);
/* Releases everything that the running test owns: before a device closes, or within a large
 * loop. */
void release_owned(void);
/* release_since() releases everything that the test has come to own since owned_count() returned
 * `count`, for example after one large case of a table. */
size_t owned_count(void);
void release_since(size_t count);

/* ---- settings and processes ---- */

/* Sets an environment variable (NULL: unsets it) and reloads the configuration. */
void set_variable(const char *name, const char *value);

/* Starts a child process that runs work(context) and exits with the result of `work`. end_of()
 * waits until the child has ended; returns the exit status, or 128 + the number of the signal that
 * ended the child. */
int start_child(int (*work)(const void *context), const void *context);
int end_of(int child);

/* Returns the number in the environment variable that mpirun of Open MPI or of MPICH has set, or
 * 0. */
long launched_as(const char *open_mpi, const char *mpich);

/* The backends that run on every device. */
enum { BACKENDS = 2 };
extern const char *const backends[BACKENDS];

/* ---- the device ---- */

/* Group fixture: the device that MOERT_DEVICE names. */
extern moert_device *test_device;
int open_test_device(void **state);
int close_test_device(void **state);

/* True if the device has the tensor cores of Hopper GPUs; if not, prints `otherwise`. */
bool has_hopper(const char *otherwise);

/* True if the device is an NVIDIA GPU of compute capability 8.0 or later; if not, prints
 * `otherwise`. */
bool has_tensor_cores(const char *otherwise);

/* Runs a kernel on a buffer: x[n] += x[n]. */
moert_status run_twice(moert_buffer *x, size_t n);

/* Returns a buffer with a copy of `bytes` of host memory, followed by a guard. */
moert_buffer *upload(const void *source, size_t bytes);
moert_buffer *upload_floats(const float *source, size_t n);
/* Returns a guarded buffer of n doubles, rounded to floats. */
moert_buffer *upload_doubles(const double *source, size_t n);
/* A guarded buffer of n floats, all NaN. */
moert_buffer *unset_floats(size_t n);

/* The content of a guarded buffer as a new array; fails if the guard has changed. */
void *download(const moert_buffer *buffer, size_t bytes);
float *download_floats(const moert_buffer *buffer, size_t n);
/* Copies the content of a guarded buffer into the caller's array; fails if the guard has
 * changed. */
void download_into(const moert_buffer *buffer, void *target, size_t bytes);
/* Upload and download guarded buffers whose elements are f32, f16 or bf16; the host arrays are
 * float32. */
moert_buffer *upload_as(const float *values, size_t count, moert_dtype type);
void download_as(const moert_buffer *buffer, float *values, size_t count, moert_dtype type);
/* A guarded buffer of n bf16 values, all NaN. */
moert_buffer *unset_bf16(size_t n);
/* Checks that bf16[n] are the rounded floats. */
void assert_bf16(const char *what, const moert_buffer *bf16, const float *floats, size_t n);

/* ---- values ---- */

/* Returns n floats, uniform in [-scale, scale), of random stream `stream`. */
float *random_floats(size_t n, float scale, uint64_t stream);

/* Returns draw(key, stream, i), where draw is moert_rng_uniform or moert_rng_normal. Keeps the
 * values, because tests use the same values many times. */
typedef double random_draw(uint64_t key, uint64_t stream, uint64_t index);
double random_once(random_draw *draw, uint64_t key, uint64_t stream, size_t i);

/* A value rounded to a dtype. */
float round_to(moert_dtype type, double value);
void round_all(float *values, size_t n, moert_dtype type);

/* n doubles as floats. */
float *to_floats(const double *values, size_t n);
/* n floats as doubles. */
double *to_doubles(const float *values, size_t n);

/* Returns n normally distributed values of random stream `name`, exact in float32. */
double *random_doubles(const char *name, size_t n);

/* ---- comparisons; NaN equals nothing, except in assert_same_bits ---- */

/* |got - want| <= tolerance */
void assert_within(double got, double want, double tolerance);

/* |got - want| <= max(absolute, relative * |want|), element by element */
void assert_close(const char *what, const float *got, const double *want, size_t n, double absolute,
                  double relative);

/* |got - want| <= tolerance * max(|want|, root mean square of all want, 0.01) */
void assert_near(const char *what, const float *got, const double *want, size_t n,
                 double tolerance);

/* The norm of a - b relative to that of a; NaN if both are 0. */
double relative_difference(const float *a, const float *b, size_t n);

/* Checks that the n floats have the same bits. */
void assert_same_bits(const char *what, const float *got, const float *want, size_t n);

/* Compares the content of a guarded buffer, as assert_near() and assert_same_bits() do. */
void assert_near_in(const char *what, const moert_buffer *got, const double *want, size_t n,
                    double tolerance);
void assert_same_bits_in(const char *what, const moert_buffer *got, const float *want, size_t n);

/*
 * Compares gradient[n] with central differences in float64 of loss(context) with respect to
 * value[n], at every `stride`-th element.
 */
typedef struct differentiated {
    double *value;
    size_t n, stride;
    double (*loss)(void *context);
    void *context;
} differentiated;
void assert_gradient(const char *what, const float *gradient, differentiated of);
