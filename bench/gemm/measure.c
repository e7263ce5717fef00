/* Takes samples of moert and of the rival alternately. */
#include "bench/gemm/measure.h"

#include "base/clock.h"
#include "base/memory.h"
#include "tools/common/rates.h"

enum { MOST_BATCH = 16 };
#define ENOUGH_FLOPS 4e8
/* a sample is undisturbed if threads waited for a core for at most this fraction of the time */
#define QUIET    0.02
#define WAKING_S 50e-6 /* seconds of waiting for a core that every start of threads causes */
#define PAUSE_S  0.05  /* seconds before a disturbed pair of samples is repeated */

typedef struct contest {
    const bench_setup *bench;
    bench_run run;
    float *result, *between; /* the rival's */
    double *ours, *theirs;   /* [repeat], GFLOP/s */
    size_t batch;
    /* fraction of a sample's time in which threads lacked a core, summed over the samples */
    double waited;
} contest;

static void release(contest *c) {
    bench_run_destroy(&c->run);
    MOERT_FREE(c->result, c->between, c->ours, c->theirs);
}

static moert_status prepare(const bench_setup *bench, const bench_problem *p, moert_op_kind op,
                            contest *c) {
    const size_t weights = p->shape.experts * p->shape.n * p->shape.k;
    const bool cold = weights * sizeof(float) > 2 * bench_pool_cache_bytes(bench->pool);
    const double calls = ENOUGH_FLOPS / bench_problem_flops(p);
    *c = (contest){.bench = bench, .batch = 1};
    if (cold && calls > 1.0)
        c->batch = calls < MOST_BATCH ? (size_t)calls + 1 : MOST_BATCH;
    MOERT_TRY(bench_run_create(p, op, bench->prepacked, &c->run));
    MOERT_TRY(MOERT_NEW_ARRAY(&c->ours, bench->repeat));
    MOERT_TRY(MOERT_NEW_ARRAY(&c->theirs, bench->repeat));
    if (bench->rival == NULL)
        return MOERT_OK;
    MOERT_TRY(MOERT_NEW_ARRAY(&c->result, bench_result_count(p, op)));
    if (op == MOERT_OP_GLU)
        MOERT_TRY(MOERT_NEW_ARRAY(&c->between, p->rows * p->shape.n));
    return MOERT_OK;
}

/* Makes the first calls of moert and of the rival, which build kernels and touch memory, and checks
 * their results. */
static moert_status verify(contest *c, size_t *wrong) {
    const bench_setup *bench = c->bench;
    const bench_problem *p = c->run.problem;
    size_t rival_wrong;
    MOERT_TRY(moert_gemm_run(&c->run.gemm));
    MOERT_TRY(moert_device_finish(bench->device));
    MOERT_TRY(bench_problem_check(p, c->run.op, c->run.result, NULL, wrong));
    if (bench->rival == NULL)
        return MOERT_OK;
    bench_rival_run(bench->rival, p, c->run.op, c->result, c->between);
    /* the rival computes with unrounded operands, so its results cannot be compared */
    if (p->type != MOERT_DTYPE_F32)
        return MOERT_OK;
    MOERT_TRY(bench_problem_check(p, c->run.op, NULL, c->result, &rival_wrong));
    if (rival_wrong > 0)
        return MOERT_FAIL(ERROR_NUMERIC,
                          "%zu of the sampled results of the compared library's %s GEMM are wrong",
                          rival_wrong, bench_op_name(c->run.op));
    return MOERT_OK;
}

static moert_status call_ours(const contest *c) {
    for (size_t call = 0; call < c->batch; call++)
        MOERT_TRY(moert_gemm_run(&c->run.gemm));
    return moert_device_finish(c->bench->device);
}

static moert_status call_theirs(const contest *c) {
    for (size_t call = 0; call < c->batch; call++)
        bench_rival_run(c->bench->rival, c->run.problem, c->run.op, c->result, c->between);
    return MOERT_OK;
}

/* Takes one sample. Raises *waited to the fraction of the sample's time for which threads lacked a
 * core. For a sample of moert, the calling thread is left out, because it only waits for the
 * device. */
static moert_status take(const contest *c, moert_status (*call)(const contest *), double *rate,
                         double *waited) {
    const bool caller_works = call == call_theirs;
    bench_pool_evict(c->bench->pool);
    const double before = bench_waited_seconds(caller_works);
    const uint64_t start = moert_clock_ns();
    MOERT_TRY(call(c));
    const double seconds = (double)(moert_clock_ns() - start) * 1e-9;
    const double lost = bench_waited_seconds(caller_works) - before;
    *rate = bench_problem_flops(c->run.problem) * (double)c->batch / seconds * 1e-9;
    if (lost > WAKING_S && lost / seconds > *waited)
        *waited = lost / seconds;
    return MOERT_OK;
}

static moert_status take_pair(contest *c, size_t i, double *waited) {
    const bench_setup *bench = c->bench;
    *waited = 0.0;
    MOERT_TRY(take(c, call_ours, &c->ours[i], waited));
    if (bench->rival == NULL)
        return MOERT_OK;
    MOERT_TRY(take(c, call_theirs, &c->theirs[i], waited));
    bench_rival_rest();
    return MOERT_OK;
}

/* Takes all pairs of samples. Repeats a pair that other programs disturbed, until the time for
 * repetitions (--patience) is used up. */
static moert_status take_turns(contest *c) {
    const bench_setup *bench = c->bench;
    double waited;
    for (size_t i = 0; i < bench->repeat; i++) {
        for (;;) {
            const uint64_t start = moert_clock_ns();
            MOERT_TRY(take_pair(c, i, &waited));
            if (waited <= QUIET || *bench->patience_s <= 0.0)
                break;
            bench_sleep(PAUSE_S);
            *bench->patience_s -= (double)(moert_clock_ns() - start) * 1e-9;
        }
        c->waited += waited;
    }
    return MOERT_OK;
}

static void summarise(contest *c, bench_row *row) {
    const bench_setup *bench = c->bench;
    const bench_problem *p = c->run.problem;
    const size_t last = bench->repeat - 1, tenth = (last + 5) / 10;
    row->problem = p;
    row->op = c->run.op;
    row->backend = moert_backend_name(bench->device);
    row->gflops = moert_rates_median(c->ours, bench->repeat);
    row->p10 = c->ours[tenth];
    row->p90 = c->ours[last - tenth];
    row->waited = c->waited / (double)bench->repeat;
    row->peak = bench->peak[p->type == MOERT_DTYPE_BF16].gflops;
    if (bench->rival != NULL) {
        row->rival = bench_rival_describe(bench->rival);
        row->rival_gflops = moert_rates_median(c->theirs, bench->repeat);
    }
}

moert_status bench_measure(const bench_setup *bench, const bench_problem *problem, moert_op_kind op,
                           bench_row *row) {
    contest c;
    moert_status status;
    *row = (bench_row){.goal = 0.0};
    MOERT_TRY_OR(release, prepare(bench, problem, op, &c));
    MOERT_TRY_OR(release, verify(&c, &row->wrong));
    MOERT_TRY_OR(release, take_turns(&c));
    summarise(&c, row);
release:
    release(&c);
    return status;
}
