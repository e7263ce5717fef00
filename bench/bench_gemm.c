/* bench_gemm: rates of the grouped GEMM on a device, alternating with OpenBLAS. */
#include <stdio.h>
#include <stdlib.h>

#include "base/config.h"
#include "base/memory.h"
#include "bench/common/report.h"
#include "bench/gemm/measure.h"
#include "device/device.h"

static bench_shape shape; /* experts 0: run a suite instead of one shape */
static size_t repeat, seed;
static unsigned op, dtype, groups, suite;
static double patience;
static bool prepacked, compare;
static const char *rival_library, *json_path;

static const moert_option options[] = {
    {.help = "What to run: a suite, or a shape. FLOPs are 2 M N K, M summed over the experts; glu "
             "is fprop and then the GLU, whose exponentials are not counted"},
    {"suite", MOERT_OPTION_CHOICE, &suite, "cpu", MOERT_GEMM_SUITE_WORDS,
     "shapes that have goals, those of released models, or a few small ones"},
    {"experts", MOERT_OPTION_UINT, &shape.experts, "0", "0..4096", "E: a shape instead of a suite"},
    {"rows", MOERT_OPTION_UINT, &shape.rows, "128", "1..1048576", "M: rows per expert on average"},
    {"n", MOERT_OPTION_UINT, &shape.n, "1408", "2..1048576", "N: columns of the result"},
    {"k", MOERT_OPTION_UINT, &shape.k, "1024", "1..1048576", "K: columns of the input"},
    {"op", MOERT_OPTION_CHOICE, &op, "all", "all|fprop|glu|dgrad|wgrad", "operation"},
    {"dtype", MOERT_OPTION_CHOICE, &dtype, "all", "all|f32|bf16",
     "of the operands; the rival's are float32"},
    {"groups", MOERT_OPTION_CHOICE, &groups, "all", "all|balanced|ragged",
     "rows of the experts: equal, or 0.25 to 1.75 times the average and none for every fifth; the "
     "suites have at least five experts then"},
    {.help = "How"},
    {"repeat", MOERT_OPTION_UINT, &repeat, "15", "1..10000", "samples of each contender"},
    {"patience", MOERT_OPTION_FLOAT, &patience, "100", "0..",
     "seconds in total to repeat samples that other programs disturbed"},
    {"seed", MOERT_OPTION_UINT, &seed, "1", "0..", "of data and ragged groups"},
    {"packed", MOERT_OPTION_FLAG, &prepacked, "1", NULL, "fprop and dgrad read prepacked weights"},
    {"rival", MOERT_OPTION_STRING, &rival_library, "libopenblas.so.0", "FILE",
     "shared library with cblas_sgemm (Debian package libopenblas0-pthread); none = no rival"},
    {"compare-backends", MOERT_OPTION_FLAG, &compare, "0", NULL,
     "all backends in one line, without the rival; runs the suite small"},
    {"json", MOERT_OPTION_STRING, &json_path, NULL, "FILE",
     "file for the rows, an array of objects"},
};

typedef struct totals {
    bench_rows rows;
    size_t goals, held, unjudged, disturbed;
} totals;

/* ---- the suites ---- */

enum { RAGGED_EXPERTS = 5, RAGGED_WEIGHTS = 160 << 20 };

/* Returns the number of experts for a shape. Ragged groups need at least five experts, so that one
 * group is empty. 0: the ragged row is omitted, because the weights of five experts would exceed
 * 640 MiB. */
static size_t experts_of(const bench_shape *of, bool ragged) {
    if (!ragged || of->experts >= RAGGED_EXPERTS)
        return of->experts;
    return RAGGED_EXPERTS * of->n * of->k <= RAGGED_WEIGHTS ? RAGGED_EXPERTS : 0;
}

/* Returns the goal of a row of the suite CPU: a ratio of moert's rate to the rival's; 0: the row
 * has no goal. */
static double goal_of(const bench_row *row) {
    static const size_t at[] = {32, 128, 512};
    static const struct {
        moert_op_kind op;
        moert_dtype type;
        double ratio[3];
    } balanced[] = {
        {MOERT_OP_GEMM_FORWARD, MOERT_DTYPE_F32, {1.5, 1.15, 1.03}},
        {MOERT_OP_GEMM_DGRAD, MOERT_DTYPE_F32, {1.5, 1.15, 1.03}},
        {MOERT_OP_GEMM_WGRAD, MOERT_DTYPE_F32, {1.2, 1.0, 0.95}},
        {MOERT_OP_GEMM_FORWARD, MOERT_DTYPE_BF16, {3.0, 2.2, 2.0}},
        {MOERT_OP_GEMM_DGRAD, MOERT_DTYPE_BF16, {1.8, 1.8, 1.8}},
        {MOERT_OP_GEMM_WGRAD, MOERT_DTYPE_BF16, {1.6, 1.6, 1.6}},
    };
    if (row->problem->ragged)
        return 1.1;
    for (size_t i = 0; i < MOERT_COUNT(balanced); i++)
        for (size_t j = 0; j < 3; j++)
            if (balanced[i].op == row->op && balanced[i].type == row->problem->type &&
                at[j] == row->problem->shape.rows)
                return balanced[i].ratio[j];
    return 0.0;
}

/* ---- rows ---- */

static moert_status check(const moert_command *command) {
    (void)command;
    if (shape.n % 2 != 0)
        return MOERT_FAIL(ERROR_USAGE, "--n %zu is odd; the GLU needs gate and up", shape.n);
    if (compare)
        suite = MOERT_GEMM_SUITE_SMALL;
    return MOERT_OK;
}

static void print_header(moert_context *context, const bench_setup *bench, const char *no_rival) {
    const moert_device_info *device = moert_device_describe(bench->device);
    const moert_placement *placement = moert_context_placement(context);
    const size_t threads = bench_pool_size(bench->pool);
    char machine[256];
    double load = 0.0;
    bench_report_machine(machine, sizeof machine);
    getloadavg(&load, 1);
    printf("# moert %s, commit %s, bench_gemm\n# machine %s, load %.2f before this\n",
           MOERT_VERSION, bench_report_commit(), machine, load);
    printf("# device %s, %s, driver %s, %u compute units, backend %s\n", device->name,
           device->platform_name, device->driver, device->compute_units,
           moert_backend_name(bench->device));
    if (placement->cpu_count > 0)
        printf("# threads %zu, one to a core of the cpus %s\n", threads, placement->cpus);
    else
        printf("# threads %zu, not pinned (MOERT_BIND=0)\n", threads);
    for (int i = 0; i < 2; i++)
        printf("# peak %s %.1f GFLOP/s (%s)\n", i == 0 ? "f32" : "bf16", bench->peak[i].gflops,
               bench->peak[i].instruction);
    if (bench->rival != NULL)
        printf("# rival %s, an sgemm per expert; uses %.1f %% of a core at rest\n",
               bench_rival_describe(bench->rival), 100.0 * bench_rival_restless(bench->rival));
    else
        printf("# rival none: %s\n", no_rival);
    printf("# medians of %zu alternating samples; L2 caches (%zu KiB in all) are filled with other "
           "data before each; seed %zu\n",
           repeat, bench_pool_cache_bytes(bench->pool) >> 10, seed);
}

static const char columns[] =
    "op -6s, dtype -5s, E 3z, M 4z, N 5z, K 5z, groups -8s, model *s?, backend *s,"
    " gflops 8.1f GFLOP/s, - 5.1f? peak%, peak *f?, rival *s?, rival_gflops 7.1f? rival,"
    " ratio 6.2f?, p10 *f, p90 *f, - 13s p10-p90, waited *f, - 7.1f waited%, wrong 5z,"
    "  goal *f?,  - 1s goal";

/* Adds a row and its verdict. The verdict is "disturbed" if other programs used the cores during
 * much of the time. */
static moert_status finish_row(totals *sum, const bench_row *row) {
    const double ratio = row->rival_gflops > 0.0 ? row->gflops / row->rival_gflops : 0.0;
    const bool has_goal = row->goal > 0.0 && row->rival != NULL, disturbed = row->waited > 0.05;
    const bool holds = has_goal && ratio >= row->goal && !disturbed;
    char spread[32], goal[32] = "";
    snprintf(spread, sizeof spread, "%.1f-%.1f", row->p10, row->p90);
    if (has_goal)
        snprintf(goal, sizeof goal, "%.2f %s", row->goal,
                 disturbed ? "disturbed"
                 : holds   ? "holds"
                           : "missed");
    sum->goals += has_goal;
    sum->held += holds;
    sum->unjudged += has_goal && disturbed;
    sum->disturbed += disturbed;
    return bench_rows_add(&sum->rows, bench_op_name(row->op), moert_dtype_name(row->problem->type),
                          row->problem->shape.experts, row->problem->shape.rows,
                          row->problem->shape.n, row->problem->shape.k,
                          row->problem->ragged ? "ragged" : "balanced", row->problem->shape.model,
                          row->backend, row->gflops,
                          row->peak > 0.0 ? 100.0 * row->gflops / row->peak : 0.0, row->peak,
                          row->rival, row->rival_gflops, ratio, row->p10, row->p90, spread,
                          row->waited, 100.0 * row->waited, row->wrong, row->goal, goal);
}

/* Measures an operation on the chosen backend, and reports the row. */
static moert_status run_op(const bench_setup *bench, const bench_problem *problem,
                           moert_op_kind operation, totals *sum) {
    bench_row row;
    MOERT_TRY(bench_measure(bench, problem, operation, &row));
    if (suite == MOERT_GEMM_SUITE_CPU && shape.experts == 0)
        row.goal = goal_of(&row);
    return finish_row(sum, &row);
}

/* Measures an operation on all backends, and reports all rates in one line. */
static moert_status run_backends(const bench_setup *bench, const bench_problem *problem,
                                 moert_op_kind operation, totals *sum) {
    moert_backend_report report;
    for (size_t i = 0; moert_backend_survey(bench->device, i, &report); i++) {
        bench_row row;
        if (report.reason[0] != '\0') {
            printf("  %s does not work: %s", report.name, report.reason);
            continue;
        }
        setenv("MOERT_BACKEND", report.name, 1);
        moert_config_reload();
        MOERT_TRY(bench_measure(bench, problem, operation, &row));
        if (i == 0)
            printf("%-6s %-5s %3zu %4zu %5zu %5zu %-8s", bench_op_name(row.op),
                   moert_dtype_name(row.problem->type), row.problem->shape.experts,
                   row.problem->shape.rows, row.problem->shape.n, row.problem->shape.k,
                   row.problem->ragged ? "ragged" : "balanced");
        printf("  %9s %8.1f %5zu", row.backend, row.gflops, row.wrong);
        MOERT_TRY(finish_row(sum, &row));
    }
    printf("\n");
    return MOERT_OK;
}

static moert_status run_problem(const bench_setup *bench, const bench_shape *of, moert_dtype type,
                                bool ragged, totals *sum) {
    /* ops[i] is the operation of word i + 1 of --op; word 0 is "all" */
    static const moert_op_kind ops[] = {MOERT_OP_GEMM_FORWARD, MOERT_OP_GLU, MOERT_OP_GEMM_DGRAD,
                                        MOERT_OP_GEMM_WGRAD};
    bench_shape run_shape = *of;
    bench_problem *problem;
    moert_status status = MOERT_OK;
    if (shape.experts == 0)
        run_shape.experts = experts_of(of, ragged);
    if (run_shape.experts == 0)
        return MOERT_OK;
    MOERT_TRY(bench_problem_create(bench->device, &run_shape, type, ragged, seed, &problem));
    for (unsigned i = 0; i < MOERT_COUNT(ops) && status == MOERT_OK; i++)
        if (op == 0 || op == i + 1)
            status = (compare ? run_backends : run_op)(bench, problem, ops[i], sum);
    bench_problem_destroy(problem);
    return status;
}

static moert_status run_shapes(const bench_setup *bench, totals *sum) {
    static const moert_dtype types[] = {MOERT_DTYPE_F32, MOERT_DTYPE_BF16};
    bench_shape shapes[MOERT_MOST_GEMM_SHAPES] = {shape};
    const size_t count = shape.experts > 0 ? 1 : moert_gemm_shapes((moert_gemm_suite)suite, shapes);
    for (size_t i = 0; i < count; i++) {
        if (shapes[i].model != NULL)
            printf("# %s\n", shapes[i].model);
        for (unsigned t = 0; t < 2; t++)
            for (unsigned ragged = 0; ragged < 2; ragged++)
                if ((dtype == 0 || dtype == t + 1) && (groups == 0 || groups == ragged + 1))
                    MOERT_TRY(run_problem(bench, &shapes[i], types[t], ragged != 0, sum));
    }
    return MOERT_OK;
}

static moert_status run_all(const bench_setup *bench, totals *sum) {
    MOERT_TRY(run_shapes(bench, sum));
    if (sum->goals > 0)
        printf("# %zu goals: %zu hold, %zu missed, %zu disturbed\n", sum->goals, sum->held,
               sum->goals - sum->held - sum->unjudged, sum->unjudged);
    if (sum->disturbed > 0)
        printf("# %zu rows were disturbed: threads waited for a core while other programs ran\n",
               sum->disturbed);
    return MOERT_OK;
}

static moert_status run(moert_context *context) {
    if (moert_context_size(context) > 1)
        return MOERT_FAIL(ERROR_USAGE, "bench_gemm is for one rank");
    const moert_placement *placement = moert_context_placement(context);
    bench_setup it = {.device = moert_context_device(context),
                      .repeat = repeat,
                      .prepacked = prepacked,
                      .patience_s = &patience};
    const bool on_cpu = moert_device_describe(it.device)->is_cpu;
    totals sum = {.rows = {.context = context}};
    char no_rival[256] = "it would run on other hardware";
    moert_status status;
    MOERT_TRY_OR(close, bench_pool_create(placement, moert_config_get()->threads, &it.pool));
    if (on_cpu) {
        it.peak[0] = bench_peak_measure(it.pool, MOERT_DTYPE_F32);
        it.peak[1] = bench_peak_measure(it.pool, MOERT_DTYPE_BF16);
        MOERT_TRY_OR(close, bench_rival_open(compare ? "none" : rival_library, placement, it.pool,
                                             &it.rival, no_rival, sizeof no_rival));
    }
    print_header(context, &it, no_rival);
    sum.rows = bench_rows_begin(context, columns, NULL);
    sum.rows.quiet = compare;
    status = run_all(&it, &sum);
close:
    bench_rival_close(it.rival);
    bench_pool_destroy(it.pool);
    return bench_rows_end(&sum.rows, json_path, "samples of the results", status);
}

MOERT_PROGRAM_MAIN(
    "bench_gemm [OPTION...]",
    "Times grouped GEMMs on the device and checks each result; on a CPU alternating with\n"
    "OpenBLAS's sgemm, called for one expert after the other on the same cores.\n"
    "Exits with 1 if a result is wrong.",
    check)
