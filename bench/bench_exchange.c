/*
 * bench_exchange: dispatch and combine between the ranks of a job. Every element of a row follows
 * from the global index of its token (bench/layer/payload.h). On CPU devices there is a rival,
 * which packs the same rows, calls MPI_Alltoallv and unpacks the rows (bench/layer/alltoall.h).
 *
 * A sample is the time from a barrier to the end of the call on the slowest rank. With --batch N, N
 * calls follow one barrier, and the sample is the mean time of a call. Within a batch, GPUs whose
 * barriers run on the device start each call without waiting for the hosts. Samples of moert and of
 * the rival alternate. Before each sample every core fills its L2 cache with unrelated data. The
 * plan (counts and offsets of the rows) is made before the samples; moert and the rival use the
 * same plan. Bytes and rates count one row per slot whose expert is on another rank; with one rank,
 * one row per slot. If ranks push rows (MOERT_PUSH=on or sum), the time of a combine includes
 * pushing the rows from a buffer.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/memory.h"
#include "base/rng.h"
#include "bench/common/pattern.h"
#include "tools/common/rates.h"
#include "bench/common/report.h"
#include "bench/common/tokens.h"
#include "bench/layer/alltoall.h"
#include "bench/layer/payload.h"
#include "device/buffer.h"
#include "device/device.h"
#include "exchange/exchange.h"

enum side { OURS, PACKED, PREPACKED_STREAMED, SIDES };

static unsigned engine, dtype;
static const char *skew_text;
static bench_skew skew;
static size_t tokens, hidden, topk, experts, repeat, batch, seed;
static bool weighted, with_rival;
static const char *json_path;

static const moert_option options[] = {
    {"engine", MOERT_OPTION_CHOICE, &engine, "auto", "auto|local|window|node|staged",
     "of the exchange"},
    {"tokens", MOERT_OPTION_UINT, &tokens, "2048", "1..1048576", "tokens of each rank, T"},
    {"hidden", MOERT_OPTION_UINT, &hidden, "1024", "32..65536", "elements of a row, H"},
    {"topk", MOERT_OPTION_UINT, &topk, "4", "1..64", "experts of a token, K"},
    {"experts", MOERT_OPTION_UINT, &experts, "16", "1..4096", "E"},
    {"dtype", MOERT_OPTION_CHOICE, &dtype, "f32", BENCH_DTYPE_WORDS,
     "of the rows; mxfp8 rows are only dispatched"},
    {"skew", MOERT_OPTION_STRING, &skew_text, "balanced", NULL, BENCH_SKEW_HELP},
    {"weights", MOERT_OPTION_FLAG, &weighted, "1", NULL,
     "combine multiplies the rows by weights, as if the layer had not; off with MOERT_PUSH=sum"},
    {"rival", MOERT_OPTION_FLAG, &with_rival, "1", NULL, "also measure packed MPI_Alltoallv"},
    {"repeat", MOERT_OPTION_UINT, &repeat, "21", "1..1000", "samples of each contender"},
    {"batch", MOERT_OPTION_UINT, &batch, "1", "1..1000",
     "calls per sample; the sample is their mean"},
    {"seed", MOERT_OPTION_UINT, &seed, "1", "0..", "of routing and payload"},
    {"json", MOERT_OPTION_STRING, &json_path, NULL, "FILE",
     "file for the rows, an array of objects"},
};

static const char columns[] =
    "op -9s, engine -7s, sums *b, ranks 5z, T 7z, H 6z, K 3z, E 5z, dtype -6c, skew -9s,"
    " weights *b, batch *z, bytes *f, us_min 10.1f us min, us 10.1f median, us_p99 10.1f p99,"
    " gbps 8.2f GB/s, rival *s?, rival_us 10.1f? rival us, ratio 6.2f?, wrong 6z";

typedef struct bench {
    moert_context *context;
    moert_device *device;
    moert_comm *comm;
    bench_pool *pool;
    moert_exchange *exchange;
    moert_window *window,
        /* slot_window: a window with one float per row, if ranks push rows; otherwise NULL */
        *slot_window;
    moert_exchange_plan *plan;
    moert_plan *slots;        /* the plan with its slots on the host */
    bench_alltoall *alltoall; /* the rival, or NULL */
    moert_buffer *index, *source, *weight, *target;
    moert_buffer *made; /* [M,stride] rows to push, or NULL */
    int32_t *all_index; /* [ranks,T,K] */
    uint64_t *token_of; /* [M] the global token of each row of this rank */
    float *weights;     /* [T,K] */
    float *host;        /* [T,width] rows to dispatch */
    float *seen;        /* [M,stride] or [T,H]: received rows or sums */
    bench_payload payload;
    size_t width, row_bytes; /* floats and bytes of a row */
    double bytes;            /* bytes of the rows that a rank sends, averaged over the ranks */
    bench_rows rows;
} bench;

/* Sets token_of. The rows of an expert are ordered by rank, then by token. */
static moert_status find_tokens(bench *b) {
    const moert_plan *plan = b->plan->plan;
    const size_t slots = plan->ranks * tokens * topk;
    size_t row = 0;
    MOERT_TRY(MOERT_NEW_ARRAY(&b->token_of, plan->rows));
    for (size_t e = plan->first_expert; e < plan->first_expert + plan->local_experts; e++)
        for (size_t s = 0; s < slots; s++)
            if (b->all_index[s] == (int32_t)e && row < plan->rows)
                b->token_of[row++] = s / topk;
    if (row != plan->rows)
        return MOERT_FAIL(ERROR_NUMERIC,
                          "the plan has %zu rows, but the routing gives this rank %zu rows",
                          plan->rows, row);
    return MOERT_OK;
}

/* ---- set-up ---- */

static moert_status make_buffers(bench *b) {
    const size_t rank = moert_comm_rank(b->comm), slots = tokens * topk;
    MOERT_TRY(MOERT_NEW_ARRAY(&b->host, tokens * b->width));
    MOERT_TRY(MOERT_NEW_ARRAY(&b->weights, slots));
    bench_payload_fill(&b->payload, rank * tokens, tokens, b->host);
    for (size_t s = 0; s < slots; s++)
        b->weights[s] = weighted ? (float)moert_rng_uniform(seed, 3, rank * slots + s) : 1.0f;
    MOERT_TRY(
        bench_upload(b->device, b->all_index + rank * slots, slots * sizeof(int32_t), &b->index));
    MOERT_TRY(bench_upload(b->device, b->weights, slots * sizeof(float), &b->weight));
    MOERT_TRY(bench_upload(b->device, b->host, tokens * b->row_bytes, &b->source));
    return moert_buffer_create(b->device, tokens * hidden * sizeof(float), &b->target);
}

/* Makes the rows that a combine pushes; they are the rows that a dispatch delivers. */
static moert_status prepare_push(bench *b) {
    const moert_plan *plan = b->plan->plan;
    const size_t bytes = plan->rows * moert_window_stride(b->window) * sizeof(float);
    MOERT_TRY(moert_window_create(b->exchange, 1, &b->slot_window));
    MOERT_TRY(moert_window_reserve_slots(b->window, b->plan));
    const moert_transfer forth = {.plan = b->plan,
                                  .window = b->window,
                                  .slots = b->slot_window,
                                  .source = b->source,
                                  .slot_source = b->weight};
    MOERT_TRY(moert_exchange_dispatch(b->exchange, &forth, MOERT_OK));
    moert_status status = moert_buffer_create(b->device, bytes, &b->made);
    if (status == MOERT_OK)
        status = moert_buffer_copy(moert_window_rows(b->window), 0, b->made, 0, bytes);
    return moert_comm_agree(b->comm, status);
}

/* Returns the tolerance of a sum. Partial sums of ranks or nodes change the bits of the sum, and
 * bf16 also rounds the partial sums. */
static float slack_of(const bench *b) {
    const bool sums = moert_exchange_sums(b->exchange);
    const bool presums = moert_config_get()->node_sum == MOERT_NODE_SUM_PRESUM;
    return sums && dtype == BENCH_BF16 ? 4e-3f : sums || presums ? 1e-6f : 0.0f;
}

static moert_status count_bytes(bench *b) {
    const moert_plan *plan = b->plan->plan;
    size_t rows = 0;
    moert_of_ranks bytes;
    for (size_t r = 0; r < plan->ranks; r++)
        rows += r != plan->rank || plan->ranks == 1 ? plan->send_rows[r] : 0;
    MOERT_TRY(moert_rates_over_ranks(b->comm, (double)(rows * b->row_bytes) / (double)plan->ranks,
                                     &bytes));
    b->bytes = bytes.sum;
    return MOERT_OK;
}

/* Prepares the expected results, and the rival. */
static moert_status prepare_checks(bench *b) {
    const moert_plan *plan = b->plan->plan;
    const size_t seen = moert_max(plan->rows * moert_window_stride(b->window), tokens * hidden);
    MOERT_TRY(MOERT_NEW_ARRAY(&b->seen, seen));
    MOERT_TRY(find_tokens(b));
    MOERT_TRY(moert_plan_create(&(moert_plan_shape){experts, plan->ranks, plan->rank, tokens, topk},
                                b->all_index + plan->rank * tokens * topk, plan->counts,
                                &b->slots));
    return with_rival && moert_device_describe(b->device)->is_cpu
               ? bench_alltoall_create(b->device, b->pool, b->slots, b->row_bytes,
                                       dtype == BENCH_BF16, &b->alltoall)
               : MOERT_OK;
}

static moert_status prepare(bench *b) {
    const size_t all = moert_comm_size(b->comm) * tokens;
    b->payload = (bench_payload){seed, (bench_dtype)dtype, hidden, 0.0f};
    b->width = bench_payload_width(&b->payload);
    b->row_bytes = b->width * sizeof(float);
    MOERT_TRY(MOERT_NEW_ARRAY(&b->all_index, all * topk));
    MOERT_TRY(bench_route(skew, seed, all, topk, experts, b->all_index));
    MOERT_TRY(moert_exchange_create(b->device, b->comm, engine, &b->exchange));
    weighted = weighted && !moert_exchange_sums(b->exchange);
    b->payload.slack = slack_of(b);
    MOERT_TRY(moert_comm_agree(b->comm, make_buffers(b)));
    MOERT_TRY(moert_comm_agree(
        b->comm, bench_pool_create(moert_context_placement(b->context), 0, &b->pool)));
    MOERT_TRY(dtype == BENCH_BF16 ? moert_window_create_bf16(b->exchange, hidden, &b->window)
                                  : moert_window_create(b->exchange, b->width, &b->window));
    MOERT_TRY(moert_exchange_make_plan(
        b->exchange,
        &(moert_exchange_slots){
            .index = b->index, .tokens = tokens, .topk = topk, .experts = experts},
        MOERT_OK, &b->plan));
    MOERT_TRY(moert_window_reserve(b->window, b->plan->plan));
    if (moert_exchange_pushes(b->exchange, false))
        MOERT_TRY(prepare_push(b));
    MOERT_TRY(moert_comm_agree(b->comm, prepare_checks(b)));
    return count_bytes(b);
}

static void release(bench *b) {
    bench_alltoall_destroy(b->alltoall);
    moert_plan_destroy(b->slots);
    moert_exchange_free_plan(b->plan);
    moert_window_destroy(b->slot_window);
    moert_window_destroy(b->window);
    moert_exchange_destroy(b->exchange);
    MOERT_DESTROY(b->index, b->source, b->weight, b->target, b->made);
    bench_pool_destroy(b->pool);
    MOERT_FREE(b->all_index, b->token_of, b->weights, b->host, b->seen);
}

/* ---- calls ---- */

static moert_status dispatch(bench *b, enum side side) {
    if (side != OURS)
        return bench_alltoall_dispatch(b->alltoall, side == PREPACKED_STREAMED, b->host);
    return moert_exchange_dispatch(
        b->exchange, &(moert_transfer){.plan = b->plan, .window = b->window, .source = b->source},
        MOERT_OK);
}

static moert_status combine(bench *b, enum side side) {
    if (side != OURS)
        return bench_alltoall_combine(b->alltoall, side == PREPACKED_STREAMED, b->weight,
                                      b->target);
    moert_transfer back = {.plan = b->plan,
                           .window = b->window,
                           .weight = weighted ? b->weight : NULL,
                           .target = b->target,
                           .slot_window = b->slot_window};
    const moert_status pushed =
        b->made != NULL ? moert_exchange_push_rows(b->exchange, &back, b->made) : MOERT_OK;
    return moert_exchange_combine(b->exchange, &back, pushed);
}

static const struct operation {
    const char *name;
    moert_status (*call)(bench *b, enum side side);
} operations[] = {{"dispatch", dispatch}, {"combine", combine}};
enum { OPERATIONS = MOERT_COUNT(operations) };

typedef struct call {
    bench *b;
    unsigned op;
    enum side side;
} call;

static moert_status run_call(void *context) {
    const call *c = context;
    return operations[c->op].call(c->b, c->side);
}

/* ---- checks ---- */

/* Clears the memory of the rows or sums of moert or of the rival, and the memory of pushed rows. */
static moert_status wipe(bench *b, bool sums, enum side side) {
    moert_buffer *rows = moert_window_rows(b->window);
    if (side != OURS && !sums) {
        memset(bench_alltoall_rows(b->alltoall), 0, b->plan->plan->rows * b->row_bytes);
        return MOERT_OK;
    }
    if (sums)
        MOERT_TRY(moert_buffer_clear(b->target, 0, moert_buffer_bytes(b->target)));
    if (!sums || b->made != NULL)
        MOERT_TRY(moert_buffer_clear(rows, 0, moert_buffer_bytes(rows)));
    return moert_device_finish(b->device);
}

static moert_status count_wrong(bench *b, bool sums, enum side side, size_t *wrong) {
    const size_t stride = moert_window_stride(b->window), rows = b->plan->plan->rows;
    const float *seen = b->seen;
    if (sums) {
        MOERT_TRY(moert_buffer_read(b->target, 0, b->seen, tokens * hidden * sizeof(float)));
        *wrong += bench_payload_wrong_sums(&b->payload, b->slots->rank * tokens, b->slots,
                                           b->weights, seen);
        return MOERT_OK;
    }
    if (side != OURS)
        seen = bench_alltoall_rows(b->alltoall);
    else if (rows > 0)
        MOERT_TRY(moert_buffer_read(moert_window_rows(b->window), 0, b->seen,
                                    rows * stride * sizeof(float)));
    *wrong += bench_payload_wrong_rows(&b->payload, b->token_of, rows, seen,
                                       side != OURS ? b->width : stride);
    return MOERT_OK;
}

static moert_status check(bench *b, unsigned op, enum side side, size_t *wrong) {
    MOERT_TRY(moert_comm_agree(b->comm, wipe(b, op == 1, side)));
    MOERT_TRY(operations[op].call(b, side));
    return moert_comm_agree(b->comm, count_wrong(b, op == 1, side, wrong));
}

/* ---- times ---- */

/* Takes one sample: the microseconds of a call on the slowest rank. */
static moert_status take(bench *b, unsigned op, enum side side, double *us) {
    const moert_timed timed = {
        .device = b->device, .together = b->comm, .run = run_call, .what = &(call){b, op, side}};
    double seconds;
    bench_pool_evict(b->pool);
    MOERT_TRY(moert_rates_sample(&timed, batch, &seconds));
    *us = seconds * 1e6;
    return MOERT_OK;
}

/* Statistics over the samples of moert or of the rival, in microseconds. */
typedef struct times {
    double least, median, p99;
} times;

static moert_status take_turns(bench *b, unsigned op, times of[SIDES]) {
    const unsigned sides = b->alltoall != NULL ? SIDES : PACKED;
    double *us;
    moert_status status;
    MOERT_TRY(MOERT_NEW_ARRAY(&us, SIDES * repeat));
    for (size_t i = 0; i < repeat; i++)
        for (unsigned side = 0; side < sides; side++)
            MOERT_TRY_OR(release, take(b, op, (enum side)side, &us[side * repeat + i]));
    for (unsigned side = 0; side < sides; side++) {
        double *sorted = us + side * repeat;
        of[side].median = moert_rates_median(sorted, repeat);
        of[side].least = sorted[0];
        of[side].p99 = sorted[moert_ceil_div(99 * repeat, 100) - 1];
    }
release:
    free(us);
    return status;
}

/* ---- rows ---- */

static moert_status report(bench *b, unsigned op, const times us[SIDES], size_t wrong) {
    const double rival =
        b->alltoall != NULL ? fmin(us[PACKED].median, us[PREPACKED_STREAMED].median) : 0.0;
    const char *name =
        rival == us[PACKED].median ? "packed MPI_Alltoallv" : "packed MPI_Alltoallv, streamed";
    return bench_rows_add(&b->rows, operations[op].name, moert_exchange_engine(b->exchange),
                          moert_exchange_sums(b->exchange), moert_comm_size(b->comm), tokens,
                          hidden, topk, experts, BENCH_DTYPE_WORDS, dtype, skew_text, weighted,
                          batch, b->bytes, us[OURS].least, us[OURS].median, us[OURS].p99,
                          b->bytes / us[OURS].median * 1e-3, rival > 0.0 ? name : NULL, rival,
                          rival / us[OURS].median, wrong);
}

/* Checks the results of moert and of the rival before and after the samples. The number of wrong
 * elements includes those of the rival. */
static moert_status run_operation(bench *b, unsigned op) {
    const unsigned sides = b->alltoall != NULL ? SIDES : PACKED;
    times us[SIDES];
    moert_of_ranks wrong_of_all;
    size_t wrong = 0;
    for (unsigned side = 0; side < sides; side++)
        MOERT_TRY(check(b, op, (enum side)side, &wrong));
    MOERT_TRY(take_turns(b, op, us));
    for (unsigned side = 0; side < sides; side++)
        MOERT_TRY(check(b, op, (enum side)side, &wrong));
    MOERT_TRY(moert_rates_over_ranks(b->comm, (double)wrong, &wrong_of_all));
    return report(b, op, us, (size_t)wrong_of_all.sum);
}

static moert_status run(moert_context *context) {
    bench b = {.context = context,
               .device = moert_context_device(context),
               .comm = moert_context_comm(context)};
    moert_status status;
    b.rows = bench_rows_begin(context, columns, "%s, %u threads a rank, %zu calls a sample",
                              moert_device_name(b.device),
                              moert_device_describe(b.device)->compute_units, batch);
    MOERT_TRY_OR(release, prepare(&b));
    for (unsigned op = 0; op < (bench_payload_sums(&b.payload) ? OPERATIONS : 1); op++)
        MOERT_TRY_OR(release, run_operation(&b, op));
release:
    status = bench_rows_end(&b.rows, json_path, "elements", status);
    release(&b);
    return status;
}

static moert_status check_options(const moert_command *command) {
    (void)command;
    if (topk > experts)
        return MOERT_FAIL(ERROR_USAGE, "--topk is %zu, but there are %zu --experts", topk, experts);
    if (hidden % 16 != 0)
        return MOERT_FAIL(ERROR_USAGE, "--hidden is %zu, which is not a multiple of 16", hidden);
    return bench_skew_read(skew_text, &skew);
}

MOERT_PROGRAM_MAIN("[mpirun -n R] bench_exchange [OPTION...]",
                   "Times dispatch and combine between the ranks, alternating with packed "
                   "MPI_Alltoallv, and checks every element.\nExits with 1 if an element is wrong.",
                   check_options)
