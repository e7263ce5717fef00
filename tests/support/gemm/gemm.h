/*
 * Grouped products of hostile shapes for the tests of gemm/gemm.h: host arrays with guards, and
 * the ways to compute them (backend, type, prepacked weights).
 */
#pragma once

#include "gemm/gemm.h"
#include "support/test.h"

enum { MOST_GROUPS = 6 };
typedef enum operation {
    FORWARD,
    DGRAD,
    WGRAD,
    BIAS_GRAD,
    OPERATIONS
} operation; /* as moert_gemm_kind */

typedef struct problem {
    size_t n, k, rows, groups;
    uint32_t ends[MOST_GROUPS];
    bool shared, accumulate, bias;
    size_t pad_x, pad_y, y_column; /* ldx = k + pad_x, ldy = y_column + n + pad_y */
} problem;

extern const problem gemm_problems[];
extern const size_t gemm_problem_count;

/* How a product is computed. */
typedef struct way {
    const char *name, *backend;
    moert_dtype type;
    bool prepacked;
    const char *bf16;   /* MOERT_BF16; NULL: auto */
    bool parts;         /* forward, dgrad and gated: two groups after the other */
    moert_dtype result; /* of forward and dgrad */
    bool split;         /* into parts of operands, if the device does */
    unsigned spared;    /* compute units, which join in by the second queue */
    size_t runs;        /* forward, dgrad: lines go anywhere, in turns; 0: not */
} way;

/* All ways: a reference each, then those that have its bits, of which the first is the plain
 * portable one. */
extern const way gemm_ways[];
extern const size_t gemm_way_count;
const way *reference_of(const way *by);
bool is_reference(const way *by);
bool sums_in_tiles(const way *by);
enum {
    REFERENCE_F32,
    PORTABLE_F32,
    PACKED_F32,
    REFERENCE_BF16,
    PORTABLE_BF16,
    PACKED_BF16,
    REFERENCE_WIDENED,
    REFERENCE_TILES = REFERENCE_WIDENED + 3
};

/* The host side of a problem; operands of bf16 are rounded on their way to the device. */
typedef struct arrays {
    size_t ldx, ldy, x_count, weight_count, bias_count, y_count;
    float *x, *weight, *bias, *y;
} arrays;

/* Small integers, or random numbers of many magnitudes; everything that must be neither read nor
 * written is NaN. */
arrays make_arrays(const problem *p, bool integers);

static inline size_t start_of(const problem *p, size_t g) {
    return g > 0 ? p->ends[g - 1] : 0;
}

extern const char *const operation_names[];

/* Of a way with runs, every fifth line goes nowhere. */
static inline bool is_lost(size_t line) {
    return line % 5 == 4;
}

/* What an operation makes: rows or lines `stride` apart. */
typedef struct results {
    float *data;
    size_t count, stride;
} results;
results results_of(const problem *p, operation op, const arrays *a);

/* A product of the arrays on the device, x and y of these types; without its bias. */
moert_gemm upload_gemm(const problem *p, const arrays *a, moert_dtype x_type, moert_dtype y_type);

static inline moert_status run_as(moert_gemm_kind kind, const moert_gemm *gemm) {
    moert_gemm run = *gemm;
    run.kind = kind;
    return moert_gemm_run(&run);
}

/* Runs an operation on the device and writes all arrays back. */
void run_gemm(const problem *p, operation op, const way *by, arrays *a);
/* The same of arrays of its own. */
arrays run_new(const problem *p, operation op, const way *by, bool integers);
/* The same of `count` rows from `first` on alone, in one group. */
arrays run_alone(const problem *whole, operation op, const way *by, size_t first, size_t count);

/* A forward product and its GLU into h[M,N/2], by one call or two; prob_stride 0: without prob. */
typedef struct gated_run {
    moert_glu_form form;
    size_t prob_stride;
    bool fused, drop_v;
    moert_dtype type; /* of h */
    moert_dtype v;    /* its type */
} gated_run;
/* GLUs, each layout twice. */
enum { GATED_FORMS = 4 };
extern const gated_run gated_forms[GATED_FORMS];

/* The arrays, h as well, which is NaN where nothing is written; of the groups' rows, the first
 * `results` numbers. */
typedef struct gated {
    arrays a;
    float *h;
    size_t h_count, results;
} gated;
gated run_gated(const problem *p, const gated_run *how, const way *by, bool integers);

/* For tests of threads: the digest that this program prints as `PROGRAM digest` with a number of
 * threads, and its main(). */
void digest_by(const char *threads, char digest[32]);
int run_with_digest(const char *file, int count, char **words, uint64_t (*digest)(void));

/* All arrays have the same bits. */
void compare_arrays(const char *title, const arrays *got, const arrays *want);
/* Those that an operation makes of new arrays are these. */
void check_run(const problem *p, operation op, const way *by, bool integers, const arrays *want);

/* Rows alone, `ranges` of a first one and their number, have the bits that they have among all, in
 * forward and dgrad. */
void check_company(const problem *whole, const way *by, const size_t (*ranges)[2], size_t count);
