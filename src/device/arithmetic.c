/* Compares a device's arithmetic with the host's, by a sample of operands and sums. */
#include "device/arithmetic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#include "args/arithmetic.h"
#include "base/dtype.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/text.h"
#include "device/buffer.h"
#include "device/cache.h"
#include "device/internal.h"
#include "device/launch.h"
#include "device/program.h"
#include "device/queue.h"

#define FAMILY "lib/arithmetic"

/* Each quarter of the sample has its own exponents. The sums add values of the last quarter. */
enum { SAMPLE = 4096, QUARTER = SAMPLE / 4, SUMMED = SAMPLE - QUARTER, OPERANDS = 3, SUMS = 4 };

static const struct {
    uint32_t lowest, count; /* biased exponents: 0 is the exponent of subnormal numbers, 255 that of
                               inf and NaN */
} exponents[] = {{0, 256}, {0, 32}, {64, 128}, {126, 3}};

typedef struct results {
    float operations[2][MOERT_ARITHMETIC_ROWS][SAMPLE]; /* [0]: results computed on vectors; [1]:
                                                           results computed on scalars */
    float sums[SUMS];
} results;

typedef struct examination {
    float operands[OPERANDS][SAMPLE]; /* x, y, z */
    results want, got;
} examination;

#define DEFINE(name, formula)                                                                      \
    static float compute_##name(float x, float y, float z) {                                       \
        (void)x, (void)y, (void)z;                                                                 \
        return formula;                                                                            \
    }
MOERT_ARITHMETIC_TABLE(DEFINE)
#undef DEFINE

static const struct {
    const char *formula;
    float (*compute)(float x, float y, float z);
} operations[] = {
#define ROW(name, formula) {#formula, compute_##name},
    MOERT_ARITHMETIC_TABLE(ROW)
#undef ROW
};

static const char *const sum_formulas[SUMS] = {
    "the sum of x", "the sum of x * y", "the sum of x * x", "the lower part of the sum of x * x"};

static void draw_operands(examination *e) {
    for (uint32_t i = 0; i < SAMPLE; i++) {
        const moert_random random = moert_rng_block(0, 0, i);
        const uint32_t lowest = exponents[i / QUARTER].lowest, count = exponents[i / QUARTER].count;
        for (int operand = 0; operand < OPERANDS; operand++) {
            const uint32_t word = random.word[operand];
            e->operands[operand][i] =
                moert_float_from_bits((word & 0x807FFFFF) | (lowest + (word >> 23) % count) << 23);
        }
    }
}

static void compute_here(examination *e, bool has_fp64) {
    const float *x = e->operands[0], *y = e->operands[1], *z = e->operands[2];
    float plain = 0.0f, products = 0.0f, squares = 0.0f;
    double wide_squares = 0.0;
    for (int row = 0; row < MOERT_ARITHMETIC_ROWS; row++)
        for (int i = 0; i < SAMPLE; i++)
            e->want.operations[0][row][i] = e->want.operations[1][row][i] =
                operations[row].compute(x[i], y[i], z[i]);
    for (int i = SUMMED; i < SAMPLE; i++) {
        plain += x[i];
        products += x[i] * y[i];
        squares += x[i] * x[i];
        wide_squares += (double)x[i] * (double)x[i];
    }
    squares = has_fp64 ? (float)wide_squares : squares;
    const float lower = has_fp64 ? (float)(wide_squares - (double)squares) : 0.0f;
    memcpy(e->want.sums, (const float[SUMS]){plain, products, squares, lower}, sizeof e->want.sums);
}

static moert_status compute_on(moert_device *device, examination *e) {
    moert_buffer *operands = NULL, *computed = NULL;
    moert_status status;
    MOERT_TRY(moert_buffer_create(device, sizeof e->operands, &operands));
    MOERT_TRY_OR(done, moert_buffer_create(device, sizeof e->got, &computed));
    MOERT_TRY_OR(done, moert_buffer_write(operands, 0, e->operands, sizeof e->operands));
    MOERT_TRY_OR(done, MOERT_RUN(device, FAMILY, "operations", ((moert_grid){1, 1, 1}),
                                 MOERT_ARG(operands), MOERT_ARG(computed), MOERT_ARG(SAMPLE)));
    MOERT_TRY_OR(done,
                 MOERT_RUN(device, FAMILY, "sums", ((moert_grid){1, 1, 1}), MOERT_ARG(operands),
                           MOERT_ARG(computed), MOERT_ARG(SAMPLE), MOERT_ARG(SUMMED)));
    MOERT_TRY_OR(done, moert_buffer_read(computed, 0, &e->got, sizeof e->got));
done:
    MOERT_DESTROY(computed, operands);
    return status;
}

static bool equal(float a, float b) {
    return moert_float_bits(a) == moert_float_bits(b) || (isnan(a) && isnan(b));
}

/* Returns a text about the first difference, or "" if nothing differs; NULL if memory runs out. */
static char *first_difference(const examination *e) {
    for (int form = 0; form < 2; form++)
        for (int row = 0; row < MOERT_ARITHMETIC_ROWS; row++)
            for (int i = 0; i < SAMPLE; i++) {
                const float got = e->got.operations[form][row][i];
                const float want = e->want.operations[form][row][i];
                if (!equal(got, want))
                    return moert_text_format("%s of %s is %a, not %a, with x = %a, y = %a, z = %a",
                                             operations[row].formula,
                                             form == 0 ? "vectors" : "scalars", (double)got,
                                             (double)want, (double)e->operands[0][i],
                                             (double)e->operands[1][i], (double)e->operands[2][i]);
            }
    for (int i = 0; i < SUMS; i++)
        if (!equal(e->got.sums[i], e->want.sums[i]))
            return moert_text_format("%s is %a, not %a as in order", sum_formulas[i],
                                     (double)e->got.sums[i], (double)e->want.sums[i]);
    return strdup("");
}

/* Compares on a queue of its own, since the caller's queue may be blocked by any event. */
static moert_status compare(const moert_device *device, char **difference) {
    moert_device own = {.context = device->context, .id = device->id, .info = device->info};
    examination *e;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&e));
    draw_operands(e);
    compute_here(e, device->info.has_fp64);
    MOERT_TRY_OR(free_examination, moert_queue_open(&own, false));
    status = compute_on(&own, e);
    if (status == MOERT_OK)
        *difference = first_difference(e);
    if (status == MOERT_OK && *difference == NULL)
        status =
            MOERT_FAIL(ERROR_MEMORY, "no memory for the message about a difference in arithmetic");
    moert_program_release_all(&own);
    clReleaseCommandQueue(own.queue);
free_examination:
    free(e);
    return status;
}

/* Takes the result from the cache or, if it is missing there, calls compare() and stores the
 * result. */
static moert_status recall_or_compare(const moert_device *device, char **difference) {
    moert_cache_entry entry;
    moert_status status = MOERT_OK;
    unsigned char *stored;
    size_t bytes;
    char *key, *name;
    MOERT_TRY(moert_program_key(device, FAMILY, &key));
    name = key != NULL ? moert_text_format("%s-difference", key) : NULL;
    moert_cache_open(name, &entry, &stored, &bytes);
    if (stored != NULL && strnlen((char *)stored, bytes) == bytes - 1) {
        *difference = (char *)stored;
        moert_cache_close(&entry, NULL, 0);
    } else {
        free(stored);
        status = compare(device, difference);
        const bool compared = status == MOERT_OK;
        moert_cache_close(&entry, compared ? (unsigned char *)*difference : NULL,
                          compared ? strlen(*difference) + 1 : 0);
    }
    MOERT_FREE(name, key);
    return status;
}

moert_status moert_device_difference(const moert_device *device, char **difference) {
    *difference = NULL;
    if (!moert_program_is_fast(device))
        return recall_or_compare(device, difference);
    *difference = strdup("tensor cores add in another order (MOERT_BACKEND=portable uses none)");
    return *difference != NULL
               ? MOERT_OK
               : MOERT_FAIL(ERROR_MEMORY, "no memory for the message about tensor cores");
}
