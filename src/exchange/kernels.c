/* Launches the kernels of kernels/exchange/exchange.cl. */
#include "base/memory.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "exchange/internal.h"

enum { TOKENS = MOERT_EXCHANGE_TOKENS, GPU_TOKENS = MOERT_EXCHANGE_GPU_TOKENS };
enum { SLOTS = MOERT_EXCHANGE_SLOTS, GPU_SLOTS = MOERT_EXCHANGE_GPU_SLOTS };
enum { GPU_PIECE = MOERT_EXCHANGE_GPU_PIECE, GPU_STRIP = MOERT_EXCHANGE_GPU_STRIP };
enum { GPU_FAN_ROW_GROUPS = MOERT_EXCHANGE_GPU_ROW_GROUPS };
/* The most row groups per compute unit that store before a barrier inside a kernel, or combine
 * after the barrier: as many as an SM of NVIDIA's GPUs holds at once. */
enum { UNIT_ROW_GROUPS = 32 };

static const moert_buffer *window_argument(const moert_window *window, bool remote) {
    return remote ? window->storage.addresses : window->storage.rows;
}

/* The program of a transfer, and its kernels' arguments and grid. */
typedef struct moert_shape {
    const char *program;
    moert_exchange_args args;
    moert_grid by_slot;
} moert_shape;

/* The work-groups for `rows` rows of `floats` floats. In the CPU form a work-group has TOKENS rows,
 * in the GPU form `piece` floats of a row. */
static moert_grid pieces_of(const moert_device *device, size_t rows, size_t floats, size_t piece) {
    return (moert_grid){
        moert_by_form(device, moert_ceil_div(rows, TOKENS), rows * moert_ceil_div(floats, piece)),
        1, 1};
}

/* Like pieces_of, for kernels whose work-groups have several row groups. */
static moert_grid groups_of(const moert_device *device, size_t rows, size_t floats, size_t piece) {
    const moert_grid pieces = pieces_of(device, rows, floats, piece);
    return (moert_grid){moert_ceil_div(pieces.x, moert_by_form(device, 1, GPU_FAN_ROW_GROUPS)), 1,
                        1};
}

static const char *program_of(moert_device *device, bool remote, size_t width) {
    return remote ? MOERT_PROGRAM(device, "exchange/exchange -DREMOTE=1", width)
                  : MOERT_PROGRAM(device, "exchange/exchange -DREMOTE=0", width);
}

/* `width` is the width of a row: in floats for a dispatch, in elements for a combine. */
static moert_status shape_of(const moert_transfer *t, size_t width, bool remote,
                             moert_shape *shape) {
    const moert_exchange *exchange = t->window->exchange;
    const moert_plan *plan = t->plan->plan;
    int slots, stride;
    MOERT_TRY(moert_to_int(plan->tokens * plan->topk, "slots of a plan", &slots));
    MOERT_TRY(moert_to_int(t->window->stride, "width of a window", &stride));
    *shape = (moert_shape){
        .program = program_of(exchange->device, remote, width),
        .args = {.tokens = (uint32_t)plan->tokens,
                 .topk = (uint32_t)plan->topk,
                 .slots = (uint32_t)slots,
                 .width = (uint32_t)width,
                 .stride = (uint32_t)stride,
                 .capacity = (uint32_t)t->window->capacity_rows,
                 .rows = (uint32_t)plan->rows,
                 .ranks = (uint32_t)plan->ranks,
                 .rank = (uint32_t)moert_comm_rank(exchange->comm),
                 .chain = exchange->sums ? (uint32_t)plan->topk : 1,
                 .bf16 = moert_window_is_bf16(t->window),
                 .once = t->one_copy_per_rank},
        .by_slot = {moert_ceil_div((size_t)slots,
                                   moert_by_form(exchange->device, SLOTS, GPU_SLOTS)),
                    1, 1},
    };
    return MOERT_OK;
}

/* ---- bytes, for profiles and counters ---- */

static void profile_floats(const moert_exchange *exchange, const moert_shape *shape,
                           double floats) {
    moert_profile_work(exchange->device, shape->program, 0.0, sizeof(float) * floats);
}

/* Reports to a profile that the row of every token moves once, and so does each of the token's K
 * rows in windows. */
static void profile_work(const moert_exchange *exchange, const moert_transfer *t,
                         const moert_shape *shape) {
    profile_floats(exchange, shape,
                   (double)shape->args.width * (double)shape->args.tokens +
                       (double)t->window->width * (double)shape->args.slots);
}

/* Reports to a profile that every row of this rank's window moves `moves` times. */
static void profile_rows(const moert_exchange *exchange, const moert_shape *shape, double moves) {
    profile_floats(exchange, shape, moves * (double)shape->args.rows * (double)shape->args.stride);
}

/* Counts the bytes of a dispatch to all owners: rows at their stride or, if the engine packs rows,
 * without padding. */
static void count_dispatch(moert_exchange *exchange, const moert_transfer *t) {
    const bool packs = exchange->engine->packs;
    size_t floats = packs ? t->window->width : t->window->stride;
    if (t->slots != NULL)
        floats += packs ? t->slots->width : t->slots->stride;
    for (size_t r = 0; r < t->plan->plan->ranks; r++)
        exchange->dispatched_bytes += t->plan->plan->send_rows[r] * floats * sizeof(float);
}

/* ---- dispatch ---- */

moert_status moert_kernel_dispatch(moert_exchange *exchange, const moert_transfer *t, bool remote) {
    const moert_window *window = t->window;
    moert_device *device = exchange->device;
    moert_shape shape;
    MOERT_TRY(shape_of(t, window->width, remote, &shape));
    profile_work(exchange, t, &shape);
    MOERT_TRY(MOERT_RUN(device, shape.program,
                        t->one_copy_per_rank ? "dispatch_once" : "dispatch_rows",
                        pieces_of(device, shape.args.tokens, window->stride, GPU_PIECE),
                        MOERT_ARG(window_argument(window, remote)), MOERT_ARG(t->plan->destination),
                        MOERT_ARG(t->source), MOERT_STRUCT(shape.args)));
    count_dispatch(exchange, t);
    if (t->slots == NULL)
        return MOERT_OK;
    return MOERT_RUN(device, shape.program, "dispatch_slots", shape.by_slot,
                     MOERT_ARG(window_argument(t->slots, remote)), MOERT_ARG(t->plan->destination),
                     MOERT_ARG(t->slot_source), MOERT_STRUCT(shape.args));
}

moert_status moert_kernel_fan_out(moert_exchange *exchange, const moert_transfer *t) {
    const moert_window *window = t->window;
    moert_device *device = exchange->device;
    moert_shape shape;
    MOERT_TRY(shape_of(t, window->width, true, &shape));
    profile_rows(exchange, &shape, 1.0); /* about half of the rows are copies, each read and written
                                            once */
    return MOERT_RUN(device, shape.program, "fan_out",
                     groups_of(device, shape.args.rows, window->stride, GPU_PIECE),
                     MOERT_ARG(window->storage.rows), MOERT_STRUCT(shape.args));
}

/* ---- push ---- */

moert_status moert_kernel_find_addresses(moert_exchange *exchange, const moert_transfer *t,
                                         moert_buffer *addresses) {
    moert_shape shape;
    MOERT_TRY(shape_of(t, t->window->width, true, &shape));
    const moert_grid grid = {
        moert_ceil_div(shape.args.rows, moert_by_form(exchange->device, SLOTS, GPU_SLOTS)), 1, 1};
    return MOERT_RUN(exchange->device, shape.program, "find_addresses", grid,
                     MOERT_ARG(t->window->storage.addresses),
                     MOERT_ARG(t->slot_window->storage.rows), MOERT_ARG(addresses),
                     MOERT_STRUCT(shape.args));
}

moert_status moert_kernel_send_rows(moert_exchange *exchange, const moert_transfer *t) {
    const moert_window *window = t->window;
    moert_device *device = exchange->device;
    moert_shape shape;
    MOERT_TRY(shape_of(t, window->width, true, &shape));
    profile_rows(exchange, &shape, 2.0);
    return MOERT_RUN(device, shape.program,
                     exchange->sums && moert_window_is_bf16(window) ? "send_bf16" : "send_rows",
                     groups_of(device, shape.args.rows, window->stride, GPU_PIECE),
                     MOERT_ARG(window->storage.addresses), MOERT_ARG(t->slot_window->storage.rows),
                     MOERT_ARG(t->unsent), MOERT_STRUCT(shape.args));
}

/* ---- combine ---- */

moert_status moert_kernel_combine_rows(moert_exchange *exchange, const moert_transfer *t,
                                       bool remote) {
    const bool sums = t->slot_window != NULL, bf16 = moert_window_is_bf16(t->window);
    const char *kernel =
        sums ? (bf16 ? "sum_bf16" : "sum_rows") : (bf16 ? "combine_bf16" : "combine_rows");
    moert_device *device = exchange->device;
    moert_shape shape;
    MOERT_TRY(shape_of(t, t->window->columns, remote && !sums, &shape));
    profile_work(exchange, t, &shape);
    moert_grid grid = pieces_of(device, shape.args.tokens, t->window->width, GPU_STRIP);
    if (t->most_groups > 0)
        grid.x = moert_min(grid.x, t->most_groups);
    return MOERT_RUN(device, shape.program, kernel, grid,
                     MOERT_ARG(window_argument(t->window, remote && !sums)),
                     MOERT_ARG(t->plan->destination), MOERT_ARG(t->weight), MOERT_ARG(t->target),
                     MOERT_STRUCT(shape.args));
}

moert_status moert_kernel_combine_slots(moert_exchange *exchange, const moert_transfer *t,
                                        bool remote) {
    moert_shape shape;
    if (t->slots == NULL)
        return MOERT_OK;
    MOERT_TRY(shape_of(t, t->window->columns, remote, &shape));
    return MOERT_RUN(exchange->device, shape.program, "combine_slots", shape.by_slot,
                     MOERT_ARG(window_argument(t->slots, remote)), MOERT_ARG(t->plan->destination),
                     MOERT_ARG(t->slot_target), MOERT_STRUCT(shape.args));
}

/* ---- transfers of few rows ---- */

static size_t most_groups(const moert_device *device) {
    return moert_device_describe(device)->compute_units * (size_t)UNIT_ROW_GROUPS /
           moert_by_form(device, 1, GPU_FAN_ROW_GROUPS);
}

/* The number of work-groups that store or copy `rows` rows. */
static size_t storing_groups(const moert_transfer *t, size_t rows) {
    const moert_device *device = t->window->exchange->device;
    return moert_max(groups_of(device, rows, t->window->stride, GPU_PIECE).x, 1);
}

/* The number of work-groups that combine the rows of `tokens` tokens. */
static size_t combining_groups(const moert_transfer *t, size_t tokens) {
    const moert_device *device = t->window->exchange->device;
    return moert_max(groups_of(device, tokens, t->window->width, GPU_STRIP).x, 1);
}

bool moert_kernel_is_small(const moert_transfer *t, bool combines) {
    const size_t tokens = t->plan->plan->tokens;
    const size_t most = most_groups(t->window->exchange->device);
    return combines ? combining_groups(t, tokens) <= most : 2 * storing_groups(t, tokens) <= most;
}

/* The last arguments of the kernels for transfers of few rows. */
#define FUSED_ARGS(launch, barrier)                                                                \
    MOERT_ARG((barrier)->state), MOERT_STRUCT(((moert_fused_args){launch, (barrier)->args}))

static moert_argument slots_argument(const moert_transfer *t) {
    return MOERT_ARG(t->slots != NULL ? window_argument(t->slots, true) : NULL);
}

static moert_status dispatch_barrier(moert_device *device, const moert_transfer *t,
                                     moert_shape *shape, const moert_barrier *barrier) {
    moert_exchange_args *args = &shape->args;
    args->storing = (uint32_t)storing_groups(t, args->tokens);
    const size_t copying = storing_groups(t, t->one_copy_per_rank ? args->rows : 0);
    const moert_grid grid = {
        args->storing + moert_min(copying, most_groups(device) - args->storing), 1, 1};
    return MOERT_RUN(device, shape->program, "dispatch_barrier", grid,
                     MOERT_ARG(window_argument(t->window, true)), slots_argument(t),
                     MOERT_ARG(t->plan->destination), MOERT_ARG(t->source),
                     MOERT_ARG(t->slot_source), FUSED_ARGS(*args, barrier));
}

#define SUM_ARGS(t)                                                                                \
    MOERT_ARG(window_argument((t)->window, true)), slots_argument(t),                              \
        MOERT_ARG((t)->plan->destination), MOERT_ARG((t)->weight), MOERT_ARG((t)->target),         \
        MOERT_ARG((t)->slot_target)

static moert_status combine_barrier(moert_device *device, const moert_transfer *t,
                                    moert_shape *shape, const moert_barrier *barrier) {
    return MOERT_RUN(device, shape->program, "combine_barrier",
                     ((moert_grid){combining_groups(t, shape->args.tokens), 1, 1}), SUM_ARGS(t),
                     FUSED_ARGS(shape->args, barrier));
}

static moert_status sum_barrier(moert_device *device, const moert_transfer *t, moert_shape *shape,
                                const moert_barrier *barrier) {
    moert_exchange_args *args = &shape->args;
    const moert_buffer *cells = NULL;
    if (t->unsent != NULL) {
        cells = t->slot_window->storage.rows;
        args->storing = (uint32_t)moert_min(storing_groups(t, args->rows), most_groups(device));
    }
    return MOERT_RUN(device, shape->program, "sum_barrier",
                     ((moert_grid){args->storing + combining_groups(t, args->tokens), 1, 1}),
                     SUM_ARGS(t), MOERT_ARG(cells), MOERT_ARG(t->unsent),
                     FUSED_ARGS(*args, barrier));
}

moert_status moert_kernel_move_barrier(moert_exchange *exchange, const moert_transfer *t,
                                       bool combines, moert_barrier barrier) {
    moert_shape shape;
    MOERT_TRY(shape_of(t, combines ? t->window->columns : t->window->width, true, &shape));
    if (barrier.args.ranks == 0) /* a barrier of 0 ranks: the kernel moves no rows */
        shape.args.tokens = shape.args.slots = shape.args.rows = 0;
    else
        profile_work(exchange, t, &shape);
    if (t->one_copy_per_rank)
        profile_rows(exchange, &shape, 1.0);
    if (combines && t->unsent != NULL)
        profile_rows(exchange, &shape, 2.0);
    if (!combines && barrier.args.ranks > 0)
        count_dispatch(exchange, t);
    return (!combines                ? dispatch_barrier
            : t->slot_window != NULL ? sum_barrier
                                     : combine_barrier)(exchange->device, t, &shape, &barrier);
}

moert_status moert_kernel_gather(moert_device *device, const moert_gather *gather) {
    const char *program = program_of(device, false, gather->width | gather->stride);
    int rows, stride;
    MOERT_TRY(moert_to_int(gather->rows, "rows to gather", &rows));
    MOERT_TRY(moert_to_int(gather->stride, "width of a window", &stride));
    moert_profile_work(device, program, 0.0,
                       2.0 * sizeof(float) * (double)gather->rows * (double)gather->width);
    return MOERT_RUN(
        device, program, "gather_rows",
        ((moert_grid){moert_ceil_div(gather->rows, moert_by_form(device, TOKENS, GPU_TOKENS)), 1,
                      1}),
        MOERT_ARG(gather->window), MOERT_ARG(gather->from), MOERT_ARG(gather->packed),
        MOERT_ARGS(moert_exchange_args, .rows = (uint32_t)rows, .width = (uint32_t)gather->width,
                   .stride = (uint32_t)stride));
}
