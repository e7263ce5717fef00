/* Loads OpenBLAS by dlopen, and computes the GLU after OpenBLAS's GEMMs. */
#include "bench/gemm/rival.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 }; /* constants of cblas.h */
/* After a call, OpenBLAS's threads spin for 2^20 cycles (default 2^26). 2^20 cycles are longer than
 * the time between the calls of two experts, and shorter than the sleep of bench_rival_rest(). */
#define SPIN   "20"
#define REST_S 0.002
#define IDLE_S 0.03

typedef void sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                   const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

struct bench_rival {
    void *library;
    sgemm *multiply;
    bench_pool *pool;
    char text[256];
};

/* Overrides environment variables of OpenBLAS (kernels, block sizes) that the user may have set for
 * other programs. */
static void set_environment(void) {
    setenv("OPENBLAS_THREAD_TIMEOUT", SPIN, 1);
    unsetenv("OPENBLAS_CORETYPE");
    unsetenv("OPENBLAS_BLOCK_FACTOR");
    unsetenv("OPENBLAS_L2_SIZE");
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        setenv("OPENBLAS_CORETYPE", "SKYLAKEX", 1);
#endif
}

/* Loads the library and sets its number of threads. By default OpenBLAS starts one thread per core
 * on which the caller may run; the pinned caller may run on one core. */
static void *load(const char *library, const bench_pool *pool) {
    set_environment();
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void (*set_threads)(int) =
        handle != NULL ? (void (*)(int))dlsym(handle, "openblas_set_num_threads") : NULL;
    if (set_threads != NULL)
        set_threads((int)bench_pool_size(pool));
    return handle;
}

static void describe(bench_rival *rival) {
    char *(*config)(void) = (char *(*)(void))dlsym(rival->library, "openblas_get_config");
    char *(*core)(void) = (char *(*)(void))dlsym(rival->library, "openblas_get_corename");
    int (*threads)(void) = (int (*)(void))dlsym(rival->library, "openblas_get_num_threads");
    snprintf(rival->text, sizeof rival->text, "%s, core %s, %d threads",
             config != NULL ? config() : "a BLAS that is not OpenBLAS",
             core != NULL ? core() : "unknown", threads != NULL ? threads() : 0);
}

moert_status bench_rival_open(const char *library, const moert_placement *placement,
                              bench_pool *pool, bench_rival **made, char *reason,
                              size_t reason_bytes) {
    moert_thread_snapshot before;
    bench_rival *rival;
    *made = NULL;
    snprintf(reason, reason_bytes, "not requested");
    if (strcmp(library, "none") == 0)
        return MOERT_OK;
    MOERT_TRY(moert_threads_snapshot(&before));
    void *handle = load(library, pool);
    const char *complaint = handle == NULL ? dlerror() : NULL;
    void *entry = handle != NULL ? dlsym(handle, "cblas_sgemm") : NULL;
    MOERT_TRY(bench_pin_since(placement, &before));
    if (entry == NULL) {
        snprintf(reason, reason_bytes, "%s", handle != NULL ? "no cblas_sgemm" : complaint);
        return MOERT_OK;
    }
    MOERT_TRY(MOERT_NEW(&rival));
    *rival = (bench_rival){.library = handle, .multiply = (sgemm *)entry, .pool = pool};
    describe(rival);
    *made = rival;
    return MOERT_OK;
}

/* Does not unload the library, because OpenBLAS's threads may still run its code. */
void bench_rival_close(bench_rival *rival) {
    free(rival);
}

const char *bench_rival_describe(const bench_rival *rival) {
    return rival->text;
}

void bench_rival_rest(void) {
    bench_sleep(REST_S);
}

static double used_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

double bench_rival_restless(const bench_rival *rival) {
    enum { SIDE = 256 };
    static float a[SIDE * SIDE], c[SIDE * SIDE];
    rival->multiply(ROW_MAJOR, PLAIN, PLAIN, SIDE, SIDE, SIDE, 1.0f, a, SIDE, a, SIDE, 0.0f, c,
                    SIDE);
    bench_rival_rest();
    const double before = used_seconds();
    bench_sleep(IDLE_S);
    return (used_seconds() - before) / IDLE_S;
}

/* ---- the GLU ---- */

/* exp(x) for |x| <= 80: 2^i times a polynomial of the remainder; relative error below 3e-7. */
static inline __attribute__((always_inline)) float exponential(float x) {
    const float shift = 0x1.8p23f, scaled = x * 1.44269504f + shift, i = scaled - shift;
    const float r = (x - i * 0.693359375f) + i * 2.12194440e-4f;
    const float p =
        1.0f +
        r * (1.0f +
             r * (0.5f + r * (0.166666667f +
                              r * (0.0416666667f + r * (8.33333333e-3f + r * 1.38888889e-3f)))));
    union {
        float value;
        uint32_t bits;
    } power = {.value = scaled};
    power.bits = (power.bits << 23) + 0x3F800000u;
    return power.value * p;
}

static inline __attribute__((always_inline)) void swiglu(const float *v, size_t width, float *h) {
    for (size_t i = 0; i < width; i++) {
        const float gate = v[i], up = v[width + i];
        const float bounded = gate < -80.0f ? -80.0f : gate > 80.0f ? 80.0f : gate;
        h[i] = gate * up / (1.0f + exponential(-bounded));
    }
}

/* gcc vectorizes these loops at -O3 only, clang at -O2 already. */
#if defined(__clang__)
#define VECTORIZED
#define VECTORIZED_512 target("avx512f,avx512dq"), min_vector_width(512)
#else
#define VECTORIZED     optimize("O3")
#define VECTORIZED_512 target("avx512f,avx512dq,prefer-vector-width=512")
#endif
#define SWIGLU(name, ...)                                                                          \
    __attribute__((VECTORIZED, ##__VA_ARGS__)) static void name(const float *restrict v,           \
                                                                size_t width, float *restrict h) { \
        swiglu(v, width, h);                                                                       \
    }
SWIGLU(swiglu_plain)
#if defined(__x86_64__)
SWIGLU(swiglu_256, target("avx2,fma"))
SWIGLU(swiglu_512, VECTORIZED_512)
#endif

typedef struct glu_work {
    void (*line)(const float *v, size_t width, float *h);
    const float *v;
    float *h;
    size_t rows, width, threads;
} glu_work;

static void glu_rows(void *argument, size_t member) {
    const glu_work *work = argument;
    const size_t end = work->rows * (member + 1) / work->threads;
    for (size_t m = work->rows * member / work->threads; m < end; m++)
        work->line(work->v + 2 * m * work->width, work->width, work->h + m * work->width);
}

static void glu(const bench_rival *rival, const float *v, size_t rows, size_t width, float *h) {
    glu_work work = {swiglu_plain, v, h, rows, width, bench_pool_size(rival->pool)};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        work.line = swiglu_512;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        work.line = swiglu_256;
#endif
    bench_pool_run(rival->pool, glu_rows, &work);
}

void bench_rival_run(const bench_rival *rival, const bench_problem *p, moert_op_kind op,
                     float *result, float *between) {
    const int N = (int)p->shape.n, K = (int)p->shape.k;
    const size_t weights = p->shape.n * p->shape.k;
    float *y = op == MOERT_OP_GLU ? between : result;
    for (size_t e = 0; e < p->shape.experts; e++) {
        const size_t first = e > 0 ? p->ends[e - 1] : 0;
        const int m = (int)(p->ends[e] - first);
        const float *xs = p->x + first * p->shape.k, *ys = p->y + first * p->shape.n;
        const float *w = p->weight + e * weights;
        if (m == 0 && op == MOERT_OP_GEMM_WGRAD)
            memset(result + e * weights, 0, weights * sizeof(float));
        else if (m > 0 && op == MOERT_OP_GEMM_WGRAD)
            rival->multiply(ROW_MAJOR, TRANSPOSED, PLAIN, N, K, m, 1.0f, ys, N, xs, K, 0.0f,
                            result + e * weights, K);
        else if (m > 0 && op == MOERT_OP_GEMM_DGRAD)
            rival->multiply(ROW_MAJOR, PLAIN, PLAIN, m, K, N, 1.0f, ys, N, w, K, 0.0f,
                            result + first * p->shape.k, K);
        else if (m > 0)
            rival->multiply(ROW_MAJOR, PLAIN, TRANSPOSED, m, N, K, 1.0f, xs, K, w, K, 0.0f,
                            y + first * p->shape.n, N);
    }
    if (op == MOERT_OP_GLU)
        glu(rival, between, p->rows, p->shape.n / 2, result);
}
