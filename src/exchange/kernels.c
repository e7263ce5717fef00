/* Launches of kernels/exchange/exchange.cl. */
#include "base/memory.h"
#include "device/profile/profile.h"
#include "exchange/internal.h"

/* TOKENS and SLOTS of the kernels; in the GPU form floats of a piece of a row, and teams of a
 * work-group of fan_out. */
enum { TOKENS = 16, GPU_TOKENS = 1, SLOTS = 256, GPU_SLOTS = 32 };
enum { GPU_PIECE = 512, GPU_STRIP = 128, GPU_FAN_TEAMS = 4 };
/* Teams for each compute unit that store before a meeting inside a kernel, or combine after it, at
 * most: as many as one of NVIDIA's holds at once. */
enum { UNIT_TEAMS = 32 };

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
        .program = remote ? MOERT_PROGRAM(device, "exchange/exchange -DREMOTE=1", width)
                          : MOERT_PROGRAM(device, "exchange/exchange -DREMOTE=0", width),
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

static void count_dispatch(moert_exchange *exchange, const moert_move *move) {
    moert_exchange_count(exchange, move->plan->plan, move->window);
    if (move->slots != NULL)
        moert_exchange_count(exchange, move->plan->plan, move->slots);
}

static moert_status dispatch_slots(moert_exchange *exchange, const moert_move *move, bool remote,
                                   const moert_shape *shape) {
    count_dispatch(exchange, move);
    if (move->slots == NULL)
        return MOERT_OK;
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

/* The same of several teams. */
static moert_grid groups_of(const moert_device *device, size_t rows, size_t floats, size_t piece) {
    const moert_grid pieces = pieces_of(device, rows, floats, piece);
    return (moert_grid){moert_ceil_div(pieces.x, moert_share(device, 1, GPU_FAN_TEAMS)), 1, 1};
}

/* For a profile: about half of the rows are copies, read and written. */
static void tell_copies(const moert_exchange *exchange, const moert_move *move,
                        const moert_shape *shape) {
    moert_profile_work(exchange->device, shape->program, 0.0,
                       sizeof(float) * (double)move->plan->plan->rows * (double)shape->stride);
}

moert_status moert_kernel_fan_out(moert_exchange *exchange, const moert_move *move) {
    const moert_window *window = move->window;
    moert_device *device = exchange->device;
    const size_t rows = move->plan->plan->rows;
    moert_shape shape;
    MOERT_TRY(narrow(move, window->width, true, &shape));
    tell_copies(exchange, move, &shape);
    return MOERT_RUN(device, shape.program, "fan_out",
                     groups_of(device, rows, window->stride, GPU_PIECE),
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

/* Rows of a token that are sent as one, at most. */
static unsigned chain_of(const moert_exchange *exchange, const moert_shape *shape) {
    return exchange->sums ? shape->topk : 1;
}

/* For a profile: every row, read and written. */
static void tell_sent(const moert_exchange *exchange, const moert_move *move,
                      const moert_shape *shape) {
    moert_profile_work(exchange->device, shape->program, 0.0,
                       2.0 * sizeof(float) * (double)move->plan->plan->rows *
                           (double)shape->stride);
}

moert_status moert_kernel_send_rows(moert_exchange *exchange, const moert_move *move) {
    const moert_window *window = move->window;
    moert_device *device = exchange->device;
    const size_t rows = move->plan->plan->rows;
    moert_shape shape;
    MOERT_TRY(narrow(move, window->width, true, &shape));
    const char *kernel =
        exchange->sums && moert_window_has_codes(window) ? "send_codes" : "send_rows";
    tell_sent(exchange, move, &shape);
    return MOERT_RUN(
        device, shape.program, kernel, groups_of(device, rows, window->stride, GPU_PIECE),
        MOERT_ARG(window->storage.addresses), MOERT_ARG(move->slots->storage.rows),
        MOERT_ARG(move->source), MOERT_ARG((unsigned)rows), MOERT_ARG(chain_of(exchange, &shape)),
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

/* ---- moves of few rows ---- */

/* As in kernels/exchange/exchange_meet.h. */
typedef struct sizes {
    uint32_t tokens, topk, slots, width, stride, capacity, rows, storing, chain, once, codes;
} sizes;

/* Those of a move, or of one of no tokens in a meeting of no ranks. */
static sizes sizes_of(const moert_move *move, const moert_shape *shape, bool none) {
    return (sizes){.tokens = none ? 0 : shape->tokens,
                   .topk = shape->topk,
                   .slots = none ? 0 : shape->slots,
                   .width = shape->width,
                   .stride = shape->stride,
                   .capacity = (uint32_t)move->window->capacity_rows,
                   .rows = none ? 0 : (uint32_t)move->plan->plan->rows,
                   .chain = chain_of(move->window->exchange, shape),
                   .once = move->once,
                   .codes = moert_window_has_codes(move->window)};
}

static size_t most_groups(const moert_device *device) {
    return moert_device_describe(device)->compute_units * (size_t)UNIT_TEAMS /
           moert_share(device, 1, GPU_FAN_TEAMS);
}

/* Work-groups that store or copy so many rows, or that combine so many tokens'. */
static size_t storing_groups(const moert_move *move, size_t rows) {
    const moert_device *device = move->window->exchange->device;
    return moert_max(groups_of(device, rows, move->window->stride, GPU_PIECE).x, 1);
}

static size_t combining_groups(const moert_move *move, size_t tokens) {
    const moert_device *device = move->window->exchange->device;
    return moert_max(groups_of(device, tokens, move->window->width, GPU_STRIP).x, 1);
}

bool moert_kernel_is_small(const moert_move *move, bool combines) {
    const size_t tokens = move->plan->plan->tokens;
    const size_t most = most_groups(move->window->exchange->device);
    return combines ? combining_groups(move, tokens) <= most
                    : 2 * storing_groups(move, tokens) <= most;
}

/* The arguments that all these kernels end with. */
#define END_ARGS(s, meeting) moert_argument_struct(&(s), sizeof(s)), MOERT_MEETING_ARGS(meeting)

static moert_argument reach_slots(const moert_move *move) {
    return MOERT_ARG(move->slots != NULL ? reach_of(move->slots, true) : NULL);
}

static moert_status dispatch_meeting(moert_device *device, const moert_move *move,
                                     const char *program, sizes s, const moert_meeting *meeting) {
    s.storing = (uint32_t)storing_groups(move, s.tokens);
    const size_t copying = storing_groups(move, move->once ? s.rows : 0);
    const moert_grid grid = {s.storing + moert_min(copying, most_groups(device) - s.storing), 1, 1};
    return MOERT_RUN(device, program, "dispatch_meeting", grid,
                     MOERT_ARG(reach_of(move->window, true)), reach_slots(move),
                     MOERT_ARG(move->plan->destination), MOERT_ARG(move->source),
                     MOERT_ARG(move->slot_source), END_ARGS(s, meeting));
}

#define SUM_ARGS(move)                                                                             \
    MOERT_ARG(reach_of((move)->window, true)), reach_slots(move),                                  \
        MOERT_ARG((move)->plan->destination), MOERT_ARG((move)->weight),                           \
        MOERT_ARG((move)->target), MOERT_ARG((move)->slot_target)

static moert_status combine_meeting(moert_device *device, const moert_move *move,
                                    const char *program, sizes s, const moert_meeting *meeting) {
    return MOERT_RUN(device, program, "combine_meeting",
                     ((moert_grid){combining_groups(move, s.tokens), 1, 1}), SUM_ARGS(move),
                     END_ARGS(s, meeting));
}

static moert_status sum_meeting(moert_device *device, const moert_move *move, const char *program,
                                sizes s, const moert_meeting *meeting) {
    const moert_buffer *cells = NULL;
    if (move->source != NULL) {
        cells = move->cells->storage.rows;
        s.storing = (uint32_t)moert_min(storing_groups(move, s.rows), most_groups(device));
    }
    return MOERT_RUN(device, program, "sum_meeting",
                     ((moert_grid){s.storing + combining_groups(move, s.tokens), 1, 1}),
                     SUM_ARGS(move), MOERT_ARG(cells), MOERT_ARG(move->source),
                     END_ARGS(s, meeting));
}

static void tell_fused(moert_exchange *exchange, const moert_move *move, bool combines,
                       const moert_shape *shape) {
    tell_work(exchange, move, shape);
    if (move->once)
        tell_copies(exchange, move, shape);
    if (!combines)
        count_dispatch(exchange, move);
    else if (move->source != NULL)
        tell_sent(exchange, move, shape);
}

moert_status moert_kernel_move_meeting(moert_exchange *exchange, const moert_move *move,
                                       bool combines, const moert_meeting *meeting) {
    const bool none = meeting->terms.ranks == 0;
    moert_shape shape;
    MOERT_TRY(narrow(move, combines ? move->window->columns : move->window->width, true, &shape));
    if (!none)
        tell_fused(exchange, move, combines, &shape);
    return (!combines      ? dispatch_meeting
            : move->pushed ? sum_meeting
                           : combine_meeting)(exchange->device, move, shape.program,
                                              sizes_of(move, &shape, none), meeting);
}

moert_status moert_kernel_gather(moert_device *device, const moert_gather *gather) {
    const char *program =
        gather->remote
            ? MOERT_PROGRAM(device, "exchange/exchange -DREMOTE=1", gather->width | gather->stride)
            : MOERT_PROGRAM(device, "exchange/exchange -DREMOTE=0", gather->width | gather->stride);
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
