/*
 * bench_attention: rates of causal attention, forward and backward, each result checked against
 * float64. bench/rivals/torch_attention.py measures the shapes with grouped-query heads in PyTorch.
 *
 * A sample is 50 ms of consecutive calls, after 25 ms of calls that are not timed. The rate is the
 * median of several samples. FLOPs are those of the formulas: 2 GEMMs forward and 5 backward
 * (bench_attention_flops). Work that a kernel repeats is not included. Operands repeat patterns of
 * random numbers; q, k, v and dout have the dtype that the device reads (moert_attention_operands),
 * as in training.
 *
 * --compare measures one shape in several forms: as given, with a window, with sinks, with
 * documents, and as multi-head latent attention. The forms alternate in ROUNDS rounds. For each
 * form, --compare prints time and rate in the best round, relative to the first form. In the latent
 * form every head has its own key of 3/2 head_size elements, and the number of heads gives the
 * forward the FLOPs of the first form.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "bench/attention/problem.h"
#include "bench/common/rate.h"
#include "bench/common/report.h"

enum { FORMS = 5, OPS = 2, ROUNDS = 5, COMPARED_TOKENS = 128 };

static bench_attention_shape chosen;
static unsigned dtype;
static bool compare;
static size_t seed;
static const char *json_path;

static const moert_option options[] = {
    {"sequences", MOERT_OPTION_UINT, &chosen.a.sequences, "16", "1..65536", "S"},
    {"length", MOERT_OPTION_UINT, &chosen.a.length, "1024", "1..1048576",
     "tokens of a sequence, L"},
    {"heads", MOERT_OPTION_UINT, &chosen.a.heads, "32", "1..1024", "of q"},
    {"kv-heads", MOERT_OPTION_UINT, &chosen.a.kv_heads, "4", "1..1024", "of k and v"},
    {"head-size", MOERT_OPTION_UINT, &chosen.a.head_size, "128", "1..512", "of q and k, D"},
    {"value-size", MOERT_OPTION_UINT, &chosen.a.value_size, "0", "0..512", "of v, E; 0: D"},
    {"window", MOERT_OPTION_UINT, &chosen.a.window, "0", "0..1048576",
     "keys that a query sees; 0: all"},
    {"documents", MOERT_OPTION_UINT, &chosen.documents, "0", "0..1048576",
     "tokens of each document; 0: a sequence is one"},
    {"sinks", MOERT_OPTION_FLAG, &chosen.sinks, NULL, NULL, "one more score for each query"},
    {"compare", MOERT_OPTION_FLAG, &compare, NULL, NULL,
     "also windows and documents of 128 tokens, sinks, and latent attention, alternating"},
    {"dtype", MOERT_OPTION_CHOICE, &dtype, "all", "all|f32|bf16", "of the GEMMs' operands"},
    {"seed", MOERT_OPTION_UINT, &seed, "1", "0..", "of the operands"},
    {"json", MOERT_OPTION_STRING, &json_path, NULL, "FILE",
     "file for the rows, an array of objects"},
};

static const char columns[] =
    "form -9s, op -9s, dtype -5s, S 5z, L 6z, heads 5z, kv_heads 8z, D 4z, E 4z, window 6z,"
    " documents 9z, sinks 5b, tflops 8.3f TFLOP/s, time_ratio 6.3f time, rate_ratio 6.3f rate,"
    " error 9.2e, wrong 1w";

/* One of the compared forms, its rates and largest errors. */
typedef struct form {
    const char *name;
    bench_attention b;
    double tflops[OPS][ROUNDS], worst[OPS];
} form;

static moert_status forward(void *attention) {
    return moert_attention_forward(attention);
}

static moert_status backward(void *attention) {
    return moert_attention_backward(attention);
}

static const struct {
    const char *name;
    moert_status (*call)(void *);
} ops[OPS] = {{"forward", forward}, {"backward", backward}};

/* Lists the compared forms and returns their number. The first form has the chosen shape. */
static size_t list_forms(const char *names[FORMS], bench_attention_shape shapes[FORMS]) {
    bench_attention_shape window = chosen, sinks = chosen, documents = chosen, latent = chosen;
    window.a.window = documents.documents = COMPARED_TOKENS;
    sinks.sinks = true;
    latent.a.head_size = chosen.a.head_size * 3 / 2;
    latent.a.value_size = chosen.a.head_size;
    latent.a.heads = latent.a.kv_heads = moert_max(chosen.a.heads * 4 / 5, 1);
    const bench_attention_shape all[FORMS] = {chosen, window, sinks, documents, latent};
    static const char *const all_names[FORMS] = {"given", "window", "sinks", "documents", "latent"};
    for (size_t i = 0; i < FORMS; i++) {
        names[i] = all_names[i];
        shapes[i] = all[i];
    }
    return compare ? FORMS : 1;
}

/* The best rate of the rounds: other programs on the machine only lower a rate. */
static double best(const form *f, size_t op, size_t rounds) {
    double rate = 0.0;
    for (size_t r = 0; r < rounds; r++)
        rate = fmax(rate, f->tflops[op][r]);
    return rate;
}

static moert_status report(bench_rows *rows, const form *f, const form *first, size_t op,
                           size_t rounds) {
    const moert_attention *s = &f->b.a;
    const bool wrong = !(f->worst[op] <= (f->b.a.type == MOERT_DTYPE_BF16 ? 0.03 : 1e-4));
    const double tflops = best(f, op, rounds), rate = tflops / best(first, op, rounds);
    const double time =
        bench_attention_flops(&f->b, op > 0) / bench_attention_flops(&first->b, op > 0) / rate;
    return bench_rows_add(rows, f->name, ops[op].name, moert_dtype_name(f->b.a.type), s->sequences,
                          s->length, s->heads, s->kv_heads, s->head_size, s->value_size, s->window,
                          f->b.documents, s->sinks != NULL, tflops, time, rate, f->worst[op],
                          wrong);
}

static moert_status run_type(bench_rows *rows, form *forms, size_t count, moert_dtype type) {
    const size_t rounds = compare ? ROUNDS : 1;
    for (form *f = forms; f < forms + count; f++) {
        MOERT_TRY(bench_attention_set(&f->b, type));
        memset(f->worst, 0, sizeof f->worst);
        MOERT_TRY(moert_attention_forward(&f->b.a));
        MOERT_TRY(moert_attention_backward(&f->b.a));
        MOERT_TRY(bench_attention_check(&f->b, f->worst));
    }
    for (size_t op = 0; op < OPS; op++) {
        for (size_t r = 0; r < rounds; r++)
            for (form *f = forms; f < forms + count; f++)
                MOERT_TRY(bench_rate(moert_buffer_device(f->b.a.q), ops[op].call, &f->b.a,
                                     bench_attention_flops(&f->b, op > 0), &f->tflops[op][r]));
        for (form *f = forms; f < forms + count; f++)
            MOERT_TRY(report(rows, f, forms, op, rounds));
    }
    return MOERT_OK;
}

static moert_status run(moert_context *context) {
    moert_device *device = moert_context_device(context);
    const char *names[FORMS];
    bench_attention_shape shapes[FORMS];
    form forms[FORMS] = {0};
    bench_rows rows = bench_rows_begin(context, columns, "%s", moert_device_name(device));
    const size_t count = list_forms(names, shapes);
    moert_status status;
    for (size_t i = 0; i < count; i++) {
        forms[i].name = names[i];
        MOERT_TRY_OR(release, bench_attention_create(device, &shapes[i], seed, &forms[i].b));
    }
    for (unsigned i = 0; i < 2; i++)
        if (dtype == 0 || dtype == i + 1)
            MOERT_TRY_OR(release, run_type(&rows, forms, count,
                                           i == 0 ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16));
release:
    for (size_t i = 0; i < count; i++)
        bench_attention_destroy(&forms[i].b);
    return bench_rows_end(&rows, json_path, "results", status);
}

MOERT_PROGRAM_MAIN(
    "bench_attention [OPTION...]",
    "Times causal attention on a device and checks its results. Exits with 1 if a result "
    "is wrong.",
    NULL)
