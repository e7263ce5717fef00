/* Launches of kernels/exchange.cl. */
#include "base/memory.h"
#include "device/profile.h"
#include "exchange/internal.h"

/* TOKENS and SLOTS of the kernels. */
enum { TOKENS = 16, GPU_TOKENS = 1, SLOTS = 256, GPU_SLOTS = 32 };
enum { UNIT_TEAMS = 32 }; /* that a compute unit of a GPU has at a time */

static const moert_buffer *reach_of(const moert_window *window, bool remote) {
    return remote ? window->storage.addresses : window->storage.rows;
}

/* The program, and the sizes that the kernels take, narrowed. */
typedef struct moert_shape {
    const char *program;
    unsigned tokens, topk, slots, width, stride;
    moert_grid by_token, by_slot;
} moert_shape;

/* `width`: of a row of the move, in floats to dispatch and in numbers to combine. */
static moert_status narrow(const moert_move *move, size_t width, bool remote, moert_shape *shape) {
    const moert_plan *plan = move->plan->plan;
    const moert_device *device = move->window->exchange->device;
    int slots, stride;
    MOERT_TRY(moert_to_int(plan->tokens * plan->topk, "slots of a plan", &slots));
    MOERT_TRY(moert_to_int(move->window->stride, "width of a window", &stride));
    *shape = (moert_shape){
        .program = remote ? MOERT_PROGRAM(device, "exchange -DREMOTE=1", width)
                          : MOERT_PROGRAM(device, "exchange -DREMOTE=0", width),
        .tokens = (unsigned)plan->tokens,
        .topk = (unsigned)plan->topk,
        .slots = (unsigned)slots,
        .width = (unsigned)width,
        .stride = (unsigned)stride,
        .by_token = {moert_ceil_div(plan->tokens, moert_share(device, TOKENS, GPU_TOKENS)), 1, 1},
        .by_slot = {moert_ceil_div((size_t)slots, moert_share(device, SLOTS, GPU_SLOTS)), 1, 1},
    };
    return MOERT_OK;
}

/* For a profile: every token's row once, and once for each of its K experts in the window. */
static void tell_work(const moert_exchange *exchange, const moert_move *move,
                      const moert_shape *shape) {
    moert_profile_work(exchange->device, shape->program, 0.0,
                       sizeof(float) * ((double)shape->width * (double)shape->tokens +
                                        (double)move->window->width * (double)shape->slots));
}

moert_status moert_kernel_dispatch(moert_exchange *exchange, const moert_move *move, bool remote) {
    moert_shape shape;
    MOERT_TRY(narrow(move, move->window->width, remote, &shape));
    tell_work(exchange, move, &shape);
    MOERT_TRY(MOERT_RUN(exchange->device, shape.program, "dispatch_rows", shape.by_token,
                        MOERT_ARG(reach_of(move->window, remote)),
                        MOERT_ARG(move->plan->destination), MOERT_ARG(move->source),
                        MOERT_ARG(shape.tokens), MOERT_ARG(shape.topk), MOERT_ARG(shape.width),
                        MOERT_ARG(shape.stride)));
    moert_exchange_count(exchange, move->plan->plan, move->window);
    if (move->slots == NULL)
        return MOERT_OK;
    moert_exchange_count(exchange, move->plan->plan, move->slots);
    return MOERT_RUN(exchange->device, shape.program, "dispatch_slots", shape.by_slot,
                     MOERT_ARG(reach_of(move->slots, remote)), MOERT_ARG(move->plan->destination),
                     MOERT_ARG(move->slot_source), MOERT_ARG(shape.slots));
}

moert_status moert_kernel_combine_rows(moert_exchange *exchange, const moert_move *move,
                                       bool remote, const moert_buffer *reach,
                                       const moert_buffer *destination) {
    moert_shape shape;
    MOERT_TRY(narrow(move, move->window->columns, remote, &shape));
    tell_work(exchange, move, &shape);
    const bool codes = moert_window_has_codes(move->window);
    if (move->units > 0)
        shape.by_token.x = moert_min(shape.by_token.x, move->units * UNIT_TEAMS);
    return MOERT_RUN(exchange->device, shape.program, codes ? "combine_codes" : "combine_rows",
                     shape.by_token, MOERT_ARG(reach), MOERT_ARG(destination),
                     MOERT_ARG(move->weight), MOERT_ARG(move->target), MOERT_ARG(shape.tokens),
                     MOERT_ARG(shape.topk), MOERT_ARG(shape.width), MOERT_ARG(shape.stride));
}

moert_status moert_kernel_combine_slots(moert_exchange *exchange, const moert_move *move,
                                        bool remote) {
    moert_shape shape;
    MOERT_TRY(narrow(move, move->window->columns, remote, &shape));
    return MOERT_RUN(exchange->device, shape.program, "combine_slots", shape.by_slot,
                     MOERT_ARG(reach_of(move->slots, remote)), MOERT_ARG(move->plan->destination),
                     MOERT_ARG(move->slot_target), MOERT_ARG(shape.slots));
}

moert_status moert_kernel_gather(moert_device *device, const moert_gather *gather) {
    const char *program =
        gather->remote
            ? MOERT_PROGRAM(device, "exchange -DREMOTE=1", gather->width | gather->stride)
            : MOERT_PROGRAM(device, "exchange -DREMOTE=0", gather->width | gather->stride);
    int rows, stride;
    MOERT_TRY(moert_to_int(gather->rows, "rows to gather", &rows));
    MOERT_TRY(moert_to_int(gather->stride, "width of a window", &stride));
    moert_profile_work(device, program, 0.0,
                       2.0 * sizeof(float) * (double)gather->rows * (double)gather->width);
    return MOERT_RUN(
        device, program, "gather_rows",
        ((moert_grid){moert_ceil_div(gather->rows, moert_share(device, TOKENS, GPU_TOKENS)), 1, 1}),
        MOERT_ARG(gather->reach), MOERT_ARG(gather->from), MOERT_ARG(gather->packed),
        MOERT_ARG((unsigned)rows), MOERT_ARG((unsigned)gather->width), MOERT_ARG((unsigned)stride));
}
