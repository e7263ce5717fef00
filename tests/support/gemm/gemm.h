/*
 * Grouped GEMMs of hostile shapes for the tests of gemm/gemm.h. Problems use the byte buffers and
 * the oracle of ops. Also the ways to compute a GEMM (backend, dtype, prepacked weights), and the
 * tuning without rows.
 */
#pragma once

#include "gemm/gemm.h"
#include "gemm/tuning/tuning.h"
#include "support/op/exact.h"

enum { MOST_GROUPS = 6 };
typedef enum operation {
    FORWARD,
    DGRAD,
    WGRAD,
    BIAS_GRAD,
    OPERATIONS
} operation; /* the first values of this enum equal those of moert_gemm_kind */

/* Bytes of the prepacked copies of a weight. */
static inline size_t weight_cache_bytes(const moert_weight_cache *cache) {
    size_t bytes = 0;
    for (size_t use = 0; use < MOERT_PANELS_USES; use++)
        bytes += moert_panels_bytes(cache->panels[use]);
    return bytes;
}

/* A GLU that follows a forward GEMM and computes h[M,N/2]. prob_stride 0: the GLU has no prob. */
typedef struct gate {
    moert_glu_form form;
    size_t prob_stride;
} gate;
/* Two GLUs for each layout of gate and up. */
enum { GATES = 4 };
extern const gate gates[GATES];

typedef struct problem {
    size_t n, k, rows, groups;
    uint32_t ends[MOST_GROUPS];
    bool shared, accumulate, bias;
    size_t pad_x, pad_y, y_column; /* ldx = k + pad_x, ldy = y_column + n + pad_y */
    const gate *gate;              /* NULL: no GLU */
} problem;

extern const problem gemm_problems[];
extern const size_t gemm_problem_count;

/* How a GEMM is computed. */
typedef struct way {
    const char *name, *backend;
    moert_dtype type;
    bool prepacked;
    const char *bf16;   /* the value of MOERT_BF16; NULL: auto */
    bool parts;         /* each call computes at most two groups */
    moert_dtype result; /* dtype of the result of forward and dgrad */
    bool split; /* split each f32 operand into three bf16 values, if the device supports this */
    /* number of compute units that work for the second queue first and join the GEMM later */
    unsigned spared;
    size_t runs; /* forward, dgrad: number of runs of scattered result rows; 0: not scattered */
    /* tile choices that replace those of the tuning rows; NULL: keep the tuning rows' choices */
    const moert_choices *choices;
    /* tile choices in force when the weight was prepacked; NULL: `choices` */
    const moert_choices *panels;
    bool separate, drop_v; /* separate: the GLU is a call of its own; drop_v: v is not needed */
    moert_dtype h;         /* dtype of the GLU's result */
} way;

/* All ways, grouped into sets whose ways must give the same bits. The first way of a set is its
 * reference; the second is the portable backend without prepacked weights. */
extern const way gemm_ways[];
extern const size_t gemm_way_count;
way reference_of(way by);
bool is_reference(const way *by);
enum {
    REFERENCE_F32,
    PORTABLE_F32,
    PREPACKED_F32,
    REFERENCE_BF16,
    PORTABLE_BF16,
    PREPACKED_BF16,
    REFERENCE_WIDENED,
    REFERENCE_TILES = REFERENCE_WIDENED + 3
};

/* Makes the buffers of a problem's op, which is a GLU op if the problem has a gate. x, y, v and h
 * have the dtypes of the way; the weight is float32. Bias_grad is a wgrad with k = 1 whose second
 * operand is all ones. If groups share a weight, the buffers hold a copy of the weight and of the
 * bias for each group. Rows of h past the last end may get any values; run_gemm() restores them. */
ops_bytes make_data(const problem *p, operation op, const way *by, ops_values values);
/* Casts a buffer to a dtype. */
void round_data(ops_bytes *data, moert_op_buffer which, moert_dtype type);

extern const char *const operation_names[];

/* If rows are scattered, every fifth one has no address and is dropped. */
static inline bool is_lost(size_t line) {
    return line % 5 == 4;
}

/* The result of an operation, in rows that are `stride` elements apart. */
typedef struct results {
    moert_op_buffer which;
    float *data;
    size_t count, stride;
} results;
results results_of(const ops_bytes *data);

/* Uploads the buffers and describes their GEMM, without bias. */
moert_gemm upload_gemm(const problem *p, const ops_bytes *data);

static inline moert_status run_as(moert_gemm_kind kind, const moert_gemm *gemm) {
    moert_gemm run = *gemm;
    moert_gemm_set(&run, kind, moert_gemm_type(gemm));
    return moert_gemm_run(&run);
}

/* Copies the description `gemm` to `wrong`, applies `change`, and checks that moert_gemm_run()
 * refuses `wrong`. */
#define REFUSED(of_kind, status, text, change)                                                     \
    do {                                                                                           \
        moert_gemm wrong = gemm;                                                                   \
        wrong.kind = (of_kind);                                                                    \
        change;                                                                                    \
        ASSERT_FAILS(moert_gemm_run(&wrong), (status), (text));                                    \
    } while (0)

/* Runs an operation on the device and copies all buffers back to the host. */
void run_gemm(const problem *p, operation op, const way *by, ops_bytes *data);
/* Makes random buffers, runs an operation on them and returns them. */
ops_bytes run_new(const problem *p, operation op, const way *by);
/* Runs an operation on only rows [first, first + count) of `data`, as one group, and returns its
 * buffers. */
ops_bytes run_alone(const problem *whole, operation op, const way *by, const ops_bytes *data,
                    size_t first, size_t count);

/* Runs an operation and compares all buffers with the oracle of ops. The oracle gets operands
 * rounded to the way's dtype. If `bound` is 0, sums must be exact. If `bound` is not 0, there
 * is no GLU, and an element may have an error of `bound` times the sum of the magnitudes of its
 * addends. */
void check_gemm(const problem *p, operation op, const way *by, ops_bytes *data, double bound);

/* Checks that `PROGRAM digest`, where PROGRAM is this test, prints the same digest with 1, 2 and 3
 * threads of PoCL. run_with_digest() is the main() of a program that can print its digest. */
void check_threads(void);
/* Returns a hash of all buffers, seeded with `hash`. */
uint64_t hash_data(const ops_bytes *data, uint64_t hash);
int run_with_digest(const char *file, int count, char **words, uint64_t (*digest)(void));

/* Runs an operation on new random buffers, and checks that all buffers then have the bits of
 * `want`. */
void check_run(const problem *p, operation op, const way *by, const ops_bytes *want);

/* Checks that calls on two groups each give the bits of one call. The groups must not share a
 * weight. */
void check_parts(const problem *p, operation op, const way *by);

/* Checks that forward and dgrad give the rows of a range the same bits alone as among all rows. A
 * range is a first row and a number of rows. */
void check_company(const problem *whole, const way *by, const size_t (*ranges)[2], size_t count);

/* ---- tuning ---- */

/* The tile choices of a GEMM for which there is no tuning row. */
extern const moert_choices standard_choices;

/* Test fixture: uses only the built-in tuning rows. The file of measured rows is "rows" in the
 * test's directory (files.h), which does not exist yet. */
int forget_tuning(void **state);
