/*
 * bench_layer: an expert-parallel MoE layer (router, dispatch, experts, combine), forward and
 * forward + backward with all weight gradients, on all ranks of the job. The times do not include
 * the sums of gradients over replicas, because a training step sums them only once.
 *
 * A sample is the time from a barrier to the end of several consecutive calls, on the slowest rank.
 * Before the samples, y and dx of some tokens of every rank are compared with a float64 computation
 * on the host from the ranks' weights. FLOPs are those of the experts' GEMMs: 6 H I per slot
 * forward, 12 H I backward. A recipe's times alternate with those of the same layer with operands
 * in bf16; the column of_bf16 has the ratio. A layer rounds its weights before the samples.
 *
 * With --skew, the experts of all tokens are drawn at random and have equal weights; there is no
 * router. --balance then places the experts by their numbers of rows, as moert-train --rebalance
 * does.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "bench/common/pattern.h"
#include "tools/common/rates.h"
#include "bench/common/report.h"
#include "bench/common/tokens.h"
#include "bench/layer/layer_check.h"
#include "bench/predict/choice.h"
#include "comm/comm.h"
#include "device/buffer.h"
#include "device/profile/profile.h"
#include "layer/block.h"
#include "moert/layer.h"
#include "plan/balance.h"

enum { X, DY, Y, DX, INDEX, WEIGHT, BUFFERS };
enum { FORWARD, FORWARD_BACKWARD, OPERATIONS };
#define SAMPLE_S 0.05

static bench_work asked;
static size_t length, repeat, seed;
static unsigned model, precision, dispatch, combine;
static const char *json_path, *skew_text;
static bool with_spans;

static const moert_option options[] = {
    BENCH_LAYER_OPTIONS(asked, model, dispatch, combine),
    {"length", MOERT_OPTION_UINT, &length, "2048", "1..1048576",
     "tokens of a sequence: dense weight gradients are summed by sequence"},
    {"ep", MOERT_OPTION_UINT, &asked.ep, "0", "0..",
     "ranks that share one set of experts; 0 = all"},
    {"precision", MOERT_OPTION_CHOICE, &precision, "f32", MOERT_PRECISION_WORDS,
     "of the experts' GEMMs"},
    {"skew", MOERT_OPTION_STRING, &skew_text, NULL, NULL,
     BENCH_SKEW_HELP ". Default: a router's choice of experts"},
    {"repeat", MOERT_OPTION_UINT, &repeat, "7", "1..1000", "samples"},
    {"seed", MOERT_OPTION_UINT, &seed, "1", "0..", "of weights and tokens"},
    {"spans", MOERT_OPTION_FLAG, &with_spans, NULL, NULL,
     "run one more call and list what rank 0's device does, and when the rank waits for messages"},
    {"json", MOERT_OPTION_STRING, &json_path, NULL, "FILE",
     "file for the rows, an array of objects"},
};

static const char columns[] =
    "op -17s, engine -7s, ranks 5z, T 6z, H 6z, I 6z, E 4z, K 3z, precision -9c, dispatch -8c,"
    " combine -7c, ms 10.3f, of_bf16 7.3f?, tokens_per_s 12.0f tokens/s, gflops 12.1f GFLOP/s "
    "rank, error 9.1e,"
    " wrong 1w";

typedef struct bench {
    moert_context *context;
    moert_comm *comm;
    moert_device *device;
    moert_mesh *mesh;
    moert_layer *layer;
    moert_batch batch;
    moert_buffer *buffer[BUFFERS], *ends;
    float *host[2]; /* [T,H] */
    int32_t *index; /* [T,K] experts of all ranks' tokens; NULL: the router chooses them */
    bench_rows rows;
    double worst[2];
    int operation;     /* of call() */
    uint64_t start_ns; /* of the spans */
} bench;

/* ---- set-up ---- */

/* Fills `count` weights of `elements` elements each with the same normal random numbers. A slot's
 * weight is rotated by an offset that depends on the slot's expert; if `layer` is NULL, no weight
 * is rotated. For large models, copies on the device are far faster than drawing all values on the
 * host. */
static moert_status make_weights(moert_buffer *weight, const moert_layer *layer, size_t count,
                                 size_t elements) {
    enum { ROTATION = 6151 };
    const size_t size = sizeof(float), bytes = elements * size;
    moert_buffer *drawn = NULL;
    float *values;
    moert_status status;
    MOERT_TRY(MOERT_NEW_ARRAY(&values, elements));
    moert_rng_normals(seed, elements, 0, 0.02, values, elements);
    MOERT_TRY_OR(release, bench_upload(moert_buffer_device(weight), values, bytes, &drawn));
    for (size_t i = 0; i < count; i++) {
        const size_t start =
            (layer != NULL ? moert_layer_expert(layer, i) : 0) * ROTATION % elements * size;
        MOERT_TRY_OR(release, moert_buffer_copy(drawn, start, weight, i * bytes, bytes - start));
        MOERT_TRY_OR(release,
                     moert_buffer_copy(drawn, 0, weight, i * bytes + bytes - start, start));
    }
release:
    moert_buffer_destroy(drawn);
    free(values);
    return status;
}

static moert_status make_layer(bench *b) {
    moert_layer *layer = b->layer;
    moert_layer_weights_changed(layer);
    if (b->index == NULL)
        MOERT_TRY(make_weights(moert_layer_weight(layer, MOERT_LAYER_ROUTER), NULL, 1,
                               asked.experts * asked.hidden));
    const size_t local = moert_layer_local_experts(layer);
    MOERT_TRY(make_weights(moert_layer_weight(layer, MOERT_LAYER_W1), layer, local,
                           2 * asked.intermediate * asked.hidden));
    return make_weights(moert_layer_weight(layer, MOERT_LAYER_W2), layer, local,
                        asked.intermediate * asked.hidden);
}

/* Draws the experts of all ranks' tokens. The batch gets the experts of this rank's tokens. */
static moert_status make_routing(bench *b) {
    const size_t ranks = moert_comm_size(b->comm), own = asked.tokens * asked.topk;
    float *weight;
    moert_status status;
    MOERT_TRY(MOERT_NEW_ARRAY(&b->index, ranks * own));
    MOERT_TRY(MOERT_NEW_ARRAY(&weight, own));
    for (size_t i = 0; i < own; i++)
        weight[i] = 1.0f / (float)asked.topk;
    MOERT_TRY_OR(release, bench_route(asked.skew, seed, ranks * asked.tokens, asked.topk,
                                      asked.experts, b->index));
    MOERT_TRY_OR(release,
                 bench_upload(b->device, weight, own * sizeof *weight, &b->buffer[WEIGHT]));
    status = bench_upload(b->device, b->index + moert_comm_rank(b->comm) * own,
                          own * sizeof *b->index, &b->buffer[INDEX]);
release:
    free(weight);
    return status;
}

/* Prints how evenly the rows are distributed over the ranks. With --balance, first places the
 * experts by their numbers of rows. */
static moert_status place(bench *b) {
    const moert_expert_map *map = moert_layer_placement(b->layer);
    const size_t slots = moert_comm_size(b->comm) * asked.tokens * asked.topk;
    uint64_t *rows = NULL;
    uint32_t *expert = NULL;
    moert_status status;
    MOERT_TRY_OR(release, MOERT_NEW_ARRAY(&rows, asked.experts));
    MOERT_TRY_OR(release, MOERT_NEW_ARRAY(&expert, moert_expert_map_slots(map)));
    for (size_t i = 0; i < slots; i++)
        if (b->index[i] >= 0)
            rows[b->index[i]]++;
    if (asked.balanced)
        MOERT_TRY_OR(release, moert_expert_map_balance(map, rows, asked.clones > 0, expert));
    moert_program_say(b->context, "# rows of the busiest rank: %.3f times the mean%s\n",
                      moert_expert_map_load(map, asked.balanced ? expert : map->expert, rows),
                      asked.balanced ? ", balanced" : "");
    if (asked.balanced)
        MOERT_TRY_OR(release, moert_layer_place(b->layer, expert));
release:
    MOERT_FREE(rows, expert);
    return status;
}

/* Random rows for this rank's tokens. */
typedef struct rows {
    uint64_t seed;
    size_t first_token;
    float *values; /* [T,H] */
} rows;

static void draw_rows(void *context, size_t first, size_t end) {
    const rows *r = context;
    for (size_t i = first * asked.hidden; i < end * asked.hidden; i++)
        r->values[i] = bench_number(r->seed, r->first_token + i / asked.hidden, i % asked.hidden);
}

static moert_status make_rows(bench *b) {
    const size_t rank = moert_comm_rank(b->comm), count = asked.tokens * asked.hidden;
    for (int i = 0; i < 2; i++) { /* x and dy */
        MOERT_TRY(MOERT_NEW_ARRAY(&b->host[i], count));
        rows drawn = {seed + (unsigned)i, rank * asked.tokens, b->host[i]};
        moert_parallel(asked.tokens, 1, draw_rows, &drawn);
        MOERT_TRY(bench_upload(b->device, b->host[i], count * sizeof(float), &b->buffer[i]));
    }
    MOERT_TRY(moert_buffer_create(b->device, count * sizeof(float), &b->buffer[Y]));
    return moert_buffer_create(b->device, count * sizeof(float), &b->buffer[DX]);
}

/* Divides the batch's tokens into sequences of `length` tokens; the last sequence has the remaining
 * tokens. */
static moert_status make_batch(bench *b) {
    const size_t count = moert_ceil_div(asked.tokens, length), rank = moert_comm_rank(b->comm);
    uint32_t *ends;
    MOERT_TRY(MOERT_NEW_ARRAY(&ends, count));
    for (size_t s = 0; s < count; s++)
        ends[s] = (uint32_t)moert_min((s + 1) * length, asked.tokens);
    b->batch = (moert_batch){.size = sizeof b->batch,
                             .tokens = asked.tokens,
                             .sequences = count,
                             .first_sequence = rank * count,
                             .total_sequences = moert_comm_size(b->comm) * count};
    const moert_status status = bench_upload(b->device, ends, count * sizeof *ends, &b->ends);
    b->batch.ends = b->ends;
    b->batch.index = b->buffer[INDEX];
    b->batch.weight = b->buffer[WEIGHT];
    free(ends);
    return status;
}

static moert_status make_operands(bench *b) {
    if (skew_text != NULL) {
        MOERT_TRY(make_routing(b));
        MOERT_TRY(place(b));
    }
    MOERT_TRY(make_layer(b));
    MOERT_TRY(make_rows(b));
    return make_batch(b);
}

static moert_status prepare(bench *b) {
    moert_layer_options o = MOERT_LAYER_OPTIONS_INIT;
    o.hidden = asked.hidden;
    o.intermediate = asked.intermediate;
    o.router.experts = asked.experts;
    o.router.topk = asked.topk;
    o.precision = (moert_precision)precision;
    o.dispatch = (moert_dispatch)dispatch;
    o.combine = (moert_combine)combine;
    o.external_routing = skew_text != NULL;
    const size_t group = asked.ep == 0 ? moert_comm_size(b->comm) : asked.ep;
    o.slots = asked.balanced
                  ? moert_min(moert_ceil_div(asked.experts, group) + asked.clones, asked.experts)
                  : 0;
    MOERT_TRY(moert_mesh_create(b->context, asked.ep, &b->mesh));
    MOERT_TRY(moert_layer_create(b->mesh, &o, &b->layer));
    moert_layer_trust_batches(b->layer); /* the layer does not check batches, as in training */
    return moert_comm_agree(b->comm, make_operands(b));
}

static void release(bench *b) {
    moert_layer_destroy(b->layer);
    moert_mesh_destroy(b->mesh);
    moert_buffers_destroy(b->buffer, BUFFERS);
    moert_buffer_destroy(b->ends);
    MOERT_FREE(b->host[0], b->host[1], b->index);
}

/* ---- calls ---- */

static moert_status call(void *context) {
    bench *b = context;
    const bool backward = b->operation == FORWARD_BACKWARD;
    moert_pass *pass;
    MOERT_TRY(moert_layer_forward(b->layer, &b->batch, b->buffer[X], b->buffer[Y], &pass));
    moert_status status = MOERT_OK;
    if (backward)
        status = moert_pass_backward(pass, b->buffer[DY], NULL, b->buffer[DX]);
    if (backward && status == MOERT_OK)
        status = moert_layer_reduce(b->layer, true);
    moert_pass_destroy(pass);
    return status;
}

/* Clears y and dx, makes one call, and checks both results. */
static moert_status check(bench *b) {
    const bench_layer_case c = {
        b->comm,       b->layer,     asked.ep == 0 ? moert_comm_size(b->comm) : asked.ep,
        asked.tokens,  asked.hidden, asked.intermediate,
        asked.experts, asked.topk,   seed,
        b->index};
    const size_t bytes = asked.tokens * asked.hidden * sizeof(float);
    moert_status status;
    for (int i = Y; i <= DX; i++)
        MOERT_TRY(moert_buffer_clear(b->buffer[i], 0, bytes));
    b->operation = FORWARD_BACKWARD;
    MOERT_TRY(call(b));
    status = moert_buffer_read(b->buffer[Y], 0, b->host[0], bytes);
    if (status == MOERT_OK)
        status = moert_buffer_read(b->buffer[DX], 0, b->host[1], bytes);
    MOERT_TRY(moert_comm_agree(b->comm, status));
    return bench_layer_check(&c, b->host[0], b->host[1], b->worst);
}

/* ---- spans ---- */

static void show_span(void *context, const moert_profile_span *span) {
    const bench *b = context;
    static const char *const kinds[] = {"device", "wait", "rows under way"};
    moert_program_say(b->context, "# %10.1f us %10.1f us  %-14s  %-22s %s\n",
                      (double)(span->start_ns - b->start_ns) * 1e-3,
                      (double)(span->end_ns - span->start_ns) * 1e-3, kinds[span->kind],
                      moert_operation_text(span->operation), moert_phase_name(span->phase));
}

static moert_status show_spans(bench *b) {
    moert_status status;
    MOERT_TRY(moert_comm_agree(b->comm, moert_profile_enable(b->device)));
    for (int pass = 0; pass < 2; pass++) { /* the first pass warms up and is not shown */
        moert_profile_observe(b->device, pass == 1 ? show_span : NULL, b);
        MOERT_TRY_OR(stop, moert_comm_agree(b->comm, moert_profile_begin(b->device)));
        b->start_ns = moert_clock_ns();
        MOERT_TRY_OR(stop, call(b));
        MOERT_TRY_OR(stop, moert_profile_end(b->device));
    }
stop:
    moert_profile_observe(b->device, NULL, NULL);
    return status;
}

/* ---- rows ---- */

/* Returns the largest error of y and dx that rounding in the chosen precision explains. */
static double bound(void) {
    static const double of_precision[] = {1e-5, 0.03, 0.15, 0.5, 0.15, 0.5};
    static const double of_dispatch[] = {1e-5, 0.15, 0.03};
    static const double of_combine[] = {1e-5, 0.03};
    return fmax(of_precision[precision], fmax(of_dispatch[dispatch], of_combine[combine]));
}

/* Times call(): *seconds = the median of the rounds, and *of_bf16 = its ratio to that with operands
 * in bf16, or 0 if the precision is no recipe. */
static moert_status measure(bench *b, double *seconds, double *of_bf16) {
    enum { ROUNDS = 3 };
    const moert_timed timed = {b->device, b->comm, call, b, repeat, SAMPLE_S};
    const bool rounds = precision > MOERT_PRECISION_BF16;
    double round[2][ROUNDS];
    for (int i = 0; i < (rounds ? ROUNDS : 1); i++)
        for (int bf16 = 0; bf16 < (rounds ? 2 : 1); bf16++) {
            b->batch.bf16_operands = bf16;
            MOERT_TRY(moert_rates_time(&timed, 1, &round[bf16][i]));
        }
    b->batch.bf16_operands = false;
    *seconds = rounds ? moert_rates_median(round[0], ROUNDS) : round[0][0];
    *of_bf16 = rounds ? *seconds / moert_rates_median(round[1], ROUNDS) : 0.0;
    return MOERT_OK;
}

static moert_status report(bench *b, int operation, double seconds, double of_bf16) {
    static const char *const names[] = {"forward", "forward+backward"};
    const size_t ranks = moert_comm_size(b->comm);
    const double flops = (operation == FORWARD ? 6.0 : 18.0) * (double)(asked.tokens * asked.topk) *
                         (double)asked.hidden * (double)asked.intermediate;
    return bench_rows_add(
        &b->rows, names[operation], moert_mesh_engine(b->mesh), ranks, asked.tokens, asked.hidden,
        asked.intermediate, asked.experts, asked.topk, MOERT_PRECISION_WORDS, precision,
        MOERT_DISPATCH_WORDS, dispatch, MOERT_COMBINE_WORDS, combine, seconds * 1e3, of_bf16,
        (double)(ranks * asked.tokens) / seconds, flops / seconds * 1e-9,
        fmax(b->worst[0], b->worst[1]), !(b->worst[0] <= bound() && b->worst[1] <= bound()));
}

static moert_status run(moert_context *context) {
    bench b = {.context = context,
               .comm = moert_context_comm(context),
               .device = moert_context_device(context)};
    double seconds = 0.0, of_bf16 = 0.0;
    char wrong[128];
    moert_status status;
    b.rows = bench_rows_begin(context, columns, "%s", moert_device_name(b.device));
    MOERT_TRY_OR(release, prepare(&b));
    MOERT_TRY_OR(release, check(&b));
    for (b.operation = 0; b.operation < OPERATIONS; b.operation++) {
        MOERT_TRY_OR(release, measure(&b, &seconds, &of_bf16));
        MOERT_TRY_OR(release, report(&b, b.operation, seconds, of_bf16));
    }
    b.operation = FORWARD_BACKWARD;
    if (with_spans)
        MOERT_TRY_OR(release, show_spans(&b));
release:
    snprintf(wrong, sizeof wrong, "rows (y off by %.1e, dx by %.1e, more than %.1e)", b.worst[0],
             b.worst[1], bound());
    status = bench_rows_end(&b.rows, json_path, wrong, status);
    release(&b);
    return status;
}

static moert_status check_options(const moert_command *command) {
    (void)command;
    return bench_layer_choose(&asked, model, skew_text);
}

MOERT_PROGRAM_MAIN("[mpirun -n R] bench_layer [OPTION...]",
                   "Times an expert-parallel MoE layer, forward and backward, and checks its "
                   "results. Exits with 1 if a result is wrong.",
                   check_options)
