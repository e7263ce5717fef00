/*
 * The engine for ranks of one host. A window has one memory segment per rank, which the kernels of
 * all ranks write and read by address (moert_exchange_memory). No row is packed.
 *
 * A dispatch and a combine have one barrier each, of hosts or devices (exchange/window/control.h).
 * If devices wait for each other, a transfer of few rows is one kernel with the barrier inside
 * (move_fused). A launch, or a kernel that only waits, would take longer than moving the rows.
 */
#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/share.h"
#include "exchange/window/control.h"

/* A combine that overlaps with GEMMs reserves 2/11 of the compute units. Each reserved compute unit
 * holds UNIT_GROUPS of the combine's work-groups. Measured on H200s. */
enum { RESERVED = 2, OF_UNITS = 11, UNIT_GROUPS = 16 };
/* A dispatch sends a row to each rank once if that saves at least LEAST_SAVED of the rows to other
 * ranks and this number of bytes: WORTH_FUSED_BYTES if transfers of few rows are one kernel, or
 * WORTH_BYTES if fan_out is always a separate kernel. */
static const double LEAST_SAVED = 0.25, WORTH_BYTES = 4 << 20, WORTH_FUSED_BYTES = 1 << 20;

static moert_status allocate_window(const moert_window *window, size_t rows,
                                    moert_storage *storage) {
    const moert_exchange *exchange = window->exchange;
    const moert_control *control = exchange->state;
    return control->memory->create(exchange->device, exchange->comm, rows * moert_row_bytes(window),
                                   storage);
}

static void drop_event(moert_event **event) {
    moert_event_free(*event);
    *event = NULL;
}

static moert_status join_window(moert_exchange *exchange) {
    moert_control *control = exchange->state;
    moert_status status =
        control->combine_end != NULL ? moert_event_follow(control->combine_end) : MOERT_OK;
    drop_event(&control->combine_end);
    return status;
}

static moert_status fetch_window(moert_exchange *exchange) {
    MOERT_TRY(join_window(exchange)); /* the main queue must first wait for a combine on the second
                                         queue */
    return moert_control_fetch_verdict(exchange);
}

bool moert_window_saves(const moert_plan *plan, size_t row_bytes, bool fused) {
    const double least_bytes = fused ? WORTH_FUSED_BYTES : WORTH_BYTES;
    const double ranks = (double)plan->ranks, slots = (double)plan->topk;
    double none = 1.0, rows = 0.0;
    for (size_t k = 0; k < plan->topk; k++)
        none *= 1.0 - 1.0 / ranks;
    for (size_t e = 0; e < plan->experts; e++)
        rows += (double)plan->expert_counts[e];
    const double saved = 1.0 - ranks * (1.0 - none) / slots;
    const double off_rank = rows / ranks * (1.0 - 1.0 / ranks);
    return saved >= LEAST_SAVED && saved * off_rank * (double)row_bytes >= least_bytes;
}

/* Whether this rank runs a transfer as one kernel with the barrier inside. Other ranks may run the
 * same transfer as separate kernels. */
static bool is_fused(const moert_exchange *exchange, const moert_transfer *t, bool combines) {
    const moert_control *control = exchange->state;
    return control->fuse && !(combines && t->overlaps) && moert_kernel_is_small(t, combines);
}

static bool sends_window(const moert_exchange *exchange, const moert_transfer *t) {
    return is_fused(exchange, t, true);
}

/* Runs a transfer as one kernel. First a launch with a barrier of 0 ranks compiles the kernel,
 * since a launch that waits for other ranks must not hold the cache's lock. */
static moert_status move_fused(moert_exchange *exchange, const moert_transfer *t, bool combines,
                               moert_status status) {
    moert_control *control = exchange->state;
    const size_t numbers = combines ? t->window->columns : t->window->width;
    const unsigned kernel = 1U << (2 * (combines + (t->slot_window != NULL)) + (numbers % 4 == 0));
    if (status == MOERT_OK && (control->compiled & kernel) == 0)
        status =
            moert_kernel_move_barrier(exchange, t, combines, moert_flags_nobody(control->flags));
    control->compiled |= status == MOERT_OK ? kernel : 0;
    MOERT_TRY(moert_control_barrier(exchange, status));
    MOERT_TRY(moert_kernel_move_barrier(exchange, t, combines, moert_flags_next(control->flags)));
    return moert_device_flush(exchange->device); /* the other ranks' devices wait for this kernel */
}

static moert_status dispatch_window(moert_exchange *exchange, const moert_transfer *given,
                                    moert_status status) {
    moert_control *control = exchange->state;
    moert_transfer t = *given;
    /* all ranks compute the same value */
    t.one_copy_per_rank =
        control->one_copy_per_rank == MOERT_ONE_COPY_ALWAYS ||
        (control->one_copy_per_rank == MOERT_ONE_COPY_IF_IT_SAVES &&
         moert_window_saves(t.plan->plan, t.window->stride * sizeof(float), control->fuse));
    /* The barrier of an overlapped combine precedes the overlapping work. That work may still read
     * the rows of the last dispatch when another rank already sends the rows of the next dispatch.
     * So the devices need one more barrier, unless a plan in between has waited for every
     * device. */
    if (control->needs_barrier)
        status = moert_first(status, moert_flags_barrier(control->flags));
    control->needs_barrier = false;
    if (is_fused(exchange, &t, false))
        return move_fused(exchange, &t, false, status);
    if (status == MOERT_OK)
        status = moert_kernel_dispatch(exchange, &t, true);
    MOERT_TRY(moert_control_pass(exchange, status));
    return t.one_copy_per_rank ? moert_kernel_fan_out(exchange, &t) : MOERT_OK;
}

static bool pushes_window(const moert_exchange *exchange, bool gemm_scatters) {
    const moert_control *control = exchange->state;
    return control->push == MOERT_PUSH_ON || (control->push == MOERT_PUSH_AUTO && gemm_scatters);
}

static unsigned spared_units(const moert_exchange *exchange) {
    return moert_device_describe(exchange->device)->compute_units * RESERVED / OF_UNITS;
}

/* Prepares a combine on the second queue, if devices wait for each other without their host
 * processes. All steps that may fail are here, where this rank can still report a failure to the
 * other ranks. */
static moert_status prepare_overlapped(moert_exchange *exchange, moert_transfer *t) {
    moert_control *control = exchange->state;
    t->overlaps = control->flags != NULL;
    if (!t->overlaps || !moert_device_has_second_queue(exchange->device))
        return MOERT_OK;
    MOERT_TRY(join_window(exchange));
    MOERT_TRY(moert_device_use_queue(exchange->device, true));
    MOERT_TRY(moert_device_use_queue(exchange->device, false));
    MOERT_TRY(moert_event_record(exchange->device, &control->combine_start));
    moert_device_reserve_units(exchange->device, spared_units(exchange));
    return MOERT_OK;
}

/* Enqueues the combine on the second queue, after combine_start. Records one event after the slots,
 * and one after the rows. */
static moert_status enqueue_overlapped(moert_exchange *exchange, const moert_transfer *t,
                                       moert_event **slots) {
    moert_control *control = exchange->state;
    moert_transfer rows = *t;
    rows.most_groups = moert_max(spared_units(exchange), 1) * (size_t)UNIT_GROUPS;
    const moert_status follows = moert_event_follow(control->combine_start);
    MOERT_TRY(moert_flags_barrier(control->flags)); /* enqueued even after a failure, since all
                                                       other ranks also enqueue this barrier */
    MOERT_TRY(follows);
    MOERT_TRY(moert_kernel_combine_slots(exchange, t, true));
    MOERT_TRY(moert_event_record(exchange->device, slots));
    MOERT_TRY(moert_kernel_combine_rows(exchange, &rows, true));
    if (moert_device_run_shared(exchange->device) !=
        MOERT_OK) /* after the combine, GEMMs can use the combine's compute units */
        MOERT_INFO("compute units that a combine used stay idle after the combine: %s",
                   moert_last_error());
    return moert_event_record(exchange->device, &control->combine_end);
}

static moert_status combine_overlapped(moert_exchange *exchange, const moert_transfer *t) {
    moert_event *slots = NULL;
    MOERT_TRY(moert_device_use_queue(exchange->device, true));
    moert_status status = enqueue_overlapped(exchange, t, &slots);
    status = moert_first(status, moert_device_use_queue(exchange->device, false));
    if (status == MOERT_OK)
        status = moert_event_follow(slots);
    if (status != MOERT_OK)
        moert_device_finish(exchange->device); /* without the event, only a wait orders the two
                                                  queues */
    moert_event_free(slots);
    return status;
}

static moert_status combine_window(moert_exchange *exchange, const moert_transfer *t,
                                   moert_status status) {
    moert_control *control = exchange->state;
    const bool branched = control->combine_start != NULL;
    control->needs_barrier = false;
    if (is_fused(exchange, t, true))
        return move_fused(exchange, t, true, status);
    status =
        branched ? moert_control_barrier(exchange, status) : moert_control_pass(exchange, status);
    control->needs_barrier = status == MOERT_OK && t->overlaps;
    if (status == MOERT_OK && branched)
        status = combine_overlapped(exchange, t);
    if (branched)
        moert_device_reserve_units(exchange->device, 0);
    drop_event(&control->combine_start);
    if (branched || status != MOERT_OK)
        return status;
    MOERT_TRY(moert_kernel_combine_slots(exchange, t, true));
    return moert_kernel_combine_rows(exchange, t, true);
}

const moert_engine moert_engine_window = {
    .name = "window",
    .open = moert_control_open,
    .close = moert_control_close,
    .allocate = allocate_window,
    .dispatch = dispatch_window,
    .combine = combine_window,
    .fetch_verdict = fetch_window,
    .prepare_overlapped = prepare_overlapped,
    .join = join_window,
    .check_verdict = moert_control_check_verdict,
    .pushes = pushes_window,
    .sends = sends_window,
    .gather = moert_control_gather,
};
