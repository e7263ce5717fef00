/*
 * bench_model: predicts the time of an expert-parallel layer on a described machine (machine.h,
 * predict.h) for a list of rank counts, or measures the machine on which bench_model runs.
 *
 * Efficiency is the throughput per rank divided by the throughput per rank at the first rank count.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "bench/common/report.h"
#include "bench/predict/calibrate.h"
#include "bench/predict/choice.h"
#include "moert/layer.h"

enum { MOST_COUNTS = 64, STEP = 2 /* STEP: index of "step" among the words of --op */ };

static const char *machine_path, *calibrate_path, *crowd_path, *counts_text, *json_path, *skew_text;
static bench_work asked; /* ep 0: use the fastest EP */
static size_t layers, length;
static unsigned model, type, dispatch, combine, engine, operation;
static double shared_cores;

static const moert_option options[] = {
    {"machine", MOERT_OPTION_STRING, &machine_path, NULL, "FILE",
     "file that describes the machine, such as bench/machines/h200.json"},
    {"calibrate", MOERT_OPTION_STRING, &calibrate_path, NULL, "FILE",
     "measure these ranks instead, for layers of these sizes, and write the machine to this file"},
    {"crowd", MOERT_OPTION_STRING, &crowd_path, NULL, "FILE",
     "measure the fraction of a link's bandwidth that is left when three or more nodes all send to "
     "all, and add it to the machine of this file"},
    {"shared-cores", MOERT_OPTION_FLOAT, &shared_cores, "0", "0..100000",
     "calibrate: number of cores that all nodes share, one for each rank at a time; 0 = none"},
    {"ranks", MOERT_OPTION_STRING, &counts_text, "8,16,32,64,128,256,512,1024", "R,...",
     "comma-separated counts to predict"},
    BENCH_LAYER_OPTIONS(asked, model, dispatch, combine),
    {"ep", MOERT_OPTION_UINT, &asked.ep, "0", "0..",
     "ranks that share one set of experts; 0 = the fastest number whose experts fit in memory"},
    {"layers", MOERT_OPTION_UINT, &layers, "0", "0..1000",
     "layers of the model, for --ep 0 (16 bytes a parameter, in 80 % of a device's memory) and for "
     "a step; 0 = those of --model"},
    {"type", MOERT_OPTION_CHOICE, &type, "f32", "f32|bf16", "dtype of the experts' GEMMs"},
    {"engine", MOERT_OPTION_CHOICE, &engine, "auto", "auto|" BENCH_ENGINE_WORDS,
     "of the exchange; auto = window on one node; on several nodes node, with GPUs staged"},
    {"chunks", MOERT_OPTION_UINT, &asked.chunks, "0", "0..64",
     "chunks of an exchange that overlap with compute; 0 = as the exchange chooses"},
    {"micro-batches", MOERT_OPTION_UINT, &asked.micro_batches, "1", "1..1000000",
     "micro-batches of a step, after which gradients are summed once"},
    {"skew", MOERT_OPTION_STRING, &skew_text, "balanced", NULL, BENCH_SKEW_HELP},
    {"op", MOERT_OPTION_CHOICE, &operation, "forward+backward", "forward|forward+backward|step",
     "passes of a layer to predict, or step: a training step of --model"},
    {"length", MOERT_OPTION_UINT, &length, "2048", "1..1048576", "step: tokens of a sequence"},
    {"json", MOERT_OPTION_STRING, &json_path, NULL, "FILE",
     "file for the rows, an array of objects"},
};

static size_t counts[MOST_COUNTS], count_of_counts;

/* ---- the work to predict ---- */

static bench_work work_of(size_t ranks, size_t group) {
    static const double row_bytes[] = {4.0, 1.0 + 1.0 / 32.0, 2.0};
    bench_work w = asked;
    w.ranks = ranks;
    w.ep = group;
    w.type = type == 0 ? "f32" : "bf16";
    w.row_bytes = row_bytes[dispatch];
    w.result_bytes = combine == MOERT_COMBINE_BF16 ? 2.0 : 4.0;
    w.backward = operation > 0;
    return w;
}

/* Whether a rank's experts fit: their f32 weights, gradients and two moments take at most 80 % of
 * the memory. */
static bool fits(const bench_machine *m, size_t group) {
    const double parameters = 3.0 * (double)asked.hidden * (double)asked.intermediate *
                              (double)layers * (double)moert_ceil_div(asked.experts, group);
    return 16.0 * parameters <= 0.8 * m->memory_gib * (double)(1 << 30);
}

/* Predicts with EP groups of --ep ranks. If --ep is 0, uses the fastest group size that divides the
 * number of ranks; ERROR_USAGE if no group size fits. */
static moert_status predict_best(const bench_machine *m, size_t ranks, bench_work *best,
                                 bench_prediction *prediction) {
    bool found = false;
    for (size_t group = 1; group <= ranks; group++) {
        bench_work w = work_of(ranks, group);
        bench_prediction p;
        if (asked.ep > 0 ? group != asked.ep
                         : ranks % group != 0 || group > asked.experts || !fits(m, group))
            continue;
        w.engine = engine > 0                  ? (bench_engine)(engine - 1)
                   : bench_nodes(m, group) < 2 ? BENCH_WINDOW
                   : m->linked                 ? BENCH_STAGED
                                               : BENCH_NODE;
        if (asked.ep == 0 && w.engine == BENCH_WINDOW && bench_nodes(m, group) > 1)
            continue;
        MOERT_TRY(bench_predict(m, &w, &p));
        if (!found || p.seconds < prediction->seconds) {
            *best = w;
            *prediction = p;
            found = true;
        }
    }
    return found ? MOERT_OK
                 : MOERT_FAIL(ERROR_USAGE,
                              "on %zu ranks no expert-parallel group size fits the model in memory "
                              "(%zu experts, %zu layers, %.0f GiB per device)",
                              ranks, asked.experts, layers, m->memory_gib);
}

/* ---- rows ---- */

static const char columns[] =
    "ranks 6z, nodes 5z, ep 5z, engine -7c, op *s, skew *s, balanced *b, clones *z, T *z, H *z,"
    " I *z, E *z, K *z, ms 10.3f, tokens_per_s_rank 14.0f tokens/s rank, efficiency 6.3f eff.,"
    " - 9.3f GEMMs, - 9.3f memory, - 9.3f inside, - 9.3f between, - 9.3f sums, - 9.3f latency,"
    " - 9.3f hidden,  bound 1s bound by, bytes_inside *f, bytes_between *f, parts_ms *o";
static const char step_columns[] =
    "ranks 6z, ep 5z, ms 10.2f, - 14.0f tokens/s rank, layers 10.2f, dense 10.2f,"
    " optimizer 10.2f, sums 10.2f";

static json_t *parts_of(const bench_prediction *p) {
    json_t *parts = json_object();
    for (int i = 0; i < BENCH_PARTS; i++)
        json_object_set_new(parts, bench_part_name((bench_part)i), json_real(p->part[i] * 1e3));
    json_object_set_new(parts, "overlapped", json_real(-p->hidden * 1e3));
    return parts;
}

static moert_status predict_all(const bench_machine *m, bench_rows *rows) {
    bench_prediction p = {.seconds = 0.0};
    bench_work w = work_of(1, 1);
    double first = 0.0;
    for (size_t i = 0; i < count_of_counts; i++) {
        MOERT_TRY(predict_best(m, counts[i], &w, &p));
        first = i == 0 ? p.seconds : first;
        const double *part = p.part;
        MOERT_TRY(bench_rows_add(
            rows, w.ranks, bench_nodes(m, counts[i]), w.ep, BENCH_ENGINE_WORDS, (unsigned)w.engine,
            w.backward ? "forward+backward" : "forward", skew_text, w.balanced, w.clones, w.tokens,
            w.hidden, w.intermediate, w.experts, w.topk, p.seconds * 1e3,
            (double)w.tokens / p.seconds, first / p.seconds, part[0] * 1e3, part[1] * 1e3,
            part[2] * 1e3, part[3] * 1e3, part[4] * 1e3, part[5] * 1e3, p.hidden * 1e3,
            bench_part_name(p.bound), p.bytes_inside, p.bytes_between, parts_of(&p)));
    }
    return MOERT_OK;
}

static moert_status predict_steps(const bench_machine *m, bench_rows *rows) {
    const bench_model *of = &bench_models[model - 1];
    const bench_stack stack = {layers, of->heads, of->kv_heads, of->head, of->vocabulary, length};
    bench_prediction p = {.seconds = 0.0};
    bench_work w = work_of(1, 1);
    bench_step step;
    for (size_t i = 0; i < count_of_counts; i++) {
        MOERT_TRY(predict_best(m, counts[i], &w, &p));
        MOERT_TRY(bench_predict_step(m, &w, &stack, &step));
        MOERT_TRY(bench_rows_add(rows, w.ranks, w.ep, step.seconds * 1e3,
                                 (double)(asked.tokens * asked.micro_batches) / step.seconds,
                                 step.layers * 1e3, step.dense * 1e3, step.optimizer * 1e3,
                                 step.sums * 1e3));
    }
    return MOERT_OK;
}

/* Predicts on rank 0; the other ranks only agree on the status. */
static moert_status predict(moert_context *context) {
    const bool steps = operation == STEP, first = moert_context_rank(context) == 0;
    bench_machine m = {.gemms = 0};
    moert_status status = first ? bench_machine_read(machine_path, &m) : MOERT_OK;
    MOERT_TRY(moert_comm_agree(moert_context_comm(context), status));
    bench_rows rows =
        bench_rows_begin(context, steps ? step_columns : columns, "%spredicted for '%s' (%s)",
                         steps ? "steps " : "", m.name, m.source);
    if (first)
        status = (steps ? predict_steps : predict_all)(&m, &rows);
    bench_machine_free(&m);
    return bench_rows_end(&rows, json_path, "rows", status);
}

static bench_work work_of_job(const moert_comm *world) {
    const size_t ranks = moert_comm_size(world);
    return work_of(ranks, moert_min(asked.ep > 0 ? asked.ep : ranks, asked.experts));
}

/* Measures the machine; with --crowd, measures only the fields crowd and crowd_nodes. */
static moert_status measure(moert_context *context) {
    moert_comm *world = moert_context_comm(context);
    const bench_work w = work_of_job(world);
    const bool crowd = crowd_path != NULL;
    bench_machine m = {.gemms = 0};
    moert_status status = crowd ? bench_machine_read(crowd_path, &m) : MOERT_OK;
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    MOERT_TRY_OR(done, crowd ? bench_calibrate_crowd(context, &w, &m)
                             : bench_calibrate(context, &w, shared_cores, &m));
    if (moert_comm_rank(world) == 0)
        status = bench_machine_write(&m, crowd ? crowd_path : calibrate_path);
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    if (crowd)
        moert_program_say(context, "%.0f nodes together reach %.2f of a link\n", m.crowd_nodes,
                          m.crowd);
    else
        moert_program_say(context, "calibrated: %s\n", m.name);
done:
    bench_machine_free(&m);
    return status;
}

static moert_status run(moert_context *context) {
    return machine_path != NULL ? predict(context) : measure(context);
}

/* ---- options ---- */

static moert_status parse_counts(void) {
    const char *at = counts_text;
    for (count_of_counts = 0; count_of_counts < MOST_COUNTS; count_of_counts++) {
        char *end;
        const unsigned long value = strtoul(at, &end, 10);
        if (end == at || at[0] < '0' || at[0] > '9' || value == 0 || (*end != ',' && *end != '\0'))
            return MOERT_FAIL(ERROR_USAGE, "--ranks is '%s', not counts such as 8,16,32",
                              counts_text);
        counts[count_of_counts] = value;
        if (*end == '\0') {
            count_of_counts++;
            return MOERT_OK;
        }
        at = end + 1;
    }
    return MOERT_FAIL(ERROR_USAGE, "--ranks has more than %d counts", MOST_COUNTS);
}

static moert_status check_options(const moert_command *command) {
    (void)command;
    MOERT_TRY(bench_layer_choose(&asked, model, skew_text));
    layers = layers > 0 || model == 0 ? layers : bench_models[model - 1].layers;
    if ((machine_path != NULL) + (calibrate_path != NULL) + (crowd_path != NULL) != 1)
        return MOERT_FAIL(ERROR_USAGE,
                          "give one of --machine FILE, --calibrate FILE and --crowd FILE");
    if (operation == STEP && (model == 0 || bench_models[model - 1].heads == 0))
        return MOERT_FAIL(ERROR_USAGE, "--op step needs a --model whose attention is known here: "
                                       "qwen3-30b, olmoe or mixtral-8x7b");
    if (operation == STEP && json_path != NULL)
        return MOERT_FAIL(
            ERROR_USAGE,
            "--json cannot be used with --op step; it writes only rows of single layers");
    return parse_counts();
}

MOERT_PROGRAM_MAIN(
    "bench_model --machine FILE [OPTION...], or mpirun -n R bench_model "
    "--calibrate FILE [OPTION...]",
    "Predicts the time of an expert-parallel layer on a described machine, its parts "
    "and what bounds it, or measures a machine.",
    check_options)
