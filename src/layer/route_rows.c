/*
 * Dispatch and combine of a route, and their gradients. The calls use windows of the mesh, and copy
 * rows to and from the caller's dense buffers. The copy kernels (kernels/exchange/route.cl) also
 * fill up each expert's rows to a multiple of row_multiple. The copy lets the caller own its rows:
 * the rows may live until a backward needs them, although all routes share the windows. Before each
 * call the ranks wait for their devices and gather their arguments in one message
 * (moert_route_meet). So no peer still uses a window. If a rank has different arguments, all ranks
 * return an error that names that rank, and none corrupts memory. The gradient of a weighted
 * combine dispatches the gradient and the weights. The owner multiplies its rows by the weights,
 * and returns the weights' gradients to their slots.
 */
#include "args/exchange.h"
#include "base/memory.h"
#include "base/options.h"
#include "device/launch.h"
#include "layer/route.h"
#include "moert/quantize.h"

enum { BF16_PER_FLOAT = sizeof(float) / sizeof(uint16_t) };

typedef enum call { DISPATCH, COMBINE, DISPATCH_BACKWARD, COMBINE_BACKWARD } call;

static const char *const call_names[] = {"moert_route_dispatch", "moert_route_combine",
                                         "moert_route_dispatch_backward",
                                         "moert_route_combine_backward"};

/* ---- checks ---- */

static size_t element_bytes(const moert_route_buffers *b) {
    return b->type == MOERT_DTYPE_BF16 ? sizeof(uint16_t) : sizeof(float);
}

static size_t scales_of(const moert_route_buffers *b) {
    return moert_ceil_div(b->columns, moert_format_block(MOERT_FORMAT_MXFP8_E4M3));
}

static moert_status check_form(call which, const moert_route_buffers *b) {
    if (b->columns == 0 || b->columns > INT32_MAX)
        return MOERT_FAIL(ERROR_USAGE, "%s: columns is %zu; expected 1 to %d", call_names[which],
                          b->columns, INT32_MAX);
    if (b->type != MOERT_DTYPE_F32 && b->type != MOERT_DTYPE_BF16)
        return MOERT_FAIL(ERROR_USAGE, "%s: type is %d; expected F32 or BF16", call_names[which],
                          (int)b->type);
    if (b->type == MOERT_DTYPE_BF16 && b->columns % BF16_PER_FLOAT != 0)
        return MOERT_FAIL(ERROR_USAGE, "%s: columns is %zu; rows of bf16 need an even number",
                          call_names[which], b->columns);
    if (b->mxfp8 && (which != DISPATCH || b->type != MOERT_DTYPE_F32))
        return MOERT_FAIL(ERROR_USAGE, "%s: mxfp8 is for a dispatch of type F32",
                          call_names[which]);
    return MOERT_OK;
}

/* Checks the buffers of a call whose other arguments are valid. */
static moert_status check_buffers(const moert_route *route, call which,
                                  const moert_route_buffers *b) {
    const bool dispatches = which == DISPATCH || which == COMBINE_BACKWARD;
    const bool weighs_back = which == COMBINE_BACKWARD && b->weight != NULL;
    const size_t element = element_bytes(b), row = b->mxfp8 ? b->columns : b->columns * element;
    const size_t slots = route->tokens * route->topk * sizeof(float);
    const size_t token = b->columns * (dispatches && !b->mxfp8 ? element : sizeof(float));
    const bool pairs = (which == DISPATCH || which == DISPATCH_BACKWARD) &&
                       (b->weight != NULL || b->row_weight != NULL);
    const struct {
        bool needed;
        const char *name;
        const moert_buffer *buffer;
        size_t bytes;
    } needs[] = {
        {true, "tokens", b->tokens, route->tokens * token},
        {true, "rows", b->rows, route->rows * row},
        {pairs || b->weight != NULL, "weight", b->weight, slots},
        {pairs, "row_weight", b->row_weight, route->rows * sizeof(float)},
        {b->mxfp8, "row_scale", b->row_scale, route->rows * scales_of(b)},
        {weighs_back, "combined_rows", b->combined_rows, route->rows * row},
        {weighs_back, "weight_gradient", b->weight_gradient, slots},
    };
    for (size_t i = 0; i < MOERT_COUNT(needs); i++)
        if (needs[i].needed)
            MOERT_TRY(moert_route_check_buffer(route->mesh, needs[i].name, needs[i].buffer,
                                               needs[i].bytes));
    return MOERT_OK;
}

static moert_status take_buffers(const moert_route *route, call which,
                                 const moert_route_buffers *given, moert_route_buffers *b) {
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_route_buffers, MOERT_ROUTE_BUFFERS_INIT, b, given));
    MOERT_TRY(check_form(which, b));
    return check_buffers(route, which, b);
}

/* Copies and checks the buffers of a call, and compares its arguments with those of the other
 * ranks. */
static moert_status begin(moert_route *route, call which, const moert_route_buffers *given,
                          moert_route_buffers *b) {
    static const char *const names[MOERT_MEETING_WORDS - 1] = {"call", "columns", "type", "mxfp8",
                                                               "weighted"};
    MOERT_REQUIRE(route);
    const moert_status status = take_buffers(route, which, given, b);
    moert_meeting meeting = {
        call_names[which], names, {0, which, b->columns, b->type, b->mxfp8, b->weight != NULL}};
    return moert_route_meet(route->mesh, &meeting, status, route->meeting);
}

/* ---- rows between windows and the caller's buffers ---- */

/* Columns of a dense matrix of the caller, and where they lie in a window's row. */
typedef struct part {
    moert_buffer *rows; /* [M, bytes] */
    size_t bytes, first_byte;
} part;

/* Copies the columns of `p` in all rows from the window (`take`) or to the window. */
static moert_status move(const moert_route *route, const moert_window *window, const part *p,
                         bool take) {
    const size_t stride = moert_window_stride(window) * sizeof(float);
    const bool words = (p->bytes | p->first_byte) % sizeof(uint32_t) == 0;
    const size_t unit = words ? sizeof(uint32_t) : 1;
    static const char *const kernels[2][2] = {{"give_bytes", "give_words"},
                                              {"take_bytes", "take_words"}};
    moert_buffer *inside = moert_window_rows(window);
    const moert_route_args args = {.experts = (uint32_t)route->plan->plan->local_experts,
                                   .width = (uint32_t)(p->bytes / unit),
                                   .window_stride = (uint32_t)(stride / unit),
                                   .first = (uint32_t)(p->first_byte / unit)};
    return MOERT_RUN(route->mesh->device, "exchange/route", kernels[take][words],
                     ((moert_grid){route->rows, 1, 1}), MOERT_ARG(take ? inside : p->rows),
                     MOERT_ARG(take ? p->rows : inside), MOERT_ARG(route->plan->ends),
                     MOERT_ARG(route->padded ? route->ends : NULL), MOERT_STRUCT(args));
}

static moert_status open_window(const moert_route *route, const moert_route_buffers *b,
                                moert_window **window) {
    moert_mesh *mesh = route->mesh;
    if (b->type == MOERT_DTYPE_BF16)
        return moert_mesh_window(mesh, MOERT_WINDOW_ROUTE_BF16, b->columns, window);
    const size_t width =
        b->mxfp8 ? moert_ceil_div(b->columns + scales_of(b), sizeof(float)) : b->columns;
    return moert_mesh_window(mesh, MOERT_WINDOW_ROUTE, width, window);
}

/* *packed = the tokens as MXFP8, payload and scales in rows of the window's width. */
static moert_status quantize(const moert_route *route, const moert_route_buffers *b, size_t width,
                             moert_buffer **packed) {
    MOERT_TRY(moert_mesh_scratch(route->mesh, MOERT_SCRATCH_WIRE, route->tokens * width, packed));
    moert_quantize op = MOERT_QUANTIZE_INIT;
    op.groups.rows = route->tokens;
    op.columns = b->columns;
    op.x = b->tokens;
    op.q = *packed;
    op.row_bytes = width * sizeof(float);
    return moert_quantize_run(&op);
}

/* ---- dispatch ---- */

/* Dispatches tokens and weights, and copies the received rows from the window; with weights also
 * row_weight[M]. */
static moert_status dispatch(moert_route *route, const moert_route_buffers *b,
                             moert_buffer *row_weight) {
    moert_transfer there = {.plan = route->plan, .source = b->tokens, .slot_source = b->weight};
    moert_status status = MOERT_OK;
    MOERT_TRY(open_window(route, b, &there.window));
    if (b->weight != NULL)
        MOERT_TRY(moert_mesh_window(route->mesh, MOERT_WINDOW_ROUTE_SLOTS, 1, &there.slots));
    if (b->mxfp8) {
        moert_buffer *packed = NULL;
        const size_t width = moert_ceil_div(b->columns + scales_of(b), sizeof(float));
        status = quantize(route, b, width, &packed);
        there.source = packed;
    }
    MOERT_TRY(moert_exchange_dispatch(route->mesh->exchange, &there, status));
    const size_t payload = b->mxfp8 ? b->columns : b->columns * element_bytes(b);
    MOERT_TRY(move(route, there.window, &(part){b->rows, payload, 0}, true));
    if (b->mxfp8)
        MOERT_TRY(move(route, there.window, &(part){b->row_scale, scales_of(b), payload}, true));
    return b->weight != NULL ? move(route, there.slots, &(part){row_weight, sizeof(float), 0}, true)
                             : MOERT_OK;
}

moert_status moert_route_dispatch(moert_route *route, const moert_route_buffers *buffers) {
    moert_route_buffers b;
    MOERT_TRY(begin(route, DISPATCH, buffers, &b));
    return dispatch(route, &b, b.row_weight);
}

/* ---- combine ---- */

/* tokens = the sums of the rows; slot_target[T,K] = row_values[M] unless these are NULL. */
static moert_status combine(moert_route *route, const moert_route_buffers *b,
                            moert_buffer *row_values, moert_buffer *slot_target) {
    const moert_plan *plan = route->plan->plan;
    moert_transfer back = {.plan = route->plan,
                           .weight = slot_target == NULL ? b->weight : NULL,
                           .target = b->tokens,
                           .slot_target = slot_target};
    MOERT_TRY(open_window(route, b, &back.window));
    MOERT_TRY(moert_window_reserve(back.window, plan));
    if (slot_target != NULL) {
        MOERT_TRY(moert_mesh_window(route->mesh, MOERT_WINDOW_ROUTE_BACK, 1, &back.slots));
        MOERT_TRY(moert_window_reserve(back.slots, plan));
    }
    moert_status status =
        move(route, back.window, &(part){b->rows, b->columns * element_bytes(b), 0}, false);
    if (status == MOERT_OK && slot_target != NULL)
        status = move(route, back.slots, &(part){row_values, sizeof(float), 0}, false);
    return moert_exchange_combine(route->mesh->exchange, &back, status);
}

moert_status moert_route_combine(moert_route *route, const moert_route_buffers *buffers) {
    moert_route_buffers b;
    MOERT_TRY(begin(route, COMBINE, buffers, &b));
    return combine(route, &b, NULL, NULL);
}

moert_status moert_route_dispatch_backward(moert_route *route, const moert_route_buffers *buffers) {
    moert_route_buffers b;
    MOERT_TRY(begin(route, DISPATCH_BACKWARD, buffers, &b));
    return combine(route, &b, b.row_weight, b.weight);
}

/* For each row: dots[M] = the scalar product of the combined row and the gradient, then multiplies
 * the gradient by the row's weight. Copies the dots to the window from which they return. */
static moert_status weigh_rows(moert_route *route, const moert_route_buffers *b,
                               const moert_buffer *weight, moert_buffer *dots,
                               moert_transfer *back) {
    moert_mesh *mesh = route->mesh;
    const moert_route_args args = {.width = (uint32_t)b->columns, .type = (uint32_t)b->type};
    MOERT_TRY(MOERT_RUN(mesh->device, MOERT_PROGRAM(mesh->device, "exchange/route", b->columns),
                        "weigh", ((moert_grid){route->rows, 1, 1}), MOERT_ARG(b->combined_rows),
                        MOERT_ARG(weight), MOERT_ARG(b->rows), MOERT_ARG(dots),
                        MOERT_STRUCT(args)));
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_TOKENS, route->tokens, &back->target));
    return move(route, back->slots, &(part){dots, sizeof(float), 0}, false);
}

moert_status moert_route_combine_backward(moert_route *route, const moert_route_buffers *buffers) {
    moert_route_buffers b;
    moert_buffer *weight = NULL, *dots = NULL;
    MOERT_TRY(begin(route, COMBINE_BACKWARD, buffers, &b));
    moert_mesh *mesh = route->mesh;
    if (b.weight == NULL)
        return dispatch(route, &b, NULL);
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_SLOTS, route->rows, &weight));
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_HIDDEN, route->rows, &dots));
    MOERT_TRY(dispatch(route, &b, weight));
    /* the dots return to their slots; a combine also requires rows, so it gets the dots as rows */
    moert_transfer back = {.plan = route->plan, .slot_target = b.weight_gradient};
    MOERT_TRY(moert_mesh_window(mesh, MOERT_WINDOW_ROUTE_BACK, 1, &back.slots));
    MOERT_TRY(moert_window_reserve(back.slots, route->plan->plan));
    back.window = back.slots;
    const moert_status status = weigh_rows(route, &b, weight, dots, &back);
    return moert_exchange_combine(mesh->exchange, &back, status);
}
