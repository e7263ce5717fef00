// run: check=1,2,1gpu all=3,4,2gpu,2san
/* Routes of the public exchange: rows, sums and gradients equal values that the host computes from
 * global token indices, with every engine, payload and padding; several routes live at once. */
#include "base/memory.h"
#include "comm/comm.h"
#include "moert/exchange.h"
#include "moert/quantize.h"
#include "support/mpi.h"

enum { EXPERTS = 5, TOPK = 2, COLUMNS = 34, MOST_TOKENS = 64 };

/* The tokens of a rank; one rank has none. */
static size_t tokens_of(size_t rank) {
    static const size_t tokens[] = {7, 0, 4, 6};
    return tokens[rank];
}

static size_t tokens_below(size_t end) {
    size_t tokens = 0;
    for (size_t r = 0; r < end; r++)
        tokens += tokens_of(r);
    return tokens;
}

static int32_t expert_of(size_t salt, size_t token, size_t k) {
    return (token + k + salt) % 5 == 0 ? -1 : (int32_t)((token * 7 + k * 3 + salt) % EXPERTS);
}

/* Values that are exact in bf16. */
static float payload(size_t salt, size_t token, size_t c) {
    return (float)((token * 31 + c * 7 + salt * 3) % 127) - 60.0f;
}

static float weight_of(size_t token, size_t k) {
    return 0.25f * (float)((token * 3 + k) % 11) - 1.0f;
}

/* A route and this rank's part of the tokens. */
typedef struct test_route {
    size_t salt, multiple, tokens, first, rows;
    moert_route *route;
    moert_buffer *x, *x16, *weight; /* [T,H] as float32 and bf16, [T,K] */
    size_t *token, *slot;           /* [M] of each row; SIZE_MAX: it fills up */
} test_route;

static void destroy_route(void *route) {
    moert_route_destroy(route);
}

/* Lists the rows of this rank in the order that the header promises. */
static void list_rows(test_route *t) {
    size_t first, count, row = 0;
    const size_t most = MOST_TOKENS * TOPK + EXPERTS * moert_max(t->multiple, 1);
    t->token = test_alloc(most * sizeof *t->token);
    t->slot = test_alloc(most * sizeof *t->slot);
    moert_plan_experts(EXPERTS, test_ranks, test_rank, &first, &count);
    for (size_t e = first; e < first + count; e++) {
        for (size_t token = 0; token < tokens_below(test_ranks); token++)
            for (size_t k = 0; k < TOPK; k++)
                if (expert_of(t->salt, token, k) == (int32_t)e) {
                    t->token[row] = token;
                    t->slot[row++] = k;
                }
        while (t->multiple > 1 && row % t->multiple != 0)
            t->token[row++] = SIZE_MAX;
    }
    t->rows = row;
}

static test_route open_route(moert_mesh *mesh, size_t salt, size_t multiple) {
    test_route t = {.salt = salt, .multiple = multiple};
    t.tokens = tokens_of(test_rank);
    t.first = tokens_below(test_rank);
    int32_t *index = test_alloc((t.tokens + 1) * TOPK * sizeof *index);
    float *weight = test_alloc((t.tokens + 1) * TOPK * sizeof *weight);
    float *x = test_alloc((t.tokens + 1) * COLUMNS * sizeof *x);
    for (size_t s = 0; s < t.tokens * TOPK; s++) {
        index[s] = expert_of(salt, t.first + s / TOPK, s % TOPK);
        weight[s] = weight_of(t.first + s / TOPK, s % TOPK);
    }
    for (size_t i = 0; i < t.tokens * COLUMNS; i++)
        x[i] = payload(salt, t.first + i / COLUMNS, i % COLUMNS);
    t.x = upload_floats(x, t.tokens * COLUMNS);
    t.x16 = upload_as(x, t.tokens * COLUMNS, MOERT_DTYPE_BF16);
    t.weight = upload_floats(weight, t.tokens * TOPK);
    moert_route_options options = MOERT_ROUTE_OPTIONS_INIT;
    options.experts = EXPERTS;
    options.topk = TOPK;
    options.tokens = t.tokens;
    options.index = upload(index, t.tokens * TOPK * sizeof *index);
    options.row_multiple = multiple;
    ASSERT_OK_ON_ALL(moert_route_create(mesh, &options, &t.route));
    owned(t.route, destroy_route);
    list_rows(&t);
    ASSERT_ON_ALL(moert_route_rows(t.route) == t.rows);
    return t;
}

static moert_route_buffers form(moert_dtype type) {
    moert_route_buffers b = MOERT_ROUTE_BUFFERS_INIT;
    b.columns = COLUMNS;
    b.type = type;
    return b;
}

static moert_buffer *unset(size_t n, moert_dtype type) {
    return type == MOERT_DTYPE_BF16 ? unset_bf16(n) : unset_floats(n);
}

/* ---- comparisons ---- */

/* Whether rows[M,H] are factor * the payload of their tokens; the factor is the slot's weight if
 * `weighted`, else 1. */
static bool rows_are(const test_route *t, const moert_buffer *rows, moert_dtype type,
                     bool weighted) {
    float *got = test_alloc((t->rows + 1) * COLUMNS * sizeof *got);
    bool right = true;
    download_as(rows, got, t->rows * COLUMNS, type);
    for (size_t m = 0; m < t->rows; m++)
        for (size_t c = 0; c < COLUMNS; c++) {
            const bool fills = t->token[m] == SIZE_MAX;
            const float w = weighted && !fills ? weight_of(t->token[m], t->slot[m]) : 1.0f;
            const float wanted = fills ? 0.0f : w * payload(t->salt, t->token[m], c);
            right = right && got[m * COLUMNS + c] == round_to(type, (double)wanted);
        }
    return right;
}

static bool row_weights_are(const test_route *t, const moert_buffer *row_weight) {
    const float *got = download_floats(row_weight, t->rows);
    bool right = true;
    for (size_t m = 0; m < t->rows; m++)
        right = right &&
                got[m] == (t->token[m] == SIZE_MAX ? 0.0f : weight_of(t->token[m], t->slot[m]));
    return right;
}

/* The rows that the test's experts compute: those of expert e are (e + 1) times the payload. */
static float computed(const test_route *t, size_t token, size_t k, size_t c) {
    return (float)(expert_of(t->salt, token, k) + 1) * payload(t->salt, token, c);
}

static moert_buffer *compute(const test_route *t, moert_dtype type) {
    float *rows = test_alloc((t->rows + 1) * COLUMNS * sizeof *rows);
    for (size_t i = 0; i < t->rows * COLUMNS; i++) {
        const size_t m = i / COLUMNS;
        rows[i] = t->token[m] == SIZE_MAX ? NAN : computed(t, t->token[m], t->slot[m], i % COLUMNS);
    }
    return upload_as(rows, t->rows * COLUMNS, type);
}

/* Whether tokens[T,H] are the sums of the computed rows. */
static bool sums_are(const test_route *t, const moert_buffer *tokens, bool weighted,
                     moert_dtype type) {
    const float *got = download_floats(tokens, t->tokens * COLUMNS);
    bool right = true;
    for (size_t i = 0; i < t->tokens * COLUMNS; i++) {
        const size_t token = t->first + i / COLUMNS;
        float sum = 0.0f;
        for (size_t k = 0; k < TOPK; k++)
            if (expert_of(t->salt, token, k) >= 0)
                sum = fmaf(weighted ? weight_of(token, k) : 1.0f,
                           round_to(type, (double)computed(t, token, k, i % COLUMNS)), sum);
        right = right && memcmp(&got[i], &sum, sizeof sum) == 0;
    }
    return right;
}

/* ---- calls ---- */

static void check_dispatch(const test_route *t, moert_dtype type) {
    moert_route_buffers b = form(type);
    b.tokens = type == MOERT_DTYPE_BF16 ? t->x16 : t->x;
    for (size_t weighted = 0; weighted < 2; weighted++) {
        b.rows = unset(t->rows * COLUMNS, type);
        b.weight = weighted ? t->weight : NULL;
        b.row_weight = weighted ? unset_floats(t->rows) : NULL;
        ASSERT_OK_ON_ALL(moert_route_dispatch(t->route, &b));
        ASSERT_ON_ALL(rows_are(t, b.rows, type, false) &&
                      (!weighted || row_weights_are(t, b.row_weight)));
    }
}

static void check_combine(const test_route *t, moert_dtype type) {
    moert_route_buffers b = form(type);
    b.rows = compute(t, type);
    for (size_t weighted = 0; weighted < 2; weighted++) {
        b.tokens = unset_floats(t->tokens * COLUMNS);
        b.weight = weighted ? t->weight : NULL;
        ASSERT_OK_ON_ALL(moert_route_combine(t->route, &b));
        ASSERT_ON_ALL(sums_are(t, b.tokens, weighted, type));
    }
}

/* The gradients of a row's weight are 100 times the token plus the slot. */
static void check_dispatch_backward(const test_route *t, moert_dtype type) {
    float *dweight = test_alloc((t->rows + 1) * sizeof *dweight);
    moert_route_buffers b = form(type);
    for (size_t m = 0; m < t->rows; m++)
        dweight[m] = t->token[m] == SIZE_MAX ? NAN : (float)(t->token[m] * 100 + t->slot[m]);
    b.rows = compute(t, type);
    b.tokens = unset_floats(t->tokens * COLUMNS);
    ASSERT_OK_ON_ALL(moert_route_dispatch_backward(t->route, &b));
    ASSERT_ON_ALL(sums_are(t, b.tokens, false, type));
    b.tokens = unset_floats(t->tokens * COLUMNS);
    b.row_weight = upload_floats(dweight, t->rows);
    b.weight = unset_floats(t->tokens * TOPK);
    ASSERT_OK_ON_ALL(moert_route_dispatch_backward(t->route, &b));
    const float *got = download_floats(b.weight, t->tokens * TOPK);
    bool right = sums_are(t, b.tokens, false, type);
    for (size_t s = 0; s < t->tokens * TOPK; s++) {
        const size_t token = t->first + s / TOPK, k = s % TOPK;
        right =
            right && got[s] == (expert_of(t->salt, token, k) < 0 ? 0.0f : (float)(token * 100 + k));
    }
    ASSERT_ON_ALL(right);
}

static void check_combine_backward(const test_route *t, moert_dtype type) {
    moert_route_buffers b = form(type);
    b.tokens = type == MOERT_DTYPE_BF16 ? t->x16 : t->x;
    b.rows = unset(t->rows * COLUMNS, type);
    ASSERT_OK_ON_ALL(moert_route_combine_backward(t->route, &b));
    ASSERT_ON_ALL(rows_are(t, b.rows, type, false));
    b.weight = t->weight;
    b.combined_rows = compute(t, type);
    b.weight_gradient = unset_floats(t->tokens * TOPK);
    ASSERT_OK_ON_ALL(moert_route_combine_backward(t->route, &b));
    bool right = rows_are(t, b.rows, type, true);
    const float *got = download_floats(b.weight_gradient, t->tokens * TOPK);
    for (size_t s = 0; s < t->tokens * TOPK; s++) {
        const size_t token = t->first + s / TOPK, k = s % TOPK;
        double sum = 0.0, size = 1.0;
        for (size_t c = 0; c < COLUMNS && expert_of(t->salt, token, k) >= 0; c++) {
            const double term = (double)round_to(type, (double)computed(t, token, k, c)) *
                                (double)payload(t->salt, token, c);
            sum += term;
            size += fabs(term);
        }
        right = right && fabs((double)got[s] - sum) <= 1e-6 * size;
    }
    ASSERT_ON_ALL(right);
}

static uint8_t *read_bytes(const moert_buffer *buffer, size_t n) {
    uint8_t *bytes = test_alloc(n + 1);
    ASSERT_OK_ON_ALL(moert_buffer_read(buffer, 0, bytes, n));
    return bytes;
}

/* Rows in MXFP8 are those of the tokens, quantized on one device. */
static void check_mxfp8(const test_route *t) {
    const size_t scales = moert_ceil_div(COLUMNS, 32), all = tokens_below(test_ranks);
    float *x = test_alloc(all * COLUMNS * sizeof *x);
    for (size_t i = 0; i < all * COLUMNS; i++)
        x[i] = payload(t->salt, i / COLUMNS, i % COLUMNS);
    moert_quantize op = MOERT_QUANTIZE_INIT;
    op.groups.rows = all;
    op.columns = COLUMNS;
    op.x = upload_floats(x, all * COLUMNS);
    op.q = test_buffer(all * COLUMNS);
    op.scale = test_buffer(all * scales);
    ASSERT_OK_ON_ALL(moert_quantize_run(&op));
    const uint8_t *q = read_bytes(op.q, all * COLUMNS), *scale = read_bytes(op.scale, all * scales);
    moert_route_buffers b = form(MOERT_DTYPE_F32);
    b.mxfp8 = true;
    b.tokens = t->x;
    b.rows = test_buffer(t->rows * COLUMNS);
    b.row_scale = test_buffer(t->rows * scales);
    ASSERT_OK_ON_ALL(moert_route_dispatch(t->route, &b));
    const uint8_t *rows = read_bytes(b.rows, t->rows * COLUMNS),
                  *row_scale = read_bytes(b.row_scale, t->rows * scales);
    bool right = true;
    for (size_t m = 0; m < t->rows; m++, rows += COLUMNS, row_scale += scales)
        right = right && (t->token[m] == SIZE_MAX
                              ? rows[0] == 0
                              : memcmp(rows, q + t->token[m] * COLUMNS, COLUMNS) == 0 &&
                                    memcmp(row_scale, scale + t->token[m] * scales, scales) == 0);
    ASSERT_ON_ALL(right);
}

static void check_route(const test_route *t) {
    for (size_t bf16 = 0; bf16 < 2; bf16++) {
        const moert_dtype type = bf16 ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32;
        check_dispatch(t, type);
        check_combine(t, type);
        check_dispatch_backward(t, type);
        check_combine_backward(t, type);
    }
    check_mxfp8(t);
}

/* ---- tests ---- */

static void check_engine(const char *name, size_t *works) {
    moert_mesh *mesh = NULL;
    set_variable("MOERT_EXCHANGE", name);
    const moert_status status = moert_mesh_create(test_context, 0, &mesh);
    set_variable("MOERT_EXCHANGE", NULL);
    if (status == MOERT_ERROR_UNSUPPORTED)
        return;
    ASSERT_OK_ON_ALL(status);
    ASSERT_ON_ALL(strcmp(moert_mesh_engine(mesh), name) == 0);
    const test_route a = open_route(mesh, 1, 0), b = open_route(mesh, 2, 8);
    check_route(&a);
    check_route(&b);
    check_dispatch(&a, MOERT_DTYPE_F32);
    release_owned();
    moert_mesh_destroy(mesh);
    (*works)++;
}

TEST(test_routes_give_the_hosts_values_with_every_engine) {
    static const char *const engines[] = {"local", "window", "node", "staged"};
    size_t works = 0;
    for (size_t i = 0; i < MOERT_COUNT(engines); i++)
        check_engine(engines[i], &works);
    ASSERT_ON_ALL(works >= 1);
}

TEST(test_ends_are_those_of_the_rows) {
    const test_route t = open_route(test_mesh, 3, 16);
    const moert_plan *plan = moert_route_plan(t.route);
    uint32_t ends[EXPERTS] = {0}, end = 0;
    ASSERT_OK_ON_ALL(
        moert_buffer_read(moert_route_ends(t.route), 0, ends, plan->local_experts * sizeof *ends));
    bool right = true;
    for (size_t e = 0; e < plan->local_experts; e++) {
        const uint32_t own = plan->ends[e] - (e > 0 ? plan->ends[e - 1] : 0);
        end += (own + 15) / 16 * 16;
        right = right && ends[e] == end;
    }
    ASSERT_ON_ALL(right && end == moert_route_rows(t.route));
}

TEST(test_ranks_that_differ_are_refused_and_named) {
    const test_route t = open_route(test_mesh, 4, 0);
    moert_route_options options = MOERT_ROUTE_OPTIONS_INIT;
    moert_route *route = NULL;
    const bool odd = test_ranks > 1 && test_rank + 1 == test_ranks;
    options.experts = odd ? 6 : 5;
    options.topk = 1;
    options.index = test_buffer(0);
    if (test_ranks > 1)
        ASSERT_REFUSED(moert_route_create(test_mesh, &options, &route),
                       "has experts=6, but rank 0 has experts=5");
    moert_route_buffers b = form(MOERT_DTYPE_F32);
    b.tokens = t.x;
    b.rows = unset_floats(t.rows * COLUMNS);
    if (odd)
        b.columns = COLUMNS - 2;
    if (test_ranks > 1)
        ASSERT_REFUSED(moert_route_dispatch(t.route, &b),
                       "has columns=32, but rank 0 has columns=34");
    check_dispatch(&t, MOERT_DTYPE_F32);
}

TEST(test_wrong_arguments_are_named_on_all_ranks) {
    const test_route t = open_route(test_mesh, 5, 0);
    const int32_t twice[] = {1, 1}, outside[] = {0, 5};
    moert_route_options options = MOERT_ROUTE_OPTIONS_INIT;
    moert_route *route = NULL;
    options.experts = EXPERTS;
    options.topk = TOPK;
    options.index = test_buffer(0);
    options.tokens = test_rank == 0;
    ASSERT_REFUSED(moert_route_create(test_mesh, &options, &route),
                   "index of a route holds 0 bytes");
    options.index = upload(twice, sizeof twice);
    ASSERT_REFUSED(moert_route_create(test_mesh, &options, &route), "expert 1 is chosen twice");
    options.index = upload(outside, sizeof outside);
    ASSERT_REFUSED(moert_route_create(test_mesh, &options, &route), "expert index 5 is outside");
    ASSERT_REFUSED(moert_route_create(NULL, &options, &route), "mesh is NULL");
    ASSERT_REFUSED(moert_route_create(test_mesh, NULL, &route), "moert_route_options is NULL");
    moert_route_buffers b = form(MOERT_DTYPE_F32);
    ASSERT_REFUSED(moert_route_dispatch(NULL, &b), "route is NULL");
    ASSERT_REFUSED(moert_route_dispatch(t.route, &b), "tokens of a route is NULL");
    b.tokens = t.x;
    b.rows = unset_floats(t.rows * COLUMNS);
    b.weight = t.weight;
    ASSERT_REFUSED(moert_route_dispatch(t.route, &b), "row_weight of a route is NULL");
    ASSERT_REFUSED(moert_route_combine_backward(t.route, &b), "combined_rows of a route is NULL");
    b.columns = 33;
    b.type = MOERT_DTYPE_BF16;
    ASSERT_REFUSED(moert_route_dispatch(t.route, &b), "columns is 33");
    b.type = MOERT_DTYPE_E4M3;
    ASSERT_REFUSED(moert_route_dispatch(t.route, &b), "type is 3");
    check_dispatch(&t, MOERT_DTYPE_F32);
    ASSERT_ON_ALL(moert_route_rows(NULL) == 0 && moert_route_ends(NULL) == NULL &&
                  moert_route_plan(NULL) == NULL);
}

MPI_TESTS(open_test_mesh, close_test_mesh)
