/* moert-tune: measures tile sizes and other choices of the GEMMs for a list of shapes, and writes
 * tuning rows. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/files.h"
#include "base/memory.h"
#include "device/device.h"
#include "gemm/portable/gemm.h"
#include "io/model_config.h"
#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/tune/gemm.h"

static unsigned suite, op, dtype, level;
static moert_option_list words;
static size_t tokens, ep;
static double seconds;
static const char *model_path, *out_path;
static bool writes, busy;

#define SHAPE_BOUND 1048576
/* seconds for the search of each GEMM of a model; tuning then takes under a minute with
 * compilation */
#define MODEL_SECONDS 0.4
/* Load of other programs above which tuning fails: more than BUSY_LOAD, and more than this fraction
 * of the processors. */
#define BUSY_PART   0.1
#define BUSY_LOAD   0.5
#define LEVEL_WORDS "default|vendor|family|device" /* words for moert_tuning_level, in its order */

static const moert_option options[] = {
    {.help = "What to measure"},
    {"suite", MOERT_OPTION_CHOICE, &suite, "cpu", MOERT_GEMM_SUITE_WORDS,
     "shapes by name: those of bench_gemm that have goals, those of released models, or a few "
     "small ones"},
    {"shapes", MOERT_OPTION_LIST, &words, NULL, "ExMxNxK...",
     "instead: experts x rows of each x N x K of the weight, such as 8x32x1408x512"},
    {"model", MOERT_OPTION_STRING, &model_path, NULL, "DIR",
     "instead: shapes of the experts' GEMMs in a training of this directory's model, in less than "
     "a minute"},
    {"tokens", MOERT_OPTION_UINT, &tokens, "2048", "1..1048576",
     "with --model: tokens of a micro-batch on a rank"},
    {"ep", MOERT_OPTION_UINT, &ep, "1", "1..1024", "with --model: ranks that share the experts"},
    {"op", MOERT_OPTION_CHOICE, &op, "all",
     "all|forward|dgrad|wgrad|prepacked_forward|prepacked_dgrad", "operation"},
    {"dtype", MOERT_OPTION_CHOICE, &dtype, "auto", "auto|f32|bf16|all",
     "dtype of the operands; auto: f32 with --model, else all"},
    {.help = "How"},
    {"seconds", MOERT_OPTION_FLOAT, &seconds, NULL, "0..3600",
     "time for each choice of a GEMM, without compilation; a GEMM has three to five choices; "
     "default: 1, or 0.4 with --model"},
    {"out", MOERT_OPTION_STRING, &out_path, NULL, "FILE",
     "file to read rows from and add rows to; default is MOERT_TUNE_FILE, which every program "
     "reads"},
    {"for", MOERT_OPTION_CHOICE, &level, "device", LEVEL_WORDS,
     "devices that the rows apply to: all, those of this one's vendor or family, or only this one"},
    {"write", MOERT_OPTION_FLAG, &writes, "1", NULL, "add the rows to the file"},
    {"busy", MOERT_OPTION_FLAG, &busy, NULL, NULL,
     "add them although other programs keep the processors busy and so disturb the choices"},
};

static const moert_column columns[] = {
    {"chosen", "", MOERT_COLUMN_MARK},
    {"samples", "samples", MOERT_COLUMN_COUNT},
    {"rate", "GFLOP/s", MOERT_COLUMN_TEXT},
    {"choices", "candidate", MOERT_COLUMN_TEXT},
};

/* ---- options ---- */

static moert_status read_shape(const char *word, moert_gemm_shape *shape) {
    size_t *const sizes[] = {&shape->experts, &shape->rows, &shape->n, &shape->k};
    const char *at = word;
    *shape = (moert_gemm_shape){0};
    for (size_t i = 0; i < 4; i++) {
        char *end;
        *sizes[i] = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (*sizes[i] == 0 || *sizes[i] > SHAPE_BOUND || *end != (i < 3 ? 'x' : '\0'))
            return MOERT_FAIL(ERROR_USAGE,
                              "--shapes '%s' is not ExMxNxK with sizes from 1 to %d, such as "
                              "8x32x1408x512",
                              word, SHAPE_BOUND);
        at = end + 1;
    }
    return MOERT_OK;
}

/* shapes[2] = the shapes of the two GEMMs of the model's experts. */
static moert_status read_model(moert_gemm_shape *shapes) {
    moert_model_config c;
    MOERT_TRY(moert_model_config_read(model_path, &c));
    const size_t experts = c.router.experts, intermediate = c.intermediate, hidden = c.hidden,
                 rows = moert_ceil_div(tokens * ep * c.router.topk, moert_max(experts, 1));
    moert_model_config_free(&c);
    if (experts == 0)
        return MOERT_FAIL(ERROR_USAGE, "--model %s has no experts", model_path);
    if (ep > experts)
        return MOERT_FAIL(ERROR_USAGE, "--ep %zu: %s has only %zu experts", ep, model_path,
                          experts);
    moert_expert_shapes(model_path, hidden, intermediate, moert_ceil_div(experts, ep), rows,
                        shapes);
    return MOERT_OK;
}

/* Fails if other programs are busy. On a busy machine, tuning would choose at random, and all later
 * runs would use these choices. */
static moert_status check_load(void) {
    const double processors = (double)sysconf(_SC_NPROCESSORS_ONLN);
    const double most = BUSY_PART * processors > BUSY_LOAD ? BUSY_PART * processors : BUSY_LOAD;
    double load = 0.0;
    if (!writes || busy || getloadavg(&load, 1) != 1 || load <= most)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_USAGE,
                      "the machine is busy: load %.2f of the last minute, above %.2f for %.0f "
                      "processors; wait, or give --no-write to only measure, or --busy to write "
                      "nevertheless",
                      load, most, processors);
}

static moert_status check(const moert_command *command) {
    moert_gemm_shape shape;
    (void)command;
    if (words.count > 0 && model_path != NULL)
        return MOERT_FAIL(ERROR_USAGE, "--shapes and --model both say what to measure; give one");
    if (!(seconds >= 0.0)) /* not given */
        seconds = model_path != NULL ? MODEL_SECONDS : 1.0;
    for (size_t i = 0; i < words.count; i++)
        MOERT_TRY(read_shape(words.words[i], &shape));
    if (strcmp(moert_backend_name(NULL), "portable") != 0)
        return MOERT_FAIL(ERROR_USAGE, "the backend %s has no tuning choices (MOERT_BACKEND)",
                          moert_backend_name(NULL));
    if (out_path != NULL) {
        setenv("MOERT_TUNE_FILE", out_path, 1);
        moert_config_reload();
    }
    char *path = moert_tuning_file();
    const bool has_file = path != NULL;
    free(path);
    if (writes && !has_file)
        return MOERT_FAIL(ERROR_USAGE,
                          "there is no file to write tuning rows to: MOERT_TUNE is off, or there "
                          "is no cache directory and no --out; --no-write only measures");
    return check_load();
}

/* Checks that the file can be written, so that the program does not fail after hours of
 * measuring. */
static moert_status try_file(void) {
    char *path = moert_tuning_file();
    const moert_status status =
        path != NULL ? moert_file_append(path, "") : MOERT_FAIL(ERROR_MEMORY, "no room for a path");
    free(path);
    return status;
}

/* ---- output ---- */

static double rate(const moert_tune_gemm *p, double ns) {
    const double flops = 2.0 * (double)p->gemm.groups.rows * (double)p->gemm.n * (double)p->gemm.k;
    return ns > 0.0 ? flops / ns : 0.0;
}

static moert_status print_candidates(const moert_tune_gemm *p, const moert_tune_result *found) {
    json_t *rows = json_array();
    for (size_t i = 0; i < found->count; i++) {
        const moert_candidate *c = &found->candidates[i];
        char choices[128], number[32];
        moert_choices_print(&c->choices, choices, sizeof choices);
        snprintf(number, sizeof number, "%.1f", rate(p, c->ns));
        json_array_append_new(rows, json_pack("{sb sI ss ss}", "chosen", i == found->chosen,
                                              "samples", (json_int_t)c->samples, "rate",
                                              c->samples > 0 ? number : "", "choices", choices));
    }
    moert_status status = moert_table_print(stdout, rows, columns, MOERT_COUNT(columns));
    json_decref(rows);
    fflush(stdout);
    return status;
}

static void print_header(const moert_device_info *device) {
    char *path = writes ? moert_tuning_file() : NULL;
    double load = 0.0;
    getloadavg(&load, 1);
    printf("# moert %s, commit %s, moert-tune, load %.2f before this\n", MOERT_VERSION,
           MOERT_COMMIT, load);
    printf("# device %s, %s, driver %s, %u compute units, family %s\n", device->name,
           device->platform_name, device->driver, device->compute_units,
           moert_tuning_family(device));
    if (path != NULL)
        printf("# rows go to %s\n", path);
    free(path);
}

/* ---- rows ---- */

/* The first axis to search. GEMMs that use AMX (kernels/gemm/add_amx.h) have only one tile, so
 * their search begins with the panels. */
static moert_tune_axis first_axis(const moert_tune_gemm *p) {
    return moert_gemm_dot(&p->gemm, moert_buffer_device(p->gemm.weight.buffer)) == MOERT_DOT_TILE
               ? MOERT_TUNE_PANELS
               : MOERT_TUNE_TILE;
}

/* Writes the tuning rows of a GEMM. Weights are prepacked for a tile before the number of rows is
 * known. So a GEMM that reads prepacked weights gets two rows: one for the tile, which applies to
 * any number of rows, and one for the other choices. */
static moert_status write_rows(const moert_device *device, const moert_tune_gemm *p,
                               const moert_tune_result *found) {
    const moert_choices best = found->candidates[found->chosen].choices;
    const moert_choices tile = {.lines = best.lines, .width = best.width};
    const moert_choices others = {
        .panels = best.panels, .depth = best.depth, .split = best.split, .prefetch = best.prefetch};
    const double first = found->candidates[0].ns;
    const time_t now = time(NULL);
    moert_tuning_key any = p->key;
    char day[16] = "", comment[180];
    struct tm parts;
    if (gmtime_r(&now, &parts) != NULL)
        strftime(day, sizeof day, "%Y-%m-%d", &parts);
    snprintf(comment, sizeof comment, "%s, driver %.40s, moert %s %s: %.1f -> %.1f GFLOP/s", day,
             moert_device_describe(device)->driver, MOERT_VERSION, MOERT_COMMIT,
             rate(p, found->chosen > 0 ? found->first_ns : first),
             rate(p, found->chosen > 0 ? found->chosen_ns : first));
    if (p->panels == NULL && first_axis(p) == MOERT_TUNE_TILE)
        return moert_tuning_remember(device, (moert_tuning_level)level, &p->key, &best, comment);
    any.rows = 0;
    if (first_axis(p) == MOERT_TUNE_TILE)
        MOERT_TRY(moert_tuning_remember(device, (moert_tuning_level)level, &any, &tile, comment));
    return moert_tuning_remember(device, (moert_tuning_level)level, &p->key, &others, comment);
}

/* ---- the list of GEMMs, and measuring them ---- */

/* A GEMM to measure. */
typedef struct job {
    moert_tuned operation;
    moert_dtype type;
    moert_gemm_shape shape;
} job;

/* Prints "[k of n, m:ss left]" and a description of the GEMM. */
static void print_job(const job *of, size_t done, size_t count, uint64_t start_ns) {
    const moert_gemm_shape *shape = &of->shape;
    char left[32] = "";
    if (done > 0) {
        const double each = (double)(moert_clock_ns() - start_ns) * 1e-9 / (double)done;
        const size_t rest = (size_t)(each * (double)(count - done) + 0.5);
        snprintf(left, sizeof left, ", %zu:%02zu left", rest / 60, rest % 60);
    }
    printf("\n[%zu of %zu%s] %s %s of %zu experts, %zu rows each, N %zu, K %zu%s%s\n", done + 1,
           count, left, moert_tuned_name(of->operation), moert_dtype_name(of->type), shape->experts,
           shape->rows, shape->n, shape->k, shape->model != NULL ? ", " : "",
           shape->model != NULL ? shape->model : "");
    fflush(stdout);
}

static moert_status tune(moert_device *device, const job *of) {
    moert_tune_gemm p;
    moert_tune_result found;
    bool possible;
    MOERT_TRY(moert_tune_gemm_create(device, of->operation, of->type, &of->shape, &p, &possible));
    moert_status status = MOERT_OK;
    if (!possible) {
        printf("this weight gains nothing from a prepacked copy\n");
        goto done;
    }
    moert_choices first = moert_tuning_find(device, &p.key);
    if (p.panels != NULL) {
        first.lines = p.tile.lines;
        first.width = p.tile.width;
    }
    const moert_trial trial = moert_tune_gemm_trial(&p);
    MOERT_TRY_OR(
        done, moert_tune_search(&trial, &first, first_axis(&p), (uint64_t)(1e9 * seconds), &found));
    MOERT_TRY_OR(done, print_candidates(&p, &found));
    MOERT_TRY_OR(done,
                 moert_tune_gemm_compare(&p, &first, &found.candidates[found.chosen].choices));
    if (writes)
        MOERT_TRY_OR(done, write_rows(device, &p, &found));
done:
    moert_tune_gemm_destroy(&p);
    return status;
}

/* Whether to measure an operation. Without --op, measures the operations that training the model
 * uses. */
static bool is_chosen(moert_tuned operation) {
    if (op > 0)
        return op - 1 == operation;
    return model_path == NULL ||
           (operation != MOERT_TUNED_FORWARD && operation != MOERT_TUNED_DGRAD);
}

/* Lists the GEMMs to measure for a shape. */
static size_t list_jobs(const moert_gemm_shape *shape, job *jobs) {
    enum { AUTO, F32, BF16 };
    static const moert_dtype types[] = {MOERT_DTYPE_F32, MOERT_DTYPE_BF16};
    const unsigned only = dtype == AUTO && model_path != NULL ? F32 : dtype;
    size_t count = 0;
    for (unsigned t = 0; t < MOERT_COUNT(types); t++)
        for (moert_tuned o = 0; o < MOERT_TUNED_OPERATIONS; o++)
            if (is_chosen(o) && (only == t + 1 || only == AUTO || only > BF16))
                jobs[count++] = (job){o, types[t], *shape};
    return count;
}

static moert_status tune_all(moert_device *device) {
    moert_gemm_shape shapes[MOERT_MOST_GEMM_SHAPES];
    job *jobs;
    size_t shape_count = 2, count = 0;
    moert_status status = MOERT_OK;
    if (model_path != NULL)
        MOERT_TRY(read_model(shapes));
    else if (words.count == 0)
        shape_count = moert_gemm_shapes((moert_gemm_suite)suite, shapes);
    else
        shape_count = words.count;
    if (writes)
        MOERT_TRY(try_file());
    MOERT_TRY(MOERT_NEW_ARRAY(&jobs, shape_count * MOERT_TUNED_OPERATIONS * 2));
    for (size_t i = 0; i < shape_count && status == MOERT_OK; i++) {
        moert_gemm_shape given;
        if (words.count > 0)
            status = read_shape(words.words[i], &given);
        count += list_jobs(words.count > 0 ? &given : &shapes[i], &jobs[count]);
    }
    print_header(moert_device_describe(device));
    const uint64_t start_ns = moert_clock_ns();
    for (size_t i = 0; i < count && status == MOERT_OK; i++) {
        print_job(&jobs[i], i, count, start_ns);
        status = tune(device, &jobs[i]);
    }
    free(jobs);
    return status;
}

static moert_status run(moert_context *context) {
    moert_device *device = moert_context_device(context);
    moert_status status;
    if (moert_device_describe(device)->gpu_form)
        status = MOERT_FAIL(ERROR_USAGE,
                            "nothing to measure: kernels in GPU form choose their tiles by the "
                            "shape");
    else if (moert_context_size(context) > 1)
        status = MOERT_FAIL(ERROR_USAGE, "moert-tune runs on one rank, not on %zu",
                            moert_context_size(context));
    else
        status = tune_all(device);
    free(words.words);
    return moert_comm_agree(moert_context_comm(context), status);
}

const moert_program moert_tune_program = MOERT_PROGRAM_OF(
    "moert-tune [--suite NAME | --shapes ExMxNxK... | --model DIR] [OPTION...]",
    "Measures tile sizes and other choices of grouped GEMMs on this device, for a list of shapes,\n"
    "and adds the fastest ones to the tuning rows that every program reads. The choices do not\n"
    "change the bits of a result.",
    check);
MOERT_MAIN(moert_tune_program)
