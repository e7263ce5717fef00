// run: check=1,2,1gpu all=3,4,2gpu,2san
/* Routes of the public exchange: rows, sums and gradients equal values that the host computes from
 * global slots, with every engine, payload and padding. Several routes exist at once. */
#include "comm/comm.h"
#include "moert/exchange.h"
#include "moert/quantize.h"
#include "support/exchange/routing.h"
#include "support/mpi.h"

enum { EXPERTS = 5, TOPK = 2, COLUMNS = 34, FILLS = UINT32_MAX };

/* A route and this rank's part of the tokens. */
typedef struct test_route {
    routing routing;
    size_t salt, tokens, first_slot, rows;
    moert_route *route;
    moert_buffer *x, *x16, *weight; /* [T,H] as float32 and bf16, [T,K] */
    uint32_t *slot;                 /* [M] the slot of each row, or FILLS for a padding row */
} test_route;

/* ---- values of a slot ---- */

typedef float element(const test_route *t, size_t slot, size_t column);

/* Exact in bf16. */
static float payload(const test_route *t, size_t slot, size_t column) {
    return (float)((slot / TOPK * 31 + column * 7 + t->salt * 3) % 127) - 60.0f;
}

static float weight_of(const test_route *t, size_t slot, size_t column) {
    (void)t, (void)column;
    return 0.25f * (float)((slot / TOPK * 3 + slot % TOPK) % 11) - 1.0f;
}

static float weighted(const test_route *t, size_t slot, size_t column) {
    return weight_of(t, slot, column) * payload(t, slot, column);
}

/* The rows that the test's experts compute: expert e multiplies the payload by e + 1. */
static float computed(const test_route *t, size_t slot, size_t column) {
    return (float)(t->routing.index[slot] + 1) * payload(t, slot, column);
}

/* The gradient of a slot's weight in check_dispatch_backward(). */
static float dweight(const test_route *t, size_t slot, size_t column) {
    (void)t, (void)column;
    return (float)(slot / TOPK * 100 + slot % TOPK);
}

/* Returns [M,columns]: `value` in this rank's rows, `fill` in padding rows. */
static float *rows_of(const test_route *t, size_t columns, element *value, float fill) {
    float *rows = test_alloc(t->rows * columns * sizeof *rows);
    for (size_t i = 0; i < t->rows * columns; i++) {
        const uint32_t slot = t->slot[i / columns];
        rows[i] = slot == FILLS ? fill : value(t, slot, i % columns);
    }
    return rows;
}

/* Returns [T,K]: `value` of this rank's slots, 0 for slots without an expert. */
static float *slots_of(const test_route *t, element *value) {
    float *slots = test_alloc(t->tokens * TOPK * sizeof *slots);
    for (size_t s = 0; s < t->tokens * TOPK; s++)
        slots[s] = t->routing.index[t->first_slot + s] < 0 ? 0.0f : value(t, t->first_slot + s, 0);
    return slots;
}

/* Returns [T,H]: each token's sum of the computed rows. */
static float *sums_of(const test_route *t, bool by_weight, moert_dtype type) {
    float *sums = test_alloc(t->tokens * COLUMNS * sizeof *sums);
    for (size_t i = 0; i < t->tokens * COLUMNS; i++)
        for (size_t k = 0; k < TOPK; k++) {
            const size_t slot = t->first_slot + i / COLUMNS * TOPK + k;
            const float y = round_to(type, (double)computed(t, slot, i % COLUMNS));
            if (t->routing.index[slot] >= 0)
                sums[i] = fmaf(by_weight ? weight_of(t, slot, 0) : 1.0f, y, sums[i]);
        }
    return sums;
}

static bool are(const moert_buffer *buffer, moert_dtype type, float *want, size_t n) {
    float *got = test_alloc(n * sizeof *got);
    download_as(buffer, got, n, type);
    round_all(want, n, type);
    return memcmp(got, want, n * sizeof *got) == 0;
}

/* ---- routes ---- */

/* Lists the rows of this rank in the order that the header promises. */
static void list_rows(test_route *t, size_t multiple) {
    const uint32_t *from = t->routing.slot + t->routing.first_row[test_rank],
                   *end = t->routing.slot + t->routing.first_row[test_rank + 1];
    t->slot = test_alloc((size_t)(end - from + EXPERTS * (ptrdiff_t)multiple) * sizeof *t->slot);
    while (from < end) {
        const int32_t expert = t->routing.index[*from];
        while (from < end && t->routing.index[*from] == expert)
            t->slot[t->rows++] = *from++;
        while (multiple > 1 && t->rows % multiple != 0)
            t->slot[t->rows++] = FILLS;
    }
}

static test_route open_route(moert_mesh *mesh, size_t salt, size_t multiple) {
    const shape c = {"", EXPERTS, TOPK, COLUMNS, {7, 0, 4, 6}, SOME_DROPPED, (unsigned)salt};
    test_route t = {.routing = route_shape(&c, test_ranks), .salt = salt};
    t.tokens = c.tokens[test_rank];
    t.first_slot = t.routing.first_token[test_rank] * TOPK;
    const size_t n = t.tokens * COLUMNS, slots = t.tokens * TOPK;
    float *x = test_alloc(n * sizeof *x), *weight = test_alloc(slots * sizeof *weight);
    for (size_t i = 0; i < n; i++)
        x[i] = payload(&t, t.first_slot + i / COLUMNS * TOPK, i % COLUMNS);
    for (size_t s = 0; s < slots; s++)
        weight[s] = weight_of(&t, t.first_slot + s, 0);
    t.x = upload_floats(x, n);
    t.x16 = upload_as(x, n, MOERT_DTYPE_BF16);
    t.weight = upload_floats(weight, slots);
    moert_route_options options = MOERT_ROUTE_OPTIONS_INIT;
    options.experts = EXPERTS;
    options.topk = TOPK;
    options.tokens = t.tokens;
    options.index = upload(t.routing.index + t.first_slot, slots * sizeof(int32_t));
    options.row_multiple = multiple;
    ASSERT_OK_ON_ALL(moert_route_create(mesh, &options, &t.route));
    owned(t.route, moert_route_destroy);
    list_rows(&t, multiple);
    ASSERT_ON_ALL(moert_route_rows(t.route) == t.rows);
    return t;
}

static moert_route_buffers form(moert_dtype type) {
    moert_route_buffers b = MOERT_ROUTE_BUFFERS_INIT;
    b.columns = COLUMNS;
    b.type = type;
    return b;
}

/* ---- calls ---- */

static bool weight_gradients_are_near(const test_route *t, moert_dtype type, const float *got) {
    bool right = true;
    for (size_t s = 0; s < t->tokens * TOPK; s++) {
        const size_t slot = t->first_slot + s;
        double sum = 0.0, size = 1.0;
        for (size_t c = 0; c < COLUMNS && t->routing.index[slot] >= 0; c++) {
            const double term =
                (double)round_to(type, (double)computed(t, slot, c)) * (double)payload(t, slot, c);
            sum += term;
            size += fabs(term);
        }
        right = right && fabs((double)got[s] - sum) <= 1e-6 * size;
    }
    return right;
}

/* Makes each call first without the optional buffers for weights, then with these buffers. */
static void check_calls(const test_route *t, moert_dtype type) {
    const moert_dtype f32 = MOERT_DTYPE_F32;
    const bool bf16 = type == MOERT_DTYPE_BF16;
    const size_t n = t->rows * COLUMNS, tokens = t->tokens * COLUMNS, slots = t->tokens * TOPK;
    moert_buffer *results = upload_as(rows_of(t, COLUMNS, computed, NAN), n, type);
    for (int with = 0; with < 2; with++) {
        moert_route_buffers there = form(type), back = form(type), dback = form(type);
        there.tokens = bf16 ? t->x16 : t->x;
        there.rows = bf16 ? unset_bf16(n) : unset_floats(n);
        there.weight = with ? t->weight : NULL;
        there.row_weight = with ? unset_floats(t->rows) : NULL;
        ASSERT_OK_ON_ALL(moert_route_dispatch(t->route, &there));
        ASSERT_ON_ALL(are(there.rows, type, rows_of(t, COLUMNS, payload, 0.0f), n));
        if (with)
            ASSERT_ON_ALL(are(there.row_weight, f32, rows_of(t, 1, weight_of, 0.0f), t->rows));

        there.rows = bf16 ? unset_bf16(n) : unset_floats(n);
        there.row_weight = NULL;
        there.combined_rows = with ? results : NULL;
        there.weight_gradient = with ? unset_floats(slots) : NULL;
        ASSERT_OK_ON_ALL(moert_route_combine_backward(t->route, &there));
        ASSERT_ON_ALL(
            are(there.rows, type, rows_of(t, COLUMNS, with ? weighted : payload, 0.0f), n));
        if (with)
            ASSERT_ON_ALL(
                weight_gradients_are_near(t, type, download_floats(there.weight_gradient, slots)));

        back.rows = results;
        back.tokens = unset_floats(tokens);
        back.weight = with ? t->weight : NULL;
        ASSERT_OK_ON_ALL(moert_route_combine(t->route, &back));
        ASSERT_ON_ALL(are(back.tokens, f32, sums_of(t, with, type), tokens));

        dback.rows = results;
        dback.tokens = unset_floats(tokens);
        dback.row_weight = with ? upload_floats(rows_of(t, 1, dweight, NAN), t->rows) : NULL;
        dback.weight = with ? unset_floats(slots) : NULL;
        ASSERT_OK_ON_ALL(moert_route_dispatch_backward(t->route, &dback));
        ASSERT_ON_ALL(are(dback.tokens, f32, sums_of(t, false, type), tokens));
        if (with)
            ASSERT_ON_ALL(are(dback.weight, f32, slots_of(t, dweight), slots));
    }
}

/* Rows that are dispatched in MXFP8 have the bytes of the tokens' rows, quantized on one device. */
static void check_mxfp8(const test_route *t) {
    const size_t scales = moert_ceil_div(COLUMNS, 32), all = t->routing.first_token[test_ranks];
    float *x = test_alloc(all * COLUMNS * sizeof *x);
    for (size_t i = 0; i < all * COLUMNS; i++)
        x[i] = payload(t, i / COLUMNS * TOPK, i % COLUMNS);
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
    for (size_t m = 0; m < t->rows; m++, rows += COLUMNS, row_scale += scales) {
        const size_t token = t->slot[m] / TOPK;
        right = right &&
                (t->slot[m] == FILLS ? rows[0] == 0
                                     : memcmp(rows, q + token * COLUMNS, COLUMNS) == 0 &&
                                           memcmp(row_scale, scale + token * scales, scales) == 0);
    }
    ASSERT_ON_ALL(right);
}

static void check_route(const test_route *t) {
    check_calls(t, MOERT_DTYPE_F32);
    check_calls(t, MOERT_DTYPE_BF16);
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
    owned(mesh, moert_mesh_destroy);
    ASSERT_ON_ALL(strcmp(moert_mesh_engine(mesh), name) == 0);
    const test_route a = open_route(mesh, 1, 0), b = open_route(mesh, 2, 8);
    check_route(&a);
    check_route(&b);
    check_calls(&a, MOERT_DTYPE_F32);
    release_owned();
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
    check_calls(&t, MOERT_DTYPE_F32);
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
    check_calls(&t, MOERT_DTYPE_F32);
    ASSERT_ON_ALL(moert_route_rows(NULL) == 0 && moert_route_ends(NULL) == NULL &&
                  moert_route_plan(NULL) == NULL);
}

MPI_TESTS(open_test_mesh, close_test_mesh)
