/* Samples of the contenders in turns. */
#include "measure.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"

enum { MOST_BATCH = 16 };
#define ENOUGH_FLOPS 4e8

typedef struct contest {
    const bench_setup *bench;
    bench_run run;
    float *result, *between; /* the rival's */
    double *ours, *theirs;   /* [repeat], GFLOP/s */
    size_t batch;
} contest;

static void release(contest *c) {
    bench_run_destroy(&c->run);
    free(c->result);
    free(c->between);
    free(c->ours);
    free(c->theirs);
}

static moert_status prepare(const bench_setup *bench, const bench_problem *p, bench_op op,
                            contest *c) {
    const size_t weights = p->shape.experts * p->shape.n * p->shape.k;
    const bool cold = weights * sizeof(float) > 2 * bench_team_cache_bytes(bench->team);
    const double calls = ENOUGH_FLOPS / bench_problem_flops(p);
    *c = (contest){.bench = bench, .batch = 1};
    if (cold && calls > 1.0)
        c->batch = calls < MOST_BATCH ? (size_t)calls + 1 : MOST_BATCH;
    MOERT_TRY(bench_run_create(p, op, bench->packed, &c->run));
    MOERT_TRY(MOERT_NEW_ARRAY(&c->ours, bench->repeat));
    MOERT_TRY(MOERT_NEW_ARRAY(&c->theirs, bench->repeat));
    if (bench->rival == NULL)
        return MOERT_OK;
    MOERT_TRY(MOERT_NEW_ARRAY(&c->result, bench_result_count(p, op)));
    if (op == BENCH_GLU)
        MOERT_TRY(MOERT_NEW_ARRAY(&c->between, p->rows * p->shape.n));
    return MOERT_OK;
}

/* The first calls, which build kernels and touch memory, and the check of their results. */
static moert_status verify(contest *c, size_t *wrong) {
    const bench_setup *bench = c->bench;
    const bench_problem *p = c->run.problem;
    size_t rival_wrong;
    MOERT_TRY(bench_run_enqueue(&c->run));
    MOERT_TRY(moert_device_finish(bench->device));
    MOERT_TRY(bench_count_wrong(p, c->run.op, c->run.result, NULL, wrong));
    if (bench->rival == NULL)
        return MOERT_OK;
    bench_rival_run(bench->rival, p, c->run.op, c->result, c->between);
    if (p->type != MOERT_NUMBER_F32) /* the rival has not rounded its factors */
        return MOERT_OK;
    MOERT_TRY(bench_count_wrong(p, c->run.op, NULL, c->result, &rival_wrong));
    if (rival_wrong > 0)
        return MOERT_FAIL(ERROR_NUMERIC, "the rival's %s has %zu wrong samples",
                          bench_op_name(c->run.op), rival_wrong);
    return MOERT_OK;
}

static double rate_since(const contest *c, uint64_t start) {
    const double ns = (double)(moert_clock_ns() - start);
    return bench_problem_flops(c->run.problem) * (double)c->batch / ns;
}

static moert_status take_turns(contest *c) {
    const bench_setup *bench = c->bench;
    for (size_t i = 0; i < bench->repeat; i++) {
        bench_team_evict(bench->team);
        uint64_t start = moert_clock_ns();
        for (size_t call = 0; call < c->batch; call++)
            MOERT_TRY(bench_run_enqueue(&c->run));
        MOERT_TRY(moert_device_finish(bench->device));
        c->ours[i] = rate_since(c, start);
        if (bench->rival == NULL)
            continue;
        bench_team_evict(bench->team);
        start = moert_clock_ns();
        for (size_t call = 0; call < c->batch; call++)
            bench_rival_run(bench->rival, c->run.problem, c->run.op, c->result, c->between);
        c->theirs[i] = rate_since(c, start);
        bench_rival_rest(bench->rival);
    }
    return MOERT_OK;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *sorted, size_t count) {
    return 0.5 * (sorted[(count - 1) / 2] + sorted[count / 2]);
}

static void summarise(contest *c, bench_row *row) {
    const bench_setup *bench = c->bench;
    const bench_problem *p = c->run.problem;
    const size_t last = bench->repeat - 1, tenth = (last + 5) / 10;
    qsort(c->ours, bench->repeat, sizeof *c->ours, ascending);
    qsort(c->theirs, bench->repeat, sizeof *c->theirs, ascending);
    row->shape = p->shape;
    row->op = c->run.op;
    row->type = p->type;
    row->ragged = p->ragged;
    row->backend = moert_backend_name();
    row->gflops = median(c->ours, bench->repeat);
    row->p10 = c->ours[tenth];
    row->p90 = c->ours[last - tenth];
    row->peak = bench->peak[p->type == MOERT_NUMBER_BF16].gflops;
    if (bench->rival != NULL) {
        row->rival = bench_rival_describe(bench->rival);
        row->rival_gflops = median(c->theirs, bench->repeat);
    }
}

moert_status bench_measure(const bench_setup *bench, const bench_problem *problem, bench_op op,
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
