/* The rival of bench_exchange: packs rows, calls MPI_Alltoallv, unpacks rows. */
#include "bench/layer/alltoall.h"

#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "args/exchange.h"
#include "base/memory.h"
#include "bench/common/pattern.h"
#include "device/buffer.h"
#include "device/launch.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { LINE_BYTES = 64 };

struct bench_alltoall {
    moert_device *device;
    bench_pool *pool;
    const moert_plan *plan;
    size_t row_bytes;
    bool bf16;
    MPI_Datatype row;
    /* [4,ranks] for MPI_Alltoallv: rows to send and their offsets, rows to receive and their
     * offsets */
    int *counts;
    uint32_t *token;    /* token of each row to send */
    uint32_t *position; /* position of each received row among the experts' rows */
    char *sent, *received, *rows;
    /* for a combine: the memory `sent` as a buffer, and each slot's row in it */
    moert_buffer *returned, *destination;
};

/* ---- tables ---- */

static moert_status set_counts(bench_alltoall *a) {
    const moert_plan *plan = a->plan;
    const size_t ranks = plan->ranks;
    int sent = 0, received = 0;
    MOERT_TRY(MOERT_NEW_ARRAY(&a->counts, 4 * ranks));
    for (size_t r = 0; r < ranks; r++) {
        int *count = a->counts + r;
        MOERT_TRY(moert_to_int(plan->send_rows[r], "rows to a rank", &count[0]));
        MOERT_TRY(moert_to_int(plan->receive_rows[r], "rows from a rank", &count[2 * ranks]));
        count[ranks] = sent;
        count[3 * ranks] = received;
        sent += count[0];
        received += count[2 * ranks];
    }
    return MOERT_OK;
}

/* Sets the token of each row to send. For the kernel that sums, sets a pair for each slot: (0, the
 * slot's row in `sent`), or (MOERT_PLAN_DROPPED, any number) for a dropped slot. */
static moert_status set_slots(bench_alltoall *a) {
    const moert_plan *plan = a->plan;
    const size_t slots = plan->tokens * plan->topk, bytes = 2 * slots * sizeof(uint32_t);
    uint32_t *pairs;
    MOERT_TRY(MOERT_NEW_ARRAY(&pairs, 2 * slots));
    for (size_t s = 0; s < slots; s++) {
        const bool dropped = plan->slot_rank[s] == MOERT_PLAN_DROPPED;
        pairs[2 * s] = dropped ? MOERT_PLAN_DROPPED : 0;
        pairs[2 * s + 1] = plan->slot_position[s];
        if (!dropped)
            a->token[plan->slot_position[s]] = (uint32_t)(s / plan->topk);
    }
    const moert_status status = bench_upload(a->device, pairs, bytes, &a->destination);
    free(pairs);
    return status;
}

/* Sets `position`. Rows arrive ordered by rank and then by expert; among the experts' rows they are
 * ordered by expert and then by rank.
 * */
static void set_positions(bench_alltoall *a) {
    const moert_plan *plan = a->plan;
    uint32_t *position = a->position;
    for (size_t r = 0; r < plan->ranks; r++)
        for (size_t e = 0; e < plan->local_experts; e++) {
            const uint64_t *counts = plan->counts + plan->first_expert + e;
            uint32_t row = e > 0 ? plan->ends[e - 1] : 0;
            for (size_t lower = 0; lower < r; lower++)
                row += (uint32_t)counts[lower * plan->experts];
            for (uint64_t i = 0; i < counts[r * plan->experts]; i++)
                *position++ = row++;
        }
}

static moert_status make_rows(char **rows, size_t count, size_t row_bytes) {
    *rows = aligned_alloc(LINE_BYTES, moert_round_up(moert_max(count * row_bytes, 1), LINE_BYTES));
    if (*rows == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "no memory for %zu rows of %zu bytes", count, row_bytes);
    memset(*rows, 0, count * row_bytes);
    return MOERT_OK;
}

moert_status bench_alltoall_create(moert_device *device, bench_pool *pool, const moert_plan *plan,
                                   size_t row_bytes, bool bf16, bench_alltoall **made) {
    size_t sent = 0;
    bench_alltoall *a;
    moert_status status;
    for (size_t r = 0; r < plan->ranks; r++)
        sent += plan->send_rows[r];
    MOERT_TRY(MOERT_NEW(&a));
    a->device = device;
    a->pool = pool;
    a->plan = plan;
    a->row_bytes = row_bytes;
    a->bf16 = bf16;
    a->row = MPI_DATATYPE_NULL;
    MOERT_TRY_OR(destroy, set_counts(a));
    MOERT_TRY_OR(destroy, MOERT_NEW_ARRAY(&a->token, sent));
    MOERT_TRY_OR(destroy, MOERT_NEW_ARRAY(&a->position, plan->rows));
    MOERT_TRY_OR(destroy, make_rows(&a->sent, sent, row_bytes));
    MOERT_TRY_OR(destroy, make_rows(&a->received, plan->rows, row_bytes));
    MOERT_TRY_OR(destroy, make_rows(&a->rows, plan->rows, row_bytes));
    MOERT_TRY_OR(destroy, set_slots(a));
    MOERT_TRY_OR(destroy, moert_buffer_wrap(device, a->sent,
                                            moert_max(sent * row_bytes, LINE_BYTES), &a->returned));
    set_positions(a);
    MPI_Type_contiguous((int)row_bytes, MPI_BYTE, &a->row);
    MPI_Type_commit(&a->row);
    *made = a;
    return MOERT_OK;
destroy:
    bench_alltoall_destroy(a);
    return status;
}

void bench_alltoall_destroy(bench_alltoall *a) {
    if (a == NULL)
        return;
    if (a->row != MPI_DATATYPE_NULL)
        MPI_Type_free(&a->row);
    MOERT_DESTROY(a->returned, a->destination);
    MOERT_FREE(a->counts, a->token, a->position, a->sent, a->received, a->rows, a);
}

void *bench_alltoall_rows(bench_alltoall *a) {
    return a->rows;
}

/* ---- copies by all threads ---- */

/* Copies row from[i] to row i if `to` is NULL, or row i to row to[i] if `from` is NULL. */
typedef struct move {
    char *target;
    const char *source;
    const uint32_t *to, *from;
    size_t rows, row_bytes, members;
    bool streamed;
} move;

static void copy_row(char *target, const char *source, size_t bytes, bool streamed) {
#ifdef __SSE2__
    if (streamed && (bytes | (uintptr_t)target | (uintptr_t)source) % sizeof(__m128i) == 0) {
        const __m128i *from = (const __m128i *)(const void *)source;
        __m128i *to = (__m128i *)(void *)target;
        for (size_t i = 0; i < bytes / sizeof *to; i++)
            _mm_stream_si128(to + i, _mm_load_si128(from + i));
        return;
    }
#endif
    (void)streamed;
    memcpy(target, source, bytes);
}

static void move_part(void *argument, size_t member) {
    const move *m = argument;
    const size_t bytes = m->row_bytes, last = m->rows * (member + 1) / m->members;
    for (size_t i = m->rows * member / m->members; i < last; i++)
        copy_row(m->target + (m->to != NULL ? m->to[i] : i) * bytes,
                 m->source + (m->from != NULL ? m->from[i] : i) * bytes, bytes, m->streamed);
#ifdef __SSE2__
    _mm_sfence();
#endif
}

static void move_rows(const bench_alltoall *a, move m) {
    m.row_bytes = a->row_bytes;
    m.members = bench_pool_size(a->pool);
    bench_pool_run(a->pool, move_part, &m);
}

static moert_status exchange(const bench_alltoall *a, const char *from, const int *sent, char *to,
                             const int *received) {
    const size_t ranks = a->plan->ranks;
    if (MPI_Alltoallv(from, sent, sent + ranks, a->row, to, received, received + ranks, a->row,
                      MPI_COMM_WORLD) != MPI_SUCCESS)
        return MOERT_FAIL(ERROR_COMM, "MPI_Alltoallv failed");
    return MOERT_OK;
}

static size_t sent_rows(const bench_alltoall *a) {
    const size_t last = a->plan->ranks - 1;
    return (size_t)a->counts[a->plan->ranks + last] + (size_t)a->counts[last];
}

moert_status bench_alltoall_dispatch(bench_alltoall *a, bool streamed, const void *source) {
    const int *sent = a->counts, *received = sent + 2 * a->plan->ranks;
    move_rows(a, (move){.target = a->sent,
                        .source = source,
                        .from = a->token,
                        .rows = sent_rows(a),
                        .streamed = streamed});
    MOERT_TRY(exchange(a, a->sent, sent, a->received, received));
    move_rows(a, (move){.target = a->rows,
                        .source = a->received,
                        .to = a->position,
                        .rows = a->plan->rows,
                        .streamed = streamed});
    return MOERT_OK;
}

moert_status bench_alltoall_combine(bench_alltoall *a, bool streamed, const moert_buffer *weight,
                                    moert_buffer *target) {
    const int *sent = a->counts, *received = sent + 2 * a->plan->ranks;
    const size_t tokens = a->plan->tokens, stride = a->row_bytes / sizeof(float);
    const size_t width = a->bf16 ? 2 * stride : stride;
    move_rows(a, (move){.target = a->received,
                        .source = a->rows,
                        .from = a->position,
                        .rows = a->plan->rows,
                        .streamed = streamed});
    MOERT_TRY(exchange(a, a->received, received, a->sent, sent));
    MOERT_TRY(MOERT_RUN(
        a->device, MOERT_PROGRAM(a->device, "exchange/exchange -DREMOTE=0", width),
        a->bf16 ? "combine_bf16" : "combine_rows",
        ((moert_grid){moert_ceil_div(tokens, MOERT_EXCHANGE_TOKENS), 1, 1}), MOERT_ARG(a->returned),
        MOERT_ARG(a->destination), MOERT_ARG(weight), MOERT_ARG(target),
        MOERT_ARGS(moert_exchange_args, .tokens = (uint32_t)tokens, .topk = (uint32_t)a->plan->topk,
                   .width = (uint32_t)width, .stride = (uint32_t)stride, .chain = 1)));
    return moert_device_finish(a->device);
}
