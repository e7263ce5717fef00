/* Launches of kernels/exchange.cl. */
#include "base/memory.h"
#include "device/profile.h"
#include "exchange/internal.h"

/* TOKENS and SLOTS of the kernels; in the GPU form floats of a piece of a row, and teams of a
 * work-group of fan_out. */
enum { TOKENS = 16, GPU_TOKENS = 1, SLOTS = 256, GPU_SLOTS = 32 };
enum { GPU_PIECE = 512, GPU_STRIP = 128, GPU_FAN_TEAMS = 4 };

static const moert_buffer *reach_of(const moert_window *window, bool remote) {
    return remote ? window->storage.addresses : window->storage.rows;
}

/* The program, and the sizes that the kernels take, narrowed. */
typedef struct moert_shape {
    const char *program;
    unsigned tokens, topk, slots, width, stride;
    moert_grid by_slot;
} moert_shape;

/* Work-groups for so many tokens or rows: in the GPU form one for each `piece` of their floats. */
static moert_grid pieces_of(const moert_device *device, size_t rows, size_t floats, size_t piece) {
    return (moert_grid){
        moert_share(device, moert_ceil_div(rows, TOKENS), rows * moert_ceil_div(floats, piece)), 1,
        1};
}

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

static moert_status dispatch_slots(moert_exchange *exchange, const moert_move *move, bool remote,
                                   const moert_shape *shape) {
    moert_exchange_count(exchange, move->plan->plan, move->window);
    if (move->slots == NULL)
        return MOERT_OK;
    moert_exchange_count(exchange, move->plan->plan, move->slots);
    return MOERT_RUN(exchange->device, shape->program, "dispatch_slots", shape->by_slot,
                     MOERT_ARG(reach_of(move->slots, remote)), MOERT_ARG(move->plan->destination),
                     MOERT_ARG(move->slot_source), MOERT_ARG(shape->slots), MOERT_ARG(shape->topk),
                     MOERT_ARG((unsigned)moert_comm_rank(exchange->comm)));
}

moert_status moert_kernel_dispatch(moert_exchange *exchange, const moert_move *move, bool remote) {
    const moert_window *window = move->window;
    moert_device *device = exchange->device;
    moert_shape shape;
    MOERT_TRY(narrow(move, window->width, remote, &shape));
    tell_work(exchange, move, &shape);
    MOERT_TRY(MOERT_RUN(device, shape.program, "dispatch_rows",
                        pieces_of(device, shape.tokens, window->stride, GPU_PIECE),
                        MOERT_ARG(reach_of(window, remote)), MOERT_ARG(move->plan->destination),
                        MOERT_ARG(move->source), MOERT_ARG(shape.tokens), MOERT_ARG(shape.topk),
                        MOERT_ARG(shape.width), MOERT_ARG(shape.stride)));
    return dispatch_slots(exchange, move, remote, &shape);
}

moert_status moert_kernel_dispatch_once(moert_exchange *exchange, const moert_move *move) {
    const moert_window *window = move->window;
    moert_device *device = exchange->device;
    moert_shape shape;
    MOERT_TRY(narrow(move, window->width, true, &shape));
    tell_work(exchange, move, &shape);
    MOERT_TRY(MOERT_RUN(device, shape.program, "dispatch_once",
                        pieces_of(device, shape.tokens, window->stride, GPU_PIECE),
                        MOERT_ARG(reach_of(window, true)), MOERT_ARG(move->plan->destination),
                        MOERT_ARG(move->source), MOERT_ARG(shape.tokens), MOERT_ARG(shape.topk),
                        MOERT_ARG(shape.width), MOERT_ARG(shape.stride),
                        MOERT_ARG((unsigned)window->capacity_rows),
                        MOERT_ARG((unsigned)moert_comm_rank(exchange->comm))));
    return dispatch_slots(exchange, move, true, &shape);
}

/* Work-groups of so many rows to copy. */
static moert_grid copies_of(const moert_device *device, size_t rows, size_t floats) {
    const moert_grid pieces = pieces_of(device, rows, floats, GPU_PIECE);
    return (moert_grid){moert_ceil_div(pieces.x, moert_share(device, 1, GPU_FAN_TEAMS)), 1, 1};
}

moert_status moert_kernel_fan_out(moert_exchange *exchange, const moert_move *move) {
    const moert_window *window = move->window;
    moert_device *device = exchange->device;
    const size_t rows = move->plan->plan->rows;
    moert_shape shape;
    MOERT_TRY(narrow(move, window->width, true, &shape));
    /* for a profile: about half of the rows are copies, read and written */
    moert_profile_work(device, shape.program, 0.0,
                       sizeof(float) * (double)rows * (double)window->stride);
    return MOERT_RUN(device, shape.program, "fan_out", copies_of(device, rows, window->stride),
                     MOERT_ARG(window->storage.rows), MOERT_ARG((unsigned)rows),
                     MOERT_ARG(shape.stride), MOERT_ARG((unsigned)window->capacity_rows));
}

moert_status moert_kernel_find_places(moert_exchange *exchange, const moert_move *move,
                                      moert_buffer *places) {
    const moert_window *window = move->window;
    const size_t rows = move->plan->plan->rows;
    const moert_grid grid = {moert_ceil_div(rows, moert_share(exchange->device, SLOTS, GPU_SLOTS)),
                             1, 1};
    moert_shape shape;
    MOERT_TRY(narrow(move, window->width, true, &shape));
    return MOERT_RUN(exchange->device, shape.program, "find_places", grid,
                     MOERT_ARG(window->storage.addresses), MOERT_ARG(move->slots->storage.rows),
                     MOERT_ARG(places), MOERT_ARG((unsigned)rows), MOERT_ARG(shape.stride),
                     MOERT_ARG((unsigned)move->plan->plan->ranks),
                     MOERT_ARG((unsigned)window->capacity_rows));
}

moert_status moert_kernel_send_rows(moert_exchange *exchange, const moert_move *move) {
    const moert_window *window = move->window;
    moert_device *device = exchange->device;
    const size_t rows = move->plan->plan->rows;
    moert_shape shape;
    MOERT_TRY(narrow(move, window->width, true, &shape));
    const char *kernel =
        exchange->sums && moert_window_has_codes(window) ? "send_codes" : "send_rows";
    const unsigned chain = exchange->sums ? shape.topk : 1;
    moert_profile_work(device, shape.program, 0.0,
                       2.0 * sizeof(float) * (double)rows * (double)window->stride);
    return MOERT_RUN(device, shape.program, kernel, copies_of(device, rows, window->stride),
                     MOERT_ARG(window->storage.addresses), MOERT_ARG(move->slots->storage.rows),
                     MOERT_ARG(move->source), MOERT_ARG((unsigned)rows), MOERT_ARG(chain),
                     MOERT_ARG(shape.stride), MOERT_ARG((unsigned)move->plan->plan->ranks),
                     MOERT_ARG((unsigned)window->capacity_rows));
}

/* The arguments that all combines begin with, and their work-groups. */
#define COMBINE_ARGS(move, shape, reach, destination)                                              \
    MOERT_ARG(reach), MOERT_ARG(destination), MOERT_ARG((move)->weight),                           \
        MOERT_ARG((move)->target), MOERT_ARG((shape).tokens), MOERT_ARG((shape).topk),             \
        MOERT_ARG((shape).width), MOERT_ARG((shape).stride)

static moert_status begin_combine(const moert_exchange *exchange, const moert_move *move,
                                  bool remote, moert_shape *shape, moert_grid *grid) {
    MOERT_TRY(narrow(move, move->window->columns, remote, shape));
    tell_work(exchange, move, shape);
    *grid = pieces_of(exchange->device, shape->tokens, move->window->width, GPU_STRIP);
    if (move->most_groups > 0)
        grid->x = moert_min(grid->x, move->most_groups);
    return MOERT_OK;
}

moert_status moert_kernel_combine_rows(moert_exchange *exchange, const moert_move *move,
                                       bool remote, const moert_buffer *reach,
                                       const moert_buffer *destination) {
    const char *kernel = moert_window_has_codes(move->window) ? "combine_codes" : "combine_rows";
    moert_shape shape;
    moert_grid grid;
    MOERT_TRY(begin_combine(exchange, move, remote, &shape, &grid));
    return MOERT_RUN(exchange->device, shape.program, kernel, grid,
                     COMBINE_ARGS(move, shape, reach, destination));
}

moert_status moert_kernel_sum(moert_exchange *exchange, const moert_move *move) {
    const char *kernel = moert_window_has_codes(move->window) ? "sum_codes" : "sum_rows";
    moert_shape shape;
    moert_grid grid;
    MOERT_TRY(begin_combine(exchange, move, false, &shape, &grid));
    return MOERT_RUN(exchange->device, shape.program, kernel, grid,
                     COMBINE_ARGS(move, shape, move->window->storage.rows, move->plan->destination),
                     MOERT_ARG((unsigned)exchange->sums));
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
